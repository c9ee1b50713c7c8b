//! XTC, "exclude top choices": now and then, of the candidates that are at least as
//! probable as a threshold, only the least probable stays.

use super::rng::Rng;
use super::{Candidates, Sampler};

pub(super) struct Xtc {
    probability: f32,
    threshold: f32,
    min_keep: usize,
    seed: u64,
    rng: Rng,
}

impl Xtc {
    pub(super) fn new(probability: f32, threshold: f32, min_keep: usize, seed: u64) -> Xtc {
        // Not the numbers that the last draw uses.
        let seed = !seed;
        Xtc {
            probability,
            threshold,
            min_keep,
            seed,
            rng: Rng::new(seed),
        }
    }
}

impl Sampler for Xtc {
    fn describe(&self) -> String {
        format!("xtc {} threshold {}", self.probability, self.threshold)
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        // One number a token, used or not, as in the last draw.
        if self.rng.next_f64() >= f64::from(self.probability) {
            return;
        }
        let threshold = f64::from(self.threshold);
        let above: Vec<bool> = candidates
            .probabilities()
            .iter()
            .map(|&p| p >= threshold && p > 0.0)
            .collect();
        let choices = candidates.items.iter().zip(&above).filter(|(_, a)| **a);
        let n_choices = choices.clone().count();
        let least = choices
            .map(|(c, _)| *c)
            .max_by(super::Candidate::best_first);
        let n_left = candidates.items.len() - n_choices.saturating_sub(1);
        let Some(least) = least.filter(|_| n_left >= self.min_keep) else {
            return;
        };
        let mut above = above.into_iter();
        candidates.keep(0, |c| !above.next().unwrap_or_default() || c.id == least.id);
    }

    fn reset(&mut self) {
        self.rng = Rng::new(self.seed);
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::tests::{ids, list};
    use super::*;

    fn kept(probability: f32, threshold: f32, min_keep: usize) -> Vec<u32> {
        let logits = [0.1f32, 0.4, 0.2, 0.3].map(f32::ln);
        let mut candidates = list(&logits);
        Xtc::new(probability, threshold, min_keep, 1).apply(&mut candidates);
        ids(&candidates)
    }

    #[test]
    fn the_least_of_the_top_choices_stays() {
        // At least 0.15: ids 1, 2, 3; the least is 2. At least 0.35: id 1 alone stays.
        assert_eq!(kept(1.0, 0.15, 0), [0, 2]);
        assert_eq!(kept(1.0, 0.25, 0), [0, 2, 3]);
        assert_eq!(kept(1.0, 0.35, 0), [0, 1, 2, 3]);
        assert_eq!(kept(1.0, 0.5, 0), [0, 1, 2, 3]);
        // Fewer than min_keep would be left.
        assert_eq!(kept(1.0, 0.15, 2), [0, 2]);
        assert_eq!(kept(1.0, 0.15, 3), [0, 1, 2, 3]);
    }

    #[test]
    fn as_often_as_its_probability() {
        let mut xtc = Xtc::new(0.3, 0.15, 0, 9);
        let n = 10_000;
        let cut = (0..n).filter(|_| {
            let mut candidates = list(&[0.0, 0.0]);
            xtc.apply(&mut candidates);
            candidates.items.len() == 1
        });
        // The deviation is sqrt(0.3 * 0.7 / n) = 0.0046; five of them.
        assert!((cut.count() as f64 / f64::from(n) - 0.3).abs() < 0.023);
    }

    #[test]
    fn an_impossible_one_is_no_choice() {
        let mut candidates = list(&[1.0, f32::NEG_INFINITY, 0.0]);
        Xtc::new(1.0, 0.0, 0, 1).apply(&mut candidates);
        assert_eq!(ids(&candidates), [1, 2]);
    }

    #[test]
    fn of_equal_ones_the_highest_id_is_the_least() {
        let mut candidates = list(&[0.0, 0.0, 0.0]);
        Xtc::new(1.0, 0.1, 0, 1).apply(&mut candidates);
        assert_eq!(ids(&candidates), [2]);
    }
}
