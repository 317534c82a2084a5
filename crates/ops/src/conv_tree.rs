//! Causal depthwise convolution with silu, over ancestors instead of neighbours.

use crate::activation::silu;
use crate::segment::place;
use crate::{Backend, Batch, Cpu, GdnState, Rows, TreeTables, parallel};

/// `out[r] = silu(sum_{t=0..4} weight[:, 3 - t] * x[t-th element of path(r)])` where `path(r)` is
/// `r, parent(r), ...`, continued from row 0 by the slot's history (newest first). A chain gives
/// the ordinary causal convolution. Sums run from the oldest tap to the newest.
pub struct ConvTree<'a, B: Backend> {
    /// Rows.
    pub rows: Rows<'a, B>,
    /// Segments.
    pub batch: &'a Batch<B>,
    /// Gives each row's four sources ([`TreeTables::conv_source`]).
    pub tree: &'a TreeTables<B>,
    /// Gives the history ([`GdnState::conv`]).
    pub state: &'a GdnState<B>,
    /// Channels.
    pub channels: usize,
    /// `[rows, channels]` before convolution.
    pub x: &'a B::Buf<f32>,
    /// `[channels, 4]`; tap 3 multiplies the row itself.
    pub weight: &'a B::Buf<f32>,
    /// `[rows, channels]`.
    pub out: &'a mut B::Buf<f32>,
}

pub(crate) fn cpu(op: ConvTree<'_, Cpu>) {
    let channels = op.channels;
    let live = op.rows.count() * channels;
    let weight = op.weight[..4 * channels].as_chunks::<4>().0;
    // Four multiply-adds and an exponential per channel.
    parallel::chunks(&mut op.out[..live], channels, 20 * live, |row, out| {
        let Some((slot, number)) = place(op.batch, row) else {
            return;
        };
        let history = &op.state.conv[slot * 3 * channels..][..3 * channels];
        let segment = &op.x[(row - number) * channels..];
        let source = &op.tree.conv_source[row * 4..][..4];
        let [x0, x1, x2, x3] = std::array::from_fn(|t| {
            let from = source[t] as usize;
            if from < 3 {
                &history[from * channels..][..channels]
            } else {
                &segment[(from - 3) * channels..][..channels]
            }
        });
        for (c, (out, w)) in out.iter_mut().zip(weight).enumerate() {
            let sum = w[0] * x3[c] + w[1] * x2[c] + w[2] * x1[c] + w[3] * x0[c];
            *out = silu(sum);
        }
    });
}

#[cfg(test)]
mod tests;
