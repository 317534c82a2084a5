//! Whether tree, order of eviction and places agree.

use std::collections::{BTreeSet, HashSet};

use ops::PAGE_TOKENS;

use super::tree::{Node, NodeId};
use super::{Place, PrefixCache};

/// Tokens that continue others, their pages, and where the state behind them lies.
#[cfg(test)]
pub(crate) struct Edge<'a> {
    /// Index of the edge that it continues.
    pub(crate) above: Option<usize>,
    pub(crate) tokens: &'a [u32],
    pub(crate) pages: &'a [u32],
    pub(crate) snapshot: Option<Place>,
}

impl PrefixCache {
    /// Pages that the cache holds, for [`crate::kv_pool::KvPool::audit`].
    pub(crate) fn pages(&self) -> impl Iterator<Item = u32> {
        self.tree
            .nodes()
            .flat_map(|(_, node)| node.pages.iter().copied())
    }

    /// What the cache says it holds, edge by edge, each behind the one it continues.
    #[cfg(test)]
    pub(crate) fn edges(&self) -> Vec<Edge<'_>> {
        let roots = self.tree.roots().values();
        let below = |id: NodeId, above| {
            let children = self.tree.node(id).children.iter();
            children.map(move |&child| (child, above))
        };
        let mut order: Vec<(NodeId, Option<usize>)> =
            roots.flat_map(|&root| below(root, None)).collect();
        let mut edges = Vec::new();
        while let Some(&(id, above)) = order.get(edges.len()) {
            let node = self.tree.node(id);
            order.extend(below(id, Some(edges.len())));
            edges.push(Edge {
                above,
                tokens: &node.tokens,
                pages: &node.pages,
                snapshot: node.snapshot,
            });
        }
        edges
    }

    /// Checks everything that must always hold; says what is wrong.
    pub(crate) fn audit(&self) -> Result<(), String> {
        let mut leaves = BTreeSet::new();
        let mut places = HashSet::new();
        let mut pages = HashSet::new();
        for (id, node) in self.tree.nodes() {
            self.audit_node(id, node)?;
            if node.is_leaf() {
                leaves.insert((node.snapshot.is_some(), node.used, id));
            }
            if let Some(place) = node.snapshot
                && (self.owner(place) != Some(id) || !places.insert(place))
            {
                return Err(format!("node {id} has no sole claim to {place:?}"));
            }
            if let Some(page) = node.pages.iter().find(|&&page| !pages.insert(page)) {
                return Err(format!("page {page} is in the prefix cache twice"));
            }
        }
        if &leaves != self.tree.leaves() {
            return Err("the order of eviction does not list the leaves".into());
        }
        if pages.len() != self.tree.pages() {
            let (found, counted) = (pages.len(), self.tree.pages());
            return Err(format!("{found} pages are cached, {counted} counted"));
        }
        let held = self.device.held() + self.host.held();
        if held != places.len() {
            return Err(format!(
                "{held} places have owners, {} nodes know",
                places.len()
            ));
        }
        Ok(())
    }

    /// With nothing running no place may be pinned or reserved either.
    pub(crate) fn audit_idle(&self) -> Result<(), String> {
        let mut slots = self.device.slots.iter().chain(&self.host.slots);
        match slots.find(|slot| slot.reserved || slot.pins > 0) {
            Some(slot) => Err(format!("a snapshot's place is in use while idle: {slot:?}")),
            None => self.audit(),
        }
    }

    fn owner(&self, place: Place) -> Option<NodeId> {
        match place {
            Place::Device(device) => self.device.slots[device].owner,
            Place::Host(host) => self.host.slots[host].owner,
        }
    }

    fn audit_node(&self, id: NodeId, node: &Node) -> Result<(), String> {
        let fault = |text: &str| Err(format!("node {id} of the prefix cache {text}"));
        match (node.parent, &node.salt) {
            (None, Some(salt)) => {
                if self.tree.roots().get(salt) != Some(&id) || node.children.is_empty() {
                    return fault("is no root that anything hangs on");
                }
                if node.end > 0 || !node.tokens.is_empty() || node.snapshot.is_some() {
                    return fault("is a root with tokens");
                }
            }
            (Some(parent), None) => {
                let above = self.tree.node(parent);
                let first = &node.tokens[..PAGE_TOKENS.min(node.tokens.len())];
                let place = self.tree.child(parent, first);
                let known = place.is_ok_and(|place| above.children[place] == id);
                if !known || above.end + node.tokens.len() != node.end {
                    return fault("does not continue its parent");
                }
                if above.salt.is_none() && above.used < node.used {
                    return fault("was used later than its parent");
                }
            }
            _ => return fault("is neither root nor child"),
        }
        let whole = node.tokens.len() == node.pages.len() * PAGE_TOKENS;
        if !whole || (node.pages.is_empty() && node.parent.is_some()) {
            return fault("does not hold whole pages");
        }
        let first = |&child: &NodeId| &self.tree.node(child).tokens[..PAGE_TOKENS];
        match node.children.is_sorted_by(|a, b| first(a) < first(b)) {
            true => Ok(()),
            false => fault("has children out of order"),
        }
    }
}
