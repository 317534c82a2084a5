//! Follows the target's own choices through the tree and cuts where the request ends.

use crate::limits::EMIT_MAX;
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
    /// `[sequences]` rows of the path that stay: row 0 and the accepted nodes that are kept.
    pub path_rows: B::Buf<u32>,
    /// `[sequences, EMIT_MAX]` those rows, numbered within the segment, ascending.
    pub path: B::Buf<u32>,
    /// `[sequences]` tokens emitted: `path_rows - 1` accepted nodes, and the target's own token
    /// unless the cut fell on an accepted one.
    pub emitted: B::Buf<u32>,
    /// `[sequences, EMIT_MAX]` the tokens. Token j was chosen at path row j.
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

/// From row 0: `t = choice[i]`; emit `t`; stop here if it ends the sequence; if `i` has a child
/// with token `t`, go there, else the walk ends (`t` is the target's own token).
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
    /// it is the first of the output.
    pub first: bool,
    /// `[rows]`.
    pub choice: &'a B::Buf<u32>,
    /// The result.
    pub walk: &'a mut Walk<B>,
}

pub(crate) fn cpu(_op: AcceptWalk<'_, Cpu>) {
    todo!()
}
