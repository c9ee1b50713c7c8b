//! Locally typical: candidates whose surprise is nearest to the expected one (Meister
//! and others, 2022), the fewest whose probabilities pass p.

use super::{Candidates, Sampler};

pub(super) struct Typical {
    pub p: f32,
    pub min_keep: usize,
}

impl Sampler for Typical {
    fn describe(&self) -> String {
        format!("typical {}", self.p)
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        let p = candidates.probabilities();
        // Surprise in nats; its mean is the entropy.
        let entropy: f64 = p.iter().filter(|&&p| p > 0.0).map(|p| -p * p.ln()).sum();
        let distance = |at: usize| (-p[at].ln() - entropy).abs();
        let mut order: Vec<usize> = (0..p.len()).collect();
        // Of equal distances the list's first, so that runs repeat.
        order.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)));
        let mut sum = 0.0;
        let last = order.iter().position(|&at| {
            sum += p[at];
            sum > f64::from(self.p)
        });
        let n = last.map_or(p.len(), |last| last + 1).max(self.min_keep);
        let mut kept = vec![false; p.len()];
        order.iter().take(n).for_each(|&at| kept[at] = true);
        let mut kept = kept.into_iter();
        candidates.keep(0, |_| kept.next().unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::tests::{ids, list};
    use super::*;

    #[test]
    fn nearest_to_the_entropy_first() {
        // Probabilities 1/2, 1/4, 1/8, 1/8: surprises of 1, 2, 3, 3 bits, entropy
        // 0.5 + 0.5 + 0.375 + 0.375 = 1.75 bits. Distances 0.75, 0.25, 1.25, 1.25:
        // the second comes first, then the best one. Sums 0.25, 0.75, 0.875, 1.
        let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
        for (p, min_keep, want) in [
            (0.2, 0, vec![1]),
            (0.3, 0, vec![0, 1]),
            (0.8, 0, vec![0, 1, 2]),
            (0.9, 0, vec![0, 1, 2, 3]),
            (0.2, 3, vec![0, 1, 2]),
            (0.2, 9, vec![0, 1, 2, 3]),
        ] {
            let mut candidates = list(&logits);
            Typical { p, min_keep }.apply(&mut candidates);
            assert_eq!(ids(&candidates), want, "p = {p}, {min_keep}");
        }
    }

    #[test]
    fn impossible_ones_come_last() {
        let inf = f32::NEG_INFINITY;
        let mut candidates = list(&[inf, 1.0, inf]);
        Typical {
            p: 0.5,
            min_keep: 0,
        }
        .apply(&mut candidates);
        assert_eq!(ids(&candidates), [1]);
    }
}
