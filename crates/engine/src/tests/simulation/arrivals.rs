//! Requests by a law: short and long ones, beginnings that others had, all kinds of options.

use model::Shape;
use ops::PAGE_TOKENS;
use rand::RngExt;
use rand_pcg::Pcg64;

use super::setting::Setting;
use crate::shape::Drafting;
use crate::tests::constraints::{Cycle, Turn};
use crate::tests::harness::{VOCAB, request};
use crate::{ModelInfo, Request};

/// Conversations that later prompts go on from.
const PAST_MAX: usize = 12;

/// Where prompts come from.
#[derive(Default)]
pub(super) struct Arrivals {
    /// Prompts, some with outputs, and their salts.
    past: Vec<(Option<String>, Vec<u32>)>,
    systems: Vec<Vec<u32>>,
}

fn tokens(random: &mut Pcg64, count: usize) -> Vec<u32> {
    let token = |_| random.random_range(0..VOCAB as u32);
    (0..count).map(token).collect()
}

impl Arrivals {
    /// What somebody said or heard: others may go on from there.
    pub(super) fn remember(&mut self, random: &mut Pcg64, salt: Option<String>, history: Vec<u32>) {
        if self.past.len() < PAST_MAX {
            self.past.push((salt, history));
        } else {
            self.past[random.random_range(0..PAST_MAX)] = (salt, history);
        }
    }

    fn prompt(&mut self, random: &mut Pcg64, setting: &Setting) -> (Option<String>, Vec<u32>) {
        let longest = setting.setup.context - 1;
        let salts = [None, None, None, Some(""), Some("a"), Some("b")];
        let salt = salts[random.random_range(0..salts.len())].map(String::from);
        if self.systems.is_empty() {
            for _ in 0..2 {
                let length = random.random_range(1..=longest);
                self.systems.push(tokens(random, length));
            }
        }
        let (salt, mut prompt) = match random.random_range(0..10) {
            _ if random.random_bool(setting.length) => {
                let length = random.random_range(1..=longest);
                (salt, tokens(random, length))
            }
            0..5 if !self.past.is_empty() => {
                let (salt, past) = &self.past[random.random_range(0..self.past.len())];
                let kept = match random.random_bool(0.7) {
                    true => past.len(),
                    false => random.random_range(1..=past.len()),
                };
                (salt.clone(), past[..kept].to_vec())
            }
            5 | 6 => (
                salt,
                self.systems[random.random_range(0..self.systems.len())].clone(),
            ),
            _ => (salt, Vec::new()),
        };
        let more = match random.random_bool(0.2) {
            true => random.random_range(0..150),
            false => random.random_range(0..40),
        };
        prompt.extend(tokens(random, more));
        prompt.truncate(longest);
        // Prompts that end where a page does are beginnings of others at times.
        if random.random_bool(0.1) {
            prompt.truncate(prompt.len() / PAGE_TOKENS * PAGE_TOKENS);
        }
        if prompt.is_empty() {
            prompt.push(random.random_range(0..VOCAB as u32));
        }
        (salt, prompt)
    }

    fn one(&mut self, random: &mut Pcg64, setting: &Setting, info: &ModelInfo) -> Request {
        let (cache_salt, prompt) = self.prompt(random, setting);
        let max_tokens = match random.random_range(0..10) {
            0..8 if random.random_bool(setting.talk) => random.random_range(60..600),
            0 => 1,
            1..5 => random.random_range(1..=24),
            5..9 => random.random_range(1..=120),
            _ => usize::MAX,
        };
        let mut request = Request {
            turn_end: (random.random_bool(0.6)).then(|| random.random_range(0..=prompt.len())),
            prompt,
            cache_salt,
            max_tokens,
            logprobs: random.random_bool(0.1).then_some(2),
            trace: random.random_bool(0.1),
            speculative: random.random_bool(0.85),
            ..request(1, 1, random.random_range(0..1 << 40))
        };
        if random.random_bool(0.3) {
            request.priority = random.random_range(-2..=2);
        }
        if random.random_bool(0.3) {
            let count = random.random_range(1..4);
            request.stop_ids = tokens(random, count);
            request.min_tokens = random.random_range(0..20);
        }
        if random.random_bool(0.1) {
            request.prompt_logprobs = Some(random.random_range(0..3));
            request.max_tokens *= usize::from(random.random_bool(0.6));
        }
        if random.random_bool(0.1) {
            request.shape = Some(own_shape(random, setting, info));
        }
        if random.random_bool(0.1) && request.max_tokens > 0 {
            request.constraint = Some(Box::new(cycle(random)));
        }
        request
    }

    /// Requests that come together: one, or several that differ in their seeds, or in everything.
    pub(super) fn group(
        &mut self,
        random: &mut Pcg64,
        setting: &Setting,
        info: &ModelInfo,
    ) -> Vec<Request> {
        let first = self.one(random, setting, info);
        let mut group = vec![first];
        match random.random_range(0..10) {
            0 => {
                for _ in 0..random.random_range(1..5) {
                    let mut next = group[0].clone();
                    next.sampling.seed = random.random_range(0..1 << 40);
                    group.push(next);
                }
            }
            1 => {
                for _ in 0..random.random_range(1..5) {
                    let next = self.one(random, setting, info);
                    group.push(next);
                }
            }
            _ => {}
        }
        let last = &group[group.len() - 1];
        let (salt, prompt) = (last.cache_salt.clone(), last.prompt.clone());
        if random.random_bool(0.5) {
            self.remember(random, salt, prompt);
        }
        group
    }
}

fn own_shape(random: &mut Pcg64, setting: &Setting, info: &ModelInfo) -> Shape {
    let most = info.tree_rows_max - 1;
    if setting.setup.drafting == Drafting::Off || random.random_bool(0.2) {
        return Shape::Plain;
    }
    match random.random_bool(0.5) {
        true => Shape::Chain(random.random_range(1..=most.min(info.chain_drafts))),
        false => Shape::Tree(random.random_range(1..=most)),
    }
}

fn cycle(random: &mut Pcg64) -> Cycle {
    let turns = [
        Turn::Ends,
        Turn::IsReleased,
        Turn::Fails,
        Turn::IsStuck,
        Turn::MayEnd,
    ];
    let turn = turns[random.random_range(0..turns.len())];
    Cycle::new(random.random_range(1..5), random.random_range(1..60), turn)
}
