//! Runs the real binary, and makes checkpoints for it out of the fixtures.

// Every test file uses its own part of this; outside of `#[test]` a failed unwrap is a failed test
// all the same.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// No command of these tests takes longer, even in a build without optimisation.
const LIMIT: Duration = Duration::from_secs(240);
const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
const TEMPLATE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/crates/server/spinney-tiny/chat_template.jinja"
);

/// What a command left behind.
#[derive(Debug)]
pub struct Run {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Run {
    /// The JSON object on standard output.
    pub fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{}", self.stderr);
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error} in {:?}", self.stdout))
    }

    /// Asserts the exit code and that the message has all parts.
    pub fn refused(&self, code: i32, parts: &[&str]) {
        assert_eq!(
            self.code, code,
            "stdout {:?}\nstderr {}",
            self.stdout, self.stderr
        );
        for part in parts {
            assert!(self.stderr.contains(part), "no {part:?} in {}", self.stderr);
        }
        assert!(self.stderr.contains("error: "), "{}", self.stderr);
    }
}

/// The binary with arguments and nothing of our own environment that it reads.
pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_spinney"));
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("SPINNEY_") || name_text == "API_KEY" {
            command.env_remove(&name);
        }
    }
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A command that runs while the test goes on; its log is read, and it ends with the test.
#[derive(Debug)]
pub struct Background {
    child: Child,
    log: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts it.
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (stderr, lines) = (child.stderr.take().unwrap(), Arc::clone(&log));
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                lines.push_str(&line);
                lines.push('\n');
            }
        });
        Background {
            child,
            log,
            reader: Some(reader),
        }
    }

    /// Standard output, for the one who asks first.
    pub fn stdout(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.child.stdout.take().unwrap())
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has not ended.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end; returns the exit code and the whole log.
    pub fn wait(&mut self) -> (i32, String) {
        let limit = Instant::now() + LIMIT;
        while self.runs() {
            assert!(Instant::now() < limit, "the command does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        let log = self.log();
        assert!(!log.contains("panicked"), "{log}");
        (self.child.wait().unwrap().code().unwrap_or(-1), log)
    }

    /// What it wrote to standard error so far.
    pub fn log(&self) -> String {
        let log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        log.clone()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Either may fail only because it has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the command's log:\n{}", self.log());
        }
    }
}

/// Runs to the end.
pub fn spinney(args: &[&str]) -> Run {
    finish(command(args).spawn().unwrap())
}

/// Runs to the end with this on standard input.
pub fn spinney_reading(args: &[&str], input: &str) -> Run {
    let mut child = command(args).stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    finish(child)
}

/// Waits for the end and asserts that nothing panicked.
pub fn finish(mut child: Child) -> Run {
    let stdout = child.stdout.take().map(drain);
    let stderr = child.stderr.take().map(drain);
    let limit = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > limit {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the command did not end within {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let text = |thread: Option<std::thread::JoinHandle<String>>| {
        thread.map_or_else(String::new, |thread| thread.join().unwrap())
    };
    let run = Run {
        code: status.code().unwrap_or(-1),
        stdout: text(stdout),
        stderr: text(stderr),
    };
    assert!(!run.stderr.contains("panicked"), "{}", run.stderr);
    assert!(!run.stderr.contains("broken invariant"), "{}", run.stderr);
    run
}

fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    })
}

/// Name, type, shape and bytes of every tensor of a file.
pub type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

/// A target with tokenizer and template, and its drafter, in a folder of their own.
pub struct Pair {
    folder: TempDir,
}

impl Pair {
    /// The fixtures, with a tokenizer of 89 tokens for the 97 rows of their head.
    pub fn new() -> Self {
        let pair = Pair {
            folder: tempfile::tempdir().unwrap(),
        };
        for (from, to) in [("qwen3_5", "target"), ("dflash", "drafter")] {
            let folder = pair.folder.path().join(to);
            std::fs::create_dir(&folder).unwrap();
            for file in ["config.json", "model.safetensors"] {
                let from = Path::new(FIXTURES).join(from).join(file);
                std::fs::copy(from, folder.join(file)).unwrap();
            }
        }
        let target = pair.path("target");
        let (tokenizer, end) = tokenizer();
        write_json(&target.join("tokenizer.json"), &tokenizer);
        write_json(
            &target.join("generation_config.json"),
            &json!({"eos_token_id": end}),
        );
        std::fs::copy(TEMPLATE, target.join("chat_template.jinja")).unwrap();
        pair
    }

    /// A file or folder of the pair.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The target's folder.
    pub fn target(&self) -> String {
        self.path("target").to_str().unwrap().to_owned()
    }

    /// The drafter's folder.
    pub fn drafter(&self) -> String {
        self.path("drafter").to_str().unwrap().to_owned()
    }

    /// Changes a JSON file.
    pub fn edit_json(&self, file: &str, edit: impl FnOnce(&mut Value)) {
        let path = self.path(file);
        let mut value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        edit(&mut value);
        write_json(&path, &value);
    }

    /// Changes the tensors of `model.safetensors` of target or drafter.
    pub fn edit_tensors(&self, which: &str, edit: impl FnOnce(&mut Tensors)) {
        let path = self.path(which).join("model.safetensors");
        let mut tensors = read_tensors(&path);
        edit(&mut tensors);
        write_tensors(&path, &tensors);
    }

    /// Splits the target's weights into two shards with an index.
    pub fn shard(&self) {
        let folder = self.path("target");
        let single = folder.join("model.safetensors");
        let mut first = read_tensors(&single);
        let middle = first.keys().nth(first.len() / 2).unwrap().clone();
        let second = first.split_off(&middle);
        let mut map = Map::new();
        for (number, tensors) in [(1, first), (2, second)] {
            let file = format!("model-0000{number}-of-00002.safetensors");
            for name in tensors.keys() {
                map.insert(name.clone(), file.clone().into());
            }
            write_tensors(&folder.join(&file), &tensors);
        }
        write_json(
            &folder.join("model.safetensors.index.json"),
            &json!({"weight_map": map}),
        );
        std::fs::remove_file(single).unwrap();
    }
}

/// Writes one value into a tensor of bf16 values.
pub fn set_bf16(tensors: &mut Tensors, name: &str, index: usize, value: f32) {
    let (dtype, _, bytes) = tensors.get_mut(name).unwrap();
    assert_eq!(*dtype, Dtype::BF16, "{name}");
    // The upper half of an f32; NaN and infinity keep their class.
    let upper = (value.to_bits() >> 16) as u16;
    bytes[2 * index..2 * index + 2].copy_from_slice(&upper.to_le_bytes());
}

fn read_tensors(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    SafeTensors::deserialize(&bytes)
        .unwrap()
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            (
                name,
                (view.dtype(), view.shape().to_vec(), view.data().to_vec()),
            )
        })
        .collect()
}

fn write_tensors(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    std::fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

fn write_json(path: &Path, value: &Value) {
    std::fs::write(path, serde_json::to_vec(value).unwrap()).unwrap();
}

/// A byte-level tokenizer of single characters, and the id of its end of turn.
fn tokenizer() -> (Value, usize) {
    // `Ġ` and `Ċ` stand for space and newline.
    let characters: Vec<char> = ('a'..='z')
        .chain('A'..='Z')
        .chain('0'..='9')
        .chain("ĠĊ.,!?:;'\"-_<>|/()[]{}".chars())
        .collect();
    let mut vocabulary = Map::new();
    for (id, character) in characters.iter().enumerate() {
        vocabulary.insert(character.to_string(), id.into());
    }
    let first = characters.len();
    let marks = [
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "</think>",
    ];
    let added: Vec<Value> = marks
        .iter()
        .enumerate()
        .map(|(index, content)| {
            json!({"id": first + index, "content": content, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
                "special": content.contains('|')})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true, "use_regex": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocabulary, "merges": []},
    });
    (tokenizer, first + 2)
}
