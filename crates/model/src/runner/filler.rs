//! Contexts that nobody prefilled, for benchmarks.

use ops::{Backend, Fill, FillLaw};

use super::Runner;
use crate::ModelError;

impl<B: Backend> Runner<B> {
    /// Fills all pages, the target's and the drafter's, with keys and values from N(0, 1): normed
    /// keys have that scale. For benchmarks only, while no sequence runs.
    pub fn fill_pages(&mut self, seed: u64) -> Result<(), ModelError> {
        let drafter = self.drafter.iter_mut().flat_map(|own| &mut own.caches);
        for (index, layer) in self.caches.iter_mut().chain(drafter).enumerate() {
            let sides = [("keys", &mut layer.keys), ("values", &mut layer.values)];
            for (side, values) in sides {
                self.backend.fill(Fill {
                    values: values.into(),
                    law: FillLaw::Normal {
                        mean: 0.0,
                        deviation: 1.0,
                    },
                    seed,
                    name: &format!("{side} {index}"),
                })?;
            }
        }
        Ok(())
    }

    /// Lets a sequence behind its prompt stand at `length` committed tokens: further on, with
    /// whatever its pages hold as the keys and values that it lacks, or back again. For benchmarks
    /// only.
    ///
    /// # Panics
    /// If the context cannot hold that.
    pub fn place(&mut self, slot: usize, length: usize) -> Result<(), ModelError> {
        assert!(
            (1..self.config.context_max).contains(&length),
            "{length} tokens of {}",
            self.config.context_max
        );
        self.backend
            .upload(&[length as u32], &mut self.slots.length, slot)?;
        self.progress[slot].length = length;
        Ok(())
    }
}
