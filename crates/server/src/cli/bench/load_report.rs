//! What `spinney bench load` prints: a table for every concurrency, and what `auto` is worth.

use std::fmt::Write;

use engine::ModelInfo;
use serde_json::{Map, Value, json};

use super::load::ignores_end;
use super::load_run::Run;
use super::plot::{Mark, Panel, Plot, Series};
use super::{caveats, law, modes, show, write_svg};
use crate::cli::args::bench::{DecodeMode, LoadBenchArgs};
use crate::cli::exit::Failure;
use crate::cli::print;

/// What `auto` should have of the best fixed mode, and of plain, at least.
const WANTED: (f64, f64) = (0.95, 1.0);
/// Shapes of a cell that are named.
const SHAPES_SHOWN: usize = 4;

/// All runs of one mode at one concurrency.
pub struct Cell {
    /// The mode.
    pub mode: DecodeMode,
    /// In the order they ran.
    pub runs: Vec<Run>,
}

/// A quantity over runs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let median = match values.len() {
            0 => f64::NAN,
            count if count % 2 == 1 => values[count / 2],
            count => (values[count / 2 - 1] + values[count / 2]) / 2.0,
        };
        Spread {
            median,
            min: values.first().copied().unwrap_or(f64::NAN),
            max: values.last().copied().unwrap_or(f64::NAN),
        }
    }

    fn text(&self, digits: usize) -> String {
        let Spread { median, min, max } = self;
        format!("{median:.digits$} ({min:.digits$}-{max:.digits$})")
    }

    fn object(&self) -> Value {
        json!({"median": self.median, "min": self.min, "max": self.max})
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The value that 99 of 100 do not exceed.
fn p99(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * 0.99).ceil() as usize;
    sorted
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or(f64::NAN)
}

impl Cell {
    pub fn new(mode: DecodeMode) -> Self {
        Cell {
            mode,
            runs: Vec::new(),
        }
    }

    fn spread(&self, value: impl Fn(&Run) -> f64) -> Spread {
        Spread::of(self.runs.iter().map(value))
    }

    fn rate(&self) -> Spread {
        self.spread(Run::tokens_per_s)
    }

    fn preemptions(&self) -> u64 {
        self.runs.iter().map(|run| run.preemptions).sum()
    }

    /// Share of the steps of all sequences and runs by shape, the most frequent first.
    fn shapes(&self) -> Vec<(String, f64)> {
        let mut sums: Vec<(String, f64)> = Vec::new();
        for (name, steps) in self.runs.iter().flat_map(|run| &run.shapes) {
            match sums.iter_mut().find(|sum| sum.0 == *name) {
                Some(sum) => sum.1 += *steps as f64,
                None => sums.push((name.clone(), *steps as f64)),
            }
        }
        let all: f64 = sums.iter().map(|sum| sum.1).sum();
        sums.iter_mut().for_each(|sum| sum.1 /= all);
        sums.sort_by(|a, b| b.1.total_cmp(&a.1));
        sums
    }

    fn row(&self) -> String {
        let shapes = self.shapes();
        let mut named: Vec<String> = (shapes.iter().take(SHAPES_SHOWN))
            .map(|(name, share)| format!("{name} {:.0} %", share * 100.0))
            .collect();
        if shapes.len() > SHAPES_SHOWN {
            named.push(format!("{} others", shapes.len() - SHAPES_SHOWN));
        }
        let rates: Vec<String> = (self.runs.iter())
            .map(|run| format!("{:.1}", run.tokens_per_s()))
            .collect();
        format!(
            "{:10} {:>24} {:8.2} {:9.1} {:>9.1} {:>9.1} {:>8.2} {:>8.2} {:>9}  {}; {}\n",
            modes::name(self.mode),
            self.rate().text(1),
            self.spread(Run::tokens_per_step).median,
            self.spread(Run::rows_per_step).median,
            self.spread(|run| mean(&run.first_ms)).median,
            self.spread(|run| p99(&run.first_ms)).median,
            self.spread(|run| mean(&run.token_ms)).median,
            self.spread(|run| p99(&run.token_ms)).median,
            self.preemptions(),
            named.join(", "),
            rates.join(" "),
        )
    }

    fn object(&self) -> Value {
        let shapes: Map<String, Value> = (self.shapes().into_iter())
            .map(|(name, share)| (name, share.into()))
            .collect();
        let rates: Vec<f64> = self.runs.iter().map(Run::tokens_per_s).collect();
        let preemptions: Vec<u64> = self.runs.iter().map(|run| run.preemptions).collect();
        let tokens: Vec<usize> = self.runs.iter().map(|run| run.tokens).collect();
        json!({
            "mode": modes::name(self.mode),
            "tokens_per_s": self.rate().object(),
            "runs_tokens_per_s": rates,
            "runs_tokens": tokens,
            "first_token_ms": {
                "mean": self.spread(|run| mean(&run.first_ms)).object(),
                "p99": self.spread(|run| p99(&run.first_ms)).object(),
            },
            "token_ms": {
                "mean": self.spread(|run| mean(&run.token_ms)).object(),
                "p99": self.spread(|run| p99(&run.token_ms)).object(),
            },
            "tokens_per_step": self.spread(Run::tokens_per_step).object(),
            "rows_per_step": self.spread(Run::rows_per_step).object(),
            "shapes": shapes,
            "runs_preemptions": preemptions,
        })
    }
}

/// `auto` beside the fixed modes of the same concurrency; ratios of the same round.
struct Verdict {
    best: DecodeMode,
    over_best: Spread,
    over_plain: Option<Spread>,
}

impl Verdict {
    /// `None` without `auto`, or without a fixed mode.
    fn of(cells: &[Cell]) -> Option<Self> {
        let auto = cells.iter().find(|cell| cell.mode == DecodeMode::Auto)?;
        let fixed = cells.iter().filter(|cell| cell.mode != DecodeMode::Auto);
        let best = fixed.max_by(|a, b| a.rate().median.total_cmp(&b.rate().median))?;
        let over = |other: &Cell| {
            let pairs = auto.runs.iter().zip(&other.runs);
            Spread::of(pairs.map(|(auto, other)| auto.tokens_per_s() / other.tokens_per_s()))
        };
        let plain = cells.iter().find(|cell| cell.mode == DecodeMode::Plain);
        Some(Verdict {
            best: best.mode,
            over_best: over(best),
            over_plain: plain.map(over),
        })
    }

    fn holds(&self) -> bool {
        self.over_best.median >= WANTED.0
            && self.over_plain.is_none_or(|ratio| ratio.median >= WANTED.1)
    }

    fn text(&self) -> String {
        let answer = |good| if good { "yes" } else { "no" };
        let mut text = format!(
            "auto / best fixed ({}) {}, wanted {:.2}: {}",
            modes::name(self.best),
            self.over_best.text(3),
            WANTED.0,
            answer(self.over_best.median >= WANTED.0),
        );
        if let Some(ratio) = self.over_plain {
            let _ = write!(
                text,
                "; auto / plain {}, wanted {:.2}: {}",
                ratio.text(3),
                WANTED.1,
                answer(ratio.median >= WANTED.1),
            );
        }
        text + "\n"
    }

    fn object(&self) -> Value {
        json!({
            "best_fixed": modes::name(self.best),
            "over_best_fixed": self.over_best.object(),
            "over_plain": self.over_plain.map(|ratio| ratio.object()),
            "holds": self.holds(),
        })
    }
}

/// Everything measured so far.
pub struct Report<'a> {
    args: &'a LoadBenchArgs,
    model_path: String,
    device: String,
    topk: usize,
    measured: Vec<(usize, Vec<Cell>)>,
}

impl<'a> Report<'a> {
    pub fn new(args: &'a LoadBenchArgs, model_path: String, info: &ModelInfo) -> Self {
        Report {
            args,
            model_path,
            device: info.device.clone(),
            topk: info.topk,
            measured: Vec::new(),
        }
    }

    fn place(&self) -> String {
        let caveats = caveats(self.args.model.is_dummy(), &self.args.simulation);
        format!("{caveats}{} on {}", self.model_path, self.device)
    }

    /// The first line.
    pub fn begin(&self) -> Result<(), Failure> {
        let args = self.args;
        let mut text = format!(
            "{}, one engine for all modes, {} candidates per depth, temperature 0, {} requests per \
             client, at most {} tokens each, {} runs behind a warm-up",
            self.place(),
            self.topk,
            args.requests,
            args.output_tokens,
            args.runs,
        );
        if let Some(tokens) = args.input_tokens {
            let _ = write!(text, ", prompts of {tokens} random tokens");
        }
        if ignores_end(args) {
            text += ", end of turn ignored";
        }
        if !args.speculation.speculative_share_rows {
            text += ", rows not shared";
        }
        if args.model.disable_cuda_graph {
            text += ", without graphs";
        }
        show(args.json, &(text + "\n"))
    }

    /// Keeps all modes of one concurrency, and shows them at once.
    pub fn add(&mut self, clients: usize, cells: Vec<Cell>) -> Result<(), Failure> {
        let mut text = format!(
            "\n{clients} at once; medians of runs, (least-most)\nmode                          \
             tok/s tok/step rows/step  first ms       p99 ms/token      p99 preempted  share of \
             steps; tok/s of every run\n"
        );
        cells.iter().for_each(|cell| text += &cell.row());
        if let Some(verdict) = Verdict::of(&cells) {
            text += &verdict.text();
        }
        self.measured.push((clients, cells));
        show(self.args.json, &text)
    }

    /// Throughput in short; then the object and the plot, as far as they were asked for.
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

    fn modes(&self) -> Vec<DecodeMode> {
        let first = self.measured.first();
        first.map_or(Vec::new(), |(_, cells)| {
            cells.iter().map(|cell| cell.mode).collect()
        })
    }

    /// Concurrency and cell of one mode.
    fn of(&self, mode: DecodeMode) -> impl Iterator<Item = (usize, &Cell)> {
        self.measured.iter().filter_map(move |(clients, cells)| {
            let cell = cells.iter().find(|cell| cell.mode == mode)?;
            Some((*clients, cell))
        })
    }

    /// Whether `auto` was worth what is wanted everywhere; `None` where that was not measured.
    fn holds(&self) -> Option<bool> {
        let verdicts = self.measured.iter();
        let holds: Option<Vec<bool>> = verdicts
            .map(|(_, cells)| Some(Verdict::of(cells)?.holds()))
            .collect();
        holds
            .filter(|all| !all.is_empty())
            .map(|all| all.into_iter().all(|one| one))
    }

    fn summary(&self) -> String {
        let mut text = String::from("\nmedian tok/s\nat once   ");
        for (clients, _) in &self.measured {
            let _ = write!(text, " {clients:>9}");
        }
        text.push('\n');
        for mode in self.modes() {
            let _ = write!(text, "{:10}", modes::name(mode));
            for (_, cell) in self.of(mode) {
                let _ = write!(text, " {:9.1}", cell.rate().median);
            }
            text.push('\n');
        }
        if let Some(holds) = self.holds() {
            let answer = if holds { "yes" } else { "no" };
            let _ = writeln!(
                text,
                "auto at least {:.2} of the best fixed mode and {:.2} of plain at every \
                 concurrency: {answer}",
                WANTED.0, WANTED.1
            );
        }
        text
    }

    fn object(&self) -> Value {
        let args = self.args;
        let measured = self.measured.iter().map(|(clients, cells)| {
            json!({
                "clients": clients,
                "modes": cells.iter().map(Cell::object).collect::<Vec<_>>(),
                "auto": Verdict::of(cells).map(|verdict| verdict.object()),
            })
        });
        json!({
            "random_weights": args.model.is_dummy(),
            "simulated_acceptance": law(&args.simulation),
            "model_path": self.model_path,
            "device": self.device,
            "graphs": !args.model.disable_cuda_graph,
            "candidates": self.topk,
            "share_rows": args.speculation.speculative_share_rows,
            "input_tokens": args.input_tokens,
            "output_tokens": args.output_tokens,
            "temperature": 0,
            "ignore_eos": ignores_end(args),
            "requests_per_client": args.requests,
            "concurrency": measured.collect::<Vec<_>>(),
            "wanted": {"over_best_fixed": WANTED.0, "over_plain": WANTED.1},
            "auto_holds": self.holds(),
        })
    }

    fn plot(&self) -> Plot {
        let panel = |y_label: &str, value: &dyn Fn(&Cell) -> f64| Panel {
            x_label: "requests at once".to_owned(),
            y_label: y_label.to_owned(),
            series: (self.modes().into_iter().enumerate())
                .map(|(number, mode)| Series {
                    name: modes::name(mode),
                    mark: Mark::Line,
                    colour: number,
                    points: self
                        .of(mode)
                        .map(|(clients, cell)| (clients as f64, value(cell)))
                        .collect(),
                })
                .collect(),
        };
        Plot {
            title: "Decoding, many requests at once".to_owned(),
            subtitle: format!(
                "{}, at most {} tokens each, median of {} runs",
                self.place(),
                self.args.output_tokens,
                self.args.runs,
            ),
            panels: vec![
                panel("tokens per second", &|cell| cell.rate().median),
                panel("milliseconds per token of a request", &|cell| {
                    cell.spread(|run| mean(&run.token_ms)).median
                }),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cell whose runs have these tokens per second.
    fn cell(mode: DecodeMode, rates: &[usize]) -> Cell {
        let run = |&tokens: &usize| Run {
            seconds: 1.0,
            tokens,
            ..Run::default()
        };
        Cell {
            mode,
            runs: rates.iter().map(run).collect(),
        }
    }

    #[test]
    fn spreads_and_quantiles_are_those_of_the_values() {
        let spread = Spread::of([3.0, 1.0, 2.0].into_iter());
        assert_eq!(spread.text(1), "2.0 (1.0-3.0)");
        assert_eq!(Spread::of([1.0, 2.0].into_iter()).median, 1.5);
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(p99(&values), 198.0);
        assert_eq!(p99(&[7.0]), 7.0);
        assert!(p99(&[]).is_nan());
    }

    #[test]
    fn auto_is_compared_with_the_best_fixed_mode_round_by_round() {
        let cells = |auto: [usize; 3]| {
            [
                cell(DecodeMode::Plain, &[80, 80, 80]),
                cell(DecodeMode::Tree(15), &[100, 200, 100]),
                cell(DecodeMode::Auto, &auto),
            ]
        };
        let good = Verdict::of(&cells([96, 180, 99])).unwrap();
        assert_eq!(good.best, DecodeMode::Tree(15));
        assert_eq!(good.over_best.text(2), "0.96 (0.90-0.99)");
        assert!(good.holds());
        let slow = Verdict::of(&cells([94, 180, 94])).unwrap();
        assert!(!slow.holds() && slow.text().contains("wanted 0.95: no; auto / plain"));
        let alone = [cell(DecodeMode::Auto, &[1])];
        assert!(Verdict::of(&alone).is_none());
    }

    #[test]
    fn shares_of_shapes_add_up() {
        let mut cell = cell(DecodeMode::Auto, &[1, 1]);
        let shapes = |list: &[(&str, u64)]| {
            let shapes = list
                .iter()
                .map(|(name, steps)| ((*name).to_owned(), *steps));
            shapes.collect::<Vec<_>>()
        };
        cell.runs[0].shapes = shapes(&[("plain", 1), ("tree-9", 2)]);
        cell.runs[1].shapes = shapes(&[("tree-9", 1)]);
        let expected = [("tree-9".to_owned(), 0.75), ("plain".to_owned(), 0.25)];
        assert_eq!(cell.shapes(), expected);
    }
}
