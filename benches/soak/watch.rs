//! What the process holds while it is used.

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::server::Server;
use crate::tally::Tally;
use crate::{PAGES, RUNNING, SLOTS, SNAPSHOTS, SOON, WAITING};

/// Between two samples.
const EVERY: Duration = Duration::from_secs(10);
/// Share of the time that is warm-up, and seconds of it at least: pages of the KV pool and snapshots
/// are touched for the first time, so memory grows to what it stays at.
const WARM_UP: (f64, f64) = (0.25, 180.0);
/// Samples behind it that say something.
const SAMPLES_LEAST: usize = 6;
/// Threads that come and go with blocking work, beside those of an idle server.
const THREADS_SPARE: u64 = 16;

/// What the system says of the process.
#[derive(Clone, Copy, Debug)]
struct Process {
    rss_kib: u64,
    files: u64,
    threads: u64,
}

impl Process {
    /// `None`: it has ended.
    fn of(server: &Server) -> Option<Self> {
        let folder = format!("/proc/{}", server.id());
        let status = std::fs::read_to_string(format!("{folder}/status")).ok()?;
        let field = |name: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim_end_matches("kB").trim().parse().ok()
        };
        Some(Process {
            rss_kib: field("VmRSS:")?,
            threads: field("Threads:")?,
            files: std::fs::read_dir(format!("{folder}/fd")).ok()?.count() as u64,
        })
    }
}

/// Samples of one server.
pub struct Watch<'a> {
    server: &'a Server,
    began: Instant,
    idle: Process,
    /// Seconds and KiB.
    rss: Vec<(f64, f64)>,
    last: Option<Process>,
}

impl<'a> Watch<'a> {
    /// Of a server without a request.
    pub fn start(server: &'a Server) -> Self {
        Watch {
            server,
            began: Instant::now(),
            idle: Process::of(server).expect("the server runs"),
            rss: Vec::new(),
            last: None,
        }
    }

    /// Samples and prints until then; `false`: the server has ended.
    pub fn run_until(&mut self, end: Instant, tally: &Mutex<Tally>) -> bool {
        println!(
            "seconds  requests  running waiting   pages  slots snapshots  rss MiB files threads"
        );
        loop {
            let now = Instant::now();
            if now >= end {
                return true;
            }
            std::thread::sleep(EVERY.min(end - now));
            match Process::of(self.server) {
                Some(process) => self.sample(process, tally),
                None => return false,
            }
        }
    }

    fn sample(&mut self, process: Process, tally: &Mutex<Tally>) {
        let seconds = self.began.elapsed().as_secs_f64();
        self.rss.push((seconds, process.rss_kib as f64));
        let metric = |name| self.server.metric(name);
        println!(
            "{seconds:7.0} {:9} {:8} {:7} {:7} {:6.2} {:9} {:8.1} {:5} {:7}",
            tally.lock().unwrap().sent(),
            metric(RUNNING),
            metric(WAITING),
            metric(PAGES) / 64.0,
            metric(SLOTS),
            metric(SNAPSHOTS),
            process.rss_kib as f64 / 1024.0,
            process.files,
            process.threads,
        );
    }

    /// What has grown, or stayed behind in the idle server.
    pub fn faults(&mut self, server: &Server, rss_growth_mib: f64) -> Vec<String> {
        let end = Instant::now() + SOON;
        let mut process = Process::of(server).expect("the server runs");
        while process.files > self.idle.files && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            process = Process::of(server).expect("the server runs");
        }
        self.last = Some(process);
        let mut faults = Vec::new();
        if process.files > self.idle.files {
            let (before, after) = (self.idle.files, process.files);
            faults.push(format!("{before} open files before, {after} after"));
        }
        if process.threads > self.idle.threads + THREADS_SPARE {
            let (before, after) = (self.idle.threads, process.threads);
            faults.push(format!("{before} threads before, {after} after"));
        }
        if let Some(growth) = self.growth_mib().filter(|&growth| growth > rss_growth_mib) {
            faults.push(format!(
                "resident memory grew by {growth:.1} MiB behind the warm-up; {rss_growth_mib} are \
                 allowed"
            ));
        }
        faults
    }

    /// Behind the warm-up, along the line of least squares; `None`: the run was too short.
    fn growth_mib(&self) -> Option<f64> {
        let whole = self.rss.last()?.0;
        let (share, least) = WARM_UP;
        let warm = (whole * share).max(least);
        let samples = self.rss.iter().copied();
        let samples: Vec<(f64, f64)> = samples.filter(|sample| sample.0 >= warm).collect();
        let first = samples.first().filter(|_| samples.len() >= SAMPLES_LEAST)?;
        Some(slope(&samples) * (whole - first.0) / 1024.0)
    }
}

impl fmt::Display for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle = self.idle;
        let last = self.last.unwrap_or(idle);
        write!(
            f,
            "idle before and after: {:.1} and {:.1} MiB, {} and {} open files, {} and {} threads; \
             {}",
            idle.rss_kib as f64 / 1024.0,
            last.rss_kib as f64 / 1024.0,
            idle.files,
            last.files,
            idle.threads,
            last.threads,
            match self.growth_mib() {
                Some(growth) => format!("behind the warm-up, fitted: {growth:+.2} MiB"),
                None => "too short to say whether memory grows".to_owned(),
            }
        )
    }
}

/// Of the line of least squares; 0 where there is none.
fn slope(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| points.iter().map(value).sum::<f64>() / count;
    let (x_mean, y_mean) = (mean(|point| point.0), mean(|point| point.1));
    let (mut together, mut alone) = (0.0, 0.0);
    for (x, y) in points {
        together += (x - x_mean) * (y - y_mean);
        alone += (x - x_mean) * (x - x_mean);
    }
    if alone > 0.0 { together / alone } else { 0.0 }
}
