//! Temperature: logits divided by it, after the best is moved to 0.

use super::{Candidates, Sampler};

pub(super) struct Temperature(pub f32);

impl Sampler for Temperature {
    fn describe(&self) -> String {
        format!("temp {}", self.0)
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        // Subtracting first keeps a tiny temperature from making infinities:
        // the best stays 0, the others go to -inf at worst.
        let max = candidates.max_logit();
        for item in &mut candidates.items {
            item.logit = (item.logit - max) / self.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::tests::list;
    use super::*;

    #[test]
    fn divides_distances() {
        let mut candidates = list(&[3.0, 1.0, f32::NEG_INFINITY]);
        Temperature(0.5).apply(&mut candidates);
        let logits: Vec<f32> = candidates.items.iter().map(|c| c.logit).collect();
        assert_eq!(logits, [0.0, -4.0, f32::NEG_INFINITY]);
    }

    #[test]
    fn tiny_temperature_gives_no_nan() {
        let mut candidates = list(&[3.0, 1.0, 3.0]);
        Temperature(f32::MIN_POSITIVE / 4.0).apply(&mut candidates);
        let logits: Vec<f32> = candidates.items.iter().map(|c| c.logit).collect();
        assert_eq!(logits, [0.0, f32::NEG_INFINITY, 0.0]);
    }
}
