//! Top-n-sigma: candidates at most n standard deviations of the logits below the best
//! (Tang and others, 2024).

use super::{Candidates, Sampler};

pub(super) struct TopNSigma(pub f32);

impl Sampler for TopNSigma {
    fn describe(&self) -> String {
        format!("top-n-sigma {}", self.0)
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        let possible = candidates.possible();
        let n = possible.clone().count() as f64;
        let mean = possible.clone().sum::<f64>() / n;
        let variance = possible.map(|l| (l - mean) * (l - mean)).sum::<f64>() / n;
        let floor = f64::from(candidates.max_logit()) - f64::from(self.0) * variance.sqrt();
        candidates.keep(0, |c| f64::from(c.logit) >= floor);
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::tests::{ids, list};
    use super::*;

    #[test]
    fn deviations_below_the_best() {
        // Mean 2, squares of distances 16 + 0 + 4 + 4 + 16 = 40, a fifth is 8: the
        // deviation is 2.83. The floor is 6 - 2.83 = 3.17 for n = 1, 6 - 5.66 = 0.34
        // for n = 2, 6 - 8.49 = -2.49 for n = 3. The impossible one does not count.
        let logits = [6.0, 2.0, 0.0, f32::NEG_INFINITY, 4.0, -2.0];
        for (n, want) in [
            (0.5, vec![0]),
            (1.0, vec![0, 4]),
            (2.0, vec![0, 1, 4]),
            (3.0, vec![0, 1, 2, 4, 5]),
        ] {
            let mut candidates = list(&logits);
            TopNSigma(n).apply(&mut candidates);
            assert_eq!(ids(&candidates), want, "n = {n}");
        }
    }

    #[test]
    fn equal_logits_all_stay() {
        let mut candidates = list(&[1.5; 4]);
        TopNSigma(1.0).apply(&mut candidates);
        assert_eq!(ids(&candidates), [0, 1, 2, 3]);
    }
}
