//! The state slots: recurrent state, limits and tables of one running sequence each.

/// Ownership of one slot. Not `Clone`: a slot has one owner.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StateSlot {
    index: usize,
}

impl StateSlot {
    /// Its number on the device.
    pub(crate) fn index(&self) -> usize {
        self.index
    }
}

/// All slots.
#[derive(Debug)]
pub(crate) struct StatePool {
    free: Vec<usize>,
    total: usize,
}

impl StatePool {
    /// A pool of `total` free slots.
    pub(crate) fn new(total: usize) -> Self {
        StatePool {
            free: (0..total).rev().collect(),
            total,
        }
    }

    /// Slots in the pool.
    pub(crate) fn total(&self) -> usize {
        self.total
    }

    /// Slots that are owned.
    pub(crate) fn used(&self) -> usize {
        self.total - self.free.len()
    }

    /// A slot, or `None` while all are owned.
    pub(crate) fn reserve(&mut self) -> Option<StateSlot> {
        self.free.pop().map(|index| StateSlot { index })
    }

    /// Takes a slot back.
    pub(crate) fn release(&mut self, slot: StateSlot) {
        self.free.push(slot.index);
    }

    /// With no sequence left every slot must be free; says what is wrong otherwise.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let mut free = self.free.clone();
        free.sort_unstable();
        if free.iter().copied().eq(0..self.total) {
            return Ok(());
        }
        Err(format!(
            "{} of {} state slots are free while idle: {free:?}",
            free.len(),
            self.total
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_given_once_and_come_back() {
        let mut pool = StatePool::new(3);
        let slots: Vec<StateSlot> = std::iter::from_fn(|| pool.reserve()).collect();
        let mut numbers: Vec<usize> = slots.iter().map(StateSlot::index).collect();
        numbers.sort_unstable();
        assert_eq!((numbers, pool.used()), (vec![0, 1, 2], 3));
        assert!(pool.audit().is_err());
        for slot in slots {
            pool.release(slot);
        }
        pool.audit().expect("all slots are back");
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn audit_finds_a_slot_that_is_free_twice() {
        let pool = StatePool {
            free: vec![0, 0],
            total: 2,
        };
        assert!(pool.audit().is_err());
    }
}
