//! What a simulated engine is made of.

use model::Shape;
use rand::RngExt;
use rand_pcg::Pcg64;

use crate::auto::{Auto, CANDIDATES};
use crate::settings::PrefixCacheSettings;
use crate::shape::Drafting;
use crate::tests::harness::Setup;
use crate::tests::stub_runner::Fault;
use crate::timing_table::{ShapeTiming, TimingTable};

/// Sizes and habits of one history.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) setup: Setup,
    /// Milliseconds of a step, of a draft and of a row, for `auto`.
    pub(super) times: Option<[f64; 3]>,
    pub(super) turns: u64,
    /// Chance that a turn brings requests, while it is busy.
    pub(super) arrival: f64,
    /// Chance that a request wants a long output.
    pub(super) talk: f64,
    /// Chance that a prompt is long.
    pub(super) length: f64,
    /// Requests that may wait before no more come.
    pub(super) crowd: usize,
    /// Chance that a turn ends a request.
    pub(super) ending: f64,
}

fn context(random: &mut Pcg64) -> usize {
    match random.random_range(0..10) {
        0..2 => random.random_range(70..200),
        2..6 => random.random_range(200..500),
        _ => random.random_range(500..1100),
    }
}

fn drafting(random: &mut Pcg64) -> Drafting {
    match random.random_range(0..8) {
        0 | 1 => Drafting::Off,
        2 => Drafting::Fixed(Shape::Chain(random.random_range(1..=15))),
        3 => Drafting::Fixed(Shape::Tree(random.random_range(1..=63))),
        4 => Drafting::Fixed(Shape::Tree(15)),
        _ => Drafting::Auto,
    }
}

impl Setting {
    pub(super) fn new(random: &mut Pcg64) -> Self {
        let context = context(random);
        let running_max: usize = random.random_range(1..=12);
        let one = context.div_ceil(64);
        let all = one * running_max;
        let pages = match random.random_range(0..5) {
            0 => one,
            1 | 2 => random.random_range(one..=all.min(one + 3)),
            3 => random.random_range(one..=all),
            _ => random.random_range(one..=all.min(one * 3)),
        };
        let kept = PrefixCacheSettings {
            interval: 64 << random.random_range(0..4),
            decoded: random.random_bool(0.3),
        };
        let cache = (kept, random.random_range(0..=6), random.random_range(0..=4));
        let call = random.random_range(1..400);
        let faults = [
            Fault::None,
            Fault::StepNotFinite(call),
            Fault::PrefillNotFinite(call),
        ];
        let setup = Setup {
            running_max,
            context,
            pages,
            chunk: 64 << random.random_range(0..4),
            drafting: drafting(random),
            queue_max: [0, 0, 0, random.random_range(1..9)][random.random_range(0..4)],
            draft_batch_max: [0, 0, 2, 5][random.random_range(0..4)],
            share_rows: running_max > 1 && random.random_bool(0.5),
            cache: random.random_bool(0.75).then_some(cache),
            fault: faults[random.random_range(0..faults.len())],
            ..Setup::default()
        };
        let times = [
            random.random_range(1.0..20.0),
            random.random_range(0.0..5.0),
            random.random_range(0.0..0.3),
        ];
        Setting {
            setup,
            times: random.random_bool(0.8).then_some(times),
            turns: random.random_range(1000..3000),
            arrival: [0.05, 0.2, 0.5, 0.9][random.random_range(0..4)],
            talk: [0.05, 0.5, 0.9, 1.0][random.random_range(0..4)],
            length: [0.02, 0.02, 0.1, 0.5][random.random_range(0..4)],
            crowd: random.random_range(1..25),
            ending: [0.0, 0.01, 0.02, 0.08][random.random_range(0..4)],
        }
    }

    /// Chooses as if steps took the times of the setting.
    pub(super) fn auto(&self) -> Option<Auto> {
        let [step, draft, row] = self.times?;
        if self.setup.drafting != Drafting::Auto {
            return None;
        }
        let ms = |shape: Shape, sequences: f64| {
            let draft = if shape == Shape::Plain { 0.0 } else { draft };
            step + draft + row * shape.rows() as f64 * sequences
        };
        let timing = |shape| ShapeTiming {
            shape,
            times: vec![(1, ms(shape, 1.0)), (4, ms(shape, 4.0))],
        };
        let table = TimingTable {
            shapes: CANDIDATES.map(timing).to_vec(),
        };
        Some(Auto::new(table, self.setup.share_rows))
    }
}
