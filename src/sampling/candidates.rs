//! The list of tokens that may come next.

use std::cmp::Ordering;

/// A token that may come next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    pub id: u32,
    /// Not normalised, never NaN; `-inf` means impossible.
    pub logit: f32,
}

impl Candidate {
    /// Best first: higher logit, then lower id.
    pub(super) fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
        // Not total_cmp: that puts 0.0 before -0.0, which are a tie.
        let by_logit = b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal);
        by_logit.then(a.id.cmp(&b.id))
    }
}

/// Candidates, either by ascending id (as made) or best first (`sorted`).
#[derive(Debug, Default)]
pub struct Candidates {
    pub(super) items: Vec<Candidate>,
    pub(super) sorted: bool,
    /// Working space of [`Candidates::keep_best`].
    best: Vec<Candidate>,
}

impl Candidates {
    /// Fills the list with `logits[id]`.
    pub(super) fn fill(&mut self, logits: &[f32]) {
        self.items.clear();
        let all = (0..).zip(logits);
        self.items
            .extend(all.map(|(id, &logit)| Candidate { id, logit }));
        self.sorted = false;
    }

    /// Makes these ids impossible, in a list by ascending id.
    pub(super) fn ban(&mut self, ids: &[u32]) {
        for id in ids {
            if let Ok(at) = self.items.binary_search_by_key(id, |c| c.id) {
                self.items[at].logit = f32::NEG_INFINITY;
            }
        }
    }

    /// The logits that are not `-inf`.
    pub(super) fn possible(&self) -> impl Iterator<Item = f64> + Clone {
        let logits = self.items.iter().map(|c| c.logit);
        logits.filter(|l| *l > f32::NEG_INFINITY).map(f64::from)
    }

    /// Probabilities in list order; they add up to 1.
    pub(super) fn probabilities(&self) -> Vec<f64> {
        let max = self.max_logit();
        let weights = self.items.iter().map(|c| f64::from(c.logit - max).exp());
        let mut weights: Vec<f64> = weights.collect();
        let total: f64 = weights.iter().sum();
        weights.iter_mut().for_each(|w| *w /= total);
        weights
    }

    /// Keeps what `keep` says, asked in list order; where that leaves fewer than
    /// `min_keep`, the `min_keep` best. It is asked once each where `min_keep` is 0.
    pub(super) fn keep(&mut self, min_keep: usize, mut keep: impl FnMut(&Candidate) -> bool) {
        if min_keep > 1 {
            let kept = self.items.iter().filter(|c| keep(c)).count();
            if kept < min_keep {
                self.keep_best(min_keep);
                return;
            }
        }
        self.items.retain(keep);
    }

    /// The highest logit.
    pub(super) fn max_logit(&self) -> f32 {
        match self.items.first() {
            Some(first) if self.sorted => first.logit,
            _ => self
                .items
                .iter()
                .fold(f32::NEG_INFINITY, |max, c| max.max(c.logit)),
        }
    }

    /// Keeps the `k` best and sorts them; O(list + k log k).
    ///
    /// The walk collects whatever beats the worst of the best `k` so far in a
    /// buffer of `2k`, which is cut back to `k` each time it is full.
    pub(super) fn keep_best(&mut self, k: usize) {
        if self.sorted || k >= self.items.len() {
            self.sort();
            self.items.truncate(k);
            return;
        }
        let best = &mut self.best;
        best.clear();
        let mut floor = f32::NEG_INFINITY;
        for item in &self.items {
            // Not `>`: the list is by ascending id, but a later equal logit
            // may still be needed to make up k when nothing was cut yet.
            if item.logit >= floor {
                best.push(*item);
                if best.len() == 2 * k {
                    best.select_nth_unstable_by(k - 1, Candidate::best_first);
                    best.truncate(k);
                    floor = best[k - 1].logit;
                }
            }
        }
        best.sort_unstable_by(Candidate::best_first);
        best.truncate(k);
        std::mem::swap(&mut self.items, best);
        self.sorted = true;
    }

    /// Sorts best first.
    pub(super) fn sort(&mut self) {
        if !self.sorted {
            self.items.sort_unstable_by(Candidate::best_first);
            self.sorted = true;
        }
    }

    /// Leaves only the candidate at `index`.
    pub(super) fn select(&mut self, index: usize) {
        self.items.swap(0, index);
        self.items.truncate(1);
    }

    /// Gives the possible ones of these tokens other logits; they stay finite.
    pub(super) fn adjust<T>(
        &mut self,
        tokens: impl Iterator<Item = (u32, T)>,
        change: impl Fn(f32, T) -> f32,
    ) {
        if self.sorted {
            self.items.sort_unstable_by_key(|c| c.id);
            self.sorted = false;
        }
        for (id, how) in tokens {
            let Ok(at) = self.items.binary_search_by_key(&id, |c| c.id) else {
                continue;
            };
            let logit = &mut self.items[at].logit;
            if *logit > f32::NEG_INFINITY {
                *logit = change(*logit, how).clamp(f32::MIN, f32::MAX);
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A fresh list of these logits.
    pub(in crate::sampling) fn list(logits: &[f32]) -> Candidates {
        let mut candidates = Candidates::default();
        candidates.fill(logits);
        candidates
    }

    /// Ids in list order.
    pub(in crate::sampling) fn ids(candidates: &Candidates) -> Vec<u32> {
        candidates.items.iter().map(|c| c.id).collect()
    }

    #[test]
    fn keep_best_equals_full_sort() {
        let mut rng = crate::sampling::rng::Rng::new(7);
        // Few distinct values, so that ties cross the cut.
        for (n, k) in [(1, 1), (10, 3), (1000, 40), (1000, 999), (5000, 1)] {
            let logits: Vec<f32> = (0..n)
                .map(|_| (rng.next_u64() % 50) as f32 - 25.0)
                .collect();
            let mut want = list(&logits);
            want.sort();
            want.items.truncate(k);
            let mut got = list(&logits);
            got.keep_best(k);
            assert_eq!(got.items, want.items, "{n} choose {k}");
        }
    }

    #[test]
    fn keep_best_of_ascending_logits() {
        // Every item beats the floor: the buffer is cut most often.
        let logits: Vec<f32> = (0..10_000).map(|i| i as f32).collect();
        let mut got = list(&logits);
        got.keep_best(3);
        assert_eq!(ids(&got), [9999, 9998, 9997]);
    }

    #[test]
    fn adjusting_a_sorted_list() {
        let mut got = list(&[1.0, 3.0, f32::NEG_INFINITY, 2.0]);
        got.keep_best(4);
        let by = [(1, -9.0), (2, 5.0), (7, 1.0)];
        got.adjust(by.into_iter(), |logit, by| logit + by);
        let logits: Vec<f32> = got.items.iter().map(|c| c.logit).collect();
        assert_eq!(logits, [1.0, -6.0, f32::NEG_INFINITY, 2.0]);
        got.keep_best(1);
        assert_eq!(ids(&got), [3]);
    }

    #[test]
    fn probabilities_add_up() {
        let p = list(&[80.0, 80.0, f32::NEG_INFINITY]).probabilities();
        assert_eq!(p, [0.5, 0.5, 0.0]);
    }

    #[test]
    fn zero_and_minus_zero_tie() {
        let mut got = list(&[-0.0, 0.0, 0.0]);
        got.keep_best(2);
        assert_eq!(ids(&got), [0, 1]);
    }
}
