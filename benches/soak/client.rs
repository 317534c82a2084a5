//! A client that asks for one thing after another, and leaves some answers behind.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::server::{Server, chat, post_bytes, with};
use crate::tally::{Outcome, Tally};

const CHAT: &str = "/v1/chat/completions";
/// Mean pause between two requests of a client.
const PAUSE_MS: f64 = 300.0;
/// An answer that takes longer is lost.
const LIMIT: Duration = Duration::from_secs(120);
/// A client that leaves does so within this.
const PATIENCE_MS: u64 = 400;
/// Tokens of a prompt that no context holds.
const OVERSIZE_TOKENS: usize = 60_000;
/// Long beginnings that prompts share.
const PREFIXES: u32 = 4;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A chat, answered at once.
    Whole,
    /// A stream.
    Stream,
    /// A stream of several choices, sampled, with log-probabilities.
    Choices,
    /// A text completion.
    Completion,
    /// Two turns behind a beginning that many share.
    Turns,
    /// With tools.
    Tools,
    /// With a JSON schema.
    Schema,
    /// A stream that its client leaves.
    LeftStream,
    /// An answer that its client does not wait for.
    LeftWhole,
    /// A stream that is aborted by name.
    Abort,
    /// A prompt of more tokens than the context has.
    Oversize,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 11] = [
        Kind::Whole,
        Kind::Stream,
        Kind::Choices,
        Kind::Completion,
        Kind::Turns,
        Kind::Tools,
        Kind::Schema,
        Kind::LeftStream,
        Kind::LeftWhole,
        Kind::Abort,
        Kind::Oversize,
    ];
}

/// See the module.
pub struct Client<'a> {
    server: &'a Server,
    random: Pcg64,
    number: u64,
    asked: u64,
    tally: &'a Mutex<Tally>,
}

impl<'a> Client<'a> {
    pub fn new(server: &'a Server, seed: u64, number: u64, tally: &'a Mutex<Tally>) -> Self {
        Client {
            server,
            random: Pcg64::seed_from_u64(seed * 1000 + number),
            number,
            asked: 0,
            tally,
        }
    }

    /// Asks until then, or until the server is gone; what was asked is waited for.
    pub fn run_until(&mut self, end: Instant) {
        while Instant::now() < end && TcpStream::connect(self.server.address()).is_ok() {
            let chance: f64 = self.random.random_range(1e-9..1.0);
            let pause = Duration::from_secs_f64(-PAUSE_MS * chance.ln() / 1e3);
            std::thread::sleep(pause.min(end.saturating_duration_since(Instant::now())));
            let kind = Kind::ALL[self.random.random_range(0..Kind::ALL.len())];
            self.ask(kind);
        }
    }

    fn ask(&mut self, kind: Kind) {
        match kind {
            Kind::Whole => self.count(kind, |client| {
                let body = client.varied();
                client.whole(CHAT, &body)
            }),
            Kind::Stream => self.count(kind, |client| {
                let body = client.varied();
                client.stream(&body)
            }),
            Kind::Choices => self.count(kind, |client| {
                let seed = client.random.random_range(0..1_000_000);
                let extra = json!({"n": 2, "temperature": 1.0, "seed": seed, "logprobs": true,
                    "top_logprobs": 3});
                let body = with(client.varied(), extra);
                client.stream(&body)
            }),
            Kind::Completion => self.count(kind, |client| {
                let length = client.random.random_range(1..700);
                let prompt: Vec<u32> = (0..length)
                    .map(|_| client.random.random_range(1..250))
                    .collect();
                let body = json!({"model": "spinney-tiny", "prompt": prompt, "max_tokens": 20});
                client.whole("/v1/completions", &body)
            }),
            Kind::Turns => self.turns(),
            Kind::Tools => self.count(kind, |client| {
                let body = with(client.varied(), json!({"tools": [weather()]}));
                client.stream(&body)
            }),
            Kind::Schema => self.count(kind, Client::schema),
            Kind::LeftStream | Kind::LeftWhole => {
                self.count(kind, |client| client.leave(kind == Kind::LeftStream))
            }
            Kind::Abort => self.count(kind, Client::abort),
            Kind::Oversize => self.count(kind, Client::oversize),
        }
    }

    /// Sends one request and books its end.
    fn count(&mut self, kind: Kind, ask: impl FnOnce(&mut Self) -> Result<Outcome, String>) {
        self.asked += 1;
        self.tally.lock().unwrap().send(kind);
        let outcome = ask(self).unwrap_or_else(Outcome::Wrong);
        self.tally.lock().unwrap().end(kind, outcome);
    }

    /// A short chat, sometimes without speculation, sometimes sampled.
    fn varied(&mut self) -> Value {
        let questions = [
            "What is the capital of France?",
            "Write a Python function that adds two numbers.",
            "Explain photosynthesis in 3 sentences.",
            "How much is 13 - 9?",
        ];
        let body = chat(questions[self.random.random_range(0..questions.len())]);
        let mut extra = json!({"max_tokens": self.random.random_range(1..120)});
        if self.random.random_bool(0.2) {
            extra["speculative"] = false.into();
        }
        if self.random.random_bool(0.5) {
            extra["temperature"] = json!(0.8);
            extra["seed"] = self.random.random_range(0..1_000_000).into();
        }
        if self.random.random_bool(0.3) {
            extra["ignore_eos"] = true.into();
        }
        with(body, extra)
    }

    fn send(&self, path: &str, body: &Value) -> Result<(TcpStream, Instant), String> {
        let asked = Instant::now();
        let send = || {
            let mut stream = TcpStream::connect(self.server.address())?;
            stream.set_read_timeout(Some(LIMIT))?;
            stream.write_all(post_bytes(path, &body.to_string()).as_bytes())?;
            Ok(stream)
        };
        let sent: std::io::Result<TcpStream> = send();
        let stream = sent.map_err(|error| format!("not sent: {error}"))?;
        Ok((stream, asked))
    }

    fn whole(&mut self, path: &str, body: &Value) -> Result<Outcome, String> {
        let (stream, asked) = self.send(path, body)?;
        let answer = Answer::read(stream, asked)?;
        if let Some(outcome) = refused(&answer)? {
            return Ok(outcome);
        }
        let object = answer.json()?;
        let reason = &object["choices"][0]["finish_reason"];
        match reason.as_str() {
            Some("stop" | "length" | "tool_calls") => Ok(Outcome::Finished(None)),
            _ => Err(format!("it ended with {reason}")),
        }
    }

    fn stream(&mut self, body: &Value) -> Result<Outcome, String> {
        let (stream, asked) = self.send(CHAT, &with(body.clone(), json!({"stream": true})))?;
        let answer = Answer::read(stream, asked)?;
        if let Some(outcome) = refused(&answer)? {
            return Ok(outcome);
        }
        match answer.stream_end()? {
            "abort" => Err("nobody aborted it".to_owned()),
            _ => Ok(Outcome::Finished(answer.first_ms)),
        }
    }

    /// A question behind a long beginning, and another behind the answer to it.
    fn turns(&mut self) {
        let prefix = self.random.random_range(0..PREFIXES);
        let rules = format!("Rule {prefix}: answer briefly and name your sources. ").repeat(30);
        let number = self.random.random_range(0..100);
        let mut messages = vec![
            json!({"role": "system", "content": rules}),
            json!({"role": "user", "content": format!("What is {number} plus 4?")}),
        ];
        for question in ["And minus 2?", ""] {
            let body = json!({"model": "spinney-tiny", "messages": messages, "max_tokens": 24});
            let mut said = None;
            self.count(Kind::Turns, |client| {
                let (stream, asked) = client.send(CHAT, &body)?;
                let answer = Answer::read(stream, asked)?;
                if let Some(outcome) = refused(&answer)? {
                    return Ok(outcome);
                }
                let content = answer.json()?["choices"][0]["message"]["content"].clone();
                said = Some(content.as_str().unwrap_or_default().to_owned());
                Ok(Outcome::Finished(None))
            });
            let Some(said) = said else {
                return;
            };
            messages.push(json!({"role": "assistant", "content": said}));
            messages.push(json!({"role": "user", "content": question}));
        }
    }

    fn schema(&mut self) -> Result<Outcome, String> {
        let schema = json!({"type": "object", "additionalProperties": false,
            "properties": {"name": {"type": "string", "maxLength": 10},
                "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
            "required": ["name", "flags"]});
        let format = json!({"type": "json_schema",
            "json_schema": {"name": "answer", "strict": true, "schema": schema}});
        let extra = json!({"response_format": format, "max_tokens": 200,
            "temperature": 1.0, "seed": self.random.random_range(0..1_000_000)});
        let (stream, asked) = self.send(CHAT, &with(chat("Name a city."), extra))?;
        let answer = Answer::read(stream, asked)?;
        if let Some(outcome) = refused(&answer)? {
            return Ok(outcome);
        }
        let object = answer.json()?;
        let choice = &object["choices"][0];
        let text = choice["message"]["content"].as_str().unwrap_or_default();
        let parsed: Result<Value, _> = serde_json::from_str(text);
        match (choice["finish_reason"].as_str(), parsed) {
            (Some("length"), _) => Ok(Outcome::Finished(None)),
            (Some("stop"), Ok(value)) if value["flags"].is_array() => Ok(Outcome::Finished(None)),
            _ => Err(format!("no object of the schema: {choice}")),
        }
    }

    fn endless(&mut self, stream: bool) -> Value {
        let extra = json!({"stream": stream, "ignore_eos": true, "max_tokens": 600});
        with(self.varied(), extra)
    }

    /// Leaves at any moment: before the answer, in the middle of it, or behind it.
    fn leave(&mut self, streams: bool) -> Result<Outcome, String> {
        let body = self.endless(streams);
        let (mut stream, asked) = self.send(CHAT, &body)?;
        let patience = Duration::from_millis(self.random.random_range(0..PATIENCE_MS));
        let mut buffer = [0; 1024];
        while let Some(rest) = patience.checked_sub(asked.elapsed()) {
            let wait = rest.max(Duration::from_millis(1));
            stream.set_read_timeout(Some(wait)).unwrap();
            // Else there is nothing yet, or a part of the answer.
            if let Ok(0) = stream.read(&mut buffer) {
                break;
            }
        }
        Ok(Outcome::Left)
    }

    fn abort(&mut self) -> Result<Outcome, String> {
        let name = format!("soak-{}-{}", self.number, self.asked);
        let body = with(self.endless(true), json!({"rid": name}));
        let (stream, asked) = self.send(CHAT, &body)?;
        let patience = self.random.random_range(0..PATIENCE_MS);
        std::thread::sleep(Duration::from_millis(patience));
        let said = self.server.post("/abort_request", &json!({"rid": name}));
        if said.status != 200 {
            return Err(format!("/abort_request: {}", said.text));
        }
        let answer = Answer::read(stream, asked)?;
        if let Some(outcome) = refused(&answer)? {
            return Ok(outcome);
        }
        match answer.stream_end()? {
            "abort" => Ok(Outcome::Aborted),
            // It was named before the server had read it, or after it had ended.
            _ => Ok(Outcome::Finished(None)),
        }
    }

    fn oversize(&mut self) -> Result<Outcome, String> {
        let body = json!({"model": "spinney-tiny", "prompt": vec![40; OVERSIZE_TOKENS]});
        let (stream, asked) = self.send("/v1/completions", &body)?;
        let answer = Answer::read(stream, asked)?;
        match answer.status {
            400 => Ok(Outcome::Invalid),
            status => Err(format!("status {status}: {}", answer.body)),
        }
    }
}

/// Whether the queue was full; an error where something else is wrong.
fn refused(answer: &Answer) -> Result<Option<Outcome>, String> {
    match answer.status {
        200 => Ok(None),
        429 => Ok(Some(Outcome::Refused)),
        status => Err(format!("status {status}: {}", answer.body)),
    }
}

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "get_weather",
        "description": "Weather for a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}},
            "required": ["city"]}}})
}
