//! How the sequences of a step share its rows.

use super::best_first::Node;

/// What one sequence brings to the deal.
pub(super) struct Hand<'a> {
    /// Rows that the host gave it.
    pub rows: usize,
    /// Rows that it may get; 0 = it does not share and keeps its own.
    pub rows_max: usize,
    /// Its nodes in order of choice: scores never rise.
    pub nodes: &'a [Node],
}

/// Rows of every sequence. Sharing ones keep their root; the other rows that they were given go to
/// the best of all their nodes: largest score first, equal scores to the sequence that comes first.
/// Since a sequence's own scores never rise, that is the merge of their orders of choice, and each
/// gets a prefix of its own.
pub(super) fn deal(hands: &[Hand<'_>]) -> Vec<usize> {
    let given = |hand: &Hand<'_>| match hand.rows_max {
        0 => 0,
        _ => hand.rows - 1,
    };
    let nodes: usize = hands.iter().map(given).sum();
    let mut order: Vec<(f32, usize)> = Vec::new();
    for (sequence, hand) in hands.iter().enumerate() {
        let wanted = hand.nodes.iter().take(hand.rows_max.saturating_sub(1));
        order.extend(wanted.map(|node| (node.score, sequence)));
    }
    // Stable: equal scores stay in order of the sequences.
    order.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut rows: Vec<usize> = (hands.iter()).map(|hand| hand.rows - given(hand)).collect();
    for (_, sequence) in order.into_iter().take(nodes) {
        rows[sequence] += 1;
    }
    rows
}
