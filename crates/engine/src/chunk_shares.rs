//! How the prompts that are under way share a prefill call.

use ops::PAGE_TOKENS;

/// Tokens of each prompt in a call of `budget` tokens, where `left` tokens of each are not
/// processed. As equal as possible, in whole pages: a short prompt does not wait for a long one,
/// and the long one goes on. What does not divide goes to those that came first; the first one
/// always gets a page or its end, if the budget holds that.
pub(crate) fn shares(left: &[usize], budget: usize) -> Vec<usize> {
    let mut shares = vec![0; left.len()];
    let mut rest = budget;
    // Those that want more; in every round each of them is offered the same.
    let mut open: Vec<usize> = (0..left.len()).collect();
    while !open.is_empty() && rest > 0 {
        let offer = rest / open.len() / PAGE_TOKENS * PAGE_TOKENS;
        if offer == 0 {
            for index in open {
                let more = (left[index] - shares[index]).min(PAGE_TOKENS);
                if more <= rest {
                    shares[index] += more;
                    rest -= more;
                }
            }
            break;
        }
        let wants = |index: usize, shares: &[usize]| left[index] - shares[index];
        // If all want the offer this is the last round but one; else the small ones leave first.
        let small: Vec<usize> = (open.iter().copied())
            .filter(|&index| wants(index, &shares) <= offer)
            .collect();
        let taken = if small.is_empty() { &open } else { &small };
        for &index in taken {
            let more = wants(index, &shares).min(offer);
            shares[index] += more;
            rest -= more;
        }
        open.retain(|&index| shares[index] < left[index]);
    }
    shares
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};

    use super::*;

    #[test]
    fn short_prompts_pass_and_long_ones_share_the_rest() {
        assert!(shares(&[], 2048).is_empty());
        assert_eq!(shares(&[5000], 2048), [2048]);
        assert_eq!(shares(&[5000, 30], 2048), [1984, 30]);
        assert_eq!(shares(&[5000, 9000], 2048), [1024, 1024]);
        assert_eq!(shares(&[5000, 100, 9000, 64], 2048), [960, 100, 896, 64]);
        assert_eq!(shares(&[30, 40, 50], 2048), [30, 40, 50]);
    }

    #[test]
    fn the_first_come_first_where_pages_are_few() {
        assert_eq!(shares(&[300, 300, 300], 128), [64, 64, 0]);
        assert_eq!(shares(&[300, 20, 300], 90), [64, 20, 0]);
        assert_eq!(shares(&[300, 70, 20], 64), [64, 0, 0]);
        assert_eq!(shares(&[300, 20], 63), [0, 20]);
    }

    #[test]
    fn nothing_is_wasted_or_overdrawn() {
        let mut random = rand_pcg::Pcg64::seed_from_u64(9);
        for _ in 0..3000 {
            let count = random.random_range(1..12);
            let left: Vec<usize> = (0..count).map(|_| random.random_range(1..3000)).collect();
            let budget = random.random_range(64..4096);
            let shares = shares(&left, budget);
            let given: usize = shares.iter().sum();
            assert!(given <= budget && shares[0] >= left[0].min(PAGE_TOKENS));
            for (&share, &left) in shares.iter().zip(&left) {
                assert!(share <= left && (share == left || share.is_multiple_of(PAGE_TOKENS)));
            }
            let wanting = shares.iter().zip(&left).any(|(share, left)| share < left);
            assert!(
                !wanting || budget - given < PAGE_TOKENS,
                "{left:?} {budget} {shares:?}"
            );
            let least = shares
                .iter()
                .zip(&left)
                .filter(|(share, left)| share < left);
            let least = least.map(|(&share, _)| share).min().unwrap_or(0);
            let most = shares.iter().copied().max().unwrap_or(0);
            assert!(
                !wanting || most <= least + PAGE_TOKENS,
                "{left:?} {budget} {shares:?}"
            );
        }
    }
}
