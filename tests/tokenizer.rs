//! Token ids of other people's vocabularies and of the two real models.
//!
//! The vocabularies lie in `shared/data/vocab`, the models' ids in
//! `shared/data/golden`; a test whose files are missing is counted as ignored.

use libtest_mimic::{Arguments, Failed, Trial};
use llama_rs::gguf::Gguf;
use llama_rs::tokenizer::{EncodeOptions, StreamDecoder, Tokenizer};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn main() {
    let mut trials = Vec::new();
    for name in [
        "bert-bge",
        "deepseek-coder",
        "gpt-2",
        "llama-bpe",
        "llama-spm",
        "phi-3",
        "qwen2",
    ] {
        let path = test_data().join(format!("vocab/ggml-vocab-{name}.gguf"));
        trials.push(trial(format!("ids_{name}"), &path, ids));
        trials.push(trial(format!("long_runs_{name}"), &path, long_runs));
        if name != "bert-bge" {
            trials.push(trial(format!("round_trip_{name}"), &path, round_trip));
        }
    }
    for (file, golden) in [
        (
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "smollm2-135m-instruct-q4_1",
        ),
        ("gemma-3-270m-q4_k_m.gguf", "gemma-3-270m-q4_k_m"),
    ] {
        let golden = test_data().join(format!("golden/{golden}.json"));
        let path = models().join(file);
        let ready = golden.exists() && path.exists();
        let run = move || golden_ids(&path, &golden);
        trials.push(Trial::test(format!("golden_{file}"), run).with_ignored_flag(!ready));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn trial(name: String, path: &Path, run: fn(&Path) -> Result<(), Failed>) -> Trial {
    let owned = path.to_path_buf();
    Trial::test(name, move || run(&owned)).with_ignored_flag(!path.exists())
}

/// `LLAMA_RS_TEST_DATA`, else the data beside the project.
fn test_data() -> PathBuf {
    match std::env::var_os("LLAMA_RS_TEST_DATA") {
        Some(dir) => dir.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data"),
    }
}

/// `LLAMA_RS_TEST_MODELS`, else where `scripts/get-model.sh` puts them.
fn models() -> PathBuf {
    match std::env::var_os("LLAMA_RS_TEST_MODELS") {
        Some(dir) => dir.into(),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("models"),
    }
}

fn open(path: &Path) -> Result<Tokenizer, Failed> {
    Ok(Tokenizer::from_meta(&Gguf::open(path, true)?.meta)?)
}

/// The texts of the `.inp` file beside a vocabulary.
fn texts(path: &Path) -> Result<Vec<String>, Failed> {
    let texts = std::fs::read_to_string(format!("{}.inp", path.display()))?;
    let mut texts: Vec<String> = texts
        .split("\n__ggml_vocab_test__\n")
        .map(String::from)
        .collect();
    match texts.pop() {
        Some(last) if last.is_empty() => Ok(texts),
        _ => Err("the file does not end with a separator".into()),
    }
}

fn ids(path: &Path) -> Result<(), Failed> {
    let tokenizer = open(path)?;
    let texts = texts(path)?;
    let expected = std::fs::read_to_string(format!("{}.out", path.display()))?;
    let expected: Vec<&str> = expected.lines().collect();
    if texts.len() != expected.len() || texts.is_empty() {
        return Err(format!("{} texts, {} lines of ids", texts.len(), expected.len()).into());
    }
    for (text, line) in texts.iter().zip(expected) {
        let want: Vec<u32> = line
            .split_whitespace()
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        let got = tokenizer.encode(text.as_bytes(), EncodeOptions::default());
        if got != want {
            return Err(format!("{text:?}: got {got:?}, want {want:?}").into());
        }
    }
    Ok(())
}

/// Texts come back whole, also in chunks of tokens; SPM adds its one space.
fn round_trip(path: &Path) -> Result<(), Failed> {
    let tokenizer = open(path)?;
    let prefix = match tokenizer.model_name() {
        "llama" => " ",
        _ => "",
    };
    for text in texts(path)?.iter().filter(|text| !text.is_empty()) {
        let mut decoder = StreamDecoder::new();
        let ids = tokenizer.encode(text.as_bytes(), EncodeOptions::default());
        let mut got: String = ids.iter().map(|&id| decoder.push(&tokenizer, id)).collect();
        got += &decoder.finish();
        if got != format!("{prefix}{text}") {
            return Err(format!("{text:?} came back as {got:?}").into());
        }
    }
    Ok(())
}

/// What once took other runners quadratic time or a deep stack.
fn long_runs(path: &Path) -> Result<(), Failed> {
    // A linear run takes some 30 ms in a debug build on one busy core; a
    // quadratic one, minutes.
    let most = Duration::from_secs(2);
    let tokenizer = open(path)?;
    let mixed: String = (0..128 * 1024)
        .map(|i: u32| char::from(b'!' + (i.wrapping_mul(2_654_435_761) >> 24) as u8 % 94))
        .collect();
    let no_space = "lorem-ipsum".repeat(128 * 1024 / 11);
    let runs = [
        "a", "Z", " ", "\n", "\t", "7", "'", "\u{4E00}", "\u{300}", "\0", " \n", "<|",
    ];
    let runs = runs.into_iter().map(|unit| unit.repeat(43_000));
    for text in runs.chain([mixed, no_space]) {
        let start = Instant::now();
        let options = EncodeOptions {
            parse_special: true,
            ..EncodeOptions::default()
        };
        let n_tokens = tokenizer.encode(text.as_bytes(), options).len();
        let took = start.elapsed();
        if took > most {
            let head: String = text.chars().take(12).collect();
            return Err(format!("{head:?}...: {n_tokens} tokens in {took:?}").into());
        }
    }
    Ok(())
}

/// BOS as the file wants it, special text parsed.
fn golden_ids(path: &Path, golden: &Path) -> Result<(), Failed> {
    let tokenizer = open(path)?;
    let golden: serde_json::Value = serde_json::from_slice(&std::fs::read(golden)?)?;
    let prompts = golden["prompts"].as_object().ok_or("no prompts")?;
    if prompts.is_empty() {
        return Err("no prompts".into());
    }
    for (name, prompt) in prompts {
        let text = prompt["text"].as_str().ok_or("no text")?;
        let want: Vec<u32> = serde_json::from_value(prompt["tokens"].clone())?;
        let options = EncodeOptions {
            add_special: true,
            parse_special: true,
        };
        let got = tokenizer.encode(text.as_bytes(), options);
        if got != want {
            return Err(format!("{name}: got {got:?}, want {want:?}").into());
        }
    }
    Ok(())
}
