//! Models by their name on the hub, against a stand-in with faults.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/cli.rs"]
mod cli;
#[path = "common/hub.rs"]
mod hub;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use cli::{Background, Pair, Run, command, finish};
use serde_json::{Value, json};

use hub::{COMMIT, Fault, Hub, Model, TOKEN};
use tempfile::TempDir;

/// A slow machine takes long to start a server.
const LATER: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
const RUNTIME: i32 = 1;
const MODEL_FILES: i32 = 3;
const DEVICE: i32 = 4;
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

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(LATER))
        .build()
        .into()
}

/// Status and body of `GET path`, once somebody listens.
fn get(port: u16, path: &str) -> (u16, Value) {
    let until = Instant::now() + LATER;
    loop {
        match agent().get(format!("http://127.0.0.1:{port}{path}")).call() {
            Ok(mut answer) => {
                let body = answer.body_mut().read_json().unwrap();
                return (answer.status().as_u16(), body);
            }
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
        std::thread::sleep(POLL);
    }
}

/// Status and body of a POST to somebody who listens already.
fn post(port: u16, path: &str, body: &Value) -> (u16, Value) {
    let mut answer = agent()
        .post(format!("http://127.0.0.1:{port}{path}"))
        .content_type("application/json")
        .send(body.to_string())
        .unwrap();
    let body = answer.body_mut().read_json().unwrap();
    (answer.status().as_u16(), body)
}

#[test]
fn a_server_listens_and_tells_while_it_downloads() {
    let setting = Setting::new();
    let half = Fault::Hold { after: 5_000_000 };
    setting.fault(WEIGHTS, half);
    let port = {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        free.local_addr().unwrap().port()
    };
    let port_flag = format!("--port={port}");
    let args = [
        "serve",
        "--skip-server-warmup",
        &port_flag,
        "--model-path",
        TARGET,
    ];
    let server = Background::start(&mut setting.command(&args));
    let size = std::fs::metadata(format!("{TINY}/{WEIGHTS}"))
        .unwrap()
        .len();
    let until = Instant::now() + LATER;
    let body = loop {
        let (status, body) = get(port, "/health");
        assert_eq!(status, 503, "{body}");
        if body["bytes_done"] == 5_000_000 {
            break body;
        }
        assert!(Instant::now() < until, "{body}\n{}", server.log());
        std::thread::sleep(POLL);
    };
    assert_eq!(
        (&body["status"], &body["phase"]),
        (&json!("loading"), &json!("download"))
    );
    assert_eq!(body["bytes_total"], size);
    assert!(body["gb_per_s"].as_f64().unwrap() > 0.0, "{body}");
    assert_eq!(body["error"]["code"], "model_loading");
    // Alive, and it knows its name already.
    assert_eq!(get(port, "/livez").0, 200);
    assert_eq!(get(port, "/v1/models").1["data"][0]["id"], TARGET);
    // What needs no weights is answered, what needs them says when to come back.
    let (status, tokens) = post(port, "/tokenize", &json!({"prompt": "Hi"}));
    assert_eq!((status, &tokens["count"]), (200, &json!(2)), "{tokens}");
    let talk = json!({"model": TARGET, "messages": [{"role": "user", "content": "Hi"}]});
    assert_eq!(post(port, "/apply-template", &talk).0, 200);
    assert_eq!(get(port, "/server_info").1["startup_time"], json!(null));
    for (status, refusal) in [
        get(port, "/flush_cache"),
        post(port, "/v1/chat/completions", &talk),
    ] {
        let code = (status, &refusal["error"]["code"]);
        assert_eq!(code, (503, &json!("model_loading")), "{refusal}");
    }
    assert_eq!(get(port, "/health_generate").0, 503);
    setting.hub.edit(TARGET, |model| model.faults.clear());
    let until = Instant::now() + LATER;
    while get(port, "/health").0 != 200 {
        assert!(Instant::now() < until, "{}", server.log());
        std::thread::sleep(POLL);
    }
}

/// Small files say what the weights would need.
#[test]
fn weights_without_a_place_are_not_fetched() {
    let setting = Setting::new();
    let long = "--context-length=16777216";
    let place = ["--device=cpu", "--model-path", TARGET];
    let no_device = ["--device=cuda", "--model-path", TARGET];
    setting.hub.edit(TARGET, |model| {
        let config = model.files.get_mut("config.json").unwrap();
        let mut value: Value = serde_json::from_slice(config).unwrap();
        let place = match value.get("text_config") {
            Some(_) => &mut value["text_config"],
            None => &mut value,
        };
        // Terabytes of keys and values, and few weights.
        place["num_attention_heads"] = json!(128);
        place["num_key_value_heads"] = json!(128);
        place["max_position_embeddings"] = json!(1 << 24);
        *config = value.to_string().into_bytes();
    });
    let step = [
        "bench",
        "step",
        "--batches=64",
        "--repeat=1",
        "--contexts=16000000",
    ];
    let talk = ["bench", "conversation", "--turns=2", long];
    let wrong: [(&[&str], &[&str]); 6] = [
        (&["check", long], &place),
        (&step, &place),
        (&talk, &place),
        (&["check"], &no_device),
        (&["bench", "step"], &no_device),
        (&["bench", "conversation", "--turns=2"], &no_device),
    ];
    for (command, place) in wrong {
        // Whoever has a GPU has a device.
        if place == no_device && std::env::var_os("SPINNEY_TEST_DEVICE").is_some() {
            continue;
        }
        let run = setting.run(&[command, place].concat());
        assert_eq!(run.code, DEVICE, "{command:?}: {}", run.stderr);
        assert!(!setting.snapshot().join(WEIGHTS).exists(), "{command:?}");
    }
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

/// What is missing is not needed, and the hub has it but not now.
#[test]
fn a_hub_that_answers_half_is_as_good_as_none() {
    let setting = Setting::new();
    let file = "generation_config.json";
    setting.fault(file, Fault::Down);
    let check = ["check", "--model-path", TARGET];
    let refused = setting.run(&check);
    refused.refused(RUNTIME, &[file, "503", "--offline"]);
    setting.hub.edit(TARGET, |model| model.faults.clear());
    setting.check(&[]).json();
    std::fs::remove_file(setting.snapshot().join(file)).unwrap();
    setting.fault(file, Fault::Down);
    let run = setting.run(&check);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let told = "using the files in the cache";
    assert!(run.stderr.contains(told), "{}", run.stderr);
    // Pinned to its commit the cache is not doubted.
    let pinned = format!("{TARGET}@{COMMIT}");
    let run = setting.run(&["check", "--model-path", &pinned]);
    assert_eq!((run.code, run.stderr.contains(told)), (0, false));
}
