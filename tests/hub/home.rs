//! Runs the built binary with a cache of its own.

use super::hub_server::HubServer;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Variables that would lead elsewhere.
const CLEARED: [&str; 16] = [
    "HF_TOKEN",
    "HF_TOKEN_PATH",
    "HF_HUB_CACHE",
    "HF_HUB_OFFLINE",
    "XDG_CACHE_HOME",
    "LLAMA_RS_MODEL",
    "SSL_CERT_FILE",
    "https_proxy",
    "HTTPS_PROXY",
    "no_proxy",
    "NO_PROXY",
    "http_proxy",
    "HTTP_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "NO_COLOR",
];

/// What a run left behind.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("UTF-8 on stdout"),
            stderr: String::from_utf8(output.stderr).expect("UTF-8 on stderr"),
        }
    }
}

/// A folder that is `HF_HOME`.
pub struct Home(TempDir);

impl Home {
    pub fn new() -> Home {
        Home(tempfile::tempdir().expect("a folder"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// The folder of the served repository.
    pub fn repo(&self) -> PathBuf {
        self.path().join("hub/models--tester--tiny-GGUF")
    }

    /// Names in `blobs`.
    pub fn blobs(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.repo().join("blobs"));
        let entries = entries.into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    pub fn command(&self, server: &HubServer, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_llama-rs"));
        for name in CLEARED {
            command.env_remove(name);
        }
        command
            .args(line.split(' '))
            .current_dir(self.path())
            .env("HF_HOME", self.path())
            .env("HF_ENDPOINT", server.address())
            .env("LLAMA_RS_HUB_PAUSE_MS", "5")
            .env("LLAMA_RS_HUB_SILENCE_MS", "20000")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    pub fn start(&self, server: &HubServer, line: &str) -> Child {
        let mut command = self.command(server, line);
        command.spawn().expect("the program starts")
    }

    pub fn run(&self, server: &HubServer, line: &str) -> Ran {
        let child = self.start(server, line);
        child.wait_with_output().expect("it ends").into()
    }

    /// Stdout of a run that must succeed.
    pub fn good(&self, server: &HubServer, line: &str) -> String {
        let ran = self.run(server, line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
        ran.stdout
    }

    /// A run that must fail with 1: nothing on stdout, and a last line on stderr that names
    /// all `parts`; returns stderr.
    pub fn bad(&self, server: &HubServer, line: &str, parts: &[&str]) -> String {
        let ran = self.run(server, line);
        let last = ran.stderr.lines().last().unwrap_or_default();
        assert_eq!(ran.code, Some(1), "{line}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{line}");
        assert!(last.starts_with("error: "), "{line}: {}", ran.stderr);
        for part in parts {
            assert!(last.contains(part), "{line}: no {part:?} in {last}");
        }
        ran.stderr
    }

    /// Waits until a partial file has so many bytes.
    pub fn wait_for_partial(&self, bytes: u64) {
        let started = Instant::now();
        loop {
            let blobs = self.blobs();
            let partial = blobs.iter().find(|name| name.ends_with(".partial"));
            let path = partial.map(|name| self.repo().join("blobs").join(name));
            let size = path.and_then(|path| std::fs::metadata(path).ok());
            if size.is_some_and(|meta| meta.len() >= bytes) {
                return;
            }
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "no {bytes} bytes came"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
