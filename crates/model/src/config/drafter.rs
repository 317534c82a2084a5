//! The DFlash drafter.

use ops::{BlockMask, DEPTH_MAX};

use super::fields::{Fields, HEADS_MAX, ROWS_MAX, WIDTH_MAX, rope};
use super::{DrafterConfig, ModelConfig};
use crate::ModelError;

/// Keys of relatives whose arithmetic differs; loading one as DFlash would draft nonsense.
const FOREIGN_KEYS: [&str; 3] = ["selector_rank", "conv_kernel_size", "projector_type"];

pub(super) fn read(top: &Fields) -> Result<DrafterConfig, ModelError> {
    let architectures = top.strings("architectures")?.unwrap_or_default();
    if let Some(unknown) = architectures
        .iter()
        .find(|name| **name != "DFlashDraftModel")
    {
        let reason = format!("expected DFlashDraftModel, found \"{unknown}\"");
        return Err(top.error("architectures", &reason));
    }
    let nested = top.object("dflash_config")?;
    // Nested keys win over the top level.
    let holder = |key: &str| match &nested {
        Some(inner) if inner.get(key).is_some() => inner,
        _ => top,
    };
    for key in FOREIGN_KEYS {
        if holder(key).get(key).is_some() {
            return Err(top.error(
                key,
                "belongs to another family of drafters; expected DFlash",
            ));
        }
    }
    holder("sample_from_anchor").require_flag("sample_from_anchor", false)?;
    top.require_string("hidden_act", &["silu"])?;
    top.require_flag("attention_bias", false)?;
    let (rope_theta, _) = rope(top)?;
    let target_layers = top.positive("num_target_layers", HEADS_MAX)?;
    let layers = layers(top, nested.as_ref())?;
    let mask = holder("mask_token_id");
    let Some(mask_token) = mask.size("mask_token_id")? else {
        return Err(mask.error("mask_token_id", "expected a token id, found nothing"));
    };
    let config = DrafterConfig {
        hidden_size: top.positive("hidden_size", WIDTH_MAX)?,
        intermediate_size: top.positive("intermediate_size", WIDTH_MAX)?,
        attention_heads: top.positive("num_attention_heads", HEADS_MAX)?,
        kv_heads: top.positive("num_key_value_heads", HEADS_MAX)?,
        head_dim: top.positive("head_dim", HEADS_MAX)?,
        rope_theta,
        block_size: holder("block_size")
            .size("block_size")?
            .unwrap_or(DEPTH_MAX + 1),
        mask_token: u32::try_from(mask_token)
            .map_err(|_| mask.error("mask_token_id", "expected a token id below 2^32"))?,
        taps: match holder("target_layer_ids").sizes("target_layer_ids")? {
            Some(taps) if taps.is_empty() => {
                return Err(top.error("target_layer_ids", "expected at least one layer"));
            }
            Some(taps) => taps,
            None => default_taps(target_layers, layers.len()),
        },
        layers,
        target_layers,
        vocab_size: top.positive("vocab_size", ROWS_MAX)?,
        norm_eps: top.norm_eps()?,
    };
    check_sizes(top, &config)?;
    Ok(config)
}

fn check_sizes(top: &Fields, config: &DrafterConfig) -> Result<(), ModelError> {
    if !(2..=DEPTH_MAX + 1).contains(&config.block_size) {
        let reason = format!(
            "expected 2 to {}, found {}",
            DEPTH_MAX + 1,
            config.block_size
        );
        return Err(top.error("block_size", &reason));
    }
    if !config.attention_heads.is_multiple_of(config.kv_heads) || !config.head_dim.is_multiple_of(2)
    {
        return Err(top.error(
            "num_attention_heads",
            "expected a multiple of num_key_value_heads, and an even head_dim",
        ));
    }
    Ok(())
}

/// Evenly spread over the target, first and last layers left out; halves go to the even layer, as
/// where drafters are trained.
fn default_taps(target_layers: usize, count: usize) -> Vec<usize> {
    if count == 1 {
        return vec![target_layers / 2];
    }
    let span = target_layers.saturating_sub(4) as f64 / (count - 1) as f64;
    (0..count)
        .map(|i| (1.0 + i as f64 * span).round_ties_even() as usize)
        .collect()
}

fn layers(top: &Fields, nested: Option<&Fields>) -> Result<Vec<BlockMask>, ModelError> {
    let count = top.positive("num_hidden_layers", HEADS_MAX)?;
    let types = match top.strings("layer_types")? {
        Some(types) => types,
        None => vec!["full_attention".to_owned(); count],
    };
    if types.len() != count {
        let reason = format!(
            "expected {count} entries (num_hidden_layers), found {}",
            types.len()
        );
        return Err(top.error("layer_types", &reason));
    }
    let explicit = match top.flag("is_causal")? {
        Some(causal) => Some(causal),
        None => nested
            .map(|inner| inner.flag("causal"))
            .transpose()?
            .flatten(),
    };
    types
        .iter()
        .map(|kind| match kind.as_str() {
            "full_attention" if explicit == Some(true) => Ok(BlockMask::Causal),
            "full_attention" => Ok(BlockMask::Full),
            "sliding_attention" => {
                let window = top.positive("sliding_window", ROWS_MAX)?;
                match explicit {
                    Some(false) => Ok(BlockMask::Window(window)),
                    _ => Ok(BlockMask::CausalWindow(window)),
                }
            }
            other => Err(top.error(
                "layer_types",
                &format!("expected full_attention or sliding_attention, found \"{other}\""),
            )),
        })
        .collect()
}

impl DrafterConfig {
    /// Everything that ties a drafter to its target.
    pub(super) fn fits(&self, target: &ModelConfig) -> Result<(), ModelError> {
        let layers = target.layers.len();
        for (what, drafter, target) in [
            ("hidden_size", self.hidden_size, target.hidden_size),
            ("num_target_layers", self.target_layers, layers),
            ("vocab_size", self.vocab_size, target.vocab_size),
        ] {
            if drafter != target {
                return Err(ModelError::Mismatch(format!(
                    "{what} is {drafter} in the drafter's config and {target} in the target; use \
                     the drafter that was trained for this target"
                )));
            }
        }
        // The last layer's output is taken after the final norm in other engines; drafters are
        // never trained on it.
        if let Some(tap) = self.taps.iter().find(|tap| **tap + 2 > layers) {
            return Err(ModelError::Mismatch(format!(
                "target_layer_ids has {tap}; expected 0 to {} for a target of {layers} layers",
                layers.saturating_sub(2)
            )));
        }
        if self.mask_token as usize >= target.vocab_size {
            return Err(ModelError::Mismatch(format!(
                "mask_token_id is {}, but the target's embedding has {} rows",
                self.mask_token, target.vocab_size
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::default_taps;

    #[test]
    fn default_taps_are_those_of_the_training_code() {
        assert_eq!(default_taps(64, 5), [1, 16, 31, 46, 61]);
        // 7.5 and 20.5 go to 8 and 20.
        assert_eq!(default_taps(30, 5), [1, 8, 14, 20, 27]);
        assert_eq!(default_taps(8, 1), [4]);
    }
}
