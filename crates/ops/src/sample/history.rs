//! What was said before, and how it changes the logits of a row.

use crate::limits::{DEPTH_MAX, LOGIT_BIAS_MAX, STOP_IDS_MAX};
use crate::token_masks::is_allowed;
use crate::{Batch, Cpu, SamplingRow, Slots};

/// Options and history of one row.
pub(super) struct History<'a> {
    pub options: &'a SamplingRow,
    /// 0-based index of the output token that this row decides.
    pub index: u32,
    slots: &'a Slots<Cpu>,
    slot: usize,
    /// Bits of the tokens that are allowed; `None`: all are.
    mask: Option<&'a [u32]>,
    /// Tokens from the row up to depth 1; repeats are possible.
    path: Vec<u32>,
}

impl<'a> History<'a> {
    /// Of a live row of the batch.
    pub fn new(
        batch: &Batch<Cpu>,
        slots: &'a Slots<Cpu>,
        mask: Option<&'a [u32]>,
        row: usize,
    ) -> Self {
        let sequence = batch.row_sequence[row] as usize;
        let slot = batch.sequence_slot[sequence] as usize;
        let start = batch.sequence_start[sequence] as usize;
        let options = &slots.sampling[slot];
        let mut path = Vec::new();
        if has_penalties(options) {
            path.reserve(DEPTH_MAX);
            let mut row = row;
            while let Ok(parent) = usize::try_from(batch.parent[row]) {
                path.push(batch.token[row]);
                row = start + parent;
            }
        }
        History {
            options,
            index: slots.emitted[slot].wrapping_add(batch.depth[row]),
            slots,
            slot,
            mask,
            path,
        }
    }

    /// Whether [`History::apply`] leaves every logit as it is.
    pub fn is_neutral(&self) -> bool {
        self.mask.is_none()
            && self.banned_stop_ids().is_empty()
            && self.options.bias_count == 0
            && !has_penalties(self.options)
    }

    /// Bans, bias and penalties on `logits[0..vocab_used]`, in place.
    pub fn apply(&self, logits: &mut [f32]) {
        if let Some(mask) = self.mask {
            for (id, z) in (0..).zip(logits.iter_mut()) {
                if !is_allowed(mask, id) {
                    *z = f32::NEG_INFINITY;
                }
            }
        }
        for &id in self.banned_stop_ids() {
            if let Some(z) = logits.get_mut(id as usize) {
                *z = f32::NEG_INFINITY;
            }
        }
        let first = self.slot * LOGIT_BIAS_MAX;
        let entries = first..first + self.options.bias_count as usize;
        let ids = &self.slots.bias_ids[entries.clone()];
        for (&id, &bias) in ids.iter().zip(&self.slots.bias_values[entries]) {
            if let Some(z) = logits.get_mut(id as usize) {
                // A ban holds whatever the logit is: NaN - inf and inf - inf would lift it.
                let banned = bias == f32::NEG_INFINITY || *z == f32::NEG_INFINITY;
                *z = if banned { f32::NEG_INFINITY } else { *z + bias };
            }
        }
        if has_penalties(self.options) {
            self.penalise(logits);
        }
    }

    fn banned_stop_ids(&self) -> &'a [u32] {
        let count = if self.index < self.options.tokens_min {
            self.options.stop_count as usize
        } else {
            0
        };
        &self.slots.stop_ids[self.slot * STOP_IDS_MAX..][..count]
    }

    fn penalise(&self, logits: &mut [f32]) {
        let words = Slots::<Cpu>::seen_words(self.slots.vocab_rows);
        let prompt_seen = &self.slots.prompt_seen[self.slot * words..][..words];
        let generated = &self.slots.generated[self.slot * self.slots.vocab_rows..];
        // Path tokens are set at the end from their logits before penalties.
        let on_path: Vec<(u32, f32)> = (self.path.iter())
            .filter_map(|&id| logits.get(id as usize).map(|&z| (id, z)))
            .collect();
        for (id, (z, &count)) in logits.iter_mut().zip(generated).enumerate() {
            let seen = prompt_seen[id / 32] >> (id % 32) & 1 == 1;
            if seen || count > 0 {
                *z = penalised(*z, self.options, count);
            }
        }
        for &(id, z) in &on_path {
            let on_path = self.path.iter().filter(|&&other| other == id).count() as u32;
            let count = generated[id as usize] + on_path;
            logits[id as usize] = penalised(z, self.options, count);
        }
    }
}

fn has_penalties(options: &SamplingRow) -> bool {
    options.repetition_penalty != 1.0
        || options.frequency_penalty != 0.0
        || options.presence_penalty != 0.0
}

/// A logit of a token that prompt, output or path has, output and path `count` times.
fn penalised(z: f32, options: &SamplingRow, count: u32) -> f32 {
    let repetition = options.repetition_penalty;
    let z = if z > 0.0 {
        z / repetition
    } else {
        z * repetition
    };
    if count == 0 {
        return z;
    }
    z - (options.frequency_penalty * count as f32 + options.presence_penalty)
}
