//! Top-p (nucleus): the fewest best candidates whose probabilities reach p.

use super::{Candidates, Sampler};

pub(super) struct TopP(pub f32);

/// Candidates sorted at first when the list is not sorted; enough for most
/// texts, and eight times as many are tried each time they are not.
const FIRST_TRY: usize = 256;

impl Sampler for TopP {
    fn describe(&self) -> String {
        format!("top-p {}", self.0)
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        let max = candidates.max_logit();
        let items = &candidates.items;
        let total: f64 = items.iter().map(|c| weight(c.logit, max)).sum();
        let wanted = f64::from(self.0) * total;
        let mut n_tried = FIRST_TRY;
        while !candidates.sorted && n_tried < candidates.items.len() {
            let items = &mut candidates.items;
            items.select_nth_unstable_by(n_tried - 1, super::Candidate::best_first);
            let best: f64 = items[..n_tried].iter().map(|c| weight(c.logit, max)).sum();
            // Twice f64's rounding over the list, so that the walk below, which
            // adds in another order, reaches the sum as well.
            if best >= wanted * (1.0 + 1e-9) {
                items.truncate(n_tried);
                break;
            }
            n_tried *= 8;
        }
        candidates.sort();
        let mut sum = 0.0;
        let reached = candidates.items.iter().position(|c| {
            sum += weight(c.logit, max);
            sum >= wanted
        });
        if let Some(last) = reached {
            candidates.items.truncate(last + 1);
        }
    }
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
        for (p, want) in [
            (0.0, vec![1]),
            (0.45, vec![1]),
            (0.55, vec![1, 0]),
            (0.8, vec![1, 0, 2]),
            (0.95, vec![1, 0, 2, 3]),
        ] {
            let mut candidates = list(&logits);
            TopP(p).apply(&mut candidates);
            assert_eq!(ids(&candidates), want, "p = {p}");
        }
    }

    #[test]
    fn large_lists_equal_sorted_ones() {
        let mut rng = crate::sampling::rng::Rng::new(11);
        for spread in [0.0, 1.0, 30.0] {
            let logits: Vec<f32> = (0..20_000)
                .map(|_| (rng.next_f64() * spread) as f32)
                .collect();
            for p in [0.01, 0.5, 0.95, 0.9999] {
                let mut want = list(&logits);
                want.sort();
                TopP(p).apply(&mut want);
                let mut got = list(&logits);
                TopP(p).apply(&mut got);
                assert_eq!(got.items.len(), want.items.len(), "{spread} {p}");
                assert_eq!(got.items, want.items, "spread {spread}, p {p}");
            }
        }
    }
}
