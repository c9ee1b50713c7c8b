//! Top-k: the k candidates with the highest logits.

use super::{Candidates, Sampler};

pub(super) struct TopK(pub usize);

impl Sampler for TopK {
    fn describe(&self) -> String {
        format!("top-k {}", self.0)
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        candidates.keep_best(self.0.max(1));
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::tests::{ids, list};
    use super::*;

    #[test]
    fn keeps_the_best_in_order() {
        let mut candidates = list(&[0.5, 2.0, -1.0, 2.0, 7.0]);
        TopK(3).apply(&mut candidates);
        assert_eq!(ids(&candidates), [4, 1, 3]);
        TopK(100).apply(&mut candidates);
        assert_eq!(ids(&candidates), [4, 1, 3]);
    }
}
