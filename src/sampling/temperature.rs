//! Temperature: logits divided by it, after the best is moved to 0.

use super::{Candidates, Sampler};

pub(super) struct Temperature(pub f32);

impl Sampler for Temperature {
    fn describe(&self) -> String {
        format!("temp {}", self.0)
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        divide(candidates, self.0);
    }
}

/// A temperature between `temp - range` and `temp + range`: low where the model is
/// sure, high where the entropy nears that of equal candidates.
pub(super) struct DynamicTemperature {
    pub temp: f32,
    pub range: f32,
    pub exponent: f32,
}

impl DynamicTemperature {
    /// The temperature for these candidates.
    fn of(&self, candidates: &Candidates) -> f32 {
        let p = candidates.probabilities();
        let possible = p.iter().filter(|&&p| p > 0.0);
        let most = (possible.clone().count() as f64).ln();
        if most == 0.0 {
            return self.temp;
        }
        let entropy: f64 = possible.map(|p| -p * p.ln()).sum();
        let share = (entropy / most).min(1.0).powf(f64::from(self.exponent)) as f32;
        let lowest = (self.temp - self.range).max(0.0);
        let highest = self.temp + self.range;
        lowest + (highest - lowest) * share
    }
}

impl Sampler for DynamicTemperature {
    fn describe(&self) -> String {
        format!(
            "temp {} range {} exponent {}",
            self.temp, self.range, self.exponent
        )
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        match self.of(candidates) {
            temp if temp > 0.0 => divide(candidates, temp),
            _ => candidates.keep_best(1),
        }
    }
}

fn divide(candidates: &mut Candidates, temp: f32) {
    // Subtracting first keeps a tiny temperature from making infinities:
    // the best stays 0, the others go to -inf at worst.
    let max = candidates.max_logit();
    for item in &mut candidates.items {
        item.logit = (item.logit - max) / temp;
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::tests::{ids, list};
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

    #[test]
    fn follows_the_entropy() {
        // Probabilities 1/2, 1/4, 1/8, 1/8 have an entropy of 1.75 bits of at most 2:
        // a share of 0.875, or 0.765625 squared. From 0.5 to 1.5 that is 1.375, or
        // 1.265625; from 0 (not -1) to 3 it is 2.625.
        let logits = [0.5f32, 0.25, 0.125, 0.125, 0.0].map(f32::ln);
        for (temp, range, exponent, want) in [
            (1.0, 0.5, 1.0, 1.375f32),
            (1.0, 0.5, 2.0, 1.265625),
            (1.0, 2.0, 1.0, 2.625),
        ] {
            let dynamic = DynamicTemperature {
                temp,
                range,
                exponent,
            };
            // Logits are rounded to f32, some 1e-7 of them.
            assert!((dynamic.of(&list(&logits)) - want).abs() < 1e-5);
        }
    }

    #[test]
    fn equal_ones_take_the_highest_and_a_lone_one_its_own() {
        let mut dynamic = DynamicTemperature {
            temp: 1.0,
            range: 1.0,
            exponent: 1.0,
        };
        assert!((dynamic.of(&list(&[4.0; 7])) - 2.0).abs() < 1e-6);
        let lone = [f32::NEG_INFINITY, 5.0];
        assert_eq!(dynamic.of(&list(&lone)), 1.0);
        // So sure that the share underflows to 0, and the temperature with it.
        let mut candidates = list(&[0.0, 700.0]);
        dynamic.exponent = 2.0;
        dynamic.apply(&mut candidates);
        assert_eq!(ids(&candidates)[0], 1);
    }
}
