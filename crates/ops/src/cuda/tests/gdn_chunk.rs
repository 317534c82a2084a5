//! Prefill in chunks against the CPU's recurrence row by row, and its bits however rows come.

use std::ops::Range;

use super::{get, gpu, narrow, put_batch, put_slots, wide};
use crate::limits::DEPTH_MAX;
use crate::testing::{Segment, assert_close, batch, bits, chain, floats, rng, slots, take_rows};
use crate::{
    Backend, Batch, Cpu, Cuda, Element, GdnJournal, GdnMode, GdnScan, GdnShape, GdnState,
    ScratchNeeds, Slots, TreeTables,
};

const fn shape(key_heads: usize, value_heads: usize) -> GdnShape {
    GdnShape {
        key_heads,
        value_heads,
        key_dim: 128,
        value_dim: 128,
    }
}

/// Of the bundled target, groups of one and of eight, and of the 27B target.
const TINY: GdnShape = shape(1, 3);
const LARGE: GdnShape = shape(16, 48);
const SHAPES: [GdnShape; 4] = [TINY, shape(2, 2), shape(1, 8), LARGE];
const SLOTS: usize = 6;

/// Decays and strengths of a prompt, and how alike its keys are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// As a model has them: decays of a few rows to thousands of rows.
    Usual,
    /// g of 0, nearly 0 and -20 and beta of nearly 0 and of 1, side by side.
    Extreme,
    /// Nothing decays, everything is written, and keys are nearly the same.
    Alike,
}

impl Kind {
    /// Bound on the normalised error of a state. It goes through products of sums of two bf16, each
    /// 2^-18 off: 1e-11 to 3e-11 on usual prompts. Where keys are nearly the same, what a row writes
    /// is a small difference of large values.
    fn state_error(self) -> f64 {
        match self {
            Kind::Usual | Kind::Extreme => 1e-10,
            Kind::Alike => 5e-9,
        }
    }
}

/// `[rows]` of what a scan reads.
struct Prompt {
    qkv: Vec<f32>,
    mixed: Vec<f32>,
    gate: Vec<f32>,
    scale: Vec<f32>,
}

fn rounded(seed: u64, len: usize) -> Vec<f32> {
    wide(&narrow(&floats(seed, len)))
}

impl Prompt {
    fn new(shape: GdnShape, rows: usize, kind: Kind, seed: u64) -> Self {
        let mut qkv = floats(seed, rows * shape.channels());
        if kind == Kind::Alike {
            let common = floats(seed + 1, shape.key_width());
            for row in qkv.chunks_mut(shape.channels()) {
                let keys = &mut row[shape.key_width()..2 * shape.key_width()];
                for (key, common) in keys.iter_mut().zip(&common) {
                    *key = common + 0.1 * *key;
                }
            }
        }
        let qkv = wide(&narrow(&qkv));
        let random = floats(seed + 2, rows * shape.value_heads * 2);
        let gate = (random.chunks(2))
            .flat_map(|pair| gate(kind, pair[0], pair[1]))
            .collect();
        let mut scale = Vec::new();
        for row in qkv.chunks(shape.channels()) {
            for head in 0..shape.key_heads {
                let part = |first: usize| &row[first + head * shape.key_dim..][..shape.key_dim];
                scale.extend(scales(part(0), part(shape.key_width())));
            }
        }
        Prompt {
            qkv,
            mixed: rounded(seed + 3, rows * shape.mixed_stride()),
            gate,
            scale,
        }
    }
}

/// g and beta from two values in -1..1.
fn gate(kind: Kind, x: f32, y: f32) -> [f32; 2] {
    match kind {
        Kind::Usual => [-(6.0 * x - 3.0).exp(), 1.0 / (1.0 + (-4.0 * y).exp())],
        Kind::Extreme => {
            let one_of = |x: f32, values: [f32; 4]| values[((x + 1.0) * 2.0) as usize % 4];
            [
                one_of(x, [0.0, -1e-4, -20.0, -0.5]),
                one_of(y, [1e-6, 1.0, 0.5, 0.999]),
            ]
        }
        Kind::Alike => [-1e-5, 0.999],
    }
}

/// `1 / (|q| sqrt(key_dim))`, `1 / |k|` and `q . k`.
fn scales(q: &[f32], k: &[f32]) -> [f32; 3] {
    let dot = |x: &[f32], y: &[f32]| -> f64 {
        let products = x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y));
        products.sum()
    };
    let length = |x: &[f32]| (dot(x, x) + 1e-6).sqrt();
    let query = 1.0 / (length(q) * (q.len() as f64).sqrt());
    [query, 1.0 / length(k), dot(q, k)].map(|value| value as f32)
}

/// Rows of a prompt in a slot, from `position` on.
struct Part<'a> {
    prompt: &'a Prompt,
    rows: Range<usize>,
    slot: usize,
    position: usize,
    pending: usize,
}

impl<'a> Part<'a> {
    fn new(prompt: &'a Prompt, rows: Range<usize>, slot: usize) -> Self {
        Part {
            position: rows.start,
            prompt,
            rows,
            slot,
            pending: 0,
        }
    }
}

/// The stored state of all slots, heads of `[key_dim, value_dim]`.
#[derive(Clone)]
struct Stored {
    shape: GdnShape,
    state: Vec<f32>,
    conv: Vec<f32>,
    pending_kv: Vec<f32>,
    pending_gate: Vec<f32>,
    pending_scale: Vec<f32>,
}

impl Stored {
    fn new(shape: GdnShape) -> Self {
        let pending = SLOTS * DEPTH_MAX;
        let gates = floats(63, pending * shape.value_heads * 2);
        let scales = floats(64, pending * shape.key_heads);
        Stored {
            shape,
            state: floats(60, SLOTS * shape.state_len()),
            conv: rounded(61, SLOTS * 3 * shape.channels()),
            pending_kv: rounded(62, pending * (shape.key_width() + shape.value_width())),
            pending_gate: (gates.iter().enumerate())
                .map(|(i, v)| if i % 2 == 0 { -v.abs() } else { v.abs() })
                .collect(),
            pending_scale: scales.iter().map(|v| 0.15 + 0.01 * v).collect(),
        }
    }

    /// With rows and columns of every head exchanged, as CUDA stores them.
    fn turned(shape: GdnShape, state: &[f32]) -> Vec<f32> {
        let dim = shape.key_dim;
        let heads = state.chunks(dim * dim);
        heads
            .flat_map(|head| (0..dim * dim).map(|at| head[at % dim * dim + at / dim]))
            .collect()
    }

    fn of_slot(&self, slot: usize) -> &[f32] {
        &self.state[slot * self.shape.state_len()..][..self.shape.state_len()]
    }
}

/// The parts behind each other, and what they bring.
fn tables(shape: GdnShape, parts: &[Part<'_>]) -> (Batch<Cpu>, Slots<Cpu>, Prompt) {
    let longest = parts.iter().map(|part| part.rows.len()).max().unwrap_or(0);
    let (token, parents) = (vec![0; longest], chain(longest));
    let segments: Vec<_> = (parts.iter())
        .map(|part| Segment {
            slot: part.slot as u32,
            token: &token[..part.rows.len()],
            parent: &parents[..part.rows.len()],
        })
        .collect();
    let batch = batch(&segments);
    let mut slots = slots(SLOTS, 8);
    for part in parts {
        slots.length[part.slot] = part.position as u32;
        slots.pending[part.slot] = part.pending as u32;
    }
    let joined = |width: usize, values: fn(&Prompt) -> &Vec<f32>| {
        let mut all = Vec::new();
        for part in parts {
            let rows: Vec<usize> = part.rows.clone().collect();
            all.extend(take_rows(values(part.prompt), width, &rows));
        }
        all.resize(batch.rows_max * width, f32::NAN);
        all
    };
    let prompt = Prompt {
        qkv: joined(shape.channels(), |p| &p.qkv),
        mixed: joined(shape.mixed_stride(), |p| &p.mixed),
        gate: joined(2 * shape.value_heads, |p| &p.gate),
        scale: joined(3 * shape.key_heads, |p| &p.scale),
    };
    (batch, slots, prompt)
}

fn upload<B: Backend, T: Element>(backend: &B, values: &[T]) -> B::Buf<T> {
    let mut buf = backend.alloc(values.len()).unwrap();
    backend.upload(values, &mut buf, 0).unwrap();
    buf
}

/// Runs the op; `act` makes activations of the backend. The state is in the backend's order.
fn run<B: Backend>(
    backend: &B,
    (batch, slots): (&Batch<B>, &Slots<B>),
    prompt: &Prompt,
    stored: &Stored,
    state: &[f32],
    act: fn(&[f32]) -> Vec<B::Act>,
) -> (B::Buf<B::Act>, GdnState<B>) {
    let shape = stored.shape;
    let journal = GdnJournal {
        mixed: upload(backend, &act(&prompt.mixed)),
        qkv: upload(backend, &act(&prompt.qkv)),
        gate: upload(backend, &prompt.gate),
        scale: upload(backend, &prompt.scale),
    };
    let mut state = GdnState {
        shape,
        state: upload(backend, state),
        conv: upload(backend, &act(&stored.conv)),
        pending_kv: upload(backend, &act(&stored.pending_kv)),
        pending_gate: upload(backend, &stored.pending_gate),
        pending_scale: upload(backend, &stored.pending_scale),
    };
    let poison = vec![f32::NAN; batch.rows_max * shape.value_width()];
    let mut out = upload(backend, &act(&poison));
    let op = GdnScan {
        rows: batch.rows(batch.rows_max),
        batch,
        tree: &TreeTables::new(backend, batch.rows_max).unwrap(),
        slots,
        mode: GdnMode::Prefill,
        state: &mut state,
        journal: &journal,
        out: &mut out,
    };
    backend.gdn_scan(op).unwrap();
    (out, state)
}

/// Outputs of the parts' rows on the CPU; `stored` goes on.
fn on_cpu(stored: &mut Stored, parts: &[Part<'_>]) -> Vec<f32> {
    let (batch, slots, prompt) = tables(stored.shape, parts);
    let given = stored.state.clone();
    let act = <[f32]>::to_vec;
    let (out, state) = run(
        &Cpu::default(),
        (&batch, &slots),
        &prompt,
        stored,
        &given,
        act,
    );
    (stored.state, stored.conv) = (state.state.to_vec(), state.conv.to_vec());
    out[..batch.live[0] as usize * stored.shape.value_width()].to_vec()
}

/// The same on the GPU. Rows of padding stay as they were.
fn on_gpu(cuda: &Cuda, stored: &mut Stored, parts: &[Part<'_>]) -> Vec<f32> {
    let (shape, (batch, slots, prompt)) = (stored.shape, tables(stored.shape, parts));
    let given = Stored::turned(shape, &stored.state);
    let needs = ScratchNeeds {
        prefill_rows: batch.rows_max,
        sequences: batch.sequences_max,
        value_heads: shape.value_heads,
        ..ScratchNeeds::default()
    };
    cuda.reserve(&needs).unwrap();
    let tables = (&put_batch(cuda, &batch), &put_slots(cuda, &slots));
    let (out, state) = run(cuda, tables, &prompt, stored, &given, narrow);
    stored.state = Stored::turned(shape, &get(cuda, &state.state));
    stored.conv = wide(&get(cuda, &state.conv));
    let mut out = wide(&get(cuda, &out));
    let padding = out.split_off(batch.live[0] as usize * shape.value_width());
    assert!(padding.iter().all(|v| v.is_nan()), "rows of padding");
    out
}

fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| v.into()).collect()
}

/// Outputs, states of all slots (those of no part stay) and histories of a call on both.
fn agree(cuda: &Cuda, shape: GdnShape, kind: Kind, parts: &[Part<'_>], what: &str) {
    let stored = Stored::new(shape);
    let (mut expected, mut found) = (stored.clone(), stored.clone());
    let of_cpu = on_cpu(&mut expected, parts);
    let of_gpu = on_gpu(cuda, &mut found, parts);
    assert_close(&of_gpu, &exact(&of_cpu), 5e-6, what);
    assert_close(
        &found.state,
        &exact(&expected.state),
        kind.state_error(),
        what,
    );
    assert_eq!(bits(&found.conv), bits(&expected.conv), "history: {what}");
    for slot in (0..SLOTS).filter(|slot| parts.iter().all(|part| part.slot != *slot)) {
        assert_eq!(bits(found.of_slot(slot)), bits(stored.of_slot(slot)));
    }
}

#[test]
fn prompts_of_any_length_agree_with_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for shape in SHAPES {
        for kind in [Kind::Usual, Kind::Extreme, Kind::Alike] {
            let lengths: &[usize] = match shape {
                TINY => &[1, 2, 63, 64, 65, 127, 128, 200, 2048],
                LARGE => &[130],
                _ => &[65],
            };
            for &rows in lengths {
                let prompt = Prompt::new(shape, rows, kind, 7);
                let parts = [Part::new(&prompt, 0..rows, 1)];
                let what = format!("{rows} {kind:?}, {shape:?}");
                agree(&cuda, shape, kind, &parts, &what);
            }
        }
    }
}

#[test]
fn sequences_pending_rows_and_odd_positions_agree_with_the_cpu() {
    let Some(cuda) = gpu() else { return };
    for shape in SHAPES {
        let prompt = Prompt::new(shape, 500, Kind::Usual, 8);
        let at = |position, pending, part| Part {
            position,
            pending,
            ..part
        };
        let parts = [
            at(37, 0, Part::new(&prompt, 0..5, 4)),
            at(64, 15, Part::new(&prompt, 10..140, 0)),
            at(63, 3, Part::new(&prompt, 140..141, 5)),
            at(2047, 1, Part::new(&prompt, 200..400, 1)),
        ];
        agree(
            &cuda,
            shape,
            Kind::Usual,
            &parts,
            &format!("batch, {shape:?}"),
        );
    }
}

#[test]
fn a_prompt_in_pieces_gives_the_bits_of_the_whole() {
    let Some(cuda) = gpu() else { return };
    for shape in [TINY, LARGE] {
        let rows = 420;
        let prompt = Prompt::new(shape, rows, Kind::Usual, 9);
        let mut whole = Stored::new(shape);
        let expected = on_gpu(&cuda, &mut whole, &[Part::new(&prompt, 0..rows, 2)]);
        for cuts in [
            vec![0, rows],
            vec![0, 64, rows],
            vec![0, 128, 192, 384, rows],
        ] {
            let (mut pieces, mut found) = (Stored::new(shape), Vec::new());
            for cut in cuts.windows(2) {
                let part = Part::new(&prompt, cut[0]..cut[1], 2);
                found.extend(on_gpu(&cuda, &mut pieces, &[part]));
            }
            assert_eq!(bits(&found), bits(&expected), "{cuts:?}");
            assert_eq!(bits(&pieces.state), bits(&whole.state), "{cuts:?}");
            assert_eq!(bits(&pieces.conv), bits(&whole.conv), "{cuts:?}");
        }
    }
}

/// Rows from position 100 on have chunks that start at 128, 192, ...
#[test]
fn chunks_start_at_multiples_of_positions() {
    let Some(cuda) = gpu() else { return };
    let prompt = Prompt::new(TINY, 300, Kind::Usual, 10);
    let mut whole = Stored::new(TINY);
    let expected = on_gpu(&cuda, &mut whole, &[Part::new(&prompt, 100..300, 0)]);
    let (mut pieces, mut found) = (Stored::new(TINY), Vec::new());
    for rows in [100..128, 128..192, 192..300] {
        found.extend(on_gpu(&cuda, &mut pieces, &[Part::new(&prompt, rows, 0)]));
    }
    assert_eq!(bits(&found), bits(&expected));
    assert_eq!(bits(&pieces.state), bits(&whole.state));
}

#[test]
fn a_sequence_does_not_depend_on_those_beside_it() {
    let Some(cuda) = gpu() else { return };
    for shape in [TINY, LARGE] {
        let prompt = Prompt::new(shape, 500, Kind::Usual, 11);
        let part = |slot| match slot {
            0 => Part::new(&prompt, 0..130, 0),
            1 => Part::new(&prompt, 192..193, 1),
            2 => Part::new(&prompt, 37..300, 2),
            _ => Part::new(&prompt, 320..448, 3),
        };
        let mut together = Stored::new(shape);
        let found = on_gpu(&cuda, &mut together, &[part(0), part(1), part(2), part(3)]);
        let mut expected = Vec::new();
        for slot in 0..4 {
            let mut alone = Stored::new(shape);
            expected.extend(on_gpu(&cuda, &mut alone, &[part(slot)]));
            assert_eq!(bits(together.of_slot(slot)), bits(alone.of_slot(slot)));
        }
        assert_eq!(bits(&found), bits(&expected), "{shape:?}");
    }
}

/// Random lengths, run twice: a race shows as other bits.
#[test]
fn bits_are_the_same_each_time() {
    let Some(cuda) = gpu() else { return };
    let mut random = rng(12);
    for shape in SHAPES {
        let rows = 1 + crate::testing::below(&mut random, 700);
        let prompt = Prompt::new(shape, rows, Kind::Usual, 13);
        let once = || {
            let mut stored = Stored::new(shape);
            let out = on_gpu(&cuda, &mut stored, &[Part::new(&prompt, 0..rows, 3)]);
            (bits(&out), bits(&stored.state))
        };
        let first = once();
        for _ in 0..3 {
            assert!(once() == first, "{rows} rows, {shape:?}");
        }
    }
}
