//! Which models there are kernels for.

use super::device::Cuda;
use super::linear_add_norm::DIM_MAX;
use super::parts::VOCAB_MAX;
use super::{compact_kv, gdn_commit};
use crate::{Dtype, HeadSizes, ModelSizes, OpsError};

/// Inputs of a product come in steps of one matrix instruction.
const STEP: usize = 16;
/// Query heads that can share a key head.
const GROUP_MAX: usize = 8;
const HEAD_DIM: usize = 256;
const HEAD_ROTARY: usize = 64;
const DRAFT_HEAD_DIM: usize = 128;
const GDN_HEAD_DIM: usize = 128;

impl Cuda {
    /// Names the first size that no kernel takes.
    pub(super) fn refuse_sizes(&self, sizes: &ModelSizes) -> Result<(), OpsError> {
        match fault(sizes) {
            None => Ok(()),
            Some(fault) => Err(OpsError::Unsupported(format!(
                "{fault}; the model runs with --device cpu"
            ))),
        }
    }
}

fn fault(sizes: &ModelSizes) -> Option<String> {
    if sizes.dtype != Dtype::Bf16 {
        return Some(format!(
            "weights and KV of type {:?}: the GPU takes bf16",
            sizes.dtype
        ));
    }
    let width = |what: &str, width: usize| {
        (!width.is_multiple_of(STEP))
            .then(|| format!("{what} of {width} values: the GPU takes multiples of {STEP}"))
    };
    let gdn = sizes.gdn;
    for (found, most, what) in [
        (sizes.hidden, DIM_MAX, "values of the residual stream"),
        (sizes.vocab, VOCAB_MAX, "rows of the embedding"),
        (
            sizes.attention_layers,
            compact_kv::LAYERS_MAX,
            "attention layers",
        ),
        (sizes.gdn_layers, gdn_commit::LAYERS_MAX, "GDN layers"),
    ] {
        if found > most {
            return Some(format!("{found} {what}: the GPU takes up to {most}"));
        }
    }
    if (gdn.key_dim, gdn.value_dim) != (GDN_HEAD_DIM, GDN_HEAD_DIM) {
        return Some(format!(
            "GDN heads of {} x {}: the GPU takes {GDN_HEAD_DIM} x {GDN_HEAD_DIM}",
            gdn.key_dim, gdn.value_dim
        ));
    }
    let target = width("a hidden size", sizes.hidden)
        .or_else(|| width("an MLP", sizes.intermediate))
        .or_else(|| heads("attention", sizes.attention, HEAD_DIM, HEAD_ROTARY));
    target.or_else(|| {
        let (mlp, draft) = sizes.drafter?;
        width("the drafter's MLP", mlp)
            .or_else(|| heads("drafter", draft, DRAFT_HEAD_DIM, DRAFT_HEAD_DIM))
    })
}

fn heads(what: &str, found: HeadSizes, dim: usize, rotary: usize) -> Option<String> {
    if (found.dim, found.rotary) != (dim, rotary) {
        return Some(format!(
            "{what} heads of {} values, {} of them rotated: the GPU takes {dim} and {rotary}",
            found.dim, found.rotary
        ));
    }
    let group = found.heads / found.kv_heads.max(1);
    (group > GROUP_MAX)
        .then(|| format!("{group} {what} heads per key head: the GPU takes up to {GROUP_MAX}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GdnShape;

    /// Qwen3.6-27B with its drafter.
    fn real() -> ModelSizes {
        let draft = HeadSizes {
            heads: 32,
            kv_heads: 8,
            dim: 128,
            rotary: 128,
        };
        ModelSizes {
            vocab: 248_320,
            hidden: 5_120,
            intermediate: 17_408,
            attention_layers: 16,
            attention: HeadSizes {
                heads: 24,
                kv_heads: 4,
                dim: 256,
                rotary: 64,
            },
            gdn_layers: 48,
            gdn: GdnShape {
                key_heads: 16,
                value_heads: 48,
                key_dim: 128,
                value_dim: 128,
            },
            drafter: Some((17_408, draft)),
            dtype: Dtype::Bf16,
        }
    }

    #[test]
    fn the_model_that_kernels_are_made_for_fits() {
        assert_eq!(fault(&real()), None);
        assert_eq!(
            fault(&ModelSizes {
                drafter: None,
                ..real()
            }),
            None
        );
    }

    #[test]
    fn every_other_size_is_named() {
        type Change = fn(&mut ModelSizes);
        let cases: [(Change, &str); 15] = [
            (|s| s.dtype = Dtype::F32, "F32"),
            (|s| s.hidden = 5_112, "5112"),
            (|s| s.hidden = 5_136, "5136 values of the residual stream"),
            (|s| s.hidden = 1 << 20, "1048576"),
            (|s| s.vocab = VOCAB_MAX + 1, "1986561 rows"),
            (|s| s.attention_layers = 65, "65 attention layers"),
            (
                |s| s.gdn_layers = 61,
                "61 GDN layers: the GPU takes up to 60",
            ),
            (|s| s.intermediate = 100, "100"),
            (|s| s.attention.dim = 64, "heads of 64"),
            (|s| s.attention.rotary = 128, "128 of them rotated"),
            (
                |s| s.attention.kv_heads = 2,
                "12 attention heads per key head",
            ),
            (|s| s.gdn.key_dim = 64, "64 x 128"),
            (|s| s.gdn.value_dim = 256, "128 x 256"),
            (
                |s| s.drafter.as_mut().unwrap().0 = 1_000,
                "drafter's MLP of 1000",
            ),
            (
                |s| s.drafter.as_mut().unwrap().1.dim = 64,
                "drafter heads of 64",
            ),
        ];
        for (change, part) in cases {
            let mut sizes = real();
            change(&mut sizes);
            let fault = fault(&sizes).unwrap_or_else(|| panic!("{part} is taken"));
            assert!(
                fault.contains(part) && fault.contains("the GPU takes"),
                "{fault}"
            );
            // Without a drafter the target's sizes count all the same.
            if !part.contains("drafter") {
                sizes.drafter = None;
                assert!(super::fault(&sizes).is_some(), "{part}");
            }
        }
    }
}
