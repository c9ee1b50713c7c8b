//! Small vocabularies made here: what the file's keys change, and bad files.

use super::testfile::{File, bpe, spm};
use super::*;
use proptest::prelude::*;

const PARSE: EncodeOptions = EncodeOptions {
    add_special: false,
    parse_special: true,
};
const ADD: EncodeOptions = EncodeOptions {
    add_special: true,
    parse_special: true,
};

fn texts(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let text = |&id: &u32| String::from_utf8_lossy(tokenizer.token_text(id)).into_owned();
    ids.iter().map(text).collect()
}

fn encoded(tokenizer: &Tokenizer, text: &str, options: EncodeOptions) -> Vec<String> {
    texts(tokenizer, &tokenizer.encode(text.as_bytes(), options))
}

#[test]
fn space_prefix_is_what_the_file_says() -> Result<()> {
    let words = ["ab", "\u{2581}ab", "\u{2581}", "a", "b", "\u{2581}a"];
    let with = spm(&words).open()?;
    assert_eq!(
        encoded(&with, "ab<|x|>ab", PARSE),
        ["\u{2581}ab", "<|x|>", "\u{2581}ab"]
    );
    let without = spm(&words).flag("add_space_prefix", false).open()?;
    assert_eq!(encoded(&without, "ab<|x|>ab", PARSE), ["ab", "<|x|>", "ab"]);
    assert_eq!(encoded(&without, "ab ab", PARSE), ["ab", "\u{2581}ab"]);
    Ok(())
}

#[test]
fn spm_falls_back_to_bytes() -> Result<()> {
    let tokenizer = spm(&["a"]).flag("add_space_prefix", false).open()?;
    let ids = tokenizer.encode(b"a\xFF\xE4\xB8", PARSE);
    assert_eq!(texts(&tokenizer, &ids), ["a", "<0xFF>", "<0xE4>", "<0xB8>"]);
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.piece(id)).collect();
    assert_eq!(bytes, b"a\xFF\xE4\xB8");
    Ok(())
}

#[test]
fn one_bos_only() -> Result<()> {
    let tokenizer = spm(&["\u{2581}a", "a", "\u{2581}"])
        .flag("add_eos_token", true)
        .open()?;
    assert_eq!(encoded(&tokenizer, "a", ADD), ["<s>", "\u{2581}a", "</s>"]);
    assert_eq!(
        encoded(&tokenizer, "<s>a</s>", ADD),
        ["<s>", "\u{2581}a", "</s>"]
    );
    assert_eq!(encoded(&tokenizer, "", ADD), ["<s>", "</s>"]);
    assert!(encoded(&tokenizer, "", PARSE).is_empty());
    Ok(())
}

#[test]
fn merges_go_by_rank_then_from_the_left() -> Result<()> {
    let tokenizer = bpe("gpt-2", &["b c", "a b", "a a"], &[]).open()?;
    assert_eq!(encoded(&tokenizer, "abc", PARSE), ["a", "bc"]);
    assert_eq!(encoded(&tokenizer, "aaa", PARSE), ["aa", "a"]);
    assert_eq!(encoded(&tokenizer, "aaab", PARSE), ["aa", "ab"]);
    Ok(())
}

#[test]
fn pieces_without_a_token_keep_their_bytes() -> Result<()> {
    // "ab" is joined on the way to "abc", but is no token itself.
    let file = bpe("gpt-2", &["a b", "ab c"], &[]);
    let tokens: Vec<String> = ["a", "b", "c", "abc"].map(String::from).to_vec();
    let merges: Vec<String> = ["a b", "ab c"].map(String::from).to_vec();
    let short = File::default()
        .str("model", "gpt2")
        .str("pre", "gpt-2")
        .strings("tokens", &tokens)
        .strings("merges", &merges);
    assert_eq!(encoded(&short.open()?, "abcab", PARSE), ["abc", "a", "b"]);
    assert_eq!(encoded(&file.open()?, "abcab", PARSE), ["abc", "ab"]);
    Ok(())
}

#[test]
fn longer_specials_win_and_kinds_matter() -> Result<()> {
    let specials = [
        ("<|a|>", 3),
        ("<|a|><|b|>", 3),
        ("\n\n", 4),
        ("\n\n\n", 4),
        ("<|b|>", 3),
    ];
    let tokenizer = bpe("gpt-2", &[], &specials).open()?;
    assert_eq!(
        encoded(&tokenizer, "<|a|><|a|><|b|>", PARSE),
        ["<|a|>", "<|a|><|b|>"]
    );
    assert_eq!(encoded(&tokenizer, "\n\n\n\n\n", PARSE), ["\n\n\n", "\n\n"]);
    let plain = tokenizer.encode(b"<|a|>\n\n", EncodeOptions::default());
    assert_eq!(texts(&tokenizer, &plain), ["<", "|", "a", "|", ">", "\n\n"]);
    let mut special: Vec<&[u8]> = tokenizer.special_texts().collect();
    special.sort();
    assert_eq!(special, [b"<|a|>".as_slice(), b"<|a|><|b|>", b"<|b|>"]);
    Ok(())
}

#[test]
fn guards_keep_typed_specials_text() -> Result<()> {
    let specials = [("<|a|>", 3), ("<|a|><|b|>", 3), ("<|b|>", 3), ("<t>", 4)];
    let tokenizer = bpe("gpt-2", &[], &specials).open()?;
    let text = b"<|a|><|b|><t><|a|>";
    let guarded = |guards: &[usize]| {
        let ids = tokenizer.encode_guarded(text, guards, false);
        texts(&tokenizer, &ids).join(" ")
    };
    assert_eq!(guarded(&[]), "<|a|><|b|> <t> <|a|>");
    // A guard on a border spans nothing; user-defined tokens need no guard.
    assert_eq!(guarded(&[0, 5, 10, 11, 18]), "<|a|> <|b|> <t> <|a|>");
    assert_eq!(guarded(&[1, 6]), "< | a | > < | b | > <t> <|a|>");
    assert_eq!(guarded(&[14]), "<|a|><|b|> <t> < | a | >");
    Ok(())
}

#[test]
fn ends_of_generation() -> Result<()> {
    let specials = [
        ("<|im_end|>", 1),
        ("</s>", 4),
        ("<|end|>", 3),
        ("<eos-here>", 3),
    ];
    let first = 256;
    let file = bpe("gpt-2", &[], &specials).u32("eos_token_id", first + 3);
    let tokenizer = file.open()?;
    // Not "</s>": it is no control token here.
    assert_eq!(tokenizer.eog_ids(), [first, first + 2, first + 3]);
    assert!(tokenizer.is_control(first) && tokenizer.is_eog(first));
    assert!(!tokenizer.is_eog(first + 1) && !tokenizer.is_eog(u32::MAX));
    let harmony = [("<|end|>", 3), ("<|return|>", 3), ("<|call|>", 3)];
    let harmony = bpe("gpt-4o", &[], &harmony).open()?;
    assert_eq!(harmony.eog_ids(), [first + 1, first + 2]);
    Ok(())
}

#[test]
fn every_pre_tokenizer_compiles_and_keeps_the_text() -> Result<()> {
    let names = [
        "default",
        "llama-bpe",
        "dbrx",
        "jais-2",
        "minicpm5",
        "deepseek-llm",
        "deepseek-coder",
        "deepseek-v3",
        "spark2_5",
        "youtu",
        "falcon",
        "starcoder",
        "gpt-2",
        "qwen2",
        "qwen35",
        "seed-coder",
        "ufakzeka",
        "exaone-moe",
        "laguna",
        "afmoe",
        "bloom",
        "viking",
        "tekken",
        "gpt-4o",
        "granite-embed-multi-97m",
        "tiny_aya",
        "kimi-k2",
        "superbpe",
        "chameleon",
    ];
    let text =
        "Don't  panic: 12345 \u{4F60}\u{597D}\n\n  caf\u{E9} HELLOworld\t\u{3000}x <sentinel:1> ";
    for name in names {
        let tokenizer = bpe(name, &["a n"], &[]).open()?;
        let ids = tokenizer.encode(text.as_bytes(), PARSE);
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.piece(id)).collect();
        assert_eq!(bytes, text.as_bytes(), "{name}");
    }
    Ok(())
}

#[test]
fn gemma4_spells_spaces_and_bytes_as_spm_does() -> Result<()> {
    let tokens = ["a", "\u{2581}", "\u{2581}a", "\n", "<0xC3>", "<0xA9>"].map(String::from);
    let tokenizer = File::default()
        .str("model", "gemma4")
        .strings("tokens", &tokens)
        .types(&[1, 1, 1, 1, 6, 6])
        .strings("merges", &["\u{2581} a".to_string()])
        .open()?;
    let ids = tokenizer.encode("a a\n\u{E9}".as_bytes(), PARSE);
    assert_eq!(ids, [0, 2, 3, 4, 5]);
    assert_eq!(tokenizer.piece(2), b" a");
    assert_eq!(tokenizer.piece(4), [0xC3]);
    Ok(())
}

#[test]
fn damaged_vocabularies_are_errors() {
    let words = ["a", "b"];
    let n_vocab = 262;
    let bad = [
        (
            spm(&words).u32("bos_token_id", n_vocab),
            "bos_token_id is 262",
        ),
        (
            spm(&words).u32("padding_token_id", u32::MAX),
            "padding_token_id",
        ),
        (
            File::default().str("model", "llama"),
            "tokenizer.ggml.tokens is missing",
        ),
        (
            File::default().str("model", "no_vocab"),
            "`logits --tokens`",
        ),
        (File::default(), "`logits --tokens`"),
        (
            File::default().str("model", "t5"),
            "\"t5\" is not supported",
        ),
        (
            File::default().str("model", "llama").strings("tokens", &[]),
            "0 tokens",
        ),
        (
            File::default()
                .str("model", "llama")
                .strings("tokens", &words.map(String::from))
                .scores(&[0.0]),
            "scores has 1 elements for 2 tokens",
        ),
        (
            File::default()
                .str("model", "llama")
                .strings("tokens", &words.map(String::from))
                .types(&[1]),
            "token_type has 1 elements for 2 tokens",
        ),
        (
            File::default()
                .str("model", "gpt2")
                .strings("tokens", &words.map(String::from)),
            "merges is missing",
        ),
    ];
    for (file, want) in bad {
        let error = file.open().err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains(want), "{error:?} lacks {want:?}");
        assert!(!error.contains('\n'));
    }
}

#[test]
fn odd_vocabularies_do_not_panic() -> Result<()> {
    let tokens = ["", "a", "a", "<0x", "\u{2581}"].map(String::from);
    for model in ["llama", "gpt2", "bert"] {
        let tokenizer = File::default()
            .str("model", model)
            .str("pre", "no such name")
            .strings("tokens", &tokens)
            .types(&[4, 6, 99, 6, -1])
            .scores(&[f32::NAN, f32::INFINITY, -0.0, 0.0, f32::NEG_INFINITY])
            .strings(
                "merges",
                &["", "a", " ", "a a", "a a", "  "].map(String::from),
            )
            .open()?;
        let ids = tokenizer.encode(b"aaa a\xFF<0x61>\xE2\x96", ADD);
        assert!(ids.iter().all(|&id| id < 5));
        let pieces = (0..7).map(|id| tokenizer.piece(id).len());
        assert!(pieces.sum::<usize>() > 0);
    }
    Ok(())
}

proptest! {
    #[test]
    fn byte_level_bpe_is_lossless(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        text in "\\PC{0,40}[ \\t\\r\\n0-9'a-zA-Z]{0,40}",
        pre in prop::sample::select(vec!["gpt-2", "llama-bpe", "deepseek-v3", "tiny_aya", "jais-2"]),
    ) {
        let tokenizer = bpe(pre, &["a b", "Ġ Ġ", "ab c", "1 2"], &[("<|x|>", 3)]).open()?;
        for input in [bytes, text.into_bytes()] {
            let ids = tokenizer.encode(&input, PARSE);
            let back: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.piece(id)).collect();
            prop_assert_eq!(&back, &input);
        }
    }

    #[test]
    fn spm_and_wpm_take_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let tokenizer = spm(&["a", "ab", "\u{2581}", "\u{2581}a"]).flag("add_space_prefix", false).open()?;
        let ids = tokenizer.encode(&bytes, PARSE);
        let back: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.piece(id)).collect();
        // U+2581 itself reads as the space it stands for.
        let mut want = Vec::new();
        unescape_spaces(&bytes, &mut want);
        prop_assert_eq!(back, want);
        let words = ["[UNK]", "[CLS]", "[SEP]", "\u{2581}a", "b"].map(String::from);
        let bert = File::default().str("model", "bert").strings("tokens", &words).open()?;
        prop_assert!(bert.encode(&bytes, ADD).len() >= 2);
    }
}
