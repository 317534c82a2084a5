//! What the commands print when everything is in order.

#[path = "common/cli.rs"]
mod cli;

use std::io::BufRead;
use std::process::{Command, Stdio};

use cli::{Background, Pair, command, finish, spinney, spinney_reading};
use serde_json::{Value, json};

/// `generate --json` on the pair's folders.
fn generate(pair: &Pair, args: &[&str]) -> Value {
    let (target, drafter) = (pair.target(), pair.drafter());
    let model = ["generate", "--json", "--model-path", &target];
    let drafter = ["--speculative-draft-model-path", &drafter];
    spinney(&[&model[..], &drafter, args].concat()).json()
}

const SHAPES: [&[&str]; 4] = [
    &["--speculative-algorithm=NONE"],
    &["--speculative-algorithm=DFLASH"],
    &[
        "--speculative-ddtree-budget=15",
        "--speculative-ddtree-topk-cap=4",
    ],
    &["--speculative-ddtree-budget=auto"],
];

#[test]
fn every_algorithm_generates_the_same_tokens() {
    let pair = Pair::new();
    let samplings: [&[&str]; 3] = [
        &[],
        &["--temperature=1", "--seed=7"],
        &[
            "--temperature=0.8",
            "--seed=7",
            "--top-k=20",
            "--top-p=0.9",
            "--presence-penalty=0.5",
        ],
    ];
    for sampling in samplings {
        let mut plain = None;
        for shape in SHAPES {
            let input = ["--prompt-ids=5,17,42,3,80", "--max-tokens=24"];
            let output = generate(&pair, &[&input[..], sampling, shape].concat());
            let ids = output["token_ids"].clone();
            assert_eq!(ids.as_array().unwrap().len(), 24);
            assert_eq!(
                *plain.get_or_insert(ids.clone()),
                ids,
                "{sampling:?} {shape:?}"
            );
            if !sampling.is_empty() {
                assert_eq!(output["seed"], 7);
            }
        }
    }
}

#[test]
fn the_object_adds_up() {
    let pair = Pair::new();
    for shape in SHAPES {
        let args = [
            "--prompt=The cat",
            "--max-tokens=20",
            "--top-logprobs=3",
            "--ignore-eos",
        ];
        let output = generate(&pair, &[&args[..], shape].concat());
        assert_eq!(output["finish_reason"], "length");
        let usage = json!({"prompt_tokens": 7, "completion_tokens": 20, "total_tokens": 27});
        assert_eq!(output["usage"], usage);
        let metrics = &output["metrics"];
        let histogram: Vec<u64> =
            serde_json::from_value(metrics["acceptance_histogram"].clone()).unwrap();
        let steps: u64 = histogram.iter().sum();
        let accepted: u64 = (0..)
            .zip(&histogram)
            .map(|(length, count): (u64, _)| length * count)
            .sum();
        assert_eq!(
            (&metrics["steps"], &metrics["accepted"]),
            (&json!(steps), &json!(accepted))
        );
        // The prompt's prefill makes the first token, every step one and what it accepts.
        assert_eq!(1 + steps + accepted, 20);
        let mean = metrics["mean_acceptance_length"].as_f64().unwrap();
        assert!((mean - (1.0 + accepted as f64 / steps as f64)).abs() < 1e-9);
        assert!(metrics["decode_ms"].as_f64().unwrap() > 0.0);
        let lines = output["logprobs"].as_array().unwrap();
        assert_eq!(lines.len(), 20);
        for (line, id) in lines.iter().zip(output["token_ids"].as_array().unwrap()) {
            assert_eq!(&line["id"], id);
            let top = line["top"].as_array().unwrap();
            assert_eq!(top.len(), 3);
            // Greedy: the token is the most likely one.
            assert_eq!((&top[0][0], &top[0][1]), (id, &line["logprob"]));
            assert!(line["logprob"].as_f64().unwrap() <= 0.0);
        }
    }
}

#[test]
fn a_stop_token_ends_the_output_and_has_no_text() {
    let pair = Pair::new();
    let free = generate(&pair, &["--prompt=ab", "--max-tokens=12"]);
    let ids: Vec<u32> = serde_json::from_value(free["token_ids"].clone()).unwrap();
    // The first token that did not occur before becomes the end of turn.
    let end = (1..ids.len())
        .find(|&at| !ids[..at].contains(&ids[at]))
        .unwrap();
    pair.edit_json("target/generation_config.json", |config| {
        config["eos_token_id"] = json!([ids[end]]);
    });
    for shape in SHAPES {
        let output = generate(
            &pair,
            &[&["--prompt=ab", "--max-tokens=12"][..], shape].concat(),
        );
        assert_eq!(output["token_ids"], json!(ids[..=end]), "{shape:?}");
        assert_eq!(output["finish_reason"], "stop");
        let text = output["text"].as_str().unwrap();
        assert!(free["text"].as_str().unwrap().starts_with(text));
        let ignored = ["--prompt=ab", "--max-tokens=12", "--ignore-eos"];
        let output = generate(&pair, &[&ignored[..], shape].concat());
        assert_eq!(output["token_ids"], json!(ids));
        assert_eq!(output["text"], free["text"]);
    }
}

#[test]
fn banned_tokens_never_come() {
    let pair = Pair::new();
    let free = generate(&pair, &["--prompt-ids=9", "--max-tokens=16"]);
    let first = free["token_ids"][0].clone();
    let ban = format!("--logit-bias={first}=-inf");
    for shape in SHAPES {
        let args = ["--prompt-ids=9", "--max-tokens=16", &ban];
        let output = generate(&pair, &[&args[..], shape].concat());
        assert!(
            !output["token_ids"].as_array().unwrap().contains(&first),
            "{shape:?}"
        );
    }
}

#[test]
fn text_and_object_agree() {
    let pair = Pair::new();
    let target = pair.target();
    let args = [
        "generate",
        "--model-path",
        &target,
        "--prompt",
        "Once",
        "--max-tokens",
        "16",
    ];
    let text = spinney(&args);
    let object = spinney(&[&args[..], &["--json"]].concat()).json();
    assert_eq!(object["text"], text.stdout);
    assert!(!text.stdout.is_empty());
    let summary: Vec<&str> = text.stderr.lines().collect();
    assert_eq!(summary.len(), 1, "{}", text.stderr);
    assert!(
        summary[0].starts_with("16 tokens (length), prefill "),
        "{}",
        text.stderr
    );
}

/// In a file of both, the statistics have a line of their own.
#[test]
fn statistics_begin_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("both");
    let file = std::fs::File::create(&path).unwrap();
    let mut generate = command(&["generate", "--prompt", "Once", "--max-tokens", "4"]);
    generate.stdout(file.try_clone().unwrap()).stderr(file);
    assert_eq!(finish(generate.spawn().unwrap()).code, 0);
    let both = std::fs::read_to_string(path).unwrap();
    let last = both.lines().next_back().unwrap();
    assert!(last.starts_with("4 tokens (length), prefill "), "{both}");
}

#[test]
fn token_ids_need_no_tokenizer() {
    let pair = Pair::new();
    let with = generate(&pair, &["--prompt-ids=1,2,3", "--max-tokens=8"]);
    let run = |args: &[&str]| {
        let target = pair.target();
        let model = [
            "generate",
            "--prompt-ids=1,2,3",
            "--max-tokens=8",
            "--model-path",
            &target,
        ];
        spinney(&[&model[..], args].concat())
    };
    for file in [
        "tokenizer.json",
        "chat_template.jinja",
        "generation_config.json",
    ] {
        std::fs::remove_file(pair.path("target").join(file)).unwrap();
    }
    let without = run(&["--json"]).json();
    assert_eq!(without["text"], Value::Null);
    assert_eq!(without["usage"], with["usage"]);
    let ids = without["token_ids"].as_array().unwrap();
    let listed: Vec<String> = ids.iter().map(Value::to_string).collect();
    assert_eq!(run(&[]).stdout.trim(), listed.join(","));
}

#[test]
fn shards_and_dtype_are_read() {
    let pair = Pair::new();
    let input = ["--prompt-ids=4,5", "--max-tokens=8", "--dtype=f32"];
    let single = generate(&pair, &input);
    let narrow = generate(
        &pair,
        &["--prompt-ids=4,5", "--max-tokens=8", "--dtype=bf16"],
    );
    assert_eq!(narrow["token_ids"].as_array().unwrap().len(), 8);
    pair.shard();
    assert_eq!(generate(&pair, &input)["token_ids"], single["token_ids"]);
}

#[test]
fn rendered_prompts_are_what_chat_generates_from() {
    let pair = Pair::new();
    let target = pair.target();
    let body = json!({"messages": [{"role": "user", "content": "Hi there"}]});
    let render = |args: &[&str], body: &Value| {
        let model = ["render", "-", "--model-path", &target];
        spinney_reading(&[&model[..], args].concat(), &body.to_string())
    };
    let text = render(&[], &body);
    assert!(
        text.stdout
            .starts_with("<|im_start|>user\nHi there<|im_end|>\n"),
        "{text:?}"
    );
    assert!(text.stdout.contains("<|im_start|>assistant\n"), "{text:?}");
    let ids = render(&["--ids"], &body);
    let count = ids.stdout.trim().split(',').count();
    let output = generate(&pair, &["--chat=Hi there", "--max-tokens=1"]);
    assert_eq!(output["usage"]["prompt_tokens"], count);
    let ids = format!("--prompt-ids={}", ids.stdout.trim());
    let from_ids = generate(&pair, &[&ids, "--max-tokens=8"]);
    let from_chat = generate(&pair, &["--chat=Hi there", "--max-tokens=8"]);
    assert_eq!(from_ids["token_ids"], from_chat["token_ids"]);

    let mut thinking = body.clone();
    thinking["chat_template_kwargs"] = json!({"enable_thinking": true});
    let thought = render(&[], &thinking).stdout;
    assert!(
        thought.trim_end().ends_with("<think>") && thought != text.stdout,
        "{thought}"
    );
    let count = render(&["--ids"], &thinking)
        .stdout
        .trim()
        .split(',')
        .count();
    let output = generate(
        &pair,
        &["--chat=Hi there", "--max-tokens=1", "--enable-thinking"],
    );
    assert_eq!(output["usage"]["prompt_tokens"], count);
}

#[test]
fn the_plan_adds_up_and_flags_shape_it() {
    let pair = Pair::new();
    let (target, drafter) = (pair.target(), pair.drafter());
    let check = |args: &[&str]| {
        let model = ["check", "--model-path", &target];
        let drafter = ["--speculative-draft-model-path", &drafter];
        spinney(&[&model[..], &drafter, args].concat())
    };
    let object = check(&["--json"]).json();
    let lines = object["memory"]["lines"].as_array().unwrap();
    let sum: u64 = lines
        .iter()
        .map(|line| line["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(object["memory"]["total_bytes"], sum);
    assert_eq!(object["memory"]["slots"], 8);
    assert_eq!(object["tokenizer"], json!({"tokens": 89, "head_rows": 97}));
    assert_eq!(object["speculative_algorithm"], "DDTREE");
    let table = check(&[]).stdout;
    for line in lines {
        assert!(table.contains(line["part"].as_str().unwrap()), "{table}");
    }
    let snapshots = |args: &[&str]| {
        let memory = check(&[&["--json"], args].concat()).json()["memory"].clone();
        let lines = memory["lines"].as_array().unwrap();
        let line = lines.iter().find(|line| line["part"] == "state snapshots");
        let bytes = line.map_or(0, |line| line["bytes"].as_u64().unwrap());
        (bytes, memory["host_bytes"].as_u64().unwrap())
    };
    // Every place is as large as the others; what brings states on to a multiple of 64 is there once.
    let three = [
        "--prefix-cache-snapshots=3",
        "--prefix-cache-host-snapshots=2",
    ];
    let (three, host) = snapshots(&three);
    let one = snapshots(&["--prefix-cache-snapshots=4"]).0 - three;
    assert_eq!(host, 2 * one);
    let all = snapshots(&[]).0;
    assert_eq!(all, three + 13 * one, "the CPU keeps 16 without being told");
    assert_eq!(snapshots(&["--disable-radix-cache"]), (0, 0));
    let plain = check(&[
        "--json",
        "--speculative-algorithm=NONE",
        "--max-running-requests=2",
    ]);
    let plain = plain.json();
    assert_eq!(
        (&plain["drafter"], &plain["memory"]["slots"]),
        (&Value::Null, &json!(2))
    );
    assert!(plain["memory"]["total_bytes"].as_u64().unwrap() < sum);
}

#[test]
fn dummy_weights_need_a_configuration_only() {
    let pair = Pair::new();
    for file in [
        "target/model.safetensors",
        "target/tokenizer.json",
        "target/generation_config.json",
        "target/chat_template.jinja",
        "drafter/model.safetensors",
    ] {
        std::fs::remove_file(pair.path(file)).unwrap();
    }
    // A head with a row for every token of the tokenizer that stands in.
    for config in ["target/config.json", "drafter/config.json"] {
        pair.edit_json(config, |config| config["vocab_size"] = json!(2_048));
    }
    let (target, drafter) = (pair.target(), pair.drafter());
    let model = [
        "--load-format=dummy",
        "--model-path",
        &target,
        "--speculative-draft-model-path",
        &drafter,
    ];
    let generate = |args: &[&str]| {
        let command = [
            "generate",
            "--json",
            "--chat=Hi",
            "--max-tokens=12",
            "--ignore-eos",
        ];
        spinney(&[&command[..], &model, args].concat()).json()
    };
    let first = generate(&[]);
    assert_eq!(first["usage"]["completion_tokens"], 12);
    assert!(first["text"].as_str().is_some_and(|text| !text.is_empty()));
    assert_eq!(
        first["token_ids"],
        generate(&["--load-seed=0"])["token_ids"]
    );
    assert_eq!(
        first["token_ids"],
        generate(&["--speculative-algorithm=NONE"])["token_ids"]
    );
    assert_ne!(
        first["token_ids"],
        generate(&["--load-seed=1"])["token_ids"]
    );
    let check = spinney(&[&["check", "--json"][..], &model].concat()).json();
    assert_eq!(
        (&check["target"], &check["drafter"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(check["memory"]["fits"], true);
    // Without the format the weights are missed.
    let run = spinney(&["generate", "--prompt-ids=1", "--model-path", &target]);
    run.refused(3, &["model.safetensors"]);
}

#[test]
fn command_line_environment_and_file_in_this_order() {
    let pair = Pair::new();
    let file = pair.path("spinney.toml").to_str().unwrap().to_owned();
    let text = format!(
        "model_path = \"{}\"\ncontext-length = 128\nport = 1\nmax_running_requests = 2\n\
         skip-server-warmup = true\n",
        pair.target()
    );
    std::fs::write(&file, text).unwrap();
    let context = |environment: &[(&str, &str)], args: &[&str]| {
        let mut check = command(&[&["check", "--json", "--config", &file][..], args].concat());
        let child = check.envs(environment.iter().copied()).spawn().unwrap();
        let output = finish(child).json();
        assert_eq!(output["memory"]["slots"], 2);
        output["context_length"].as_u64().unwrap()
    };
    assert_eq!(context(&[], &[]), 128);
    let variable = ("SPINNEY_CONTEXT_LENGTH", "256");
    assert_eq!(context(&[variable], &[]), 256);
    assert_eq!(context(&[variable], &["--context_length", "384"]), 384);
}

#[test]
fn the_bundled_pair_answers() {
    let output = spinney(&[
        "generate",
        "--chat=What is the capital of France?",
        "--json",
    ])
    .json();
    let text = output["text"].as_str().unwrap();
    assert!(text.contains("Paris"), "{text}");
    assert_eq!(output["finish_reason"], "stop");
    let mean = output["metrics"]["mean_acceptance_length"]
        .as_f64()
        .unwrap();
    assert!(mean > 2.0, "{mean}");
    let plain = [
        "generate",
        "--chat=What is the capital of France?",
        "--json",
    ];
    let plain = spinney(&[&plain[..], &["--speculative-algorithm=NONE"]].concat()).json();
    assert_eq!(plain["token_ids"], output["token_ids"]);
    let check = spinney(&["check", "--json"]).json();
    assert_eq!(check["model_path"], "spinney-tiny");
    assert!(check["drafter"]["tensors"].as_u64().unwrap() > 0);
}

#[test]
fn a_server_on_any_port_says_where_it_is() {
    let pair = Pair::new();
    let (target, drafter) = (pair.target(), pair.drafter());
    let model = ["serve", "--port=0", "--model-path", &target];
    let drafter = [
        "--speculative-draft-model-path",
        &drafter,
        "--served-model-name",
        "pair",
    ];
    let mut server = Background::start(&mut command(&[&model[..], &drafter].concat()));
    let mut line = String::new();
    server.stdout().read_line(&mut line).unwrap();
    let url = line
        .trim()
        .strip_prefix("Serving pair on ")
        .unwrap_or_else(|| panic!("{line:?}"));
    let port = url.strip_prefix("http://127.0.0.1:").unwrap();
    let health = ureq::get(format!("{url}/health")).call().unwrap();
    assert_eq!(health.status(), 200);

    let second = spinney(&["serve", "--port", port, "--model-path", &target]);
    second.refused(1, &["cannot listen on", port]);

    let id = server.id().to_string();
    let signal = Command::new("kill")
        .args(["-TERM", &id])
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(signal.success());
    let (code, log) = server.wait();
    assert_eq!(code, 0, "{log}");
    assert!(log.contains("Warming up"), "{log}");
}

#[test]
fn help_and_version_end_well() {
    let help = spinney(&["serve", "--help"]);
    assert_eq!((help.code, &*help.stderr), (0, ""));
    for flag in [
        "--model-path",
        "--speculative-ddtree-budget",
        "--config",
        "--drain-timeout",
    ] {
        assert!(help.stdout.contains(flag), "no {flag}");
    }
    let version = spinney(&["--version"]);
    assert_eq!(
        (version.code, &*version.stdout),
        (0, concat!("spinney ", env!("CARGO_PKG_VERSION"), "\n"))
    );
    // Without a command there is nothing to do.
    assert_eq!(spinney(&[]).code, 2);
}

#[test]
fn shipped_configurations_are_understood() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/configs");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Folders are models.
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let run = spinney(&["check", "--config", path.to_str().unwrap()]);
        assert_eq!(run.code, 0, "{}: {}", path.display(), run.stderr);
        files += 1;
    }
    assert!(files > 0);
}

#[test]
fn flags_of_the_readme_exist() {
    let readme = include_str!("../README.md");
    let help: String = ["serve", "generate", "check", "render"]
        .map(|command| spinney(&[command, "--help"]).stdout)
        .concat();
    let mut seen = 0;
    for row in readme.lines().filter(|line| line.starts_with("| `--")) {
        let names = row.split('|').nth(1).unwrap_or_default();
        for flag in names.split('`').filter(|part| part.starts_with("--")) {
            let shown = [format!("{flag} "), format!("{flag}\n")];
            assert!(shown.iter().any(|flag| help.contains(flag)), "no {flag}");
            seen += 1;
        }
    }
    assert!(seen > 15, "only {seen} flags in the table");
}

/// The table that `auto` chooses from, as lines and as an object.
#[test]
fn a_check_times_steps_where_that_is_asked_for() {
    let args = [
        "check",
        "--device=cpu",
        "--max-running-requests=2",
        "--time-steps",
    ];
    let run = spinney(&args);
    assert_eq!(run.code, 0, "{}", run.stderr);
    let table = run
        .stdout
        .split("a step of")
        .nth(1)
        .expect("a second table");
    for shape in ["plain ", "chain-15 ", "tree-63 ", "plain x2 "] {
        let line = table.lines().find(|line| line.starts_with(shape));
        let ms = line.and_then(|line| line.split_whitespace().last());
        let ms: f64 = ms.expect(shape).parse().expect("milliseconds");
        assert!(ms > 0.0, "{table}");
    }
    let object = spinney(&[&args[..], &["--json"]].concat()).json();
    assert!(object["step_times_ms"]["plain x2"].as_f64() > Some(0.0));
}
