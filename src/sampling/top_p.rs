//! Top-p (nucleus): the fewest best candidates whose probabilities reach p.

use super::{Candidate, Candidates, Sampler};

pub(super) struct TopP {
    pub p: f32,
    pub min_keep: usize,
}

/// Buckets of [`bucket`], each this fraction of a logit wide; the last takes
/// everything 32 or more below the best, less than 1e-14 as probable.
const N_BUCKETS: usize = 4096;
const PER_LOGIT: f32 = 128.0;

impl Sampler for TopP {
    fn describe(&self) -> String {
        format!("top-p {}", self.p)
    }

    /// A histogram of probability by logit finds the bucket in which p is
    /// reached, so that only its candidates are sorted, not a vocabulary.
    fn apply(&mut self, candidates: &mut Candidates) {
        let max = candidates.max_logit();
        let items = &candidates.items;
        let mut sums = [0.0f64; N_BUCKETS];
        for item in items.iter() {
            sums[bucket(item.logit, max)] += weight(item.logit, max);
        }
        let wanted = f64::from(self.p) * sums.iter().sum::<f64>();
        let mut above = 0.0;
        let crossing = sums.iter().position(|&sum| {
            let here = above + sum >= wanted && sum > 0.0;
            if !here {
                above += sum;
            }
            here
        });
        let Some(crossing) = crossing else {
            return; // rounding left the sum a hair short of p = 1
        };
        let in_crossing = |c: &&Candidate| bucket(c.logit, max) == crossing;
        let mut border: Vec<Candidate> = items.iter().filter(in_crossing).copied().collect();
        border.sort_unstable_by(Candidate::best_first);
        let last = border.iter().find(|c| {
            above += weight(c.logit, max);
            above >= wanted
        });
        if let Some(last) = last.or(border.last()) {
            let last = *last;
            candidates.keep(self.min_keep, |c| Candidate::best_first(c, &last).is_le());
        }
    }
}

/// Which bucket a logit falls into, the best one's first.
fn bucket(logit: f32, max: f32) -> usize {
    // The cast saturates, also for -inf.
    (((max - logit) * PER_LOGIT) as usize).min(N_BUCKETS - 1)
}

/// Probability of a logit, not yet divided by the sum; the best one's is 1.
fn weight(logit: f32, max: f32) -> f64 {
    f64::from((logit - max).exp())
}

#[cfg(test)]
mod tests {
    use super::super::candidates::tests::{ids, list};
    use super::*;

    #[test]
    fn fewest_that_reach_p() {
        // Probabilities 0.5, 0.25, 0.125, 0.125.
        let logits = [0.25f32, 0.5, 0.125, 0.125].map(f32::ln);
        for (p, min_keep, want) in [
            (0.0, 0, vec![1]),
            (0.45, 0, vec![1]),
            (0.55, 0, vec![0, 1]),
            (0.8, 0, vec![0, 1, 2]),
            (0.95, 0, vec![0, 1, 2, 3]),
            (0.45, 2, vec![1, 0]),
            (0.8, 2, vec![0, 1, 2]),
        ] {
            let mut candidates = list(&logits);
            TopP { p, min_keep }.apply(&mut candidates);
            assert_eq!(ids(&candidates), want, "p = {p}, {min_keep}");
        }
    }

    #[test]
    fn equals_a_walk_over_the_sorted_list() {
        let mut rng = crate::sampling::rng::Rng::new(11);
        for spread in [0.0, 1.0, 30.0, 300.0] {
            let logits: Vec<f32> = (0..20_000)
                .map(|_| (rng.next_f64() * spread) as f32)
                .collect();
            let mut sorted = list(&logits);
            sorted.sort();
            let max = sorted.items[0].logit;
            let total: f64 = logits.iter().map(|&l| weight(l, max)).sum();
            for p in [0.01, 0.5, 0.95, 0.9999] {
                let mut sum = 0.0;
                let reached = sorted.items.iter().position(|c| {
                    sum += weight(c.logit, max);
                    sum >= f64::from(p) * total
                });
                let mut got = list(&logits);
                TopP { p, min_keep: 0 }.apply(&mut got);
                assert!(ids(&got).is_sorted(), "the list stays by id");
                got.sort();
                let want = reached.unwrap() + 1;
                // Sums in another order differ by some 1e-13 of the total, less
                // than one candidate of 20,000 weighs unless far in the tail.
                assert_eq!(got.items.len(), want, "spread {spread}, p {p}");
                assert_eq!(got.items, sorted.items[..want], "spread {spread}, p {p}");
            }
        }
    }
}
