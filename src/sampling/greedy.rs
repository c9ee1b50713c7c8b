//! Greedy: the highest logit; of equal ones the lowest id.

use super::{Candidate, Candidates, Sampler};

pub(super) struct Greedy;

impl Sampler for Greedy {
    fn describe(&self) -> String {
        "greedy".to_string()
    }

    fn apply(&mut self, candidates: &mut Candidates) {
        let best = (candidates.items.iter().enumerate())
            .min_by(|a, b| Candidate::best_first(a.1, b.1))
            .map(|(index, _)| index);
        if let Some(index) = best {
            candidates.select(index);
        }
    }
}

/// The id of the highest logit that is not banned, straight from the logits.
///
/// `banned` ascends; `None` when nothing but `-inf` is left. This is the path
/// of a greedy chain without penalties, which needs no list of candidates.
pub(super) fn argmax(logits: &[f32], banned: &[u32]) -> Option<u32> {
    let max = max_except(logits, banned);
    if max == f32::NEG_INFINITY {
        return None;
    }
    (0u32..)
        .zip(logits)
        .filter(|&(_, &logit)| logit == max)
        .map(|(id, _)| id)
        .find(|id| banned.binary_search(id).is_err())
}

/// The highest logit whose id is not banned; `banned` ascends.
pub(super) fn max_except(logits: &[f32], banned: &[u32]) -> f32 {
    let mut max = f32::NEG_INFINITY;
    let mut start = 0;
    for &id in banned {
        let Some(part) = logits.get(start..id as usize) else {
            continue;
        };
        max = max.max(max_of(part));
        start = id as usize + 1;
    }
    max.max(logits.get(start..).map_or(f32::NEG_INFINITY, max_of))
}

/// The highest of `values`; sixteen running maxima, so that it vectorises.
fn max_of(values: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = values.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    let lanes = lanes.iter().chain(rest);
    lanes.fold(f32::NEG_INFINITY, |max, &value| max.max(value))
}

#[cfg(test)]
mod tests {
    use super::super::candidates::tests::{ids, list};
    use super::*;

    #[test]
    fn both_paths_agree() {
        let mut rng = crate::sampling::rng::Rng::new(3);
        for n in 1..70 {
            let logits: Vec<f32> = (0..n).map(|_| (rng.next_u64() % 9) as f32 - 5.0).collect();
            let mut candidates = list(&logits);
            Greedy.apply(&mut candidates);
            assert_eq!(ids(&candidates), [argmax(&logits, &[]).unwrap()]);
        }
    }

    #[test]
    fn ties_and_bans() {
        let logits = [1.0, 5.0, 5.0, f32::NEG_INFINITY, 5.0];
        assert_eq!(argmax(&logits, &[]), Some(1));
        assert_eq!(argmax(&logits, &[1]), Some(2));
        assert_eq!(argmax(&logits, &[0, 1, 2, 900]), Some(4));
        assert_eq!(argmax(&logits, &[1, 2, 4]), Some(0));
        assert_eq!(argmax(&logits, &[0, 1, 2, 4]), None);
        assert_eq!(argmax(&[], &[]), None);
    }
}
