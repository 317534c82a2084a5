//! What the binary says about drivers and GPUs that cannot serve it: with a stand-in driver, built by the C compiler
//! at hand, in front of whatever the machine has.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

#[path = "common/cli.rs"]
mod cli;

use std::path::Path;
use std::process::Command;

use cli::{Pair, Run, command, finish};
use tempfile::TempDir;

const DEVICE: i32 = 4;
const BUNDLED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/server/spinney-tiny");

/// A folder with `libcuda.so`; `None` where the test cannot run, which is printed.
fn stand_in() -> Option<TempDir> {
    if generate(BUNDLED, "cuda", None, &[])
        .stderr
        .contains("no CUDA backend")
    {
        println!("skipped: the binary was built without the cuda feature");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/libcuda.c");
    let compiler = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(folder.path().join("libcuda.so"))
        .arg(source)
        .status();
    match compiler {
        Ok(status) => assert!(status.success(), "the stand-in does not compile"),
        Err(error) => {
            println!("skipped: no C compiler ({error})");
            return None;
        }
    }
    Some(folder)
}

/// Generates four tokens on a device with this driver.
fn generate(model: &str, device: &str, driver: Option<&TempDir>, answers: &[(&str, &str)]) -> Run {
    generate_with(model, device, &[], driver, answers)
}

/// The same with more flags.
fn generate_with(
    model: &str,
    device: &str,
    flags: &[&str],
    driver: Option<&TempDir>,
    answers: &[(&str, &str)],
) -> Run {
    let mut command = command(&[
        "generate",
        "--prompt-ids",
        "1",
        "--max-tokens",
        "4",
        "--model-path",
        model,
        "--device",
        device,
    ]);
    command.args(flags);
    if let Some(driver) = driver {
        command.env("LD_LIBRARY_PATH", driver.path());
    }
    finish(command.envs(answers.iter().copied()).spawn().unwrap())
}

#[test]
fn drivers_that_cannot_serve_are_named() {
    let Some(driver) = stand_in() else { return };
    for (answers, parts) in [
        (
            &[("STAND_IN_VERSION", "11040")][..],
            &["supports CUDA 11.4", "needs CUDA 13.0", "driver 580"][..],
        ),
        (
            &[("STAND_IN_VERSION_RESULT", "999")],
            &["does not answer", "nvidia-smi", "--device cpu"],
        ),
        (
            &[("STAND_IN_INIT", "802")],
            &[
                "does not start",
                "system not yet initialized",
                "nvidia-smi",
                "--device cpu",
            ],
        ),
        (
            &[("STAND_IN_INIT", "100")],
            &["there is no GPU 0", "shows 0", "CUDA_VISIBLE_DEVICES"],
        ),
        (&[("STAND_IN_COUNT", "0")], &["there is no GPU 0"]),
        (
            &[
                ("STAND_IN_MAJOR", "6"),
                ("STAND_IN_MINOR", "1"),
                ("STAND_IN_LOAD", "209"),
            ],
            &[
                "Stand-in GPU has compute capability 6.1",
                "no kernels",
                "it has",
            ],
        ),
    ] {
        let run = generate(BUNDLED, "cuda", Some(&driver), answers);
        run.refused(DEVICE, parts);
    }
}

#[test]
fn a_gpu_with_too_little_memory_is_refused_with_its_numbers() {
    let Some(driver) = stand_in() else { return };
    let run = generate(BUNDLED, "cuda", Some(&driver), &[("STAND_IN_MIB", "7")]);
    run.refused(
        DEVICE,
        &[
            "Stand-in GPU",
            "7 of 7 MiB are free",
            "target weights",
            "smaller: ",
        ],
    );
}

#[test]
fn a_share_that_is_too_small_is_refused_though_memory_is_free() {
    let Some(driver) = stand_in() else { return };
    let flags = ["--mem-fraction-static", "0.01"];
    let run = generate_with(
        BUNDLED,
        "cuda",
        &flags,
        Some(&driver),
        &[("STAND_IN_MIB", "1000")],
    );
    let parts = [
        "1000 of 1000 MiB are free, 10 MiB of which may be taken",
        "target weights",
        "--mem-fraction-static",
    ];
    run.refused(DEVICE, &parts);
}

#[test]
fn a_gpu_that_does_not_exist_is_refused() {
    let Some(driver) = stand_in() else { return };
    generate(BUNDLED, "cuda:3", Some(&driver), &[])
        .refused(DEVICE, &["there is no GPU 3", "shows 1"]);
}

#[test]
fn heads_that_no_kernel_takes_are_refused_by_name() {
    let Some(driver) = stand_in() else { return };
    let run = generate(&Pair::new().target(), "cuda", Some(&driver), &[]);
    run.refused(DEVICE, &["head"]);
}

#[test]
fn without_a_driver_the_cpu_serves_unless_a_gpu_was_asked_for() {
    let Some(driver) = stand_in() else { return };
    let run = generate(BUNDLED, "cuda", None, &[]);
    match run.stderr.contains("libcuda.so.1 was not found") {
        true => run.refused(DEVICE, &["driver 580", "--device cpu"]),
        false => println!("skipped: this machine has a driver"),
    }
    let old = [("STAND_IN_VERSION", "11040")];
    let run = generate(BUNDLED, "auto", Some(&driver), &old);
    assert_eq!(run.code, 0, "{}", run.stderr);
}
