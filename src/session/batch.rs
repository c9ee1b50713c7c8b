//! One step: the tokens of one or several sequences in a ubatch.

use super::{Key, Session, highest, nothing_to_evaluate};
use crate::backend::Executable;
use crate::error::{Error, Result};
use crate::graph::builder::Width;
use crate::graph::{Count, Input};
use crate::model::Wanted;

/// Inputs may take this much before those of other batch widths are given up.
const MOST_OWN_BYTES: usize = 8 << 20;

/// New tokens of a sequence.
pub type Part<'a> = (usize, &'a [u32]);

impl Session {
    /// Evaluates new tokens of several sequences, each at most once in the list, side
    /// by side; gives the logits `[n_vocab]` after each one's last token, none for a
    /// sequence without tokens. A sequence's logits are what it would have alone.
    ///
    /// # Errors
    /// As [`Session::eval`]; a sequence that there is not, or that comes twice.
    pub fn eval_batch(&mut self, batch: &[Part<'_>]) -> Result<Vec<Vec<f32>>> {
        let n_vocab = self.model.n_vocab();
        let mut logits = vec![Vec::new(); batch.len()];
        self.eval_parts(batch, Wanted::Logits, &mut |at, run, row| {
            logits[at] = run.output(0)[row * n_vocab..][..n_vocab].to_vec();
        })?;
        Ok(logits)
    }

    /// As [`Session::eval_batch`], but gives ids as [`Session::eval_greedy`] does.
    pub fn eval_batch_greedy(&mut self, batch: &[Part<'_>]) -> Result<Vec<Option<u32>>> {
        let mut ids = vec![None; batch.len()];
        self.eval_parts(batch, Wanted::Argmax, &mut |at, run, row| {
            ids[at] = highest(run, row);
        })?;
        Ok(ids)
    }

    /// Evaluates a batch in ubatches; `ended` hears where in the batch a sequence has
    /// ended, and which row of which executable's outputs is its.
    fn eval_parts(
        &mut self,
        batch: &[Part<'_>],
        wanted: Wanted,
        ended: &mut dyn FnMut(usize, &dyn Executable, usize),
    ) -> Result<()> {
        self.check_batch(batch)?;
        let mut left: Vec<&[u32]> = batch.iter().map(|part| part.1).collect();
        loop {
            let mut room = self.params.n_ubatch;
            let (mut parts, mut ends) = (Vec::new(), Vec::new());
            for (at, rest) in left.iter_mut().enumerate() {
                let (now, later) = rest.split_at(rest.len().min(room));
                if !now.is_empty() {
                    room -= now.len();
                    parts.push((batch[at].0, now));
                    ends.push(later.is_empty().then_some(at));
                    *rest = later;
                }
            }
            if parts.is_empty() {
                return Ok(());
            }
            let key = self.step(&parts, wanted, false)?;
            let run = self.compiled.get(&key).ok_or_else(nothing_to_evaluate)?;
            for (row, end) in ends.iter().enumerate() {
                if let Some(at) = *end {
                    ended(at, run.as_ref(), row);
                }
            }
        }
    }

    fn check_batch(&self, batch: &[Part<'_>]) -> Result<()> {
        let mut seen = vec![false; self.params.n_seqs];
        for &(seq, tokens) in batch {
            if seen.get(seq) != Some(&false) {
                return Err(Error::input(format!(
                    "sequence {seq} comes twice, or is not below {}; give each once",
                    self.params.n_seqs
                )));
            }
            seen[seq] = true;
            if !tokens.is_empty() {
                self.check(seq, tokens)?;
            }
        }
        Ok(())
    }

    /// The width that serves `n` tokens of `n_parts` sequences: exact up to 8 tokens,
    /// then powers of two.
    fn width(&self, n: usize, n_parts: usize, all_outputs: bool) -> Width {
        let n_tokens = match n {
            0..=8 => n,
            _ => n.next_power_of_two().min(self.params.n_ubatch.max(n)),
        };
        let n_seqs = match n_parts {
            0 | 1 => 1,
            _ => self.params.n_seqs,
        };
        Width {
            n_tokens,
            n_outputs: if all_outputs { n_tokens } else { n_seqs },
            n_seqs,
        }
    }

    /// Evaluates one ubatch. Sequences of a step that fails are cut back to what they
    /// were, or emptied where that cannot be done.
    pub(super) fn step(
        &mut self,
        parts: &[Part<'_>],
        wanted: Wanted,
        all_outputs: bool,
    ) -> Result<Key> {
        let n = parts.iter().map(|part| part.1.len()).sum();
        let width = self.width(n, parts.len(), all_outputs);
        let key = Key { wanted, width };
        self.compile(key)?;
        let done = self.place_and_run(key, parts);
        for &(seq, tokens) in parts {
            // A step that failed leaves no cells behind that later tokens would see.
            self.n_past[seq] += tokens.len();
            if done.is_err() {
                self.forget(seq, self.n_past[seq] - tokens.len());
            }
        }
        done.map(|()| key)
    }

    /// Gives each token its cell and runs the graph.
    fn place_and_run(&mut self, key: Key, parts: &[Part<'_>]) -> Result<()> {
        let has_window = self.model.hparams().window.is_some();
        let full = || Error::DoesNotFit("the KV cache has no free cell; raise -c".to_string());
        let (mut slots, mut slots_swa) = (Vec::new(), Vec::new());
        let (mut ids, mut pos, mut seqs) = (Vec::new(), Vec::new(), Vec::new());
        let (mut rows, mut states) = (vec![0], Vec::new());
        for &(seq, tokens) in parts {
            let (first, n, id) = (self.n_past[seq] as i32, tokens.len(), seq as i32);
            slots.extend(self.cells.place(id, first, n).ok_or_else(full)?);
            if has_window {
                slots_swa.extend(self.cells_swa.place(id, first, n).ok_or_else(full)?);
            }
            ids.extend(tokens.iter().map(|&t| t as i32));
            pos.extend(first..first + n as i32);
            seqs.extend(std::iter::repeat_n(id, n));
            rows.push(ids.len() as i32);
            states.push(if first == 0 { -1 - id } else { id });
        }
        let n = ids.len() as i32;
        let out: Vec<i32> = match key.width.n_outputs == key.width.n_tokens {
            true if parts.len() == 1 => (0..n).collect(),
            _ => rows[1..].iter().map(|end| end - 1).collect(),
        };
        let n_outputs = out.len();
        // Sequences that are not there have no tokens.
        rows.resize(key.width.n_seqs + 1, n);
        states.resize(key.width.n_seqs, 0);
        let run = self.compiled.get_mut(&key);
        let run = run.ok_or_else(nothing_to_evaluate)?;
        for (input, data) in [
            (Input::Tokens, &ids),
            (Input::Pos, &pos),
            (Input::Seq, &seqs),
            (Input::OutIds, &out),
            (Input::SeqRows, &rows),
            (Input::StateSlots, &states),
        ] {
            run.set_input(input, data)?;
        }
        run.set_count(Count::Tokens, ids.len());
        run.set_count(Count::Outputs, n_outputs);
        for (swa, slots, cells) in [
            (false, &slots, &self.cells),
            (true, &slots_swa, &self.cells_swa),
        ] {
            run.set_input(Input::Slots { swa }, slots)?;
            run.set_input(Input::CellPos { swa }, cells.pos())?;
            run.set_input(Input::CellSeq { swa }, cells.seq())?;
            run.set_count(Count::Cells { swa }, cells.pos().len());
        }
        run.run()
    }

    fn compile(&mut self, key: Key) -> Result<()> {
        if !self.compiled.contains_key(&key) {
            // What the plan has for inputs serves a whole ubatch and a single token. They
            // are small, unless experts run on the CPU.
            let own = self.held().iter().map(|held| held.own).sum::<usize>();
            if own > MOST_OWN_BYTES && key.width.n_tokens > 1 {
                self.compiled.retain(|key, _| key.width.n_tokens == 1);
            }
            let graph = self.model.graph(key.wanted, key.width, &self.shape)?;
            let run = self.devices.compile(&graph)?;
            self.compiled.insert(key, run);
        }
        Ok(())
    }
}
