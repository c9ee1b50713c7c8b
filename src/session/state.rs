//! What is kept of a sequence: cutting it back, checkpoints, copies, saving.

use super::Session;
use crate::error::{Error, Result};
use crate::graph::{CacheId, CacheKind};

/// Checkpoints kept, the latest ones.
pub(super) const MOST_CHECKPOINTS: usize = 4;

/// Opens a saved sequence; the digits are the format's version.
const MAGIC: &[u8; 8] = b"LRSEQ-02";
/// Bytes of four numbers: the fingerprint, tokens, and cells of either kind.
const NUMBERS_BYTES: usize = 32;
/// Bytes before the cells.
pub(super) const HEADER_BYTES: usize = MAGIC.len() + NUMBERS_BYTES;

/// The recurrent states of a sequence after `n_past` tokens.
pub(super) struct Checkpoint {
    pub seq: usize,
    pub n_past: usize,
    pub states: Vec<u8>,
}

impl Session {
    /// Keeps the first `n_past` tokens of the first sequence, as
    /// [`Session::truncate_seq`].
    pub fn truncate(&mut self, n_past: usize) -> Result<()> {
        self.truncate_seq(0, n_past)
    }

    /// Keeps the first `n_past` tokens of a sequence, or as many of them as can be kept:
    /// recurrent states go back to the last checkpoint before, and a sequence whose
    /// sliding windows are gone is emptied. [`Session::n_past_of`] says what is left.
    ///
    /// # Errors
    /// The device fails; the sequence is empty then.
    pub fn truncate_seq(&mut self, seq: usize, n_past: usize) -> Result<()> {
        if n_past >= self.n_past[seq] {
            return Ok(());
        }
        if !self.is_recurrent() {
            self.forget(seq, n_past);
            return Ok(());
        }
        self.checkpoints
            .retain(|c| c.seq != seq || c.n_past <= n_past);
        let of_seq = self.checkpoints.iter().filter(|c| c.seq == seq);
        let Some(last) = of_seq.max_by_key(|c| c.n_past) else {
            self.clear_seq(seq);
            return Ok(());
        };
        let (n_past, states) = (last.n_past, last.states.clone());
        let written = self.write_states(seq, &states);
        match written {
            Ok(()) if self.forget_cells(seq, n_past) => self.n_past[seq] = n_past,
            _ => self.clear_seq(seq),
        }
        written
    }

    /// Remembers where a sequence stands, so that it can be cut back to here. Sequences
    /// of models without recurrent states can be cut back anyway.
    pub fn checkpoint(&mut self, seq: usize) -> Result<()> {
        let n_past = self.n_past[seq];
        let known = |c: &Checkpoint| c.seq == seq && c.n_past == n_past;
        if !self.is_recurrent() || n_past == 0 || self.checkpoints.iter().any(known) {
            return Ok(());
        }
        let states = self.read_states(seq)?;
        if self.checkpoints.len() == MOST_CHECKPOINTS {
            self.checkpoints.remove(0);
        }
        self.checkpoints.push(Checkpoint {
            seq,
            n_past,
            states,
        });
        Ok(())
    }

    /// Forgets all sequences.
    pub fn clear(&mut self) {
        (0..self.n_past.len()).for_each(|seq| self.clear_seq(seq));
    }

    /// Forgets a sequence.
    pub fn clear_seq(&mut self, seq: usize) {
        self.forget_cells(seq, 0);
        self.checkpoints.retain(|c| c.seq != seq);
        // A sequence without tokens starts from zeros, whatever its states hold.
        self.n_past[seq] = 0;
    }

    /// Makes sequence `to` what sequence `from` is.
    ///
    /// # Errors
    /// The device fails; `to` is empty then.
    pub fn copy_seq(&mut self, from: usize, to: usize) -> Result<()> {
        if from == to {
            return Ok(());
        }
        let saved = self.save_seq(from)?;
        self.load_seq(to, &saved)
    }

    /// Tokens evaluated so far of a sequence.
    pub fn n_past_of(&self, seq: usize) -> usize {
        self.n_past[seq]
    }

    /// All that is kept of a sequence, for [`Session::load_seq`] of a session over the
    /// same model with the same cache types.
    pub fn save_seq(&self, seq: usize) -> Result<Vec<u8>> {
        let mut out = MAGIC.to_vec();
        out.extend(self.fingerprint().to_le_bytes());
        out.extend((self.n_past[seq] as u64).to_le_bytes());
        let cells = [&self.cells, &self.cells_swa].map(|cells| cells.of(seq as i32));
        for cells in &cells {
            out.extend((cells.len() as u64).to_le_bytes());
        }
        for cell in cells.concat() {
            out.extend((cell as u32).to_le_bytes());
        }
        for (id, row_bytes) in self.caches() {
            for (first, n) in runs(&self.rows_of(seq, id)) {
                let at = out.len();
                out.resize(at + n * row_bytes, 0);
                self.devices
                    .read_cache(id, first * row_bytes, &mut out[at..])?;
            }
        }
        Ok(out)
    }

    /// Makes a sequence what [`Session::save_seq`] saved.
    ///
    /// # Errors
    /// Bytes of another model or damaged ones, or no room: the sequence is empty then.
    pub fn load_seq(&mut self, seq: usize, saved: &[u8]) -> Result<()> {
        self.clear_seq(seq);
        let loaded = self.load_into_empty(seq, saved);
        if loaded.is_err() {
            self.clear_seq(seq);
        }
        loaded
    }

    fn load_into_empty(&mut self, seq: usize, saved: &[u8]) -> Result<()> {
        let bad = || {
            Error::input("the saved state is of another model or damaged; evaluate the text again")
        };
        let (magic, rest) = saved.split_first_chunk::<8>().ok_or_else(bad)?;
        let (numbers, mut rest) = rest.split_first_chunk::<NUMBERS_BYTES>().ok_or_else(bad)?;
        let number = |i: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&numbers[8 * i..8 * i + 8]);
            u64::from_le_bytes(bytes)
        };
        let n_past = usize::try_from(number(1)).map_err(|_| bad())?;
        if magic != MAGIC || number(0) != self.fingerprint() {
            return Err(bad());
        }
        if n_past > self.params.n_ctx {
            return Err(Error::DoesNotFit(format!(
                "the saved {n_past} tokens do not fit the context of {}; raise -c",
                self.params.n_ctx
            )));
        }
        // The tokens whose cells must be there: all, and those that a window sees.
        let seen = |window: u32| n_past.min(window as usize - 1);
        let in_window = self.model.hparams().window.map(seen);
        let least = [n_past, in_window.unwrap_or(0)];
        let most = [n_past, in_window.map_or(0, |_| n_past)];
        for (i, cells) in [&mut self.cells, &mut self.cells_swa]
            .into_iter()
            .enumerate()
        {
            let n = usize::try_from(number(2 + i)).map_err(|_| bad())?;
            if n < least[i] || n > most[i] {
                return Err(bad());
            }
            let first = (n_past - n) as i32;
            let no_room = || {
                Error::DoesNotFit(format!(
                    "the saved {n} cells of sliding windows are more than this session has; raise -ub"
                ))
            };
            let (list, later) = rest.split_at_checked(4 * n).ok_or_else(bad)?;
            rest = later;
            // In the same cells attention adds in the same order, to the same bits.
            let list = list.as_chunks::<4>().0.iter();
            let same: Vec<usize> = list.map(|c| u32::from_le_bytes(*c) as usize).collect();
            if !cells.place_at(seq as i32, first, &same) {
                cells.place(seq as i32, first, n).ok_or_else(no_room)?;
            }
        }
        // States are there only where there are tokens.
        self.n_past[seq] = n_past;
        for (id, row_bytes) in self.caches() {
            for (first, n) in runs(&self.rows_of(seq, id)) {
                let (now, later) = rest.split_at_checked(n * row_bytes).ok_or_else(bad)?;
                self.devices.write_cache(id, first * row_bytes, now)?;
                rest = later;
            }
        }
        if rest.is_empty() { Ok(()) } else { Err(bad()) }
    }

    /// Bytes of its caches that a sequence of `n_past` tokens moves for the next one: the
    /// rows that it sees are read, recurrent states read and written.
    pub fn bytes_moved(&self, n_past: usize) -> usize {
        let window = self.model.hparams().window.map_or(n_past, |w| w as usize);
        let of = |(id, row_bytes): (CacheId, usize)| match id.kind() {
            CacheKind::K | CacheKind::V if self.layers[id.layer()].swa => {
                row_bytes * n_past.min(window)
            }
            CacheKind::K | CacheKind::V => row_bytes * n_past,
            CacheKind::Conv | CacheKind::State => 2 * row_bytes,
        };
        self.caches().into_iter().map(of).sum()
    }

    /// Caches that there are, with the bytes of a row.
    pub(super) fn caches(&self) -> Vec<(CacheId, usize)> {
        let of_layer = |(il, layer)| {
            let row = move |kind| (CacheId::of(il, kind), self.sizes.row_bytes(layer, kind));
            CacheKind::ALL.map(row)
        };
        let all = self.layers.iter().enumerate().flat_map(of_layer);
        all.filter(|(_, bytes)| *bytes > 0).collect()
    }

    /// Rows of a cache that a sequence has, in order of position.
    pub(super) fn rows_of(&self, seq: usize, id: CacheId) -> Vec<usize> {
        let cells = match self.layers[id.layer()].swa {
            false => &self.cells,
            true => &self.cells_swa,
        };
        match id.kind() {
            CacheKind::K | CacheKind::V => cells.of(seq as i32),
            CacheKind::Conv | CacheKind::State if self.n_past[seq] == 0 => Vec::new(),
            CacheKind::Conv | CacheKind::State => vec![seq],
        }
    }

    pub(super) fn is_recurrent(&self) -> bool {
        self.layers.iter().any(|l| l.state > 0)
    }

    /// Recurrent caches, with the bytes of a slot.
    pub(super) fn states(&self) -> Vec<(CacheId, usize)> {
        let mut all = self.caches();
        all.retain(|(id, _)| matches!(id.kind(), CacheKind::Conv | CacheKind::State));
        all
    }

    fn read_states(&self, seq: usize) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        for (id, bytes) in self.states() {
            let at = out.len();
            out.resize(at + bytes, 0);
            self.devices.read_cache(id, seq * bytes, &mut out[at..])?;
        }
        Ok(out)
    }

    fn write_states(&self, seq: usize, mut states: &[u8]) -> Result<()> {
        for (id, bytes) in self.states() {
            let (now, later) = states.split_at(bytes);
            self.devices.write_cache(id, seq * bytes, now)?;
            states = later;
        }
        Ok(())
    }

    /// Cuts a sequence back without a checkpoint; empties it where that cannot be done.
    pub(super) fn forget(&mut self, seq: usize, n_past: usize) {
        if self.forget_cells(seq, n_past) && !self.is_recurrent() {
            self.n_past[seq] = n_past;
        } else {
            self.clear_seq(seq);
        }
    }

    /// False when the tokens left lack some that the next one would see.
    fn forget_cells(&mut self, seq: usize, n_past: usize) -> bool {
        let (seq, from) = (seq as i32, n_past as i32);
        let whole = self.cells.truncate(seq, from) & self.cells_swa.truncate(seq, from);
        // Without sliding layers the second set of cells is never filled.
        whole || self.model.hparams().window.is_none()
    }

    /// Differs between sessions whose caches hold different things.
    fn fingerprint(&self) -> u64 {
        let rows: Vec<usize> = self.caches().iter().map(|c| c.1).collect();
        let text = format!(
            "{} {} {:?} {:?} {rows:?}",
            self.model.arch_name(),
            self.model.weight_bytes(),
            self.sizes.types,
            self.model.hparams().window,
        );
        // FNV-1a, 64 bits.
        let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
    }
}

/// Neighbouring rows, as first row and count.
fn runs(rows: &[usize]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &row in rows {
        match runs.last_mut() {
            Some((first, n)) if *first + *n == row => *n += 1,
            _ => runs.push((row, 1)),
        }
    }
    runs
}
