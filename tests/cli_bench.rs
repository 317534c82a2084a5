//! `spinney bench`, on models small enough for a test.

#[path = "common/cli.rs"]
mod cli;

use std::io::BufRead;

use cli::{Background, Pair, command, finish, spinney};
use serde_json::{Value, json};

/// `bench` on the fixtures' random pair; its drafter has blocks of eight.
fn bench<'a>(what: &'a str, pair: &'a (String, String), args: &[&'a str]) -> Vec<&'a str> {
    let model = [
        "bench",
        what,
        "--device=cpu",
        "--model-path",
        &pair.0,
        "--speculative-draft-model-path",
        &pair.1,
    ];
    [&model[..], args].concat()
}

fn folders(pair: &Pair) -> (String, String) {
    (pair.target(), pair.drafter())
}

fn floats(value: &Value) -> Vec<f64> {
    serde_json::from_value(value.clone()).expect("a list of numbers")
}

#[test]
fn steps_are_timed_as_a_table_and_as_an_object() {
    let pair = Pair::new();
    let folders = folders(&pair);
    let svg = pair.path("step.svg");
    let svg_flag = format!("--svg={}", svg.display());
    let args = [
        "--contexts=40,380",
        "--batches=1,2",
        "--shapes=plain,chain-3,tree-15",
        "--prefills=100",
        "--repeat=2",
        "--json",
        "--disable-cuda-graph",
        &svg_flag,
    ];
    let run = spinney(&bench("step", &folders, &args));
    let object = run.json();
    let steps = object["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 2 * 2 * 3);
    for step in steps {
        let runs = floats(&step["steps_ms"]);
        assert!(runs.len() == 2 && runs.iter().all(|ms| *ms > 0.0));
        assert!(step["tokens_per_step"].as_f64().unwrap() >= 1.0);
    }
    assert_eq!(object["allocated_bytes"], object["planned_bytes"]);
    assert_eq!(object["simulated_acceptance"], Value::Null);
    assert_eq!(steps[2]["expected_tokens_per_step"], Value::Null);
    assert!(object["prefills"][0]["best_tokens_per_s"].as_f64().unwrap() > 0.0);
    // The table was shown while the object grew.
    let lines: Vec<&str> = run.stderr.lines().collect();
    assert!(
        lines[0].starts_with("acceptance of the model; ") && lines[0].contains("without graphs")
    );
    assert!(lines[1].starts_with("prefill 100: "));
    assert_eq!(lines.len(), 3 + steps.len(), "{}", run.stderr);
    let svg = std::fs::read_to_string(svg).unwrap();
    for text in [
        "milliseconds per step",
        "tokens per second",
        "batch 2, context 380, chain",
    ] {
        assert!(svg.contains(text), "{text}");
    }
}

/// What was measured is there at once: a reader need not wait for the end.
/// A tokenizer that stands in does not say how many ids there are, the model's own does.
#[test]
fn random_weights_rank_the_whole_head() {
    let pair = Pair::new();
    let vocabulary = |target: &str, args: &[&str]| {
        let own = [
            "bench",
            "step",
            "--device=cpu",
            "--json",
            "--model-path",
            target,
        ];
        let small = ["--contexts=8", "--shapes=plain", "--repeat=1"];
        let report = spinney(&[&own[..], &small, args].concat()).json();
        report["vocabulary"].as_u64()
    };
    let named = spinney(&[
        "check",
        "--json",
        "--device=cpu",
        "--model-path",
        &pair.target(),
    ])
    .json();
    let named = named["tokenizer"]["tokens"].as_u64();
    assert!(named.is_some());
    assert_eq!(vocabulary(&pair.target(), &[]), named);
    let dummy = ["--load-format=dummy"];
    assert_eq!(vocabulary(&pair.target(), &dummy), named);
    let bare = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/qwen3_5");
    assert_eq!(vocabulary(bare, &dummy), Some(97));
}

#[test]
fn the_first_lines_come_before_the_last_case() {
    let pair = Pair::new();
    let folders = folders(&pair);
    let args = ["--contexts=40", "--shapes=plain,tree-15", "--repeat=1000"];
    let mut child = Background::start(&mut command(&bench("step", &folders, &args)));
    let mut lines = child.stdout().lines();
    let first = lines.next().unwrap().unwrap();
    assert!(first.starts_with("acceptance of the model; "), "{first}");
    assert!(lines.next().unwrap().unwrap().starts_with("batch context"));
    assert!(child.runs(), "it goes on");
}

#[test]
fn every_report_of_simulated_acceptance_says_so_first() {
    let pair = Pair::new();
    let folders = folders(&pair);
    let step = [
        "--simulate-acceptance=4.5",
        "--contexts=40",
        "--repeat=1",
        "--shapes=tree-7",
    ];
    let decode = [
        "--simulate-acceptance=4.5",
        "--max-tokens=64",
        "--runs=1",
        "--prompt=a",
    ];
    let load = [
        "--simulate-acceptance=4.5",
        "--concurrency=2",
        "--output-tokens=8",
        "--runs=1",
    ];
    for (what, args) in [("step", &step), ("decode", &decode), ("load", &load)] {
        let run = spinney(&bench(what, &folders, args));
        assert_eq!(run.code, 0, "{}", run.stderr);
        let first = run.stdout.lines().next().unwrap();
        assert!(
            first.starts_with("simulated acceptance: first child 0.7"),
            "{first}"
        );
    }
    let serve = spinney(&["serve", "--simulate-acceptance=4.5"]);
    serve.refused(2, &["--simulate-acceptance"]);
}

#[test]
fn answers_of_all_modes_are_compared() {
    let pair = Pair::new();
    let folders = folders(&pair);
    let svg = pair.path("decode.svg");
    let svg_flag = format!("--svg={}", svg.display());
    std::fs::write(pair.path("asked"), "What is 2+2?").unwrap();
    let file = format!("--prompt-file={}", pair.path("asked").display());
    let args = [
        "--prompt=Hi",
        &file,
        "--modes=plain,linear,linear-3,tree-15,auto",
        "--max-tokens=40",
        "--runs=2",
        "--ignore-eos",
        "--json",
        &svg_flag,
    ];
    let run = spinney(&bench("decode", &folders, &args));
    let object = run.json();
    assert_eq!(object["identical_tokens"], json!(true));
    let prompts = object["prompts"].as_array().unwrap();
    assert_eq!(prompts.len(), 2);
    for prompt in prompts {
        let modes = prompt["modes"].as_array().unwrap();
        assert_eq!(modes.len(), 5);
        for mode in modes {
            let steps: u64 = (mode["runs"].as_array().unwrap().iter())
                .map(|run| {
                    assert_eq!(run["tokens"], 40);
                    assert!(run["tokens_per_s"].as_f64().unwrap() > 0.0);
                    run["steps"].as_u64().unwrap()
                })
                .sum();
            let histogram = floats(&mode["acceptance_histogram"]);
            assert_eq!(histogram.iter().sum::<f64>(), steps as f64);
            let per_step = mode["tokens_per_step"].as_f64().unwrap();
            assert!((per_step - 2.0 * 39.0 / steps as f64).abs() < 1e-9);
            // The mean of accepted drafts is the sum of the rates by depth.
            let by_depth: f64 = floats(&mode["acceptance_by_depth"]).iter().sum();
            assert!((per_step - 1.0 - by_depth).abs() < 1e-9);
        }
        let plain = &modes[0]["tokens_per_step"];
        assert_eq!((&modes[0]["mode"], plain), (&json!("plain"), &json!(1.0)));
    }
    assert!(run.stderr.contains("identical tokens: yes"));
    assert!(
        std::fs::read_to_string(svg)
            .unwrap()
            .contains("prompt 2, plain and trees")
    );
}

/// Speed at a stated acceptance: the mean that was asked for, whatever the draws of this run.
#[test]
fn simulated_steps_expect_what_the_law_says() {
    let folder = tempfile::tempdir().unwrap();
    let law = folder.path().join("law.json");
    let rates = json!({"first": vec![0.5; 15], "later": vec![0.5; 15]});
    std::fs::write(&law, rates.to_string()).unwrap();
    let flag = format!("--simulate-acceptance={}", law.display());
    let shapes = "--shapes=plain,chain-3,tree-7,tree-15";
    let args = [
        "bench",
        "step",
        "--device=cpu",
        "--contexts=20",
        "--repeat=1",
        "--json",
        shapes,
    ];
    let object = spinney(&[&args[..], &[&flag]].concat()).json();
    let steps = object["steps"].as_array().unwrap();
    let expected: Vec<f64> = (steps.iter())
        .map(|step| step["expected_tokens_per_step"].as_f64().unwrap())
        .collect();
    // Every rank at every depth halves: a node of the k-th best level of 2^(k-1) nodes has 2^-k,
    // so seven nodes are worth 3/2, fifteen 2.
    for (found, wanted) in expected.iter().zip([1.0, 1.875, 2.5, 3.0]) {
        assert!((found - wanted).abs() < 1e-5, "{expected:?}");
    }
    let step = &steps[2];
    let rate = 2.5 / step["median_ms"].as_f64().unwrap() * 1e3;
    assert!((step["tokens_per_s"].as_f64().unwrap() / rate - 1.0).abs() < 1e-5);
}

/// Long answers at a stated rate: every mode emits as many tokens per step as the law says.
#[test]
fn simulated_answers_follow_the_law() {
    let pair = Pair::new();
    let folders = folders(&pair);
    let law = pair.path("law.json");
    let rates =
        |first: f64, later: f64| json!({"first": vec![first; 15], "later": vec![later; 15]});
    std::fs::write(&law, rates(1.0, 0.0).to_string()).unwrap();
    let flag = format!("--simulate-acceptance={}", law.display());
    let args = [
        "--prompt=Hi",
        "--modes=plain,linear,tree-15",
        "--max-tokens=161",
        "--runs=1",
        "--json",
        &flag,
    ];
    let object = spinney(&bench("decode", &folders, &args)).json();
    assert_eq!(object["identical_tokens"], Value::Null);
    let per_step: Vec<f64> = (object["prompts"][0]["modes"].as_array().unwrap().iter())
        .map(|mode| mode["tokens_per_step"].as_f64().unwrap())
        .collect();
    // A tree of a drafter without doubts is a chain of its block of seven drafts.
    assert_eq!(per_step, [1.0, 8.0, 8.0]);
}

/// Every turn of a conversation begins where the last one ended.
#[test]
fn conversations_are_timed_with_and_without_the_cache() {
    let args = [
        "bench",
        "conversation",
        "--device=cpu",
        "--turns=4",
        "--prompt-tokens=800",
        "--max-tokens=3",
        "--speculative-ddtree-budget=7",
        "--chunked-prefill-size=256",
    ];
    let run = spinney(&[&args[..], &["--json"]].concat());
    let object = run.json();
    assert_eq!(object["identical"], true);
    let turns = object["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 4);
    let count = |turn: &Value, name: &str| turn[name].as_u64().unwrap();
    assert_eq!(count(&turns[0], "cached_tokens"), 0);
    for pair in turns.windows(2) {
        let before = count(&pair[0], "prompt_tokens");
        let (prompt, cached) = (
            count(&pair[1], "prompt_tokens"),
            count(&pair[1], "cached_tokens"),
        );
        assert!(cached.is_multiple_of(64) && cached + 80 > before && cached < before);
        assert!(before + 100 < prompt && prompt < 840);
    }
    assert!(count(&turns[3], "prompt_tokens") > 700);
    for turn in turns {
        for name in ["first_token_without_ms", "first_token_with_ms"] {
            assert!(turn[name].as_f64().unwrap() > 0.0);
        }
    }
    // The table was shown while the object grew: two lines before it, two behind it.
    assert_eq!(run.stderr.lines().count(), 2 + 4 + 2, "{}", run.stderr);
    let off = [&args[..], &["--disable-radix-cache"]].concat();
    spinney(&off).refused(2, &["--disable-radix-cache"]);
}

/// Two clients of two requests each, in every mode, and what is said of `auto`.
#[test]
fn loads_are_measured_in_all_modes() {
    let pair = Pair::new();
    let folders = folders(&pair);
    let svg = pair.path("load.svg");
    let svg_flag = format!("--svg={}", svg.display());
    let args = [
        "--concurrency=1,2",
        "--modes=plain,linear,tree-15,auto",
        "--input-tokens=20",
        "--output-tokens=12",
        "--requests=2",
        "--runs=2",
        "--ignore-eos",
        "--json",
        &svg_flag,
    ];
    let run = spinney(&bench("load", &folders, &args));
    let object = run.json();
    let measured = object["concurrency"].as_array().unwrap();
    assert_eq!(measured.len(), 2);
    for (clients, point) in [1, 2].into_iter().zip(measured) {
        assert_eq!(point["clients"], clients);
        let modes = point["modes"].as_array().unwrap();
        assert_eq!(modes.len(), 4);
        for mode in modes {
            assert_eq!(mode["runs_tokens"], json!(vec![clients * 2 * 12; 2]));
            let rate = &mode["tokens_per_s"];
            let [median, min, max] =
                ["median", "min", "max"].map(|key| rate[key].as_f64().unwrap());
            assert!(0.0 < min && min <= median && median <= max, "{rate}");
            for times in ["first_token_ms", "token_ms"] {
                let [mean, p99] = ["mean", "p99"].map(|key| mode[times][key]["median"].as_f64());
                assert!(mean > Some(0.0) && p99 >= mean, "{mode}");
            }
            let shares = mode["shapes"].as_object().unwrap().values();
            let sum: f64 = shares.map(|share| share.as_f64().unwrap()).sum();
            assert!((sum - 1.0).abs() < 1e-9, "{mode}");
            assert_eq!(mode["runs_preemptions"], json!([0, 0]));
        }
        let value = |mode: usize, key: &str| modes[mode][key]["median"].as_f64().unwrap();
        assert_eq!(value(0, "tokens_per_step"), 1.0);
        assert_eq!(modes[0]["shapes"], json!({"plain": 1.0}));
        // The last step of an answer has one row; all others have those of the mode.
        let tree = modes[2]["shapes"]["tree-15"].as_f64().unwrap();
        assert!(
            tree > 0.5 && value(2, "rows_per_step") > 8.0,
            "{}",
            modes[2]
        );
        let ratio = point["auto"]["over_plain"]["median"].as_f64().unwrap();
        assert!(ratio > 0.0 && point["auto"]["holds"].is_boolean());
    }
    let first = run.stderr.lines().next().unwrap();
    assert!(first.starts_with("acceptance of the model; "), "{first}");
    assert!(run.stderr.contains("auto / best fixed ("), "{}", run.stderr);
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains("requests at once") && svg.contains("tree-15"));
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let pair = Pair::new();
    let folders = folders(&pair);
    let decode = |args: &[&str]| {
        let run = command(&bench("decode", &folders, args)).spawn().unwrap();
        finish(run)
    };
    let step = ["--contexts=600", "--shapes=plain"];
    spinney(&bench("step", &folders, &step)).refused(2, &["a context of 600 tokens", "1 to 505"]);
    decode(&["--modes=tree-64"]).refused(2, &["tree-63"]);
    decode(&["--prompt-file=/nowhere"]).refused(2, &["/nowhere"]);
    decode(&["--modes=linear-15", "--prompt=a"]).refused(2, &["chain-15", "at most 7"]);
    let both = ["--prompt=a", "--input-tokens=5"];
    spinney(&bench("load", &folders, &both)).refused(2, &["--input-tokens"]);
    let alone = [
        "bench",
        "decode",
        "--device=cpu",
        "--modes=auto",
        "--model-path",
        &folders.0,
    ];
    spinney(&alone).refused(2, &["--speculative-draft-model-path"]);
}
