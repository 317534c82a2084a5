//! What the runner does for the prefix cache.

use model::ModelError;
use ops::PAGE_TOKENS;

use super::StepLoop;
use crate::prefix_cache::Move;
use crate::sequence::Stage;
use crate::step_runner::StepRunner;

impl<R: StepRunner> StepLoop<R> {
    /// Makes copies of snapshots, in order.
    pub(super) fn copy_snapshots(&mut self, moves: &[Move]) -> Result<(), ModelError> {
        for &copy in moves {
            match copy {
                Move::Offload { device, host } => self.runner.offload_snapshot(device, host)?,
                Move::Fetch { host, device } => self.runner.fetch_snapshot(host, device)?,
            }
        }
        Ok(())
    }

    /// Gives the cache the pages of a prompt whose prefill stands at a boundary or has ended, and a
    /// snapshot of its state at a boundary.
    pub(super) fn keep_state(&mut self, index: usize) -> Result<(), ModelError> {
        let scheduler = &mut self.scheduler;
        let sequence = &scheduler.running[index];
        let (Some(cache), Some(boundaries)) = (&mut scheduler.cache, &sequence.boundaries) else {
            return Ok(());
        };
        let prefilled = sequence.prefilled();
        let boundary = boundaries.contain(prefilled);
        if !boundary && sequence.stage() == Stage::Prefill {
            return Ok(());
        }
        let salt = sequence.request.cache_salt.as_deref();
        let whole = prefilled / PAGE_TOKENS;
        let tokens = &sequence.request.prompt[..whole * PAGE_TOKENS];
        let pages = &sequence.pages.pages()[..whole];
        cache.insert(salt, tokens, pages, &mut scheduler.kv);
        if !boundary || cache.has_snapshot(salt, tokens) {
            return Ok(());
        }
        let Some(reservation) = cache.reserve_snapshot() else {
            return Ok(());
        };
        let (slot, place) = (sequence.slot.index(), reservation.device());
        self.copy_snapshots(&reservation.moves)?;
        self.runner.save_snapshot(slot, place)?;
        let scheduler = &mut self.scheduler;
        let sequence = &scheduler.running[index];
        if let Some(cache) = &mut scheduler.cache {
            let tokens = &sequence.request.prompt[..prefilled];
            cache.attach(sequence.request.cache_salt.as_deref(), tokens, reservation);
        }
        Ok(())
    }

    /// Forgets all prompts, unless somebody runs or waits.
    pub(super) fn flush_cache(&mut self) -> bool {
        if !self.scheduler.is_empty() {
            return false;
        }
        let scheduler = &mut self.scheduler;
        if let Some(cache) = &mut scheduler.cache {
            cache.flush(&mut scheduler.kv);
        }
        self.publish();
        true
    }
}
