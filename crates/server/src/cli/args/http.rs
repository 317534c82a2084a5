//! Where the server listens, who may use it and how long things may take.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};

use crate::cli::exit::Failure;
use crate::serve::{KeySource, ReasoningField, ServeLimits};

/// An engine with nothing to do is silent for a second at a time.
const SILENCE_MIN: Duration = Duration::from_secs(2);

/// Address, keys and names.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct HttpArgs {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = host)]
    pub host: IpAddr,

    /// Port to listen on; 0 = any free one
    #[arg(long, default_value = "30000", value_parser = port)]
    pub port: u16,

    /// Key that clients must send; can be given several times. Others can see command lines:
    /// prefer the file, or the variable API_KEY
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    pub api_key: Vec<String>,

    /// File of keys, one per line; `#` starts a comment
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,

    /// Ask for a key at /metrics too
    #[arg(long)]
    pub metrics_require_key: bool,

    /// Names of the model [default: the model path and its last component]
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub served_model_name: Vec<String>,

    /// Answer requests for any model name
    #[arg(long)]
    pub allow_any_model_name: bool,

    /// Origins of browser pages that may call, or `*` [default: none]
    #[arg(long, value_name = "ORIGIN", num_args = 1.., value_delimiter = ',')]
    pub allowed_origins: Vec<String>,

    /// Usage in the last event of every stream
    #[arg(long)]
    pub stream_response_default_include_usage: bool,

    /// Speculation statistics and times in every answer
    #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set,
        num_args = 0..=1, default_missing_value = "true")]
    pub enable_per_request_metrics: bool,

    /// Name of the reasoning in answers
    #[arg(long, value_enum, default_value = "reasoning_content")]
    pub reasoning_field: ReasoningFieldName,
}

/// Values of `--reasoning-field`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum ReasoningFieldName {
    /// `reasoning_content`
    ReasoningContent,
    /// `reasoning`
    Reasoning,
    /// Both names
    Both,
}

/// Sizes and times of connections. Times are in seconds; 0 = no limit.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server limits")]
pub struct HttpLimitArgs {
    /// Bytes of a request body, as in 32MiB
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = bytes)]
    pub max_body_size: usize,

    /// Time for a request body to arrive
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    pub body_timeout: Duration,

    /// Time from a request to its first output, and to the end of an answer that is no stream
    #[arg(long, value_name = "S", default_value = "0", value_parser = seconds)]
    pub request_timeout: Duration,

    /// Time that a request may wait until it starts
    #[arg(long, value_name = "S", default_value = "0", value_parser = seconds)]
    pub queue_timeout: Duration,

    /// Silence after which a stream gets a comment
    #[arg(long, value_name = "S", default_value = "15", value_parser = seconds)]
    pub sse_keep_alive_interval: Duration,

    /// Time a client may leave its stream unread
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    pub slow_client_timeout: Duration,

    /// Silence of the engine after which /health fails; at least 2, an idle engine shows that it is
    /// alive every second
    #[arg(long, value_name = "S", default_value = "30", value_parser = silence)]
    pub health_stale_timeout: Duration,

    /// Silence of the engine after which /livez fails and the process ends with exit code 6, or is
    /// left to the watchdog of systemd where that is on; at least 2
    #[arg(long, value_name = "S", default_value = "300", value_parser = silence)]
    pub watchdog_timeout: Duration,

    /// Status of an answer when the queue is full: 429 or 503
    #[arg(long, value_name = "STATUS", default_value = "429", value_parser = queue_status)]
    pub queue_full_status: u16,

    /// Go on taking requests for this long after the first signal
    #[arg(long, value_name = "S", default_value = "0", value_parser = seconds)]
    pub drain_delay: Duration,

    /// Wait this long for running requests after that
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    pub drain_timeout: Duration,
}

impl HttpArgs {
    /// Where keys come from.
    pub fn key_source(&self) -> KeySource {
        KeySource {
            keys: self.api_key.clone(),
            file: self.api_key_file.clone(),
        }
    }

    /// Keys of flag and file.
    pub fn keys(&self) -> Result<Vec<String>, Failure> {
        let keys = self
            .key_source()
            .read()
            .map_err(|reason| Failure::usage(format!("--api-key-file {reason}")))?;
        match keys.iter().any(|key| key.trim().is_empty()) {
            true => Err(Failure::usage("--api-key: a key cannot be empty")),
            false => Ok(keys),
        }
    }

    /// The server's form.
    pub fn reasoning_field(&self) -> ReasoningField {
        match self.reasoning_field {
            ReasoningFieldName::ReasoningContent => ReasoningField::ReasoningContent,
            ReasoningFieldName::Reasoning => ReasoningField::Reasoning,
            ReasoningFieldName::Both => ReasoningField::Both,
        }
    }
}

impl HttpLimitArgs {
    /// The server's form.
    pub fn limits(&self) -> ServeLimits {
        ServeLimits {
            body_bytes_max: self.max_body_size,
            body_timeout: self.body_timeout,
            request_timeout: self.request_timeout,
            queue_timeout: self.queue_timeout,
            keep_alive_interval: self.sse_keep_alive_interval,
            slow_client_timeout: self.slow_client_timeout,
            health_stale_timeout: self.health_stale_timeout,
            watchdog_timeout: self.watchdog_timeout,
            queue_full_status: self.queue_full_status,
            ..ServeLimits::default()
        }
    }
}

fn host(text: &str) -> Result<IpAddr, String> {
    match text {
        "localhost" => Ok(Ipv4Addr::LOCALHOST.into()),
        _ => text
            .parse()
            .map_err(|_| "expected an IP address, such as 127.0.0.1 or 0.0.0.0".to_owned()),
    }
}

/// A flag's seconds, at least 0.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let parsed = text.parse().ok().map(Duration::try_from_secs_f64);
    match parsed {
        Some(Ok(duration)) => Ok(duration),
        _ => Err("expected seconds, at least 0".to_owned()),
    }
}

fn port(text: &str) -> Result<u16, String> {
    let expected = |_| "expected a port, 0 to 65535".to_owned();
    text.parse().map_err(expected)
}

fn silence(text: &str) -> Result<Duration, String> {
    match seconds(text)? {
        limit if limit.is_zero() || limit >= SILENCE_MIN => Ok(limit),
        _ => Err("expected 0 or at least 2 seconds".to_owned()),
    }
}

fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => Some(0),
        "k" | "kib" => Some(10),
        "m" | "mib" => Some(20),
        "g" | "gib" => Some(30),
        _ => None,
    };
    let count: Option<usize> = digits.trim().parse().ok();
    let size = count
        .zip(shift)
        .and_then(|(count, shift)| count.checked_mul(1 << shift));
    match size {
        Some(size) if size > 0 => Ok(size),
        _ => Err("expected bytes, such as 65536 or 32MiB".to_owned()),
    }
}

fn queue_status(text: &str) -> Result<u16, String> {
    match text {
        "429" => Ok(429),
        "503" => Ok(503),
        _ => Err("expected 429 or 503".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(bytes("65536").unwrap(), 65_536);
        assert_eq!(bytes("32MiB").unwrap(), 32 << 20);
        assert_eq!(bytes("1k").unwrap(), 1_024);
        for wrong in [
            "",
            "0",
            "MiB",
            "-1",
            "1.5MiB",
            "3TB",
            "99999999999999999999",
            "9999999999999GiB",
        ] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_seconds() {
        assert_eq!(seconds("0").unwrap(), Duration::ZERO);
        assert_eq!(seconds("1.5").unwrap(), Duration::from_millis(1_500));
        for wrong in ["", "-1", "nan", "inf", "1e300", "5s"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
        assert_eq!(silence("0").unwrap(), Duration::ZERO);
        assert_eq!(silence("2").unwrap(), SILENCE_MIN);
        assert!(silence("1.9").is_err() && silence("-1").is_err());
    }
}
