//! Text to token ids and back, as `tokenizer.ggml.*` in the file describes.

mod bpe;
mod ids;
mod merge;
mod pre;
mod special;
mod split;
mod spm;
mod stream;
#[cfg(test)]
mod testfile;
#[cfg(test)]
mod tests;
mod vocab;
mod wpm;

pub use stream::StreamDecoder;

use crate::error::{Error, Result};
use crate::gguf::Metadata;
use bpe::Bpe;
use ids::{Defaults, Ids};
use merge::Merger;
use pre::Pre;
use special::{Part, Search, Specials};
use spm::Spm;
use vocab::{Kind, Vocab};
use wpm::Wpm;

/// What [`Tokenizer::encode`] adds and looks for.
#[derive(Default, Clone, Copy)]
pub struct EncodeOptions {
    /// Add BOS and EOS (CLS and SEP) as the file wants them.
    pub add_special: bool,
    /// Text of control tokens becomes those tokens. User-defined tokens are
    /// found either way.
    pub parse_special: bool,
}

/// The tokenizer of one file. Token texts stay in the file's bytes.
pub struct Tokenizer {
    vocab: Vocab,
    model: Model,
    ids: Ids,
    specials: Specials,
}

enum Model {
    Bpe(Bpe),
    Spm { spm: Spm, space_prefix: bool },
    Wpm { wpm: Wpm, sep: Option<u32> },
}

/// Symbols are counted in 32 bits; longer texts are tokenized in parts.
const MAX_PART_BYTES: usize = 1 << 30;

impl Tokenizer {
    /// Reads the vocabulary of a file.
    ///
    /// # Errors
    /// No vocabulary, a tokenizer model other than `gpt2`, `gemma4`, `llama`
    /// and `bert`, or tables that do not fit each other.
    pub fn from_meta(meta: &Metadata) -> Result<Tokenizer> {
        let model = meta.get_str("tokenizer.ggml.model")?;
        let Some(model) = model.filter(|name| !matches!(*name, "no_vocab" | "none")) else {
            return Err(Error::file(
                meta.path(),
                "the file holds no vocabulary",
                "it serves the commands that take token ids: `logits --tokens`, `bench` and `inspect`",
            ));
        };
        let defaults = |bos, eos, unknown, add_bos| Defaults {
            bos,
            eos,
            unknown,
            add_bos,
            add_eos: false,
        };
        match model {
            "gpt2" | "gemma4" => {
                let pre = pre_tokenizer(meta, model)?;
                Self::build(meta, defaults(None, None, None, pre.add_bos), |vocab, _| {
                    Ok(Model::Bpe(Bpe::new(meta, vocab, pre)?))
                })
            }
            "llama" => {
                let prefix = meta.get_bool("tokenizer.ggml.add_space_prefix")?;
                let defaults = defaults(Some(1), Some(2), Some(0), true);
                Self::build(meta, defaults, |vocab, ids| {
                    Ok(Model::Spm {
                        spm: Spm::new(vocab, ids.unknown),
                        space_prefix: prefix.unwrap_or(true),
                    })
                })
            }
            "bert" => Self::build(meta, defaults(None, None, Some(100), true), |vocab, ids| {
                let cls = ids::id_of(meta, vocab, "cls_token_id")?;
                ids.bos = ids.bos.or(cls).or(vocab.id(b"[CLS]"));
                // GGUF spells the key this way.
                let sep = ids::id_of(meta, vocab, "seperator_token_id")?;
                Ok(Model::Wpm {
                    wpm: Wpm::new(meta, ids.unknown)?,
                    sep: sep.or(vocab.id(b"[SEP]")),
                })
            }),
            other => Err(Error::file(
                meta.path(),
                format!("its tokenizer model {other:?} is not supported"),
                "gpt2, gemma4, llama and bert are; `logits --tokens`, `bench` and `inspect` work without one",
            )),
        }
    }

    fn build(
        meta: &Metadata,
        defaults: Defaults,
        model: impl FnOnce(&Vocab, &mut Ids) -> Result<Model>,
    ) -> Result<Tokenizer> {
        let mut vocab = Vocab::from_meta(meta)?;
        let mut ids = Ids::new(meta, &mut vocab, defaults)?;
        ids::mark_stripping(meta, &mut vocab)?;
        let model = model(&vocab, &mut ids)?;
        if ids.add_bos && ids.bos.is_none() {
            tracing::warn!("the file asks for a BOS token but names none: none is added");
        }
        let specials = Specials::new(&vocab);
        Ok(Tokenizer {
            vocab,
            model,
            ids,
            specials,
        })
    }

    /// Number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.vocab.len()
    }

    /// The ids of a text, which need not be UTF-8.
    pub fn encode(&self, text: &[u8], opts: EncodeOptions) -> Vec<u32> {
        let search = Search {
            hidden: opts.parse_special,
            guards: &[],
        };
        self.encode_with(text, search, opts.add_special)
    }

    /// As [`Tokenizer::encode`] with `parse_special`, but a control token's text
    /// that spans one of the byte positions `guards` (ascending) stays text:
    /// what a user typed into a template is not taken for the template's own.
    pub fn encode_guarded(&self, text: &[u8], guards: &[usize], add_special: bool) -> Vec<u32> {
        let search = Search {
            hidden: true,
            guards,
        };
        self.encode_with(text, search, add_special)
    }

    fn encode_with(&self, text: &[u8], search: Search, add_special: bool) -> Vec<u32> {
        let parts = self.specials.split(&self.vocab, text, search);
        let mut out = Vec::with_capacity(text.len() / 4 + 4);
        let (before, after) = match add_special {
            true => self.around(),
            false => (None, None),
        };
        // One BOS is enough when the text brings its own; so for EOS.
        let is = |part: Option<&Part>, id: Option<u32>| {
            id.is_some_and(|id| part == Some(&Part::Token(id)))
        };
        if !is(parts.first(), before) {
            out.extend(before);
        }
        let mut merger = Merger::default();
        let mut after_special = true;
        for part in &parts {
            match part {
                Part::Token(id) => out.push(*id),
                Part::Text(range) => {
                    for text in text[range.clone()].chunks(MAX_PART_BYTES) {
                        self.encode_text(text, after_special, &mut merger, &mut out);
                    }
                }
            }
            after_special = matches!(part, Part::Token(_));
        }
        if !is(parts.last(), after) {
            out.extend(after);
        }
        out
    }

    fn encode_text(
        &self,
        text: &[u8],
        after_special: bool,
        merger: &mut Merger,
        out: &mut Vec<u32>,
    ) {
        match &self.model {
            Model::Bpe(bpe) => bpe.encode(&self.vocab, text, merger, out),
            Model::Spm { spm, space_prefix } => {
                spm.encode(
                    &self.vocab,
                    text,
                    *space_prefix && after_special,
                    merger,
                    out,
                );
            }
            Model::Wpm { wpm, .. } => wpm.encode(&self.vocab, text, out),
        }
    }

    /// Tokens that the file wants before and after a text.
    fn around(&self) -> (Option<u32>, Option<u32>) {
        let bos = self.ids.bos.filter(|_| self.ids.add_bos);
        match &self.model {
            Model::Wpm { sep, .. } => (self.ids.bos, *sep),
            _ => (bos, self.ids.eos.filter(|_| self.ids.add_eos)),
        }
    }

    /// The bytes a token stands for; a control token's are its text. Empty when
    /// `id` is out of range.
    pub fn piece(&self, id: u32) -> Vec<u8> {
        let text = self.vocab.text(id);
        let kind = self.vocab.kind(id);
        let mut out = Vec::with_capacity(text.len());
        if kind.has(Kind::SPECIAL) {
            out.extend_from_slice(text);
            return out;
        }
        if let Some(byte) = byte_token(kind, text) {
            out.push(byte);
            return out;
        }
        match &self.model {
            Model::Bpe(bpe) if !bpe.pre.escape_spaces => bpe.decode(text, &mut out),
            _ => unescape_spaces(text, &mut out),
        }
        out
    }

    /// Whether a token is never printed.
    pub fn is_control(&self, id: u32) -> bool {
        self.vocab.kind(id).has(Kind::HIDDEN)
    }

    /// Whether a token ends the generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.ids.eog.binary_search(&id).is_ok()
    }

    /// All tokens that end the generation, ascending.
    pub fn eog_ids(&self) -> Vec<u32> {
        self.ids.eog.clone()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.ids.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.ids.eos
    }

    /// Whether the file wants BOS before a text.
    pub fn adds_bos(&self) -> bool {
        self.around().0.is_some()
    }

    /// A token's text as the vocabulary has it; empty when out of range.
    pub fn token_text(&self, id: u32) -> &[u8] {
        self.vocab.text(id)
    }

    /// Texts that only `parse_special` turns into tokens.
    pub fn special_texts(&self) -> impl Iterator<Item = &[u8]> {
        let ids = self.specials.ids().iter();
        ids.filter(|&&id| self.is_control(id))
            .map(|&id| self.vocab.text(id))
    }

    /// `tokenizer.ggml.model`, with `gemma4` as the `gpt2` it is a form of.
    pub fn model_name(&self) -> &str {
        match self.model {
            Model::Bpe(_) => "gpt2",
            Model::Spm { .. } => "llama",
            Model::Wpm { .. } => "bert",
        }
    }
}

/// The pre-tokenizer that the file names.
fn pre_tokenizer(meta: &Metadata, model: &str) -> Result<&'static Pre> {
    let name = match model {
        "gemma4" => Some("gemma4"),
        _ => meta.get_str("tokenizer.ggml.pre")?,
    };
    Ok(match name.map(|name| (name, pre::by_name(name))) {
        Some((_, Some(pre))) => pre,
        Some((name, None)) => {
            tracing::warn!(
                "{}: unknown pre-tokenizer {name:?} (tokenizer.ggml.pre): using the default, which may split text otherwise than the model learned",
                meta.path().display()
            );
            pre::default()
        }
        None => {
            tracing::warn!(
                "{}: no tokenizer.ggml.pre: using the default pre-tokenizer, which may split text otherwise than the model learned",
                meta.path().display()
            );
            pre::default()
        }
    })
}

/// The byte of a byte token `<0xXX>`.
fn byte_token(kind: Kind, text: &[u8]) -> Option<u8> {
    let hex = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let hex = std::str::from_utf8(hex).ok().filter(|h| h.len() == 2)?;
    kind.has(Kind::BYTE)
        .then(|| u8::from_str_radix(hex, 16).ok())
        .flatten()
}

/// Replaces U+2581 by a space.
fn unescape_spaces(mut text: &[u8], out: &mut Vec<u8>) {
    while let Some((&byte, rest)) = text.split_first() {
        match text.strip_prefix(spm::SPACE) {
            Some(rest) => {
                out.push(b' ');
                text = rest;
            }
            None => {
                out.push(byte);
                text = rest;
            }
        }
    }
}
