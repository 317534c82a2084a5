//! Modes of decoding that a benchmark compares.

use engine::Shape;

use crate::cli::args::bench::DecodeMode;
use crate::cli::exit::Failure;

/// Drafts of the longest chain.
pub const DRAFTS_MAX: usize = 15;

/// The modes, each once; without a drafter only those that need none.
pub fn possible(wanted: &[DecodeMode], drafter: bool) -> Result<Vec<DecodeMode>, Failure> {
    let mut modes: Vec<DecodeMode> = Vec::new();
    for &mode in wanted {
        let possible = drafter || mode == DecodeMode::Plain;
        if !possible {
            let name = name(mode);
            eprintln!("{name} is left out: it needs a drafter (--speculative-draft-model-path)");
        } else if !modes.contains(&mode) {
            modes.push(mode);
        }
    }
    match modes.is_empty() {
        false => Ok(modes),
        true => Err(Failure::usage(
            "--modes: all of them need a drafter; give --speculative-draft-model-path or plain",
        )),
    }
}

/// As the flag spells it.
pub fn name(mode: DecodeMode) -> String {
    match mode {
        DecodeMode::Plain => "plain".to_owned(),
        DecodeMode::Linear(None) => "linear".to_owned(),
        DecodeMode::Linear(Some(drafts)) => format!("linear-{drafts}"),
        DecodeMode::Tree(nodes) => format!("tree-{nodes}"),
        DecodeMode::Auto => "auto".to_owned(),
    }
}

/// The fixed shape of a mode, where the whole block of the drafter has so many drafts; `None`: the
/// engine chooses.
pub fn shape(mode: DecodeMode, chain_drafts: usize) -> Option<Shape> {
    match mode {
        DecodeMode::Plain => Some(Shape::Plain),
        DecodeMode::Linear(drafts) => Some(Shape::Chain(drafts.unwrap_or(chain_drafts))),
        DecodeMode::Tree(nodes) => Some(Shape::Tree(nodes)),
        DecodeMode::Auto => None,
    }
}
