//! `--session FILE`: a chat that goes on another day. FILE holds the messages, what the
//! next tokens are chosen by, and which model it was, as JSON; FILE.state beside it what the
//! model keeps of them, so that they need not be evaluated again.

use super::careful;
use super::identity::Identity;
use super::lock::Lock;
use super::saved::{FORMAT, Saved, VERSION};
use crate::cli::write_file;
use crate::sampling::SamplingParams;
use crate::{Error, Result};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

/// Former sessions kept beside the file.
const MOST_KEPT: usize = 99;

/// The file of a session.
pub struct SessionFile {
    path: PathBuf,
    model: Identity,
    /// What it held when it was last read or written.
    known: Option<Vec<u8>>,
    _lock: Lock,
}

impl SessionFile {
    /// Reads the file, where there is one already, and keeps other chats from it.
    ///
    /// # Errors
    /// It cannot be read, is no session, one of another model, or in use.
    pub fn open(path: &Path, model: Identity) -> Result<(SessionFile, Option<Saved>)> {
        // Before: what is no session is not locked. After: now nobody changes it.
        look(path, &model)?;
        let lock = Lock::take(path)?;
        let (known, saved) = look(path, &model)?;
        let file = SessionFile {
            path: path.to_path_buf(),
            model,
            known,
            _lock: lock,
        };
        Ok((file, saved))
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
            p.symlink_metadata().is_err()
                || careful::read_messages(p).is_ok_and(|old| old == *bytes)
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

/// The bytes of the file and what they mean, where there is one.
fn look(path: &Path, model: &Identity) -> Result<(Option<Vec<u8>>, Option<Saved>)> {
    let Some(bytes) = read(path)? else {
        // Better known now than after the first reply.
        write_file::need_folder(path)?;
        return Ok((None, None));
    };
    let saved = parse(path, &bytes, model)?;
    Ok((Some(bytes), Some(saved)))
}

/// A file's bytes; `None` when there is none.
fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match careful::read_messages(path) {
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
        drop(file);
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
            let refused = SessionFile::open(&path, model("one"))
                .err()
                .expect("refused");
            assert!(!refused.to_string().contains("in use"), "{bad}: {refused}");
            // Somebody else's work is not written over.
            assert!(file.write(&saved()).is_err(), "{bad}");
            assert_eq!(std::fs::read_to_string(&path).expect("text"), bad);
        }
    }
}
