//! Row 0 of every product has the same bits whatever the number of rows; if not, the bench fails.

use half::bf16;
use ops::{Backend, Cuda, Element, FillTarget, OpsError, Tensor};

use crate::bench::{Bench, HIDDEN, ROWS_MAX, VOCABULARY};
use crate::memory::{Buf, fill, weight};
use crate::product::Products;
use crate::shape::{ATTENTION_IN, DOWN, DRAFT, GATE_UP, GDN_IN, HEAD, Kind, OUT, Shape};

const ROWS: [usize; 15] = [
    1, 8, 9, 16, 17, 24, 32, 48, 64, 96, 128, 192, 256, 384, ROWS_MAX,
];

/// Bytes of row 0 of what a product writes.
#[derive(PartialEq)]
struct Row(Vec<u8>);

pub fn run(bench: &Bench) -> Result<(), OpsError> {
    let cuda = &bench.cuda;
    let mut products = Products::new(cuda, ROWS_MAX, VOCABULARY)?;
    let shapes = [GDN_IN, ATTENTION_IN, OUT, GATE_UP, DOWN, HEAD];
    for shape in shapes.iter().chain(&DRAFT) {
        let weight = weight(cuda, shape.outputs, shape.columns)?;
        let mut first: Option<Row> = None;
        for rows in ROWS {
            let row = row_of(cuda, &mut products, shape, &weight, rows)?;
            match &first {
                None => first = Some(row),
                Some(first) if *first == row => {}
                Some(_) => {
                    return Err(OpsError::Device(format!(
                        "{}: row 0 of {rows} rows has other bits than that of one row",
                        shape.name
                    )));
                }
            }
        }
        println!("{}: row 0 is equal for {ROWS:?} rows", shape.name);
    }
    Ok(())
}

fn row_of(
    cuda: &Cuda,
    products: &mut Products<'_>,
    shape: &Shape,
    weight: &Tensor<Cuda>,
    rows: usize,
) -> Result<Row, OpsError> {
    products.set_rows(rows)?;
    let written = |products: &Products<'_>| -> Result<Row, OpsError> {
        Ok(Row(match shape.kind {
            Kind::Plain => head_of(cuda, &products.act, shape.outputs)?,
            Kind::Gated => head_of(cuda, &products.act, shape.outputs / 2)?,
            Kind::Logits => head_of(cuda, &products.logits, shape.outputs)?,
            Kind::Normed => {
                let mut bytes = head_of(cuda, &products.residual, HIDDEN)?;
                bytes.extend(head_of::<bf16>(cuda, &products.act, HIDDEN)?);
                bytes
            }
        }))
    };
    // What the product before left must not pass for a result.
    cuda.zero(&mut products.act, 0, shape.outputs)?;
    if shape.kind == Kind::Logits {
        cuda.zero(&mut products.logits, 0, shape.outputs)?;
    }
    fill(cuda, FillTarget::F32(&mut products.residual), 1.0)?;
    let before = written(products)?;
    products.op(shape, weight, true)?;
    let after = written(products)?;
    match before == after {
        true => Err(OpsError::Device(format!(
            "{}: {rows} rows wrote nothing",
            shape.name
        ))),
        false => Ok(after),
    }
}

/// Bytes of the first values.
fn head_of<T: Element>(cuda: &Cuda, buf: &Buf<T>, len: usize) -> Result<Vec<u8>, OpsError> {
    let mut values = vec![T::zeroed(); len];
    cuda.download(buf, 0, &mut values)?;
    Ok(bytemuck::cast_slice(&values).to_vec())
}
