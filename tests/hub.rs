//! Models by their name on the hub, against a stand-in with faults.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/cli.rs"]
mod cli;
#[path = "common/hub.rs"]
mod hub;

use std::path::PathBuf;
use std::process::Command;

use cli::{Pair, Run, command, finish};
use hub::{COMMIT, Fault, Hub, Model, TOKEN};
use tempfile::TempDir;

const RUNTIME: i32 = 1;
const MODEL_FILES: i32 = 3;
const TARGET: &str = "org/target";
const DRAFTER: &str = "org/drafter";
const WEIGHTS: &str = "model.safetensors";

/// The bundled pair's folder: its weights are large enough to lie behind a redirect.
const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/server/spinney-tiny");

/// A hub with a pair, and an empty cache.
struct Setting {
    hub: Hub,
    home: TempDir,
}

impl Setting {
    fn new() -> Self {
        Setting {
            hub: Hub::start(&[
                (TARGET, Model::of(TINY)),
                (DRAFTER, Model::of(&format!("{TINY}/drafter"))),
            ]),
            home: tempfile::tempdir().unwrap(),
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        for name in [
            "HF_HUB_CACHE",
            "HF_TOKEN",
            "HF_TOKEN_PATH",
            "HF_HUB_OFFLINE",
            "SSL_CERT_FILE",
        ] {
            command.env_remove(name);
        }
        command
            .env("HF_HOME", self.home.path())
            .env("HF_ENDPOINT", &self.hub.endpoint)
            .env("NO_PROXY", "127.0.0.1,localhost");
        command
    }

    fn run(&self, args: &[&str]) -> Run {
        finish(self.command(args).spawn().unwrap())
    }

    /// `check` reads every tensor, so everything is fetched.
    fn check(&self, more: &[&str]) -> Run {
        self.run(&[&["check", "--json", "--model-path", TARGET][..], more].concat())
    }

    fn snapshot(&self) -> PathBuf {
        let folder = self.home.path().join("hub/models--org--target/snapshots");
        folder.join(COMMIT)
    }

    fn fault(&self, file: &str, fault: Fault) {
        self.hub.edit(TARGET, |model| {
            model.faults.insert(file.to_owned(), fault);
        });
    }

    /// Bytes asked for: (first byte, file) of every GET of the weights.
    fn weight_requests(&self) -> Vec<Option<usize>> {
        let requests = self.hub.requests().into_iter();
        requests
            .filter(|request| request.method == "GET" && request.path.ends_with(WEIGHTS))
            .filter(|request| request.path.starts_with("/storage"))
            .map(|request| request.from)
            .collect()
    }
}

#[test]
fn a_pair_is_fetched_once_and_then_used_from_the_cache() {
    let setting = Setting::new();
    let drafter = ["--speculative-draft-model-path", DRAFTER];
    let report = setting.check(&drafter).json();
    assert_eq!(report["model_path"], TARGET);
    assert!(report["drafter"]["tensors"].as_u64().unwrap() > 0);
    let weights = setting.snapshot().join(WEIGHTS);
    let here = std::fs::read(format!("{TINY}/{WEIGHTS}")).unwrap();
    assert_eq!(std::fs::read(&weights).unwrap(), here);
    assert!(weights.is_symlink(), "as the hub's own tools lay it out");
    assert!(
        !setting.snapshot().join("README.md").exists(),
        "only what is needed"
    );
    // Again: one question about each model's commit, nothing else.
    setting.hub.requests();
    setting.check(&drafter).json();
    let again = setting.hub.requests();
    assert_eq!(again.len(), 2, "{again:?}");
    // And without any question.
    let both = [&drafter[..], &["--offline"]].concat();
    setting.check(&both).json();
    let pinned = format!("{TARGET}@{COMMIT}");
    setting
        .run(&["check", "--json", "--model-path", &pinned])
        .json();
    assert!(setting.hub.requests().is_empty());
}

#[test]
fn render_takes_the_small_files_only() {
    let setting = Setting::new();
    let request = setting.home.path().join("request.json");
    std::fs::write(
        &request,
        r#"{"messages": [{"role": "user", "content": "Hi"}]}"#,
    )
    .unwrap();
    let run = setting.run(&["render", "--model-path", TARGET, request.to_str().unwrap()]);
    assert!(run.stdout.contains("Hi"), "{}", run.stderr);
    assert!(!setting.snapshot().join(WEIGHTS).exists());
    // A cache without the weights does not do for what needs them.
    let run = setting.check(&["--offline"]);
    run.refused(MODEL_FILES, &[TARGET, WEIGHTS, "is missing", "--offline"]);
}

#[test]
fn generate_downloads_before_it_loads() {
    let setting = Setting::new();
    let run = setting.run(&[
        "generate",
        "--json",
        "--model-path",
        TARGET,
        "--prompt",
        "Once",
        "--max-tokens",
        "4",
    ]);
    assert_eq!(run.json()["usage"]["completion_tokens"], 4);
}

#[test]
fn shards_are_those_of_the_index() {
    let pair = Pair::new();
    pair.shard();
    let hub = Hub::start(&[("org/target", Model::of(&pair.target()))]);
    let home = tempfile::tempdir().unwrap();
    let setting = Setting { hub, home };
    setting.check(&[]).json();
    let shards = setting.hub.requests();
    let of = |number: usize| {
        format!("/org/target/resolve/{COMMIT}/model-0000{number}-of-00002.safetensors")
    };
    for number in [1, 2] {
        assert!(shards.iter().any(|request| request.path == of(number)));
    }
    // A shard that the model does not have.
    let name = "model-00002-of-00002.safetensors";
    setting.hub.edit(TARGET, |model| {
        model.files.remove(name);
    });
    std::fs::remove_dir_all(setting.home.path().join("hub")).unwrap();
    setting
        .check(&[])
        .refused(MODEL_FILES, &["org/target", name]);
}

#[test]
fn a_broken_connection_is_resumed_where_it_broke() {
    let setting = Setting::new();
    setting.fault(
        WEIGHTS,
        Fault::Drop {
            after: 3_000_000,
            times: 2,
        },
    );
    setting.check(&[]).json();
    assert_eq!(
        setting.weight_requests(),
        [None, Some(3_000_000), Some(6_000_000)]
    );
}

#[test]
fn what_an_earlier_run_received_is_kept() {
    let setting = Setting::new();
    let gone = Fault::Gone {
        after: 5_000_000,
        yet: false,
    };
    setting.fault(WEIGHTS, gone);
    setting.check(&[]).refused(MODEL_FILES, &[WEIGHTS, "404"]);
    setting.hub.edit(TARGET, |model| model.faults.clear());
    setting.hub.requests();
    setting.check(&[]).json();
    assert_eq!(setting.weight_requests(), [Some(5_000_000)]);
}

#[test]
fn a_server_without_ranges_starts_again() {
    let setting = Setting::new();
    setting.fault(
        WEIGHTS,
        Fault::NoRanges {
            after: 2_000_000,
            times: 1,
        },
    );
    setting.check(&[]).json();
}

#[test]
fn a_server_in_trouble_is_asked_again() {
    let setting = Setting::new();
    setting.fault(WEIGHTS, Fault::Unavailable { times: 2 });
    setting.check(&[]).json();
}

#[test]
fn wrong_contents_are_not_kept() {
    for (fault, parts) in [
        (Fault::Corrupt, ["SHA-256", "start again"]),
        (Fault::Short, ["bytes, the server has", "start again"]),
    ] {
        let setting = Setting::new();
        setting.fault(WEIGHTS, fault);
        setting
            .check(&[])
            .refused(MODEL_FILES, &[&parts[..], &[WEIGHTS]].concat());
        setting.hub.edit(TARGET, |model| model.faults.clear());
        setting.check(&[]).json();
    }
}

#[test]
fn names_that_lead_nowhere() {
    let setting = Setting::new();
    let run = |path: &str| setting.run(&["check", "--model-path", path]);
    run("org/other").refused(MODEL_FILES, &["org/other", "no such model", "HF_TOKEN"]);
    run("org/target@v9").refused(MODEL_FILES, &["org/target@v9", "revision"]);
    assert_eq!(run("org/target@v1").code, 0);
    // Nothing is asked about what can only be a folder.
    setting.hub.requests();
    for path in ["./org/target", "no-such-folder", "a/b/c", "/no/such/folder"] {
        run(path).refused(MODEL_FILES, &[path, "expected a folder"]);
    }
    assert!(setting.hub.requests().is_empty());
    setting.fault("tokenizer.json", Fault::Missing);
    std::fs::remove_dir_all(setting.home.path().join("hub")).unwrap();
    run(TARGET).refused(MODEL_FILES, &["tokenizer.json", "404"]);
    setting.hub.edit(TARGET, |model| {
        model.files.remove("config.json");
    });
    run(TARGET).refused(MODEL_FILES, &["org/target", "no config.json"]);
}

#[test]
fn gated_models_ask_for_a_token() {
    let setting = Setting::new();
    setting.hub.edit(TARGET, |model| model.gated = true);
    setting.check(&[]).refused(
        MODEL_FILES,
        &["401", "gated", "set HF_TOKEN", &setting.hub.endpoint],
    );
    let with = |token: &str| {
        let mut command = setting.command(&["check", "--json", "--model-path", TARGET]);
        finish(command.env("HF_TOKEN", token).spawn().unwrap())
    };
    with("hf_wrong").refused(MODEL_FILES, &["403", "token in HF_TOKEN"]);
    setting.hub.requests();
    with(TOKEN).json();
    let leaked = setting
        .hub
        .requests()
        .into_iter()
        .find(|request| request.path.starts_with("/storage") && request.token.is_some());
    assert!(leaked.is_none(), "{leaked:?}");
}

#[test]
fn without_a_network() {
    let setting = Setting::new();
    setting.check(&["--offline"]).refused(
        MODEL_FILES,
        &[TARGET, "nothing of it is in", "--offline", "HF_HUB_OFFLINE"],
    );
    let unreachable = |args: &[&str]| {
        let mut command = setting.command(args);
        finish(
            command
                .env("HF_ENDPOINT", "http://127.0.0.1:9")
                .spawn()
                .unwrap(),
        )
    };
    let check = ["check", "--model-path", TARGET];
    unreachable(&check).refused(RUNTIME, &["http://127.0.0.1:9", "HF_ENDPOINT", "--offline"]);
    setting.check(&[]).json();
    let run = unreachable(&check);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(
        run.stderr.contains("using the files in the cache"),
        "{}",
        run.stderr
    );
}
