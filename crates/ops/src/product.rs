//! Dot products of many rows with many rows, each summed in one fixed order.
//!
//! A dot product of k columns has 16 partial sums; lane `j` adds columns `j, j + 16, ...` in that
//! order, and the lanes are summed by a balanced tree (j with j + 8, + 4, + 2, + 1). How many rows
//! share a register block changes which loads are shared, never an order.

use crate::vector::{Kernel, LANES, Lane, Vector, dispatch};

/// Rows of equal length inside a larger slice.
#[derive(Clone, Copy)]
pub(crate) struct RowView<'a, T = f32> {
    /// Row r starts at `r * stride`.
    pub values: &'a [T],
    /// Distance of two rows.
    pub stride: usize,
    /// Number of rows.
    pub count: usize,
}

impl<'a, T: Lane> RowView<'a, T> {
    #[inline(always)]
    fn row(self, row: usize, columns: usize) -> &'a [T] {
        &self.values[row * self.stride..][..columns]
    }
}

/// `out[r * out_stride + o] = x[r] . w[o]` over `columns`, cut into `blocks` equal blocks that are
/// summed by a balanced tree (neighbours first).
pub(crate) struct Products<'a, T = f32> {
    pub x: RowView<'a>,
    pub w: RowView<'a, T>,
    pub columns: usize,
    /// 1, 2, 4 or 8; divides `columns`.
    pub blocks: usize,
    pub out: &'a mut [f32],
    pub out_stride: usize,
}

impl<T: Lane> Kernel for Products<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(mut self) {
        let mut row = 0;
        while row < self.x.count {
            // Enough independent sums to hide the latency of an addition, few enough to stay in
            // 16 registers.
            row += match self.x.count - row {
                1 => self.strip::<V, 1, 8>(row),
                2 => self.strip::<V, 2, 6>(row),
                3 => self.strip::<V, 3, 4>(row),
                _ => self.strip::<V, 4, 3>(row),
            };
        }
    }
}

impl<T: Lane> Products<'_, T> {
    /// R rows against all of `w`, O at a time. Returns R.
    #[inline(always)]
    fn strip<V: Vector, const R: usize, const O: usize>(&mut self, row: usize) -> usize {
        let whole = self.w.count - self.w.count % O;
        for output in (0..whole).step_by(O) {
            self.tile::<V, R, O>(row, output);
        }
        for output in whole..self.w.count {
            self.tile::<V, R, 1>(row, output);
        }
        R
    }

    #[inline(always)]
    fn tile<V: Vector, const R: usize, const O: usize>(&mut self, row: usize, output: usize) {
        let x: [&[f32]; R] = std::array::from_fn(|r| self.x.row(row + r, self.columns));
        let w: [&[T]; O] = std::array::from_fn(|o| self.w.row(output + o, self.columns));
        let sums = if self.blocks == 1 {
            dots::<V, T, R, O>(x, w)
        } else {
            let len = self.columns / self.blocks;
            let mut parts = [[[0.0; O]; R]; 8];
            for (b, sums) in parts[..self.blocks].iter_mut().enumerate() {
                let cut = b * len..(b + 1) * len;
                *sums = dots::<V, T, R, O>(x.map(|x| &x[cut.clone()]), w.map(|w| &w[cut.clone()]));
            }
            balanced(parts, self.blocks)
        };
        for (r, sums) in sums.iter().enumerate() {
            self.out[(row + r) * self.out_stride + output..][..O].copy_from_slice(sums);
        }
    }
}

/// The sum of the first `count` parts, neighbours first.
#[inline(always)]
fn balanced<const R: usize, const O: usize>(
    mut parts: [[[f32; O]; R]; 8],
    mut count: usize,
) -> [[f32; O]; R] {
    while count > 1 {
        count /= 2;
        for i in 0..count {
            let [left, right] = [parts[2 * i], parts[2 * i + 1]];
            let pairs = left.as_flattened().iter().zip(right.as_flattened());
            for (sum, (left, right)) in parts[i].as_flattened_mut().iter_mut().zip(pairs) {
                *sum = left + right;
            }
        }
    }
    parts[0]
}

/// The dot products of R rows with O rows of the same length. Lanes 0..8 and 8..16 are summed in
/// two passes, so that R * O sums fit the registers. Loops instead of closures over vectors: a
/// closure that is not inlined is compiled without the instruction set of its caller.
#[inline(always)]
fn dots<V: Vector, T: Lane, const R: usize, const O: usize>(
    x: [&[f32]; R],
    w: [&[T]; O],
) -> [[f32; O]; R] {
    let columns = x[0].len();
    assert!(
        x.iter().all(|x| x.len() == columns) && w.iter().all(|w| w.len() == columns),
        "rows of a dot product have equal lengths"
    );
    let chunks = columns / LANES;
    let tail = (!columns.is_multiple_of(LANES)).then(|| (x.map(padded_tail), w.map(padded_tail)));
    let x = x.map(|x| x.as_chunks::<LANES>().0);
    let w = w.map(|w| w.as_chunks::<LANES>().0);
    let mut halves = [[[V::splat(0.0); O]; R]; 2];
    for (half, sums) in halves.iter_mut().enumerate() {
        let mut local = [[V::splat(0.0); O]; R];
        let mut at = half;
        while at < chunks {
            let mut w_at = [V::splat(0.0); O];
            for o in 0..O {
                // SAFETY: every slice has `columns / LANES == chunks` chunks.
                w_at[o] = T::load(unsafe { w[o].get_unchecked(at) });
            }
            for r in 0..R {
                // SAFETY: as above.
                let x_at = V::load(unsafe { x[r].get_unchecked(at) });
                for o in 0..O {
                    local[r][o] = local[r][o].mul_add(x_at, w_at[o]);
                }
            }
            at += 2;
        }
        if let Some((x_tail, w_tail)) = &tail
            && chunks % 2 == half
        {
            for r in 0..R {
                for o in 0..O {
                    local[r][o] = local[r][o].mul_add(V::load(&x_tail[r]), T::load(&w_tail[o]));
                }
            }
        }
        *sums = local;
    }
    let mut sums = [[0.0; O]; R];
    for r in 0..R {
        for o in 0..O {
            sums[r][o] = halves[0][r][o].add(halves[1][r][o]).sum();
        }
    }
    sums
}

/// What follows the last whole chunk, with zeros behind.
#[inline(always)]
fn padded_tail<T: Lane>(row: &[T]) -> [T; LANES] {
    let rest = row.as_chunks::<LANES>().1;
    let mut tail = [T::zeroed(); LANES];
    tail[..rest.len()].copy_from_slice(rest);
    tail
}

/// One dot product.
pub(crate) fn dot(x: &[f32], w: &[f32]) -> f32 {
    struct Dot<'a>(&'a [f32], &'a [f32]);
    impl Kernel for Dot<'_> {
        type Output = f32;
        #[inline(always)]
        fn run<V: Vector>(self) -> f32 {
            dots::<V, f32, 1, 1>([self.0], [self.1])[0][0]
        }
    }
    dispatch(Dot(x, w))
}
