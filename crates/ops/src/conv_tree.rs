//! What turns the in-projection of a GDN layer into the inputs of its scan: the convolution over
//! ancestors instead of neighbours, the gates, and the lengths of q and k.

use crate::activation::{exp, sigmoid, silu, softplus};
use crate::product::dot;
use crate::segment::place;
use crate::{Backend, Batch, Cpu, GdnJournal, GdnShape, GdnState, Rows, TreeTables, parallel};

/// Reads [`GdnJournal::mixed`] and fills the rest of the journal. Per row:
///
/// ```text
/// qkv = silu(sum_{t=0..4} weight[:, 3 - t] * x[t-th element of path(r)])
/// g = -exp(A_log) * softplus(a + dt_bias)     beta = sigmoid(b)
/// ```
///
/// where x are the channels of `mixed` and `path(r)` is `r, parent(r), ...`, continued from row 0
/// by the slot's history (newest first). A chain gives the ordinary causal convolution. Sums run
/// from the oldest tap to the newest. `scale` is formed of the stored q and k.
pub struct ConvTree<'a, B: Backend> {
    /// Rows.
    pub rows: Rows<'a, B>,
    /// Segments.
    pub batch: &'a Batch<B>,
    /// Gives each row's four sources ([`TreeTables::conv_source`]).
    pub tree: &'a TreeTables<B>,
    /// Gives the shape, and the history ([`GdnState::conv`]).
    pub state: &'a GdnState<B>,
    /// `[channels, 4]`; tap 3 multiplies the row itself.
    pub weight: &'a B::Buf<f32>,
    /// `[value_heads]`.
    pub a_log: &'a B::Buf<f32>,
    /// `[value_heads]`.
    pub dt_bias: &'a B::Buf<f32>,
    /// `mixed` is read; `qkv`, `gate` and `scale` are written.
    pub journal: &'a mut GdnJournal<B>,
}

pub(crate) fn cpu(op: ConvTree<'_, Cpu>) {
    let shape = op.state.shape;
    let GdnJournal {
        mixed,
        qkv,
        gate,
        scale,
    } = op.journal;
    let rows = op.rows.count();
    let places: Vec<_> = (0..rows).map(|row| place(op.batch, row)).collect();
    let (channels, stride) = (shape.channels(), shape.mixed_stride());
    let weight = op.weight[..4 * channels].as_chunks::<4>().0;
    let live = rows * channels;
    // Four multiply-adds and an exponential per channel.
    parallel::chunks(&mut qkv[..live], channels, 20 * live, |row, out| {
        let Some((slot, number)) = places[row] else {
            return;
        };
        let history = &op.state.conv[slot * 3 * channels..][..3 * channels];
        let segment = &mixed[(row - number) * stride..];
        let source = &op.tree.conv_source[row * 4..][..4];
        let [x0, x1, x2, x3] = std::array::from_fn(|t| {
            let from = source[t] as usize;
            if from < 3 {
                &history[from * channels..][..channels]
            } else {
                &segment[(from - 3) * stride..][..channels]
            }
        });
        for (c, (out, w)) in out.iter_mut().zip(weight).enumerate() {
            let sum = w[0] * x3[c] + w[1] * x2[c] + w[2] * x1[c] + w[3] * x0[c];
            *out = silu(sum);
        }
    });
    let width = 3 * shape.key_heads;
    let live = rows * width;
    parallel::chunks(
        &mut scale[..live],
        width,
        live * shape.key_dim,
        |row, out| {
            if places[row].is_some() {
                scales(&qkv[row * channels..][..channels], shape, out);
            }
        },
    );
    let heads = shape.value_heads;
    for row in (0..rows).filter(|&row| places[row].is_some()) {
        let ba = &mixed[row * stride + channels + shape.value_width()..][..2 * heads];
        let gate = &mut gate[row * 2 * heads..][..2 * heads];
        for (h, gate) in gate.chunks_mut(2).enumerate() {
            let step = softplus(ba[heads + h] + op.dt_bias[h]);
            gate.copy_from_slice(&[-exp(op.a_log[h]) * step, sigmoid(ba[h])]);
        }
    }
}

/// `1 / (|q| sqrt(key_dim))`, `1 / |k|` and `q . k` of every key head of a row.
fn scales(qkv: &[f32], shape: GdnShape, out: &mut [f32]) {
    let dim = shape.key_dim;
    let root = 1.0 / (dim as f32).sqrt();
    let heads = qkv[..2 * shape.key_width()].split_at(shape.key_width());
    let heads = heads.0.chunks(dim).zip(heads.1.chunks(dim));
    for ((q, k), out) in heads.zip(out.chunks_mut(3)) {
        let inverse = |x: &[f32], scale: f32| scale / (dot(x, x) + 1e-6).sqrt();
        out.copy_from_slice(&[inverse(q, root), inverse(k, 1.0), dot(q, k)]);
    }
}

#[cfg(test)]
mod tests;
