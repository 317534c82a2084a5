//! What finished prefills leave behind, so that prompts which begin alike need not be computed
//! again.
//!
//! Keys and values of a prefix lie in pages, which a radix tree holds beside the sequences that
//! use them. The recurrent state exists only where a prefill kept it, in a *snapshot* at a multiple
//! of 64 tokens. A prompt resumes at the deepest snapshot whose pages are all here, and always
//! computes one token itself. Nothing here touches a device: calls return what has to be copied.

mod audit;
pub(crate) mod boundaries;
mod tier;
mod tree;

use ops::PAGE_TOKENS;

use crate::kv_pool::KvPool;
use tier::{Slot, Tier};
use tree::{NodeId, Tree, sole_at_end};

/// Where a snapshot lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Place {
    /// In this place on the device.
    Device(usize),
    /// In this place in host memory.
    Host(usize),
}

/// A copy that must be made before anything else uses the places. Copies come in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// From the device to the host.
    Offload { device: usize, host: usize },
    /// From the host to the device.
    Fetch { host: usize, device: usize },
}

/// A place on the device that a prefill will fill: it ends with [`PrefixCache::attach`] or
/// [`PrefixCache::cancel`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Reservation {
    device: usize,
    /// To be made before the place is filled.
    pub(crate) moves: Vec<Move>,
}

impl Reservation {
    /// The place's number.
    pub(crate) fn device(&self) -> usize {
        self.device
    }
}

/// Keeps a snapshot where it is until the runner has read it: it ends with
/// [`PrefixCache::unpin`]. Not `Clone`: each one counts.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Lease {
    place: Place,
}

impl Lease {
    #[cfg(test)]
    fn place(&self) -> Place {
        self.place
    }

    /// Its place on the device, after [`PrefixCache::promote`].
    pub(crate) fn device(&self) -> usize {
        match self.place {
            Place::Device(device) => device,
            Place::Host(host) => panic!("the snapshot in host place {host} was not promoted"),
        }
    }
}

/// A prefix that need not be computed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// Its tokens: a multiple of 64, fewer than the prompt has.
    pub(crate) length: usize,
    /// Page of each 64 of them. They stay only while somebody else holds them too: the caller
    /// shares them ([`KvPool::share`]) before anything else is evicted.
    pub(crate) pages: Vec<u32>,
    /// Its state.
    pub(crate) lease: Lease,
}

/// What the cache knows of a prompt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lookup {
    /// The longest prefix that can be resumed.
    pub(crate) hit: Option<Hit>,
    /// Tokens up to which others went the same way, where that is further than the hit goes: a
    /// boundary for this prefill, for whoever comes that way next.
    pub(crate) fork: Option<usize>,
}

/// The prefix cache: gauges, and totals since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Snapshots on the device.
    pub device_snapshots: usize,
    /// Snapshots in host memory.
    pub host_snapshots: usize,
    /// Pages that the cache holds.
    pub pages: usize,
    /// Prompt tokens that were looked for.
    pub query_tokens: u64,
    /// Prompt tokens that were found.
    pub hit_tokens: u64,
    /// Pages given up for others.
    pub pages_evicted: u64,
    /// Snapshots given up for others, or with their pages.
    pub snapshots_evicted: u64,
    /// Snapshots moved from the device to host memory.
    pub offloads: u64,
    /// Snapshots moved back.
    pub fetches: u64,
}

/// See the module. An empty salt is no salt; prompts of different salts never meet.
#[derive(Debug)]
pub(crate) struct PrefixCache {
    tree: Tree,
    device: Tier,
    host: Tier,
    totals: CacheStats,
}

impl PrefixCache {
    /// An empty cache with so many places for snapshots on the device and in host memory.
    pub(crate) fn new(device: usize, host: usize) -> Self {
        PrefixCache {
            tree: Tree::default(),
            device: Tier::new(device),
            host: Tier::new(host),
            totals: CacheStats::default(),
        }
    }

    /// The longest prefix of a prompt that can be resumed. It is used most recently now.
    pub(crate) fn lookup(&mut self, salt: Option<&str>, prompt: &[u32]) -> Lookup {
        let pages = prompt.len().saturating_sub(1) / PAGE_TOKENS;
        let reusable = &prompt[..pages * PAGE_TOKENS];
        let walk = self.tree.walk(salt.unwrap_or_default(), reusable);
        self.tree.touch(&walk);
        let resumable = |&(_, &id): &(usize, &NodeId)| self.tree.node(id).snapshot.is_some();
        let hit = walk.path.iter().enumerate().rev().find(resumable);
        let hit = hit.map(|(last, &id)| {
            let nodes = walk.path[..=last].iter().map(|&id| self.tree.node(id));
            let pages: Vec<u32> = nodes.flat_map(|node| node.pages.iter().copied()).collect();
            let place = self.tree.node(id).snapshot.expect("it was just found");
            let used = self.tree.tick();
            let slot = self.slot(place);
            (slot.used, slot.hit) = (used, true);
            slot.pins += 1;
            Hit {
                length: pages.len() * PAGE_TOKENS,
                pages,
                lease: Lease { place },
            }
        });
        let resumed = hit.as_ref().map_or(0, |hit| hit.length);
        Lookup {
            hit,
            fork: Some(walk.length).filter(|&length| length > resumed),
        }
    }

    /// Counts a prompt that was admitted, and how much of it came from here.
    pub(crate) fn count(&mut self, prompt_tokens: usize, cached_tokens: usize) {
        self.totals.query_tokens += prompt_tokens as u64;
        self.totals.hit_tokens += cached_tokens as u64;
    }

    /// Takes in the pages of a computed prefix of whole pages, and says how many of them are new
    /// here. Those are shared from now on: nobody may write them. Of tokens that the cache knows
    /// already it keeps the pages it has.
    pub(crate) fn insert(
        &mut self,
        salt: Option<&str>,
        tokens: &[u32],
        pages: &[u32],
        pool: &mut KvPool,
    ) -> usize {
        assert_eq!(
            tokens.len(),
            pages.len() * PAGE_TOKENS,
            "a prefix of whole pages"
        );
        self.tree
            .insert(salt.unwrap_or_default(), tokens, pages, pool)
    }

    /// A place on the device for a new snapshot. A full device loses the snapshot that is worth
    /// least, to the host if there is room; `None` if all are pinned or reserved.
    pub(crate) fn reserve_snapshot(&mut self) -> Option<Reservation> {
        let (device, moves) = match self.device.free() {
            Some(device) => (device, Vec::new()),
            None => {
                let victim = self.victim(&self.device)?;
                let offload = self.displace(victim);
                (victim, offload.into_iter().collect())
            }
        };
        self.device.slots[device].reserved = true;
        Some(Reservation { device, moves })
    }

    /// The reserved place holds the state behind these tokens now. `false`, and the place is free
    /// again, where the pages of the tokens are not here or another snapshot is.
    pub(crate) fn attach(
        &mut self,
        salt: Option<&str>,
        tokens: &[u32],
        reservation: Reservation,
    ) -> bool {
        let device = reservation.device;
        self.cancel(reservation);
        let Some(id) = self.tree.ending(salt.unwrap_or_default(), tokens) else {
            return false;
        };
        match self.tree.node(id).snapshot {
            Some(Place::Device(_)) => return false,
            Some(place @ Place::Host(_)) => self.slot(place).owner = None,
            None => {}
        }
        let used = self.tree.tick();
        let slot = &mut self.device.slots[device];
        (slot.owner, slot.used, slot.hit) = (Some(id), used, false);
        self.tree.set_snapshot(id, Some(Place::Device(device)));
        true
    }

    /// Whether the state behind these tokens is here.
    pub(crate) fn has_snapshot(&self, salt: Option<&str>, tokens: &[u32]) -> bool {
        let walk = self.tree.walk(salt.unwrap_or_default(), tokens);
        let last = walk.path.last().filter(|_| walk.inside.is_none());
        let known = last.filter(|_| walk.length == tokens.len());
        known.is_some_and(|&id| self.tree.node(id).snapshot.is_some())
    }

    /// Gives a reserved place back unused. Its moves have to be made all the same.
    pub(crate) fn cancel(&mut self, reservation: Reservation) {
        let slot = &mut self.device.slots[reservation.device];
        assert!(slot.reserved, "place {} is reserved", reservation.device);
        slot.reserved = false;
    }

    /// Brings a leased snapshot to the device and says what has to be copied for that: nothing if
    /// it is there. `None`, and nothing has changed, if no place on the device can be had.
    pub(crate) fn promote(&mut self, lease: &mut Lease) -> Option<Vec<Move>> {
        let Place::Host(host) = lease.place else {
            return Some(Vec::new());
        };
        let Reservation { device, mut moves } = self.reserve_snapshot()?;
        moves.push(Move::Fetch { host, device });
        self.totals.fetches += 1;
        let from = &mut self.host.slots[host];
        // Another lease may still read the host's copy; it stays without an owner until then.
        let to = Slot { pins: 1, ..*from };
        from.owner = None;
        from.pins -= 1;
        self.device.slots[device] = to;
        lease.place = Place::Device(device);
        if let Some(id) = to.owner {
            self.tree.set_snapshot(id, Some(lease.place));
        }
        Some(moves)
    }

    /// The runner has read the snapshot.
    pub(crate) fn unpin(&mut self, lease: Lease) {
        let slot = self.slot(lease.place);
        assert!(slot.pins > 0, "{:?} is pinned", lease.place);
        slot.pins -= 1;
    }

    /// Frees up to `wanted` pages that only the cache holds, and says how many: first ends that no
    /// snapshot makes reachable, then what was used least recently. A snapshot goes with the first
    /// page of its prefix.
    pub(crate) fn evict_pages(&mut self, pool: &mut KvPool, wanted: usize) -> usize {
        let mut freed = 0;
        let mut kept = None;
        while freed < wanted {
            let leaves = self.tree.leaves();
            let next = match kept {
                None => leaves.first(),
                // Leaves that stay are few: sequences hold them, each those of one path.
                Some(kept) => leaves
                    .range((std::ops::Bound::Excluded(kept), std::ops::Bound::Unbounded))
                    .next(),
            };
            let Some(&leaf) = next else {
                break;
            };
            let id = leaf.2;
            if !self.is_pinned(id) && sole_at_end(self.tree.node(id), pool) > 0 {
                if let Some(place) = self.tree.node(id).snapshot {
                    self.drop_snapshot(id, place);
                }
                freed += self.tree.trim(id, wanted - freed, pool);
                // The parent may be a leaf now, and one to go first.
                kept = None;
            } else {
                kept = Some(leaf);
            }
        }
        self.totals.pages_evicted += freed as u64;
        freed
    }

    /// Pages that [`Self::evict_pages`] could free.
    #[cfg(test)]
    fn evictable(&self, pool: &KvPool) -> usize {
        let mut order: Vec<NodeId> = self.tree.roots().values().copied().collect();
        let mut next = 0;
        while let Some(&id) = order.get(next) {
            order.extend(&self.tree.node(id).children);
            next += 1;
        }
        let mut pages = 0;
        let mut held = std::collections::HashSet::new();
        for id in order.into_iter().rev() {
            let node = self.tree.node(id);
            if node.children.iter().any(|child| held.contains(child)) || self.is_pinned(id) {
                held.insert(id);
                continue;
            }
            let free = sole_at_end(node, pool);
            pages += free;
            if free < node.pages.len() {
                held.insert(id);
            }
        }
        pages
    }

    /// Forgets everything. What is pinned, reserved or held by sequences stays theirs.
    pub(crate) fn flush(&mut self, pool: &mut KvPool) {
        self.tree.clear(pool);
        for slot in self.device.slots.iter_mut().chain(&mut self.host.slots) {
            slot.owner = None;
        }
    }

    /// What it holds and what has come of it.
    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats {
            device_snapshots: self.device.held(),
            host_snapshots: self.host.held(),
            pages: self.tree.pages(),
            ..self.totals
        }
    }

    fn slot(&mut self, place: Place) -> &mut Slot {
        match place {
            Place::Device(device) => &mut self.device.slots[device],
            Place::Host(host) => &mut self.host.slots[host],
        }
    }

    fn is_pinned(&self, id: NodeId) -> bool {
        match self.tree.node(id).snapshot {
            Some(Place::Device(device)) => self.device.slots[device].pins > 0,
            Some(Place::Host(host)) => self.host.slots[host].pins > 0,
            None => false,
        }
    }

    /// Least valuable first. A long prompt leaves many snapshots, of which the next turn needs the
    /// last: the others, until something resumes from them, must not drive out those of other
    /// prompts.
    fn worth(&self, tier: &Tier, (place, owner): (usize, NodeId)) -> (bool, u64) {
        let slot = &tier.slots[place];
        (slot.hit || !self.is_superseded(owner), slot.used)
    }

    /// Every known way from here leads through one deeper snapshot.
    fn is_superseded(&self, id: NodeId) -> bool {
        let mut node = self.tree.node(id);
        while let [child] = node.children[..] {
            node = self.tree.node(child);
            if node.snapshot.is_some() {
                return true;
            }
        }
        false
    }

    fn victim(&self, tier: &Tier) -> Option<usize> {
        let worth = |&movable: &(usize, NodeId)| self.worth(tier, movable);
        tier.movable().min_by_key(worth).map(|(place, _)| place)
    }

    /// Takes a snapshot off the device, to the host where that holds nothing of more worth.
    fn displace(&mut self, device: usize) -> Option<Move> {
        let slot = self.device.slots[device];
        let owner = slot.owner.expect("a snapshot has an owner");
        let Some(host) = self.host_place(self.worth(&self.device, (device, owner))) else {
            self.drop_snapshot(owner, Place::Device(device));
            return None;
        };
        self.host.slots[host] = slot;
        self.device.slots[device].owner = None;
        self.tree.set_snapshot(owner, Some(Place::Host(host)));
        self.totals.offloads += 1;
        Some(Move::Offload { device, host })
    }

    /// A place on the host that is free, or that something of less worth loses.
    fn host_place(&mut self, worth: (bool, u64)) -> Option<usize> {
        if let Some(free) = self.host.free() {
            return Some(free);
        }
        let host = self.victim(&self.host)?;
        let owner = self.host.slots[host].owner?;
        if self.worth(&self.host, (host, owner)) >= worth {
            return None;
        }
        self.drop_snapshot(owner, Place::Host(host));
        Some(host)
    }

    fn drop_snapshot(&mut self, id: NodeId, place: Place) {
        self.tree.set_snapshot(id, None);
        self.slot(place).owner = None;
        self.totals.snapshots_evicted += 1;
    }
}

#[cfg(test)]
mod tests;
