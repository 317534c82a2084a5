//! Environment variables that look like flags and are none.

use std::ffi::OsString;

use clap::CommandFactory;

use super::args::Arguments;
use super::layers::{FULL, PREFIX, names_of, similar};

/// Variables that builds, tests and scripts read, or beginnings of their names.
const OTHERS: &[&str] = &[
    "ANTHROPIC_PYTHON",
    "BUILD",
    "BUNDLED_MODEL",
    "CHROMIUM",
    "CUDA_ARCHS",
    "HAPROXY",
    "INSTRUCTOR_PYTHON",
    "KERNEL_",
    "NODE_MODULES",
    "OPENAI_PYTHON",
    "QWEN_TEMPLATE",
    "SIMULATION_",
    "TEST_",
    "UPLOAD_GIB",
    // Kubernetes sets these in every container beside a service called spinney.
    "PORT_",
    "SERVICE_HOST",
    "SERVICE_PORT",
];

/// A warning for every variable that no flag of `serve` reads.
pub fn warnings(names: impl IntoIterator<Item = OsString>) -> Vec<String> {
    let command = Arguments::command();
    let Some(serve) = command.find_subcommand(FULL) else {
        return Vec::new();
    };
    let known: Vec<String> = serve.get_arguments().flat_map(names_of).collect();
    let mut warnings: Vec<String> = names
        .into_iter()
        .filter_map(|name| {
            let name = name.into_string().ok()?;
            let rest = name.strip_prefix(PREFIX)?;
            let other = OTHERS.iter().any(|other| match other.strip_suffix('_') {
                Some(_) => rest.starts_with(other),
                None => rest == *other || rest.starts_with(&format!("{other}_")),
            });
            let unknown = !other && !known.contains(&name);
            unknown.then(|| warning(&name, rest))
        })
        .collect();
    warnings.sort();
    warnings
}

fn warning(name: &str, rest: &str) -> String {
    let flag = rest.replace('_', "-").to_ascii_lowercase();
    match similar(&flag) {
        Some(near) => {
            let near = near.replace('-', "_").to_ascii_uppercase();
            format!("unknown variable {name}; a similar one exists: {PREFIX}{near}")
        }
        None => format!("unknown variable {name}; `spinney serve --help` lists the flags"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str]) -> Vec<String> {
        warnings(names.iter().map(OsString::from))
    }

    #[test]
    fn unknown_variables_get_the_nearest_name() {
        assert_eq!(
            of(&["SPINNEY_PROT", "SPINNEY_MODEL_PAHT", "SPINNEY_XYZZY"]),
            [
                "unknown variable SPINNEY_MODEL_PAHT; a similar one exists: SPINNEY_MODEL_PATH",
                "unknown variable SPINNEY_PROT; a similar one exists: SPINNEY_PORT",
                "unknown variable SPINNEY_XYZZY; `spinney serve --help` lists the flags",
            ]
        );
    }

    #[test]
    fn flags_aliases_and_the_variables_of_tests_are_known() {
        let serve = Arguments::command();
        let serve = serve.find_subcommand(FULL).unwrap();
        let flags: Vec<String> = serve.get_arguments().flat_map(names_of).collect();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        assert!(flags.contains(&"SPINNEY_PORT") && flags.contains(&"SPINNEY_MODEL"));
        assert!(of(&flags).is_empty(), "{:?}", of(&flags));
        let others = [
            "SPINNEY_TEST_DEVICE",
            "SPINNEY_CHROMIUM",
            "SPINNEY_SERVICE_PORT_HTTP",
            "SPINNEY_PORT_30000_TCP_ADDR",
            "PORT",
            "API_KEY",
            "XSPINNEY_PROT",
        ];
        assert!(of(&others).is_empty(), "{:?}", of(&others));
    }
}
