//! Batches of sequences with states, for the ops that carry them.

use crate::backend::check::store::{Random, Setup, Store};
use crate::graph::{Builder, CacheId, Input, TensorId};

/// Tokens behind the last sequence, which hold NaN.
const DEAD: usize = 3;

/// Tokens of each sequence, and whether it starts here.
pub type Sequences = Vec<(usize, bool)>;

/// Fresh and resuming, long and short, and one that has no tokens.
pub const MIXED: [(usize, bool); 4] = [(150, true), (1, false), (37, false), (0, true)];

/// A batch of sequences, with one slot more than these; the first is nobody's.
pub struct Batch<'a> {
    pub sequences: &'a [(usize, bool)],
}

impl Batch<'_> {
    /// Tokens of all sequences.
    pub fn n_live(&self) -> usize {
        self.sequences.iter().map(|s| s.0).sum()
    }

    /// Width of the batch; a decode step has no dead tokens, unless all are.
    pub fn n(&self) -> usize {
        match self.sequences.iter().all(|s| s.0 <= 1) {
            true => self.n_live().max(1),
            false => self.n_live() + DEAD,
        }
    }

    /// States in the cache.
    pub fn n_slots(&self) -> usize {
        self.sequences.len() + 1
    }

    /// Tokens of each, for names of cases.
    pub fn name(&self) -> String {
        let lengths: Vec<_> = self.sequences.iter().map(|s| s.0.to_string()).collect();
        match lengths.len() {
            0..=4 => lengths.join(","),
            n => format!("{n}x{}", lengths[0]),
        }
    }

    /// States of `n_state` values, of which fresh sequences must not look at theirs, and
    /// the inputs.
    pub fn set_up(
        &self,
        store: &mut Store,
        n_state: usize,
        random: &mut Random,
    ) -> (CacheId, Setup) {
        let mut states = random.units(n_state * self.n_slots());
        let (mut ids, mut rows) = (Vec::new(), vec![0]);
        for (i, &(tokens, fresh)) in self.sequences.iter().enumerate() {
            let slot = self.sequences.len() - i;
            if fresh && tokens > 0 {
                states[slot * n_state..][..n_state].fill(f32::NAN);
            }
            ids.push(if fresh { !(slot as i32) } else { slot as i32 });
            rows.push(rows[i] + tokens as i32);
        }
        let bytes: Vec<u8> = states.iter().flat_map(|v| v.to_le_bytes()).collect();
        let setup = Setup {
            n_seqs: self.sequences.len(),
            inputs: vec![(Input::StateSlots, ids), (Input::SeqRows, rows)],
            ..Setup::tokens(self.n(), self.n_live())
        };
        (store.cache(&bytes), setup)
    }
}

/// The inputs that every such op reads.
pub fn ids_and_rows(b: &mut Builder<'_>) -> [TensorId; 2] {
    [Input::StateSlots, Input::SeqRows].map(|input| b.input(input, 0))
}

/// Names of the flags that are set.
pub fn named(flags: &[(bool, &str)]) -> String {
    let set = flags.iter().filter(|(set, _)| *set);
    set.map(|(_, name)| *name).collect()
}
