//! The order in which a scan visits a tree while it keeps few states.

/// Visit order and slots of one segment, as [`super::TreeTables`] holds them.
pub(super) struct ScanPlan {
    pub order: Vec<u32>,
    pub restore: Vec<i32>,
    pub save: Vec<i32>,
}

/// A row to be visited.
struct Visit {
    row: usize,
    /// Slots below this one are taken by rows whose other children are still to come.
    level: i32,
    restore: i32,
}

impl ScanPlan {
    /// Let a tree of s nodes need f(s) slots. All children but the last are the lighter ones, so
    /// each has at most (s - 1) / 2 nodes: f(s) <= max(1 + f((s - 1) / 2), f(s - 1)), f(1) = 0,
    /// hence f(s) <= log2(s + 1) - 1. Padding rows add one level above the real children of row 0,
    /// which then have at most N - 2 nodes: 1 + f(N - 2) <= log2(N - 1). Both are at most
    /// floor(log2 N).
    pub fn new(parents: &[i32], is_padding: &[bool]) -> Self {
        let rows = parents.len();
        let children = scan_children(parents, is_padding);
        let mut plan = ScanPlan {
            order: Vec::with_capacity(rows),
            restore: vec![-1; rows],
            save: vec![-1; rows],
        };
        let mut stack = vec![Visit {
            row: 0,
            level: 0,
            restore: -1,
        }];
        while let Some(Visit {
            row,
            level,
            restore,
        }) = stack.pop()
        {
            plan.order.push(row as u32);
            plan.restore[row] = restore;
            let last = children[row].len().saturating_sub(1);
            if last > 0 {
                plan.save[row] = level;
            }
            let visits = children[row].iter().enumerate().map(|(n, &child)| Visit {
                row: child,
                level: if n == last { level } else { level + 1 },
                restore: if n == 0 { -1 } else { level },
            });
            stack.extend(visits.rev());
        }
        plan
    }
}

/// Children of every row by growing subtree, ties by row; padding rows behind those of row 0.
fn scan_children(parents: &[i32], is_padding: &[bool]) -> Vec<Vec<usize>> {
    let rows = parents.len();
    let mut size = vec![1; rows];
    let mut children = vec![Vec::new(); rows];
    for row in (1..rows).rev().filter(|&row| !is_padding[row]) {
        size[parents[row] as usize] += size[row];
        children[parents[row] as usize].push(row);
    }
    for list in &mut children {
        list.sort_unstable_by_key(|&row| (size[row], row));
    }
    children[0].extend((1..rows).filter(|&row| is_padding[row]));
    children
}
