//! Steps recorded once and launched again.

use std::rc::Rc;

use ops::{Backend, OpsError};

use super::step::PartClock;
use super::{Runner, StepKey};
use crate::ModelError;

/// Keys that are recorded at most: a device keeps memory for each.
const RECORDS_MAX: usize = 128;

/// The ops of a step that one graph holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GraphPart {
    /// All of them, without masks.
    Whole,
    /// The first half: draft and tree.
    Draft,
    /// The second half, sampled with masks.
    MaskedVerify,
}

/// What is recorded as one graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GraphKey {
    /// Which ops.
    pub(super) part: GraphPart,
    /// Their capacities.
    pub(super) step: StepKey,
}

impl GraphKey {
    /// Whether a graph of this key serves where one of key `other` is asked for.
    fn covers(self, other: GraphKey) -> bool {
        self.part == other.part && self.step.covers(other.step)
    }
}

/// Recorded steps by key, and what is worth recording.
pub(super) struct Graphs<G> {
    recorded: Vec<(GraphKey, G)>,
    /// Keys that were enqueued op by op: now they can be recorded.
    prepared: Vec<GraphKey>,
    /// Whether the device records at all.
    able: bool,
}

impl<G> Default for Graphs<G> {
    fn default() -> Self {
        Graphs {
            recorded: Vec::new(),
            prepared: Vec::new(),
            able: true,
        }
    }
}

impl<G> Graphs<G> {
    /// The smallest recorded step that covers `key` in its own row bucket; of any rows once no more
    /// can be recorded.
    fn find(&self, key: GraphKey) -> Option<&G> {
        let close = |own: &GraphKey| own.step.rows == key.step.rows || self.is_full();
        let covering = (self.recorded.iter()).filter(|(own, _)| own.covers(key) && close(own));
        covering.min_by_key(|(own, _)| *own).map(|(_, graph)| graph)
    }

    fn has(&self, key: GraphKey) -> bool {
        self.recorded.iter().any(|(recorded, _)| *recorded == key)
    }

    fn is_full(&self) -> bool {
        self.recorded.len() >= RECORDS_MAX
    }

    /// Whether a step of `key` that nothing recorded serves is to be recorded now.
    fn is_due(&self, key: GraphKey) -> bool {
        self.able && !self.is_full() && self.prepared.contains(&key)
    }

    /// Notes that a step was enqueued op by op.
    fn prepare(&mut self, key: GraphKey) {
        if self.able && !self.is_full() && !self.prepared.contains(&key) {
            self.prepared.push(key);
        }
    }

    /// Keeps a recording; `None`: the device has none.
    fn keep(&mut self, key: GraphKey, graph: Option<G>) {
        self.able = graph.is_some();
        self.recorded.extend(graph.map(|graph| (key, graph)));
        self.prepared.retain(|prepared| *prepared != key);
    }

    /// Forgets all recordings, and what was prepared: steps may have other ops from now on.
    pub(super) fn clear(&mut self) {
        self.recorded.clear();
        self.prepared.clear();
    }
}

impl<B: Backend> Runner<B> {
    /// Records the ops of a step, so that steps which the key covers are launched as a whole.
    /// `false`: the device has no graphs, or [`super::RunnerConfig::graphs`] is off. Nothing runs
    /// and no state changes. The same key should have been run before: a device may prepare at the
    /// first use of an op what cannot be recorded.
    ///
    /// [`Runner::step`] records by itself what it meets a second time; this is for those who do not
    /// want to wait.
    pub fn record(&mut self, key: StepKey) -> Result<bool, ModelError> {
        let part = GraphPart::Whole;
        Ok(self.record_graph(GraphKey { part, step: key })?)
    }

    /// [`Runner::record`] for [`Runner::step_constrained`]: both halves of a step.
    pub fn record_constrained(&mut self, key: StepKey) -> Result<bool, ModelError> {
        let mut half = |part| self.record_graph(GraphKey { part, step: key });
        Ok(half(GraphPart::Draft)? && half(GraphPart::MaskedVerify)?)
    }

    fn record_graph(&mut self, key: GraphKey) -> Result<bool, OpsError> {
        if !self.config.graphs {
            return Ok(false);
        }
        if !self.graphs.has(key) && !self.graphs.is_full() {
            let backend = Rc::clone(&self.backend);
            let graph = backend.record(&mut || self.enqueue_graph(key, &mut PartClock::start()))?;
            self.graphs.keep(key, graph);
        }
        Ok(self.graphs.has(key))
    }

    /// Launches a graph that covers `key`, or enqueues its ops one by one. `true` if launched: never
    /// the first of its kind, unless warm-up was there before.
    pub(super) fn run_graph(
        &mut self,
        key: GraphKey,
        clock: &mut PartClock,
    ) -> Result<bool, OpsError> {
        let launched = self.launch(key)?;
        if !launched {
            self.enqueue_graph(key, clock)?;
        }
        Ok(launched)
    }

    /// Launches a graph that covers `key`; `false` if there is none.
    fn launch(&mut self, key: GraphKey) -> Result<bool, OpsError> {
        if !self.config.graphs {
            return Ok(false);
        }
        if self.graphs.find(key).is_none() && self.graphs.is_due(key) {
            // Nothing ran, and the step can still be enqueued op by op.
            if let Err(error) = self.record_graph(key) {
                tracing::warn!(%error, "a step was not recorded; steps run op by op from now on");
                self.graphs.able = false;
            }
        }
        if let Some(graph) = self.graphs.find(key) {
            return self.backend.launch(graph).map(|()| true);
        }
        self.graphs.prepare(key);
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Shape;
    use super::*;

    fn key(shapes: &[Shape]) -> GraphKey {
        GraphKey {
            part: GraphPart::Whole,
            step: StepKey::of(shapes.iter().copied(), 8),
        }
    }

    /// What a runner does at a step, with the key in place of its graph: the key that is launched.
    fn step(graphs: &mut Graphs<GraphKey>, able: bool, key: GraphKey) -> Option<GraphKey> {
        if graphs.find(key).is_none() && graphs.is_due(key) {
            graphs.keep(key, able.then_some(key));
        }
        let found = graphs.find(key).copied();
        if found.is_none() {
            graphs.prepare(key);
        }
        found
    }

    #[test]
    fn the_second_step_of_a_kind_is_recorded_and_launched() {
        let mut graphs = Graphs::default();
        let (one, two) = (key(&[Shape::Tree(15)]), key(&[Shape::Tree(15); 2]));
        assert_eq!(step(&mut graphs, true, two), None, "ops prepare themselves");
        assert_eq!(step(&mut graphs, true, two), Some(two));
        assert_eq!(step(&mut graphs, true, one), None, "32 rows are too many");
        assert_eq!(step(&mut graphs, true, one), Some(one));
        assert_eq!(step(&mut graphs, true, key(&[Shape::Tree(14)])), Some(one));
        assert_eq!(step(&mut graphs, true, two), Some(two));
        let plain = key(&[Shape::Plain]);
        assert_eq!(step(&mut graphs, true, plain), None, "no drafter for it");
    }

    #[test]
    fn halves_are_recorded_by_themselves() {
        let mut graphs = Graphs::default();
        let whole = key(&[Shape::Tree(15)]);
        let half = |part| GraphKey { part, ..whole };
        let (draft, verify) = (half(GraphPart::Draft), half(GraphPart::MaskedVerify));
        for part in [whole, draft, verify] {
            assert_eq!(step(&mut graphs, true, part), None, "{part:?}");
            assert_eq!(step(&mut graphs, true, part), Some(part));
        }
        let small = key(&[Shape::Tree(14)]).step;
        let small = GraphKey {
            step: small,
            ..verify
        };
        assert_eq!(step(&mut graphs, true, small), Some(verify));
    }

    #[test]
    fn rows_of_one_bucket_share_a_recording_whatever_they_are_made_of() {
        let mut graphs = Graphs::default();
        let mixed = key(&[Shape::Tree(31), Shape::Chain(7), Shape::Chain(7)]);
        let tree = key(&[Shape::Tree(47)]);
        assert_eq!(mixed.step.rows, tree.step.rows);
        step(&mut graphs, true, mixed);
        step(&mut graphs, true, mixed);
        assert_eq!(step(&mut graphs, true, tree), Some(mixed));
        // One of its own is closer.
        graphs.keep(tree, Some(tree));
        assert_eq!(step(&mut graphs, true, tree), Some(tree));
    }

    #[test]
    fn recordings_are_limited_and_then_the_smallest_cover_serves() {
        let mut graphs = Graphs::default();
        for shape in [Shape::Tree(63), Shape::Tree(31)] {
            graphs.keep(key(&[shape]), Some(key(&[shape])));
        }
        let small = key(&[Shape::Chain(3)]);
        let mut far = key(&[Shape::Plain; 8]);
        far.step.rows = 512;
        while !graphs.is_full() {
            assert_eq!(graphs.find(small), None);
            graphs.keep(far, Some(far));
        }
        assert_eq!(
            step(&mut graphs, true, small),
            Some(key(&[Shape::Tree(31)]))
        );
        let eight = key(&[Shape::Tree(63); 8]);
        for _ in 0..3 {
            assert_eq!(step(&mut graphs, true, eight), None, "op by op for ever");
        }
        graphs.clear();
        assert_eq!(step(&mut graphs, true, small), None);
        assert_eq!(step(&mut graphs, true, small), Some(small));
    }

    #[test]
    fn a_device_that_records_nothing_is_asked_once() {
        let mut graphs = Graphs::default();
        let keys = [key(&[Shape::Plain]), key(&[Shape::Tree(7)])];
        for _ in 0..3 {
            assert!(
                keys.iter()
                    .all(|&key| step(&mut graphs, false, key).is_none())
            );
        }
        assert!(!graphs.able && graphs.prepared.len() <= 1);
    }
}
