//! Several sequences in a session: each has the logits that it has alone, and can be
//! cut back, copied, saved and forgotten. For Mamba, Mamba-2, a hybrid, a transformer,
//! and one with sliding windows, with the layers where `tests/arch.rs` has them.

#[allow(dead_code, reason = "shared with other tests")]
mod common;
#[path = "common/cuda.rs"]
mod cuda;

use common::{data, params};
use cuda::{Layers, Trials};
use libtest_mimic::{Arguments, Failed};
use llama_rs::session::{Session, SessionParams};
use std::path::PathBuf;

const MODELS: [&str; 5] = [
    "mamba-dense-Q4_K_M",
    "mamba2-dense-Q8_0",
    "jamba-dense-Q4_1",
    "llama-dense-Q4_K_M",
    "gemma3-dense-Q4_0",
];

const N_SEQS: usize = 4;

/// A model, and where its layers are.
#[derive(Clone, Copy)]
struct Place {
    model: &'static str,
    layers: Layers,
}

type Check = fn(&Place) -> Result<(), Failed>;

impl Place {
    fn recurrent(&self) -> bool {
        self.model.starts_with("mamba") || self.model.starts_with("jamba")
    }

    /// A session of `n_seqs` sequences. Its ubatch of 48 tokens cuts long sequences and
    /// joins the rest of one with the next.
    fn session(&self, n_seqs: usize) -> Result<Session, Failed> {
        let file: PathBuf = data().join("arch").join(format!("{}.gguf", self.model));
        let params = SessionParams {
            n_seqs,
            ..params(320, 48, true)
        };
        Ok(self.layers.session(&file, params)?)
    }

    /// Logits after `tokens` in a session of their own.
    fn alone(&self, tokens: &[u32]) -> Result<Vec<f32>, Failed> {
        Ok(self.session(1)?.eval(tokens)?.to_vec())
    }

    /// Batches of other widths add in another order. In f32, exact otherwise, the CPU
    /// differs by some 1e-12; on the GPU other kernels serve other widths, for which
    /// `tests/arch.rs` allows 1e-8.
    fn same(&self, what: &str, got: &[f32], want: &[f32]) -> Result<(), Failed> {
        let bound = if self.layers == Layers::Cpu {
            1e-10
        } else {
            1e-8
        };
        let square = |x: f32| f64::from(x) * f64::from(x);
        let err: f64 = got.iter().zip(want).map(|(a, b)| square(a - b)).sum();
        let nmse = err / want.iter().map(|&b| square(b)).sum::<f64>();
        // Not `nmse > bound`: NaN fails too.
        let fine = got.len() == want.len() && nmse <= bound;
        ensure(fine, || {
            format!("{what}: {} logits, NMSE {nmse:.2e}", got.len())
        })
    }
}

fn ensure(fine: bool, text: impl FnOnce() -> String) -> Result<(), Failed> {
    if fine { Ok(()) } else { Err(text().into()) }
}

/// `n` token ids that differ from those of other seeds.
fn tokens(seed: u32, n: usize) -> Vec<u32> {
    let step = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some(*state >> 25) // 7 bits, the vocabulary's size
    };
    std::iter::repeat_n((), n)
        .scan(seed.wrapping_mul(0x9e37_79b9), |state, ()| step(state))
        .collect()
}

fn joined(a: &[u32], b: &[u32]) -> Vec<u32> {
    [a, b].concat()
}

/// Fresh sequences of unlike lengths, then more of each, in another order.
fn batches(at: &Place) -> Result<(), Failed> {
    let mut s = at.session(N_SEQS)?;
    let mut texts = vec![Vec::new(); N_SEQS];
    let rounds: [[(usize, usize); N_SEQS]; 3] = [
        [(0, 150), (1, 1), (2, 37), (3, 0)],
        [(3, 40), (0, 3), (2, 0), (1, 60)],
        [(2, 1), (3, 1), (0, 1), (1, 1)],
    ];
    for (round, lens) in rounds.iter().enumerate() {
        let new = lens.map(|(seq, n)| (seq, tokens((4 * round + seq) as u32 + 1, n)));
        let parts: Vec<(usize, &[u32])> = new.iter().map(|(seq, t)| (*seq, &t[..])).collect();
        let logits = s.eval_batch(&parts)?;
        for ((seq, new), got) in new.iter().zip(&logits) {
            texts[*seq].extend_from_slice(new);
            let what = format!("round {round}, sequence {seq}");
            ensure(s.n_past_of(*seq) == texts[*seq].len(), || {
                format!("{what}: {} tokens", s.n_past_of(*seq))
            })?;
            match new.is_empty() {
                true => ensure(got.is_empty(), || format!("{what}: logits of nothing"))?,
                false => at.same(&what, got, &at.alone(&texts[*seq])?)?,
            }
        }
    }
    Ok(())
}

/// What a batch must not be is refused, and changes nothing.
fn refused_batches(at: &Place) -> Result<(), Failed> {
    let mut s = at.session(2)?;
    let (a, b) = (tokens(1, 20), tokens(2, 5));
    s.eval_batch(&[(1, &a)])?;
    let long = tokens(3, 400);
    for bad in [
        &[(0, &b[..]), (0, &b[..])][..],
        &[(0, &b), (2, &b)],
        &[(0, &b), (1, &long)],
        &[(0, &b), (1, &[1 << 20])],
    ] {
        ensure(s.eval_batch(bad).is_err(), || "it was accepted".to_string())?;
    }
    ensure(s.n_past_of(0) == 0 && s.n_past_of(1) == 20, || {
        "a refused batch left tokens behind".to_string()
    })?;
    let got = s.eval_batch(&[(1, &b)])?;
    at.same("after refusals", &got[0], &at.alone(&joined(&a, &b))?)
}

/// Cut back to a checkpoint, and, without one in time, to the start.
fn truncation(at: &Place) -> Result<(), Failed> {
    let (a, b, c) = (tokens(1, 50), tokens(2, 12), tokens(3, 9));
    let mut s = at.session(N_SEQS)?;
    s.eval_batch(&[(0, &c), (2, &a)])?;
    s.checkpoint(2)?;
    s.eval_batch(&[(2, &b), (0, &b)])?;
    s.truncate_seq(2, 55)?;
    let kept = if at.recurrent() { 50 } else { 55 };
    ensure(s.n_past_of(2) == kept, || {
        format!("{} of 55 tokens left", s.n_past_of(2))
    })?;
    s.truncate_seq(2, 50)?;
    let got = s.eval_batch(&[(2, &c)])?;
    at.same("after 50", &got[0], &at.alone(&joined(&a, &c))?)?;
    let got = s.eval_batch(&[(0, &c)])?;
    let whole = joined(&joined(&c, &b), &c);
    at.same("the other sequence", &got[0], &at.alone(&whole)?)?;
    s.truncate_seq(2, 5)?;
    // No checkpoint is that old; the cells of sliding windows still hold all 59 tokens.
    let kept = if at.recurrent() { 0 } else { 5 };
    ensure(s.n_past_of(2) == kept, || {
        format!("{} of 5 tokens left", s.n_past_of(2))
    })?;
    let got = s.eval_batch(&[(2, &b)])?;
    at.same("after few", &got[0], &at.alone(&joined(&a[..kept], &b))?)
}

/// Two continuations of one text.
fn copies(at: &Place) -> Result<(), Failed> {
    let (a, b, c) = (tokens(1, 70), tokens(2, 6), tokens(3, 11));
    let mut s = at.session(N_SEQS)?;
    s.eval_batch(&[(3, &c), (0, &a)])?;
    s.copy_seq(0, 3)?;
    ensure(s.n_past_of(3) == 70, || {
        format!("{} copied", s.n_past_of(3))
    })?;
    let got = s.eval_batch(&[(0, &b), (3, &c)])?;
    at.same("the original", &got[0], &at.alone(&joined(&a, &b))?)?;
    at.same("the copy", &got[1], &at.alone(&joined(&a, &c))?)?;
    // A copy of nothing is nothing.
    s.copy_seq(1, 3)?;
    let got = s.eval_batch(&[(3, &b)])?;
    at.same("a copy of nothing", &got[0], &at.alone(&b)?)
}

/// What is saved goes on elsewhere as if nothing had been.
fn saving(at: &Place) -> Result<(), Failed> {
    let (a, b, c) = (tokens(1, 70), tokens(2, 6), tokens(3, 33));
    let mut s = at.session(N_SEQS)?;
    s.eval_batch(&[(1, &a), (0, &c)])?;
    let saved = s.save_seq(1)?;
    let on = s.eval_batch(&[(1, &b)])?;
    at.same(
        "saving changes nothing",
        &on[0],
        &at.alone(&joined(&a, &b))?,
    )?;
    s.load_seq(1, &saved)?;
    let again = s.eval_batch(&[(1, &b)])?;
    at.same("loaded over itself", &again[0], &on[0])?;
    let mut other = at.session(2)?;
    other.eval_batch(&[(0, &c), (1, &c)])?;
    other.load_seq(0, &saved)?;
    ensure(other.n_past_of(0) == 70, || {
        format!("{} tokens loaded", other.n_past_of(0))
    })?;
    let got = other.eval_batch(&[(0, &b), (1, &b)])?;
    at.same("loaded elsewhere", &got[0], &on[0])?;
    at.same("the neighbour", &got[1], &at.alone(&joined(&c, &b))?)
}

/// Cut or changed bytes are refused, and the sequence is fresh then.
fn damaged(at: &Place) -> Result<(), Failed> {
    let (a, b) = (tokens(1, 70), tokens(2, 6));
    let mut s = at.session(2)?;
    s.eval_batch(&[(0, &b), (1, &a)])?;
    let saved = s.save_seq(1)?;
    let header = 40;
    let lens = [
        0,
        7,
        8,
        39,
        header,
        header + 1,
        saved.len() / 2,
        saved.len() - 1,
    ];
    let cut = lens.map(|len| saved[..len].to_vec());
    let changed = (0..header).flat_map(|at| {
        [0x01, 0x40, 0x80].map(|bit| {
            let mut bytes = saved.clone();
            bytes[at] ^= bit;
            bytes
        })
    });
    let longer = [joined_bytes(&saved, &[0])];
    for (i, bad) in cut.into_iter().chain(longer).chain(changed).enumerate() {
        ensure(s.load_seq(1, &bad).is_err(), || format!("{i} was loaded"))?;
        ensure(s.n_past_of(1) == 0, || format!("{i} left tokens"))?;
    }
    let got = s.eval_batch(&[(1, &b), (0, &a)])?;
    at.same("fresh after refusals", &got[0], &at.alone(&b)?)?;
    at.same("the neighbour", &got[1], &at.alone(&joined(&b, &a))?)
}

fn joined_bytes(a: &[u8], b: &[u8]) -> Vec<u8> {
    [a, b].concat()
}

/// Saved after windows have moved on and tokens were taken back, a sequence goes on with the
/// same bits in a session like its own.
fn same_bits(at: &Place) -> Result<(), Failed> {
    let (a, b, c) = (tokens(1, 120), tokens(2, 53), tokens(3, 5));
    let mut s = at.session(1)?;
    s.eval(&a)?;
    s.checkpoint(0)?;
    s.eval(&b[..7])?;
    s.truncate(120)?;
    for token in &b {
        s.eval(std::slice::from_ref(token))?;
    }
    let mut other = at.session(1)?;
    other.load_seq(0, &s.save_seq(0)?)?;
    for part in [&c[..], &c[..1]] {
        let (got, want) = (other.eval(part)?.to_vec(), s.eval(part)?.to_vec());
        ensure(got == want, || "other bits".to_string())?;
    }
    Ok(())
}

/// A sequence that was saved can be cut back where it could before.
fn checkpoints(at: &Place) -> Result<(), Failed> {
    let (a, b, c) = (tokens(1, 70), tokens(2, 6), tokens(3, 33));
    let mut s = at.session(2)?;
    s.eval_batch(&[(1, &a)])?;
    s.checkpoint(1)?;
    s.eval_batch(&[(1, &b)])?;
    let (saved, kept) = (s.save_seq(1)?, s.save_checkpoints(1));
    ensure(kept.is_empty() != at.recurrent(), || {
        format!("{} bytes of checkpoints", kept.len())
    })?;
    let mut other = at.session(1)?;
    other.load_seq(0, &saved)?;
    for bad in [&joined_bytes(&kept, &[0])[..], &kept[..kept.len() / 2]] {
        let refused = other.load_checkpoints(0, bad).is_err();
        ensure(refused || bad.is_empty(), || "they were loaded".to_string())?;
    }
    other.load_checkpoints(0, &kept)?;
    other.truncate(70)?;
    ensure(other.n_past() == 70, || format!("{} left", other.n_past()))?;
    let got = other.eval(&c)?.to_vec();
    at.same("after 70", &got, &at.alone(&joined(&a, &c))?)
}

/// A forgotten sequence starts anew, and so do all.
fn clearing(at: &Place) -> Result<(), Failed> {
    let (a, b) = (tokens(1, 60), tokens(2, 6));
    let mut s = at.session(2)?;
    s.eval_batch(&[(0, &a), (1, &a)])?;
    s.checkpoint(1)?;
    s.clear_seq(1);
    let got = s.eval_batch(&[(0, &b), (1, &b)])?;
    at.same("kept", &got[0], &at.alone(&joined(&a, &b))?)?;
    at.same("cleared", &got[1], &at.alone(&b)?)?;
    s.clear();
    let got = s.eval(&a)?.to_vec();
    at.same("all cleared", &got, &at.alone(&a)?)
}

/// A long sequence does not take the cells of the others' windows.
fn room(at: &Place) -> Result<(), Failed> {
    let mut s = at.session(N_SEQS)?;
    let a = tokens(1, 320);
    for token in &a {
        s.eval(std::slice::from_ref(token))?;
    }
    let b = tokens(2, 100);
    let got = s.eval_batch(&[(1, &b), (3, &b)])?;
    let want = at.alone(&b)?;
    at.same("second", &got[0], &want)?;
    at.same("fourth", &got[1], &want)
}

/// Sixteen sequences decoded side by side say what each says alone, on the CPU.
fn company(at: &Place) -> Result<(), Failed> {
    const N: usize = 16;
    let file = data().join("arch").join(format!("{}.gguf", at.model));
    // As people decode: F16 caches, 8-bit activations.
    let session = |n_seqs| -> Result<Session, Failed> {
        let params = SessionParams {
            n_seqs,
            ..params(64, 48, false)
        };
        Ok(at.layers.session(&file, params)?)
    };
    let prompts: Vec<Vec<u32>> = (0..N).map(|seq| tokens(seq as u32, 3 + 2 * seq)).collect();
    let missing = || Failed::from("no choice");
    let mut together = session(N)?;
    let mut last = Vec::new();
    for (seq, prompt) in prompts.iter().enumerate() {
        last.extend(together.eval_batch_greedy(&[(seq, prompt)])?);
    }
    let mut said = vec![Vec::new(); N];
    for _ in 0..12 {
        let ids: Vec<[u32; 1]> = last
            .iter()
            .map(|id| id.map(|id| [id]).ok_or_else(missing))
            .collect::<Result<_, _>>()?;
        said.iter_mut()
            .zip(&ids)
            .for_each(|(said, id)| said.push(id[0]));
        let batch: Vec<(usize, &[u32])> = ids.iter().map(|id| &id[..]).enumerate().collect();
        last = together.eval_batch_greedy(&batch)?;
    }
    for (seq, said) in said.iter().enumerate() {
        let mut alone = session(1)?;
        let mut next = alone.eval_greedy(&prompts[seq])?;
        for (at, &want) in said.iter().enumerate() {
            ensure(next == Some(want), || format!("sequence {seq}, token {at}"))?;
            next = alone.eval_greedy(&[want])?;
        }
    }
    Ok(())
}

fn main() {
    let args = Arguments::from_args();
    let gpu = Trials::new();
    let checks: [(&str, Check); 10] = [
        ("batches", batches),
        ("refused_batches", refused_batches),
        ("truncation", truncation),
        ("copies", copies),
        ("saving", saving),
        ("damaged", damaged),
        ("checkpoints", checkpoints),
        ("same_bits", same_bits),
        ("clearing", clearing),
        ("room", room),
    ];
    let mut trials = Vec::new();
    for model in MODELS {
        let layers = Layers::Cpu;
        let check = move || company(&Place { model, layers });
        trials.push(gpu.trial(format!("{model}::company"), layers, check));
        for (layers, place) in Layers::ALL {
            for (kind, check) in checks {
                let at = Place { model, layers };
                let name = format!("{model}::{place}{kind}");
                trials.push(gpu.trial(name, layers, move || check(&at)));
            }
        }
    }
    libtest_mimic::run(&args, trials).exit();
}
