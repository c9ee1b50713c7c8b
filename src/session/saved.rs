//! What is saved of a sequence besides its tokens: its size, and its checkpoints, so that it
//! can be cut back when it is loaded too.

use super::Session;
use super::state::{Checkpoint, HEADER_BYTES, MOST_CHECKPOINTS};
use crate::error::{Error, Result};

/// Bytes of a number of tokens.
const NUMBER: usize = 8;

impl Session {
    /// True when sequences can only be cut back to where [`Session::checkpoint`] was called.
    pub fn needs_checkpoints(&self) -> bool {
        self.is_recurrent()
    }

    /// Bytes that [`Session::save_seq`] and [`Session::save_checkpoints`] give, about.
    pub fn saved_bytes(&self, seq: usize) -> usize {
        let rows = |(id, bytes): &(_, usize)| self.rows_of(seq, *id).len() * bytes;
        let kept = self.checkpoints.iter().filter(|c| c.seq == seq);
        let kept: usize = kept.map(|c| c.states.len()).sum();
        self.caches().iter().map(rows).sum::<usize>() + kept
    }

    /// Bytes that [`Session::save_seq`] and [`Session::save_checkpoints`] give at most.
    pub fn most_saved_bytes(&self) -> usize {
        let states: usize = self.states().iter().map(|(_, bytes)| bytes).sum();
        let numbers_of_cells = size_of::<u32>() * self.sizes.n_cells.iter().sum::<usize>();
        let checkpoints = MOST_CHECKPOINTS * (NUMBER + states);
        HEADER_BYTES + numbers_of_cells + self.kv_bytes() + checkpoints
    }

    /// The checkpoints of a sequence, for [`Session::load_checkpoints`] after
    /// [`Session::load_seq`].
    pub fn save_checkpoints(&self, seq: usize) -> Vec<u8> {
        let mut out = Vec::new();
        for checkpoint in self.checkpoints.iter().filter(|c| c.seq == seq) {
            out.extend((checkpoint.n_past as u64).to_le_bytes());
            out.extend(&checkpoint.states);
        }
        out
    }

    /// Gives a sequence the checkpoints that [`Session::save_checkpoints`] saved, beside
    /// those that it has.
    ///
    /// # Errors
    /// Bytes of another model or damaged ones: nothing is changed.
    pub fn load_checkpoints(&mut self, seq: usize, saved: &[u8]) -> Result<()> {
        let bad = || {
            Error::input("the saved checkpoints are of another model or damaged; evaluate again")
        };
        let state_bytes: usize = self.states().iter().map(|(_, bytes)| bytes).sum();
        let size = NUMBER + state_bytes;
        let mut loaded = Vec::new();
        for one in saved.chunks(size) {
            let (n_past, states) = one.split_first_chunk::<NUMBER>().ok_or_else(bad)?;
            let n_past = usize::try_from(u64::from_le_bytes(*n_past)).map_err(|_| bad())?;
            if n_past > self.n_past[seq] || states.len() != state_bytes || state_bytes == 0 {
                return Err(bad());
            }
            loaded.push(Checkpoint {
                seq,
                n_past,
                states: states.to_vec(),
            });
        }
        self.checkpoints.extend(loaded);
        let surplus = self.checkpoints.len().saturating_sub(MOST_CHECKPOINTS);
        self.checkpoints.drain(..surplus);
        Ok(())
    }
}
