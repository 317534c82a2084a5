//! Times of every kernel of a step, at the sizes of the 27B model.
//!
//!     cargo bench -p ops --features cuda --bench kernels -- [SECTION[/CASE]]... [KEY=NUMBER]...
//!
//! `SECTION` and `CASE` are parts of names: `products/chain`, `gdn/scan`, `attention`. Keys:
//! `rounds` (of which the median and the least are printed); of the chain of products `layers` (64
//! are 51 GB) and the `milliseconds` of a round.
//!
//! A case is a graph of launches that take their large inputs in turn from more memory than the
//! second-level cache holds. Shares are of the copy rate, and of the rate at which cuBLASLt
//! multiplies large matrices, both measured in the same process. `products` runs under load for
//! longer, ours and cuBLASLt in turn, since a GPU at its power limit lowers its clock.

mod attention;
mod bench;
mod bits;
mod chain;
mod draft_attention;
mod gdn;
mod memory;
mod peer;
mod prefill;
mod product;
mod rows;
mod sequences;
mod shape;
mod times;
mod tree;
mod vocabulary;

use ops::OpsError;

use crate::bench::Bench;

type Section = (&'static str, fn(&Bench) -> Result<(), OpsError>);

const SECTIONS: [Section; 9] = [
    ("bits", bits::run),
    ("products", chain::run),
    ("prefill", prefill::run),
    ("attention", attention::run),
    ("draft_attention", draft_attention::run),
    ("gdn", gdn::run),
    ("vocabulary", vocabulary::run),
    ("tree", tree::run),
    ("rows", rows::run),
];

fn main() -> Result<(), OpsError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let bench = match Bench::open(&arguments) {
        Err(OpsError::Absent(reason)) => {
            println!("skipped: {reason}");
            return Ok(());
        }
        opened => opened?,
    };
    for (name, run) in SECTIONS {
        if bench.enter(name) {
            run(&bench)?;
        }
    }
    Ok(())
}
