use super::*;
use crate::testing::{
    DTYPES, bits, chain, floats, paged_slots, path_to, random_tree, take_rows, tree_batch,
};
use crate::{
    Advance, ContextRows, ConvTree, GdnMode, GdnScan, GdnShape, TreeTables, TreeTablesFrom,
};

fn walk_of(paths: &[&[usize]]) -> Walk<Cpu> {
    let mut walk = Walk::new(&Cpu::default(), paths.len()).unwrap();
    // What lies behind a path means nothing.
    walk.path.fill(99);
    for (sequence, path) in paths.iter().enumerate() {
        walk.path_rows[sequence] = path.len() as u32;
        for (to, &row) in walk.path[sequence * EMIT_MAX..].iter_mut().zip(*path) {
            *to = row as u32;
        }
    }
    walk
}

#[test]
fn accepted_keys_move_to_their_positions_over_page_boundaries() {
    let paths: [&[usize]; 5] = [&[0, 2, 5, 7, 40], &[0, 1, 2], &[0, 63], &[0], &[]];
    for length in [0, 1, 60, 63, 64, 65] {
        for dtype in DTYPES {
            let count = paths.len();
            let slots = paged_slots(&vec![length; count], 3);
            let tree = chain(64);
            let batch = tree_batch(&vec![&tree[..]; count]);
            let mut layers: Vec<_> = (0..2)
                .map(|_| KvLayer::new(&Cpu::default(), dtype, 3 * count, 1, 3).unwrap())
                .collect();
            // Whole numbers up to 256 are exact in every type.
            let cell = |slot, t: usize, sign: f32| [slot as f32, t as f32, sign];
            for layer in &mut layers {
                for slot in 0..count {
                    for t in 0..3 * PAGE_TOKENS {
                        let at = layer.offset(&slots, slot, t);
                        layer.keys.narrow_from(at, &cell(slot, t, 1.0));
                        layer.values.narrow_from(at, &cell(slot, t, -1.0));
                    }
                }
            }
            let op = CompactKv {
                batch: &batch,
                slots: &slots,
                walk: &walk_of(&paths),
                layers: &mut layers,
            };
            Cpu::default().compact_kv(op).unwrap();
            for (slot, path) in paths.iter().enumerate() {
                for t in 0..length + path.len() {
                    let from = if t < length {
                        t
                    } else {
                        length + path[t - length]
                    };
                    for layer in &layers {
                        let at = layer.offset(&slots, slot, t);
                        let mut found = [0.0; 3];
                        layer.keys.widen_to(at, &mut found);
                        assert_eq!(found, cell(slot, from, 1.0), "key {t} of slot {slot}");
                        layer.values.widen_to(at, &mut found);
                        assert_eq!(found, cell(slot, from, -1.0), "value {t} of slot {slot}");
                    }
                }
            }
        }
    }
}

const SHAPE: GdnShape = GdnShape {
    key_heads: 1,
    value_heads: 2,
    key_dim: 16,
    value_dim: 20,
};

/// One sequence's rows in a step, and the path that is accepted.
struct Draft {
    parents: Vec<i32>,
    /// `[rows, channels]` before convolution.
    x: Vec<f32>,
    /// `[rows, 2 * value_heads]`.
    ba: Vec<f32>,
    path: Vec<usize>,
}

impl Draft {
    fn new(seed: u64, parents: Vec<i32>, accepted: usize) -> Self {
        let rows = parents.len();
        Draft {
            x: floats(seed, rows * SHAPE.channels()),
            ba: floats(seed + 500, rows * 2 * SHAPE.value_heads),
            path: path_to(&parents, accepted),
            parents,
        }
    }

    /// One accepted row as a plain step.
    fn plain(&self, row: usize) -> Draft {
        Draft {
            parents: chain(1),
            x: take_rows(&self.x, SHAPE.channels(), &[row]),
            ba: take_rows(&self.ba, 2 * SHAPE.value_heads, &[row]),
            path: vec![0],
        }
    }
}

/// A GDN layer and its sequences.
struct World {
    slots: Slots<Cpu>,
    state: GdnState<Cpu>,
}

impl World {
    fn new(sequences: usize) -> Self {
        World {
            slots: paged_slots(&vec![0; sequences], 4),
            state: GdnState::new(&Cpu::default(), SHAPE, sequences).unwrap(),
        }
    }

    /// Convolution, scan, commit and advance; `[rows, value_width]` of every sequence.
    fn step(&mut self, drafts: &[&Draft]) -> Vec<f32> {
        let backend = Cpu::default();
        let trees: Vec<&[i32]> = drafts.iter().map(|d| &d.parents[..]).collect();
        let batch = tree_batch(&trees);
        let rows = batch.rows(batch.rows_max);
        let mut tree = TreeTables::new(&backend, batch.rows_max).unwrap();
        let tables = TreeTablesFrom {
            batch: &batch,
            padding: None,
            tables: &mut tree,
        };
        backend.tree_tables(tables).unwrap();
        let mut journal = GdnJournal::new(&backend, SHAPE, batch.rows_max).unwrap();
        let x: Vec<f32> = drafts.iter().flat_map(|d| &d.x).copied().collect();
        let ba: Vec<f32> = drafts.iter().flat_map(|d| &d.ba).copied().collect();
        let (channels, gates) = (SHAPE.channels(), 2 * SHAPE.value_heads);
        let mixed = journal.mixed.chunks_mut(SHAPE.mixed_stride());
        for (mixed, (x, ba)) in mixed.zip(x.chunks(channels).zip(ba.chunks(gates))) {
            mixed[..channels].copy_from_slice(x);
            mixed[channels + SHAPE.value_width()..][..gates].copy_from_slice(ba);
        }
        let conv = ConvTree {
            rows,
            batch: &batch,
            tree: &tree,
            state: &self.state,
            weight: &floats(1, 4 * SHAPE.channels()).into(),
            a_log: &floats(2, SHAPE.value_heads).into(),
            dt_bias: &floats(3, SHAPE.value_heads).into(),
            journal: &mut journal,
        };
        backend.conv_tree(conv).unwrap();
        let mut out = vec![0.0; batch.rows_max * SHAPE.value_width()].into();
        let scan = GdnScan {
            rows,
            batch: &batch,
            tree: &tree,
            slots: &self.slots,
            mode: GdnMode::Verify,
            state: &mut self.state,
            journal: &journal,
            out: &mut out,
        };
        backend.gdn_scan(scan).unwrap();
        let paths: Vec<&[usize]> = drafts.iter().map(|d| &d.path[..]).collect();
        self.commit(&batch, &walk_of(&paths), &journal);
        out[..x.len() / SHAPE.channels() * SHAPE.value_width()].into()
    }

    fn commit(&mut self, batch: &Batch<Cpu>, walk: &Walk<Cpu>, journal: &GdnJournal<Cpu>) {
        let backend = Cpu::default();
        let commit = GdnCommit {
            batch,
            walk,
            journals: std::slice::from_ref(journal),
            states: std::slice::from_mut(&mut self.state),
        };
        backend.gdn_commit(commit).unwrap();
        let mut context = ContextRows::new(&backend, batch.rows_max).unwrap();
        let advance = Advance {
            batch,
            walk,
            first: false,
            slots: &mut self.slots,
            context: &mut context,
        };
        backend.advance(advance).unwrap();
    }
}

#[test]
fn a_committed_tree_continues_as_plain_decoding() {
    let width = SHAPE.value_width();
    let mut speculative = World::new(2);
    let mut plain = [World::new(1), World::new(1)];
    // Paths of 1, 2, 3, 4 and up to 16 rows behind one another, in both sequences differently.
    for step in 0..30u64 {
        let drafts = [0, 1].map(|sequence| {
            let seed = 10 * step + sequence;
            let parents = match (step + sequence) % 5 {
                0 => chain(16),
                1 => chain(1),
                _ => random_tree(seed, 40),
            };
            let accepted = match (step + sequence) % 5 {
                0 => 15 - (step % 4) as usize * 5,
                1 => 0,
                _ => (seed * 7 % 40) as usize,
            };
            Draft::new(seed, parents, accepted)
        });
        let out = speculative.step(&[&drafts[0], &drafts[1]]);
        let mut first = 0;
        for (sequence, draft) in drafts.iter().enumerate() {
            let world = &mut plain[sequence];
            for &row in &draft.path {
                let decoded = world.step(&[&draft.plain(row)]);
                let node = &out[(first + row) * width..][..width];
                assert_eq!(bits(node), bits(&decoded), "step {step}, row {row}");
            }
            first += draft.parents.len();
            let len = world.state.conv.len();
            let history = &speculative.state.conv[sequence * len..][..len];
            assert_eq!(
                bits(history),
                bits(&world.state.conv),
                "history, step {step}"
            );
            assert_eq!(speculative.slots.length[sequence], world.slots.length[0]);
        }
    }
}
