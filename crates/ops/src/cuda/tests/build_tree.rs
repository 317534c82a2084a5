//! Trees of random candidates: every id, parent, depth and bit of the predictions.

use rand_pcg::Pcg64;

use super::{get, gpu, poisoned, put, put_batch, put_slots};
use crate::testing::{below, rng, slots, tree_batch};
use crate::{
    Backend, Batch, BuildTree, Cpu, Cuda, DraftBlocks, DraftPlan, NONE, Prediction, ScratchNeeds,
    Slots,
};

/// What a step drafts from.
struct Step {
    block_size: usize,
    k: usize,
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    block: Vec<u32>,
    chain: Vec<u32>,
    shared: bool,
    /// Rows given and rows to get at most, where rows are shared.
    rows: Vec<u32>,
    rows_max: Vec<u32>,
    slots: Slots<Cpu>,
    batch: Batch<Cpu>,
}

/// Tables as they stand afterwards.
#[derive(Debug, PartialEq)]
struct Built {
    live: Vec<u32>,
    row_sequence: Vec<u32>,
    start: Vec<u32>,
    rows: Vec<u32>,
    token: Vec<u32>,
    parent: Vec<i32>,
    depth: Vec<u32>,
    padding: Vec<u32>,
    prediction: Vec<u32>,
}

fn unit(rng: &mut Pcg64) -> f32 {
    below(rng, 1 << 24) as f32 / (1 << 24) as f32
}

/// Descending log-probabilities of one depth: smooth, peaked, flat, or on a coarse grid, where
/// different paths tie exactly; some rows end early and a few are not numbers.
fn candidates(rng: &mut Pcg64, k: usize, kind: usize) -> Vec<f32> {
    let mut row: Vec<f32> = (0..k)
        .map(|rank| match kind {
            0 => -5.0 * unit(rng),
            1 => -0.2 - 3.0 * rank as f32 * unit(rng),
            2 => -0.5,
            3 => -0.5 * below(rng, 6) as f32,
            _ => -0.01 * unit(rng) - 8.0 * unit(rng) * rank.min(1) as f32,
        })
        .collect();
    row.sort_by(|a, b| b.total_cmp(a));
    match below(rng, 24) {
        0 => {
            let end = below(rng, k + 1);
            row[end..].fill(f32::NEG_INFINITY);
        }
        1 if below(rng, 4) == 0 => row[below(rng, k)] = f32::NAN,
        2 => row[0] = 0.0,
        3 => row[k - 1] = -f32::MAX,
        _ => {}
    }
    row
}

impl Step {
    fn random(rng: &mut Pcg64, sequences: usize) -> Self {
        let block_size = [16, 16, 8, 1 + below(rng, 16)][below(rng, 4)];
        let k = [15, 8, 4, 1 + below(rng, 15)][below(rng, 4)];
        let rows: Vec<usize> = (0..sequences)
            .map(|_| [64, 32, 16, 1 + below(rng, 64)][below(rng, 4)])
            .collect();
        // Parents are the op's to write.
        let parents: Vec<Vec<i32>> = rows.iter().map(|&rows| vec![-1; rows]).collect();
        let batch = tree_batch(&parents.iter().map(|p| &p[..]).collect::<Vec<_>>());
        let mut slots = slots(sequences, 10);
        for slot in 0..sequences {
            slots.root[slot] = 900 + slot as u32;
            slots.length[slot] = below(rng, 100) as u32;
            slots.emitted[slot] = below(rng, 100) as u32;
            let limits = &mut slots.sampling[slot];
            match below(rng, 4) {
                0 => limits.tokens_max = (slots.emitted[slot] + below(rng, 20) as u32).max(2) - 2,
                1 => limits.context_max = (slots.length[slot] + below(rng, 20) as u32).max(2) - 2,
                _ => {}
            }
        }
        // Row 0 of a block is not looked at: it may hold anything.
        let kind = below(rng, 5);
        let logprobs: Vec<f32> = (0..sequences * block_size)
            .flat_map(|row| match row % block_size {
                0 => vec![f32::NAN; k],
                _ => candidates(rng, k, kind),
            })
            .collect();
        let mut block: Vec<u32> = (0..sequences as u32).rev().collect();
        if block_size == 1 {
            block.fill(NONE);
        }
        for block in &mut block {
            if below(rng, 12) == 0 {
                *block = NONE;
            }
        }
        // The unused entry behind the live sequences.
        block.push(77);
        Step {
            ids: (0..logprobs.len() as u32).map(|i| 1000 + i).collect(),
            chain: (0..=sequences)
                .map(|_| u32::from(below(rng, 4) == 0))
                .collect(),
            block_size,
            k,
            logprobs,
            block,
            shared: false,
            rows: vec![77; sequences + 1],
            rows_max: vec![77; sequences + 1],
            slots,
            batch,
        }
    }

    /// The same step with its rows shared: few or many of them, with caps, and some sequences that
    /// keep their own.
    fn sharing(mut self, rng: &mut Pcg64) -> Self {
        let scarce = below(rng, 3) == 0;
        for sequence in 0..self.batch.live[1] as usize {
            let given = self.batch.sequence_rows[sequence];
            self.rows[sequence] = if scarce { given.min(2) } else { given };
            self.rows_max[sequence] = [0, 64, 64, 1 + below(rng, 64) as u32][below(rng, 4)];
        }
        self.shared = true;
        self
    }

    fn cpu(&self) -> Built {
        let cpu = Cpu::default();
        let rows = self.batch.rows_max;
        let mut batch = Batch::new(&cpu, rows, self.batch.sequences_max).unwrap();
        batch.live.copy_from_slice(&self.batch.live);
        batch
            .sequence_slot
            .copy_from_slice(&self.batch.sequence_slot);
        if self.shared {
            batch.live[0] = 0xABAB_ABAB;
            batch.row_sequence.fill(0xABAB_ABAB);
            batch.sequence_start.fill(0xABAB_ABAB);
            batch.sequence_rows.fill(0xABAB_ABAB);
        } else {
            batch.row_sequence.copy_from_slice(&self.batch.row_sequence);
            batch
                .sequence_start
                .copy_from_slice(&self.batch.sequence_start);
            batch
                .sequence_rows
                .copy_from_slice(&self.batch.sequence_rows);
        }
        batch.token.fill(0xABAB_ABAB);
        batch.parent.fill(0xABAB_ABABu32 as i32);
        batch.depth.fill(0xABAB_ABAB);
        let mut padding: Box<[u32]> = vec![0xABAB_ABAB; rows].into();
        let poison = f32::from_bits(0xABAB_ABAB);
        let mut prediction = vec![poison; batch.sequences_max * Prediction::LEN].into();
        cpu.build_tree(BuildTree {
            block_size: self.block_size,
            k: self.k,
            ids: &self.ids.clone().into(),
            logprobs: &self.logprobs.clone().into(),
            plan: &DraftPlan {
                block: self.block.clone().into(),
                chain: self.chain.clone().into(),
                rows: self.rows.clone().into(),
                rows_max: self.rows_max.clone().into(),
            },
            shared: self.shared,
            slots: &self.slots,
            batch: &mut batch,
            padding: &mut padding,
            prediction: &mut prediction,
        })
        .unwrap();
        Built {
            live: batch.live.into(),
            row_sequence: batch.row_sequence.into(),
            start: batch.sequence_start.into(),
            rows: batch.sequence_rows.into(),
            token: batch.token.into(),
            parent: batch.parent.into(),
            depth: batch.depth.into(),
            padding: padding.into(),
            prediction: prediction.iter().map(|p| p.to_bits()).collect(),
        }
    }

    fn cuda(&self, cuda: &Cuda) -> Built {
        let needs = ScratchNeeds {
            sequences: self.batch.sequences_max,
            ..ScratchNeeds::default()
        };
        cuda.reserve(&needs).unwrap();
        let mut batch = put_batch(cuda, &self.batch);
        if self.shared {
            batch.live = put(cuda, &[0xABAB_ABAB, self.batch.live[1]]);
            batch.row_sequence = poisoned(cuda, self.batch.rows_max);
            batch.sequence_start = poisoned(cuda, self.batch.sequences_max);
            batch.sequence_rows = poisoned(cuda, self.batch.sequences_max);
        }
        batch.token = poisoned(cuda, self.batch.rows_max);
        batch.parent = poisoned(cuda, self.batch.rows_max);
        batch.depth = poisoned(cuda, self.batch.rows_max);
        let mut padding = poisoned(cuda, self.batch.rows_max);
        let mut prediction = poisoned(cuda, self.batch.sequences_max * Prediction::LEN);
        cuda.build_tree(BuildTree {
            block_size: self.block_size,
            k: self.k,
            ids: &put(cuda, &self.ids),
            logprobs: &put(cuda, &self.logprobs),
            plan: &DraftPlan {
                block: put(cuda, &self.block),
                chain: put(cuda, &self.chain),
                rows: put(cuda, &self.rows),
                rows_max: put(cuda, &self.rows_max),
            },
            shared: self.shared,
            slots: &put_slots(cuda, &self.slots),
            batch: &mut batch,
            padding: &mut padding,
            prediction: &mut prediction,
        })
        .unwrap();
        Built {
            live: get(cuda, &batch.live),
            row_sequence: get(cuda, &batch.row_sequence),
            start: get(cuda, &batch.sequence_start),
            rows: get(cuda, &batch.sequence_rows),
            token: get(cuda, &batch.token),
            parent: get(cuda, &batch.parent),
            depth: get(cuda, &batch.depth),
            padding: get(cuda, &padding),
            prediction: get(cuda, &prediction)
                .iter()
                .map(|p: &f32| p.to_bits())
                .collect(),
        }
    }
}

#[test]
fn trees_and_predictions_are_those_of_the_reference() {
    let Some(cuda) = gpu() else { return };
    let mut rng = rng(1);
    let (mut nodes, mut padded, mut drafts) = (0, 0, 0);
    for step in 0..150 {
        let step_of = Step::random(&mut rng, 1 + step % 40);
        let (expected, found) = (step_of.cpu(), step_of.cuda(&cuda));
        for sequence in 0..step_of.batch.live[1] as usize {
            let start = step_of.batch.sequence_start[sequence] as usize;
            let rows = start..start + step_of.batch.sequence_rows[sequence] as usize;
            let what = format!(
                "step {step} sequence {sequence}: {} candidates, block {}, chain {}",
                step_of.k, step_of.block[sequence], step_of.chain[sequence]
            );
            assert_eq!(
                found.token[rows.clone()],
                expected.token[rows.clone()],
                "{what}"
            );
            assert_eq!(
                found.parent[rows.clone()],
                expected.parent[rows.clone()],
                "{what}"
            );
            padded += expected.padding[rows.clone()]
                .iter()
                .filter(|&&p| p == 1)
                .count();
            nodes += rows.len() - 1;
            drafts += 1;
        }
        assert_eq!(found, expected, "step {step}");
    }
    println!("{drafts} drafts, {nodes} rows below roots, {padded} of them padding");
    assert!(drafts > 2500 && padded > 1000 && padded < nodes / 2);
}

/// Rows dealt over 1 to 511 sequences: segments, trees, padding and what is left over.
#[test]
fn shared_rows_are_dealt_as_the_reference_deals_them() {
    let Some(cuda) = gpu() else { return };
    let mut rng = rng(3);
    let (mut moved, mut spare, mut kept) = (0, 0, 0);
    for count in (1..=40).chain([63, 64, 65, 127, 300, 511]) {
        for _ in 0..if count <= 40 { 4 } else { 2 } {
            let step = Step::random(&mut rng, count).sharing(&mut rng);
            let (expected, found) = (step.cpu(), step.cuda(&cuda));
            assert_eq!(found, expected, "{count} sequences");
            let given: u32 = step.rows[..count].iter().sum();
            spare += given - expected.live[0];
            moved += (0..count)
                .filter(|&s| expected.rows[s] != step.rows[s])
                .count();
            kept += step.rows_max[..count].iter().filter(|&&m| m == 0).count();
        }
    }
    println!("{moved} sequences got other rows than given, {kept} kept theirs, {spare} rows left");
    assert!(moved > 1000 && kept > 500 && spare > 1000);
}

/// As many sequences as the tables of a test hold, and exact ties everywhere.
#[test]
fn ties_of_many_sequences_go_to_the_first() {
    let Some(cuda) = gpu() else { return };
    let mut rng = rng(4);
    let mut step = Step::random(&mut rng, 511);
    step.logprobs.iter_mut().for_each(|lp| *lp = -0.5);
    step = step.sharing(&mut rng);
    for pool in [1, 2, 64] {
        for (rows, &own) in step.rows[..511].iter_mut().zip(&step.batch.sequence_rows) {
            *rows = own.min(pool);
        }
        step.rows_max[..511].fill(64);
        let (expected, found) = (step.cpu(), step.cuda(&cuda));
        assert_eq!(found, expected, "{pool} rows each at most");
    }
}

#[test]
fn blocks_start_with_the_root() {
    let Some(cuda) = gpu() else { return };
    let mut rng = rng(2);
    for block_size in [1, 2, 8, 16, 40] {
        for blocks in [0, 1, 3, 33] {
            let parents = vec![0; block_size];
            let batch = tree_batch(&vec![&parents[..]; blocks]);
            let mut slots = slots(blocks + 1, 10);
            slots
                .root
                .iter_mut()
                .for_each(|root| *root = below(&mut rng, 1000) as u32);
            let mut on_gpu = put_batch(&cuda, &batch);
            on_gpu.token = poisoned(&cuda, batch.rows_max);
            let mut expected = batch;
            expected.token.fill(0xABAB_ABAB);
            let mask_token = 248_070;
            Cpu::default()
                .draft_blocks(DraftBlocks {
                    slots: &slots,
                    mask_token,
                    block_size,
                    batch: &mut expected,
                })
                .unwrap();
            cuda.draft_blocks(DraftBlocks {
                slots: &put_slots(&cuda, &slots),
                mask_token,
                block_size,
                batch: &mut on_gpu,
            })
            .unwrap();
            assert_eq!(get(&cuda, &on_gpu.token), &expected.token[..]);
        }
    }
}
