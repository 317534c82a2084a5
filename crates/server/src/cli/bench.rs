//! `spinney bench`: times of the model without a server around it.

mod answer;
mod conversation;
mod conversation_report;
mod decode;
mod decode_report;
mod load;
mod load_report;
mod load_run;
mod modes;
mod plot;
mod prompts;
mod step;

use std::fmt::Write;
use std::path::Path;

use engine::AcceptanceLaw;
use serde_json::{Value, json};

use super::args::bench::{BenchCommand, SimulationArgs};
use super::exit::{Exit, Failure};
use super::print;

/// Measures and prints.
pub fn run(command: &BenchCommand) -> Result<Exit, Failure> {
    match command {
        BenchCommand::Step(args) => step::run(args),
        BenchCommand::Decode(args) => decode::run(args),
        BenchCommand::Conversation(args) => conversation::run(args),
        BenchCommand::Load(args) => load::run(args),
    }
}

/// What stands in front of everything else: whether the numbers mean what a user would get.
fn caveats(random_weights: bool, simulation: &SimulationArgs) -> String {
    let mut text = String::new();
    if random_weights {
        text += "random weights; ";
    }
    match &simulation.simulate_acceptance {
        Some(law) => {
            let (first, later) = (law.first[0], law.later[0]);
            let _ = write!(
                text,
                "simulated acceptance: first child {first:.4}, later children {later:.4} at depth 0; "
            );
        }
        None => text += "acceptance of the model; ",
    }
    text
}

/// The law in a report.
fn law(simulation: &SimulationArgs) -> Value {
    let law = |law: &AcceptanceLaw| json!({"first": law.first, "later": law.later});
    simulation.simulate_acceptance.as_ref().map(law).into()
}

/// Shows a line as soon as it is known: with the report, or beside an object that comes last.
fn show(json: bool, text: &str) -> Result<(), Failure> {
    if json {
        eprint!("{text}");
        return Ok(());
    }
    print(text)
}

fn write_svg(path: &Path, plot: &plot::Plot) -> Result<(), Failure> {
    std::fs::write(path, plot.svg())
        .map_err(|error| Failure::new(Exit::Runtime, format!("--svg {}: {error}", path.display())))
}
