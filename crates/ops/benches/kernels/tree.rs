//! Ops on tables: drafting a tree, walking it, keeping what was accepted. Their inputs are small
//! and were just written when they run, so nothing is taken in turn.

use ops::{
    AcceptWalk, Advance, Backend, BuildTree, CompactKv, ContextRows, Cuda, DraftBlocks, DraftPlan,
    EMIT_MAX, OpsError, Prediction, RESULT_WORDS, SimulateAcceptance, StepResult, TreeTablesFrom,
    Walk,
};

use crate::attention::{HEAD_DIM, KV_HEADS, TOKEN_BYTES};
use crate::bench::{Bench, Case};
use crate::memory::{Buf, caches, put};
use crate::sequences::{Sequences, Setting, chain, pages, tree};

const BLOCK: usize = 16;
/// Candidates of a place.
const CANDIDATES: usize = 15;
/// Attention layers of the model.
const LAYERS: usize = 16;

/// Sequences and rows of each.
const TREES: [(usize, usize); 5] = [(1, 16), (1, 64), (16, 16), (16, 32), (128, 4)];

pub fn run(bench: &Bench) -> Result<(), OpsError> {
    bench.head();
    for (count, rows) in TREES {
        for chain in [0, 1] {
            build(bench, count, rows, chain, false)?;
            if count > 1 {
                build(bench, count, rows, chain, true)?;
            }
        }
        walk(bench, count, rows)?;
    }
    for count in [1, 16] {
        compact(bench, count)?;
    }
    Ok(())
}

/// Falling log-probs of every place.
fn logprobs(places: usize) -> Vec<f32> {
    let row = (0..CANDIDATES).map(|rank| -0.5 - 0.6 * rank as f32);
    row.collect::<Vec<_>>().repeat(places)
}

fn build(
    bench: &Bench,
    count: usize,
    rows: usize,
    chain_only: u32,
    shared: bool,
) -> Result<(), OpsError> {
    let cuda = &bench.cuda;
    let kind = if chain_only == 1 { "chain" } else { "tree" };
    let share = if shared { ", shared" } else { "" };
    let what = format!("{count} x {rows} rows{share}");
    let mut sequences = Sequences::new(cuda, count, &Setting::new(chain(rows), 512))?;
    let places = BLOCK * count;
    let logprobs = put(cuda, &logprobs(places))?;
    let ids: Vec<u32> = (0..places * CANDIDATES).map(|n| n as u32).collect();
    let ids = put(cuda, &ids)?;
    let plan = DraftPlan {
        block: put(cuda, &(0..count as u32).collect::<Vec<_>>())?,
        chain: put(cuda, &vec![chain_only; count])?,
        rows: put(cuda, &vec![rows as u32; count])?,
        rows_max: put(cuda, &vec![64; count])?,
    };
    let mut padding = cuda.alloc(count * rows)?;
    let mut prediction = cuda.alloc(count * Prediction::LEN)?;
    let bytes = places * CANDIDATES * 8 + count * rows * 20;
    let case = Case::new(format!("build {kind}, {what}"), bytes, 1);
    bench.case(case, &mut |_| {
        cuda.build_tree(BuildTree {
            block_size: BLOCK,
            k: CANDIDATES,
            ids: &ids,
            logprobs: &logprobs,
            plan: &plan,
            shared,
            slots: &sequences.slots,
            batch: &mut sequences.batch,
            padding: &mut padding,
            prediction: &mut prediction,
        })
    })?;
    if chain_only == 1 || shared {
        return Ok(());
    }
    let mut blocks = Sequences::new(cuda, count, &Setting::new(chain(BLOCK), 512))?;
    let case = Case::new(format!("draft blocks, {count} x {BLOCK}"), 4 * places, 1);
    bench.case(case, &mut |_| {
        cuda.draft_blocks(DraftBlocks {
            slots: &blocks.slots,
            mask_token: 7,
            block_size: BLOCK,
            batch: &mut blocks.batch,
        })
    })
}

/// Tables of a tree, the walk along its longest path, and what follows it.
fn walk(bench: &Bench, count: usize, rows: usize) -> Result<(), OpsError> {
    let cuda = &bench.cuda;
    let what = format!("{count} x {rows} rows");
    let mut sequences = Sequences::new(cuda, count, &Setting::new(tree(rows), 512))?;
    let all = sequences.all_rows();
    let padding = cuda.alloc(all)?;
    // Parent in; ancestors, children, four sources, three of the scan out.
    let bytes = all * (4 + 8 + 8 + 16 + 12);
    bench.case(Case::new(format!("tables, {what}"), bytes, 1), &mut |_| {
        cuda.tree_tables(TreeTablesFrom {
            batch: &sequences.batch,
            padding: Some(&padding),
            tables: &mut sequences.tree,
        })
    })?;
    // Every row chooses the token of the next one.
    let choice: Vec<u32> = (0..all).map(|row| (row % rows) as u32 + 1).collect();
    let mut choice = put(cuda, &choice)?;
    let mut walk = Walk::new(cuda, count)?;
    bench.case(Case::new(format!("walk, {what}"), 12 * all, 1), &mut |_| {
        cuda.accept_walk(AcceptWalk {
            batch: &sequences.batch,
            tree: &sequences.tree,
            slots: &sequences.slots,
            first: false,
            choice: &choice,
            walk: &mut walk,
        })
    })?;
    result(bench, &what, &sequences, &walk, &padding)?;
    // Lengths grow with every launch; the last of the ops.
    let mut context = ContextRows::new(cuda, all)?;
    bench.case(
        Case::new(format!("advance, {what}"), 16 * all, 1),
        &mut |_| {
            cuda.advance(Advance {
                batch: &sequences.batch,
                walk: &walk,
                first: false,
                slots: &mut sequences.slots,
                context: &mut context,
            })
        },
    )?;
    let law = put(cuda, &[0.8f32; 2 * (EMIT_MAX - 1)])?;
    let case = Case::new(format!("simulate acceptance, {what}"), 12 * all, 1);
    bench.case(case, &mut |_| {
        cuda.simulate_acceptance(SimulateAcceptance {
            batch: &sequences.batch,
            tree: &sequences.tree,
            slots: &sequences.slots,
            law: &law,
            seed: 1,
            choice: &mut choice,
        })
    })
}

fn result(
    bench: &Bench,
    what: &str,
    sequences: &Sequences,
    walk: &Walk<Cuda>,
    padding: &Buf<u32>,
) -> Result<(), OpsError> {
    let (cuda, count) = (&bench.cuda, sequences.count);
    let prediction = cuda.alloc(count * Prediction::LEN)?;
    let mut out = cuda.alloc(count * RESULT_WORDS)?;
    let case = Case::new(format!("result, {what}"), 4 * count * RESULT_WORDS, 1);
    bench.case(case, &mut |_| {
        cuda.step_result(StepResult {
            batch: &sequences.batch,
            walk,
            padding,
            prediction: &prediction,
            finite: padding,
            out: &mut out,
        })
    })
}

/// Keys and values of accepted rows move to the front, in every layer.
fn compact(bench: &Bench, count: usize) -> Result<(), OpsError> {
    let (cuda, context) = (&bench.cuda, 60);
    let sequences = Sequences::new(cuda, count, &Setting::new(chain(64), context))?;
    let pages = count * pages(context, 64);
    let mut layers = caches(cuda, LAYERS, pages, KV_HEADS, HEAD_DIM)?;
    for (what, stride, moved) in [("in place", 1, 0), ("15 rows move", 3, EMIT_MAX - 1)] {
        let mut walk = Walk::new(cuda, count)?;
        let path: Vec<u32> = (0..count * EMIT_MAX)
            .map(|i| (i % EMIT_MAX * stride) as u32)
            .collect();
        walk.path = put(cuda, &path)?;
        walk.path_rows = put(cuda, &vec![EMIT_MAX as u32; count])?;
        let bytes = 2 * LAYERS * count * moved * TOKEN_BYTES;
        let name = format!("compact kv, {LAYERS} layers, {count} sequences, {what}");
        bench.case(Case::new(name, bytes, 1), &mut |_| {
            cuda.compact_kv(CompactKv {
                batch: &sequences.batch,
                slots: &sequences.slots,
                walk: &walk,
                layers: &mut layers,
            })
        })?;
    }
    Ok(())
}
