//! What the device remembers of every sequence between steps.

use crate::limits::{LOGIT_BIAS_MAX, STOP_IDS_MAX};
use crate::sampling::SamplingRow;
use crate::{Backend, OpsError};

/// One row per slot; a running sequence owns one slot from admission to its end.
pub struct Slots<B: Backend> {
    /// Number of slots.
    pub count: usize,
    /// Pages a sequence can own.
    pub pages_max: usize,
    /// Rows of the head; `vocab_used` of them name tokens, the rest is never sampled.
    pub vocab_rows: usize,
    /// Ids `0..vocab_used` name tokens.
    pub vocab_used: usize,
    /// `[count]` committed tokens: keys, values and recurrent state of exactly these exist.
    pub length: B::Buf<u32>,
    /// `[count]` newest emitted token, not yet processed by the target.
    pub root: B::Buf<u32>,
    /// `[count]` tokens emitted so far.
    pub emitted: B::Buf<u32>,
    /// `[count]` rows of the pending buffers that the next scan replays (`gdn`).
    pub pending: B::Buf<u32>,
    /// `[count, pages_max]` page of each 64 tokens.
    pub block_table: B::Buf<u32>,
    /// `[count]` sampling options.
    pub sampling: B::Buf<SamplingRow>,
    /// `[count, STOP_IDS_MAX]` ids that end the sequence; `SamplingRow::stop_count` are valid.
    pub stop_ids: B::Buf<u32>,
    /// `[count, LOGIT_BIAS_MAX]` biased ids; `SamplingRow::bias_count` are valid.
    pub bias_ids: B::Buf<u32>,
    /// `[count, LOGIT_BIAS_MAX]` what is added to their logits; -inf bans.
    pub bias_values: B::Buf<f32>,
    /// `[count, ceil(vocab_rows / 32)]` bit set: the prompt has this token.
    pub prompt_seen: B::Buf<u32>,
    /// `[count, vocab_rows]` how often each token was emitted.
    pub generated: B::Buf<u32>,
}

impl<B: Backend> Slots<B> {
    /// Zeroed tables for `count` slots.
    pub fn new(
        backend: &B,
        count: usize,
        pages_max: usize,
        vocab_rows: usize,
        vocab_used: usize,
    ) -> Result<Self, OpsError> {
        Ok(Slots {
            count,
            pages_max,
            vocab_rows,
            vocab_used,
            length: backend.alloc(count)?,
            root: backend.alloc(count)?,
            emitted: backend.alloc(count)?,
            pending: backend.alloc(count)?,
            block_table: backend.alloc(count * pages_max)?,
            sampling: backend.alloc(count)?,
            stop_ids: backend.alloc(count * STOP_IDS_MAX)?,
            bias_ids: backend.alloc(count * LOGIT_BIAS_MAX)?,
            bias_values: backend.alloc(count * LOGIT_BIAS_MAX)?,
            prompt_seen: backend.alloc(count * Self::seen_words(vocab_rows))?,
            generated: backend.alloc(count * vocab_rows)?,
        })
    }

    /// Words of one `prompt_seen` row.
    pub fn seen_words(vocab_rows: usize) -> usize {
        vocab_rows.div_ceil(32)
    }
}
