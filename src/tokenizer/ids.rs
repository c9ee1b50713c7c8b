//! Special token ids: what the file names, what its texts give away.

use super::vocab::{Kind, Vocab};
use crate::error::{Error, Result};
use crate::gguf::Metadata;

/// Ids with a role, and what is added around a text.
pub(super) struct Ids {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unknown: Option<u32>,
    pub add_bos: bool,
    pub add_eos: bool,
    /// End-of-generation ids, ascending.
    pub eog: Vec<u32>,
}

/// What a tokenizer model takes when the file is silent.
pub(super) struct Defaults {
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub unknown: Option<u32>,
    pub add_bos: bool,
    pub add_eos: bool,
}

/// Texts that end a turn in models whose files do not say so.
const END_OF_TURN: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "<|EOT|>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<\u{FF5C}end\u{2581}of\u{2581}sentence\u{FF5C}>",
    "[e~[",
];

/// A fill-in-the-middle document that ends: roles and the texts they go by.
const END_OF_DOCUMENT: [(&str, &[&str]); 3] = [
    (
        "fim_pad_token_id",
        &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    ),
    (
        "fim_rep_token_id",
        &[
            "<|fim_repo|>",
            "<|repo_name|>",
            "<fim-repo>",
            "<REPO>",
            "<reponame>",
        ],
    ),
    ("fim_sep_token_id", &["<|file_sep|>"]),
];

/// Fill-in-the-middle markers: control tokens, whatever kind the file gives them.
const FIM_MARKERS: [&str; 24] = [
    "<|fim_prefix|>",
    "<|fim_suffix|>",
    "<|fim_middle|>",
    "<fim-prefix>",
    "<fim-suffix>",
    "<fim-middle>",
    "<fim_prefix>",
    "<fim_suffix>",
    "<fim_middle>",
    "<\u{FF5C}fim\u{2581}begin\u{FF5C}>",
    "<\u{FF5C}fim\u{2581}hole\u{FF5C}>",
    "<\u{FF5C}fim\u{2581}end\u{FF5C}>",
    "<PRE>",
    "<SUF>",
    "<MID>",
    "\u{2581}<PRE>",
    "\u{2581}<SUF>",
    "\u{2581}<MID>",
    "<|code_prefix|>",
    "<|code_suffix|>",
    "<|code_middle|>",
    "<|prefix|>",
    "<|suffix|>",
    "<|middle|>",
];

/// Keys that are only checked.
const OTHER_KEYS: [&str; 5] = [
    "padding_token_id",
    "mask_token_id",
    "fim_pre_token_id",
    "fim_suf_token_id",
    "fim_mid_token_id",
];

/// A special token's id.
///
/// # Errors
/// An id outside the vocabulary.
pub(super) fn id_of(meta: &Metadata, vocab: &Vocab, name: &str) -> Result<Option<u32>> {
    let key = format!("tokenizer.ggml.{name}");
    match meta.get_u64(&key)? {
        Some(id) if id >= vocab.len() as u64 => Err(Error::file(
            meta.path(),
            format!("{key} is {id}, outside the vocabulary of {}", vocab.len()),
            format!("fetch the file again, or pass --override-kv {key}=int:ID"),
        )),
        id => Ok(id.map(|id| id as u32)),
    }
}

impl Ids {
    /// Reads the ids, and marks end-of-generation tokens as control tokens.
    ///
    /// # Errors
    /// An id outside the vocabulary.
    pub fn new(meta: &Metadata, vocab: &mut Vocab, defaults: Defaults) -> Result<Ids> {
        let known = |id: Option<u32>| id.filter(|&id| (id as usize) < vocab.len());
        let flag = |name: &str| meta.get_bool(&format!("tokenizer.ggml.{name}"));
        let bos = id_of(meta, vocab, "bos_token_id")?.or(known(defaults.bos));
        let eos = id_of(meta, vocab, "eos_token_id")?.or(known(defaults.eos));
        let unknown = id_of(meta, vocab, "unknown_token_id")?.or(known(defaults.unknown));
        for name in OTHER_KEYS {
            id_of(meta, vocab, name)?;
        }
        let mut eog = by_text(vocab, &END_OF_TURN);
        for (role, texts) in END_OF_DOCUMENT {
            match id_of(meta, vocab, role)? {
                Some(id) => eog.push(id),
                None => eog.extend(by_text(vocab, texts).first()),
            }
        }
        for id in [
            id_of(meta, vocab, "eot_token_id")?,
            id_of(meta, vocab, "eom_token_id")?,
        ] {
            eog.extend(id);
        }
        for &id in eog.iter().chain(&by_text(vocab, &FIM_MARKERS)) {
            vocab.set_kind(id, vocab.kind(id).with(Kind::CONTROL));
        }
        eog.extend(eos);
        // Also HTML's strike-through: an end only where the file makes it a control token.
        let end = by_text(vocab, &["</s>"]).into_iter();
        eog.extend(end.filter(|&id| vocab.kind(id).has(Kind::CONTROL)));
        eog.sort_unstable();
        eog.dedup();
        drop_mid_turn(vocab, &mut eog);
        Ok(Ids {
            add_bos: flag("add_bos_token")?.unwrap_or(defaults.add_bos),
            add_eos: flag("add_eos_token")?.unwrap_or(defaults.add_eos),
            bos,
            eos,
            unknown,
            eog,
        })
    }
}

fn by_text(vocab: &Vocab, texts: &[&str]) -> Vec<u32> {
    let ids = texts.iter().filter_map(|text| vocab.id(text.as_bytes()));
    ids.collect()
}

/// Formats that close a turn's parts with `<|end|>` and the turn with another
/// token (gpt-oss, solar-open) go on after it.
fn drop_mid_turn(vocab: &Vocab, eog: &mut Vec<u32>) {
    let has = |text: &str| vocab.id(text.as_bytes()).is_some();
    let call = has("<|call|>") || has("<|calls|>");
    if call && (has("<|return|>") || has("<|flush|>")) {
        let end = vocab.id(b"<|end|>");
        eog.retain(|&id| Some(id) != end);
    }
}

/// Marks the tokens that swallow white space around them, by the names of
/// models whose files leave it out.
pub(super) fn mark_stripping(meta: &Metadata, vocab: &mut Vocab) -> Result<()> {
    let lower = |key: &str| {
        let text = meta.get_bytes(key).map(Option::unwrap_or_default);
        text.map(|text| String::from_utf8_lossy(text).to_ascii_lowercase())
    };
    let name = lower("general.name")?;
    let pre = lower("tokenizer.ggml.pre")?;
    let arch = lower("general.architecture")?;
    let mask = match () {
        () if ["jina-v2-de", "jina-v2-es", "jina-v2-code"]
            .iter()
            .any(|p| pre.contains(p)) =>
        {
            "<mask>"
        }
        () if ["nomic-bert-moe", "jina-bert-v3"]
            .iter()
            .any(|a| arch.contains(a)) =>
        {
            "<mask>"
        }
        () if name.contains("phi-3") || name.contains("phi3") => {
            mark_phi3(vocab);
            return Ok(());
        }
        () if name.contains("modern-bert") => "[MASK]",
        () => return Ok(()),
    };
    if let Some(id) = vocab.id(mask.as_bytes()) {
        vocab.set_kind(id, vocab.kind(id).with(Kind::LSTRIP));
    }
    Ok(())
}

fn mark_phi3(vocab: &mut Vocab) {
    for id in 0..vocab.len() as u32 {
        let kind = vocab.kind(id);
        let keeps = matches!(vocab.text(id), b"<unk>" | b"<s>" | b"<|endoftext|>");
        if kind.has(Kind::SPECIAL) && !keeps {
            vocab.set_kind(id, kind.with(Kind::RSTRIP));
        }
    }
}
