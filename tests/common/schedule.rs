//! Random schedules: an engine of any mode and of any tightness, and requests that come and go.

use std::collections::HashMap;
use std::time::Duration;

use engine::{Engine, EngineConfig, Finish, PrefixCacheConfig, Request, RequestId, Shape};
use rand::RngExt;
use rand::seq::IndexedRandom;
use rand_pcg::Pcg64;

use crate::catalogue::{Answer, CONTEXT, Catalogue, Key};
use crate::pair::{self, Mode};

/// An engine that some schedules share.
#[derive(Debug)]
pub struct House {
    pub mode: Mode,
    pub config: EngineConfig,
    /// Many long answers in few pages.
    crowded: bool,
    /// What most requests are about.
    families: [usize; 2],
}

impl House {
    /// Every other one is crowded; the others have a cache, mostly a small one.
    pub fn draw(catalogue: &Catalogue, crowded: bool, random: &mut Pcg64) -> Self {
        let modes = [
            // A CPU pays for every row.
            (Mode::Plain, 4),
            (Mode::Linear, 4),
            (Mode::Tree(7), 5),
            (Mode::Tree(15), 3),
            (Mode::Tree(31), 1),
            (Mode::Tree(63), 1),
            (Mode::Auto, 1),
        ];
        let all = modes.iter();
        let all = all.flat_map(|&(mode, weight)| std::iter::repeat_n(mode, weight));
        let all: Vec<Mode> = all.collect();
        let mode = all[random.random_range(0..all.len())];
        let any = |random: &mut Pcg64| random.random_range(0..catalogue.families());
        // A pool holds many of the short prompts, until their answers grow.
        let families = match crowded {
            true if random.random_bool(0.7) => [0, 0],
            true => [0, any(random)],
            false => [any(random), any(random)],
        };
        let slots = match (mode, crowded) {
            // Its warm-up times as many sequences at once.
            (Mode::Auto, _) => random.random_range(2..4),
            (_, true) => random.random_range(3..7),
            (_, false) => random.random_range(1..5),
        };
        let mut pick = |values: &[usize]| *values.choose(random).expect("there are some");
        let prefill_chunk = pick(&[64, 128, 256, 512, 1024, 2048]);
        let spare = if crowded {
            [64, 64, 256]
        } else {
            [0, 128, 256]
        };
        let tokens_total = Some(CONTEXT + pick(&spare));
        let draft_batch_max = pick(&[0, 0, 0, 2]);
        let cache = PrefixCacheConfig {
            interval: pick(&[64, 64, 64, 128, 4096]),
            snapshots: Some(pick(&[1, 1, 2, 3, 8])),
            host_snapshots: pick(&[0, 2, 4, 8]),
            decoded: false,
        };
        let config = EngineConfig {
            context_length: Some(CONTEXT),
            tokens_total,
            prefill_chunk,
            draft_batch_max,
            topk_cap: random.random_bool(0.2).then_some(3),
            chain_drafts: random.random_bool(0.3).then_some(7),
            share_rows: random.random_bool(0.7),
            skip_warmup: mode != Mode::Auto,
            prefix_cache: (!crowded || random.random_bool(0.6)).then_some(cache),
            ..pair::config(mode, slots)
        };
        House {
            mode,
            config,
            crowded,
            families,
        }
    }

    /// A shape that requests may ask for here.
    fn shape(&self, random: &mut Pcg64) -> Shape {
        let chain = self.config.chain_drafts.unwrap_or(15);
        match self.mode {
            Mode::Plain => Shape::Plain,
            Mode::Linear => Shape::Chain(random.random_range(1..=chain)),
            Mode::Tree(budget) => match random.random_bool(0.3) {
                true => Shape::Chain(random.random_range(1..=chain.min(budget))),
                false => Shape::Tree(random.random_range(1..=budget)),
            },
            Mode::Auto => Shape::Tree(random.random_range(1..=63)),
        }
    }
}

/// How a request is ended early: after so many tokens.
#[derive(Clone, Copy, Debug)]
pub enum Leave {
    Abort(usize),
    /// And then so many of them count.
    Finish(usize, usize),
}

/// A request and when it comes.
#[derive(Clone, Debug)]
pub struct Visit {
    pub key: Key,
    pub request: Request,
    /// When this earlier one has emitted so many tokens, or has ended.
    after: Option<(usize, usize)>,
    pub leave: Option<Leave>,
}

/// Requests mostly of a few families.
pub fn draw_visits(catalogue: &Catalogue, house: &House, random: &mut Pcg64) -> Vec<Visit> {
    let any = |random: &mut Pcg64| random.random_range(0..catalogue.families());
    let (count, waiting) = match house.crowded {
        true => (random.random_range(4..8), 0.2),
        false => (random.random_range(3..8), 0.5),
    };
    let visit = |number: usize| {
        let family = match random.random_bool(0.85) {
            true => house.families[random.random_range(0..2)],
            false => any(random),
        };
        let long = random.random_bool(if house.crowded { 0.85 } else { 0.1 });
        let key = catalogue.draw(family, long, random);
        let mut request = catalogue.request(key);
        request.speculative = random.random_bool(0.9);
        request.priority = [0, 0, 0, -1, 1][random.random_range(0..5)];
        request.cache_salt = random.random_bool(0.1).then(|| "other".to_owned());
        request.shape = random.random_bool(0.2).then(|| house.shape(random));
        let waits = number > 0 && random.random_bool(waiting);
        Visit {
            key,
            request,
            after: waits.then(|| (random.random_range(0..number), random.random_range(0..15))),
            leave: match random.random_range(0..12) {
                0 => Some(Leave::Abort(random.random_range(0..20))),
                1 => {
                    let emitted = random.random_range(1..20);
                    Some(Leave::Finish(emitted, random.random_range(0..=emitted)))
                }
                _ => None,
            },
        }
    };
    (0..count).map(visit).collect()
}

/// What became of a visit.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    pub answer: Answer,
    pub finish: Option<Finish>,
    submitted: bool,
}

/// Lets all visits happen.
pub fn play(engine: &Engine, visits: &[Visit]) -> Vec<Heard> {
    let mut heard = vec![Heard::default(); visits.len()];
    let mut ids: HashMap<RequestId, usize> = HashMap::new();
    loop {
        for (number, visit) in visits.iter().enumerate() {
            let due = visit.after.is_none_or(|(other, tokens)| {
                heard[other].finish.is_some()
                    || heard[other].submitted && heard[other].answer.tokens.len() >= tokens
            });
            if due && !heard[number].submitted {
                let id = engine.handle.submit(visit.request.clone());
                ids.insert(id.expect("a request is valid"), number);
                heard[number].submitted = true;
            }
        }
        if heard.iter().all(|heard| heard.finish.is_some()) {
            return heard;
        }
        let step = engine.outputs.recv_timeout(Duration::from_secs(120));
        for update in step.expect("the engine goes on").updates {
            let number = ids[&update.id];
            let Heard { answer, finish, .. } = &mut heard[number];
            assert!(finish.is_none(), "news after the end");
            answer.hear(&update);
            *finish = update.finish;
            let emitted = answer.tokens.len();
            match visits[number].leave.filter(|_| finish.is_none()) {
                Some(Leave::Abort(after)) if emitted >= after => engine.handle.abort(update.id),
                Some(Leave::Finish(after, kept)) if emitted >= after => {
                    engine.handle.finish(update.id, kept);
                }
                _ => {}
            }
        }
    }
}
