//! What is to be run, the rulers, and the lines that are printed.

use std::cell::{Cell, OnceCell};

use ops::{Backend, Cuda, LinearOut, OpsError, ScratchNeeds};

use crate::memory::{self, Buf};
use crate::times::Times;

/// Rows of the largest step.
pub const ROWS_MAX: usize = 512;
/// Rows of a chunk of a prompt.
pub const CHUNK_ROWS: usize = 2048;
/// Tokens that the tables of a sequence have room for.
pub const CONTEXT_MAX: usize = 40_960;
pub const VOCABULARY: usize = 248_320;
pub const HIDDEN: usize = 5120;

/// Launches of a graph, unless a case asks for fewer.
const LAUNCHES: usize = 64;
/// Bytes of the copies that are the ruler.
const COPY_BYTES: usize = 1 << 30;
/// Rows, outputs and columns of the product that is the ruler.
const MATRIX: usize = 8192;

/// The device and what the command line asks for.
pub struct Bench {
    pub cuda: Cuda,
    /// Bytes read and written by a copy in a second.
    pub copy_rate: f64,
    /// Layers of the chain of products.
    pub layers: usize,
    /// Seconds of one of its rounds.
    pub chain_seconds: f64,
    rounds: usize,
    filters: Vec<String>,
    matrix_rate: OnceCell<Option<f64>>,
    section: Cell<&'static str>,
}

/// One line of a table.
pub struct Case {
    /// Name and sizes.
    pub name: String,
    /// Bytes that one launch must read and write.
    pub bytes: usize,
    /// Additions and multiplications of one launch where they may be the limit, else 0.
    pub operations: usize,
    /// Launches in a row that touch different memory.
    pub turns: usize,
    /// Launches of a graph, rounded up to whole turns.
    pub launches: usize,
}

impl Case {
    /// A case that memory limits.
    pub fn new(name: impl Into<String>, bytes: usize, turns: usize) -> Self {
        Case {
            name: name.into(),
            bytes,
            operations: 0,
            turns,
            launches: LAUNCHES,
        }
    }
}

impl Bench {
    /// Opens the first GPU and measures the copy rate.
    pub fn open(arguments: &[String]) -> Result<Self, OpsError> {
        let key = |name: &str| {
            let value = |argument: &String| argument.strip_prefix(name)?.parse::<usize>().ok();
            arguments.iter().find_map(value)
        };
        let filters = arguments
            .iter()
            .filter(|argument| !argument.starts_with('-') && !argument.contains('='));
        let cuda = Cuda::open(0)?;
        cuda.reserve(&ScratchNeeds {
            rows: ROWS_MAX,
            prefill_rows: CHUNK_ROWS,
            sequences: ROWS_MAX,
            hidden: HIDDEN,
            heads: 24,
            head_dim: 256,
            value_heads: 48,
            draft_heads: 32,
            draft_head_dim: 128,
            vocab_rows: VOCABULARY,
            context_max: CONTEXT_MAX,
        })?;
        let copy_rate = cuda.copy_rate(COPY_BYTES)?;
        println!("{}, copy {:.0} GB/s", cuda.name(), copy_rate / 1e9);
        Ok(Bench {
            copy_rate,
            layers: key("layers=").unwrap_or(64),
            rounds: key("rounds=").unwrap_or(5),
            chain_seconds: key("milliseconds=").unwrap_or(300) as f64 / 1e3,
            filters: filters.cloned().collect(),
            matrix_rate: OnceCell::new(),
            section: Cell::new(""),
            cuda,
        })
    }

    /// Whether a section is asked for; its table begins.
    pub fn enter(&self, section: &'static str) -> bool {
        self.section.set(section);
        let wanted = |filter: &String| {
            let (name, _) = filter.split_once('/').unwrap_or((filter, ""));
            section.contains(name)
        };
        let enter = self.filters.is_empty() || self.filters.iter().any(wanted);
        if enter {
            println!("\n## {section}\n");
        }
        enter
    }

    /// Whether a case of the section is asked for.
    pub fn wants(&self, case: &str) -> bool {
        let section = self.section.get();
        let wanted = |filter: &String| {
            let (name, part) = filter.split_once('/').unwrap_or((filter, ""));
            section.contains(name) && case.contains(part)
        };
        self.filters.is_empty() || self.filters.iter().any(wanted)
    }

    /// Operations a second of a large product by cuBLASLt; `None` without the library.
    pub fn matrix_rate(&self) -> Option<f64> {
        *self
            .matrix_rate
            .get_or_init(|| self.measured_matrix_rate().ok())
    }

    fn measured_matrix_rate(&self) -> Result<f64, OpsError> {
        let cuda = &self.cuda;
        let weight = memory::weight(cuda, MATRIX, MATRIX)?;
        let x = memory::normal(cuda, MATRIX * MATRIX)?;
        let mut out: Buf<_> = cuda.alloc(MATRIX * MATRIX)?;
        let peer = cuda.peer_linear(MATRIX, MATRIX, MATRIX, false)?;
        let mut times = Times::new(cuda, self.rounds, 0.05);
        times.record(&mut || {
            (0..4).try_for_each(|_| peer.enqueue(cuda, 0, &x, &weight, LinearOut::Act(&mut out)))
        })?;
        let seconds = times.run()?[0].median / 4.0;
        let rate = 2.0 * (MATRIX as f64).powi(3) / seconds;
        println!("cuBLASLt, {MATRIX} cubed: {:.0} TFLOP/s\n", rate / 1e12);
        Ok(rate)
    }

    /// Measurements of `seconds` a round.
    pub fn times(&self, seconds: f64) -> Times<'_> {
        Times::new(&self.cuda, self.rounds, seconds)
    }

    /// The head of a table of [`Bench::case`].
    pub fn head(&self) {
        println!("| case | median us | least us | MB | GB/s (of copy) | TFLOP/s (of cuBLASLt) |");
        println!("|---|---:|---:|---:|---:|---:|");
    }

    /// Times `op`, which gets the number of its launch, where the case is asked for.
    pub fn case(
        &self,
        case: Case,
        op: &mut dyn FnMut(usize) -> Result<(), OpsError>,
    ) -> Result<(), OpsError> {
        if !self.wants(&case.name) {
            return Ok(());
        }
        let turns = case.turns.max(1);
        let launches = case.launches.div_ceil(turns) * turns;
        let mut times = self.times(0.02);
        times.record(&mut || (0..launches).try_for_each(|number| op(number % turns)))?;
        let time = times.run()?[0].of(launches);
        let rate = case.bytes as f64 / time.median;
        let operations = match (case.operations, self.matrix_rate()) {
            (0, _) | (_, None) => String::new(),
            (operations, Some(matrix)) => {
                let rate = operations as f64 / time.median;
                format!("{:.0} ({:.2})", rate / 1e12, rate / matrix)
            }
        };
        println!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.0} ({:.2}) | {operations} |",
            case.name,
            time.median * 1e6,
            time.least * 1e6,
            case.bytes as f64 / 1e6,
            rate / 1e9,
            rate / self.copy_rate,
        );
        Ok(())
    }
}
