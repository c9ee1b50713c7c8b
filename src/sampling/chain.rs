//! The chain of samplers behind one `sample` call.

use super::candidates::Candidates;
use super::dist::Dist;
use super::greedy::{Greedy, argmax, max_except};
use super::min_p::MinP;
use super::penalties::Penalties;
use super::temperature::Temperature;
use super::top_k::TopK;
use super::top_p::TopP;
use super::{Sampler, SamplingParams, rng};
use crate::error::{Error, Result};

/// Samplers in order; the last leaves one candidate.
pub struct Chain {
    samplers: Vec<Box<dyn Sampler>>,
    seed: Option<u64>,
    /// Ascending.
    banned: Vec<u32>,
    candidates: Candidates,
}

impl Chain {
    /// Builds the chain, without the samplers whose settings change nothing.
    ///
    /// # Errors
    /// A setting out of range.
    pub fn new(params: &SamplingParams) -> Result<Chain> {
        params.check()?;
        let mut samplers: Vec<Box<dyn Sampler>> = Vec::new();
        if let Some(penalties) = Penalties::new(params) {
            samplers.push(Box::new(penalties));
        }
        let mut seed = None;
        if params.temp <= 0.0 {
            samplers.push(Box::new(Greedy));
        } else {
            if let Ok(k @ 1..) = usize::try_from(params.top_k) {
                samplers.push(Box::new(TopK(k)));
            }
            if params.top_p < 1.0 {
                samplers.push(Box::new(TopP(params.top_p)));
            }
            if params.min_p > 0.0 {
                samplers.push(Box::new(MinP(params.min_p)));
            }
            if params.temp != 1.0 {
                samplers.push(Box::new(Temperature(params.temp)));
            }
            let in_use = params.seed.unwrap_or_else(rng::random_seed);
            samplers.push(Box::new(Dist::new(in_use)));
            seed = Some(in_use);
        }
        let mut banned = params.banned.clone();
        banned.sort_unstable();
        banned.dedup();
        Ok(Chain {
            samplers,
            seed,
            banned,
            candidates: Candidates::default(),
        })
    }

    /// The seed in use, also one that was drawn; `None` for a greedy chain.
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// True when the chain draws nothing at random.
    pub fn is_greedy(&self) -> bool {
        self.seed.is_none()
    }

    /// True when the highest logit is chosen whatever the others are, so that
    /// [`Chain::choice`] serves in place of [`Chain::sample`].
    pub fn is_argmax(&self) -> bool {
        self.samplers.len() == 1 && self.is_greedy() && self.banned.is_empty()
    }

    /// The choice of a chain that [`Chain::is_argmax`], where `argmax` was found
    /// elsewhere; `None`: the highest logit is no finite number.
    pub fn choice(&self, argmax: Option<u32>) -> Result<u32> {
        argmax.ok_or_else(|| {
            Error::input(
                "sampling: the highest logit is no finite number; the model's weights are \
                 damaged or an op overflowed, try --exact",
            )
        })
    }

    /// Chooses a token from `logits: [n_vocab]`; the caller may [`Chain::accept`] it.
    ///
    /// # Errors
    /// A logit that is NaN or `+inf`, or no token that is possible.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        check_logits(logits)?;
        if self.samplers.len() == 1 && self.is_greedy() {
            return argmax(logits, &self.banned).ok_or_else(nothing_left);
        }
        if max_except(logits, &self.banned) == f32::NEG_INFINITY {
            return Err(nothing_left());
        }
        self.candidates.fill(logits, &self.banned);
        for sampler in &mut self.samplers {
            sampler.apply(&mut self.candidates);
        }
        let chosen = self.candidates.items.first();
        chosen.map(|c| c.id).ok_or_else(nothing_left)
    }

    /// Tells every sampler that this token is now part of the text.
    pub fn accept(&mut self, id: u32) {
        self.samplers.iter_mut().for_each(|s| s.accept(id));
    }

    /// Back to the state after [`Chain::new`], with the same seed.
    pub fn reset(&mut self) {
        self.samplers.iter_mut().for_each(|s| s.reset());
    }

    /// Forgets the accepted tokens; random numbers go on.
    pub fn forget(&mut self) {
        self.samplers.iter_mut().for_each(|s| s.forget());
    }

    /// The samplers in order with their settings, on one line.
    pub fn describe(&self) -> String {
        let banned = match self.banned.len() {
            0 => None,
            1 => Some("without 1 token".to_string()),
            n => Some(format!("without {n} tokens")),
        };
        let parts = self.samplers.iter().map(|s| s.describe());
        let parts: Vec<String> = banned.into_iter().chain(parts).collect();
        parts.join(", ")
    }
}

fn nothing_left() -> Error {
    Error::input(
        "sampling: every logit is -inf or its token banned, so no token can be chosen; \
         the model's weights are damaged or the banned ids too many",
    )
}

/// Rejects NaN, `+inf` and an empty row.
fn check_logits(logits: &[f32]) -> Result<()> {
    // Branch-free, so that it vectorises; the culprit is looked for only on error.
    let any_nan = logits.iter().fold(false, |any, l| any | l.is_nan());
    if !any_nan && max_except(logits, &[]) < f32::INFINITY {
        return Ok(());
    }
    let bad = logits
        .iter()
        .position(|l| l.is_nan() || *l == f32::INFINITY);
    let id = bad.unwrap_or_default();
    Err(Error::input(format!(
        "sampling: the logit of token {id} is {}, not a number; \
         the model's weights are damaged or an op overflowed, try --exact",
        logits.get(id).copied().unwrap_or(f32::NAN)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(params: SamplingParams, logits: &[f32], n: usize) -> Vec<u32> {
        let mut chain = Chain::new(&params).unwrap();
        (0..n)
            .map(|_| {
                let id = chain.sample(logits).unwrap();
                chain.accept(id);
                id
            })
            .collect()
    }

    /// All samplers on, seed 1.
    fn everything() -> SamplingParams {
        SamplingParams {
            repeat_penalty: 1.1,
            seed: Some(1),
            ..SamplingParams::chat_defaults()
        }
    }

    #[test]
    fn zero_temperature_is_argmax() {
        for temp in [0.0, -1.0, -0.0] {
            let params = SamplingParams {
                temp,
                ..SamplingParams::chat_defaults()
            };
            assert!(Chain::new(&params).unwrap().is_greedy());
            assert_eq!(sampled(params, &[1.0, 9.0, 9.0], 3), [1, 1, 1]);
        }
    }

    #[test]
    fn a_plain_greedy_chain_needs_no_logits() {
        let is_argmax = |params: SamplingParams| Chain::new(&params).unwrap().is_argmax();
        let greedy = SamplingParams::greedy;
        assert!(is_argmax(greedy()));
        assert!(!is_argmax(everything()));
        assert!(!is_argmax(SamplingParams {
            banned: vec![2],
            ..greedy()
        }));
        assert!(!is_argmax(SamplingParams {
            presence_penalty: 1.0,
            ..greedy()
        }));
        let chain = Chain::new(&greedy()).unwrap();
        assert_eq!(chain.choice(Some(7)).unwrap(), 7);
        assert_eq!(chain.choice(None).unwrap_err().exit_code(), 1);
    }

    #[test]
    fn penalties_work_on_greedy() {
        let params = SamplingParams {
            presence_penalty: 2.0,
            ..SamplingParams::greedy()
        };
        assert_eq!(sampled(params, &[1.0, 3.0, 2.0], 3), [1, 2, 0]);
    }

    #[test]
    fn impossible_rows_are_errors() {
        let inf = f32::INFINITY;
        for params in [SamplingParams::greedy(), everything()] {
            let mut chain = Chain::new(&params).unwrap();
            for bad in [&[-inf, -inf][..], &[0.0, f32::NAN], &[0.0, inf], &[]] {
                let message = chain.sample(bad).unwrap_err().to_string();
                assert!(message.starts_with("sampling: "), "{message}");
            }
            assert_eq!(chain.sample(&[-inf, -3.0]).unwrap(), 1);
        }
    }

    #[test]
    fn banned_ids_never_come() {
        for base in [SamplingParams::greedy(), everything()] {
            let params = SamplingParams {
                banned: vec![7, 2, 2],
                ..base
            };
            let ids = sampled(params.clone(), &[0.0, 1.0, 50.0], 200);
            assert!(!ids.contains(&2));
            let params = SamplingParams {
                banned: vec![0, 1, 2],
                ..params
            };
            let mut chain = Chain::new(&params).unwrap();
            assert!(chain.sample(&[0.0, 1.0, 50.0]).is_err());
        }
    }

    #[test]
    fn same_seed_same_tokens() {
        let logits: Vec<f32> = (0..100).map(|i| (i % 17) as f32 / 4.0).collect();
        let mut chain = Chain::new(&everything()).unwrap();
        let mut run = || -> Vec<u32> {
            let mut ids = Vec::new();
            for _ in 0..50 {
                ids.push(chain.sample(&logits).unwrap());
                chain.accept(ids[ids.len() - 1]);
            }
            chain.reset();
            ids
        };
        let first = run();
        assert_eq!(first, run(), "after reset");
        let other = SamplingParams {
            seed: Some(2),
            ..everything()
        };
        assert_ne!(first, sampled(other, &logits, 50));
    }

    #[test]
    fn a_drawn_seed_can_be_used_again() {
        let params = SamplingParams::chat_defaults();
        let chain = Chain::new(&params).unwrap();
        let seed = chain.seed();
        assert!(seed.is_some());
        assert_ne!(seed, Chain::new(&params).unwrap().seed(), "once in 2^32");
        let again = Chain::new(&SamplingParams { seed, ..params }).unwrap();
        assert_eq!(again.seed(), seed);
    }

    #[test]
    fn temperature_applies_after_truncation() {
        // At temp 1 token 1 has 4 % of the best: min-p 0.05 drops it, however
        // hot the temperature that follows.
        let params = SamplingParams {
            temp: 100.0,
            ..everything()
        };
        let logits = [0.04f32, 1.0].map(f32::ln);
        let params = SamplingParams {
            repeat_penalty: 1.0,
            top_p: 1.0,
            ..params
        };
        assert_eq!(sampled(params, &logits, 50), [1; 50]);
    }

    #[test]
    fn describes_itself() {
        assert_eq!(
            Chain::new(&everything()).unwrap().describe(),
            "penalties last 64 repeat 1.1 presence 0 frequency 0, top-k 40, top-p 0.95, \
             min-p 0.05, temp 0.8, dist seed 1"
        );
        let greedy = Chain::new(&SamplingParams::greedy()).unwrap();
        assert_eq!(greedy.describe(), "greedy");
    }

    #[test]
    #[ignore = "timing: run with --release --ignored --nocapture"]
    fn time_of_a_large_vocabulary() {
        let mut rng = crate::sampling::rng::Rng::new(5);
        let logits: Vec<f32> = (0..262_144)
            .map(|_| (rng.next_f64() * 20.0) as f32)
            .collect();
        let wide = SamplingParams {
            top_k: 0,
            ..everything()
        };
        let all = SamplingParams {
            top_p: 1.0,
            min_p: 0.0,
            ..wide.clone()
        };
        let cases = [SamplingParams::greedy(), everything(), wide, all];
        for params in cases {
            let mut chain = Chain::new(&params).unwrap();
            let mut best = f64::INFINITY;
            for _ in 0..20 {
                let start = std::time::Instant::now();
                let id = chain.sample(&logits).unwrap();
                best = best.min(start.elapsed().as_secs_f64());
                chain.accept(id);
            }
            println!("{:.3} ms  {}", best * 1e3, chain.describe());
            if params.top_k != 0 || chain.is_greedy() {
                assert!(best < 1e-3, "{best} s");
            }
        }
    }
}
