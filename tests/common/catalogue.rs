//! Requests that share beginnings, as those of many users do, and what each gets alone.

use std::collections::HashMap;

use engine::{
    Engine, EngineConfig, Finish, FinishReason, Request, RequestUpdate, SamplingParams,
    TokenLogprob,
};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use server::model_files::ModelFiles;
use server::template::Conversation;

use crate::pair::{self, Mode, Pair, held_out, request, run};
use crate::residues::Residues;

/// Some requests run into it.
pub const CONTEXT: usize = 256;
/// Longer prompts are left out.
const PROMPT_MAX: usize = 225;
const TURNS: usize = 4;
/// Tokens of an answer that a conversation goes on from at most.
const ANSWER_MAX: usize = 24;

/// Names a request: its prompt, and what it asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    pub family: usize,
    pub prompt: usize,
    pub variant: u64,
}

#[derive(Debug)]
struct Prompt {
    ids: Vec<u32>,
    turn_end: Option<usize>,
}

/// Prompts of a family begin alike. Those of the first one do not; they end shortly before a page
/// does.
pub struct Catalogue {
    families: Vec<Vec<Prompt>>,
    end_ids: Vec<u32>,
    variants: u64,
    vocab: u32,
}

impl Catalogue {
    /// `engine`: gives the answers that conversations go on from.
    pub fn new(files: &ModelFiles, engine: &Engine, variants: u64) -> Self {
        let texts = Texts { files };
        let questions = texts.questions();
        let mut families = vec![texts.short(&questions)];
        for asked in questions.chunks(TURNS).take(5) {
            families.push(texts.conversation(engine, asked));
        }
        for (number, rules) in questions.chunks(5).take(4).enumerate() {
            let asked = questions.iter().skip(40 + 5 * number).take(5);
            families.push(texts.under_rules(&rules.join("\n"), asked));
        }
        let long = texts.under_rules(&questions[..12].join("\n"), questions.iter().take(1));
        let long = &long[0].ids;
        // Ends at and beside the places where pages end.
        let ends = [1, 2, 63, 64, 65, 127, 128, 129, 192, 193];
        let cut = ends.map(|length| texts.prompt(long[..length].to_vec()));
        families.push(cut.into());
        for family in &mut families {
            family.retain(|prompt| prompt.ids.len() <= PROMPT_MAX);
        }
        Catalogue {
            families,
            end_ids: files.generation.end_ids.clone(),
            variants,
            vocab: u32::try_from(files.vocabulary.len()).expect("a small vocabulary"),
        }
    }

    pub fn families(&self) -> usize {
        self.families.len()
    }

    /// Any request of a family, for a long answer or a short one.
    pub fn draw(&self, family: usize, long: bool, random: &mut Pcg64) -> Key {
        Key {
            family,
            prompt: random.random_range(0..self.families[family].len()),
            variant: 2 * random.random_range(0..self.variants) + u64::from(long),
        }
    }

    /// The request of this name, always the same.
    pub fn request(&self, key: Key) -> Request {
        let prompt = &self.families[key.family][key.prompt];
        let name = (key.family as u64) << 40 | (key.prompt as u64) << 20 | key.variant;
        let random = &mut Pcg64::seed_from_u64(name);
        let long = key.variant % 2 == 1;
        let max_tokens = match long {
            true => random.random_range(70..110),
            false => random.random_range(1..20),
        };
        let ends: &[u32] = match random.random_bool(if long { 0.1 } else { 0.5 }) {
            true => &self.end_ids,
            false => &[],
        };
        let mut sampling = self.sampling(random);
        if long && random.random_bool(0.5) {
            // Drafts are accepted, so that it is not long in coming.
            sampling.temperature = 0.0;
        }
        let mut request = request(&prompt.ids, sampling, ends, max_tokens);
        request.turn_end = prompt.turn_end;
        if random.random_bool(0.4) {
            request.logprobs = Some(random.random_range(0..6));
        }
        if random.random_bool(0.2) {
            let ids = prompt.ids.iter().copied();
            request.stop_ids.extend(ids.step_by(7).take(20));
            request.min_tokens = random.random_range(0..24);
        }
        if random.random_bool(0.15) {
            let (modulus, at) = (random.random_range(2..5), random.random_range(1..40));
            let constraint = Residues::new(modulus, at, random.random_bool(0.5));
            request.constraint = Some(Box::new(constraint));
        }
        if random.random_bool(0.12) {
            request.prompt_logprobs = Some(random.random_range(0..4));
            if random.random_bool(0.3) {
                request.max_tokens = 0;
            }
        }
        request
    }

    fn sampling(&self, random: &mut Pcg64) -> SamplingParams {
        let temperatures = [0.0, 0.0, 0.8, 1.5];
        let mut sampling = SamplingParams {
            temperature: *temperatures.choose(random).expect("there are some"),
            seed: random.random(),
            ..SamplingParams::default()
        };
        if random.random_bool(0.3) {
            sampling.repetition_penalty = random.random_range(0.9..1.4);
            sampling.presence_penalty = random.random_range(-0.5..1.0);
            sampling.frequency_penalty = random.random_range(-0.2..0.6);
        }
        if random.random_bool(0.3) {
            sampling.top_p = random.random_range(0.5..1.0);
            sampling.top_k = random.random_range(1..60);
            sampling.min_p = random.random_range(0.0..0.1);
        }
        if random.random_bool(0.2) {
            let bias = |index: usize| {
                let value = [-3.0, 2.0, 4.0, f32::NEG_INFINITY][index % 4];
                (random.random_range(0..self.vocab), value)
            };
            sampling.logit_bias = (0..40).map(bias).collect();
            sampling.logit_bias.sort_by_key(|bias| bias.0);
            sampling.logit_bias.dedup_by_key(|bias| bias.0);
        }
        sampling
    }
}

/// Makes prompts.
struct Texts<'a> {
    files: &'a ModelFiles,
}

impl Texts<'_> {
    fn questions(&self) -> Vec<String> {
        let decode = |prompt: pair::HeldOut| prompt.text;
        held_out(self.files, 20).into_iter().map(decode).collect()
    }

    fn prompt(&self, ids: Vec<u32>) -> Prompt {
        let vocabulary = &self.files.vocabulary;
        let turn_end = (ids.iter())
            .rposition(|&id| vocabulary.is_added(id) && vocabulary.bytes(id) == b"<|im_start|>");
        Prompt { ids, turn_end }
    }

    fn render(&self, messages: &[serde_json::Value]) -> Prompt {
        let conversation = Conversation {
            messages: messages.to_vec(),
            generation_prompt: true,
            ..Conversation::default()
        };
        let template = self.files.template.as_ref().expect("the pair has one");
        let text = template.render(&conversation).expect("it renders");
        self.prompt(self.files.vocabulary.encode(&text).expect("it is text"))
    }

    /// Prompts whose answers begin in their first page and go on in the second.
    fn short(&self, questions: &[String]) -> Vec<Prompt> {
        let pairs = questions.chunks(2).take(20).zip(38..);
        let prompt = |(pair, length): (&[String], usize)| {
            let text = pair.join(" ").repeat(3);
            let question = serde_json::json!({"role": "user", "content": text});
            let ids = self.render(&[question]).ids;
            self.prompt(ids[..length.min(ids.len())].to_vec())
        };
        pairs.map(prompt).collect()
    }

    /// The prompts of a conversation's turns.
    fn conversation(&self, engine: &Engine, asked: &[String]) -> Vec<Prompt> {
        let mut messages = Vec::new();
        let mut prompts = Vec::new();
        for question in asked {
            messages.push(serde_json::json!({"role": "user", "content": question}));
            let prompt = self.render(&messages);
            if prompt.ids.len() > PROMPT_MAX {
                break;
            }
            let ends = &self.files.generation.end_ids;
            let asked = request(&prompt.ids, SamplingParams::default(), ends, ANSWER_MAX);
            let answer = run(engine, &[asked], 1, None).remove(0).tokens;
            let text = self.files.vocabulary.decode(&answer, true);
            messages.push(serde_json::json!({"role": "assistant", "content": text}));
            prompts.push(prompt);
        }
        prompts
    }

    /// Questions under a common system prompt.
    fn under_rules<'q>(&self, rules: &str, asked: impl Iterator<Item = &'q String>) -> Vec<Prompt> {
        let rules = serde_json::json!({"role": "system", "content": rules});
        let ask = |question: &String| {
            let question = serde_json::json!({"role": "user", "content": question});
            self.render(&[rules.clone(), question])
        };
        asked.map(ask).collect()
    }
}

/// A log-probability and its alternatives, bit by bit.
type Logprob = (u32, Vec<(u32, u32)>);

fn bits(logprob: &TokenLogprob) -> Logprob {
    let top = logprob.top.iter().map(|(id, value)| (*id, value.to_bits()));
    (logprob.logprob.to_bits(), top.collect())
}

/// All that a caller is told of a request, without times and counters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub tokens: Vec<(u32, Option<Logprob>)>,
    pub prompt_logprobs: Vec<Logprob>,
    pub reason: Option<FinishReason>,
}

impl Answer {
    /// Takes news in.
    pub fn hear(&mut self, update: &RequestUpdate) {
        let tokens = update.tokens.iter();
        let token = |token: &engine::TokenUpdate| (token.id, token.logprob.as_ref().map(bits));
        self.tokens.extend(tokens.map(token));
        self.prompt_logprobs
            .extend(update.prompt_logprobs.iter().map(bits));
        if let Some(Finish { reason, .. }) = &update.finish {
            self.reason = Some(reason.clone());
        }
    }

    /// Whether this is the beginning of a whole answer.
    pub fn begins(&self, whole: &Answer) -> bool {
        whole.tokens.starts_with(&self.tokens)
            && whole.prompt_logprobs.starts_with(&self.prompt_logprobs)
    }
}

/// Plain decoding of one request after the other, without a cache.
pub struct Alone {
    pub engine: Engine,
    known: HashMap<Key, Answer>,
}

impl Alone {
    pub fn start(pair: &Pair) -> Self {
        Alone {
            engine: pair.start_with(EngineConfig {
                context_length: Some(CONTEXT),
                share_rows: false,
                skip_warmup: true,
                ..pair::config(Mode::Plain, 1)
            }),
            known: HashMap::new(),
        }
    }

    /// What the request gets alone; computed once.
    pub fn answer(&mut self, catalogue: &Catalogue, key: Key) -> &Answer {
        self.known.entry(key).or_insert_with(|| {
            let handle = &self.engine.handle;
            let id = handle.submit(catalogue.request(key)).expect("it is valid");
            let mut answer = Answer::default();
            while answer.reason.is_none() {
                let step = self.engine.outputs.recv().expect("the engine runs");
                for update in step.updates {
                    assert_eq!(update.id, id);
                    answer.hear(&update);
                }
            }
            answer
        })
    }

    /// Distinct requests so far.
    pub fn count(&self) -> usize {
        self.known.len()
    }
}
