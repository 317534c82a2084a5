//! The positions of a prompt at which a prefill keeps its state.

use ops::PAGE_TOKENS;

/// Multiples of an interval, the turn's end and a fork, as far as they lie before the prompt's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Boundaries {
    interval: usize,
    /// Multiples of 64.
    others: [Option<usize>; 2],
    prompt: usize,
}

impl Boundaries {
    /// `interval`: a multiple of 64. `turn_end`: tokens before the generation prompt. `fork`: see
    /// [`super::Lookup`]. `prompt`: all tokens. Positions are rounded down to pages.
    pub(crate) fn new(
        interval: usize,
        turn_end: Option<usize>,
        fork: Option<usize>,
        prompt: usize,
    ) -> Self {
        assert!(
            interval > 0 && interval.is_multiple_of(PAGE_TOKENS),
            "an interval of {interval} tokens is no positive multiple of {PAGE_TOKENS}"
        );
        Boundaries {
            interval,
            others: [turn_end, fork].map(|position| Some(position? / PAGE_TOKENS * PAGE_TOKENS)),
            prompt,
        }
    }

    /// The first one behind `position`.
    pub(crate) fn after(&self, position: usize) -> Option<usize> {
        let regular = (position / self.interval + 1) * self.interval;
        let others = self.others.into_iter().flatten();
        let behind = others.filter(|&other| other > position).chain([regular]);
        behind.min().filter(|&first| first < self.prompt)
    }

    /// Whether this is one of them.
    pub(crate) fn contain(&self, position: usize) -> bool {
        position > 0 && self.after(position - 1) == Some(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_behind(boundaries: &Boundaries, start: usize) -> Vec<usize> {
        std::iter::successors(boundaries.after(start), |&last| boundaries.after(last)).collect()
    }

    #[test]
    fn positions_are_those_of_interval_turn_and_fork() {
        type Case<'a> = (
            usize,
            usize,
            Option<usize>,
            Option<usize>,
            usize,
            &'a [usize],
        );
        let table: &[Case] = &[
            (4096, 0, None, None, 4096, &[]),
            (4096, 0, None, None, 4097, &[4096]),
            (4096, 0, None, None, 12_288, &[4096, 8192]),
            (4096, 4096, None, None, 12_289, &[8192, 12_288]),
            (4096, 4160, Some(9000), None, 9007, &[8192, 8960]),
            (4096, 0, Some(63), None, 70, &[]),
            (4096, 0, Some(64), Some(64), 70, &[64]),
            (4096, 0, Some(640), Some(128), 645, &[128, 640]),
            (4096, 128, Some(640), Some(128), 645, &[640]),
            (4096, 0, Some(8191), Some(4096), 8192, &[4096, 8128]),
            (4096, 0, Some(64), None, 64, &[]),
            (64, 65, Some(200), Some(192), 260, &[128, 192, 256]),
            (64, 500, Some(200), None, 260, &[]),
        ];
        for &(interval, start, turn_end, fork, prompt, expected) in table {
            let boundaries = Boundaries::new(interval, turn_end, fork, prompt);
            let found: Vec<usize> = all_behind(&boundaries, start);
            assert_eq!(found, expected, "{boundaries:?} behind {start}");
        }
    }

    #[test]
    #[should_panic(expected = "multiple of 64")]
    fn an_interval_is_whole_pages() {
        Boundaries::new(100, None, None, 1000);
    }
}
