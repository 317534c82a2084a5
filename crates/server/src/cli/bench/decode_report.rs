//! What `spinney bench decode` prints: every run and means, as they are measured.

use std::fmt::Write;

use serde_json::{Value, json};

use super::decode::Run;
use super::modes;
use super::plot::{Mark, Panel, Plot, Series};
use super::prompts::Prompt;
use super::{caveats, law, show, write_svg};
use crate::cli::args::bench::{DecodeBenchArgs, DecodeMode};
use crate::cli::exit::Failure;
use crate::cli::print;

/// Characters of a prompt that are shown.
const PROMPT_SHOWN: usize = 100;

/// What the engine turned out to be.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Name or path of the target.
    pub model_path: String,
    /// Where it runs.
    pub device: String,
    /// Candidates per depth.
    pub topk: usize,
    /// Ids that are ranked and sampled.
    pub vocabulary: usize,
    /// Drafts of the whole block of the drafter.
    pub chain_drafts: usize,
}

/// All runs of one prompt in one mode.
#[derive(Clone, Debug)]
pub struct Answers {
    /// The mode.
    pub mode: DecodeMode,
    /// In the order they ran.
    pub runs: Vec<Run>,
}

struct Asked {
    prompt: Prompt,
    answers: Vec<Answers>,
}

/// Everything measured so far.
pub struct Report<'a> {
    args: &'a DecodeBenchArgs,
    facts: Facts,
    asked: Vec<Asked>,
}

impl Run {
    /// Tokens behind the first per second between the first and the last; `None` where there is
    /// one token only.
    fn rate(&self) -> Option<f64> {
        let decoded = self
            .tokens
            .len()
            .checked_sub(1)
            .filter(|&count| count > 0)?;
        Some(decoded as f64 * 1e3 / self.stats.decode_ms)
    }

    /// From the request to its first token.
    fn first_token_ms(&self) -> f64 {
        self.stats.queue_ms + self.stats.prefill_ms
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (mut sum, mut count) = (0.0, 0);
    values.for_each(|value| {
        sum += value;
        count += 1;
    });
    (count > 0).then(|| sum / f64::from(count))
}

impl Answers {
    fn rate(&self) -> Option<f64> {
        mean(self.runs.iter().filter_map(Run::rate))
    }

    fn first_token_ms(&self) -> Option<f64> {
        mean(self.runs.iter().map(Run::first_token_ms))
    }

    fn steps(&self) -> usize {
        self.runs.iter().map(|run| run.stats.steps).sum()
    }

    /// Tokens behind the first per step.
    fn tokens_per_step(&self) -> Option<f64> {
        let decoded: usize = self.runs.iter().map(|run| run.tokens.len() - 1).sum();
        (self.steps() > 0).then(|| decoded as f64 / self.steps() as f64)
    }

    /// `[k]` = steps of all runs with exactly k accepted drafts.
    fn histogram(&self) -> Vec<usize> {
        let mut sums: Vec<usize> = Vec::new();
        for run in &self.runs {
            let counts = &run.stats.acceptance_histogram;
            sums.resize(sums.len().max(counts.len()), 0);
            sums.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n);
        }
        sums
    }

    /// Share of the steps that accepted a draft of depth 1, 2, ...
    fn by_depth(&self) -> Vec<f64> {
        let histogram = self.histogram();
        let deeper = |depth: usize| histogram[depth..].iter().sum::<usize>() as f64;
        let steps = self.steps().max(1) as f64;
        (1..histogram.len())
            .map(|depth| deeper(depth) / steps)
            .collect()
    }
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

impl<'a> Report<'a> {
    pub fn new(args: &'a DecodeBenchArgs, facts: Facts) -> Self {
        Report {
            args,
            facts,
            asked: Vec::new(),
        }
    }

    fn simulates(&self) -> bool {
        self.args.simulation.simulate_acceptance.is_some()
    }

    /// The first line.
    pub fn begin(&self) -> Result<(), Failure> {
        let args = self.args;
        let mut text = format!(
            "{}{} on {}, one engine for all modes, {} candidates per depth, temperature 0, at most \
             {} tokens, {} runs behind a warm-up",
            self.caveats(),
            self.facts.model_path,
            self.facts.device,
            self.facts.topk,
            args.max_tokens,
            args.runs,
        );
        if args.ignore_eos || self.simulates() {
            text += ", end of turn ignored";
        }
        if args.model.disable_cuda_graph {
            text += ", without graphs";
        }
        show(args.json, &(text + "\n"))
    }

    /// The prompt of the answers that follow.
    pub fn begin_prompt(&mut self, prompt: &Prompt) -> Result<(), Failure> {
        let text = prompt.text.split_whitespace().collect::<Vec<_>>().join(" ");
        let mut shown: String = text.chars().take(PROMPT_SHOWN).collect();
        if shown.len() < text.len() {
            shown += "...";
        }
        self.asked.push(Asked {
            prompt: prompt.clone(),
            answers: Vec::new(),
        });
        let text = format!(
            "\nprompt {} ({} tokens): {shown}\nmode       tokens  mean tok/s  tok/step  first ms  steps by accepted drafts; tok/s of every run\n",
            self.asked.len(),
            prompt.ids.len(),
        );
        show(self.args.json, &text)
    }

    /// Keeps the answers to the last prompt in one mode, and shows them at once.
    pub fn add(&mut self, answers: Answers) -> Result<(), Failure> {
        let text = row(&answers);
        if let Some(asked) = self.asked.last_mut() {
            asked.answers.push(answers);
        }
        show(self.args.json, &text)
    }

    /// Means over prompts, the comparison of tokens; then the object and the plot, as far as they
    /// were asked for.
    pub fn finish(&self) -> Result<(), Failure> {
        show(self.args.json, &self.summary())?;
        if self.args.json {
            print(&format!("{}\n", self.object()))?;
        }
        match &self.args.svg {
            Some(path) => write_svg(path, &self.plot()),
            None => Ok(()),
        }
    }

    /// Whether every prompt had one answer in all runs of all modes; `None` where acceptance is
    /// simulated and tokens mean nothing.
    pub fn identical(&self) -> Option<bool> {
        let same = |asked: &Asked| {
            let mut runs = asked.answers.iter().flat_map(|answers| &answers.runs);
            let first = runs.next();
            runs.all(|run| first.is_none_or(|first| first.tokens == run.tokens))
        };
        (!self.simulates()).then(|| self.asked.iter().all(same))
    }

    fn caveats(&self) -> String {
        caveats(self.args.model.is_dummy(), &self.args.simulation)
    }

    fn modes(&self) -> Vec<DecodeMode> {
        let first = self.asked.first();
        first.map_or(Vec::new(), |asked| {
            asked.answers.iter().map(|answers| answers.mode).collect()
        })
    }

    /// All answers in a mode.
    fn of(&self, mode: DecodeMode) -> impl Iterator<Item = &Answers> {
        let all = self.asked.iter().flat_map(|asked| &asked.answers);
        all.filter(move |answers| answers.mode == mode)
    }

    fn summary(&self) -> String {
        let rate = |mode| mean(self.of(mode).filter_map(Answers::rate));
        let plain = rate(DecodeMode::Plain);
        let mut text =
            String::from("\nmean of the prompts\nmode            tok/s   x plain  tok/step\n");
        for mode in self.modes() {
            let own = rate(mode);
            let ratio = own.zip(plain).map(|(own, plain)| own / plain);
            let per_step = mean(self.of(mode).filter_map(Answers::tokens_per_step));
            let _ = writeln!(
                text,
                "{:10} {:>10} {:>9} {:>9}",
                modes::name(mode),
                number(own, 1),
                number(ratio, 2),
                number(per_step, 2),
            );
        }
        text += match self.identical() {
            Some(true) => "identical tokens: yes\n",
            Some(false) => "identical tokens: no\n",
            None => "identical tokens: not compared, acceptance is simulated\n",
        };
        text
    }

    fn object(&self) -> Value {
        let asked = self.asked.iter().map(|asked| {
            json!({
                "text": asked.prompt.text,
                "prompt_tokens": asked.prompt.ids.len(),
                "modes": asked.answers.iter().map(answers_object).collect::<Vec<_>>(),
            })
        });
        json!({
            "random_weights": self.args.model.is_dummy(),
            "simulated_acceptance": law(&self.args.simulation),
            "model_path": self.facts.model_path,
            "device": self.facts.device,
            "graphs": !self.args.model.disable_cuda_graph,
            "candidates": self.facts.topk,
            "vocabulary": self.facts.vocabulary,
            "max_tokens": self.args.max_tokens,
            "temperature": 0,
            "ignore_eos": self.args.ignore_eos || self.simulates(),
            "prompts": asked.collect::<Vec<_>>(),
            "identical_tokens": self.identical(),
        })
    }

    /// Tokens per second over nodes, a line for every prompt.
    fn plot(&self) -> Plot {
        let mut series = Vec::new();
        for (number, asked) in self.asked.iter().enumerate() {
            let of = |name: &str, mark, keep: &dyn Fn(DecodeMode) -> Option<usize>| Series {
                name: format!("prompt {}{name}", number + 1),
                mark,
                colour: number,
                points: (asked.answers.iter())
                    .filter_map(|a| Some((keep(a.mode)? as f64, a.rate()?)))
                    .collect(),
            };
            let trees = of(", plain and trees", Mark::Line, &|mode| match mode {
                DecodeMode::Plain => Some(0),
                DecodeMode::Tree(nodes) => Some(nodes),
                DecodeMode::Linear(_) | DecodeMode::Auto => None,
            });
            let whole = self.facts.chain_drafts;
            let chains = of(", linear", Mark::Dots, &|mode| match mode {
                DecodeMode::Linear(drafts) => Some(drafts.unwrap_or(whole)),
                _ => None,
            });
            let auto = of(", auto", Mark::Level, &|mode| {
                (mode == DecodeMode::Auto).then_some(0)
            });
            series.extend([trees, chains, auto]);
        }
        series.retain(|series: &Series| !series.points.is_empty());
        Plot {
            title: "Decoding, one request".to_owned(),
            subtitle: format!(
                "{}{} on {}, at most {} tokens, mean of {} runs",
                self.caveats(),
                self.facts.model_path,
                self.facts.device,
                self.args.max_tokens,
                self.args.runs,
            ),
            panels: vec![Panel {
                x_label: "budget: drafted nodes per step (0 = plain)".to_owned(),
                y_label: "tokens per second".to_owned(),
                series,
            }],
        }
    }
}

fn row(answers: &Answers) -> String {
    let counts: Vec<String> = (answers.histogram().iter().enumerate())
        .filter(|(_, count)| **count > 0)
        .map(|(accepted, count)| format!("{accepted}:{count}"))
        .collect();
    let rates: Vec<String> = (answers.runs.iter())
        .map(|run| number(run.rate(), 1))
        .collect();
    let tokens = answers.runs.first().map_or(0, |run| run.tokens.len());
    format!(
        "{:10} {tokens:6} {:>11} {:>9} {:>9}  {}; {}\n",
        modes::name(answers.mode),
        number(answers.rate(), 1),
        number(answers.tokens_per_step(), 2),
        number(answers.first_token_ms(), 1),
        counts.join(" "),
        rates.join(" "),
    )
}

fn answers_object(answers: &Answers) -> Value {
    let runs = answers.runs.iter().map(|run| {
        json!({
            "tokens": run.tokens.len(),
            "tokens_per_s": run.rate(),
            "first_token_ms": run.first_token_ms(),
            "decode_ms": run.stats.decode_ms,
            "steps": run.stats.steps,
            "drafted": run.stats.drafted,
            "accepted": run.stats.accepted,
        })
    });
    json!({
        "mode": modes::name(answers.mode),
        "runs": runs.collect::<Vec<_>>(),
        "mean_tokens_per_s": answers.rate(),
        "tokens_per_step": answers.tokens_per_step(),
        "mean_first_token_ms": answers.first_token_ms(),
        "acceptance_histogram": answers.histogram(),
        "acceptance_by_depth": answers.by_depth(),
    })
}
