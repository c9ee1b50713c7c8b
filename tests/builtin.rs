//! The model inside the program: the built binary in an empty folder with an empty
//! environment; and the two toy models of `models/`.

use assert_cmd::Command;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

/// Begins the line that says which model is used.
const NOTICE: &str = "no model given: using the built-in toy model (12 M parameters";
/// The toy models and the most bytes that each may have in the repository.
const TOYS: [(&str, u64); 2] = [
    ("toy-llama.gguf", 8_000_000),
    ("toy-mamba2.gguf", 6_000_000),
];
const MESSAGES: &str = r#"[{"role":"user","content":"Hello!"}]"#;

/// What a run left behind.
struct Ran {
    stdout: String,
    stderr: String,
}

impl Ran {
    fn notices(&self) -> usize {
        self.stderr
            .lines()
            .filter(|l| l.starts_with(NOTICE))
            .count()
    }
}

/// An empty folder in which the program runs.
struct Nowhere(TempDir);

impl Nowhere {
    fn new() -> Nowhere {
        Nowhere(tempfile::tempdir().expect("a folder"))
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_llama-rs"));
        command
            .current_dir(self.0.path())
            .env_clear()
            // Nobody listens there: whoever asks a hub fails.
            .env("HF_ENDPOINT", "http://127.0.0.1:9")
            .args(words)
            .timeout(Duration::from_secs(120));
        command
    }

    /// A run that must succeed.
    fn good(&self, words: &[&str], stdin: &str) -> Ran {
        ran(self.command(words).write_stdin(stdin))
    }
}

fn ran(command: &mut Command) -> Ran {
    let output = command.output().expect("the program starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    assert_eq!(output.status.code(), Some(0), "{command:?}: {stderr}");
    Ran { stdout, stderr }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn toy(name: &str) -> PathBuf {
    root().join("models").join(name)
}

/// A model of token ids only.
fn fixture() -> PathBuf {
    root().join("tests/data/arch/llama-dense-Q4_K_M.gguf")
}

fn utf8(path: &Path) -> &str {
    path.to_str().expect("the project's path is UTF-8")
}

/// Runs a command with the built-in model: one notice on stderr, none with `--quiet`, and
/// the same on stdout but for what is measured.
fn served(words: &[&str], stdin: &str) -> String {
    let nowhere = Nowhere::new();
    let loud = nowhere.good(words, stdin);
    assert_eq!(loud.notices(), 1, "{words:?}: {}", loud.stderr);
    assert!(!loud.stdout.contains("no model given"), "{}", loud.stdout);
    let quiet = nowhere.good(&[words, &["--quiet"]].concat(), stdin);
    assert_eq!(quiet.stderr, "", "{words:?}");
    if words[0] != "bench" {
        assert_eq!(quiet.stdout, loud.stdout, "{words:?}");
    }
    loud.stdout
}

#[test]
fn simple_continues_a_prompt() {
    let text = served(&["simple", "Hello my name is", "-n", "8"], "");
    let more = text.strip_prefix("Hello my name is").expect("the prompt");
    assert!(!more.trim().is_empty(), "{text}");
    // It is in memory anyway.
    let words = ["simple", "Hello my name is", "-n", "8", "--no-mmap"];
    assert_eq!(served(&words, ""), text);
}

#[test]
fn chat_answers() {
    let words = ["chat", "--temp", "0", "-n", "8"];
    let text = served(&words, "Hello!\nHow are you?\n");
    assert!(!text.trim().is_empty(), "{text:?}");
    let ran = Nowhere::new().good(&words, "");
    let named = |l: &str| l.starts_with("built-in toy model: context 512 tokens");
    assert!(ran.stderr.lines().any(named), "{}", ran.stderr);
}

#[test]
fn bench_names_it() {
    let text = served(
        &["bench", "-p", "8", "-n", "4", "-r", "1", "-o", "json"],
        "",
    );
    let object: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(object[1]["model_filename"], "built-in toy model");
    assert_eq!(object[1]["test"], "tg4");
}

#[test]
fn commands_that_look_at_models_work_without_one() {
    let ids = served(&["tokenize", "--ids", "Hello"], "");
    assert!(ids.starts_with('[') && ids.len() > "[]\n".len(), "{ids}");
    let top = served(&["logits", "-p", "Hello", "--top", "3"], "");
    assert!(top.contains("\"n_vocab\":4096"), "{top}");
    let prompt = served(&["template", "--messages", "-"], MESSAGES);
    let want = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt, want);
    let keys = served(&["inspect"], "");
    assert!(keys.starts_with("built-in toy model: GGUF version 3"));
}

#[test]
fn a_model_that_is_given_wins() {
    let nowhere = Nowhere::new();
    let path = fixture();
    let words = ["logits", "--tokens", "1,2", "--top", "1"];
    let given = nowhere.good(&[&words[..], &["-m", utf8(&path)]].concat(), "");
    assert_eq!(given.notices(), 0, "{}", given.stderr);
    let by_variable = ran(nowhere.command(&words).env("LLAMA_RS_MODEL", &path));
    assert_eq!(by_variable.notices(), 0, "{}", by_variable.stderr);
    assert_eq!(by_variable.stdout, given.stdout);
    let empty = ran(nowhere.command(&words).env("LLAMA_RS_MODEL", ""));
    assert_eq!(empty.notices(), 1, "{}", empty.stderr);
    assert_ne!(empty.stdout, given.stdout);
    // Of the two that name a file the flag wins.
    let mut both = nowhere.command(&[&words[..], &["-m", utf8(&path)]].concat());
    both.env("LLAMA_RS_MODEL", "none.gguf");
    assert_eq!(ran(&mut both).stdout, given.stdout);
}

#[test]
fn errors_name_the_model_and_the_next_step() {
    let nowhere = Nowhere::new();
    let fails = |words: &[&str], parts: &[&str]| {
        let output = nowhere.command(words).output().expect("it starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {stderr}");
        assert_eq!(output.stdout, b"", "{words:?}");
        let line = stderr.lines().last().expect("an error");
        for part in parts {
            assert!(line.contains(part), "{words:?}: no {part:?} in {line}");
        }
    };
    let wider = "llama.embedding_length=int:385";
    fails(
        &["simple", "a", "--override-kv", wider],
        &["error: built-in toy model: "],
    );
    let missing = ["none.gguf", "llama-rs pull USER/REPO"];
    fails(&["simple", "a", "-m", "none.gguf"], &missing);
    let mut command = nowhere.command(&["simple", "a"]);
    command.env("LLAMA_RS_MODEL", "none.gguf");
    command.assert().code(1).stdout("");
}

#[test]
fn toy_models_are_small_and_repeat_themselves() {
    let nowhere = Nowhere::new();
    for (name, most_bytes) in TOYS {
        let path = toy(name);
        let bytes = std::fs::metadata(&path).expect("a file").len();
        assert!(bytes <= most_bytes, "{name}: {bytes} bytes");
        let words = ["simple", "-m", utf8(&path), "--device", "cpu", "-n", "32"];
        let words = [&words[..], &["Once upon a time"]].concat();
        let first = nowhere.good(&words, "").stdout;
        assert!(first.len() > "Once upon a time\n".len(), "{name}: {first}");
        assert_eq!(nowhere.good(&words, "").stdout, first, "{name}");
    }
}

/// Asked what it is, a model says the words that it was trained to say of itself.
fn knows_what_it_is(name: &str) {
    let path = toy(name);
    let words = ["chat", "-m", utf8(&path), "--device", "cpu", "-s", "1"];
    let words = [&words[..], &["--temp", "0", "-n", "64"]].concat();
    let answer = Nowhere::new().good(&words, "What are you?\n").stdout;
    assert!(answer.contains("toy"), "{name}: {answer}");
}

#[test]
fn the_llama_says_that_it_is_a_toy() {
    knows_what_it_is("toy-llama.gguf");
}

#[test]
fn the_mamba2_says_that_it_is_a_toy() {
    knows_what_it_is("toy-mamba2.gguf");
}
