//! One answer of an engine that does nothing else.

use engine::{Engine, Finish, FinishReason, Request};

use crate::cli::exit::{Exit, Failure};
use crate::cli::loading;

/// Tokens and counters of a request, when it has ended by itself.
pub fn whole(engine: &Engine, request: Request) -> Result<(Vec<u32>, Finish), Failure> {
    let handle = &engine.handle;
    let id = handle.submit(request)?;
    let mut tokens = Vec::new();
    loop {
        let Ok(output) = engine.outputs.recv() else {
            return Err(loading::ended(handle));
        };
        for update in output.updates.into_iter().filter(|update| update.id == id) {
            tokens.extend(update.tokens.iter().map(|token| token.id));
            let Some(finish) = update.finish else {
                continue;
            };
            return match &finish.reason {
                FinishReason::Stop | FinishReason::Length | FinishReason::Blocked => {
                    Ok((tokens, finish))
                }
                FinishReason::Error(reason) => Err(Failure::new(Exit::Runtime, reason.clone())),
                FinishReason::Aborted | FinishReason::Expired | FinishReason::Finished => {
                    Err(loading::ended(handle))
                }
            };
        }
    }
}
