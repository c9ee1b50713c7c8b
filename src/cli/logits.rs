//! `llama-rs logits`: what the model predicts after each token of a prompt.

use super::args::LogitsArgs;
use super::output::Product;
use super::{load, prompt};
use crate::gguf::Gguf;
use crate::sampling::{Chain, SamplingParams};
use crate::session::Session;
use crate::tokenizer::{EncodeOptions, Tokenizer};
use crate::{Error, Result};
use serde_json::json;
use std::io::{self, Write};

/// Runs the command.
pub fn run(args: LogitsArgs) -> anyhow::Result<()> {
    let text = prompt_text(&args)?;
    let gguf = load::open(&args.model)?;
    load::need_tensors(&gguf)?;
    let tokenizer = optional_tokenizer(&args, &gguf)?;
    let tokens = match (&args.tokens, &text, &tokenizer) {
        (Some(ids), _, _) => ids.0.clone(),
        (None, Some(text), Some(tokenizer)) => {
            let options = EncodeOptions {
                add_special: true,
                parse_special: true,
            };
            tokenizer.encode(text, options)
        }
        _ => Vec::new(),
    };
    if tokens.is_empty() {
        let text = "the prompt is empty; give ids with --tokens, or text with -p TEXT or -f FILE";
        return Err(Error::input(text).into());
    }
    let model = load::model(gguf, &args.eval)?;
    if let Some(tokenizer) = &tokenizer {
        load::need_rows(tokenizer, &model)?;
    }
    let n_vocab = model.n_vocab();
    check_ids(&tokens, n_vocab)?;
    let needed = load::exactly(tokens.len().saturating_add(args.n_predict));
    let wish = load::wish(&args.eval.context, &model, needed);
    load::need_room(
        tokens
            .len()
            .saturating_add(args.n_predict.saturating_sub(1)),
        wish.n_ctx,
    )?;
    let mut session = load::session(&model, &args.eval, wish, true)?;
    let mut rows = Rows {
        product: Product::stdout(),
        top: args.top.map(|k| k as usize),
    };
    let next = rows.print(&mut session, &tokens, n_vocab)?;
    let mut product = rows.product;
    if args.n_predict > 0 {
        let greedy = continuation(&mut session, next, args.n_predict, tokenizer.as_ref())?;
        write!(product, ",\"greedy\":{}", json!(greedy))?;
    }
    writeln!(product, "}}")?;
    product.flush()?;
    Ok(())
}

/// The text of `-p` or `-f`; `None` when ids are given.
fn prompt_text(args: &LogitsArgs) -> Result<Option<Vec<u8>>> {
    match (&args.prompt, &args.file) {
        (Some(text), _) => Ok(Some(text.clone().into_bytes())),
        (None, Some(file)) => prompt::read_file(file).map(Some),
        (None, None) => Ok(None),
    }
}

/// The tokenizer where it is needed: for text, and to know the end of a continuation.
fn optional_tokenizer(args: &LogitsArgs, gguf: &Gguf) -> Result<Option<Tokenizer>> {
    let for_end = args.n_predict > 0 && load::has_vocabulary(&gguf.meta)?;
    if args.tokens.is_none() || for_end {
        return load::tokenizer(&gguf.meta).map(Some);
    }
    Ok(None)
}

fn check_ids(tokens: &[u32], n_vocab: usize) -> Result<()> {
    match tokens.iter().find(|&&id| id as usize >= n_vocab) {
        Some(id) => Err(Error::input(format!(
            "--tokens: id {id} is outside the vocabulary of {n_vocab}; give ids below that"
        ))),
        None => Ok(()),
    }
}

/// Writes the object's rows as they are computed: all logits of a long prompt
/// would not fit in memory.
struct Rows {
    product: Product,
    top: Option<usize>,
}

impl Rows {
    /// Opens the object, writes a row a token, and returns the id that greedy
    /// decoding chooses after the last one.
    fn print(&mut self, session: &mut Session, tokens: &[u32], n_vocab: usize) -> Result<u32> {
        let mut next = 0;
        let mut greedy = Chain::new(&SamplingParams::greedy())?;
        session.eval_all(tokens, &mut |i, logits| {
            // Before it is written: JSON has no NaN.
            next = greedy.sample(logits)?;
            let written = if i == 0 {
                self.open(tokens, n_vocab)
            } else {
                self.product.write_all(b",")
            };
            written
                .and_then(|()| self.row(logits))
                .map_err(|e| Error::io("cannot write the logits", e))
        })?;
        self.product
            .write_all(b"]")
            .map_err(|e| Error::io("cannot write the logits", e))?;
        Ok(next)
    }

    fn open(&mut self, tokens: &[u32], n_vocab: usize) -> io::Result<()> {
        let rows = if self.top.is_some() { "top" } else { "logits" };
        let tokens = json!(tokens);
        write!(
            self.product,
            "{{\"tokens\":{tokens},\"n_vocab\":{n_vocab},\"{rows}\":["
        )
    }

    fn row(&mut self, logits: &[f32]) -> io::Result<()> {
        match self.top {
            None => serde_json::to_writer(&mut self.product, logits)?,
            Some(k) => {
                let (id, logprob) = top(logits, k);
                let row = json!({ "id": id, "logprob": logprob });
                serde_json::to_writer(&mut self.product, &row)?;
            }
        }
        Ok(())
    }
}

/// The `k` most probable ids and their natural-log probabilities, descending;
/// ties go to the lowest id.
fn top(logits: &[f32], k: usize) -> (Vec<u32>, Vec<f64>) {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max) as f64;
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - max).exp()).sum();
    let log_sum = max + sum.ln();
    let order = |&a: &u32, &b: &u32| {
        let (left, right) = (logits[a as usize], logits[b as usize]);
        right.total_cmp(&left).then(a.cmp(&b))
    };
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let k = k.min(ids.len());
    if k < ids.len() {
        ids.select_nth_unstable_by(k, order);
        ids.truncate(k);
    }
    ids.sort_unstable_by(order);
    let logprob = |&id: &u32| f64::from(logits[id as usize]) - log_sum;
    let logprobs = ids.iter().map(logprob).collect();
    (ids, logprobs)
}

/// Up to `n` ids, each the most probable one; an end-of-generation id is the last.
fn continuation(
    session: &mut Session,
    first: u32,
    n: usize,
    tokenizer: Option<&Tokenizer>,
) -> Result<Vec<u32>> {
    let mut greedy = Chain::new(&SamplingParams::greedy())?;
    let mut ids = vec![first];
    let mut last = first;
    while ids.len() < n && !tokenizer.is_some_and(|t| t.is_eog(last)) {
        last = greedy.sample(session.eval(&[last])?)?;
        ids.push(last);
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::top;

    #[test]
    fn top_is_descending_with_ties_to_the_lowest_id() {
        let logits = [0.0, 2.0, 1.0, 2.0, f32::NEG_INFINITY];
        let (ids, logprobs) = top(&logits, 3);
        assert_eq!(ids, [1, 3, 2]);
        let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        // Both sides are one f64 log and one subtraction: a few ulp of 2.
        assert!((logprobs[0] - (2.0 - sum.ln())).abs() < 1e-14);
        assert_eq!(logprobs[0], logprobs[1]);
    }

    #[test]
    fn top_of_more_than_there_are_is_all() {
        assert_eq!(top(&[1.0, 3.0], 50).0, [1, 0]);
    }
}
