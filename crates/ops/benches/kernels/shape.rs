//! Shapes of the model's products.

use crate::bench::{HIDDEN, VOCABULARY};

/// What becomes of the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// bf16.
    Plain,
    /// f32.
    Logits,
    /// Gates and ups become one bf16 value.
    Gated,
    /// Added to the residual stream, which is then normed.
    Normed,
}

/// A weight of `[outputs, columns]`.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub name: &'static str,
    pub outputs: usize,
    pub columns: usize,
    pub kind: Kind,
}

const fn shape(name: &'static str, outputs: usize, columns: usize, kind: Kind) -> Shape {
    Shape {
        name,
        outputs,
        columns,
        kind,
    }
}

const INTERMEDIATE: usize = 17_408;
pub const GDN_IN: Shape = shape("gdn_in", 16_480, HIDDEN, Kind::Plain);
pub const ATTENTION_IN: Shape = shape("attention_in", 14_336, HIDDEN, Kind::Plain);
pub const OUT: Shape = shape("out", HIDDEN, 6144, Kind::Normed);
pub const GATE_UP: Shape = shape("gate_up", 2 * INTERMEDIATE, HIDDEN, Kind::Gated);
pub const DOWN: Shape = shape("down", HIDDEN, INTERMEDIATE, Kind::Normed);
pub const HEAD: Shape = shape("head", VOCABULARY, HIDDEN, Kind::Logits);
/// The drafter's own; its MLP has the target's shapes.
pub const DRAFT: [Shape; 3] = [
    shape("draft_qkv", 6144, HIDDEN, Kind::Plain),
    shape("draft_out", HIDDEN, 4096, Kind::Normed),
    shape("draft_features", HIDDEN, 25_600, Kind::Plain),
];

impl Shape {
    /// Of the weight.
    pub fn bytes(&self) -> usize {
        2 * self.outputs * self.columns
    }

    /// Of a product of `rows` rows.
    pub fn operations(&self, rows: usize) -> usize {
        2 * rows * self.outputs * self.columns
    }

    /// Bytes of weight, x and what is written, once each.
    pub fn traffic(&self, rows: usize) -> usize {
        let out = match self.kind {
            Kind::Plain => 2 * self.outputs,
            Kind::Logits => 4 * self.outputs,
            Kind::Gated => self.outputs,
            Kind::Normed => 10 * self.outputs,
        };
        self.bytes() + rows * (2 * self.columns + out)
    }
}
