//! Radix trees over token ids, one per salt, whose unit is the page.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ops::PAGE_TOKENS;

use super::Place;
use crate::kv_pool::KvPool;

/// Index of a node; reused after the node is gone.
pub(super) type NodeId = usize;

/// An edge and what lies at its end. Only roots have no tokens.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) parent: Option<NodeId>,
    /// Ordered by the tokens of their first page, which are distinct.
    pub(super) children: Vec<NodeId>,
    /// Whole pages of them.
    pub(super) tokens: Vec<u32>,
    /// Page of each 64 tokens.
    pub(super) pages: Vec<u32>,
    /// Tokens from the root to the end of the edge.
    pub(super) end: usize,
    /// Tick of the last use of the node or of one below it.
    pub(super) used: u64,
    /// State at the end of the edge: snapshots lie between nodes, never inside.
    pub(super) snapshot: Option<Place>,
    /// Of a root.
    pub(super) salt: Option<Arc<str>>,
}

impl Node {
    /// A leaf may be evicted. A root is none.
    pub(super) fn is_leaf(&self) -> bool {
        self.children.is_empty() && self.parent.is_some()
    }
}

/// Order of eviction: leaves that no snapshot makes reachable first, then by last use.
pub(super) type LeafKey = (bool, u64, NodeId);

/// How far the tree knows a sequence of tokens.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Nodes that it passes to their ends, from below the root.
    pub(super) path: Vec<NodeId>,
    /// A last node of which it follows only so many pages.
    pub(super) inside: Option<(NodeId, usize)>,
    /// Tokens in all, a multiple of 64.
    pub(super) length: usize,
}

/// See the module. Holds every page in it once.
#[derive(Debug, Default)]
pub(super) struct Tree {
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    roots: HashMap<Arc<str>, NodeId>,
    leaves: BTreeSet<LeafKey>,
    clock: u64,
    pages: usize,
    #[cfg(test)]
    pub(super) visits: std::cell::Cell<usize>,
}

impl Tree {
    pub(super) fn node(&self, id: NodeId) -> &Node {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        self.nodes[id].as_ref().expect("a node that exists")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id].as_mut().expect("a node that exists")
    }

    /// All nodes, in no order.
    pub(super) fn nodes(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(id, node)| Some(id).zip(node.as_ref()))
    }

    pub(super) fn roots(&self) -> &HashMap<Arc<str>, NodeId> {
        &self.roots
    }

    pub(super) fn leaves(&self) -> &BTreeSet<LeafKey> {
        &self.leaves
    }

    /// Pages in the tree.
    pub(super) fn pages(&self) -> usize {
        self.pages
    }

    /// A moment after all others.
    pub(super) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Follows whole pages of the tokens as far as the tree knows them.
    pub(super) fn walk(&self, salt: &str, tokens: &[u32]) -> Walk {
        let mut walk = Walk::default();
        let Some(&root) = self.roots.get(salt) else {
            return walk;
        };
        let mut at = root;
        while let Some((first, rest)) = tokens[walk.length..].split_at_checked(PAGE_TOKENS) {
            let Ok(index) = self.child(at, first) else {
                break;
            };
            let id = self.node(at).children[index];
            let node = self.node(id);
            let known = node.tokens[PAGE_TOKENS..].chunks_exact(PAGE_TOKENS);
            let equal = known.zip(rest.chunks_exact(PAGE_TOKENS));
            let pages = 1 + equal.take_while(|(known, page)| known == page).count();
            walk.length += pages * PAGE_TOKENS;
            if pages < node.pages.len() {
                walk.inside = Some((id, pages));
                break;
            }
            walk.path.push(id);
            at = id;
        }
        walk
    }

    /// Where among the children the one is that begins with this page, or where it would be.
    pub(super) fn child(&self, at: NodeId, page: &[u32]) -> Result<usize, usize> {
        let order = |&child: &NodeId| self.node(child).tokens[..PAGE_TOKENS].cmp(page);
        self.node(at).children.binary_search_by(order)
    }

    /// Makes everything on the way the most recently used.
    pub(super) fn touch(&mut self, walk: &Walk) {
        let now = self.tick();
        let inside = walk.inside.map(|(id, _)| id);
        for &id in walk.path.iter().chain(&inside) {
            self.change(id, |node| node.used = now);
        }
    }

    /// Changes a node and keeps the order of leaves right.
    fn change(&mut self, id: NodeId, change: impl FnOnce(&mut Node)) {
        let key = |node: &Node| (node.snapshot.is_some(), node.used, id);
        let node = self.nodes[id].as_mut().expect("a node that exists");
        if node.is_leaf() {
            self.leaves.remove(&key(node));
        }
        change(node);
        if node.is_leaf() {
            self.leaves.insert(key(node));
        }
    }

    pub(super) fn set_snapshot(&mut self, id: NodeId, snapshot: Option<Place>) {
        self.change(id, |node| node.snapshot = snapshot);
    }

    /// Takes in pages of tokens that the tree does not know yet, and says how many they are.
    pub(super) fn insert(
        &mut self,
        salt: &str,
        tokens: &[u32],
        pages: &[u32],
        pool: &mut KvPool,
    ) -> usize {
        let walk = self.walk(salt, tokens);
        self.touch(&walk);
        let (tokens, pages) = (&tokens[walk.length..], &pages[walk.length / PAGE_TOKENS..]);
        if pages.is_empty() {
            return 0;
        }
        for &page in pages {
            pool.cache(page);
        }
        self.pages += pages.len();
        let at = match (walk.inside, walk.path.last()) {
            (Some((id, pages)), _) => self.split(id, pages),
            (None, Some(&last)) => last,
            (None, None) => self.root(salt),
        };
        let node = self.node(at);
        if node.is_leaf() && node.snapshot.is_none() {
            self.change(at, |node| {
                node.tokens.extend_from_slice(tokens);
                node.pages.extend_from_slice(pages);
                node.end += tokens.len();
            });
        } else {
            self.add_leaf(at, tokens, pages);
        }
        pages.len()
    }

    fn root(&mut self, salt: &str) -> NodeId {
        if let Some(&root) = self.roots.get(salt) {
            return root;
        }
        let salt: Arc<str> = salt.into();
        let root = self.store(Node {
            salt: Some(salt.clone()),
            ..Node::default()
        });
        self.roots.insert(salt, root);
        root
    }

    fn store(&mut self, node: Node) -> NodeId {
        match self.vacant.pop() {
            Some(id) => {
                self.nodes[id] = Some(node);
                id
            }
            None => {
                self.nodes.push(Some(node));
                self.nodes.len() - 1
            }
        }
    }

    fn add_leaf(&mut self, at: NodeId, tokens: &[u32], pages: &[u32]) {
        let place = self.child(at, &tokens[..PAGE_TOKENS]);
        let place = place.expect_err("the walk would have followed a child like that");
        let used = self.clock;
        let leaf = self.store(Node {
            parent: Some(at),
            tokens: tokens.to_vec(),
            pages: pages.to_vec(),
            end: self.node(at).end + tokens.len(),
            used,
            ..Node::default()
        });
        self.change(at, |node| node.children.insert(place, leaf));
        self.leaves.insert((false, used, leaf));
    }

    /// Cuts an edge behind so many pages; the new node holds the upper part.
    fn split(&mut self, id: NodeId, pages: usize) -> NodeId {
        let node = self.node(id);
        let parent = node.parent.expect("a root has no edge to cut");
        let place = self.child(parent, &node.tokens[..PAGE_TOKENS]);
        let place = place.expect("a parent knows its children");
        let node = self.node_mut(id);
        let lower_tokens = node.tokens.split_off(pages * PAGE_TOKENS);
        let lower_pages = node.pages.split_off(pages);
        let upper = Node {
            parent: Some(parent),
            children: vec![id],
            end: node.end - lower_tokens.len(),
            tokens: std::mem::replace(&mut node.tokens, lower_tokens),
            pages: std::mem::replace(&mut node.pages, lower_pages),
            used: node.used,
            ..Node::default()
        };
        let upper = self.store(upper);
        self.node_mut(id).parent = Some(upper);
        self.node_mut(parent).children[place] = upper;
        upper
    }

    /// The node that ends where these tokens do, if the tree knows them all.
    pub(super) fn ending(&mut self, salt: &str, tokens: &[u32]) -> Option<NodeId> {
        let walk = self.walk(salt, tokens);
        if walk.length != tokens.len() {
            return None;
        }
        match walk.inside {
            Some((id, pages)) => Some(self.split(id, pages)),
            None => walk.path.last().copied(),
        }
    }

    /// Frees up to `count` pages from the end of a leaf without a snapshot, as far as nobody else
    /// holds them, and says how many.
    pub(super) fn trim(&mut self, leaf: NodeId, count: usize, pool: &mut KvPool) -> usize {
        let freed = sole_at_end(self.node(leaf), pool).min(count);
        self.cut(leaf, freed, pool);
        freed
    }

    /// Lets go of the pages at the end of a leaf that others hold, too.
    pub(super) fn drop_held(&mut self, leaf: NodeId, pool: &mut KvPool) {
        let pages = self.node(leaf).pages.iter().rev();
        let held = pages.take_while(|&&page| !pool.is_sole(page)).count();
        self.cut(leaf, held, pool);
    }

    /// Lets go of so many pages at the end of a leaf without a snapshot.
    fn cut(&mut self, leaf: NodeId, count: usize, pool: &mut KvPool) {
        let kept = self.node(leaf).pages.len() - count;
        if kept == 0 {
            self.unlink(leaf);
        }
        let mut pages = Vec::new();
        self.change(leaf, |node| {
            pages = node.pages.split_off(kept);
            node.tokens.truncate(kept * PAGE_TOKENS);
            node.end -= count * PAGE_TOKENS;
        });
        if kept == 0 {
            self.nodes[leaf] = None;
            self.vacant.push(leaf);
        }
        self.pages -= count;
        for page in pages.into_iter().rev() {
            pool.uncache(page);
        }
    }

    /// Whether any page on the way to the end of a node is the tree's alone.
    pub(super) fn has_sole(&self, id: NodeId, pool: &KvPool) -> bool {
        let way = std::iter::successors(Some(id), |&id| self.node(id).parent);
        let mut pages = way.flat_map(|id| &self.node(id).pages);
        pages.any(|&page| pool.is_sole(page))
    }

    /// Takes a leaf away from its parent; a root without children goes with its last one.
    fn unlink(&mut self, leaf: NodeId) {
        let node = self.node(leaf);
        let parent = node.parent.expect("a leaf is no root");
        let place = self.child(parent, &node.tokens[..PAGE_TOKENS]);
        let place = place.expect("a parent knows its children");
        self.change(leaf, |node| node.parent = None);
        self.change(parent, |node| {
            node.children.remove(place);
        });
        let root = self.node(parent);
        if let (true, Some(salt)) = (root.children.is_empty(), root.salt.clone()) {
            self.roots.remove(&salt);
            self.nodes[parent] = None;
            self.vacant.push(parent);
        }
    }

    /// Lets go of everything.
    pub(super) fn clear(&mut self, pool: &mut KvPool) {
        for node in std::mem::take(&mut self.nodes).into_iter().flatten() {
            for page in node.pages {
                pool.uncache(page);
            }
        }
        self.vacant.clear();
        self.roots.clear();
        self.leaves.clear();
        self.pages = 0;
    }
}

/// Pages at the end of an edge that only the tree holds.
pub(super) fn sole_at_end(node: &Node, pool: &KvPool) -> usize {
    let pages = node.pages.iter().rev();
    pages.take_while(|&&page| pool.is_sole(page)).count()
}
