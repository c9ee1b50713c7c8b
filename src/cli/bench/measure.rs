//! Runs a test: real tokens in the context, then timed runs from there.

use super::plan::{Kind, Test};
use super::stats::Samples;
use crate::Result;
use crate::session::Session;
use indicatif::ProgressBar;
use std::time::Instant;

/// Runs a test once to warm up, then `repeats` times.
pub fn measure(
    session: &mut Session,
    n_vocab: usize,
    test: Test,
    repeats: u32,
    bar: &ProgressBar,
) -> Result<Samples> {
    let mut samples = Samples::new(test.n_tokens() * test.n_seqs);
    for repeat in 0..=repeats {
        fill(session, n_vocab, test)?;
        let started = Instant::now();
        match test.kind {
            Kind::Prefill(n) => session
                .eval(&tokens(0, test.start(), n, n_vocab))
                .map(drop)?,
            Kind::Decode(n) => decode(session, n_vocab, test, n)?,
        }
        if repeat > 0 {
            samples.add(started.elapsed());
        }
        bar.inc(1);
    }
    Ok(samples)
}

/// Makes every sequence hold the tokens that the test starts from: what is there is cut
/// back, and evaluated again as far as that could not be done.
fn fill(session: &mut Session, n_vocab: usize, test: Test) -> Result<()> {
    for seq in 0..test.n_seqs {
        session.truncate_seq(seq, test.start())?;
        let held = session.n_past_of(seq);
        let missing = tokens(seq, held, test.start() - held, n_vocab);
        session.eval_batch(&[(seq, &missing)])?;
        session.checkpoint(seq)?;
    }
    Ok(())
}

/// One token at a time, as greedy decoding does: a device that has the logits gives back
/// ids instead of all of them.
fn decode(session: &mut Session, n_vocab: usize, test: Test, n: usize) -> Result<()> {
    let greedy = session.argmax_on_device();
    for at in test.start()..test.start() + n {
        let next: Vec<[u32; 1]> = (0..test.n_seqs)
            .map(|seq| [token(seq, at, n_vocab)])
            .collect();
        let batch: Vec<(usize, &[u32])> = next
            .iter()
            .enumerate()
            .map(|(seq, id)| (seq, &id[..]))
            .collect();
        match (greedy, test.n_seqs) {
            (true, 1) => session.eval_greedy(&next[0]).map(drop)?,
            (false, 1) => session.eval(&next[0]).map(drop)?,
            (true, _) => session.eval_batch_greedy(&batch).map(drop)?,
            (false, _) => session.eval_batch(&batch).map(drop)?,
        }
    }
    Ok(())
}

/// `n` tokens of a sequence from position `from` on.
fn tokens(seq: usize, from: usize, n: usize, n_vocab: usize) -> Vec<u32> {
    (from..from + n).map(|at| token(seq, at, n_vocab)).collect()
}

/// The token of a sequence at a position: spread over the vocabulary, for the first
/// sequence the same as in the peer's bench.
fn token(seq: usize, at: usize, n_vocab: usize) -> u32 {
    ((7919 * at + 104_729 * seq + 13) % n_vocab.max(1)) as u32
}

#[cfg(test)]
mod tests {
    use super::{token, tokens};

    #[test]
    fn tokens_are_those_of_the_peer() {
        assert_eq!(tokens(0, 0, 3, 49152), [13, 7932, 15851]);
        assert_eq!(token(0, 10, 100), 3);
        assert_ne!(token(1, 10, 100), token(0, 10, 100));
    }
}
