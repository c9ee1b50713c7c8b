//! Tokens per second of repeated runs.

use std::time::Duration;

/// Runs of as many tokens each.
pub struct Samples {
    /// Tokens a run, of all sequences together.
    n_tokens: usize,
    pub times: Vec<Duration>,
}

impl Samples {
    pub fn new(n_tokens: usize) -> Self {
        Samples {
            n_tokens,
            times: Vec::new(),
        }
    }

    pub fn add(&mut self, time: Duration) {
        self.times.push(time);
    }

    /// Tokens per second of every run.
    pub fn speeds(&self) -> Vec<f64> {
        // A clock that did not move counts as its smallest step.
        let seconds = |time: &Duration| time.as_secs_f64().max(1e-9);
        let speed = |time| self.n_tokens as f64 / seconds(time);
        self.times.iter().map(speed).collect()
    }
}

/// The mean.
pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// The value in the middle.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
    }
}

/// Standard deviation of a sample; 0 of a single value.
pub fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
    (squares / (values.len() as f64 - 1.0).max(1.0)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middle_and_deviation() {
        assert_eq!(median(&[4.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!((median(&[]), mean(&[]), deviation(&[])), (0.0, 0.0, 0.0));
        assert_eq!(mean(&[1.0, 3.0]), 2.0);
        assert_eq!(deviation(&[1.0, 3.0]), 2.0_f64.sqrt());
        assert_eq!(deviation(&[1.0]), 0.0);
    }

    #[test]
    fn speeds_are_of_all_sequences() {
        let mut samples = Samples::new(32);
        samples.add(Duration::from_millis(500));
        samples.add(Duration::ZERO);
        assert_eq!(samples.speeds()[0], 64.0);
        assert!(samples.speeds()[1].is_finite());
    }
}
