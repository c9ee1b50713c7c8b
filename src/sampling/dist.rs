//! Dist: draws one candidate by its probability.

use super::rng::Rng;
use super::{Candidates, Sampler};

pub(super) struct Dist {
    seed: u64,
    rng: Rng,
    weights: Vec<f32>,
}

impl Dist {
    pub(super) fn new(seed: u64) -> Dist {
        Dist {
            seed,
            rng: Rng::new(seed),
            weights: Vec::new(),
        }
    }
}

impl Sampler for Dist {
    fn describe(&self) -> String {
        format!("dist seed {}", self.seed)
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        let max = candidates.max_logit();
        let items = &candidates.items;
        self.weights.clear();
        self.weights
            .extend(items.iter().map(|c| (c.logit - max).exp()));
        let total: f64 = self.weights.iter().map(|&w| f64::from(w)).sum();
        // One draw a token, whatever the list: the same seed gives the same
        // numbers to the same positions.
        let mut left = self.rng.next_f64() * total;
        let mut chosen = 0;
        for (index, &weight) in self.weights.iter().enumerate() {
            // Impossible ones are passed over, also where rounding leaves a rest.
            if weight > 0.0 {
                chosen = index;
                left -= f64::from(weight);
                if left < 0.0 {
                    break;
                }
            }
        }
        candidates.select(chosen);
    }

    fn reset(&mut self) {
        self.rng = Rng::new(self.seed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::tests::{ids, list};
    use super::*;

    #[test]
    fn frequencies_follow_probabilities() {
        let p = [0.5f32, 0.3, 0.15, 0.05, 0.0];
        // An offset of 80 would overflow exp without the maximum taken out.
        let logits = p.map(|p| p.ln() + 80.0);
        let mut dist = Dist::new(42);
        let n = 20_000;
        let mut counts = [0u32; 5];
        for _ in 0..n {
            let mut candidates = list(&logits);
            dist.apply(&mut candidates);
            counts[ids(&candidates)[0] as usize] += 1;
        }
        assert_eq!(counts[4], 0, "an impossible token was drawn");
        // Chi-squared of 3 degrees of freedom: above 21.1 once in 10,000.
        let chi2: f64 = (p[..4].iter().zip(&counts))
            .map(|(&p, &seen)| {
                let want = f64::from(p) * f64::from(n);
                (f64::from(seen) - want).powi(2) / want
            })
            .sum();
        assert!(chi2 < 21.1, "chi-squared {chi2}, counts {counts:?}");
    }

    #[test]
    fn lone_candidate_wherever_it_is() {
        let mut logits = vec![f32::NEG_INFINITY; 100];
        logits[37] = -1e30;
        for seed in 0..100 {
            let mut candidates = list(&logits);
            Dist::new(seed).apply(&mut candidates);
            assert_eq!(ids(&candidates), [37]);
        }
    }
}
