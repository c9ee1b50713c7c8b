//! The step before clap: single-dash long flags as llama.cpp's users type them.
//!
//! clap reads `-ngl 33` as `-n gl`, so such words become long flags first.
//! Words after `--` and words that are the value of the flag before them stay
//! as they are.

use super::args::Cli;
use clap::CommandFactory;
use std::collections::HashSet;
use std::ffi::OsString;

/// Single-dash spelling and the long flag it stands for. Flags that no command
/// takes are listed too, so that the error names them instead of reading
/// `-fa` as `-f a`.
const SHORT_SPELLINGS: &[(&str, &str)] = &[
    ("-ngl", "--n-gpu-layers"),
    ("-ub", "--ubatch-size"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-sys", "--system-prompt"),
    ("-tb", "--threads-batch"),
    ("-hf", "--hf-repo"),
    ("-hff", "--hf-file"),
    ("-mu", "--model-url"),
    ("-md", "--model-draft"),
    ("-ot", "--override-tensor"),
    ("-fa", "--flash-attn"),
    ("-npp", "--n-prompt-tokens"),
    ("-ntg", "--n-gen-tokens"),
    ("-npl", "--n-parallel"),
    ("-np", "--parallel"),
    ("-ts", "--tensor-split"),
    ("-sm", "--split-mode"),
    ("-mg", "--main-gpu"),
    ("-dev", "--device"),
    ("-nkvo", "--no-kv-offload"),
    ("-cmoe", "--cpu-moe"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-cnv", "--conversation"),
    ("-no-cnv", "--no-conversation"),
    ("-st", "--single-turn"),
    ("-mli", "--multiline-input"),
    ("-bf", "--binary-file"),
    ("-sp", "--special"),
    ("-lv", "--verbosity"),
    ("-jf", "--json-schema-file"),
];

/// Turns `-ngl 33`, `-ngl=33` into `--n-gpu-layers 33`, `--n-gpu-layers=33`.
pub fn long_flags(words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let value_flags = value_flags();
    let mut out: Vec<OsString> = Vec::new();
    let mut verbatim = false;
    let mut is_value = false;
    for word in words {
        let text = word.to_str().map(str::to_owned).unwrap_or_default();
        if verbatim || is_value || text.is_empty() {
            is_value = false;
            out.push(word);
            continue;
        }
        verbatim = text == "--";
        let word = long_flag(&text).map_or(word, OsString::from);
        is_value = word.to_str().is_some_and(|w| value_flags.contains(w));
        out.push(word);
    }
    out
}

fn long_flag(text: &str) -> Option<String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let (_, long) = SHORT_SPELLINGS.iter().find(|(short, _)| *short == name)?;
    Some(match value {
        Some(value) => format!("{long}={value}"),
        None => (*long).to_string(),
    })
}

/// Every spelling of a flag whose value may be the next word.
fn value_flags() -> HashSet<String> {
    let command = Cli::command();
    let mut flags = HashSet::new();
    let commands = std::iter::once(&command).chain(command.get_subcommands());
    for arg in commands.flat_map(|c| c.get_arguments()) {
        if !arg.get_action().takes_values() {
            continue;
        }
        let longs = arg.get_long_and_visible_aliases().unwrap_or_default();
        flags.extend(longs.into_iter().map(|name| format!("--{name}")));
        let shorts = arg.get_short_and_visible_aliases().unwrap_or_default();
        flags.extend(shorts.into_iter().map(|name| format!("-{name}")));
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::long_flags;
    use std::ffi::OsString;

    fn step(line: &str) -> String {
        let words = line.split(' ').map(OsString::from);
        let out = long_flags(words);
        let out: Vec<_> = out.iter().map(|w| w.to_string_lossy()).collect();
        out.join(" ")
    }

    #[test]
    fn single_dash_long_flags_become_long() {
        assert_eq!(
            step("llama-rs simple -ngl 33 -ub=7 -ctk f16"),
            "llama-rs simple --n-gpu-layers 33 --ubatch-size=7 --cache-type-k f16"
        );
        assert_eq!(step("llama-rs simple -fa"), "llama-rs simple --flash-attn");
    }

    #[test]
    fn short_flags_and_negative_numbers_stay() {
        for line in [
            "llama-rs simple -n -1 -c 5 -m model.gguf Hello",
            "llama-rs simple -n5 -v",
        ] {
            assert_eq!(step(line), line);
        }
    }

    #[test]
    fn words_after_the_double_dash_and_values_stay() {
        for line in [
            "llama-rs simple -n 3 -- -ngl -ub",
            "llama-rs simple -p -ngl",
            "llama-rs simple --stop -fa word",
            "llama-rs simple --log-file -ub word",
        ] {
            assert_eq!(step(line), line);
        }
        assert_eq!(
            step("llama-rs simple -p=x -ngl 1"),
            "llama-rs simple -p=x --n-gpu-layers 1"
        );
    }
}
