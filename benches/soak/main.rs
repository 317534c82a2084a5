//! The real binary under mixed load for a while: nothing may be lost, kept or grow.
//!
//! `cargo bench --bench soak -- --minutes 30`; see [`options`] for the rest. Only loopback is used.
//! It prints a line of gauges every ten seconds, then counts and a verdict, and ends with exit code 1
//! where something is wrong.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a check ends at the first surprise; the module of the server serves many targets"
)]

mod answer;
mod client;
mod options;
#[path = "../../tests/common/server.rs"]
mod server;
mod tally;
mod watch;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use client::Client;
use options::Options;
use server::Server;
use tally::Tally;
use watch::Watch;

/// Within which everything has to be free once the last request has ended.
const SOON: Duration = Duration::from_secs(1);
/// Flags of every server: few slots and a short queue, so that requests wait, and are refused; and a
/// small KV pool, which the prefix cache fills during the warm-up: memory that is only touched late
/// would look like a leak.
const FLAGS: [&str; 5] = [
    "--max-total-tokens=8192",
    "--max-running-requests=4",
    "--max-queued-requests=6",
    "--chunked-prefill-size=256",
    "--log-level=warn",
];
const RUNNING: &str = "vllm:num_requests_running";
const WAITING: &str = "vllm:num_requests_waiting";
const SLOTS: &str = "sglang:mamba_usage";
const PAGES: &str = "sglang:num_used_tokens";
const SNAPSHOTS: &str = "spinney_state_snapshots";
const HITS: &str = "vllm:prefix_cache_hits_total";

fn main() {
    let options = match Options::read(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(reason) => {
            eprintln!("{reason}");
            std::process::exit(2);
        }
    };
    let mut good = true;
    for mode in &options.modes {
        good &= soak(mode, &options);
    }
    println!("\n{}", if good { "passed" } else { "FAILED" });
    std::process::exit(i32::from(!good));
}

/// One server; whether all was well.
fn soak(mode: &str, options: &Options) -> bool {
    let mut flags = FLAGS.to_vec();
    flags.extend(options::mode_flags(mode));
    println!(
        "\n{mode}: {:.1} minutes, {} clients, seed {}, {}",
        options.seconds() / 60.0,
        options.clients,
        options.seed,
        flags.join(" ")
    );
    let server = Server::start_with(&flags, &[]);
    let tally = Mutex::new(Tally::default());
    let mut watch = Watch::start(&server);
    let end = Instant::now() + Duration::from_secs_f64(options.seconds());
    let (runs, broken) = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..options.clients)
            .map(|number| {
                let mut client = Client::new(&server, options.seed, number, &tally);
                scope.spawn(move || client.run_until(end))
            })
            .collect();
        let runs = watch.run_until(end, &tally);
        let ends = clients.into_iter().map(|client| client.join().is_err());
        (runs, ends.filter(|failed| *failed).count())
    });
    let mut faults = tally.lock().unwrap().faults();
    if broken > 0 {
        faults.push(format!("{broken} clients broke off"));
    }
    faults.extend(log_faults(&server));
    match runs {
        true => {
            faults.extend(left(&server));
            faults.extend(watch.faults(&server, options.rss_growth_mib));
        }
        false => faults.push("the server has ended".to_owned()),
    }
    println!("{}", tally.lock().unwrap());
    println!("{watch}");
    for fault in &faults {
        println!("fault: {fault}");
    }
    faults.is_empty()
}

/// What an idle server still holds.
fn left(server: &Server) -> Vec<String> {
    let mut faults = Vec::new();
    let hits = server.metric(HITS);
    if server.metric(SNAPSHOTS) > 0.0 && hits == 0.0 {
        faults.push("there are snapshots and no prompt ever met one".to_owned());
    }
    println!("{hits:.0} tokens of prompts came from the prefix cache");
    for gauge in [RUNNING, WAITING, SLOTS] {
        faults.extend(until_zero(server, gauge, "after the last request"));
    }
    let flushed = server.post("/flush_cache?timeout=5", &serde_json::json!({}));
    if flushed.status != 200 {
        faults.push(format!("/flush_cache: {}", flushed.text));
    }
    for gauge in [PAGES, SNAPSHOTS] {
        faults.extend(until_zero(server, gauge, "after /flush_cache"));
    }
    faults
}

/// Lines that no run should write.
fn log_faults(server: &Server) -> Vec<String> {
    let log = server.log();
    let bad = |line: &&str| {
        let signs = ["panicked", "audit failed", " ERROR ", "error: "];
        signs.iter().any(|sign| line.contains(sign))
    };
    let faults = log
        .lines()
        .filter(bad)
        .map(|line| format!("in the log: {line}"));
    faults.take(20).collect()
}

fn until_zero(server: &Server, gauge: &str, when: &str) -> Option<String> {
    let end = Instant::now() + SOON;
    loop {
        let value = server.metric(gauge);
        if value == 0.0 {
            return None;
        }
        if Instant::now() >= end {
            return Some(format!("{gauge} is {value} a second {when}"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
