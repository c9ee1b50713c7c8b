//! `--session FILE`: a chat that goes on another day. FILE holds the messages, what the
//! next tokens are chosen by, and which model it was, as JSON; FILE.state beside it what the
//! model keeps of them, so that they need not be evaluated again.

use super::careful::{self, read_regular};
use super::show::Think;
use crate::chat::Transcript;
use crate::cli::write_file;
use crate::gguf::Gguf;
use crate::sampling::SamplingParams;
use crate::{Error, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Marks the file as ours.
const FORMAT: &str = "llama-rs chat";
const VERSION: u32 = 1;
/// Bytes of each tensor that tell models of the same shape apart: a cache line of weights.
const SAMPLE_BYTES: usize = 64;
/// Digits of a model's digest in messages.
const SHOWN_DIGITS: usize = 8;
/// Former sessions kept beside the file.
const MOST_KEPT: usize = 99;

/// Which model a session is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// For people.
    pub name: String,
    /// SHA-256 of tensor names, types, shapes and the first bytes of each.
    pub digest: String,
}

impl Identity {
    /// Of an opened file.
    ///
    /// # Errors
    /// A name of the wrong type.
    pub fn of(gguf: &Gguf) -> Result<Identity> {
        let mut hash = Sha256::new();
        for tensor in &gguf.tensors {
            hash.update(format!(
                "{} {} {:?};",
                tensor.name, tensor.type_id, tensor.shape
            ));
            let data = gguf.data(tensor);
            hash.update(&data[..data.len().min(SAMPLE_BYTES)]);
        }
        let file = gguf.path.file_name().unwrap_or(gguf.path.as_os_str());
        let name = match gguf.meta.get_str("general.name")? {
            Some(name) => name.to_string(),
            None => file.to_string_lossy().into_owned(),
        };
        let digest = hash.finalize();
        let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Identity { name, digest })
    }

    /// The name, and enough of the digest to tell models of one name apart.
    fn describe(&self) -> String {
        let digest: String = self.digest.chars().take(SHOWN_DIGITS).collect();
        format!("{:?} ({digest})", self.name)
    }
}

/// What the JSON holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Saved {
    format: String,
    version: u32,
    model: Identity,
    /// Settings by their flags' names.
    #[serde(deserialize_with = "careful::without_duplicates")]
    sampling: BTreeMap<String, String>,
    /// Replies drawn so far; each draws from a seed of its own.
    pub n_replies: u64,
    /// Turns at the start that the model does not see any more.
    pub n_forgotten: usize,
    /// Tokens that FILE.state holds, unless it is older or newer; files of older programs do
    /// not tell.
    #[serde(default)]
    pub n_cached: Option<usize>,
    think: String,
    messages: Transcript,
}

impl Saved {
    /// What a chat with this model has come to.
    pub fn new(
        model: &Identity,
        transcript: &Transcript,
        sampling: &SamplingParams,
        think: Think,
    ) -> Saved {
        let setting = |name: &str| Some((name.to_string(), sampling.get(name)?));
        Saved {
            format: FORMAT.to_string(),
            version: VERSION,
            model: model.clone(),
            sampling: SamplingParams::NAMES
                .iter()
                .filter_map(|n| setting(n))
                .collect(),
            n_replies: 0,
            n_forgotten: 0,
            n_cached: None,
            think: format!("{think:?}").to_lowercase(),
            messages: transcript.clone(),
        }
    }

    /// The settings over those of `base`.
    ///
    /// # Errors
    /// One that there is not, or out of range.
    pub fn sampling(&self, mut base: SamplingParams) -> Result<SamplingParams> {
        for (name, value) in &self.sampling {
            base.set(name, value)?;
        }
        Ok(base)
    }

    /// The messages.
    ///
    /// # Errors
    /// They are none.
    pub fn transcript(&self) -> Result<Transcript> {
        // Not `to_json`, which leaves out what has no place in a chat.
        let messages = serde_json::to_value(&self.messages);
        Transcript::from_json(&messages.map_err(|e| Error::input(e.to_string()))?)
    }

    /// What becomes of thinking.
    ///
    /// # Errors
    /// There is no such way.
    pub fn think(&self) -> Result<Think> {
        let unknown = |_| Error::input(format!("think is {:?}", self.think));
        Think::from_str(&self.think, true).map_err(unknown)
    }
}

/// The file of a session.
pub struct SessionFile {
    path: PathBuf,
    model: Identity,
    /// What it held when it was last read or written.
    known: Option<Vec<u8>>,
}

impl SessionFile {
    /// Reads the file, where there is one already.
    ///
    /// # Errors
    /// It cannot be read, is no session, or one of another model.
    pub fn open(path: &Path, model: Identity) -> Result<(SessionFile, Option<Saved>)> {
        let known = read(path)?;
        let saved = match &known {
            Some(bytes) => Some(parse(path, bytes, &model)?),
            None => {
                // Better known now than after the first reply.
                write_file::need_folder(path)?;
                None
            }
        };
        let path = path.to_path_buf();
        Ok((SessionFile { path, model, known }, saved))
    }

    /// Which model it is of.
    pub fn model(&self) -> &Identity {
        &self.model
    }

    /// The file beside it with what the model keeps.
    pub fn state_path(&self) -> PathBuf {
        self.beside(".state")
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(ending);
        PathBuf::from(name)
    }

    /// Whether `path` is the file or the one beside it, also before they are there.
    pub fn owns(&self, path: &Path) -> bool {
        let state = self.state_path();
        let same = |own: &Path| match (own.canonicalize(), path.canonicalize()) {
            (Ok(own), Ok(path)) => own == path,
            _ => {
                write_file::folder(own).canonicalize().ok()
                    == write_file::folder(path).canonicalize().ok()
                    && own.file_name() == path.file_name()
            }
        };
        same(&self.path) || same(&state)
    }

    /// Copies what the file holds to FILE.bak, or, where there is one already, to FILE.bak2
    /// and so on; gives the name.
    ///
    /// # Errors
    /// It cannot be written, or there are too many.
    pub fn keep(&self) -> Result<PathBuf> {
        let Some(bytes) = &self.known else {
            return Ok(self.path.clone());
        };
        let numbers = (2..=MOST_KEPT).map(|n| format!(".bak{n}"));
        let names = std::iter::once(".bak".to_string()).chain(numbers);
        let mut free = names.map(|n| self.beside(&n)).filter(|p| {
            p.symlink_metadata().is_err() || read_regular(p).is_ok_and(|old| old == *bytes)
        });
        let path = free.next().ok_or_else(|| {
            let cause = format!("{MOST_KEPT} former sessions are kept beside it");
            Error::file(&self.path, cause, "remove some of the .bak files")
        })?;
        write_file::replace(&path, &mut |out| out.write_all(bytes))?;
        Ok(path)
    }

    /// Replaces the file; false when it says the same already.
    ///
    /// # Errors
    /// It cannot be written, or somebody else has changed it, whose chat must not be lost.
    pub fn write(&mut self, saved: &Saved) -> Result<bool> {
        if read(&self.path)? != self.known {
            return Err(Error::file(
                &self.path,
                "was changed by another program since it was read",
                "keep this chat with /save FILE, or give another --session",
            ));
        }
        let mut bytes = serde_json::to_vec_pretty(saved)
            .map_err(|e| Error::file(&self.path, e.to_string(), "report this"))?;
        bytes.push(b'\n');
        let changed = self.known.as_ref() != Some(&bytes);
        if changed {
            write_file::replace(&self.path, &mut |out| out.write_all(&bytes))?;
            self.known = Some(bytes);
        }
        Ok(changed)
    }
}

/// A file's bytes; `None` when there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match read_regular(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::file(path, e.to_string(), "give another --session")),
    }
}

fn parse(path: &Path, bytes: &[u8], model: &Identity) -> Result<Saved> {
    let bad = |cause: String| Error::file(path, cause, "give another --session");
    let json: Json = serde_json::from_slice(bytes)
        .map_err(|e| bad(format!("is no session of llama-rs: {e}")))?;
    if json["format"] != FORMAT {
        return Err(bad("is no session of llama-rs".to_string()));
    }
    if json["version"] != VERSION {
        return Err(bad(format!(
            "is of version {}, not {VERSION}",
            json["version"]
        )));
    }
    let damaged = |e: String| bad(format!("is damaged: {e}"));
    // From the text: a JSON value holds no key twice.
    let saved: Saved = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
    let transcript = saved.transcript().map_err(|e| damaged(e.to_string()))?;
    let sampling = saved.sampling(SamplingParams::greedy());
    sampling.map_err(|e| damaged(e.to_string()))?;
    saved.think().map_err(|e| damaged(e.to_string()))?;
    let (n_forgotten, n_turns) = (saved.n_forgotten, transcript.n_turns());
    if n_forgotten > n_turns {
        return Err(damaged(format!(
            "{n_forgotten} of {n_turns} turns are forgotten"
        )));
    }
    if saved.model.digest != model.digest {
        return Err(Error::file(
            path,
            format!(
                "is a session of {}, not of {}",
                saved.model.describe(),
                model.describe()
            ),
            "give that model, or another --session",
        ));
    }
    Ok(saved)
}

#[cfg(test)]
mod tests {
    use super::{Identity, Saved, SessionFile};
    use crate::chat::Transcript;
    use crate::cli::chat::show::Think;
    use crate::sampling::SamplingParams;

    fn model(name: &str) -> Identity {
        Identity {
            name: name.to_string(),
            digest: format!("{name}: digest"),
        }
    }

    fn saved() -> Saved {
        let mut transcript = Transcript::new();
        transcript.push_user("a");
        transcript.push_assistant("b");
        let sampling = SamplingParams {
            temp: 0.1,
            seed: Some(u64::MAX),
            ..SamplingParams::chat_defaults()
        };
        Saved::new(&model("one"), &transcript, &sampling, Think::Hide)
    }

    #[test]
    fn what_is_written_is_read_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s.json");
        let (mut file, none) = SessionFile::open(&path, model("one")).expect("a new one");
        assert!(none.is_none() && !path.exists());
        assert!(file.write(&saved()).expect("written"));
        assert!(!file.write(&saved()).expect("the same"));
        let (_, read) = SessionFile::open(&path, model("one")).expect("ours");
        let read = read.expect("it is there");
        assert_eq!(read.transcript().expect("messages").last_reply(), Some("b"));
        let sampling = read.sampling(SamplingParams::greedy()).expect("settings");
        // Not one bit of a setting is lost.
        assert_eq!((sampling.temp, sampling.seed), (0.1, Some(u64::MAX)));
    }

    #[test]
    fn files_that_are_not_ours_are_refused_and_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("s.json");
        let (mut file, _) = SessionFile::open(&path, model("one")).expect("a new one");
        file.write(&saved()).expect("written");
        let good = std::fs::read_to_string(&path).expect("text");
        let of_other = SessionFile::open(&path, model("two"))
            .err()
            .expect("refused");
        let text = of_other.to_string();
        assert!(
            text.contains("\"one\" (one: dig)") && text.contains("\"two\" (two: dig)"),
            "{text}"
        );
        for bad in [
            "",
            "{}",
            "[1]",
            "my diary",
            &good[..good.len() / 2],
            &good.replace("\"version\": 1", "\"version\": 2"),
            &good.replace("\"role\": \"user\"", "\"role\": \"dog\""),
            &good.replace("\"temp\": \"0.1\"", "\"temp\": \"hot\""),
            &good.replace("\"think\": \"hide\"", "\"think\": \"zz\""),
            &good.replace("\"n_forgotten\": 0", "\"n_forgotten\": 2"),
            &good.replace("\"n_replies\": 0", "\"n_replies\": 0, \"n_replies\": 0"),
            &good.replace("\"temp\": \"0.1\"", "\"temp\": \"0.1\", \"temp\": \"0.1\""),
            &good.replace(
                "\"content\": \"a\"",
                "\"content\": \"a\", \"content\": \"b\"",
            ),
        ] {
            std::fs::write(&path, bad).expect("written");
            assert!(SessionFile::open(&path, model("one")).is_err(), "{bad}");
            // Somebody else's work is not written over.
            assert!(file.write(&saved()).is_err(), "{bad}");
            assert_eq!(std::fs::read_to_string(&path).expect("text"), bad);
        }
    }
}
