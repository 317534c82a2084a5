//! Norm, rotation and cache writes: values as the CPU has them, bits as a row alone has them.

use half::bf16;

use super::{Side, cases, get, gpu, narrow, put, put_batch, put_slots, round_floats};
use crate::testing::{
    Segment, assert_close, batch, below, bits, chain, floats, paged_slots, random_tree, rng,
    take_rows,
};
use crate::{
    Batch, ContextRows, Cpu, Cuda, KvLayer, KvTarget, NormRope, PAGE_TOKENS, QuerySource, Rows,
    Slots, Storage,
};

const EPS: f32 = 1e-6;

/// Sizes of a layer.
#[derive(Clone, Copy, Debug)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    rotary: usize,
    /// A gate follows every query.
    gated: bool,
}

impl Shape {
    fn head_stride(self) -> usize {
        self.dim * if self.gated { 2 } else { 1 }
    }

    fn kv_offset(self) -> usize {
        self.heads * self.head_stride()
    }

    /// Values of the keys of a row.
    fn width(self) -> usize {
        self.kv_heads * self.dim
    }

    /// Eight columns follow the values.
    fn row_stride(self) -> usize {
        self.kv_offset() + 2 * self.width() + 8
    }
}

const fn shape(heads: usize, kv_heads: usize, dim: usize, rotary: usize, gated: bool) -> Shape {
    Shape {
        heads,
        kv_heads,
        dim,
        rotary,
        gated,
    }
}

/// Of the bundled target and drafter, of those of 27B, and ones that leave warps idle.
const SHAPES: [Shape; 7] = [
    shape(2, 1, 256, 64, true),
    shape(4, 2, 128, 128, false),
    shape(24, 4, 256, 64, true),
    shape(32, 8, 128, 128, false),
    shape(1, 1, 256, 256, false),
    shape(5, 3, 128, 8, true),
    shape(3, 2, 256, 16, false),
];
const TINY: Shape = SHAPES[0];

/// A layer's projection of some rows, as values that bf16 holds.
struct Layer {
    shape: Shape,
    /// `[rows, row_stride]`.
    x: Vec<f32>,
}

impl Layer {
    fn new(shape: Shape, rows: usize) -> Self {
        let mut x = round_floats(1, rows * shape.row_stride());
        // Heads of different sizes: a mean over several would be far off.
        for (head, x) in x.chunks_mut(shape.dim).enumerate() {
            x.iter_mut().for_each(|x| *x *= (1 << (head % 8)) as f32);
        }
        Layer { shape, x }
    }

    /// Row `row` alone.
    fn row(&self, row: usize) -> Layer {
        Layer {
            shape: self.shape,
            x: take_rows(&self.x, self.shape.row_stride(), &[row]),
        }
    }

    /// Runs the op; the queries `[capacity, heads, dim]`, NaN where nothing was written.
    fn run<B: Side>(
        &self,
        backend: &B,
        rows: Rows<'_, B>,
        queries: bool,
        target: KvTarget<'_, B>,
    ) -> Vec<f32> {
        let shape = self.shape;
        let frequency: Vec<f32> = (0..shape.rotary / 2)
            .map(|j| 1e7f64.powf(-2.0 * j as f64 / shape.rotary as f64) as f32)
            .collect();
        let mut x = self.x.clone();
        x.resize(rows.capacity * shape.row_stride(), f32::NAN);
        let nan = vec![f32::NAN; rows.capacity * shape.heads * shape.dim];
        let mut out = put(backend, &B::narrow(&nan));
        let weight = put(backend, &floats(3, shape.dim));
        let op = NormRope {
            rows,
            head_dim: shape.dim,
            rotary: shape.rotary,
            frequency: &put(backend, &frequency),
            eps: EPS,
            x: &put(backend, &B::narrow(&x)),
            row_stride: shape.row_stride(),
            query: queries.then_some(QuerySource {
                heads: shape.heads,
                head_stride: shape.head_stride(),
                weight: &weight,
                out: &mut out,
            }),
            kv_heads: shape.kv_heads,
            kv_offset: shape.kv_offset(),
            key_weight: &put(backend, &floats(4, shape.dim)),
            target,
        };
        backend.norm_rope(op).unwrap();
        B::wide(&get(backend, &out))
    }

    /// Keys and values of a pool of pages, NaN where nothing was written.
    fn pool<B: Side>(&self, backend: &B, pages: usize) -> KvLayer<B> {
        let nan = vec![bf16::NAN; pages * PAGE_TOKENS * self.shape.width()];
        KvLayer {
            keys: Storage::Bf16(put(backend, &nan)),
            values: Storage::Bf16(put(backend, &nan)),
            heads: self.shape.kv_heads,
            head_dim: self.shape.dim,
        }
    }

    fn pages<B: Side>(&self, backend: &B, batch: &Batch<Cpu>, slots: &Slots<Cpu>) -> Written {
        let mut cache = self.pool(backend, slots.count * PAGES);
        let (batch, slots) = (put_batch(backend, batch), put_slots(backend, slots));
        let target = KvTarget::Pages {
            batch: &batch,
            slots: &slots,
            cache: &mut cache,
        };
        let query = self.run(backend, batch.rows(batch.rows_max), true, target);
        Written::of(backend, query, &cache)
    }

    fn listed<B: Side>(
        &self,
        backend: &B,
        places: &[(usize, usize)],
        slots: &Slots<Cpu>,
    ) -> Written {
        let mut cache = self.pool(backend, slots.count * PAGES);
        let capacity = places.len() + 3;
        let column = |of: fn(&(usize, usize)) -> usize| -> Vec<u32> {
            let mut values: Vec<u32> = places.iter().map(|place| of(place) as u32).collect();
            values.resize(capacity, u32::MAX);
            values
        };
        let context = ContextRows {
            rows_max: capacity,
            live: put(backend, &[places.len() as u32, 1]),
            source: put(backend, &vec![u32::MAX; capacity]),
            slot: put(backend, &column(|&(slot, _)| slot)),
            position: put(backend, &column(|&(_, position)| position)),
        };
        let slots = put_slots(backend, slots);
        let target = KvTarget::Listed {
            context: &context,
            slots: &slots,
            cache: &mut cache,
        };
        let query = self.run(backend, context.rows(capacity), false, target);
        Written::of(backend, query, &cache)
    }

    fn block<B: Side>(&self, backend: &B, batch: &Batch<Cpu>, slots: &Slots<Cpu>) -> Written {
        let nan = vec![f32::NAN; batch.rows_max * self.shape.width()];
        let mut keys = put(backend, &B::narrow(&nan));
        let mut values = put(backend, &B::narrow(&nan));
        let (batch, slots) = (put_batch(backend, batch), put_slots(backend, slots));
        let target = KvTarget::Block {
            batch: &batch,
            slots: &slots,
            keys: &mut keys,
            values: &mut values,
        };
        let query = self.run(backend, batch.rows(batch.rows_max), true, target);
        Written {
            query,
            keys: B::wide(&get(backend, &keys)),
            values: B::wide(&get(backend, &values)),
        }
    }
}

/// What the op wrote; NaN elsewhere.
struct Written {
    query: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Written {
    fn of<B: Side>(backend: &B, query: Vec<f32>, cache: &KvLayer<B>) -> Self {
        let values = |storage: &Storage<B>| match storage {
            Storage::Bf16(values) => super::wide(&get(backend, values)),
            other => panic!("{:?}", other.dtype()),
        };
        Written {
            query,
            keys: values(&cache.keys),
            values: values(&cache.values),
        }
    }

    #[track_caller]
    fn assert_like(&self, reference: &Written, what: &str) {
        assert_like(&self.query, &reference.query, &format!("queries, {what}"));
        assert_like(&self.keys, &reference.keys, &format!("keys, {what}"));
        let same = bits(&self.values) == bits(&reference.values);
        assert!(same, "values, {what}");
    }
}

/// The same entries are written. They are next to all the reference's own, rounded: there is one
/// rounding, behind sums in f32.
#[track_caller]
fn assert_like(found: &[f32], reference: &[f32], what: &str) {
    assert_eq!(found.len(), reference.len(), "{what}");
    let (mut values, mut exact) = (Vec::new(), Vec::new());
    for (at, (&found, &reference)) in found.iter().zip(reference).enumerate() {
        assert_eq!(found.is_nan(), reference.is_nan(), "{what}, entry {at}");
        if !reference.is_nan() {
            values.push(found);
            exact.push(reference);
        }
    }
    if values.is_empty() {
        return;
    }
    let wide: Vec<f64> = exact.iter().map(|&value| value.into()).collect();
    assert_close(&values, &wide, 5e-6, what);
    let (values, exact) = (narrow(&values), narrow(&exact));
    let other = values.iter().zip(&exact).filter(|(a, b)| a != b).count();
    let count = values.len();
    assert!(other * 100 <= count, "{what}: {other} of {count} differ");
}

/// Pages of the pool that a slot has: those from its length on.
const PAGES: usize = 3;

/// Slots of these lengths. The pages in front are not touched: they need no memory of their own.
fn slots_of(lengths: &[usize]) -> Slots<Cpu> {
    let longest = lengths.iter().max().unwrap();
    let mut slots = paged_slots(lengths, longest / PAGE_TOKENS + PAGES);
    slots.block_table.fill(u32::MAX);
    for (slot, &length) in lengths.iter().enumerate() {
        for number in 0..PAGES {
            let entry = slot * slots.pages_max + length / PAGE_TOKENS + number;
            // The last page first.
            slots.block_table[entry] = (slot * PAGES + PAGES - 1 - number) as u32;
        }
    }
    slots
}

/// Trees in slots 1, 0, 2.
fn three(trees: &[Vec<i32>; 3]) -> Batch<Cpu> {
    let token = [0; 64];
    let segments = [1, 0, 2].map(|slot| Segment {
        slot: slot as u32,
        token: &token[..trees[slot].len()],
        parent: &trees[slot],
    });
    batch(&segments)
}

const LENGTHS: [[usize; 3]; 3] = [[0, 63, 64], [1, 262_000, 130], [5_000, 17, 0]];

fn agrees_with_the_cpu<B: Side>(backend: &B, shapes: &[Shape]) {
    let cpu = Cpu::default();
    let trees = [random_tree(1, 33), random_tree(2, 17), vec![-1]];
    let mut rng = rng(1);
    for &shape in shapes {
        for lengths in LENGTHS {
            let what = format!("{shape:?}, lengths {lengths:?}");
            let (batch, slots) = (three(&trees), slots_of(&lengths));
            let layer = Layer::new(shape, 51);
            let found = layer.pages(backend, &batch, &slots);
            found.assert_like(&layer.pages(&cpu, &batch, &slots), &what);
            let found = layer.block(backend, &batch, &slots);
            found.assert_like(&layer.block(&cpu, &batch, &slots), &what);
            let mut places = Vec::new();
            for (slot, length) in lengths.into_iter().enumerate() {
                let first = length / PAGE_TOKENS * PAGE_TOKENS;
                places.extend([(slot, first), (slot, first + 63), (slot, first + 128)]);
                places.push((slot, first + 70 + below(&mut rng, 20)));
            }
            let found = layer.listed(backend, &places, &slots);
            found.assert_like(&layer.listed(&cpu, &places, &slots), &what);
            assert!(found.query.iter().all(|v| v.is_nan()), "no queries, {what}");
        }
    }
}

#[test]
fn trees_blocks_and_lists_agree_with_the_cpu() {
    agrees_with_the_cpu(&Cpu::default(), &[TINY]);
    let Some(cuda) = gpu() else { return };
    agrees_with_the_cpu(&cuda, cases(&SHAPES, 2));
}

/// A row of a tree against a row alone at the same position.
fn stands_alone<B: Side>(backend: &B, shapes: &[Shape]) {
    let trees = [random_tree(3, 64), random_tree(4, 16), chain(16)];
    for &shape in shapes {
        for lengths in LENGTHS {
            let (batch, slots) = (three(&trees), slots_of(&lengths));
            let layer = Layer::new(shape, 96);
            let tree = layer.pages(backend, &batch, &slots);
            for row in (0..96).step_by(7) {
                let sequence = batch.row_sequence[row] as usize;
                let slot = batch.sequence_slot[sequence] as usize;
                let number = row - batch.sequence_start[sequence] as usize;
                let position = lengths[slot] + batch.depth[row] as usize;
                let alone = layer.row(row).pages(
                    backend,
                    &crate::testing::tree_batch(&[&[-1]]),
                    &slots_of(&[position]),
                );
                let what = format!("row {row} at {position}, {shape:?}");
                let wide = shape.heads * shape.dim;
                let queries = &tree.query[row * wide..][..wide];
                assert_eq!(bits(queries), bits(&alone.query[..wide]), "queries, {what}");
                let wide = shape.width();
                let cell = |pool: &[f32], slot: usize, length: usize, index: usize| {
                    let page = slot * PAGES + PAGES - 1 - (index / 64 - length / 64);
                    bits(&pool[(page * PAGE_TOKENS + index % 64) * wide..][..wide])
                };
                let found = cell(&tree.keys, slot, lengths[slot], lengths[slot] + number);
                assert_eq!(found, cell(&alone.keys, 0, position, position), "{what}");
            }
        }
    }
}

#[test]
fn a_row_has_the_bits_of_one_alone_at_its_position() {
    stands_alone(&Cpu::default(), &[TINY]);
    let Some(cuda) = gpu() else { return };
    stands_alone(&cuda, cases(&SHAPES, 2));
}

#[test]
fn not_a_number_stays_in_its_head() {
    let Some(cuda) = gpu() else { return };
    let shape = SHAPES[2];
    let (batch, slots) = (crate::testing::tree_batch(&[&chain(3)]), slots_of(&[40]));
    let mut layer = Layer::new(shape, 3);
    let clean = layer.block(&cuda, &batch, &slots);
    let broken = shape.row_stride() + 7 * shape.head_stride() + 200;
    layer.x[broken] = f32::NAN;
    let found = layer.block(&cuda, &batch, &slots);
    for (head, found) in found.query.chunks(shape.dim).enumerate() {
        match head == shape.heads + 7 {
            true => assert!(found.iter().all(|v| v.is_nan())),
            false => assert_eq!(bits(found), bits(&clean.query[head * shape.dim..][..256])),
        }
    }
    assert_eq!(bits(&found.keys), bits(&clean.keys));
}

#[test]
fn nothing_live_writes_nothing() {
    let Some(cuda) = gpu() else { return };
    let mut batch = crate::testing::tree_batch(&[&chain(4)]);
    batch.live.fill(0);
    let layer = Layer::new(TINY, 4);
    let Written {
        query,
        keys,
        values,
    } = layer.pages::<Cuda>(&cuda, &batch, &slots_of(&[3]));
    let mut all = query.iter().chain(&keys).chain(&values);
    assert!(all.all(|v| v.is_nan()));
}
