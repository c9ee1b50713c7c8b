//! `llama-rs bench`: prefill and decode speed on fixed token ids.

use super::args::{BenchArgs, BenchFormat};
use super::load;
use super::output::{Product, human_bytes, progress};
use crate::backend::Device;
use crate::session::Session;
use indicatif::ProgressBar;
use serde_json::{Value as Json, json};
use std::io::Write;
use std::time::Instant;

/// Tokens of context beyond those evaluated, as the peer's bench takes.
const SPARE_CTX: usize = 16;

/// Runs the command.
pub fn run(args: BenchArgs) -> anyhow::Result<()> {
    let gguf = load::open(&args.model)?;
    let path = gguf.path.display().to_string();
    let model = load::model(gguf, &args.eval)?;
    let n_ctx = args
        .n_prompt
        .saturating_add(args.n_gen)
        .saturating_add(SPARE_CTX);
    let wish = load::wish(&args.eval.context, &model, load::exactly(n_ctx));
    load::need_room(args.n_prompt.max(args.n_gen.saturating_add(1)), wish.n_ctx)?;
    let mut session = load::session(&model, &args.eval, wish, false)?;
    tracing::info!("{}", load::describe_context(&session, &model));
    let n_tokens = args.n_prompt.max(args.n_gen).max(1);
    let tokens: Vec<u32> = (0..n_tokens).map(|i| token(i, model.n_vocab())).collect();
    let (pp, tg) = measure(&mut session, &tokens, &args)?;
    let threads = load::n_threads(&args.eval.context);
    let (backend, ngl) = backend(&session);
    let mut product = Product::stdout();
    match args.output {
        BenchFormat::Json => {
            let mut object = json!({
                "model": path, "backend": backend, "ngl": ngl, "threads": threads,
            });
            for (key, run) in [("pp", &pp), ("tg", &tg)] {
                if run.n > 0 {
                    object[key] = run.json();
                }
            }
            writeln!(product, "{object}")?;
        }
        BenchFormat::Md => {
            let arch = model.arch_name();
            let size = human_bytes(model.weight_bytes());
            let columns = "model | arch | size | backend | ngl | threads | test | tok/s";
            writeln!(product, "| {columns} |")?;
            writeln!(
                product,
                "| --- | --- | ---: | --- | ---: | ---: | ---: | ---: |"
            )?;
            for (name, run) in [("pp", &pp), ("tg", &tg)] {
                if run.n > 0 {
                    let (n, median, deviation) = (run.n, run.median(), run.deviation());
                    writeln!(
                        product,
                        "| {path} | {arch} | {size} | {backend} | {ngl} | {threads} | \
                         {name}{n} | {median:.2} ± {deviation:.2} |"
                    )?;
                }
            }
        }
    }
    product.flush()?;
    Ok(())
}

/// The backend and the number of offloaded layers, as llama-bench names them.
fn backend(session: &Session) -> (&'static str, usize) {
    match session.load() {
        Some(load) if load.n_layers > 0 => match load.device {
            Device::Cuda(_) => ("CUDA", load.n_layers),
            Device::Cpu => ("CPU", load.n_layers),
        },
        _ => ("CPU", 0),
    }
}

/// The token at position `i`: spread over the vocabulary, the same in the
/// peer's bench.
fn token(i: usize, n_vocab: usize) -> u32 {
    ((7919 * i + 13) % n_vocab.max(1)) as u32
}

/// Tokens per second of every repeat.
struct Run {
    /// Tokens a repeat.
    n: usize,
    all: Vec<f64>,
}

impl Run {
    fn new(n: usize) -> Self {
        Run { n, all: Vec::new() }
    }

    fn add(&mut self, started: Instant) {
        self.all
            .push(self.n as f64 / started.elapsed().as_secs_f64());
    }

    fn median(&self) -> f64 {
        let mut sorted = self.all.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => 0.0,
            n if n % 2 == 1 => sorted[middle],
            _ => (sorted[middle - 1] + sorted[middle]) / 2.0,
        }
    }

    /// Standard deviation of a sample; 0 for a single repeat.
    fn deviation(&self) -> f64 {
        let n = self.all.len() as f64;
        let mean = self.all.iter().sum::<f64>() / n.max(1.0);
        let squares: f64 = self.all.iter().map(|x| (x - mean).powi(2)).sum();
        (squares / (n - 1.0).max(1.0)).sqrt()
    }

    fn json(&self) -> Json {
        let all: Vec<f64> = self.all.iter().map(|&x| round(x)).collect();
        json!({ "n": self.n, "median": round(self.median()), "all": all })
    }
}

fn round(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

/// One warm-up of each kind, then the repeats, each on an empty cache.
fn measure(session: &mut Session, tokens: &[u32], args: &BenchArgs) -> crate::Result<(Run, Run)> {
    let prompt = &tokens[..args.n_prompt];
    let mut pp = Run::new(args.n_prompt);
    let mut tg = Run::new(args.n_gen);
    let bar = progress(
        args.repeats as usize * (args.n_prompt + args.n_gen),
        "bench",
    );
    session.eval(&tokens[..args.n_prompt.max(1)])?;
    session.clear();
    one(session, tokens[0])?;
    for _ in 0..args.repeats {
        if pp.n > 0 {
            session.clear();
            let started = Instant::now();
            session.eval(prompt)?;
            pp.add(started);
            bar.inc(pp.n as u64);
        }
        if tg.n > 0 {
            decode(session, tokens, &mut tg, &bar)?;
        }
    }
    bar.finish_and_clear();
    Ok((pp, tg))
}

/// Evaluates a token as greedy decoding does: a device that has the logits
/// gives back one id instead of all of them.
fn one(session: &mut Session, id: u32) -> crate::Result<()> {
    match session.argmax_on_device() {
        true => session.eval_greedy(&[id]).map(drop),
        false => session.eval(&[id]).map(drop),
    }
}

/// One token first, untimed, then one token at a time.
fn decode(
    session: &mut Session,
    tokens: &[u32],
    run: &mut Run,
    bar: &ProgressBar,
) -> crate::Result<()> {
    session.clear();
    one(session, tokens[0])?;
    let started = Instant::now();
    for &id in &tokens[..run.n] {
        one(session, id)?;
    }
    run.add(started);
    bar.inc(run.n as u64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{Run, token};

    #[test]
    fn tokens_are_those_of_the_peer() {
        assert_eq!([0, 1, 2].map(|i| token(i, 49152)), [13, 7932, 15851]);
        assert_eq!(token(10, 100), 3);
    }

    #[test]
    fn median_and_deviation() {
        let mut run = Run::new(1);
        run.all = vec![4.0, 1.0, 2.0];
        assert_eq!(run.median(), 2.0);
        run.all.push(3.0);
        assert_eq!(run.median(), 2.5);
        run.all = vec![1.0, 3.0];
        assert_eq!(run.deviation(), 2.0_f64.sqrt());
        run.all.pop();
        assert_eq!(run.deviation(), 0.0);
    }
}
