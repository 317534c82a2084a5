//! Rules about the source tree that reviewers would otherwise have to remember.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

use std::fs;
use std::path::{Path, PathBuf};

const FILE_LINES_MAX: usize = 600;
const FILE_LINES_MEDIAN_MAX: usize = 250;
const FUNCTION_LINES_MAX: usize = 70;

struct Source {
    /// Relative to the root, with forward slashes.
    path: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of the project with one of these endings.
fn sources(endings: &[&str]) -> Vec<Source> {
    let mut folders = vec![root().to_path_buf()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                let skipped = ["target", ".git", "node_modules", "__pycache__", ".venv"];
                let ignored = folder == root() && [".gpu", ".whl"].contains(&name.as_str());
                if !skipped.contains(&name.as_str()) && !ignored {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let relative = path.strip_prefix(root()).unwrap();
                found.push(Source {
                    path: relative.to_string_lossy().replace('\\', "/"),
                    text: fs::read_to_string(&path).unwrap(),
                });
            }
        }
    }
    assert!(
        !found.is_empty(),
        "no {endings:?} below {}",
        root().display()
    );
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn none(what: &str, faults: Vec<String>) {
    assert!(faults.is_empty(), "{what}:\n{}", faults.join("\n"));
}

#[test]
fn files_are_short() {
    let mut counts = Vec::new();
    let mut long = Vec::new();
    for source in sources(&[".rs", ".py", ".cu", ".cuh", ".sh"]) {
        let lines = source.text.lines().count();
        if source.path.ends_with(".rs") {
            counts.push(lines);
        }
        if lines > FILE_LINES_MAX {
            long.push(format!("{} has {lines} lines", source.path));
        }
    }
    none(&format!("files over {FILE_LINES_MAX} lines"), long);
    counts.sort_unstable();
    let median = counts[counts.len() / 2];
    assert!(
        median < FILE_LINES_MEDIAN_MAX,
        "the median file has {median} lines"
    );
}

/// Lines of every function of formatted Rust: from `fn` to the brace at the same depth.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let depth = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let words = line.trim_start();
        let is_function = [
            "fn ",
            "pub fn ",
            "pub(crate) fn ",
            "pub(super) fn ",
            "async fn ",
        ]
        .iter()
        .chain(&[
            "pub async fn ",
            "pub(crate) async fn ",
            "const fn ",
            "unsafe fn ",
        ])
        .any(|head| words.starts_with(head));
        if !is_function || line.ends_with(';') {
            continue;
        }
        let close = format!("{}}}", " ".repeat(depth(line)));
        let rest = &lines[start..];
        if let Some(end) = rest.iter().position(|line| **line == close) {
            found.push((words.to_owned(), end + 1));
        }
    }
    found
}

#[test]
fn functions_are_short() {
    let mut long = Vec::new();
    let mut seen = 0;
    for source in sources(&[".rs"]) {
        for (name, lines) in functions(&source.text) {
            seen += 1;
            if lines > FUNCTION_LINES_MAX {
                long.push(format!("{}: {name} {lines} lines", source.path));
            }
        }
    }
    assert!(
        seen > 500,
        "only {seen} functions found: the search is broken"
    );
    none(&format!("functions over {FUNCTION_LINES_MAX} lines"), long);
}

#[test]
fn unsafe_code_and_gpu_features_stay_in_ops() {
    let inside = |path: &str| path.starts_with("crates/ops/") || path == "tests/tidy.rs";
    let faults = sources(&[".rs"])
        .into_iter()
        .filter(|source| !inside(&source.path))
        .flat_map(|source| {
            let Source { path, text } = source;
            // Names of flags may have the word as a part.
            let part = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
            text.lines()
                .filter(|line| !line.trim_start().starts_with("//"))
                .filter(|line| {
                    line.split(|c| !part(c)).any(|word| word == "unsafe")
                        || line.contains("feature = \"cuda\"")
                })
                .map(|line| format!("{path}: {}", line.trim()))
                .collect::<Vec<_>>()
        })
        .collect();
    none("unsafe code or a GPU feature outside ops", faults);
}

#[test]
fn crates_know_only_what_lies_below() {
    let edges = [
        ("ops", &[][..]),
        ("model", &["ops"]),
        ("engine", &["model", "ops"]),
        ("server", &["engine"]),
    ];
    for (name, allowed) in edges {
        let text = fs::read_to_string(root().join(format!("crates/{name}/Cargo.toml"))).unwrap();
        for other in edges.map(|(other, _)| other) {
            let depends = text
                .lines()
                .any(|line| line.starts_with(&format!("{other}.workspace")));
            assert_eq!(
                depends,
                allowed.contains(&other),
                "crates/{name} on {other}"
            );
        }
    }
}

#[test]
fn nothing_of_a_machine_is_committed() {
    let words = [
        "/work/",
        "/root/",
        "/home/",
        "index.crates.io",
        "files.pythonhosted.org",
    ];
    let faults = sources(&[
        ".rs", ".py", ".md", ".toml", ".sh", ".json", ".txt", ".jinja", "run",
    ])
    .into_iter()
    .filter(|source| source.path != "tests/tidy.rs")
    .flat_map(|source| {
        let found = words.iter().filter(|word| source.text.contains(**word));
        found
            .map(|word| format!("{}: {word}", source.path))
            .collect::<Vec<_>>()
    })
    .collect();
    none("paths or hosts of a machine", faults);
}

#[test]
fn nothing_is_left_unfinished() {
    let marks = ["todo!(", "unimplemented!(", "dbg!(", "FIXME"];
    let faults = sources(&[".rs", ".py", ".cu", ".cuh", ".sh"])
        .into_iter()
        .filter(|source| source.path != "tests/tidy.rs")
        .flat_map(|source| {
            let found = marks.iter().filter(|mark| source.text.contains(**mark));
            found
                .map(|mark| format!("{}: {mark}", source.path))
                .collect::<Vec<_>>()
        })
        .collect();
    none("unfinished work", faults);
}
