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

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use args::{Arguments, Command};
use exit::{Exit, Failure};
use layers::Layered;

/// Exit code of a process whose engine hung.
pub(crate) const WATCHDOG_EXIT: u8 = Exit::Watchdog as u8;

/// Runs a command line to its end; messages go to standard error.
pub fn run(typed: impl IntoIterator<Item = OsString>) -> ExitCode {
    match dispatch(typed) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            if !failure.message.is_empty() {
                // Nobody is left to be told if this fails.
                let _ = writeln!(io::stderr(), "error: {failure}");
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
    match arguments.command {
        Command::Serve(args) => serve::run(&args, flags::of(&layered.arguments)),
        Command::Generate(args) => generate::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Render(args) => render::run(&args),
        Command::Bench(command) => bench::run(&command),
    }
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
