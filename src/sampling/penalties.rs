//! Penalties for tokens among the last ones accepted.

use super::{Candidates, Sampler, SamplingParams};
use std::collections::{BTreeMap, VecDeque};

/// Lowers the logit of every token seen in the window: a positive logit is
/// divided by `repeat`, a negative one multiplied; then `presence` is
/// subtracted, and `frequency` once for each time it was seen.
pub(super) struct Penalties {
    repeat: f32,
    presence: f32,
    frequency: f32,
    /// Window in tokens; `None` is all of them.
    last_n: Option<usize>,
    window: VecDeque<u32>,
    /// How often each token is in the window.
    counts: BTreeMap<u32, u32>,
}

impl Penalties {
    /// `None` when the settings change nothing.
    pub(super) fn new(params: &SamplingParams) -> Option<Penalties> {
        let off = params.repeat_penalty == 1.0
            && params.presence_penalty == 0.0
            && params.frequency_penalty == 0.0;
        if off || params.repeat_last_n == 0 {
            return None;
        }
        Some(Penalties {
            repeat: params.repeat_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            last_n: usize::try_from(params.repeat_last_n).ok(),
            window: VecDeque::new(),
            counts: BTreeMap::new(),
        })
    }
}

impl Sampler for Penalties {
    fn describe(&self) -> String {
        let last = match self.last_n {
            Some(n) => format!("last {n}"),
            None => "all".to_string(),
        };
        format!(
            "penalties {last} repeat {} presence {} frequency {}",
            self.repeat, self.presence, self.frequency
        )
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        let counts = self.counts.iter().map(|(&id, &count)| (id, count));
        candidates.adjust(counts, |logit, count| {
            let scaled = if logit > 0.0 {
                logit / self.repeat
            } else {
                logit * self.repeat
            };
            let less = self.presence + self.frequency * count as f32;
            // Finite each, for two infinities have no difference.
            scaled.clamp(f32::MIN, f32::MAX) - less.clamp(f32::MIN, f32::MAX)
        });
    }

    fn accept(&mut self, id: u32) {
        *self.counts.entry(id).or_default() += 1;
        let Some(last_n) = self.last_n else {
            return;
        };
        self.window.push_back(id);
        if self.window.len() > last_n
            && let Some(old) = self.window.pop_front()
            && let Some(count) = self.counts.get_mut(&old)
        {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&old);
            }
        }
    }

    fn forget(&mut self) {
        self.window.clear();
        self.counts.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::candidates::tests::list;
    use super::*;

    fn after(params: SamplingParams, accepted: &[u32]) -> Vec<f32> {
        let mut penalties = Penalties::new(&params).unwrap();
        accepted.iter().for_each(|&id| penalties.accept(id));
        let mut candidates = list(&[4.0, -4.0, 1.0, f32::NEG_INFINITY]);
        penalties.apply(&mut candidates);
        candidates.items.iter().map(|c| c.logit).collect()
    }

    #[test]
    fn each_penalty() {
        let base = SamplingParams::greedy();
        let repeat = SamplingParams {
            repeat_penalty: 2.0,
            ..base.clone()
        };
        let inf = f32::NEG_INFINITY;
        assert_eq!(after(repeat, &[0, 1, 1, 3]), [2.0, -8.0, 1.0, inf]);
        let counted = SamplingParams {
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            ..base
        };
        assert_eq!(after(counted, &[0, 1, 1, 900]), [3.25, -5.0, 1.0, inf]);
    }

    #[test]
    fn window_forgets() {
        let params = |repeat_last_n| SamplingParams {
            presence_penalty: 1.0,
            repeat_last_n,
            ..SamplingParams::greedy()
        };
        let inf = f32::NEG_INFINITY;
        assert_eq!(after(params(2), &[0, 0, 1, 2]), [4.0, -5.0, 0.0, inf]);
        assert_eq!(after(params(-1), &[0, 0, 1, 2]), [3.0, -5.0, 0.0, inf]);
        assert!(Penalties::new(&params(0)).is_none());
    }

    #[test]
    fn extreme_penalties_stay_numbers() {
        let params = SamplingParams {
            repeat_penalty: 1e-38,
            presence_penalty: -f32::MAX,
            frequency_penalty: -f32::MAX,
            ..SamplingParams::greedy()
        };
        let logits = after(params.clone(), &[0, 1, 1]);
        assert_eq!(logits[..2], [f32::MAX, f32::MAX]);
        let opposed = SamplingParams {
            presence_penalty: f32::MAX,
            frequency_penalty: f32::MAX,
            ..params
        };
        assert!(after(opposed, &[0, 1, 1])[0].is_finite());
    }
}
