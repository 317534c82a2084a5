//! What the server itself costs: the real HTTP stack over an engine whose steps cost nothing.
//!
//! `cargo bench --bench http`; `-- ROUNDS` changes the repetitions. Clients are threads of the same
//! process and use sockets; the processor time of the server's own threads is told apart by their
//! names. Nothing else should run beside it: where it does, processor times are the better figures.

mod client;
mod cost;
mod stand;

use std::time::{Duration, Instant};

use client::{Client, Stream, completion_body};
use cost::{Cost, median, quantile};
use stand::Stand;

/// Connections at once.
const CONNECTIONS: [usize; 3] = [1, 8, 32];

fn main() {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse::<usize>().ok());
    let rounds = numbers.next().unwrap_or(5);
    let build = match cfg!(debug_assertions) {
        true => "WITHOUT optimisation of the server: upper bounds",
        false => "release",
    };
    println!("{rounds} rounds, {build}");
    paced(rounds);
    saturated(rounds);
    requests(rounds);
    prompts(rounds);
}

fn numbers(values: &[f64], digits: usize) -> String {
    let texts: Vec<String> = values
        .iter()
        .map(|value| format!("{value:.digits$}"))
        .collect();
    texts.join(" ")
}

/// A token's way from the engine's step to the client, while steps take 5 ms.
fn paced(rounds: usize) {
    const STEP: Duration = Duration::from_millis(5);
    const TOKENS: usize = 200;
    println!("\nstreams, a step of every sequence each 5 ms: microseconds from the end of a step");
    println!("until a client has its token; and processor time of the server per token");
    println!(
        "connections   p50     p90     p99   CPU/token   p50 of each round | CPU of each round"
    );
    let stand = Stand::start(STEP);
    for connections in CONNECTIONS {
        let (mut middles, mut tails, mut ends, mut costs) = (vec![], vec![], vec![], vec![]);
        for _ in 0..rounds {
            let before = Cost::now();
            let streams = stream_all(&stand, connections, TOKENS);
            let tokens = (connections * TOKENS) as f64;
            costs.push(Cost::since(&before).server_us / tokens);
            let times = stand.clock.times();
            let mut latencies: Vec<f64> = streams
                .iter()
                .flat_map(|stream| stream.latencies(&times, &stand.words))
                .collect();
            assert_eq!(latencies.len(), connections * TOKENS, "a chunk per token");
            latencies.sort_by(f64::total_cmp);
            middles.push(quantile(&latencies, 0.5));
            tails.push(quantile(&latencies, 0.9));
            ends.push(quantile(&latencies, 0.99));
        }
        println!(
            "{connections:11} {:5.0}   {:5.0}   {:5.0}   {:9.1}   {} | {}",
            median(&middles),
            median(&tails),
            median(&ends),
            median(&costs),
            numbers(&middles, 0),
            numbers(&costs, 1)
        );
    }
}

/// Runs a stream per connection to its end.
fn stream_all(stand: &Stand, connections: usize, tokens: usize) -> Vec<Stream> {
    let body = stand.chat(10, tokens, true);
    let address = stand.address;
    let threads: Vec<_> = (0..connections)
        .map(|_| {
            let body = body.clone();
            client::thread(move || Client::connect(address).stream(&body))
        })
        .collect();
    threads
        .into_iter()
        .map(|thread| thread.join().expect("a client ends well"))
        .collect()
}

/// Streams as fast as they go.
fn saturated(rounds: usize) {
    const TOKENS: usize = 4_000;
    println!("\nstreams, steps take no time: tokens per second of all streams together, and");
    println!("processor time per token, of the server and of the engine's own bookkeeping");
    println!("connections  tokens/s   server us   engine us   tokens/s of each round | server us");
    let stand = Stand::start(Duration::ZERO);
    for connections in CONNECTIONS {
        let tokens = TOKENS / connections.min(8);
        let (mut rates, mut server, mut engine) = (vec![], vec![], vec![]);
        for _ in 0..rounds {
            let (before, began) = (Cost::now(), Instant::now());
            let streams = stream_all(&stand, connections, tokens);
            let seconds = began.elapsed().as_secs_f64();
            let cost = Cost::since(&before);
            let all = (connections * tokens) as f64;
            let seen: usize = streams.iter().map(|stream| stream.arrivals.len()).sum();
            assert_eq!(seen, connections * tokens, "a chunk per token");
            rates.push(all / seconds);
            server.push(cost.server_us / all);
            engine.push(cost.engine_us / all);
        }
        println!(
            "{connections:11} {:9.0}   {:9.1}   {:9.1}   {} | {}",
            median(&rates),
            median(&server),
            median(&engine),
            numbers(&rates, 0),
            numbers(&server, 1)
        );
    }
}

/// Whole answers of one token, one after the other on each connection.
fn requests(rounds: usize) {
    const REQUESTS: usize = 320;
    println!("\nwhole answers of one token to a prompt of 10 tokens: requests per second, median");
    println!("latency in microseconds, processor time of the server per request in microseconds");
    println!("connections  requests/s   p50 us   CPU us   requests/s of each round | CPU us");
    let stand = Stand::start(Duration::ZERO);
    for connections in CONNECTIONS {
        let (mut rates, mut middles, mut costs) = (vec![], vec![], vec![]);
        for _ in 0..rounds {
            let (before, began) = (Cost::now(), Instant::now());
            let each = REQUESTS / connections;
            let mut latencies = ask_all(&stand, connections, each);
            let seconds = began.elapsed().as_secs_f64();
            let all = latencies.len() as f64;
            latencies.sort_by(f64::total_cmp);
            rates.push(all / seconds);
            middles.push(quantile(&latencies, 0.5));
            costs.push(Cost::since(&before).server_us / all);
        }
        println!(
            "{connections:11} {:11.0} {:8.0} {:8.0}   {} | {}",
            median(&rates),
            median(&middles),
            median(&costs),
            numbers(&rates, 0),
            numbers(&costs, 0)
        );
    }
}

/// Latencies in microseconds.
fn ask_all(stand: &Stand, connections: usize, each: usize) -> Vec<f64> {
    let body = stand.chat(10, 1, false);
    let address = stand.address;
    let threads: Vec<_> = (0..connections)
        .map(|_| {
            let body = body.clone();
            client::thread(move || {
                let mut client = Client::connect(address);
                let ask = |_| client.whole(&body).1;
                (0..each).map(ask).collect::<Vec<f64>>()
            })
        })
        .collect();
    threads
        .into_iter()
        .flat_map(|thread| thread.join().expect("a client ends well"))
        .collect()
}

/// One answer of one token at a time: what the length of the prompt costs.
fn prompts(rounds: usize) {
    const REQUESTS: usize = 12;
    println!(
        "\none connection, whole answers of one token: milliseconds to the answer and processor"
    );
    println!("time of the server, by the length of the prompt");
    println!("prompt                       tokens   p50 ms   CPU ms   p50 of each round | CPU ms");
    let stand = Stand::start(Duration::ZERO);
    let ids = completion_body(&stand.words, 10_000);
    for (name, body) in [
        ("chat, short", stand.chat(10, 1, false)),
        ("chat, one long message", stand.chat(10_000, 1, false)),
        ("chat, 200 messages", stand.conversation(200, 50)),
        ("completion, token ids", ids),
    ] {
        let mut client = Client::connect(stand.address);
        let (mut middles, mut costs, mut tokens) = (vec![], vec![], 0);
        for _ in 0..rounds {
            let before = Cost::now();
            let mut latencies = Vec::new();
            for _ in 0..REQUESTS {
                let (prompt_tokens, latency) = client.whole(&body);
                tokens = prompt_tokens;
                latencies.push(latency / 1e3);
            }
            latencies.sort_by(f64::total_cmp);
            middles.push(quantile(&latencies, 0.5));
            costs.push(Cost::since(&before).server_us / 1e3 / REQUESTS as f64);
        }
        println!(
            "{name:25} {tokens:9} {:8.2} {:8.2}   {} | {}",
            median(&middles),
            median(&costs),
            numbers(&middles, 2),
            numbers(&costs, 2)
        );
    }
}
