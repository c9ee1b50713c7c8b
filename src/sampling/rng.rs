//! The random numbers of sampling.

/// SplitMix64 (Steele, Lea and Flood, 2014): a counter in steps of an odd
/// constant, mixed by two multiplications. One word of state, equal on every
/// platform; sampling draws one number a token, so nothing stronger is needed.
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    pub(super) fn next_u64(&mut self) -> u64 {
        // 2^64 divided by the golden ratio, made odd.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Uniform in `[0, 1)`, a multiple of 2^-53.
    pub(super) fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A seed nobody chose, short enough to type again.
pub(super) fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    // The standard library keys its hashers from the system's randomness.
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.finish() >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_sequence() {
        // Published first outputs of SplitMix64 from seed 1234567.
        let mut rng = Rng::new(1_234_567);
        let got: Vec<u64> = (0..3).map(|_| rng.next_u64()).collect();
        assert_eq!(
            got,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn unit_interval() {
        let mut rng = Rng::new(0);
        let n = 100_000;
        let mut sum = 0.0;
        for _ in 0..n {
            let u = rng.next_f64();
            assert!((0.0..1.0).contains(&u));
            sum += u;
        }
        // Mean of n uniforms has deviation 1/sqrt(12 n) = 0.00091; five of them.
        assert!((sum / f64::from(n) - 0.5).abs() < 5.0 / (12.0 * f64::from(n)).sqrt());
    }
}
