//! All flags of `serve` with their values, for `/server_info`.

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgAction, ArgMatches, CommandFactory};
use serde_json::{Map, Value};

use super::args::Arguments;

const SERVE: &str = "serve";

/// Every flag by its name with underscores, given or not; secret ones, which are those whose value
/// help does not show either, are left out.
pub fn of(arguments: &[OsString]) -> Map<String, Value> {
    let command = Arguments::command();
    let Ok(matches) = command.clone().try_get_matches_from(arguments) else {
        return Map::new();
    };
    let (Some(serve), Some(matches)) = (
        command.find_subcommand(SERVE),
        matches.subcommand_matches(SERVE),
    ) else {
        return Map::new();
    };
    let public = |arg: &&Arg| arg.get_long().is_some() && !arg.is_hide_env_values_set();
    serve
        .get_arguments()
        .filter(public)
        .filter(|arg| !matches!(arg.get_action(), ArgAction::Help | ArgAction::Version))
        .map(|arg| (arg.get_id().to_string(), value(arg, matches)))
        .collect()
}

fn value(arg: &Arg, matches: &ArgMatches) -> Value {
    let several = matches!(arg.get_action(), ArgAction::Append)
        || arg
            .get_num_args()
            .is_some_and(|count| count.max_values() > 1);
    let raw = matches.get_raw(arg.get_id().as_str());
    match (raw, several) {
        (None, true) => Value::Array(Vec::new()),
        (None, false) => Value::Null,
        (Some(values), true) => values.map(typed).collect(),
        (Some(mut values), false) => values.next_back().map_or(Value::Null, typed),
    }
}

/// Numbers and truth values as such.
fn typed(text: &OsStr) -> Value {
    let text = text.to_string_lossy();
    match serde_json::from_str(&text) {
        Ok(value @ (Value::Bool(_) | Value::Number(_))) => value,
        _ => text.into_owned().into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn flags(typed: &[&str]) -> Map<String, Value> {
        let all = ["spinney", "serve"].iter().chain(typed);
        of(&all.map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn flags_have_their_types_and_secrets_are_left_out() {
        let flags = flags(&[
            "--api-key=secret",
            "--admin-api-key",
            "secret",
            "--max-running-requests=3",
            "--served-model-name",
            "a",
            "b",
            "--strict-max-tokens",
        ]);
        for (name, value) in [
            ("max_running_requests", json!(3)),
            ("served_model_name", json!(["a", "b"])),
            ("strict_max_tokens", json!(true)),
            ("strict_request_fields", json!(false)),
            ("port", json!(30000)),
            ("context_length", Value::Null),
            ("host", json!("127.0.0.1")),
            ("metrics_prefixes", json!(["sglang", "vllm"])),
            ("mem_fraction_static", json!(0.88)),
            ("schedule_policy", json!("fcfs")),
            ("queue_timeout", json!(0)),
            ("watchdog_timeout", json!(300)),
        ] {
            assert_eq!(flags.get(name), Some(&value), "{name}");
        }
        let text = Value::Object(flags).to_string();
        assert!(
            !text.contains("secret") && !text.contains("api_key\""),
            "{text}"
        );
    }
}
