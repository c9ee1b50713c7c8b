//! Min-p: candidates at least p times as probable as the best.

use super::{Candidates, Sampler};

pub(super) struct MinP {
    pub p: f32,
    pub min_keep: usize,
}

impl Sampler for MinP {
    fn describe(&self) -> String {
        format!("min-p {}", self.p)
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        // exp(l) >= p exp(max) needs no probabilities. p = 1 keeps the best:
        // ln(1) is exactly 0.
        let floor = candidates.max_logit() + self.p.ln();
        candidates.keep(self.min_keep, |c| c.logit >= floor);
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::tests::{ids, list};
    use super::*;

    #[test]
    fn sorted_or_not() {
        // Shares of the best, 0.5: 0.4, 1, 0.08, 0.52.
        let logits = [0.2f32, 0.5, 0.04, 0.26].map(f32::ln);
        for (p, min_keep, want) in [
            (0.05, 0, vec![0, 1, 2, 3]),
            (0.1, 0, vec![0, 1, 3]),
            (1.0, 0, vec![1]),
            (1.0, 2, vec![1, 3]),
            (0.1, 3, vec![0, 1, 3]),
            (1.0, 9, vec![0, 1, 2, 3]),
        ] {
            for sorted in [false, true] {
                let mut candidates = list(&logits);
                if sorted {
                    candidates.sort();
                }
                MinP { p, min_keep }.apply(&mut candidates);
                let mut got = ids(&candidates);
                got.sort_unstable();
                assert_eq!(got, want, "sorted {sorted}, p = {p}, {min_keep}");
            }
        }
    }
}
