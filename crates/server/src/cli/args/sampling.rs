//! How `generate` chooses tokens.

use clap::Args;
use engine::SamplingParams;

use super::speculation::number;

/// Sampling flags.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Tokens to generate at most
    #[arg(
        long,
        value_name = "N",
        default_value = "256",
        value_parser = |text: &str| number(text, 1, usize::MAX)
    )]
    pub max_tokens: usize,

    /// 0 takes the most likely token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temperature: f32,

    /// Keep the smallest set of tokens whose probability reaches P
    #[arg(long, value_name = "P", default_value_t = 1.0)]
    pub top_p: f32,

    /// Keep the K most likely tokens; 0 = all
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub top_k: u32,

    /// Drop tokens less likely than M times the most likely one
    #[arg(long, value_name = "M", default_value_t = 0.0)]
    pub min_p: f32,

    /// Makes tokens of prompt and answer less likely; 1 = off
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    pub repetition_penalty: f32,

    /// Subtracted once from tokens of the answer
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub presence_penalty: f32,

    /// Subtracted from tokens of the answer for every time they occur
    #[arg(
        long,
        value_name = "X",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    pub frequency_penalty: f32,

    /// Added to the logit of a token id; `-inf` bans it. Can be given several times
    #[arg(long, value_name = "ID=X", value_parser = bias)]
    pub logit_bias: Vec<(u32, f32)>,

    /// Seed of the random numbers [default: a new one]
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,

    /// Log-probabilities of the tokens and of the K most likely ones
    #[arg(long, value_name = "K")]
    pub top_logprobs: Option<usize>,

    /// Go on after the model's end of turn
    #[arg(long)]
    pub ignore_eos: bool,
}

impl SamplingArgs {
    /// The options of the engine, with this seed where none was given.
    pub fn params(&self, fresh_seed: u64) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed.unwrap_or(fresh_seed),
            choice: 0,
        }
    }
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once(['=', ':']);
    let read = parts.and_then(|(id, value)| Some((id.parse().ok()?, value.parse().ok()?)));
    read.ok_or_else(|| "expected a token id, `=` and a number, as in 42=-1.5".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bias_is_an_id_and_a_number() {
        assert_eq!(bias("42=-1.5").unwrap(), (42, -1.5));
        assert_eq!(bias("7:-inf").unwrap(), (7, f32::NEG_INFINITY));
        for wrong in ["", "42", "=1", "x=1", "1=x", "-1=2", "4294967296=0"] {
            assert!(bias(wrong).is_err(), "{wrong}");
        }
    }
}
