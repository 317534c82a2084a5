//! Sequences with trees of rows.

use ops::{
    Backend, Batch, Cuda, DEPTH_MAX, OpsError, PAGE_TOKENS, SamplingRow, Slots, TreeTables,
    TreeTablesFrom,
};

use crate::bench::CONTEXT_MAX;
use crate::memory::put;

/// What every sequence looks like.
#[derive(Clone)]
pub struct Setting {
    /// Parents of the rows.
    pub parents: Vec<i32>,
    /// Tokens in the cache.
    pub context: usize,
    /// Accepted rows that the recurrent state lacks.
    pub pending: usize,
    pub vocabulary: usize,
    pub sampling: SamplingRow,
}

impl Setting {
    pub fn new(parents: Vec<i32>, context: usize) -> Self {
        Setting {
            parents,
            context,
            pending: 0,
            vocabulary: 8,
            sampling: SamplingRow {
                top_p: 1.0,
                repetition_penalty: 1.0,
                tokens_max: u32::MAX,
                context_max: u32::MAX,
                ..SamplingRow::default()
            },
        }
    }
}

/// `count` equal sequences, each in a slot with pages of its own.
pub struct Sequences {
    pub count: usize,
    /// Rows of one.
    pub rows: usize,
    pub batch: Batch<Cuda>,
    pub slots: Slots<Cuda>,
    pub tree: TreeTables<Cuda>,
}

/// Pages that hold a context and the rows behind it.
pub fn pages(context: usize, rows: usize) -> usize {
    (context + rows).div_ceil(PAGE_TOKENS)
}

impl Sequences {
    pub fn new(cuda: &Cuda, count: usize, setting: &Setting) -> Result<Self, OpsError> {
        let rows = setting.parents.len();
        let batch = batch(cuda, count, &setting.parents)?;
        let mut tree = TreeTables::new(cuda, batch.rows_max)?;
        cuda.tree_tables(TreeTablesFrom {
            batch: &batch,
            padding: None,
            tables: &mut tree,
        })?;
        Ok(Sequences {
            count,
            rows,
            slots: slots(cuda, count, setting)?,
            batch,
            tree,
        })
    }

    /// Of all sequences.
    pub fn all_rows(&self) -> usize {
        self.count * self.rows
    }
}

fn batch(cuda: &Cuda, count: usize, parents: &[i32]) -> Result<Batch<Cuda>, OpsError> {
    let rows = parents.len();
    let mut depth = vec![0u32; rows];
    for row in 1..rows {
        depth[row] = depth[parents[row] as usize] + 1;
    }
    let all = count * rows;
    let numbers = |value: &dyn Fn(usize) -> u32, len: usize| {
        let values: Vec<u32> = (0..len).map(value).collect();
        put(cuda, &values)
    };
    let mut batch = Batch::new(cuda, all, count)?;
    batch.live = put(cuda, &[all as u32, count as u32])?;
    batch.row_sequence = numbers(&|row| (row / rows) as u32, all)?;
    // Siblings have different tokens.
    batch.token = numbers(&|row| (row % rows) as u32, all)?;
    batch.parent = put(cuda, &parents.repeat(count))?;
    batch.depth = put(cuda, &depth.repeat(count))?;
    batch.sequence_slot = numbers(&|sequence| sequence as u32, count)?;
    batch.sequence_start = numbers(&|sequence| (sequence * rows) as u32, count)?;
    batch.sequence_rows = numbers(&|_| rows as u32, count)?;
    Ok(batch)
}

fn slots(cuda: &Cuda, count: usize, setting: &Setting) -> Result<Slots<Cuda>, OpsError> {
    let used = pages(setting.context, setting.parents.len());
    let pages_max = pages(CONTEXT_MAX, 0);
    let mut slots = Slots::new(
        cuda,
        count,
        pages_max,
        setting.vocabulary,
        setting.vocabulary,
    )?;
    // The last page of the pool first.
    let mut table = vec![0u32; count * pages_max];
    for (slot, table) in table.chunks_mut(pages_max).enumerate() {
        for (number, page) in table[..used].iter_mut().enumerate() {
            *page = ((count - slot) * used - 1 - number) as u32;
        }
    }
    slots.block_table = put(cuda, &table)?;
    slots.length = put(cuda, &vec![setting.context as u32; count])?;
    slots.pending = put(cuda, &vec![setting.pending as u32; count])?;
    slots.sampling = put(cuda, &vec![setting.sampling; count])?;
    Ok(slots)
}

/// Parents of a chain.
pub fn chain(rows: usize) -> Vec<i32> {
    (0..rows as i32).map(|row| row - 1).collect()
}

/// Parents of a tree: half of the rows are a chain, the others hang on its rows in turn, the first
/// ones most, as in trees of likely tokens.
pub fn tree(rows: usize) -> Vec<i32> {
    let spine = rows.div_ceil(2).min(DEPTH_MAX + 1);
    let mut parents = chain(spine);
    let (mut parent, mut end) = (0, spine.saturating_sub(1).max(1));
    while parents.len() < rows {
        parents.push(parent);
        parent += 1;
        if parent as usize == end {
            parent = 0;
            end = end.div_ceil(2);
        }
    }
    parents
}
