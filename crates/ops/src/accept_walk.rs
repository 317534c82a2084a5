//! Follows the target's own choices through the tree and cuts where the request ends.

use crate::limits::{EMIT_MAX, STOP_IDS_MAX};
use crate::{Backend, Batch, Cpu, OpsError, Slots, TreeTables};

/// Why a sequence ended inside a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutReason {
    /// A stop id; it is the last token kept.
    Stop,
    /// The token limit of the request.
    Tokens,
    /// The context is full.
    Context,
}

impl CutReason {
    /// Code in [`Walk::reason`]; 0 = not ended.
    pub fn code(self) -> u32 {
        match self {
            CutReason::Stop => 1,
            CutReason::Tokens => 2,
            CutReason::Context => 3,
        }
    }

    /// The reverse of [`CutReason::code`].
    pub fn from_code(code: u32) -> Option<Self> {
        [CutReason::Stop, CutReason::Tokens, CutReason::Context]
            .into_iter()
            .find(|reason| reason.code() == code)
    }
}

/// What a step did to each of its sequences, after the cut.
pub struct Walk<B: Backend> {
    /// Sequences the tables can hold.
    pub sequences_max: usize,
    /// `[sequences]` rows of the path that stay: row 0 and the accepted nodes that are kept. An
    /// accepted node on which the cut falls is kept: the target has processed it. So this is one
    /// more than `emitted` where the last token is an accepted node, else equal to it.
    pub path_rows: B::Buf<u32>,
    /// `[sequences, EMIT_MAX]` those rows, numbered within the segment, ascending. Entries from
    /// `path_rows` on mean nothing.
    pub path: B::Buf<u32>,
    /// `[sequences]` tokens emitted: `path_rows - 1` accepted nodes, and the target's own token
    /// unless the cut fell on an accepted one.
    pub emitted: B::Buf<u32>,
    /// `[sequences, EMIT_MAX]` the tokens. Token j was chosen at path row j. Entries from `emitted`
    /// on mean nothing.
    pub tokens: B::Buf<u32>,
    /// `[sequences]` [`CutReason::code`].
    pub reason: B::Buf<u32>,
}

impl<B: Backend> Walk<B> {
    /// Empty tables.
    pub fn new(backend: &B, sequences: usize) -> Result<Self, OpsError> {
        Ok(Walk {
            sequences_max: sequences,
            path_rows: backend.alloc(sequences)?,
            path: backend.alloc(sequences * EMIT_MAX)?,
            emitted: backend.alloc(sequences)?,
            tokens: backend.alloc(sequences * EMIT_MAX)?,
            reason: backend.alloc(sequences)?,
        })
    }
}

/// From row 0: `t = choice[i]`; emit `t`; if `i` has a child with token `t`, that node joins the
/// path and the walk goes on there, unless `t` ends the sequence; without such a child `t` is the
/// target's own token and the walk ends. A path holds `EMIT_MAX` rows: at the last one the chosen
/// token counts as the target's own whatever the children are.
///
/// A token ends the sequence if it is a stop id and at least `tokens_min` tokens were emitted with
/// it counted out (`emitted + j >= tokens_min`), else if it is token number `tokens_max`, else if
/// prompt and output then fill `context_max`. A stop wins over a limit at the same token.
pub struct AcceptWalk<'a, B: Backend> {
    /// Segments and tokens.
    pub batch: &'a Batch<B>,
    /// Children.
    pub tree: &'a TreeTables<B>,
    /// Limits. `length[slot]` counts tokens before row 0, so prompt and output have
    /// `length + 1 + j` tokens before the j-th token of this step (or `length + j` where row 0 is
    /// the last prompt row, see `first`).
    pub slots: &'a Slots<B>,
    /// The batch's row 0 is the last row of a prompt, already committed, and the token chosen at
    /// it is the first of the output. It has no children: the tables are not read.
    pub first: bool,
    /// `[rows]`.
    pub choice: &'a B::Buf<u32>,
    /// The result.
    pub walk: &'a mut Walk<B>,
}

pub(crate) fn cpu(op: AcceptWalk<'_, Cpu>) {
    for sequence in 0..op.batch.live[1] as usize {
        let limits = Limits::new(
            op.slots,
            op.batch.sequence_slot[sequence] as usize,
            op.first,
        );
        let start = op.batch.sequence_start[sequence] as usize;
        let entries = sequence * EMIT_MAX..(sequence + 1) * EMIT_MAX;
        let path = &mut op.walk.path[entries.clone()];
        let tokens = &mut op.walk.tokens[entries];
        path[0] = 0;
        let (mut path_rows, mut emitted) = (1, 0);
        let reason = loop {
            let row = path[path_rows - 1] as usize;
            let token = op.choice[start + row];
            tokens[emitted] = token;
            let reason = limits.cut(emitted, token);
            emitted += 1;
            let accepted = if op.first || path_rows == EMIT_MAX {
                None
            } else {
                child(op.batch, op.tree, start, row, token)
            };
            if let Some(next) = accepted {
                path[path_rows] = next as u32;
                path_rows += 1;
            }
            if reason.is_some() || accepted.is_none() {
                break reason;
            }
        };
        op.walk.path_rows[sequence] = path_rows as u32;
        op.walk.emitted[sequence] = emitted as u32;
        op.walk.reason[sequence] = reason.map_or(0, CutReason::code);
    }
}

/// The child of `row` with `token`, numbered within the segment that begins at `start`.
fn child(
    batch: &Batch<Cpu>,
    tree: &TreeTables<Cpu>,
    start: usize,
    row: usize,
    token: u32,
) -> Option<usize> {
    let mut next = tree.first_child[start + row];
    while let Ok(node) = usize::try_from(next) {
        if batch.token[start + node] == token {
            return Some(node);
        }
        next = tree.next_sibling[start + node];
    }
    None
}

/// What ends one sequence.
struct Limits<'a> {
    stop_ids: &'a [u32],
    tokens_min: u64,
    tokens_max: u64,
    context_max: u64,
    /// Tokens emitted before this step.
    emitted: u64,
    /// Tokens of prompt and output before this step.
    context: u64,
}

impl<'a> Limits<'a> {
    fn new(slots: &'a Slots<Cpu>, slot: usize, first: bool) -> Self {
        let row = &slots.sampling[slot];
        Limits {
            stop_ids: &slots.stop_ids[slot * STOP_IDS_MAX..][..row.stop_count as usize],
            tokens_min: row.tokens_min.into(),
            tokens_max: row.tokens_max.into(),
            context_max: row.context_max.into(),
            emitted: slots.emitted[slot].into(),
            context: u64::from(slots.length[slot]) + u64::from(!first),
        }
    }

    /// Whether token number `j` of this step, counted from 0, ends the sequence.
    fn cut(&self, j: usize, token: u32) -> Option<CutReason> {
        let before = self.emitted + j as u64;
        if before >= self.tokens_min && self.stop_ids.contains(&token) {
            Some(CutReason::Stop)
        } else if before + 1 >= self.tokens_max {
            Some(CutReason::Tokens)
        } else if self.context + j as u64 + 1 >= self.context_max {
            Some(CutReason::Context)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests;
