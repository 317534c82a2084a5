//! Nodes that several sequences share.

/// Predicted accepted nodes of all sequences together, by the nodes that they have together. Each
/// further node goes where most is predicted of it, as the device deals rows by scores; since a
/// sequence's own gains never rise, that is the best there is.
#[derive(Clone, Debug, Default)]
pub(super) struct Pool {
    /// Nodes and what is predicted of them, where the gain of a node changes; ascending.
    corners: Vec<(usize, f64)>,
}

impl Pool {
    /// Of sequences whose curves are made of these pieces: nodes, and what each of them gains.
    pub(super) fn new(pieces: impl Iterator<Item = (usize, f64)>) -> Self {
        let mut pieces: Vec<(usize, f64)> = pieces.filter(|piece| piece.1 > 0.0).collect();
        pieces.sort_by(|a, b| b.1.total_cmp(&a.1));
        let mut end = (0, 0.0);
        let corners = pieces.into_iter().map(|(nodes, gain)| {
            end = (end.0 + nodes, end.1 + gain * nodes as f64);
            end
        });
        Pool {
            corners: corners.collect(),
        }
    }

    /// Of so many nodes; flat behind the last that gains anything.
    pub(super) fn predicted(&self, nodes: usize) -> f64 {
        let next = self.corners.partition_point(|corner| corner.0 < nodes);
        let before = match next {
            0 => (0, 0.0),
            next => self.corners[next - 1],
        };
        match self.corners.get(next) {
            None => before.1,
            Some(after) => {
                let part = (nodes - before.0) as f64 / (after.0 - before.0) as f64;
                before.1 + part * (after.1 - before.1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_go_where_they_gain_most() {
        // One sequence gains 0.9 from each of 4 nodes, then 0.1; another 0.5 from 2, then nothing.
        let pool = Pool::new([(4, 0.9), (10, 0.1), (2, 0.5), (60, 0.0)].into_iter());
        for (nodes, expected) in [
            (0, 0.0),
            (1, 0.9),
            (4, 3.6),
            (5, 4.1),
            (6, 4.6),
            (11, 5.1),
            (16, 5.6),
            (500, 5.6),
        ] {
            let found = pool.predicted(nodes);
            assert!((found - expected).abs() < 1e-12, "{nodes} nodes: {found}");
        }
        assert_eq!(Pool::default().predicted(7), 0.0);
    }
}
