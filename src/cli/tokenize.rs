//! `llama-rs tokenize`: the token ids of a text.

use super::args::TokenizeArgs;
use super::output::Product;
use super::{load, prompt};
use crate::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::json;
use std::io::Write;

/// Runs the command.
pub fn run(args: TokenizeArgs) -> anyhow::Result<()> {
    let text = if args.stdin {
        prompt::read_stdin()?
    } else {
        prompt::given(&args.prompt)?.unwrap_or_default()
    };
    let gguf = load::open(&args.model)?;
    let tokenizer = load::tokenizer(&gguf.meta)?;
    let options = EncodeOptions {
        add_special: !args.no_bos,
        parse_special: !args.no_parse_special,
    };
    let ids = tokenizer.encode(&text, options);
    let mut product = Product::stdout();
    if args.json {
        writeln!(product, "{}", json!({ "ids": ids }))?;
    } else if args.ids {
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        writeln!(product, "[{}]", ids.join(", "))?;
    } else {
        print_pieces(&mut product, &tokenizer, &ids)?;
    }
    product.flush()?;
    Ok(())
}

/// A line `id<TAB>piece` a token; the piece is a JSON string, in which bytes
/// that are not whole characters read as U+FFFD.
fn print_pieces(product: &mut Product, tokenizer: &Tokenizer, ids: &[u32]) -> std::io::Result<()> {
    for &id in ids {
        let piece = tokenizer.piece(id);
        let piece = serde_json::to_string(&String::from_utf8_lossy(&piece))?;
        writeln!(product, "{id}\t{piece}")?;
    }
    Ok(())
}
