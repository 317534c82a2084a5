//! How much of an output that is shown as one text is reasoning.

use std::sync::Arc;

use engine::TokenUpdate;

use super::{Delta, Split, TextOptions, TextStream};
use crate::vocabulary::Vocabulary;

/// The same output, split and shown to nobody.
#[derive(Clone, Debug)]
pub(super) struct Thoughts {
    stream: Box<TextStream>,
    unseen: Vec<Delta>,
}

impl Thoughts {
    /// `None` where the reasoning is not to be counted apart from what is shown.
    pub(super) fn of(vocabulary: &Arc<Vocabulary>, options: &TextOptions) -> Option<Self> {
        let Split::Joined { in_reasoning } = options.split else {
            return None;
        };
        let options = TextOptions {
            split: match in_reasoning {
                true => Split::StartsInReasoning,
                false => Split::StartsInContent,
            },
            // They end the text that is shown, wherever they are in it.
            stops: Vec::new(),
            ..options.clone()
        };
        Some(Thoughts {
            stream: Box::new(TextStream::new(Arc::clone(vocabulary), options)),
            unseen: Vec::new(),
        })
    }

    /// Takes the next token.
    pub(super) fn push(&mut self, id: u32) {
        if self.stream.matched().is_none() {
            let token = TokenUpdate { id, logprob: None };
            self.stream.push(token, &mut self.unseen);
            self.unseen.clear();
        }
    }

    /// Tokens up to the end of the reasoning.
    pub(super) fn tokens(&self) -> usize {
        self.stream.reasoning_tokens()
    }
}
