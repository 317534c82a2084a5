//! A client that costs little: it looks for marks in the bytes instead of reading JSON.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;

const CONTENT: &[u8] = b"\"delta\":{\"content\":\"";
const LAST: &[u8] = b"0\r\n\r\n";

/// A thread whose time is not the server's.
pub fn thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let builder = std::thread::Builder::new().name("client".into());
    builder.spawn(work).expect("there are threads")
}

/// A completion of one token after this many ids.
pub fn completion_body(words: &[(u32, String)], tokens: usize) -> String {
    let ids: Vec<u32> = (0..tokens).map(|i| words[i % words.len()].0).collect();
    let body = json!({"model": "stub", "prompt": ids, "max_tokens": 1});
    post("/v1/completions", &body.to_string())
}

/// A request on a connection that stays open.
pub fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: spinney\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

/// When which text came.
pub struct Stream {
    pub arrivals: Vec<(Instant, String)>,
}

impl Stream {
    /// Microseconds from the call that made a token to its arrival. A word tells the call up to
    /// multiples of their number: it is the latest such call before the arrival.
    pub fn latencies(&self, times: &[Instant], words: &[(u32, String)]) -> Vec<f64> {
        let index: HashMap<&str, usize> = words
            .iter()
            .enumerate()
            .map(|(index, (_, text))| (text.as_str(), index))
            .collect();
        let latency = |(arrival, text): &(Instant, String)| {
            let word = index[text.as_str()];
            let before = times.partition_point(|time| time <= arrival);
            let newest = before - 1;
            let back = (newest + words.len() - word % words.len()) % words.len();
            (*arrival - times[newest - back]).as_secs_f64() * 1e6
        };
        self.arrivals.iter().map(latency).collect()
    }
}

/// A connection.
pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Client {
    /// Connects.
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        let limit = Some(Duration::from_secs(60));
        stream.set_nodelay(true).expect("a socket has options");
        stream
            .set_read_timeout(limit)
            .expect("a socket has options");
        let buffer = Vec::new();
        Client { stream, buffer }
    }

    fn send(&mut self, request: &str) {
        self.buffer.clear();
        self.stream
            .write_all(request.as_bytes())
            .expect("the server reads");
    }

    /// Appends what there is.
    fn receive(&mut self) -> Instant {
        let mut part = [0; 1 << 16];
        let count = self.stream.read(&mut part).expect("the server answers");
        assert!(count > 0, "the server closed the connection");
        self.buffer.extend_from_slice(&part[..count]);
        Instant::now()
    }

    /// A stream from its request to its end.
    pub fn stream(&mut self, request: &str) -> Stream {
        self.send(request);
        let mut arrivals = Vec::new();
        let mut seen = 0;
        loop {
            let now = self.receive();
            while let Some(at) = find(&self.buffer[seen..], CONTENT) {
                let start = seen + at + CONTENT.len();
                let Some(length) = find(&self.buffer[start..], b"\"") else {
                    break;
                };
                let text = String::from_utf8_lossy(&self.buffer[start..start + length]);
                arrivals.push((now, text.into_owned()));
                seen = start + length;
            }
            if self.buffer.ends_with(LAST) {
                let head = String::from_utf8_lossy(&self.buffer[..15]);
                assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
                return Stream { arrivals };
            }
        }
    }

    /// A whole answer: prompt tokens, and microseconds until it was here.
    pub fn whole(&mut self, request: &str) -> (u64, f64) {
        let began = Instant::now();
        self.send(request);
        loop {
            self.receive();
            let Some(head) = find(&self.buffer, b"\r\n\r\n") else {
                continue;
            };
            let text = String::from_utf8_lossy(&self.buffer[..head]).to_lowercase();
            assert!(text.starts_with("http/1.1 200 "), "{text}");
            let length = number_after(&text, "content-length: ").expect("a length");
            if self.buffer.len() == head + 4 + length as usize {
                let microseconds = began.elapsed().as_secs_f64() * 1e6;
                let body = String::from_utf8_lossy(&self.buffer[head + 4..]);
                let tokens = number_after(&body, "\"prompt_tokens\":").expect("a usage");
                return (tokens, microseconds);
            }
        }
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

fn number_after(text: &str, mark: &str) -> Option<u64> {
    let (_, rest) = text.split_once(mark)?;
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..end].parse().ok()
}
