//! The real binary as a server, and a client that sees everything it sends.

// Every test file uses its own part of this.
#![allow(dead_code, clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Nothing here takes longer, even in a build without optimisation.
const LIMIT: Duration = Duration::from_secs(240);

/// A running server with the bundled pair; it ends with the test.
#[derive(Debug)]
pub struct Server {
    child: Child,
    url: String,
    log: Arc<Mutex<String>>,
    /// Reads the log until its end; without it the pipe stays as it is.
    reader: Option<JoinHandle<()>>,
    unread: Option<ChildStderr>,
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    pub headers: ureq::http::HeaderMap,
    pub text: String,
}

impl Reply {
    /// The body as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text)
            .unwrap_or_else(|error| panic!("{error} in {:?}", self.text))
    }

    /// The body of a success.
    pub fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json()
    }

    /// A header's text.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .map_or("", |value| value.to_str().unwrap())
    }

    /// Asserts an error object with these values; returns the message.
    pub fn refused(
        &self,
        status: u16,
        kind: &str,
        code: Option<&str>,
        param: Option<&str>,
    ) -> String {
        assert_eq!(self.status, status, "{}", self.text);
        let body = self.json();
        let error = body["error"].as_object().unwrap();
        let keys: Vec<_> = error.keys().map(String::as_str).collect();
        assert_eq!(keys, ["message", "type", "param", "code"]);
        let found = (&error["type"], &error["code"], &error["param"]);
        assert_eq!(
            found,
            (&json!(kind), &json!(code), &json!(param)),
            "{}",
            self.text
        );
        assert!(self.header("x-request-id").len() > 4);
        error["message"].as_str().unwrap().to_owned()
    }
}

impl Server {
    /// Starts with these flags besides the ones that make a quick start on any port.
    pub fn start(flags: &[&str]) -> Self {
        Server::start_with(&[&["--skip-server-warmup"], flags].concat(), &[])
    }

    /// Starts on any port with these flags and variables.
    pub fn start_with(flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut server = Server::spawn(flags, variables);
        let stderr = BufReader::new(server.unread.take().unwrap());
        let lines = Arc::clone(&server.log);
        server.reader = Some(std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                lines.push_str(&line);
                lines.push('\n');
            }
        }));
        server.until_ready()
    }

    /// Starts with these flags and never reads the log.
    pub fn start_unread(flags: &[&str]) -> Self {
        Server::spawn(&[&["--skip-server-warmup"], flags].concat(), &[]).until_ready()
    }

    fn spawn(flags: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_spinney"));
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let service = ["API_KEY", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"];
            if text.starts_with("SPINNEY_") || service.contains(&&*text) {
                command.env_remove(&name);
            }
        }
        let mut child = command
            .args(["serve", "--port=0"])
            .args(flags)
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Server {
            unread: child.stderr.take(),
            child,
            url: String::new(),
            log: Arc::default(),
            reader: None,
        }
    }

    /// Waits for the line that names the address.
    fn until_ready(mut self) -> Self {
        let line = first_line(self.child.stdout.take().unwrap());
        assert!(line.starts_with("Serving "), "{line:?}\n{}", self.log());
        let url = line.trim().rsplit(' ').next();
        self.url = url.unwrap_or_default().to_owned();
        self
    }

    /// One server for all tests of a file that run at the same time.
    ///
    /// It has no prefix cache: tests compare answers whole, and usage says what was cached.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let server = Arc::new(Server::start(&["--disable-radix-cache"]));
            *shared = Arc::downgrade(&server);
            server
        })
    }

    /// What it wrote to standard error.
    pub fn log(&self) -> String {
        self.log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Address and port.
    pub fn address(&self) -> &str {
        self.url.strip_prefix("http://").unwrap()
    }

    /// GET.
    pub fn get(&self, path: &str) -> Reply {
        receive(agent().get(self.at(path)).call().unwrap())
    }

    /// POST of JSON.
    pub fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_with(path, &[], body)
    }

    /// POST of JSON with further headers.
    pub fn post_with(&self, path: &str, headers: &[(&str, &str)], body: &Value) -> Reply {
        let mut request = agent().post(self.at(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.content_type("application/json");
        receive(request.send(body.to_string()).unwrap())
    }

    /// Exactly these bytes on a connection of its own, and everything that comes back.
    pub fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }

    /// A bare connection.
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    /// Sends a POST of JSON on a bare connection and leaves the answer to the caller.
    pub fn begin(&self, path: &str, body: &Value) -> TcpStream {
        let mut stream = self.connect();
        stream
            .write_all(post_bytes(path, &body.to_string()).as_bytes())
            .unwrap();
        stream
    }

    /// A sample of `/metrics`, summed over labels.
    pub fn metric(&self, name: &str) -> f64 {
        let text = self.get("/metrics").text;
        let values: Vec<f64> = text
            .lines()
            .filter(|line| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with('{'))
            })
            .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
            .collect();
        assert!(!values.is_empty(), "no {name} in\n{text}");
        values.iter().sum()
    }

    /// Waits until a sample has a value.
    pub fn until_metric(&self, name: &str, value: f64, limit: Duration) {
        let end = Instant::now() + limit;
        while self.metric(name) != value {
            assert!(
                Instant::now() < end,
                "{name} is {}, expected {value}",
                self.metric(name)
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends a signal such as `TERM`.
    pub fn signal(&self, signal: &str) {
        let id = self.child.id().to_string();
        let status = Command::new("kill")
            .args([&format!("-{signal}"), &id])
            .status();
        assert!(status.unwrap().success());
    }

    /// Waits for the end and the last line of the log; returns the exit code.
    pub fn wait(&mut self) -> i32 {
        let end = Instant::now() + LIMIT;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                if let Some(reader) = self.reader.take() {
                    reader.join().unwrap();
                }
                assert!(!self.log().contains("panicked"), "{}", self.log());
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < end, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Either may fail only because it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if !std::thread::panicking() {
            let log = self.log();
            assert!(
                !log.contains("panicked") && !log.contains("audit failed"),
                "{log}"
            );
        }
    }
}

/// The text of a POST that closes its connection.
pub fn post_bytes(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: spinney\r\nContent-Type: application/json\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The first line, which has to come in time.
fn first_line(stdout: ChildStdout) -> String {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        // An end without a line is an empty one; the rest is left alone.
        let _ = BufReader::new(stdout).read_line(&mut line);
        let _ = sender.send(line);
    });
    receiver
        .recv_timeout(LIMIT)
        .unwrap_or_else(|_| format!("nothing within {LIMIT:?}"))
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(LIMIT))
        .build()
        .into()
}

fn receive(mut response: ureq::http::Response<ureq::Body>) -> Reply {
    Reply {
        status: response.status().as_u16(),
        headers: response.headers().clone(),
        text: response.body_mut().read_to_string().unwrap(),
    }
}

/// The events of a stream: every one is a line of data and an empty line, `[DONE]` is the last.
pub fn events(text: &str) -> Vec<Value> {
    let mut parts: Vec<_> = text.split("\n\n").collect();
    assert_eq!(parts.pop(), Some(""), "{text}");
    assert_eq!(parts.pop(), Some("data: [DONE]"), "{text}");
    parts
        .into_iter()
        .filter(|part| *part != ": keep-alive")
        .map(|part| {
            let data = part
                .strip_prefix("data: ")
                .unwrap_or_else(|| panic!("{part:?}"));
            assert!(!data.contains('\n'), "{data:?}");
            serde_json::from_str(data).unwrap()
        })
        .collect()
}

/// A chat request to the bundled model.
pub fn chat(text: &str) -> Value {
    json!({"model": "spinney-tiny", "messages": [{"role": "user", "content": text}]})
}

/// `body` with further fields.
pub fn with(mut body: Value, extra: Value) -> Value {
    let Value::Object(extra) = extra else {
        panic!("{extra} is no object");
    };
    body.as_object_mut().unwrap().extend(extra);
    body
}

/// Id of a token of the bundled model that is spelled like this.
pub fn mark(content: &str) -> u64 {
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/crates/server/spinney-tiny/tokenizer.json"
    );
    let tokenizer: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let added = tokenizer["added_tokens"].as_array().unwrap();
    let token = added.iter().find(|token| token["content"] == content);
    token.unwrap()["id"].as_u64().unwrap()
}
