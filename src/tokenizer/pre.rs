//! Pre-tokenizers by their `tokenizer.ggml.pre` name: how a model's text is cut
//! into words before BPE merges them.
//!
//! The cuts are those of llama.cpp, on which GGUF files are made and checked,
//! also where it departs from a model's original pattern: its case classes
//! split ASCII letters only (`[\p{L}&&[^a-z]]` for "upper case"). On purpose
//! not followed: afmoe's CJK block that begins at U+F900 (there it begins at
//! the look-alike U+8C48), and tiny_aya's numbers, which are grouped here as its
//! own pattern says.

use super::split::DigitGroups::{Ascii, AsciiNumbers, Unicode};
use super::split::Stage::{self, Digits, Pattern, Words, WordsCascade};

/// One pre-tokenizer.
pub(super) struct Pre {
    pub stages: &'static [Stage],
    /// A word that is a token is that token, whatever the merges say.
    pub ignore_merges: bool,
    /// BOS is added when the file does not say.
    pub add_bos: bool,
    /// Tokens spell UTF-8 with `<0xXX>` byte tokens, not GPT-2's byte letters.
    pub raw_utf8: bool,
    /// Spaces are U+2581 in the vocabulary.
    pub escape_spaces: bool,
    /// The vocabulary may come without merges.
    pub without_merges: bool,
}

const fn cut(stages: &'static [Stage]) -> Pre {
    Pre {
        stages,
        ignore_merges: false,
        add_bos: false,
        raw_utf8: false,
        escape_spaces: false,
        without_merges: false,
    }
}

/// English contractions in any case.
macro_rules! contraction {
    () => {
        "'(?:[sStTmMdD]|[rRvV][eE]|[lL][lL])"
    };
}

/// Letters with one leading character, numbers as `$number`, the rest with
/// `$end`, line ends.
macro_rules! llama3 {
    ($number:literal, $end:literal) => {
        concat!(
            contraction!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|",
            $number,
            r"| ?[^\s\p{L}\p{N}]+",
            $end,
            r"|\s*[\r\n]+"
        )
    };
}

/// Words in which `$upper` letters come before `$lower` ones.
macro_rules! cased {
    ($upper:literal, $lower:literal, $suffix:expr, $number:literal) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?",
            $upper,
            "*",
            $lower,
            "+",
            $suffix,
            r"|[^\r\n\p{L}\p{N}]?",
            $upper,
            "+",
            $lower,
            "*",
            $suffix,
            "|",
            $number,
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
        )
    };
}

/// Letters and marks, with a leading ASCII sign or other character.
macro_rules! signed {
    ($end:literal) => {
        concat!(
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
            r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+",
            $end
        )
    };
}

/// Han without the scripts that share its planes.
macro_rules! han {
    () => {
        concat!(
            r"\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{20000}-\u{2A6DF}\u{2A700}-\u{2B73F}",
            r"\u{2B740}-\u{2EBEF}\u{F900}-\u{FAFF}\u{2F800}-\u{2FA1F}"
        )
    };
}

const GPT2_WORDS: Stage = Words(r"'(?:[stmd]|re|ve|ll)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+");
const QWEN2_WORDS: Stage = Words(llama3!(r"\p{N}", r"[\r\n]*"));
const CJK_KANA: Stage = Pattern("[一-龥぀-ゟ゠-ヿ]+");
const CJK_HANGUL: Stage = Pattern(r"[[一-龥ࠀ-一가-\u{D7FF}]&&\S]+");
const LINES: Stage = Pattern(r"[^\n]+|\n+");
const LINE_END: Stage = Pattern(r"[\r\n]");
const DIGIT: Stage = Pattern(r"\p{N}");
const UP_TO_3_DIGITS: Stage = Pattern(r"\p{N}{1,3}");
const BLOOM_WORDS: Stage = Pattern(r" ?[^(\s|.,!?…。，、।۔،)]+");
/// Cased letters as DeepSeek LLM lists them.
const DEEPSEEK_LETTERS: Stage = Pattern(
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u{1F7D}ᾀ-ᾴᾶ-ᾼ\u{1FBE}ῂ-ῄῆ-ῌῐ-\u{1FD3}ῖ-\u{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
);

static DEFAULT: Pre = cut(&[
    Pattern(r"[\p{P}$+<=>^~|]+"),
    GPT2_WORDS,
    Pattern(r"\p{N}+"),
    Pattern("[0-9][0-9][0-9]"),
]);
static GPT2: Pre = cut(&[GPT2_WORDS]);
static STARCODER: Pre = cut(&[DIGIT, GPT2_WORDS]);
static FALCON: Pre = cut(&[
    Pattern(r"[\p{P}$+<=>^~|`]+"),
    GPT2_WORDS,
    Pattern("[0-9][0-9][0-9]"),
]);
static LLAMA3_STAGES: [Stage; 1] = [Words(llama3!(r"\p{N}{1,3}", r"[\r\n]*"))];
static LLAMA3: Pre = Pre {
    ignore_merges: true,
    add_bos: true,
    ..cut(&LLAMA3_STAGES)
};
static DBRX: Pre = cut(&LLAMA3_STAGES);
static JAIS2: Pre = cut(&[WordsCascade(llama3!(r"\p{N}{1,3}", r"[\r\n]*"))]);
static QWEN2: Pre = cut(&[QWEN2_WORDS]);
static SEED_CODER: Pre = cut(&[Words(concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
))]);
static UFAKZEKA: Pre = cut(&[Words(
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
)]);
static QWEN35: Pre = cut(&[Words(concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
))]);
static EXAONE_MOE: Pre = cut(&[Words(concat!(
    contraction!(),
    r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
))]);
static MINICPM5: Pre = Pre {
    ignore_merges: true,
    ..cut(&[UP_TO_3_DIGITS, Words(llama3!(r"\p{N}+", r"[\r\n]*"))])
};
static LAGUNA: Pre = cut(&[LINES, QWEN2_WORDS]);
static DEEPSEEK_LLM: Pre = cut(&[
    LINE_END,
    DEEPSEEK_LETTERS,
    Pattern(r"\s?[!-/:-~！-／：-～‘-‟、-。]+"),
    Pattern(r"\s+$"),
    CJK_HANGUL,
    Pattern(r"\p{N}+"),
]);
static DEEPSEEK_CODER: Pre = cut(&[
    LINE_END,
    Pattern(r"\s?\p{L}+"),
    Pattern(r"\s?\p{P}+"),
    CJK_HANGUL,
    DIGIT,
]);
static DEEPSEEK3: Pre = cut(&[
    UP_TO_3_DIGITS,
    CJK_KANA,
    Words(signed!(r"[\r\n]*|\s*[\r\n]+")),
]);
static SPARK2_5: Pre = cut(&[UP_TO_3_DIGITS, CJK_KANA, Words(signed!(r"|[\r\n]")), DIGIT]);
static AFMOE: Pre = cut(&[
    Digits(Unicode),
    Pattern(
        "[一-鿿㐀-䶿\u{F900}-\u{FAFF}぀-ゟ゠-ヿ･-ﾟ⼀-⿟\u{0E40}-\u{0E7F}\u{0E80}-\u{0EFF}\u{1780}-\u{17FF}\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}가-\u{D7AF}ᄀ-ᇿ]+",
    ),
    Words(signed!(r"[\r\n]*|\s*[\r\n]+")),
]);
static YOUTU: Pre = Pre {
    ignore_merges: true,
    ..cut(&[
        Pattern("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"),
        Words(cased!(
            r"[\p{L}\p{M}]",
            r"[\p{L}\p{M}]",
            concat!("(?:", contraction!(), ")?"),
            r"\p{N}"
        )),
    ])
};
static TINY_AYA: Pre = cut(&[
    Digits(AsciiNumbers),
    Words(cased!(
        r"[\p{L}\p{M}]",
        r"[\p{L}\p{M}]",
        concat!("(?:", contraction!(), ")?"),
        r"\p{N}{1,3}"
    )),
]);
static TEKKEN: Pre = Pre {
    ignore_merges: true,
    add_bos: true,
    ..cut(&[Words(cased!(
        r"[\p{L}&&[^a-z]]",
        r"[\p{L}&&[^A-Z]]",
        "",
        r"\p{N}"
    ))])
};
static GPT4O: Pre = cut(&[Words(cased!(
    r"[\p{L}&&[^a-z]]",
    r"[\p{L}&&[^A-Z]]",
    concat!("(?:", contraction!(), ")?"),
    r"\p{N}{1,3}"
))]);
static GRANITE_EMB_MULTI: Pre = Pre {
    ignore_merges: true,
    ..cut(&[Words(cased!(
        r"[\p{L}\p{M}&&[^a-z]]",
        r"[\p{L}\p{M}&&[^A-Z]]",
        concat!("(?:", contraction!(), ")?"),
        r"\p{N}{1,3}"
    ))])
};
static KIMI_K2: Pre = Pre {
    without_merges: true,
    ..cut(&[Words(concat!(
        "[",
        han!(),
        r"]+|[^\r\n\p{L}\p{N}]?[\p{L}&&[^",
        han!(),
        "]]+(?:",
        contraction!(),
        ")?",
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    ))])
};
static SUPERBPE: Pre = cut(&[Pattern(r"\p{N}+"), Digits(Ascii)]);
static BLOOM: Pre = cut(&[BLOOM_WORDS]);
static VIKING: Pre = cut(&[BLOOM_WORDS, DIGIT]);
static CHAMELEON: Pre = Pre {
    add_bos: true,
    ..cut(&[
        Pattern("<sentinel:[0-9]+>"),
        Pattern("IMGIMG[A-I]{1,4}Z"),
        Pattern("[\t\n]|    |  "),
        DIGIT,
        Pattern(r"[\p{P}!-/:-@\[-`{-~]"),
        GPT2_WORDS,
    ])
};
static GEMMA4: Pre = Pre {
    add_bos: true,
    raw_utf8: true,
    escape_spaces: true,
    ..cut(&[LINES])
};
static SARVAM_MOE: Pre = Pre {
    raw_utf8: true,
    escape_spaces: true,
    ..cut(&[LINES])
};
static WHITESPACE: Pre = Pre {
    raw_utf8: true,
    ..cut(&[Pattern(r"\S+")])
};

/// The pre-tokenizer of an unknown or missing name.
pub(super) fn default() -> &'static Pre {
    &DEFAULT
}

/// The pre-tokenizer of a name.
pub(super) fn by_name(name: &str) -> Option<&'static Pre> {
    Some(match name {
        "default" => &DEFAULT,
        "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral" | "midm-2.0"
        | "lfm2" | "jina-v5-nano" => &LLAMA3,
        "dbrx" | "smaug-bpe" | "glm4" | "glm5" | "chatglm-bpe" => &DBRX,
        "jais-2" => &JAIS2,
        "minicpm5" => &MINICPM5,
        "deepseek-llm" => &DEEPSEEK_LLM,
        "deepseek-coder" => &DEEPSEEK_CODER,
        "deepseek-v3" | "hunyuan-dense" | "joyai-llm" | "hy_v4" => &DEEPSEEK3,
        "spark2_5" => &SPARK2_5,
        "youtu" => &YOUTU,
        "falcon" => &FALCON,
        "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b"
        | "mellum2" => &STARCODER,
        "gpt-2" | "phi-2" | "jina-es" | "jina-de" | "gigachat" | "jina-v2-es" | "jina-v2-de"
        | "jina-v1-en" | "jina-v2-code" | "roberta-bpe" | "a.x-4.0" | "mellum" | "modern-bert"
        | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling" | "exaone4" => &GPT2,
        "qwen2" | "deepseek-r1-qwen" | "kormo" | "f2llmv2" | "megrez" | "stablelm2" | "hunyuan"
        | "solar-open" | "bailingmoe" | "bailingmoe2" | "llada-moe" | "grok-2" => &QWEN2,
        "qwen35" => &QWEN35,
        "seed-coder" => &SEED_CODER,
        "ufakzeka" => &UFAKZEKA,
        "exaone-moe" => &EXAONE_MOE,
        "laguna" => &LAGUNA,
        "afmoe" => &AFMOE,
        "poro-chat" | "bloom" | "gpt3-finnish" => &BLOOM,
        "viking" => &VIKING,
        "tekken" => &TEKKEN,
        "gpt-4o" | "llama4" | "kanana2" | "talkie" | "minimax-m2" => &GPT4O,
        "granite-embed-multi-97m" => &GRANITE_EMB_MULTI,
        "tiny_aya" | "cohere2moe" => &TINY_AYA,
        "kimi-k2" => &KIMI_K2,
        "superbpe" => &SUPERBPE,
        "chameleon" => &CHAMELEON,
        "gemma4" | "granite-embed-multi-311m" => &GEMMA4,
        "sarvam-moe" => &SARVAM_MOE,
        "whitespace" => &WHITESPACE,
        _ => return None,
    })
}
