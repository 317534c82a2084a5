//! Where flags come from: the command line, then the environment, then the configuration file.
//!
//! The lower layers become ordinary arguments behind the typed ones, so that every value goes
//! through the same checks. `serve` decides which names exist; a sub-command takes the ones it has.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::error::{ContextKind, ContextValue};
use clap::{Arg, ArgAction, Command, CommandFactory};

use super::args::Arguments;
use super::exit::Failure;

/// Prefix of the variables.
pub(super) const PREFIX: &str = "SPINNEY_";
/// The sub-command that has every deployment flag.
pub(super) const FULL: &str = "serve";

/// Arguments of all layers.
#[derive(Debug)]
pub struct Layered {
    /// What clap reads.
    pub arguments: Vec<OsString>,
    /// Flag and where its value comes from, for those that were not typed.
    origins: BTreeMap<String, String>,
}

impl Layered {
    /// Adds the environment and the configuration file to the typed arguments.
    pub fn collect(
        typed: impl IntoIterator<Item = OsString>,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Failure> {
        let mut layered = Layered {
            arguments: typed.into_iter().map(hyphenated).collect(),
            origins: BTreeMap::new(),
        };
        let command = Arguments::command();
        let name = layered.arguments.get(1).and_then(|name| name.to_str());
        let (Some(own), Some(full)) = (
            name.and_then(|name| command.find_subcommand(name)),
            command.find_subcommand(FULL),
        ) else {
            return Ok(layered);
        };
        let mut given: Vec<String> = layered
            .arguments
            .iter()
            .filter_map(|argument| flag_of(own, argument))
            .map(|arg| arg.get_id().to_string())
            .collect();
        for arg in shared(own, full) {
            let Some((variable, value)) = variable(arg, &environment) else {
                continue;
            };
            if !given.contains(&arg.get_id().to_string()) {
                let origin = format!("the environment variable {variable}");
                layered.add(arg, &texts_of(arg, &value), &origin)?;
                given.push(arg.get_id().to_string());
            }
        }
        if let Some(path) = layered.config_path() {
            layered.add_file(Path::new(&path), own, full, &given)?;
        }
        Ok(layered)
    }

    /// Where the value comes from that clap refuses, if not from the command line.
    pub fn origin(&self, error: &clap::Error) -> Option<&str> {
        let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else {
            return None;
        };
        let flag = argument.split([' ', '=']).next()?;
        self.origins.get(flag).map(String::as_str)
    }

    fn config_path(&self) -> Option<OsString> {
        let mut arguments = self.arguments.iter();
        while let Some(argument) = arguments.next() {
            if argument == "--config" {
                return arguments.next().cloned();
            }
            let value = argument.to_str().and_then(|a| a.strip_prefix("--config="));
            if let Some(value) = value {
                return Some(value.into());
            }
        }
        None
    }

    fn add_file(
        &mut self,
        path: &Path,
        own: &Command,
        full: &Command,
        given: &[String],
    ) -> Result<(), Failure> {
        let shown = path.display();
        let fault = |reason: String| Failure::usage(format!("--config {shown}: {reason}"));
        let text = std::fs::read_to_string(path).map_err(|error| fault(error.to_string()))?;
        let table: toml::Table =
            toml::from_str(&text).map_err(|error| fault(error.to_string().trim().to_owned()))?;
        for (key, value) in &table {
            let flag = key.replace('_', "-");
            let Some(arg) = by_name(full, &flag).filter(|_| flag != "config") else {
                return Err(fault(unknown_key(key, &flag)));
            };
            let id = arg.get_id().to_string();
            let Some(arg) = own.get_arguments().find(|own| own.get_id() == id.as_str()) else {
                continue;
            };
            if given.contains(&id) {
                continue;
            }
            let texts = texts_of_toml(value).ok_or_else(|| {
                fault(format!(
                    "{key}: expected a string, a number, true, false or a list of strings, found \
                     {}",
                    value.type_str()
                ))
            })?;
            self.add(arg, &texts, &format!("{key} in {shown}"))?;
        }
        Ok(())
    }

    fn add(&mut self, arg: &Arg, texts: &[OsString], origin: &str) -> Result<(), Failure> {
        let Some(long) = arg.get_long() else {
            return Ok(());
        };
        let flag = format!("--{long}");
        if matches!(arg.get_action(), ArgAction::SetTrue) {
            let [text] = texts else {
                return Err(Failure::usage(format!("{origin}: expected true or false")));
            };
            match text.to_str().map(str::to_ascii_lowercase).as_deref() {
                Some("true" | "1" | "yes" | "on") => self.arguments.push(flag.into()),
                Some("false" | "0" | "no" | "off") => {}
                _ => return Err(Failure::usage(format!("{origin}: expected true or false"))),
            }
            return Ok(());
        }
        for text in texts {
            let mut argument = OsString::from(format!("{flag}="));
            argument.push(text);
            self.arguments.push(argument);
        }
        self.origins.insert(flag, origin.to_owned());
        Ok(())
    }
}

/// Underscores in the name of a flag are hyphens.
fn hyphenated(argument: OsString) -> OsString {
    let Some(text) = argument.to_str().filter(|text| text.starts_with("--")) else {
        return argument;
    };
    match text.split_once('=') {
        Some((name, value)) => format!("{}={value}", name.replace('_', "-")).into(),
        None => text.replace('_', "-").into(),
    }
}

fn by_name<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(name) || aliases.contains(&name)
    })
}

fn flag_of<'a>(command: &'a Command, argument: &OsStr) -> Option<&'a Arg> {
    let name = argument.to_str()?.strip_prefix("--")?;
    by_name(command, name.split('=').next()?)
}

/// The flags of `own` that `full` has too.
fn shared<'a>(own: &'a Command, full: &'a Command) -> impl Iterator<Item = &'a Arg> {
    own.get_arguments().filter(|arg| {
        full.get_arguments()
            .any(|other| other.get_id() == arg.get_id())
    })
}

/// The variables of a flag.
pub(super) fn names_of(arg: &Arg) -> Vec<String> {
    let Some(long) = arg.get_long() else {
        return Vec::new();
    };
    let aliases = arg.get_all_aliases().unwrap_or_default();
    let mut names: Vec<String> = std::iter::once(long)
        .chain(aliases)
        .map(|name| format!("{PREFIX}{}", name.replace('-', "_").to_ascii_uppercase()))
        .collect();
    if long == "api-key" {
        names.push("API_KEY".to_owned());
    }
    names
}

/// The first variable that is set for a flag; an empty one counts as not set.
fn variable(
    arg: &Arg,
    environment: &impl Fn(&str) -> Option<OsString>,
) -> Option<(String, OsString)> {
    names_of(arg).into_iter().find_map(|name| {
        let value = environment(&name).filter(|value| !value.is_empty())?;
        Some((name, value))
    })
}

/// A flag that takes several values has them separated by commas.
fn texts_of(arg: &Arg, value: &OsStr) -> Vec<OsString> {
    match (takes_many(arg), value.to_str()) {
        (true, Some(text)) => text.split(',').map(|part| part.trim().into()).collect(),
        _ => vec![value.to_owned()],
    }
}

fn takes_many(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Append)
}

fn texts_of_toml(value: &toml::Value) -> Option<Vec<OsString>> {
    match value {
        toml::Value::String(text) => Some(vec![text.into()]),
        toml::Value::Integer(number) => Some(vec![number.to_string().into()]),
        toml::Value::Float(number) => Some(vec![number.to_string().into()]),
        toml::Value::Boolean(truth) => Some(vec![truth.to_string().into()]),
        toml::Value::Array(values) => values
            .iter()
            .map(|value| value.as_str().map(OsString::from))
            .collect(),
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

/// clap's own suggestion of the nearest flag, without its hyphens in front.
pub(super) fn similar(flag: &str) -> Option<String> {
    let typed = ["spinney".to_owned(), FULL.to_owned(), format!("--{flag}")];
    let error = Arguments::command().try_get_matches_from(typed).err()?;
    match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(flag)) => Some(flag.trim_start_matches('-').to_owned()),
        _ => None,
    }
}

fn unknown_key(key: &str, flag: &str) -> String {
    match similar(flag) {
        Some(name) => format!("unknown key {key}; a similar one exists: {name}"),
        None => format!("unknown key {key}; `spinney serve --help` lists the flags"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn layered(typed: &[&str], environment: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let typed = std::iter::once("spinney").chain(typed.iter().copied());
        let get = |name: &str| {
            let found = environment.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| OsString::from(value))
        };
        Layered::collect(typed.map(OsString::from), get)
            .map(|layered| {
                let texts = layered.arguments.iter().skip(2);
                texts
                    .map(|text| text.to_str().unwrap().to_owned())
                    .collect()
            })
            .map_err(|failure| failure.message)
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn clap_accepts_the_definitions() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn underscores_are_hyphens_in_names_only() {
        let read = layered(
            &["serve", "--model_path", "a_b", "--served_model_name=c_d"],
            &[],
        );
        assert_eq!(
            read.unwrap(),
            ["--model-path", "a_b", "--served-model-name=c_d"]
        );
    }

    #[test]
    fn command_line_beats_environment_beats_file() {
        let config = file("port = 1\nhost = \"127.0.0.3\"\nmax_n = 3\nstrict-max-tokens = true\n");
        let path = format!("--config={}", config.path().display());
        let read = layered(
            &["serve", "--port", "3", &path],
            &[("SPINNEY_PORT", "2"), ("SPINNEY_HOST", "127.0.0.2")],
        )
        .unwrap();
        assert_eq!(read[..3], ["--port", "3", &*path]);
        assert_eq!(
            read[3..],
            ["--host=127.0.0.2", "--max-n=3", "--strict-max-tokens"]
        );
    }

    #[test]
    fn an_alias_on_the_command_line_beats_the_environment() {
        let read = layered(
            &["generate", "--model", "a"],
            &[("SPINNEY_MODEL_PATH", "b")],
        );
        assert_eq!(read.unwrap(), ["--model", "a"]);
    }

    #[test]
    fn lists_and_truth_values() {
        let read = layered(
            &["serve"],
            &[
                ("API_KEY", "one, two"),
                ("SPINNEY_STRICT_MAX_TOKENS", "0"),
                ("SPINNEY_LENIENT_MESSAGES", "1"),
                ("SPINNEY_HOST", ""),
            ],
        );
        let expected = ["--api-key=one", "--api-key=two", "--lenient-messages"];
        assert_eq!(read.unwrap(), expected);
        let error = layered(&["serve"], &[("SPINNEY_LENIENT_MESSAGES", "maybe")]).unwrap_err();
        assert!(
            error.contains("SPINNEY_LENIENT_MESSAGES: expected true or false"),
            "{error}"
        );
    }

    #[test]
    fn a_command_takes_the_flags_it_has() {
        let config = file("port = 1\ndtype = \"bf16\"\n");
        let path = format!("--config={}", config.path().display());
        let read = layered(&["check", &path], &[("SPINNEY_HOST", "127.0.0.2")]).unwrap();
        assert_eq!(read, [&*path, "--dtype=bf16"]);
        // Deployments set what serve has, never what to generate.
        assert!(
            layered(&["generate"], &[("SPINNEY_PROMPT", "a")])
                .unwrap()
                .is_empty()
        );
    }

    #[test]
    fn unknown_keys_get_the_nearest_name() {
        let config = file("prot = 1\n");
        let path = format!("--config={}", config.path().display());
        let error = layered(&["serve", &path], &[]).unwrap_err();
        assert!(
            error.ends_with("unknown key prot; a similar one exists: port"),
            "{error}"
        );
        for text in ["port = {a = 1}", "port = ", "config = \"a\""] {
            let config = file(text);
            let path = format!("--config={}", config.path().display());
            assert!(layered(&["serve", &path], &[]).is_err(), "{text}");
        }
    }

    #[test]
    fn a_refused_value_names_its_origin() {
        let typed = ["spinney", "serve"].map(OsString::from);
        let layered = Layered::collect(typed, |name| {
            (name == "SPINNEY_PORT").then(|| OsString::from("many"))
        })
        .unwrap();
        let error = Arguments::command()
            .try_get_matches_from(&layered.arguments)
            .unwrap_err();
        let origin = "the environment variable SPINNEY_PORT";
        assert_eq!(layered.origin(&error), Some(origin));
    }
}
