//! Angles of rotary position embedding (RoFormer, arXiv 2104.09864) with linear
//! and YaRN scaling, in f64: an f32 angle at position 2,700 is off by 1e-4 already.

use super::op::RopeParams;

impl RopeParams {
    /// Angle of each pair at position 1, `n_rot / 2` values in radians; `factors`
    /// divide the frequencies.
    pub fn angles(&self, factors: Option<&[f32]>) -> Vec<f64> {
        let half = self.n_rot / 2;
        let low = self.yarn_dim(f64::from(self.beta_fast)).floor().max(0.0);
        let high = self
            .yarn_dim(f64::from(self.beta_slow))
            .ceil()
            .min(self.n_rot as f64 - 1.0);
        let scale = f64::from(self.freq_scale);
        let ext = f64::from(self.ext_factor);
        (0..half)
            .map(|i| {
                let exponent = -2.0 * i as f64 / self.n_rot as f64;
                let factor = factors.map_or(1.0, |f| f64::from(f[i]));
                let extrapolated = f64::from(self.freq_base).powf(exponent) / factor;
                let interpolated = scale * extrapolated;
                if ext == 0.0 {
                    return interpolated;
                }
                let ramp = 1.0 - ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
                let mix = ramp * ext;
                interpolated * (1.0 - mix) + extrapolated * mix
            })
            .collect()
    }

    /// What a factor divides: the angle of pair `i` at position 1 is
    /// `coefficients()[i] / factors[i]`, as both of YaRN's terms carry the factor.
    pub fn coefficients(&self) -> Vec<f64> {
        self.angles(None)
    }

    /// The factor on sine and cosine.
    pub fn magnitude(&self) -> f64 {
        let factor = f64::from(self.attn_factor);
        if self.ext_factor == 0.0 {
            return factor;
        }
        factor * (1.0 + 0.1 * (1.0 / f64::from(self.freq_scale)).ln())
    }

    /// The pair index at which a wave turns `turns` times within the training
    /// context (YaRN, arXiv 2309.00071, section 3.2).
    fn yarn_dim(&self, turns: f64) -> f64 {
        let n = f64::from(self.n_ctx_orig);
        let base = f64::from(self.freq_base);
        self.n_rot as f64 * (n / (turns * std::f64::consts::TAU)).ln() / (2.0 * base.ln())
    }
}

#[cfg(test)]
mod tests {
    use super::super::op::RopeMode;
    use super::*;

    fn yarn() -> RopeParams {
        RopeParams {
            mode: RopeMode::Neox,
            n_rot: 64,
            freq_base: 10_000.0,
            freq_scale: 0.25,
            ext_factor: 1.0,
            attn_factor: 1.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            n_ctx_orig: 4096,
        }
    }

    #[test]
    fn a_factor_divides_the_coefficient() {
        for ext_factor in [0.0, 0.7, 1.0] {
            let params = RopeParams {
                ext_factor,
                ..yarn()
            };
            let factors: Vec<f32> = (0..32).map(|i| 1.0 + 0.37 * i as f32).collect();
            let angles = params.angles(Some(&factors));
            for ((angle, c), f) in angles.iter().zip(params.coefficients()).zip(&factors) {
                let want = c / f64::from(*f);
                // Four roundings of f64 lie between the two orders.
                assert!((angle - want).abs() <= 4.0 * f64::EPSILON * want);
            }
        }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_stretches_slow_ones() {
        let (plain, scaled) = (10_000f64, yarn().coefficients());
        assert_eq!(scaled[0], 1.0);
        let slowest = plain.powf(-62.0 / 64.0);
        assert!((scaled[31] / (0.25 * slowest) - 1.0).abs() < 1e-12);
        // 1 + ln(4) / 10
        assert!((yarn().magnitude() - 1.138_629_436_1).abs() < 1e-9);
    }
}
