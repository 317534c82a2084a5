//! A stand-in for the Hugging Face hub on the loopback interface, with faults to order.

// Outside of `#[test]` a failed unwrap is a failed test all the same.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::json;
use sha2::{Digest, Sha256};

/// The one commit that every model is at.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The secret that opens gated models.
pub const TOKEN: &str = "hf_stand_in";
/// Files of at least this size lie behind a redirect and are tagged with their SHA-256.
const LARGE: usize = 64 << 10;

/// What goes wrong with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection ends after this many bytes, this many times.
    Drop { after: usize, times: usize },
    /// It ends so, and ranges are not understood: every answer begins with the first byte.
    NoRanges { after: usize, times: usize },
    /// The first connection ends after this many bytes, the file is not found from then on.
    Gone { after: usize, yet: bool },
    /// Nothing more comes after this many bytes until the fault is taken away.
    Hold { after: usize },
    /// Some bytes are others than the tag says.
    Corrupt,
    /// It is shorter than its headers say.
    Short,
    /// Not found, though the model lists it.
    Missing,
    /// An error of the server, this many times.
    Unavailable { times: usize },
    /// An error of the server whatever is asked about it.
    Down,
}

/// Files of a model and what strangers may do with them.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub files: BTreeMap<String, Vec<u8>>,
    pub gated: bool,
    pub faults: BTreeMap<String, Fault>,
}

impl Model {
    /// The files of a folder, not those of folders below it.
    pub fn of(folder: &str) -> Self {
        let mut model = Model::default();
        for entry in std::fs::read_dir(Path::new(folder)).unwrap() {
            let entry = entry.unwrap();
            if entry.path().is_file() {
                let name = entry.file_name().into_string().unwrap();
                model
                    .files
                    .insert(name, std::fs::read(entry.path()).unwrap());
            }
        }
        model
    }
}

type Models = BTreeMap<String, Model>;

/// The server; it ends with the test.
pub struct Hub {
    pub endpoint: String,
    models: Arc<Mutex<Models>>,
    /// Method, path and first byte of every request.
    requests: Arc<Mutex<Vec<Request>>>,
}

#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub from: Option<usize>,
    pub token: Option<String>,
    /// Of the server.
    pub port: u16,
}

impl Hub {
    pub fn start(models: &[(&str, Model)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let models: Models = models
            .iter()
            .map(|(name, model)| ((*name).to_owned(), model.clone()))
            .collect();
        let hub = Hub {
            endpoint: format!("http://{}", listener.local_addr().unwrap()),
            models: Arc::new(Mutex::new(models)),
            requests: Arc::default(),
        };
        let (models, requests) = (Arc::clone(&hub.models), Arc::clone(&hub.requests));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (models, requests) = (Arc::clone(&models), Arc::clone(&requests));
                std::thread::spawn(move || serve(stream.unwrap(), &models, &requests));
            }
        });
        hub
    }

    /// Changes a model.
    pub fn edit(&self, name: &str, edit: impl FnOnce(&mut Model)) {
        edit(self.models.lock().unwrap().get_mut(name).unwrap());
    }

    /// Requests since the last call.
    pub fn requests(&self) -> Vec<Request> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let mut request = Request {
        port: stream.local_addr().ok()?.port(),
        method: words.next()?.to_owned(),
        path: words.next()?.to_owned(),
        ..Request::default()
    };
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else {
            return Some(request);
        };
        match name.to_ascii_lowercase().as_str() {
            "range" => {
                let range = value.trim().strip_prefix("bytes=").unwrap();
                let (from, to) = range.split_once('-').unwrap();
                assert!(to.is_empty(), "{range}");
                request.from = Some(from.parse().unwrap());
            }
            "authorization" => request.token = Some(value.trim().to_owned()),
            _ => {}
        }
    }
}

/// An answer before it is sent.
struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// Bytes of the body that are sent before the connection breaks.
    cut: Option<usize>,
    /// Byte from which on the body is held back.
    held: Option<usize>,
}

impl Answer {
    fn new(status: u16) -> Self {
        Answer {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            cut: None,
            held: None,
        }
    }

    fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.headers.push((name, value.to_string()));
        self
    }

    fn fault(status: u16, code: &str) -> Self {
        Answer::new(status).with("x-error-code", code)
    }

    fn send(&self, stream: &mut TcpStream, head_only: bool) -> std::io::Result<()> {
        let mut text = format!("HTTP/1.1 {} Answer\r\nconnection: close\r\n", self.status);
        let own_length = self
            .headers
            .iter()
            .any(|(name, _)| *name == "content-length");
        if !own_length {
            text.push_str(&format!("content-length: {}\r\n", self.body.len()));
        }
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(format!("{text}\r\n").as_bytes())?;
        if !head_only {
            let end = self.cut.or(self.held).unwrap_or(self.body.len());
            stream.write_all(&self.body[..end])?;
        }
        stream.flush()
    }
}

fn serve(mut stream: TcpStream, models: &Mutex<Models>, requests: &Mutex<Vec<Request>>) {
    let Some(request) = read_request(&stream) else {
        return;
    };
    requests.lock().unwrap().push(request.clone());
    let answer = answer(&request, &mut models.lock().unwrap());
    let head_only = request.method == "HEAD";
    // A client may have seen enough.
    let sent = answer.send(&mut stream, head_only);
    if let (Ok(()), Some(rest), false) = (sent, answer.held, head_only) {
        let held = |model: &Model| {
            model
                .faults
                .values()
                .any(|f| matches!(f, Fault::Hold { .. }))
        };
        while models.lock().unwrap().values().any(held) {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let _ = stream.write_all(&answer.body[rest..]);
    }
}

fn answer(request: &Request, models: &mut Models) -> Answer {
    let path = request.path.strip_prefix('/').unwrap();
    let stored = path.strip_prefix("storage/");
    let parts: Vec<&str> = stored.unwrap_or(path).split('/').collect();
    let (name, rest) = match parts[..] {
        ["api", "models", owner, name, "revision", revision] => {
            (format!("{owner}/{name}"), ["revision", revision])
        }
        [owner, name, "resolve", COMMIT, file] => (format!("{owner}/{name}"), ["file", file]),
        _ => return Answer::fault(404, "NoSuchPath"),
    };
    let Some(model) = models.get_mut(&name) else {
        // As the real one: strangers are not told what exists.
        return Answer::fault(401, "RepoNotFound");
    };
    // Signed addresses of the storage need no token.
    let known = request.token.as_deref() == Some(&format!("Bearer {TOKEN}"));
    if model.gated && !known && stored.is_none() {
        return Answer::fault(if request.token.is_some() { 403 } else { 401 }, "GatedRepo");
    }
    match rest {
        ["revision", "main" | "v1" | COMMIT] => {
            let names = model.files.keys();
            let files: Vec<_> = names.map(|name| json!({"rfilename": name})).collect();
            let mut answer = Answer::new(200);
            answer.body = json!({"sha": COMMIT, "siblings": files})
                .to_string()
                .into_bytes();
            answer
        }
        ["revision", _] => Answer::fault(404, "RevisionNotFound"),
        [_, file] => resolve(request, model, file, stored.is_some()),
    }
}

fn resolve(request: &Request, model: &mut Model, file: &str, stored: bool) -> Answer {
    let fault = model.faults.get(file).copied();
    if fault == Some(Fault::Down) {
        return Answer::new(503);
    }
    let Some(contents) = model
        .files
        .get(file)
        .filter(|_| fault != Some(Fault::Missing))
    else {
        return Answer::fault(404, "EntryNotFound");
    };
    let large = contents.len() >= LARGE;
    let sum: String = Sha256::digest(contents)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    if large && !stored {
        let etag = format!("\"{sum}\"");
        let place = match request.method.as_str() {
            // Elsewhere: a client that wants the tag must stop here.
            "HEAD" => format!("http://storage.invalid{}", request.path),
            _ => format!("http://localhost:{}/storage{}", request.port, request.path),
        };
        return Answer::new(302)
            .with("location", place)
            .with("x-repo-commit", COMMIT)
            .with("x-linked-size", contents.len())
            .with("x-linked-etag", etag);
    }
    let mut answer = body(request, contents, fault);
    answer = answer.with("etag", format!("W/\"{}\"", &sum[..40]));
    if request.method == "GET" {
        apply(&mut answer, model, file);
    }
    answer
}

fn body(request: &Request, contents: &[u8], fault: Option<Fault>) -> Answer {
    let ranges = !matches!(fault, Some(Fault::NoRanges { .. }));
    let short = usize::from(fault == Some(Fault::Short) && request.method == "GET");
    let contents = &contents[..contents.len() - short];
    match request.from.filter(|_| ranges) {
        Some(from) if from >= contents.len() => Answer::new(416),
        Some(from) => {
            let (last, total) = (contents.len() - 1, contents.len());
            let range = format!("bytes {from}-{last}/{total}");
            let mut answer = Answer::new(206).with("content-range", range);
            answer.body = contents[from..].to_vec();
            answer
        }
        None => {
            let mut answer = Answer::new(200);
            answer.body = contents.to_vec();
            answer
        }
    }
}

/// Counts a fault down and lets it happen.
fn apply(answer: &mut Answer, model: &mut Model, file: &str) {
    match model.faults.get_mut(file) {
        Some(Fault::Drop { after, times } | Fault::NoRanges { after, times }) if *times > 0 => {
            *times -= 1;
            answer.cut = Some((*after).min(answer.body.len()));
        }
        Some(Fault::Unavailable { times }) if *times > 0 => {
            *times -= 1;
            *answer = Answer::new(503);
        }
        Some(Fault::Gone { yet: true, .. }) => *answer = Answer::fault(404, "EntryNotFound"),
        Some(Fault::Gone { after, yet }) => {
            *yet = true;
            answer.cut = Some(*after);
        }
        Some(Fault::Hold { after }) => answer.held = Some(*after),
        Some(Fault::Corrupt) => {
            if let Some(byte) = answer.body.last_mut() {
                *byte ^= 1;
            }
        }
        _ => {}
    }
}
