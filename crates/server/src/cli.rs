//! The command line of the `spinney` binary.

mod args;
mod bench;
mod chat_prompt;
mod check;
mod checkpoints;
mod exit;
mod flags;
mod generate;
mod layers;
mod loading;
mod logging;
mod progress;
mod render;
mod serve;
mod shortage;
mod variables;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, Parser};

use args::{Arguments, Command};
use exit::{Exit, Failure};
use layers::Layered;
use shortage::Shortage;

/// Exit code of a process whose engine hung.
pub(crate) const WATCHDOG_EXIT: u8 = Exit::Watchdog as u8;
/// Exit code of a process that a second signal ended.
pub(crate) const STOPPED_EXIT: u8 = Exit::DrainCut as u8;

/// Runs a command line to its end; messages go to standard error.
pub fn run(typed: impl IntoIterator<Item = OsString>) -> ExitCode {
    let _flush = logging::Flush;
    match dispatch(typed) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            if !failure.message.is_empty() {
                logging::last_words(&format!("error: {failure}\n"));
            }
            failure.exit.into()
        }
    }
}

fn dispatch(typed: impl IntoIterator<Item = OsString>) -> Result<Exit, Failure> {
    let layered = Layered::collect(typed, |name| std::env::var_os(name))?;
    let arguments = match Arguments::try_parse_from(&layered.arguments) {
        Ok(arguments) => arguments,
        Err(error) => return parse_end(&layered, &error),
    };
    let end = match arguments.command {
        Command::Serve(args) => serve::run(&args, flags::of(&layered.arguments)),
        Command::Generate(args) => generate::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Render(args) => render::run(&args),
        Command::Bench(command) => bench::run(&command),
    };
    end.map_err(|mut failure| {
        if let Some(shortage) = failure.shortage.take() {
            failure.message += &format!("\n{}", hint(&shortage, &layered.arguments));
        }
        failure
    })
}

/// What to change about the command so that its plan fits.
fn hint(shortage: &Shortage, typed: &[OsString]) -> String {
    let arguments = Arguments::command();
    let matches = arguments.clone().try_get_matches_from(typed);
    let mut innermost = (&arguments, matches.as_ref().ok());
    while let Some((name, below)) = innermost.1.and_then(ArgMatches::subcommand)
        && let Some(command) = innermost.0.find_subcommand(name)
    {
        innermost = (command, Some(below));
    }
    let (command, matches) = innermost;
    let dtype = matches
        .and_then(|matches| matches.try_get_raw("dtype").ok().flatten())
        .and_then(|mut values| values.next_back()?.to_str());
    let has = |flag: &str| {
        command
            .get_arguments()
            .any(|arg| arg.get_long() == Some(flag))
    };
    shortage.hint(has, dtype)
}

/// Help and version end well; everything else clap has to say is wrong usage.
fn parse_end(layered: &Layered, error: &clap::Error) -> Result<Exit, Failure> {
    error.print().map_err(|error| Failure::output(&error))?;
    if !error.use_stderr() {
        return Ok(Exit::Clean);
    }
    match layered.origin(error) {
        Some(origin) => Err(Failure::usage(format!("the value comes from {origin}"))),
        None => Err(Failure::usage("")),
    }
}

/// Writes a whole output to standard output.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|error| Failure::output(&error))
}
