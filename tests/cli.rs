//! Bad input to the command line: a clear message, the right exit code, never a panic.

#[path = "common/cli.rs"]
mod cli;

use std::process::Stdio;

use cli::{Pair, command, finish, set_bf16, spinney, spinney_reading};
use serde_json::json;

const USAGE: i32 = 2;
const MODEL_FILES: i32 = 3;
const DEVICE: i32 = 4;
/// A matrix of the fixture that every forward pass uses.
const MATRIX: &str = "model.layers.0.mlp.down_proj.weight";

/// `check` with the pair's folders.
fn check(pair: &Pair) -> cli::Run {
    let (target, drafter) = (pair.target(), pair.drafter());
    spinney(&[
        "check",
        "--model-path",
        &target,
        "--speculative-draft-model-path",
        &drafter,
    ])
}

#[test]
fn the_pair_itself_is_in_order() {
    let run = check(&Pair::new());
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("all finite"), "{}", run.stdout);
}

#[test]
fn truncated_weights() {
    let pair = Pair::new();
    for (which, keep) in [("target", 0.9), ("drafter", 0.5), ("target", 0.0)] {
        let file = pair.path(which).join("model.safetensors");
        let bytes = std::fs::read(&file).unwrap();
        let length = (bytes.len() as f64 * keep) as usize;
        std::fs::write(&file, &bytes[..length]).unwrap();
        check(&pair).refused(MODEL_FILES, &[which, "model.safetensors"]);
        let (target, drafter) = (pair.target(), pair.drafter());
        let pair_flags = [
            "--model-path",
            &target,
            "--speculative-draft-model-path",
            &drafter,
        ];
        let generate = [&["generate", "--prompt-ids", "1"][..], &pair_flags].concat();
        spinney(&generate).refused(MODEL_FILES, &["model.safetensors"]);
        std::fs::write(&file, &bytes).unwrap();
    }
}

#[test]
fn missing_and_misplaced_shards() {
    let pair = Pair::new();
    pair.shard();
    assert_eq!(check(&pair).code, 0);
    let second = pair.path("target/model-00002-of-00002.safetensors");
    let bytes = std::fs::read(&second).unwrap();
    std::fs::remove_file(&second).unwrap();
    let parts = ["model-00002-of-00002.safetensors", "the shard is missing"];
    check(&pair).refused(MODEL_FILES, &parts);
    std::fs::write(&second, bytes).unwrap();
    pair.edit_json("target/model.safetensors.index.json", |index| {
        index["weight_map"][MATRIX] = json!("../model.safetensors");
    });
    check(&pair).refused(MODEL_FILES, &["not the name of a file in the same folder"]);
}

#[test]
fn no_weights_at_all() {
    let pair = Pair::new();
    std::fs::remove_file(pair.path("target/model.safetensors")).unwrap();
    check(&pair).refused(
        MODEL_FILES,
        &["expected model.safetensors", "found neither"],
    );
}

#[test]
fn tensors_of_the_wrong_shape_type_or_name() {
    let pair = Pair::new();
    pair.edit_tensors("target", |tensors| {
        tensors.get_mut(MATRIX).unwrap().1.reverse();
    });
    let parts = [MATRIX, "expected shape [64, 96], found [96, 64]"];
    check(&pair).refused(MODEL_FILES, &parts);

    let pair = Pair::new();
    pair.edit_tensors("target", |tensors| {
        tensors.get_mut(MATRIX).unwrap().0 = safetensors::tensor::Dtype::I16;
    });
    check(&pair).refused(
        MODEL_FILES,
        &[MATRIX, "expected BF16, F16 or F32, found I16"],
    );

    let pair = Pair::new();
    pair.edit_tensors("target", |tensors| {
        let tensor = tensors.remove(MATRIX).unwrap();
        tensors.insert("model.layers.0.mlp.extra.weight".to_owned(), tensor);
    });
    check(&pair).refused(MODEL_FILES, &[MATRIX, "missing"]);

    let pair = Pair::new();
    pair.edit_tensors("drafter", |tensors| {
        let tensor = tensors.values().next().unwrap().clone();
        tensors.insert("layers.9.weight".to_owned(), tensor);
    });
    check(&pair).refused(MODEL_FILES, &["layers.9.weight", "unknown"]);
}

#[test]
fn values_that_are_not_finite() {
    for (which, value) in [
        ("target", f32::NAN),
        ("target", f32::INFINITY),
        ("drafter", f32::NAN),
    ] {
        let pair = Pair::new();
        let mut name = MATRIX.to_owned();
        pair.edit_tensors(which, |tensors| {
            if which == "drafter" {
                let found = tensors
                    .keys()
                    .find(|name| name.ends_with("down_proj.weight"));
                name = found.unwrap().clone();
            }
            set_bf16(tensors, &name, 5, value);
        });
        check(&pair).refused(MODEL_FILES, &[&name, "value 5", "expected finite values"]);
    }
}

#[test]
fn a_server_finds_values_that_are_not_finite_when_it_warms_up() {
    let pair = Pair::new();
    pair.edit_tensors("target", |tensors| set_bf16(tensors, MATRIX, 5, f32::NAN));
    let run = spinney(&["serve", "--port", "0", "--model-path", &pair.target()]);
    run.refused(MODEL_FILES, &["could not be loaded", "finite"]);
    let json = [
        "serve",
        "--port",
        "0",
        "--log-format",
        "json",
        "--model-path",
        &pair.target(),
    ];
    let run = spinney(&json);
    let lines: Vec<&str> = run.stderr.lines().collect();
    let (last, logged) = lines.split_last().unwrap();
    assert!(
        last.starts_with("error: ") && !logged.is_empty(),
        "{}",
        run.stderr
    );
    for line in logged {
        assert!(
            serde_json::from_str::<serde_json::Value>(line).is_ok(),
            "{line}"
        );
    }
    let args = [
        "generate",
        "--prompt-ids",
        "1",
        "--model-path",
        &pair.target(),
    ];
    spinney(&args).refused(1, &["finite"]);
}

#[test]
fn configurations_that_are_not_understood() {
    let pair = Pair::new();
    pair.edit_json("target/config.json", |config| {
        config["rope_parameters"]["rope_type"] = json!("yarn");
    });
    check(&pair).refused(
        MODEL_FILES,
        &["config.json", "rope_type", "default", "yarn"],
    );

    let pair = Pair::new();
    pair.edit_json("target/config.json", |config| {
        config["architectures"] = json!(["LlamaForCausalLM"]);
    });
    check(&pair).refused(MODEL_FILES, &["architectures", "LlamaForCausalLM"]);

    let pair = Pair::new();
    for text in ["", "[]", "{\"hidden_size\": ", "\u{0}"] {
        std::fs::write(pair.path("target/config.json"), text).unwrap();
        check(&pair).refused(MODEL_FILES, &["config.json"]);
    }
}

#[test]
fn text_files_that_are_broken() {
    let cases = [
        ("tokenizer.json", "{}"),
        ("chat_template.jinja", "{% if %}"),
        ("generation_config.json", "{\"eos_token_id\": \"x\"}"),
    ];
    for (file, text) in cases {
        let pair = Pair::new();
        std::fs::write(pair.path("target").join(file), text).unwrap();
        check(&pair).refused(MODEL_FILES, &[file]);
    }
    let pair = Pair::new();
    std::fs::remove_file(pair.path("target/tokenizer.json")).unwrap();
    check(&pair).refused(MODEL_FILES, &["tokenizer.json: the file is missing"]);
    let args = ["generate", "--prompt", "a", "--model-path", &pair.target()];
    spinney(&args).refused(MODEL_FILES, &["tokenizer.json: the file is missing"]);
}

#[test]
fn a_tokenizer_with_more_tokens_than_the_head_has_rows() {
    let pair = Pair::new();
    pair.edit_json("target/tokenizer.json", |tokenizer| {
        for extra in 0..20 {
            tokenizer["model"]["vocab"][format!("x{extra}")] = json!(200 + extra);
        }
    });
    check(&pair).refused(MODEL_FILES, &["tokenizer.json", "109 tokens", "97 rows"]);
}

#[test]
fn drafters_that_belong_to_another_target() {
    let edits = [
        ("hidden_size", json!(128)),
        ("num_target_layers", json!(9)),
        ("vocab_size", json!(96)),
    ];
    for (key, value) in edits {
        let pair = Pair::new();
        pair.edit_json("drafter/config.json", |config| config[key] = value);
        check(&pair).refused(MODEL_FILES, &["the drafter does not fit the target", key]);
    }
    // The bundled target with a drafter that was trained for another one.
    let pair = Pair::new();
    let args = ["check", "--speculative-draft-model-path", &pair.drafter()];
    spinney(&args).refused(MODEL_FILES, &["the drafter does not fit the target"]);
}

#[test]
fn folders_that_are_not_there() {
    let pair = Pair::new();
    let file = pair.path("target/config.json").to_str().unwrap().to_owned();
    for command in ["serve", "check"] {
        let run = spinney(&[command, "--model-path", "no/such/folder"]);
        run.refused(
            MODEL_FILES,
            &["--model-path no/such/folder", "expected a folder"],
        );
        let run = spinney(&[command, "--model-path", &file]);
        run.refused(MODEL_FILES, &["found a file"]);
        let args = [
            "--model-path",
            &pair.target(),
            "--speculative-draft-model-path",
            "gone",
        ];
        let run = spinney(&[&[command][..], &args].concat());
        run.refused(MODEL_FILES, &["--speculative-draft-model-path gone"]);
    }
    let run = spinney(&["render", "--model-path", "gone", "-"]);
    run.refused(MODEL_FILES, &["--model-path gone"]);
}

#[test]
fn prompts_that_cannot_be_served() {
    let pair = Pair::new();
    let target = pair.target();
    let generate =
        |args: &[&str]| spinney(&[&["generate", "--model-path", &target][..], args].concat());
    generate(&["--prompt", ""]).refused(USAGE, &["the prompt is empty"]);
    generate(&["--prompt-ids", ""]).refused(USAGE, &["the prompt is empty"]);
    // No character of it is in the vocabulary.
    generate(&["--prompt", "\u{1f980}"]).refused(USAGE, &["the prompt is empty"]);
    let long = vec!["1"; 512].join(",");
    let parts = ["the prompt has 512 tokens", "the context holds 512"];
    generate(&["--prompt-ids", &long]).refused(USAGE, &parts);
    let text = "a".repeat(40);
    let run = generate(&["--prompt", &text, "--context-length", "40"]);
    run.refused(USAGE, &["the prompt has 40 tokens", "the context holds 40"]);
}

#[test]
fn token_ids_that_do_not_exist() {
    let pair = Pair::new();
    let target = pair.target();
    for ids in ["x", "1,,2", "-1", "1;2", "4294967296", "1.5"] {
        let ids = format!("--prompt-ids={ids}");
        let run = spinney(&["generate", "--model-path", &target, &ids]);
        run.refused(
            USAGE,
            &["--prompt-ids", "expected token ids separated by commas"],
        );
    }
    let run = spinney(&["generate", "--model-path", &target, "--prompt-ids", "1,89"]);
    run.refused(USAGE, &["token id 89 does not exist", "0 to 88"]);
    let bias = ["--prompt-ids", "1", "--logit-bias", "4000=1"];
    let run = spinney(&[&["generate", "--model-path", &target][..], &bias].concat());
    run.refused(USAGE, &["token id 4000 does not exist"]);
}

#[test]
fn flags_that_nobody_knows_get_the_nearest_name() {
    let cases = [
        ("--prot", "--port"),
        ("--speculative-ddtree-buget", "--speculative-ddtree-budget"),
        ("--max_running_request", "--max-running-requests"),
    ];
    for (typed, nearest) in cases {
        spinney(&["serve", typed, "1"]).refused(USAGE, &["unexpected argument", nearest]);
    }
    // Features that do not exist are not accepted in silence.
    for flag in [
        "--quantization=fp8",
        "--enable-lora",
        "--kv-cache-dtype=fp8_e5m2",
    ] {
        spinney(&["serve", flag]).refused(USAGE, &["unexpected argument"]);
    }
    spinney(&["serv"]).refused(USAGE, &["unrecognized subcommand", "serve"]);
    spinney(&["serve", "--tp-size", "2"]).refused(USAGE, &["expected 1"]);
}

#[test]
fn values_out_of_range() {
    let cases = [
        (&["--speculative-ddtree-budget=0"][..], "1 to 63, or auto"),
        (&["--speculative-ddtree-budget=64"], "1 to 63, or auto"),
        (&["--speculative-ddtree-budget=-1"], "1 to 63, or auto"),
        (&["--speculative-ddtree-topk-cap=0"], "from 1 to 15"),
        (&["--speculative-ddtree-topk-cap=16"], "from 1 to 15"),
        (&["--speculative-algorithm=NEXTN"], "NONE, DFLASH or DDTREE"),
        (&["--speculative-algorithm=EAGLE"], "NONE, DFLASH or DDTREE"),
        (&["--chunked-prefill-size=100"], "expected 64, 128"),
        (&["--max-running-requests=0"], "from 1 to 512"),
        (&["--context-length=1"], "at least 2"),
        (&["--dtype=f64"], "f32, bf16"),
        (&["--log-level=a=b=c"], "--log-level"),
    ];
    for (args, part) in cases {
        spinney(&[&["check"], args].concat()).refused(USAGE, &[part]);
    }
    let cases = [
        ("--port=65536", "--port"),
        ("--host=example.org", "expected an IP address"),
        ("--max-body-size=0", "expected bytes"),
        ("--drain-timeout=-1", "expected seconds"),
        ("--queue-full-status=500", "expected 429 or 503"),
        (
            "--default-chat-template-kwargs=[]",
            "expected a JSON object",
        ),
        ("--api-key-file=gone", "--api-key-file gone"),
        ("--api-key=", "a key cannot be empty"),
    ];
    for (flag, part) in cases {
        spinney(&["serve", flag]).refused(USAGE, &[part]);
    }
    let cases = [
        ("--temperature=-1", "temperature is -1"),
        ("--temperature=NaN", "temperature is NaN"),
        ("--top-p=1.5", "top_p is 1.5"),
        ("--top-logprobs=1000", "logprobs is 1000"),
        ("--repetition-penalty=0", "repetition_penalty is 0"),
    ];
    for (flag, part) in cases {
        spinney(&["generate", "--prompt", "a", flag]).refused(USAGE, &[part]);
    }
    let args = ["generate", "--prompt", "a", "--max-tokens=0"];
    spinney(&args).refused(USAGE, &["at least 1"]);
}

#[test]
fn combinations_that_make_no_sense() {
    let pair = Pair::new();
    let (target, drafter) = (pair.target(), pair.drafter());
    for algorithm in ["DFLASH", "DDTREE"] {
        let run = spinney(&[
            "serve",
            "--model-path",
            &target,
            "--speculative-algorithm",
            algorithm,
        ]);
        run.refused(
            USAGE,
            &[
                algorithm,
                "needs a drafter",
                "--speculative-draft-model-path",
            ],
        );
    }
    let both = ["generate", "--prompt", "a", "--chat", "b"];
    spinney(&both).refused(USAGE, &["--prompt", "--chat", "cannot be used with"]);
    spinney(&["generate"]).refused(USAGE, &["--prompt", "--chat", "--prompt-ids"]);
    let drafting = [
        "--model-path",
        &target,
        "--speculative-draft-model-path",
        &drafter,
    ];
    let rows = [
        "--speculative-ddtree-budget=31",
        "--speculative-num-draft-tokens=31",
    ];
    let run = spinney(&[&["check"][..], &drafting, &rows].concat());
    run.refused(USAGE, &["budget + 1 = 32"]);
    // The fixture's drafter has blocks of eight.
    let block = [
        "--speculative-algorithm=DFLASH",
        "--speculative-dflash-block-size=9",
    ];
    spinney(&[&["check"][..], &drafting, &block].concat()).refused(USAGE, &["8"]);
}

#[test]
fn a_gpu_that_is_not_there() {
    let pair = Pair::new();
    let run = spinney(&["serve", "--device", "cuda", "--model-path", &pair.target()]);
    run.refused(DEVICE, &["CUDA"]);
    // Any GPU will do, and so will none.
    let run = spinney(&[
        "check",
        "--device",
        "cuda:7",
        "--model-path",
        &pair.target(),
    ]);
    run.refused(DEVICE, &["--device cpu"]);
    spinney(&["check", "--device", "gpu"]).refused(USAGE, &["cuda:N"]);
}

/// A plan of a model that no test machine has room for.
#[test]
fn a_plan_that_does_not_fit_is_refused_before_loading() {
    let pair = Pair::new();
    pair.edit_json("target/config.json", |config| {
        config["num_hidden_layers"] = json!(400);
        config["hidden_size"] = json!(65_536);
        config["intermediate_size"] = json!(262_144);
        config.as_object_mut().unwrap().remove("layer_types");
    });
    let model = [
        "--model-path",
        &pair.target(),
        "--load-format=dummy",
        "--device=cpu",
    ];
    let parts = [
        "does not fit cpu",
        "target weights",
        "target KV pages",
        "the weights alone take",
        "--dtype bf16",
    ];
    for command in [&["generate", "--prompt-ids=1"][..], &["serve", "--port=0"]] {
        spinney(&[command, &model].concat()).refused(DEVICE, &parts);
    }
    let run = spinney(&[&["check"][..], &model].concat());
    run.refused(DEVICE, &["does not fit cpu", "the weights alone take"]);
    assert!(run.stdout.contains("free"), "{}", run.stdout);
    let run = spinney(&[&["check", "--mem-fraction-static=1.5"][..], &model].concat());
    run.refused(USAGE, &["at most 1"]);
}

#[test]
fn configuration_files_and_variables() {
    let pair = Pair::new();
    let file = pair.path("spinney.toml").to_str().unwrap().to_owned();
    let cases = [
        ("prot = 1", "unknown key prot; a similar one exists: port"),
        ("port = \"many\"", "the value comes from port in"),
        ("port = 65536", "expected a port, 0 to 65535"),
        ("port = ", "--config"),
        ("port = { number = 1 }", "port: expected a string"),
        ("strict_max_tokens = 3", "expected true or false"),
    ];
    for (text, part) in cases {
        std::fs::write(&file, text).unwrap();
        spinney(&["serve", "--config", &file]).refused(USAGE, &[part]);
    }
    spinney(&["serve", "--config", "gone.toml"]).refused(USAGE, &["--config gone.toml"]);
    let mut serve = command(&["serve"]);
    let child = serve.env("SPINNEY_PORT", "-1").spawn().unwrap();
    finish(child).refused(USAGE, &["the environment variable SPINNEY_PORT"]);
}

/// What helps is named, as far as the command has a flag for it.
#[test]
fn pages_that_do_not_fit_are_refused_with_flags_of_the_command() {
    let pair = Pair::new();
    pair.edit_json("target/config.json", |config| {
        // Terabytes of keys and values, and few weights.
        config["num_attention_heads"] = json!(128);
        config["num_key_value_heads"] = json!(128);
        config["max_position_embeddings"] = json!(1 << 24);
    });
    let target = pair.target();
    let model = [
        "--model-path",
        &target,
        "--load-format=dummy",
        "--device=cpu",
        "--context-length=16777216",
    ];
    let parts = [
        "does not fit cpu",
        "smaller: ",
        "--context-length (KV pages)",
    ];
    let generate = spinney(&[&["generate", "--prompt-ids=1"][..], &model].concat());
    generate.refused(DEVICE, &parts);
    let serve = spinney(&[&["serve", "--port=0"][..], &model].concat());
    serve.refused(DEVICE, &parts);
    let batch = "--max-running-requests (all but weights and workspace)";
    assert!(serve.stderr.contains(batch), "{}", serve.stderr);
    assert!(
        !generate.stderr.contains("--max-running-requests"),
        "{}",
        generate.stderr
    );
}

#[test]
fn unknown_variables_are_warned_about() {
    let mut render = command(&["render", "gone.json"]);
    render
        .env("SPINNEY_MODEL_PAHT", "a")
        .env("SPINNEY_TEST_DEVICE", "cpu");
    let run = finish(render.spawn().unwrap());
    run.refused(USAGE, &["a similar one exists: SPINNEY_MODEL_PATH"]);
    assert!(
        !run.stderr.contains("SPINNEY_TEST_DEVICE"),
        "{}",
        run.stderr
    );
}

#[test]
fn requests_that_cannot_be_rendered() {
    let cases = [
        ("", "expected a chat request"),
        ("[]", "expected a chat request"),
        ("{}", "messages"),
        (r#"{"messages": []}"#, "at least one message"),
        (
            r#"{"messages": [{"role": "robot", "content": "a"}]}"#,
            "Supported roles",
        ),
        (
            r#"{"messages": [{"role": "system", "content": "a"}]}"#,
            "role 'user'",
        ),
        (
            r#"{"messages": [{"role": "user", "content": 1}]}"#,
            "messages.[0].content",
        ),
    ];
    for (body, part) in cases {
        spinney_reading(&["render", "-"], body).refused(USAGE, &[part]);
    }
    spinney(&["render", "gone.json"]).refused(USAGE, &["gone.json"]);
}

#[test]
fn a_reader_that_goes_away_is_no_fault() {
    let mut child = command(&["render", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().unwrap();
    let body = br#"{"messages": [{"role": "user", "content": "a"}]}"#;
    std::io::Write::write_all(&mut stdin, body).unwrap();
    drop(stdin);
    let run = finish(child);
    assert_eq!((run.code, &*run.stderr), (0, ""));
}
