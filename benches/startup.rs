//! The real binary with the bundled pair: time from its start to the ready line, and its memory.
//!
//! `cargo bench --bench startup`

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Repetitions of a start.
const ROUNDS: usize = 5;

/// One start.
struct Start {
    child: Child,
    ready: Duration,
}

fn start(flags: &[&str]) -> Start {
    let began = Instant::now();
    let mut child = Command::new(env!("CARGO_BIN_EXE_spinney"))
        .args(["serve", "--port=0", "--log-level=off"])
        .args(flags)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let stdout = child.stdout.take().expect("standard output is piped");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    assert!(line.starts_with("Serving "), "{line}");
    let ready = began.elapsed();
    Start { child, ready }
}

/// Resident memory in MiB, now and at its peak; `None` where the system does not say.
fn memory(child: &Child) -> Option<(f64, f64)> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?;
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
        Some(kib / 1024.0)
    };
    Some((field("VmRSS:")?, field("VmHWM:")?))
}

fn main() {
    let cases: [(&str, &[&str]); 4] = [
        ("auto, with warm-up and timing table", &[]),
        ("tree 15, with warm-up", &["--speculative-ddtree-budget=15"]),
        ("plain, with warm-up", &["--speculative-algorithm=NONE"]),
        ("auto, no warm-up", &["--skip-server-warmup"]),
    ];
    println!("start to ready in ms, {ROUNDS} runs; resident MiB when ready (peak)");
    for (name, flags) in cases {
        let mut times = Vec::new();
        let mut resident = None;
        for _ in 0..ROUNDS {
            let mut start = start(flags);
            times.push(start.ready.as_secs_f64() * 1e3);
            resident = memory(&start.child);
            start.child.kill().expect("it runs");
            start.child.wait().expect("it ends");
        }
        let each: Vec<String> = times.iter().map(|ms| format!("{ms:.0}")).collect();
        times.sort_by(f64::total_cmp);
        let memory = resident.map_or("?".into(), |(now, peak)| format!("{now:.0} ({peak:.0})"));
        let median = times[ROUNDS / 2];
        println!(
            "{name:36} median {median:5.0}   runs {}   memory {memory}",
            each.join(" ")
        );
    }
}
