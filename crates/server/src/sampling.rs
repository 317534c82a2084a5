//! The fields of a request that say how tokens are chosen and where the output ends.

#[cfg(test)]
mod tests;

use std::hash::{BuildHasher, RandomState};

use engine::{ModelInfo, Request, SamplingParams};
use serde_json::Value;

use crate::error::{ApiError, shorten};
use crate::fields::{Bounds, Fields, integer_at, number_at, too_long, wrong_type};
use crate::model_files::ModelFiles;
use crate::text_stream::{Split, TextOptions};

/// Bytes of one stop string.
const STOP_BYTES_MAX: usize = 1_024;
/// Entries of `stop_token_ids`.
const STOP_IDS_MAX: usize = 64;
/// Entries of `logit_bias`.
const BIAS_MAX: usize = 1_024;
/// A bias this low bans its token.
const BIAS_BAN: f32 = -100.0;

/// What one request may ask for, and what it gets without asking.
#[derive(Clone, Debug)]
pub struct RequestRules {
    /// Stop strings at most.
    pub stop_strings_max: usize,
    /// `n` at most.
    pub choices_max: usize,
    /// Refuse a `max_tokens` that does not fit the context; else it is lowered.
    pub strict_max_tokens: bool,
    /// Refuse fields nobody knows.
    pub strict_fields: bool,
    /// Let conversations without a user message pass.
    pub lenient_messages: bool,
    /// Leave out of system texts what clients add to each of them for another server.
    pub strip_client_markers: bool,
    /// Take sampling defaults from `generation_config.json`, else OpenAI's.
    pub generation_config: bool,
    /// Variables of the chat template; the request's own win.
    pub template_variables: serde_json::Map<String, Value>,
    /// Requests say how urgent they are; else they start in the order they come.
    pub priority: bool,
    /// Base of the seeds of requests that have none; `None` = random.
    pub seed: Option<u64>,
}

impl Default for RequestRules {
    fn default() -> Self {
        RequestRules {
            stop_strings_max: 4,
            choices_max: 8,
            strict_max_tokens: false,
            strict_fields: false,
            lenient_messages: false,
            strip_client_markers: true,
            generation_config: true,
            template_variables: serde_json::Map::new(),
            priority: false,
            seed: None,
        }
    }
}

/// Everything of a request but its prompt and its presentation.
#[derive(Clone, Debug)]
pub struct GenerationOptions {
    /// Sampling, as choice 0.
    pub sampling: SamplingParams,
    /// Tokens of the output at most; `None` = what the context holds.
    pub max_tokens: Option<usize>,
    /// Nothing ends the output before this many tokens.
    pub min_tokens: usize,
    /// `false`: no drafting for this request.
    pub speculative: bool,
    /// Lower ones start first.
    pub priority: i64,
    /// Only requests with the same one share what is kept of their prompts.
    pub cache_salt: Option<String>,
    /// Answers to one prompt.
    pub choices: usize,
    /// Ends of the text.
    pub text: TextOptions,
}

impl GenerationOptions {
    /// Reads the sampling fields, the limits and the stops of a request body.
    pub fn read(
        fields: &Fields,
        files: &ModelFiles,
        rules: &RequestRules,
    ) -> Result<Self, ApiError> {
        let choices_max = i64::try_from(rules.choices_max).unwrap_or(i64::MAX);
        let speculative = match fields.boolean("spec_decode")? {
            Some(value) => Some(value),
            None => fields.boolean("speculative")?,
        };
        let choices = fields.integer("n", 1, choices_max)?.unwrap_or(1);
        Ok(GenerationOptions {
            priority: priority(fields, rules)?,
            cache_salt: cache_salt(fields)?,
            sampling: sampling(fields, files, rules)?,
            max_tokens: max_tokens(fields)?,
            min_tokens: fields.count("min_tokens", 0)?.unwrap_or(0),
            speculative: speculative.unwrap_or(true),
            choices: usize::try_from(choices).unwrap_or(1),
            text: text_options(fields, files, rules)?,
        })
    }

    /// Output tokens of a prompt of `prompt` tokens at most: what was asked for, lowered to what
    /// the context holds. `param` is the field that a prompt too long is blamed on.
    pub fn limit(
        &self,
        prompt: usize,
        info: &ModelInfo,
        rules: &RequestRules,
        param: &str,
    ) -> Result<usize, ApiError> {
        let context = info.context_length.min(info.tokens_total);
        if prompt >= context {
            return Err(ApiError::context_length(context, prompt, param));
        }
        let room = context - prompt;
        match self.max_tokens {
            Some(asked) if asked > room && rules.strict_max_tokens => Err(
                ApiError::context_length_with_output(context, prompt, asked, param),
            ),
            Some(asked) => Ok(asked.min(room)),
            None => Ok(room),
        }
    }

    /// The engine's form, as choice `choice` of a prompt; `max_tokens` is [`Self::limit`]'s.
    pub fn request(&self, prompt: Vec<u32>, max_tokens: usize, choice: usize) -> Request {
        let mut sampling = self.sampling.clone();
        sampling.choice = u32::try_from(choice).unwrap_or(u32::MAX);
        let mut stop_ids = self.text.end_ids.clone();
        stop_ids.extend(
            self.text
                .stop_ids
                .iter()
                .filter(|id| !self.text.end_ids.contains(id)),
        );
        Request {
            priority: self.priority,
            prompt,
            sampling,
            max_tokens,
            min_tokens: self.min_tokens,
            stop_ids,
            logprobs: None,
            prompt_logprobs: None,
            trace: false,
            speculative: self.speculative,
            shape: None,
            cache_salt: self.cache_salt.clone(),
            turn_end: None,
            constraint: None,
        }
    }
}

/// An empty salt separates nothing.
pub(crate) fn cache_salt(fields: &Fields) -> Result<Option<String>, ApiError> {
    let salt = fields.string("cache_salt")?;
    Ok(salt.filter(|salt| !salt.is_empty()).map(str::to_owned))
}

fn sampling(
    fields: &Fields,
    files: &ModelFiles,
    rules: &RequestRules,
) -> Result<SamplingParams, ApiError> {
    let default = |name: &str, otherwise: f32| match rules.generation_config {
        true => files.generation.number(name).unwrap_or(otherwise),
        false => otherwise,
    };
    let greedy = rules.generation_config
        && files.generation.sampling.get("do_sample") == Some(&Value::Bool(false));
    let number = |name: &str, bounds: Bounds| fields.number(name, bounds);
    let penalty = Bounds::closed(-2.0, 2.0);
    let unit = Bounds::closed(0.0, 1.0);
    let repetition = Bounds {
        low_open: true,
        ..Bounds::closed(0.0, 2.0)
    };
    let vocabulary = i64::try_from(files.vocabulary.len()).unwrap_or(i64::MAX);
    let top_k = match fields.integer("top_k", -1, vocabulary)? {
        Some(k) => k as f32,
        None => default("top_k", 0.0),
    };
    Ok(SamplingParams {
        temperature: number("temperature", Bounds::closed(0.0, 2.0))?
            .unwrap_or_else(|| default("temperature", if greedy { 0.0 } else { 1.0 })),
        top_p: number("top_p", unit)?.unwrap_or_else(|| default("top_p", 1.0)),
        top_k: top_k.max(0.0) as u32,
        min_p: number("min_p", unit)?.unwrap_or_else(|| default("min_p", 0.0)),
        repetition_penalty: number("repetition_penalty", repetition)?
            .unwrap_or_else(|| default("repetition_penalty", 1.0)),
        presence_penalty: number("presence_penalty", penalty)?.unwrap_or(0.0),
        frequency_penalty: number("frequency_penalty", penalty)?.unwrap_or(0.0),
        logit_bias: logit_bias(fields, files.vocabulary.len())?,
        seed: match fields.integer("seed", i64::MIN, i64::MAX)? {
            Some(seed) => seed as u64,
            None => fresh_seed(rules),
        },
        choice: 0,
    })
}

/// 64 bits nobody chose; with a base given at start they repeat from run to run.
fn fresh_seed(rules: &RequestRules) -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    match rules.seed {
        // Golden-ratio steps keep the seeds of neighbouring requests far apart.
        Some(base) => {
            let index = NEXT.fetch_add(1, Ordering::Relaxed);
            base.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        }
        None => RandomState::new().hash_one(0),
    }
}

fn logit_bias(fields: &Fields, vocabulary: usize) -> Result<Vec<(u32, f32)>, ApiError> {
    let Some(object) = fields.object("logit_bias")? else {
        return Ok(Vec::new());
    };
    let entries = object.entries();
    if entries.len() > BIAS_MAX {
        return Err(too_long(object.own_path(), entries.len(), BIAS_MAX));
    }
    let mut biases = Vec::with_capacity(entries.len());
    for (key, value) in entries {
        let path = object.path(&shorten(key));
        let id = key
            .parse::<u32>()
            .ok()
            .filter(|id| id.to_string() == *key && (*id as usize) < vocabulary);
        let Some(id) = id else {
            let message = format!(
                "Invalid key '{}' of 'logit_bias': expected a token id from 0 to {}.",
                shorten(key),
                vocabulary.saturating_sub(1)
            );
            return Err(ApiError::invalid(
                "invalid_value",
                object.own_path(),
                message,
            ));
        };
        let bias = number_at(value, &path, Bounds::closed(-100.0, 100.0))?;
        biases.push((
            id,
            if bias <= BIAS_BAN {
                f32::NEG_INFINITY
            } else {
                bias
            },
        ));
    }
    Ok(biases)
}

/// How urgent a request is, where requests may say so.
pub(crate) fn priority(fields: &Fields, rules: &RequestRules) -> Result<i64, ApiError> {
    let given = match rules.priority {
        true => fields.integer("priority", i64::MIN, i64::MAX)?,
        false => None,
    };
    Ok(given.unwrap_or(0))
}

/// The newer name wins; `-1` of the older one means no limit.
fn max_tokens(fields: &Fields) -> Result<Option<usize>, ApiError> {
    let newer = fields.count("max_completion_tokens", 1)?;
    // What does not count must still be right.
    let older = match fields.integer("max_tokens", i64::MIN, i64::MAX)? {
        Some(-1) => None,
        _ => fields.count("max_tokens", 1)?,
    };
    Ok(newer.or(older))
}

fn text_options(
    fields: &Fields,
    files: &ModelFiles,
    rules: &RequestRules,
) -> Result<TextOptions, ApiError> {
    let ignore_end = fields.boolean("ignore_eos")?.unwrap_or(false);
    let include_stop = match fields.boolean("include_stop_str_in_output")? {
        Some(value) => Some(value),
        None => fields.boolean("no_stop_trim")?,
    };
    Ok(TextOptions {
        split: Split::Off,
        tools: None,
        stops: stop_strings(fields, rules.stop_strings_max)?,
        include_stop: include_stop.unwrap_or(false),
        end_ids: match ignore_end {
            true => Vec::new(),
            false => files.generation.end_ids.clone(),
        },
        stop_ids: stop_token_ids(fields, files.vocabulary.len())?,
        skip_special: fields.boolean("skip_special_tokens")?.unwrap_or(true),
        min_tokens: fields.count("min_tokens", 0)?.unwrap_or(0),
    })
}

fn stop_strings(fields: &Fields, strings_max: usize) -> Result<Vec<String>, ApiError> {
    let listed = match fields.get("stop") {
        None => return Ok(Vec::new()),
        Some(value @ Value::String(_)) => std::slice::from_ref(value),
        Some(Value::Array(_)) => fields.array("stop", strings_max)?.unwrap_or_default(),
        Some(other) => {
            return Err(wrong_type("stop", "a string or an array of strings", other));
        }
    };
    let mut stops = Vec::with_capacity(listed.len());
    for (index, value) in listed.iter().enumerate() {
        let path = format!("stop.[{index}]");
        let Value::String(stop) = value else {
            return Err(wrong_type(&path, "a string", value));
        };
        if stop.is_empty() {
            let message = format!("Invalid '{path}': a stop string cannot be empty.");
            return Err(ApiError::invalid("invalid_value", path, message));
        }
        if stop.len() > STOP_BYTES_MAX {
            let message = format!(
                "Invalid '{path}': expected at most {STOP_BYTES_MAX} bytes, got {}.",
                stop.len()
            );
            return Err(ApiError::invalid("string_above_max_length", path, message));
        }
        stops.push(stop.clone());
    }
    Ok(stops)
}

fn stop_token_ids(fields: &Fields, vocabulary: usize) -> Result<Vec<u32>, ApiError> {
    let listed = fields.array("stop_token_ids", STOP_IDS_MAX)?;
    listed
        .unwrap_or_default()
        .iter()
        .enumerate()
        .map(|(index, value)| token_id(value, &format!("stop_token_ids.[{index}]"), vocabulary))
        .collect()
}

/// A token id below `vocabulary`.
pub fn token_id(value: &Value, path: &str, vocabulary: usize) -> Result<u32, ApiError> {
    let number = integer_at(value, path)?;
    u32::try_from(number)
        .ok()
        .filter(|&id| (id as usize) < vocabulary)
        .ok_or_else(|| {
            let message = format!(
                "Invalid '{path}': expected a token id from 0 to {}, got {number}.",
                vocabulary.saturating_sub(1)
            );
            ApiError::invalid("invalid_value", path, message)
        })
}
