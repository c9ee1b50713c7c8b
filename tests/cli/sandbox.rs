//! Runs the built binary in a folder of its own.

use super::tiny;
use assert_cmd::Command;
use serde_json::Value as Json;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// What a run left behind.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// A folder with the small files, in which the program runs.
pub struct Sandbox(TempDir);

impl Sandbox {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        tiny::model().write(path, "model.gguf");
        tiny::base_model().write(path, "base.gguf");
        tiny::vocabulary().write(path, "vocab.gguf");
        tiny::ids_only("llama").write(path, "ids.gguf");
        Sandbox(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_llama-rs"));
        command
            .current_dir(self.path())
            .env_remove("LLAMA_RS_MODEL")
            .timeout(Duration::from_secs(60));
        command
    }

    pub fn run_with(&self, line: &str, stdin: &str) -> Ran {
        let words = line.split(' ');
        let output = self
            .command()
            .args(words)
            .write_stdin(stdin)
            .output()
            .expect("the program starts");
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("UTF-8 on stdout"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8 on stderr"),
        }
    }

    pub fn run(&self, line: &str) -> Ran {
        self.run_with(line, "")
    }

    /// Stdout of a run that must succeed.
    pub fn good(&self, line: &str) -> String {
        let ran = self.run(line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
        ran.stdout
    }

    /// A run that must fail: nothing on stdout, one line on stderr (besides the one
    /// that says where the model runs) that names all `parts`, in under a second.
    pub fn bad(&self, line: &str, code: i32, parts: &[&str]) {
        let started = Instant::now();
        let ran = self.run(line);
        let took = started.elapsed();
        let places = ["running on the CPU: ", "cuda0 ("];
        let is_place = |l: &&str| places.iter().any(|p| l.starts_with(p));
        let stderr: Vec<&str> = ran.stderr.lines().filter(|l| !is_place(l)).collect();
        let stderr = stderr.join("\n");
        assert_eq!(ran.code, Some(code), "{line}: {stderr}");
        assert_eq!(ran.stdout, "", "{line}");
        assert_eq!(stderr.lines().count(), 1, "{line}: {stderr}");
        assert!(stderr.starts_with("error: "), "{line}: {stderr}");
        for part in parts {
            assert!(stderr.contains(part), "{line}: no {part:?} in {stderr}");
        }
        assert!(took < Duration::from_secs(1), "{line} took {took:?}");
    }
}

pub fn json(text: &str) -> Json {
    serde_json::from_str(text).expect("JSON on stdout")
}
