//! A row's logits depend on its own tokens only. They are bit by bit the same in a tree, in another
//! tree, in a chain and decoded row by row, alone and beside other sequences, on every device.
//!
//! `SPINNEY_TEST_DEVICE=cuda` runs these tests on the first GPU, the one of the 27B widths only
//! there; `SPINNEY_TEST_LAYERS` sets how many layers that model has.

use std::env::{self, VarError};

use ops::{Cuda, DEPTH_MAX, TreeTablesFrom};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::super::Stage;
use super::super::staging::Staging;
use super::*;

/// A path of the checkout: where the test was compiled, unless `SPINNEY_TEST_ROOT` says that the
/// test was carried elsewhere.
pub(super) fn root(path: &str) -> PathBuf {
    let compiled = || concat!(env!("CARGO_MANIFEST_DIR"), "/../..").to_owned();
    PathBuf::from(env::var("SPINNEY_TEST_ROOT").unwrap_or_else(|_| compiled())).join(path)
}

/// The GPU, if the tests are to run there.
pub(super) fn gpu() -> Option<Cuda> {
    match env::var("SPINNEY_TEST_DEVICE").as_deref() {
        Ok("cuda") => (Cuda::open(0).map(Some)).expect("SPINNEY_TEST_DEVICE=cuda needs a GPU"),
        Err(VarError::NotPresent) => None,
        other => panic!("SPINNEY_TEST_DEVICE is {other:?}; it can be cuda"),
    }
}

/// Rows of one sequence.
struct Tree {
    slot: usize,
    tokens: Vec<u32>,
    parents: Vec<i32>,
}

impl Tree {
    fn chain(slot: usize, tokens: &[u32]) -> Self {
        Tree {
            slot,
            tokens: tokens.to_vec(),
            parents: (0..tokens.len() as i32).map(|row| row - 1).collect(),
        }
    }

    /// A tree of `rows` rows that holds `path` somewhere, and the row of the path's end.
    fn around(rng: &mut Tokens, slot: usize, path: &[u32], rows: usize) -> (Self, usize) {
        let mut tree = Tree::chain(slot, &path[..1]);
        let (mut along, mut end, mut depth) = (1, 0, vec![0]);
        while tree.tokens.len() < rows {
            let missing = path.len() - along;
            let last_chance = rows - tree.tokens.len() == missing;
            if missing > 0 && (last_chance || rng.random.random_bool(0.3)) {
                tree.parents.push(end as i32);
                tree.tokens.push(path[along]);
                (depth, end) = ([&depth[..], &[along]].concat(), tree.tokens.len() - 1);
                along += 1;
                continue;
            }
            let parent = rng.random.random_range(0..tree.tokens.len());
            let token = rng.token();
            // Siblings differ, those that are still to come too.
            let to_come = parent == end && path.get(along) == Some(&token);
            let twin = (tree.parents.iter().zip(&tree.tokens))
                .any(|(&other, &known)| other == parent as i32 && known == token);
            if depth[parent] < DEPTH_MAX && !twin && !to_come {
                depth.push(depth[parent] + 1);
                tree.parents.push(parent as i32);
                tree.tokens.push(token);
            }
        }
        (tree, end)
    }

    /// The tokens from the root to a row.
    fn path(&self, row: usize) -> Vec<u32> {
        let mut path = vec![self.tokens[row]];
        let mut row = row;
        while let Ok(parent) = usize::try_from(self.parents[row]) {
            path.push(self.tokens[parent]);
            row = parent;
        }
        path.reverse();
        path
    }

    fn depths(&self) -> Vec<u32> {
        let rows = 0..self.tokens.len();
        rows.map(|row| self.path(row).len() as u32 - 1).collect()
    }
}

/// Random token ids.
struct Tokens {
    random: Pcg64Mcg,
    count: usize,
}

impl Tokens {
    fn token(&mut self) -> u32 {
        self.random.random_range(0..self.count as u32)
    }

    fn many(&mut self, len: usize) -> Vec<u32> {
        (0..len).map(|_| self.token()).collect()
    }
}

/// Verifies the trees in one forward; logits stay on the device, rows in the order of the trees.
fn verify<B: Backend>(runner: &mut Runner<B>, trees: &[&Tree]) -> StepKey {
    let mut staging = Staging::default();
    for tree in trees {
        staging.tree(tree.slot, tree.tokens.len());
    }
    let shapes = trees.iter().map(|tree| match tree.tokens.len() {
        1 => Shape::Plain,
        rows => Shape::Tree(rows - 1),
    });
    let key = StepKey::of(shapes, runner.config.sequences_max);
    let backend = runner.backend.clone();
    let forward = &mut runner.verify;
    forward.batch.cover(key.sequences);
    let tables = || {
        staging.upload(&*backend, &mut forward.batch, &mut forward.held)?;
        let batch = &mut forward.batch;
        let mut row = 0;
        for tree in trees {
            backend.upload(&tree.tokens, &mut batch.token, row)?;
            backend.upload(&tree.parents, &mut batch.parent, row)?;
            backend.upload(&tree.depths(), &mut batch.depth, row)?;
            row += tree.tokens.len();
        }
        let padding = &mut runner.results.padding;
        backend.zero(padding, 0, backend.len(padding))?;
        backend.tree_tables(TreeTablesFrom {
            batch: &forward.batch,
            padding: Some(padding),
            tables: &mut forward.tree,
        })
    };
    tables().expect("tables fit");
    runner.verify(key).expect("the forward runs");
    key
}

/// What a step changes and a later one reads, of all slots. Keys and values are not among it: those
/// behind a sequence's length mean nothing.
struct Snapshot<B: Backend> {
    states: Vec<(Vec<f32>, Vec<B::Act>)>,
    counters: [Vec<u32>; 4],
}

impl<B: Backend> Snapshot<B> {
    fn take(runner: &Runner<B>) -> Self {
        let backend = &*runner.backend;
        let slots = &runner.slots;
        Snapshot {
            states: (runner.states.iter())
                .map(|state| (all(backend, &state.state), all(backend, &state.conv)))
                .collect(),
            counters: [&slots.length, &slots.root, &slots.emitted, &slots.pending]
                .map(|counter| all(backend, counter)),
        }
    }

    fn restore(&self, runner: &mut Runner<B>) {
        let backend = runner.backend.clone();
        for ((state, conv), to) in self.states.iter().zip(&mut runner.states) {
            backend.upload(state, &mut to.state, 0).expect("it fits");
            backend.upload(conv, &mut to.conv, 0).expect("it fits");
        }
        let slots = &mut runner.slots;
        let counters = [
            &mut slots.length,
            &mut slots.root,
            &mut slots.emitted,
            &mut slots.pending,
        ];
        for (counter, to) in self.counters.iter().zip(counters) {
            backend.upload(counter, to, 0).expect("it fits");
        }
    }
}

fn all<B: Backend, T: ops::Element>(backend: &B, buf: &B::Buf<T>) -> Vec<T> {
    let mut values = vec![T::zeroed(); backend.len(buf)];
    backend.download(buf, 0, &mut values).expect("it is there");
    values
}

pub(super) const SEQUENCES: usize = 3;
const CONTEXT_MAX: usize = 5_200;

/// Rows of the trees that are verified together: full and odd, shallow and of one row.
const ROWS: [[usize; SEQUENCES]; 4] = [[64, 17, 1], [7, 64, 33], [64, 64, 64], [16, 2, 48]];

pub(super) fn load<B: Backend>(backend: B, sources: &ModelSources, vocab_used: usize) -> Runner<B> {
    let mut config = RunnerConfig {
        sequences_max: SEQUENCES,
        context_max: CONTEXT_MAX,
        prefill_rows_max: 512,
        weight_dtype: B::DTYPE,
        kv_dtype: B::DTYPE,
        vocab_used,
        ..super::config()
    };
    config.kv_pages = config.pages_per_sequence() * SEQUENCES;
    Runner::load(backend, sources, config, &LoadProgress::default()).expect("the model loads")
}

fn prefill<B: Backend>(runner: &mut Runner<B>, slot: usize, prompt: &[u32]) {
    start(runner, slot, prompt, &SamplingParams::default());
    let most = runner.config.prefill_rows_max;
    for (number, tokens) in prompt.chunks(most).enumerate() {
        let start = number * most;
        let chunk = Chunk {
            slot,
            start,
            tokens,
            last: start + tokens.len() == prompt.len(),
            prompt_logprobs: None,
        };
        runner.prefill(&[chunk]).expect("the prefill runs");
    }
}

/// The row of every `every`-th node of three random trees behind `context` tokens, against the same
/// path run in other ways. Returns how many rows were compared.
fn compare<B: Backend>(
    runner: &mut Runner<B>,
    tokens: &mut Tokens,
    (context, rows): (usize, [usize; SEQUENCES]),
    every: usize,
) -> usize {
    for slot in 0..SEQUENCES {
        let prompt = tokens.many(context + slot);
        prefill(runner, slot, &prompt);
    }
    let before = Snapshot::take(runner);
    let trees: Vec<Tree> = (0..SEQUENCES)
        .map(|slot| {
            let root = [tokens.token()];
            Tree::around(tokens, slot, &root, rows[slot]).0
        })
        .collect();
    verify(runner, &trees.iter().collect::<Vec<_>>());
    let (mut picked, mut first) = (Vec::new(), 0);
    for tree in &trees {
        let last = tree.tokens.len() - 1;
        for row in (0..=last).filter(|row| row % every == every / 2 || *row == last) {
            picked.push((tree, row, bits(&row_logits(runner, first + row))));
        }
        first += tree.tokens.len();
    }
    for (tree, row, expected) in &picked {
        let slot = tree.slot;
        let path = tree.path(*row);
        let check = |found: Vec<f32>, how: &str| {
            assert!(found.iter().all(|value| value.is_finite()));
            let same = bits(&found) == *expected;
            let rows = tree.tokens.len();
            assert!(
                same,
                "{how}: row {row} of {rows} behind {context} tokens, slot {slot}"
            );
        };
        before.restore(runner);
        let decoded = path.iter().map(|&token| step_token(runner, slot, token));
        check(decoded.last().expect("a path has a root"), "row by row");
        before.restore(runner);
        verify(runner, &[&Tree::chain(slot, &path)]);
        check(row_logits(runner, path.len() - 1), "in a chain");
        before.restore(runner);
        let size = tokens.random.random_range(path.len()..=64);
        let (other, end) = Tree::around(tokens, slot, &path, size);
        verify(runner, &[&other]);
        check(row_logits(runner, end), "in another tree");
        before.restore(runner);
        let root = [tokens.token()];
        let size = tokens.random.random_range(1..=64);
        let (stranger, _) = Tree::around(tokens, (slot + 1) % SEQUENCES, &root, size);
        verify(runner, &[&stranger, &other]);
        check(row_logits(runner, size + end), "behind another sequence");
    }
    picked.len()
}

/// Steps that accept several tokens, against plain decoding of the same: the rows of the accepted
/// path have the same logits, step after step, whatever was committed how.
fn steps_continue<B: Backend>(
    runner: &mut Runner<B>,
    tokens: &mut Tokens,
    context: usize,
    count: usize,
) {
    let slot = 1;
    let prompt = tokens.many(context);
    prefill(runner, slot, &prompt);
    let before = Snapshot::take(runner);
    let (mut emitted, mut logits) = (vec![read_root(runner, slot)], Vec::new());
    while emitted.len() <= count {
        logits.push(bits(&step_token(runner, slot, emitted[emitted.len() - 1])));
        emitted.push(read_root(runner, slot));
    }
    before.restore(runner);
    let mut done = 0;
    while done < count {
        let most = (count - done).min(DEPTH_MAX + 1);
        let len = tokens.random.random_range(1..=most);
        let path = &emitted[done..done + len];
        let rows = tokens.random.random_range(len..=64);
        let (tree, _) = Tree::around(tokens, slot, path, rows);
        let key = verify(runner, &[&tree]);
        for (row, token) in (0..rows).map(|row| (row, tree.path(row))) {
            if path.starts_with(&token) {
                let at = done + token.len() - 1;
                let same = bits(&row_logits(runner, row)) == logits[at];
                assert!(
                    same,
                    "{context} + {at} tokens, row {row} of {rows}, path of {len}"
                );
            }
        }
        runner
            .sample_and_walk(key.rows, Stage::Step, false)
            .expect("the walk runs");
        runner.commit(key).expect("the commit runs");
        let read = runner.results.read(&runner.backend, &[None]);
        let walked = read.expect("a result").remove(0).tokens;
        let walked: Vec<u32> = walked.iter().map(|token| token.id).collect();
        assert!(walked.len() >= len);
        let end = (done + 1 + walked.len()).min(emitted.len());
        assert_eq!(walked[..end - done - 1], emitted[done + 1..end], "tokens");
        done += walked.len();
    }
}

fn read_root<B: Backend>(runner: &Runner<B>, slot: usize) -> u32 {
    all(&*runner.backend, &runner.slots.root)[slot]
}

/// All contexts, each with other trees.
fn compare_all<B: Backend>(runner: &mut Runner<B>, contexts: &[usize], every: usize) {
    let mut tokens = Tokens {
        random: Pcg64Mcg::seed_from_u64(7),
        count: runner.config.vocab_used,
    };
    for (&context, rows) in contexts.iter().zip(ROWS) {
        let count = compare(runner, &mut tokens, (context, rows), every);
        println!("{count} rows behind {context} tokens, each in five ways");
    }
    for &context in contexts {
        steps_continue(
            runner,
            &mut tokens,
            context,
            if every > 10 { 20 } else { 150 },
        );
    }
}

/// The random pair of the fixtures, in f32.
#[test]
fn rows_of_the_fixtures() {
    let mut config = RunnerConfig {
        context_max: 700,
        ..config()
    };
    config.kv_pages = config.pages_per_sequence() * SEQUENCES;
    let mut runner = runner(config);
    compare_all(&mut runner, &[1, 63, 130, 500], 5);
}

fn bundled_sources() -> ModelSources {
    let folder = root("crates/server/spinney-tiny");
    ModelSources {
        drafter: Some(CheckpointSource::Folder(folder.join("drafter"))),
        target: CheckpointSource::Folder(folder),
        format: LoadFormat::Safetensors,
    }
}

/// The bundled pair with so many places for snapshots.
pub(super) fn bundled<B: Backend>(backend: B, snapshots: usize) -> Runner<B> {
    let config = RunnerConfig {
        weight_dtype: B::DTYPE,
        kv_dtype: B::DTYPE,
        vocab_used: 2_000,
        snapshots,
        host_snapshots: 2,
        ..super::config()
    };
    let progress = LoadProgress::default();
    Runner::load(backend, &bundled_sources(), config, &progress).expect("the model loads")
}

#[test]
fn rows_of_the_bundled_pair() {
    let sources = bundled_sources();
    let vocab = 2_000;
    match gpu() {
        Some(gpu) => {
            let mut runner = load(gpu, &sources, vocab);
            compare_all(&mut runner, &[5, 64, 700, 5_000], 2);
            let sweep: Vec<usize> = (1..200).step_by(7).collect();
            for contexts in sweep.chunks(ROWS.len()) {
                compare_all(&mut runner, contexts, 6);
            }
        }
        None => compare_all(
            &mut load(Cpu::default(), &sources, vocab),
            &[5, 64, 700],
            14,
        ),
    }
}

/// The 27B target with random weights, cut to a few of its layers.
#[test]
fn rows_of_the_large_widths() {
    let Some(gpu) = gpu() else {
        return println!("skipped: SPINNEY_TEST_DEVICE is not cuda");
    };
    let layers = env::var("SPINNEY_TEST_LAYERS").unwrap_or_else(|_| "4".into());
    let layers: usize = layers.parse().expect("SPINNEY_TEST_LAYERS is a number");
    let text = std::fs::read_to_string(root("configs/qwen3.6-27b/config.json"));
    let mut config: serde_json::Value =
        serde_json::from_str(&text.expect("the file is committed")).expect("it is JSON");
    let sizes = &mut config["text_config"];
    sizes["num_hidden_layers"] = layers.into();
    let types = sizes["layer_types"].as_array_mut().expect("a list");
    types.truncate(layers);
    assert_eq!(types.len(), layers, "SPINNEY_TEST_LAYERS is at most 64");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("config.json"), config.to_string()).expect("a file");
    let sources = ModelSources {
        target: CheckpointSource::Folder(folder.path().into()),
        drafter: None,
        format: LoadFormat::Dummy { seed: 5 },
    };
    let every = if layers > 8 { 30 } else { 6 };
    compare_all(
        &mut load(gpu, &sources, 248_070),
        &[5, 64, 700, 5_000],
        every,
    );
}
