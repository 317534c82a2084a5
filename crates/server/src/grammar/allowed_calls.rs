//! Any text, but calls of the allowed tools only, wherever they are opened.

use std::collections::VecDeque;
use std::sync::Arc;

use engine::{Constraint, ConstraintState, OutputConstraint};

use super::call_tokens::CallTokens;
use super::masks::{allow, ban};
use crate::text_stream::{Ahead, Split, TextOptions, TextStream};
use crate::tool_calls::{AllowedNames, ToolSet};
use crate::vocabulary::Vocabulary;

/// Places that can be taken back to: more than a step takes back.
const PLACES_MAX: usize = 128;

/// A set of tokens.
enum Ids {
    All,
    /// These and no others.
    Only(Vec<u32>),
    /// All but these.
    But(Vec<u32>),
}

/// Restricts the names of calls. It reads the output with the parser that the client's answer comes
/// from, so both agree on what a call is: an example of one inside an argument is none.
#[derive(Clone)]
pub(super) struct AllowedCalls {
    tokens: Arc<CallTokens>,
    names: Arc<AllowedNames>,
    /// Ids that are refused where nothing of an opening is there yet.
    at_once: Arc<Vec<u32>>,
    /// Behind each of the last tokens; never empty.
    places: VecDeque<TextStream>,
    accepted: usize,
    /// Index of the first token that could not come and did.
    refused: Option<usize>,
}

impl AllowedCalls {
    /// Before the first token of a text of these options; `None` where any name may be called.
    pub(super) fn new(
        vocabulary: &Arc<Vocabulary>,
        tokens: &Arc<CallTokens>,
        text: &TextOptions,
    ) -> Option<Self> {
        let set = text.tools.as_ref()?;
        let names = AllowedNames::new(set.callable.as_ref()?);
        // What ends the text for the client ends the request, too.
        let text = TextOptions {
            // Nobody asks it how much was reasoning.
            split: match text.split {
                Split::Joined { .. } => Split::Off,
                split => split,
            },
            tools: Some(Arc::new(ToolSet {
                parallel: true,
                ..(**set).clone()
            })),
            stops: Vec::new(),
            include_stop: false,
            end_ids: Vec::new(),
            stop_ids: Vec::new(),
            skip_special: text.skip_special,
            min_tokens: 0,
        };
        let start = TextStream::new(Arc::clone(vocabulary), text);
        let nothing = Ahead {
            held: &[],
            content: true,
            line_start: true,
        };
        let at_once = tokens.deciding(false).iter().copied();
        let at_once = at_once.filter(|&id| names.refuses(&nothing, start.text_of(id)));
        Some(AllowedCalls {
            at_once: Arc::new(at_once.collect()),
            tokens: Arc::clone(tokens),
            names: Arc::new(names),
            places: VecDeque::from([start]),
            accepted: 0,
            refused: None,
        })
    }

    /// Whether no tool may be called at all.
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    fn place(&self) -> &TextStream {
        &self.places[self.places.len() - 1]
    }

    /// Whether a token may not come. One without text has no place within a name.
    fn refuses(&self, ahead: &Ahead<'_>, token: u32) -> bool {
        let text = self.place().text_of(token);
        self.names.refuses(ahead, text) || text.is_empty() && self.names.rests(ahead).is_some()
    }

    /// The tokens that may come.
    fn allowed(&self) -> Ids {
        let Some(ahead) = self.place().ahead() else {
            return Ids::All;
        };
        let refuses = |id: &u32| self.refuses(&ahead, *id);
        if let Some(rests) = self.names.rests(&ahead) {
            let along = rests.iter().flat_map(|rest| self.tokens.along(rest));
            return Ids::Only(along.filter(|id| !refuses(id)).collect());
        }
        let candidates = match ahead.held.is_empty() {
            true => &self.at_once[..],
            false => (self.tokens).deciding(AllowedNames::is_behind_mark(&ahead)),
        };
        let refused: Vec<u32> = candidates.iter().copied().filter(refuses).collect();
        match refused.is_empty() {
            true => Ids::All,
            false => Ids::But(refused),
        }
    }

    /// Whether every token may come.
    pub(super) fn allows_any(&self) -> bool {
        matches!(self.allowed(), Ids::All)
    }

    /// Takes out of a mask what may not come.
    pub(super) fn restrict(&self, words: &mut [u32]) {
        match self.allowed() {
            Ids::All => {}
            Ids::But(refused) => refused.iter().for_each(|&id| ban(words, id)),
            Ids::Only(ids) => {
                let mut mask = vec![0; words.len()];
                ids.iter().for_each(|&id| allow(&mut mask, id));
                for (word, own) in words.iter_mut().zip(mask) {
                    *word &= own;
                }
            }
        }
    }
}

impl Constraint for AllowedCalls {
    fn mask(&mut self, words: &mut [u32]) {
        words.fill(u32::MAX);
        self.restrict(words);
    }

    fn allows_all(&mut self) -> bool {
        self.allows_any()
    }

    fn accept(&mut self, token: u32) {
        let mut place = self.place().clone();
        if place
            .ahead()
            .is_some_and(|ahead| self.refuses(&ahead, token))
        {
            self.refused.get_or_insert(self.accepted);
        }
        place.follow(token);
        self.accepted += 1;
        self.places.push_back(place);
        if self.places.len() > PLACES_MAX {
            self.places.pop_front();
        }
    }

    fn rollback(&mut self, tokens: usize) {
        let kept = self.places.len().saturating_sub(tokens).max(1);
        self.places.truncate(kept);
        self.accepted = self.accepted.saturating_sub(tokens);
        self.refused = self.refused.filter(|&index| index < self.accepted);
    }
}

impl OutputConstraint for AllowedCalls {
    fn state(&self) -> ConstraintState {
        match self.refused {
            Some(_) => ConstraintState::Blocked { whole: false },
            None => ConstraintState::Open,
        }
    }

    fn boxed_clone(&self) -> Box<dyn OutputConstraint> {
        Box::new(self.clone())
    }
}
