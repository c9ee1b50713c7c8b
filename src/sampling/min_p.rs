//! Min-p: candidates at least p times as probable as the best.

use super::{Candidates, Sampler};

pub(super) struct MinP(pub f32);

impl Sampler for MinP {
    fn describe(&self) -> String {
        format!("min-p {}", self.0)
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        // exp(l) >= p exp(max) needs no probabilities. p = 1 keeps the best:
        // ln(1) is exactly 0.
        let floor = candidates.max_logit() + self.0.ln();
        if candidates.sorted {
            let kept = candidates.items.partition_point(|c| c.logit >= floor);
            candidates.items.truncate(kept.max(1));
        } else {
            candidates.items.retain(|c| c.logit >= floor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::tests::{ids, list};
    use super::*;

    #[test]
    fn sorted_or_not() {
        let logits = [0.2f32, 0.5, 0.04, 0.26].map(f32::ln);
        for (p, want) in [
            (0.05, vec![0, 1, 2, 3]),
            (0.1, vec![0, 1, 3]),
            (1.0, vec![1]),
        ] {
            let mut candidates = list(&logits);
            MinP(p).apply(&mut candidates);
            assert_eq!(ids(&candidates), want, "p = {p}");
            let mut candidates = list(&logits);
            candidates.sort();
            MinP(p).apply(&mut candidates);
            let mut got = ids(&candidates);
            got.sort_unstable();
            assert_eq!(got, want, "sorted, p = {p}");
        }
    }
}
