//! What comes back on a connection.

use std::io::Read;
use std::net::TcpStream;
use std::time::Instant;

use serde_json::Value;

/// An answer as far as it was read.
pub struct Answer {
    pub status: u16,
    pub body: String,
    /// From the request to the first text of a stream.
    pub first_ms: Option<f64>,
}

impl Answer {
    /// Reads to the end of the connection, which closes behind an answer.
    pub fn read(mut stream: TcpStream, asked: Instant) -> Result<Self, String> {
        let mut bytes = Vec::new();
        let mut first_ms = None;
        let mut buffer = [0; 16 << 10];
        loop {
            match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => bytes.extend_from_slice(&buffer[..count]),
                Err(error) => return Err(format!("{error} behind {} bytes", bytes.len())),
            }
            if first_ms.is_none() && has_text(&bytes) {
                first_ms = Some(asked.elapsed().as_secs_f64() * 1e3);
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").ok_or("no end of headers")?;
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Ok(Answer {
            status: status.ok_or_else(|| format!("no status in {head:?}"))?,
            body: body.to_owned(),
            first_ms,
        })
    }

    /// The whole answer as JSON.
    pub fn json(&self) -> Result<Value, String> {
        serde_json::from_str(&self.body).map_err(|error| format!("{error} in {:?}", self.body))
    }

    /// How a stream ended; an error where its end is missing.
    pub fn stream_end(&self) -> Result<&'static str, String> {
        let reasons = ["stop", "length", "tool_calls", "abort"];
        let ended = self.body.contains("data: [DONE]") && self.body.ends_with("0\r\n\r\n");
        let said = |reason: &&&str| {
            let text = format!("\"finish_reason\":\"{reason}\"");
            self.body.contains(&text)
        };
        match reasons.iter().find(said) {
            Some(reason) if ended => Ok(reason),
            _ => {
                let tail = self.body.len().saturating_sub(300);
                let tail = String::from_utf8_lossy(&self.body.as_bytes()[tail..]);
                Err(format!("the stream has no end: ...{tail:?}"))
            }
        }
    }
}

/// Whether a delta has content that is not empty.
fn has_text(bytes: &[u8]) -> bool {
    const MARK: &[u8] = b"\"content\":\"";
    let mut marks = bytes.windows(MARK.len() + 1);
    marks.any(|window| window.starts_with(MARK) && window[MARK.len()] != b'"')
}
