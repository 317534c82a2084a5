//! The target: Qwen3.5/3.6 hybrid, inside a vision-language wrapper or text-only.

use ops::GdnShape;

use super::fields::{Fields, HEADS_MAX, ROWS_MAX, WIDTH_MAX, rope};
use super::{LayerKind, ModelConfig};
use crate::ModelError;

const ARCHITECTURES: [&str; 2] = ["Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"];
const MODEL_TYPES: [&str; 2] = ["qwen3_5", "qwen3_5_text"];
/// Taps of the causal convolution; history and kernels are written for this.
const CONV_TAPS: usize = 4;

pub(super) fn read(top: &Fields) -> Result<ModelConfig, ModelError> {
    let architectures = top.strings("architectures")?.unwrap_or_default();
    if let Some(unknown) = architectures
        .iter()
        .find(|name| !ARCHITECTURES.contains(&&***name))
    {
        let expected = ARCHITECTURES.join(" or ");
        let reason = format!("expected {expected}, found \"{unknown}\"");
        return Err(top.error("architectures", &reason));
    }
    top.require_string("model_type", &MODEL_TYPES)?;
    let Some(model_type) = top.string("model_type")? else {
        let reason = format!("expected {}, found nothing", MODEL_TYPES.join(" or "));
        return Err(top.error("model_type", &reason));
    };
    let nested = top.object("text_config")?;
    let text = nested.as_ref().unwrap_or(top);
    reject_variants(text)?;
    let (rope_theta, fraction) = rope(text)?;
    let head_dim = text.positive("head_dim", HEADS_MAX)?;
    let Some(fraction) = fraction else {
        let reason = "expected a number (the family's is 0.25), found nothing";
        return Err(text.error("rope_parameters.partial_rotary_factor", reason));
    };
    let rotary_dim = (head_dim as f64 * fraction).round() as usize;
    if rotary_dim == 0 || rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
        let reason = format!("gives {rotary_dim} rotated values of {head_dim}: expected an even");
        return Err(text.error("partial_rotary_factor", &(reason + " number of at least 2")));
    }
    let tied = match text.flag("tie_word_embeddings")? {
        Some(tied) => tied,
        None => top.flag("tie_word_embeddings")?.unwrap_or(false),
    };
    let config = ModelConfig {
        model_type: model_type.to_owned(),
        architectures,
        hidden_size: text.positive("hidden_size", WIDTH_MAX)?,
        intermediate_size: text.positive("intermediate_size", WIDTH_MAX)?,
        layers: layers(text)?,
        attention_heads: text.positive("num_attention_heads", HEADS_MAX)?,
        kv_heads: text.positive("num_key_value_heads", HEADS_MAX)?,
        head_dim,
        rotary_dim,
        rope_theta,
        gdn: GdnShape {
            key_heads: text.positive("linear_num_key_heads", HEADS_MAX)?,
            value_heads: text.positive("linear_num_value_heads", HEADS_MAX)?,
            key_dim: text.positive("linear_key_head_dim", HEADS_MAX)?,
            value_dim: text.positive("linear_value_head_dim", HEADS_MAX)?,
        },
        vocab_size: text.positive("vocab_size", ROWS_MAX)?,
        context_max: text.positive("max_position_embeddings", ROWS_MAX)?,
        norm_eps: text.norm_eps()?,
        tied_head: tied,
    };
    head_ratios(text, &config)?;
    Ok(config)
}

/// Options that would change the arithmetic and that no known checkpoint of the family uses.
fn reject_variants(text: &Fields) -> Result<(), ModelError> {
    text.require_string("hidden_act", &["silu"])?;
    text.require_string("output_gate_type", &["swish", "silu"])?;
    text.require_string("mamba_ssm_dtype", &["float32"])?;
    text.require_flag("attention_bias", false)?;
    text.require_flag("attn_output_gate", true)?;
    match text.size("linear_conv_kernel_dim")? {
        None | Some(CONV_TAPS) => Ok(()),
        Some(taps) => Err(text.error(
            "linear_conv_kernel_dim",
            &format!("only {CONV_TAPS} is supported, found {taps}"),
        )),
    }
}

fn layers(text: &Fields) -> Result<Vec<LayerKind>, ModelError> {
    let count = text.positive("num_hidden_layers", HEADS_MAX)?;
    let Some(types) = text.strings("layer_types")? else {
        let interval = text.size("full_attention_interval")?.unwrap_or(4);
        if interval == 0 {
            return Err(text.error("full_attention_interval", "expected at least 1, found 0"));
        }
        let kind = |layer: usize| match (layer + 1) % interval {
            0 => LayerKind::FullAttention,
            _ => LayerKind::LinearAttention,
        };
        return Ok((0..count).map(kind).collect());
    };
    if types.len() != count {
        let reason = format!(
            "expected {count} entries (num_hidden_layers), found {}",
            types.len()
        );
        return Err(text.error("layer_types", &reason));
    }
    types
        .iter()
        .map(|kind| match kind.as_str() {
            "full_attention" => Ok(LayerKind::FullAttention),
            "linear_attention" => Ok(LayerKind::LinearAttention),
            other => Err(text.error(
                "layer_types",
                &format!("expected full_attention or linear_attention, found \"{other}\""),
            )),
        })
        .collect()
}

fn head_ratios(text: &Fields, config: &ModelConfig) -> Result<(), ModelError> {
    for (key, many, few) in [
        (
            "num_attention_heads",
            config.attention_heads,
            config.kv_heads,
        ),
        (
            "linear_num_value_heads",
            config.gdn.value_heads,
            config.gdn.key_heads,
        ),
    ] {
        if !many.is_multiple_of(few) {
            let reason = format!("{many} heads are not a multiple of {few} key heads");
            return Err(text.error(key, &reason));
        }
    }
    Ok(())
}
