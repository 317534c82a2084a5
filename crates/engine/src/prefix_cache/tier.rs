//! The places for snapshots in one kind of memory.

use super::tree::NodeId;

/// A place. Whoever resumes from what lies there pins it; until then nothing may overwrite it,
/// even when the tree has let go of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    /// The node whose state lies here.
    pub(super) owner: Option<NodeId>,
    /// Promised to a prefill that will fill it.
    pub(super) reserved: bool,
    /// Leases that have not ended.
    pub(super) pins: u32,
    /// Tick of its making or of its last hit.
    pub(super) used: u64,
    /// Something resumed from it.
    pub(super) hit: bool,
}

impl Slot {
    fn is_free(&self) -> bool {
        self.owner.is_none() && !self.reserved && self.pins == 0
    }
}

/// All places of one memory.
#[derive(Debug)]
pub(super) struct Tier {
    pub(super) slots: Vec<Slot>,
}

impl Tier {
    pub(super) fn new(places: usize) -> Self {
        Tier {
            slots: vec![Slot::default(); places],
        }
    }

    /// A place that holds nothing.
    pub(super) fn free(&self) -> Option<usize> {
        self.slots.iter().position(Slot::is_free)
    }

    /// Snapshots that the tree knows.
    pub(super) fn held(&self) -> usize {
        self.slots.iter().filter(|s| s.owner.is_some()).count()
    }

    /// Places with an owner that may lose them, with their owners.
    pub(super) fn movable(&self) -> impl Iterator<Item = (usize, NodeId)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(place, slot)| match slot.pins {
            0 => Some(place).zip(slot.owner),
            _ => None,
        })
    }
}
