//! Sampling options of a request and their device form.

/// How the next token is chosen. The order in which the options act is `sample`'s.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Below 1e-5: the most likely token.
    pub temperature: f32,
    /// Keep the smallest set of tokens whose mass reaches this; 1 = off, 0 = most likely token.
    pub top_p: f32,
    /// Keep the k most likely tokens; 0 = off.
    pub top_k: u32,
    /// Drop tokens less likely than this times the most likely one; 0 = off.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens in prompt or output; 1 = off.
    pub repetition_penalty: f32,
    /// Subtracted once from tokens already emitted; 0 = off.
    pub presence_penalty: f32,
    /// Subtracted per earlier emission; 0 = off.
    pub frequency_penalty: f32,
    /// Added to the logits of these ids; `f32::NEG_INFINITY` bans. At most `LOGIT_BIAS_MAX`.
    pub logit_bias: Vec<(u32, f32)>,
    /// Key of the random numbers.
    pub seed: u64,
    /// Which of several answers to one prompt this is; second word of the counter.
    pub choice: u32,
}

impl Default for SamplingParams {
    /// Greedy, nothing else.
    fn default() -> Self {
        SamplingParams {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
            choice: 0,
        }
    }
}

/// [`SamplingParams`] and the limits of a request as one slot of a device table.
#[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct SamplingRow {
    /// See [`SamplingParams::temperature`].
    pub temperature: f32,
    /// See [`SamplingParams::top_p`].
    pub top_p: f32,
    /// See [`SamplingParams::min_p`].
    pub min_p: f32,
    /// See [`SamplingParams::repetition_penalty`].
    pub repetition_penalty: f32,
    /// See [`SamplingParams::presence_penalty`].
    pub presence_penalty: f32,
    /// See [`SamplingParams::frequency_penalty`].
    pub frequency_penalty: f32,
    /// See [`SamplingParams::top_k`].
    pub top_k: u32,
    /// Low word of the seed.
    pub seed_low: u32,
    /// High word of the seed.
    pub seed_high: u32,
    /// See [`SamplingParams::choice`].
    pub choice: u32,
    /// Valid entries of the slot's bias list.
    pub bias_count: u32,
    /// Valid entries of the slot's stop ids.
    pub stop_count: u32,
    /// Stop ids are banned until this many tokens were emitted.
    pub tokens_min: u32,
    /// The sequence ends after this many tokens.
    pub tokens_max: u32,
    /// The sequence ends when prompt and output together have this many tokens.
    pub context_max: u32,
    /// 0 = no log-probabilities; k + 1 = the token's and the k most likely ones'.
    pub logprobs: u32,
}

impl SamplingRow {
    /// The most likely token is taken and no random number is drawn.
    pub fn is_greedy(&self) -> bool {
        self.temperature < 1e-5 || self.top_k == 1 || self.top_p <= 0.0
    }
}
