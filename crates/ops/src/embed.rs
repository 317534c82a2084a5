//! Token rows of the embedding table.

use crate::{Backend, Batch, Cpu, NONE, Rows, Tensor};

/// `out[r, :] = table[token[r], :]`, unscaled.
pub struct Embed<'a, B: Backend> {
    /// Rows to fill.
    pub rows: Rows<'a, B>,
    /// Gives the token of each row.
    pub batch: &'a Batch<B>,
    /// `[vocab, hidden]`.
    pub table: &'a Tensor<B>,
    /// `[rows, hidden]`.
    pub out: &'a mut B::Buf<f32>,
}

pub(crate) fn cpu(op: Embed<'_, Cpu>) {
    let hidden = op.table.columns;
    for row in 0..op.rows.count() {
        if op.batch.row_sequence[row] == NONE {
            continue;
        }
        let token = op.batch.token[row] as usize;
        assert!(
            token < op.table.rows,
            "token {token} of row {row} in a table of {} ids",
            op.table.rows
        );
        let out = &mut op.out[row * hidden..][..hidden];
        op.table.storage.widen_to(token * hidden, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DTYPES, Segment, batch, bits, floats, rounded};

    fn embedded(table: &Tensor<Cpu>, token: &[u32], capacity: usize) -> Box<[f32]> {
        let parent = crate::testing::chain(token.len());
        let batch = batch(&[Segment {
            slot: 0,
            token,
            parent: &parent,
        }]);
        let mut out = vec![7.0; batch.rows_max * table.columns].into();
        let op = Embed {
            rows: batch.rows(capacity),
            batch: &batch,
            table,
            out: &mut out,
        };
        Cpu::default().embed(op).unwrap();
        out
    }

    #[test]
    fn rows_are_those_of_the_table_whatever_its_type() {
        let (vocab, hidden) = (11, 17);
        let values = floats(1, vocab * hidden);
        for dtype in DTYPES {
            let table = Tensor::from_f32(&Cpu::default(), dtype, vocab, hidden, &values).unwrap();
            let out = embedded(&table, &[10, 0, 3], 5);
            for (row, token) in [10, 0, 3].into_iter().enumerate() {
                let exact = values[token * hidden..][..hidden].iter();
                let exact: Vec<f32> = exact.map(|&v| rounded(dtype, v)).collect();
                assert_eq!(bits(&out[row * hidden..][..hidden]), bits(&exact));
            }
            assert!(out[3 * hidden..].iter().all(|&v| v == 7.0), "padding rows");
            let out = embedded(&table, &[10, 0, 3], 1);
            assert!(out[hidden..].iter().all(|&v| v == 7.0), "one row launched");
        }
    }

    #[test]
    #[should_panic(expected = "token 11 of row 0 in a table of 11 ids")]
    fn a_token_beyond_the_table_is_named() {
        let table =
            Tensor::from_f32(&Cpu::default(), crate::Dtype::F32, 11, 2, &[0.0; 22]).unwrap();
        embedded(&table, &[11], 1);
    }
}
