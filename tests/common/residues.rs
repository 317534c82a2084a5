//! A constraint without a grammar.

use engine::{Constraint, ConstraintState, OutputConstraint};

/// Output token i is i modulo `modulus`, up to token `at`: there the text is complete, or from there
/// on everything may follow.
#[derive(Clone, Debug)]
pub struct Residues {
    modulus: u32,
    at: usize,
    completes: bool,
    path: Vec<u32>,
}

impl Residues {
    pub fn new(modulus: u32, at: usize, completes: bool) -> Self {
        Residues {
            modulus,
            at,
            completes,
            path: Vec::new(),
        }
    }

    /// Whether a token may stand there.
    pub fn allows(&self, index: usize, token: u32) -> bool {
        index >= self.at || token % self.modulus == index as u32 % self.modulus
    }
}

impl Constraint for Residues {
    fn mask(&mut self, words: &mut [u32]) {
        let index = self.path.len();
        if self.completes && index >= self.at {
            return;
        }
        for id in 0..32 * words.len() as u32 {
            if self.allows(index, id) {
                words[id as usize / 32] |= 1 << (id % 32);
            }
        }
    }

    fn accept(&mut self, token: u32) {
        self.path.push(token);
    }

    fn rollback(&mut self, tokens: usize) {
        self.path.truncate(self.path.len() - tokens);
    }
}

impl OutputConstraint for Residues {
    fn state(&self) -> ConstraintState {
        let mut path = self.path.iter().enumerate();
        if path.any(|(index, &token)| !self.allows(index, token)) {
            return ConstraintState::Failed("a token of another residue".into());
        }
        match (self.path.len() >= self.at, self.completes) {
            (false, _) => ConstraintState::Open,
            (true, true) => ConstraintState::Complete,
            (true, false) => ConstraintState::Released,
        }
    }

    fn boxed_clone(&self) -> Box<dyn OutputConstraint> {
        Box::new(self.clone())
    }
}
