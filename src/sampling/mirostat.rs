//! Mirostat (Basu and others, 2020): keeps the surprise of the chosen tokens near
//! `tau` bits, by cutting the list at `mu`, which follows the error of each choice.

use super::rng::Rng;
use super::{Candidates, Sampler};

/// Candidates from which version 1 estimates the exponent of Zipf's law.
const N_ESTIMATE: usize = 100;

/// Which way of cutting the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    /// The k best, k from an estimate of the distribution's shape.
    One,
    /// Those with a surprise up to mu.
    Two,
}

/// Chooses one candidate; the last sampler of a chain.
pub(super) struct Mirostat {
    version: Version,
    /// Wanted surprise, in bits.
    tau: f32,
    /// Learning rate.
    eta: f32,
    n_vocab: usize,
    seed: u64,
    rng: Rng,
    /// Bits.
    mu: f64,
}

impl Mirostat {
    pub(super) fn new(version: Version, tau: f32, eta: f32, seed: u64) -> Mirostat {
        Mirostat {
            version,
            tau,
            eta,
            n_vocab: 0,
            seed,
            rng: Rng::new(seed),
            mu: 2.0 * f64::from(tau),
        }
    }

    /// How many of the best stay; `p` descends.
    fn n_kept(&self, p: &[f64]) -> usize {
        let n = match self.version {
            Version::One => k_of(zipf_exponent(p), self.mu, self.n_vocab),
            Version::Two => p.partition_point(|p| -p.log2() <= self.mu),
        };
        n.clamp(1, p.len().max(1))
    }

    /// One of `p`, which need not add up to 1, and its surprise in bits among them.
    fn draw(&mut self, p: &[f64]) -> (usize, f64) {
        let total: f64 = p.iter().sum();
        let mut left = self.rng.next_f64() * total;
        let mut chosen = 0;
        for (at, p) in p.iter().enumerate().filter(|(_, p)| **p > 0.0) {
            chosen = at;
            left -= p;
            if left < 0.0 {
                break;
            }
        }
        (chosen, -(p[chosen] / total).log2())
    }
}

impl Sampler for Mirostat {
    fn describe(&self) -> String {
        let version = match self.version {
            Version::One => 1,
            Version::Two => 2,
        };
        format!(
            "mirostat {version} tau {} eta {} seed {}",
            self.tau, self.eta, self.seed
        )
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        self.n_vocab = self.n_vocab.max(candidates.items.len());
        candidates.sort();
        let p = candidates.probabilities();
        if p.is_empty() {
            return;
        }
        let (chosen, surprise) = self.draw(&p[..self.n_kept(&p)]);
        self.mu -= f64::from(self.eta) * (surprise - f64::from(self.tau));
        candidates.select(chosen);
    }

    fn reset(&mut self) {
        self.rng = Rng::new(self.seed);
        self.mu = 2.0 * f64::from(self.tau);
    }
}

/// The exponent s of p(i) ~ 1 / i^s, fitted to the best by least squares; `p` descends.
fn zipf_exponent(p: &[f64]) -> f64 {
    let (mut products, mut squares) = (0.0, 0.0);
    let best = p.iter().take(N_ESTIMATE).take_while(|p| **p > 0.0);
    let best: Vec<f64> = best.copied().collect();
    for (i, pair) in (1..).zip(best.windows(2)) {
        let step = (f64::from(i + 1) / f64::from(i)).ln();
        products += step * (pair[0] / pair[1]).ln();
        squares += step * step;
    }
    products / squares
}

/// How many candidates have a surprise up to `mu` bits under Zipf's law: the paper's
/// k = (e 2^mu / (1 - n^-e))^(1/s), with e = s - 1.
fn k_of(s: f64, mu: f64, n_vocab: usize) -> usize {
    let e = s - 1.0;
    let n = n_vocab.max(2) as f64;
    let inner = match e.abs() < 1e-9 {
        // The limit: (1 - n^-e) / e nears ln n.
        true => mu.exp2() / n.ln(),
        false => e * mu.exp2() / (1.0 - n.powf(-e)),
    };
    // The cast saturates; what is no number (a lone candidate) is 0.
    inner.powf(1.0 / s) as usize
}

#[cfg(test)]
mod tests {
    use super::super::candidates::tests::{ids, list};
    use super::*;

    #[test]
    fn version_two_cuts_at_mu() {
        // Surprises of 1, 2, 3, 4, 4 bits.
        let p = [0.5, 0.25, 0.125, 0.0625, 0.0625];
        let mut mirostat = Mirostat::new(Version::Two, 1.0, 0.1, 1);
        for (mu, want) in [(0.5, 1), (1.0, 1), (2.0, 2), (3.5, 3), (4.0, 5), (9.0, 5)] {
            mirostat.mu = mu;
            assert_eq!(mirostat.n_kept(&p), want, "mu = {mu}");
        }
    }

    #[test]
    fn mu_follows_the_surprise() {
        let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
        // mu is 2.5: the first two stay, with 2/3 and 1/3, surprises of 0.585 and 1.585
        // bits. mu becomes 2.5 - 0.5 (surprise - 1): 2.7075 or 2.2075.
        for seed in 0..20 {
            let mut mirostat = Mirostat::new(Version::Two, 1.0, 0.5, seed);
            assert_eq!(mirostat.mu, 2.0, "twice tau");
            mirostat.mu = 2.5;
            let mut candidates = list(&logits);
            mirostat.apply(&mut candidates);
            let want = [2.707_519, 2.207_519][ids(&candidates)[0] as usize];
            // Six digits are written here, and logits have seven.
            assert!((mirostat.mu - want).abs() < 2e-6, "{}", mirostat.mu);
        }
    }

    #[test]
    fn version_one_estimates_the_exponent() {
        // p(i) = 1 / i^1.5, exactly: log p(i) - log p(i + 1) = 1.5 log((i + 1) / i).
        let p: Vec<f64> = (1..=200).map(|i| f64::from(i).powf(-1.5)).collect();
        assert!((zipf_exponent(&p) - 1.5).abs() < 1e-9);
        // e = 1, n = 4, mu = 3: 1 * 8 / (1 - 1/4) = 10.67, its root 3.27.
        assert_eq!(k_of(2.0, 3.0, 4), 3);
        // s = 1: 2^3 / ln 1000 = 8 / 6.9078 = 1.158.
        assert_eq!(k_of(1.0, 3.0, 1000), 1);
        assert_eq!(k_of(1.0 + 1e-7, 6.0, 1000), k_of(1.0, 6.0, 1000));
    }

    #[test]
    fn odd_lists_give_a_candidate() {
        let inf = f32::NEG_INFINITY;
        for version in [Version::One, Version::Two] {
            for logits in [&[inf, 3.0, inf][..], &[1.0; 50], &[0.0, -800.0], &[2.0]] {
                let mut mirostat = Mirostat::new(version, 5.0, 0.1, 3);
                for _ in 0..50 {
                    let mut candidates = list(logits);
                    mirostat.apply(&mut candidates);
                    let id = ids(&candidates)[0] as usize;
                    assert!(logits[id] > -800.0);
                    assert!(mirostat.mu.is_finite());
                }
            }
        }
    }

    #[test]
    fn the_surprise_nears_tau() {
        // Zipf's law over 1000 tokens has 7.5 bits; 3 are asked for.
        let logits: Vec<f32> = (1..=1000).map(|i| -(i as f32).ln()).collect();
        for version in [Version::One, Version::Two] {
            let mut mirostat = Mirostat::new(version, 3.0, 0.1, 7);
            let mut surprise = 0.0;
            let n = 2000;
            for _ in 0..n {
                let mut candidates = list(&logits);
                let before = mirostat.mu;
                mirostat.apply(&mut candidates);
                surprise += 3.0 + (before - mirostat.mu) / f64::from(0.1f32);
            }
            // mu wanders by a few bits, which over n choices at a rate of 0.1 is
            // 10 / n a bit of it.
            let mean = surprise / f64::from(n);
            assert!((mean - 3.0).abs() < 0.05, "{version:?}: {mean}");
        }
    }
}
