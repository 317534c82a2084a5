//! Moving rows: tapped hidden states, last rows of a prompt, accepted rows of a tree.

use crate::{Backend, Cpu, OpsError, Rows};

/// A list of rows to be taken out of a larger set, with the place they go to. `rows` counts live
/// entries as a [`crate::Batch`] does.
pub struct ContextRows<B: Backend> {
    /// Entries the tables can hold.
    pub rows_max: usize,
    /// `[2]`: live entries, unused.
    pub live: B::Buf<u32>,
    /// `[rows_max]` row to read.
    pub source: B::Buf<u32>,
    /// `[rows_max]` slot of the row's sequence.
    pub slot: B::Buf<u32>,
    /// `[rows_max]` absolute position of the row, which is also its cache index.
    pub position: B::Buf<u32>,
}

impl<B: Backend> ContextRows<B> {
    /// Empty tables.
    pub fn new(backend: &B, rows_max: usize) -> Result<Self, OpsError> {
        Ok(ContextRows {
            rows_max,
            live: backend.alloc(2)?,
            source: backend.alloc(rows_max)?,
            slot: backend.alloc(rows_max)?,
            position: backend.alloc(rows_max)?,
        })
    }

    /// The entry count for an op over `capacity` entries.
    pub fn rows(&self, capacity: usize) -> Rows<'_, B> {
        assert!(
            capacity <= self.rows_max,
            "{capacity} rows in tables for {}",
            self.rows_max
        );
        Rows::new(capacity, &self.live)
    }
}

/// `out[j, :] = x[source[j], :]` for every live entry `j`.
pub struct GatherRows<'a, B: Backend> {
    /// Entries to gather.
    pub rows: Rows<'a, B>,
    /// `[rows]` row to read.
    pub source: &'a B::Buf<u32>,
    /// Values per row.
    pub dim: usize,
    /// `[any, dim]`.
    pub x: &'a B::Buf<B::Act>,
    /// `[rows, dim]`.
    pub out: &'a mut B::Buf<B::Act>,
}

/// `out[r, offset .. offset + dim] = x[r, :]`: one tap into the concatenated features.
pub struct CopyColumns<'a, B: Backend> {
    /// Rows to copy.
    pub rows: Rows<'a, B>,
    /// Values per row of `x`.
    pub dim: usize,
    /// `[rows, dim]`.
    pub x: &'a B::Buf<f32>,
    /// First column written.
    pub offset: usize,
    /// Values per row of `out`.
    pub out_dim: usize,
    /// `[rows, out_dim]`.
    pub out: &'a mut B::Buf<B::Act>,
}

pub(crate) fn gather_cpu(op: GatherRows<'_, Cpu>) {
    for row in 0..op.rows.count() {
        let source = op.source[row] as usize;
        let x = &op.x[source * op.dim..][..op.dim];
        op.out[row * op.dim..][..op.dim].copy_from_slice(x);
    }
}

pub(crate) fn copy_columns_cpu(op: CopyColumns<'_, Cpu>) {
    assert!(
        op.offset + op.dim <= op.out_dim,
        "columns {}..{} of rows of {}",
        op.offset,
        op.offset + op.dim,
        op.out_dim
    );
    for row in 0..op.rows.count() {
        let x = &op.x[row * op.dim..][..op.dim];
        op.out[row * op.out_dim + op.offset..][..op.dim].copy_from_slice(x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{floats, live};

    #[test]
    fn listed_rows_are_gathered_and_no_other_is_written() {
        let x: Box<[f32]> = floats(1, 6 * 3).into();
        let source: Box<[u32]> = vec![5, 0, 5, 99].into();
        for count in [0, 1, 3] {
            let mut out = vec![7.0; 12].into();
            let op = GatherRows {
                rows: Rows {
                    capacity: 4,
                    live: &live(count),
                    prompt: false,
                },
                source: &source,
                dim: 3,
                x: &x,
                out: &mut out,
            };
            Cpu::default().gather_rows(op).unwrap();
            for row in 0..count {
                let from = source[row] as usize * 3;
                assert_eq!(out[row * 3..][..3], x[from..][..3]);
            }
            assert!(out[count * 3..].iter().all(|&v| v == 7.0));
        }
    }

    #[test]
    fn taps_stand_side_by_side() {
        let taps = [floats(1, 2 * 3), floats(2, 2 * 3)];
        let mut out = vec![7.0; 3 * 7].into();
        for (number, tap) in taps.iter().enumerate() {
            let op = CopyColumns {
                rows: Rows {
                    capacity: 3,
                    live: &live(2),
                    prompt: false,
                },
                dim: 3,
                x: &tap.clone().into(),
                offset: 1 + 3 * number,
                out_dim: 7,
                out: &mut out,
            };
            Cpu::default().copy_columns(op).unwrap();
        }
        for row in 0..2 {
            assert_eq!(out[row * 7], 7.0);
            assert_eq!(out[row * 7 + 1..][..3], taps[0][row * 3..][..3]);
            assert_eq!(out[row * 7 + 4..][..3], taps[1][row * 3..][..3]);
        }
        assert_eq!(out[14..], [7.0; 7]);
    }

    #[test]
    #[should_panic(expected = "columns 5..8 of rows of 7")]
    fn columns_must_fit() {
        let op = CopyColumns {
            rows: Rows {
                capacity: 1,
                live: &live(1),
                prompt: false,
            },
            dim: 3,
            x: &vec![0.0; 3].into(),
            offset: 5,
            out_dim: 7,
            out: &mut vec![0.0; 7].into(),
        };
        Cpu::default().copy_columns(op).unwrap();
    }
}
