//! Carries out what a person types besides messages.

use super::careful;
use super::commands::{self, Command};
use super::helpers;
use super::session_file::SessionFile;
use super::turn::Chat;
use crate::chat::Transcript;
use crate::cli::generate::Finish;
use crate::cli::sampling_flags::need_vocabulary;
use crate::cli::write_file;
use crate::sampling::{Chain, SamplingParams};
use crate::{Error, Result};
use serde_json::Value as Json;
use std::path::Path;

/// What a command leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Another message or command.
    Input,
    /// There was a reply, which ended so.
    Replied(Finish),
    Leave,
}

impl Chat<'_> {
    /// Carries out a command; what it tells goes to stderr.
    ///
    /// # Errors
    /// As the command's own; the chat is as it was.
    pub fn act(&mut self, command: Command) -> anyhow::Result<Next> {
        match command {
            Command::Help => commands::help().iter().for_each(|l| tracing::info!("{l}")),
            Command::Clear => self.clear()?,
            Command::System(text) => self.system(text),
            Command::Regenerate => return self.regenerate(),
            Command::Undo => self.undo()?,
            Command::Edit => return self.edit(),
            Command::Save(file) => self.save_messages(&file)?,
            Command::Load(file) => self.load(&file)?,
            Command::Set(None) => self.show_settings(),
            Command::Set(Some((name, value))) => self.set(&name, &value)?,
            Command::Think(think) => self.set_think(think),
            Command::Copy => helpers::copy(self.transcript.last_reply().ok_or_else(no_turn)?)?,
            Command::Stats => self.show_stats(),
            Command::Context => self.show_context()?,
            Command::Exit => return Ok(Next::Leave),
        }
        Ok(Next::Input)
    }

    /// Starts over with the same system prompt.
    fn clear(&mut self) -> Result<()> {
        self.keep_session()?;
        let mut fresh = Transcript::new();
        fresh.set_system(self.transcript.system().unwrap_or_default());
        self.transcript = fresh;
        self.n_forgotten = 0;
        Ok(())
    }

    /// Before other messages take the place of those in the session's file.
    fn keep_session(&mut self) -> Result<()> {
        self.save(false)?;
        if let Some(file) = &self.session_file
            && self.transcript.n_turns() > 0
        {
            let kept = file.keep()?;
            tracing::info!("the session as it was is kept in {}", kept.display());
        }
        Ok(())
    }

    fn system(&mut self, text: Option<String>) {
        match text {
            Some(text) => self.transcript.set_system(text),
            None => match self.transcript.system() {
                Some(text) => tracing::info!("system prompt: {text}"),
                None => tracing::info!("there is no system prompt"),
            },
        }
    }

    /// Another reply to the last message; without one, the old reply stays.
    fn regenerate(&mut self) -> anyhow::Result<Next> {
        if self.transcript.last_reply().is_none() {
            return Err(no_turn().into());
        }
        let old = self.transcript.pop_last();
        let result = self.respond();
        if self.transcript.last_reply().is_none()
            && let Some(old) = old
        {
            self.transcript.push_assistant(old.content);
        }
        result.map(Next::Replied)
    }

    fn undo(&mut self) -> Result<()> {
        let text = self.transcript.pop_turn().ok_or_else(no_turn)?;
        self.n_forgotten = self.n_forgotten.min(self.transcript.n_turns());
        tracing::info!("taken back: {text}");
        Ok(())
    }

    /// Lets the user change the last message, and answers it instead. An empty text, or the
    /// same, changes nothing.
    fn edit(&mut self) -> anyhow::Result<Next> {
        let old = self.transcript.last_user().unwrap_or_default().to_string();
        let text = helpers::edit(&old)?;
        if text.trim().is_empty() || text == old {
            tracing::info!("nothing was changed");
            return Ok(Next::Input);
        }
        let before = (self.transcript.clone(), self.n_forgotten);
        self.transcript.pop_turn();
        self.n_forgotten = self.n_forgotten.min(self.transcript.n_turns());
        let n_turns = self.transcript.n_turns();
        let result = self.say(&text);
        if self.transcript.n_turns() == n_turns {
            // There was no reply: what there was before stays.
            (self.transcript, self.n_forgotten) = before;
        }
        result.map(Next::Replied)
    }

    /// Writes messages as `template --messages` and `/load` read them. A file that was there
    /// before this chat holds another one, perhaps.
    fn save_messages(&mut self, file: &Path) -> Result<()> {
        let refused = |cause| Error::file(file, cause, "name another file");
        let own = |session: &SessionFile| session.owns(file);
        if self.session_file.as_ref().is_some_and(own) {
            return Err(refused("belongs to this chat's session"));
        }
        // Also a link to nothing.
        let there = file.symlink_metadata().is_ok();
        let written = file.canonicalize().is_ok_and(|f| self.written.contains(&f));
        if there && !written {
            return Err(refused("exists already, and this chat did not write it"));
        }
        let text = format!("{:#}\n", self.transcript.to_json());
        write_file::replace(file, &mut |out| out.write_all(text.as_bytes()))?;
        self.written.extend(file.canonicalize());
        tracing::info!("{}: {}", file.display(), turns(self.transcript.n_turns()));
        Ok(())
    }

    fn load(&mut self, file: &Path) -> Result<()> {
        let transcript = read_messages(file)?;
        self.keep_session()?;
        self.transcript = transcript;
        self.n_forgotten = 0;
        let n_turns = self.transcript.n_turns();
        tracing::info!("{}: {}", file.display(), turns(n_turns));
        Ok(())
    }

    fn show_settings(&self) {
        let settings = SamplingParams::NAMES
            .iter()
            .filter_map(|name| Some(format!("{name} {}", self.sampling.get(name)?)));
        tracing::info!("{}", settings.collect::<Vec<_>>().join(", "));
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let mut changed = self.sampling.clone();
        changed.set(name, value)?;
        need_vocabulary(&mut changed, self.generator.tokenizer);
        let chain = Chain::new(&changed)?;
        if changed.seed != self.sampling.seed {
            self.n_replies = 0;
        }
        // One that was drawn stays, so that it can be told and saved.
        changed.seed = changed.seed.or(chain.seed());
        tracing::info!("{}", chain.describe());
        self.sampling = changed;
        Ok(())
    }

    fn show_stats(&self) {
        let (last, generator) = (&self.last, &self.generator);
        tracing::info!(
            "last turn: {} tokens of prompt, {} of them evaluated; {} tokens of reply",
            last.n_prompt,
            last.n_evaluated,
            last.n_reply
        );
        tracing::info!(
            "in all: prefill {}; decode {}{}; {}",
            generator.prefill.describe(),
            generator.decode.describe(),
            generator.ahead.describe(),
            generator.chain.describe()
        );
    }

    fn show_context(&self) -> Result<()> {
        let (n_used, n_ctx) = (self.n_used()?, self.generator.session.n_ctx());
        let forgotten = match self.n_forgotten {
            0 => String::new(),
            n => format!(", {n} of them forgotten"),
        };
        let turns = turns(self.transcript.n_turns());
        match n_used <= n_ctx {
            true => tracing::info!("{n_used} of {n_ctx} tokens used; {turns}{forgotten}"),
            false => tracing::info!("{n_used} tokens, of which {n_ctx} fit; {turns}{forgotten}"),
        }
        Ok(())
    }
}

/// A count of turns.
pub fn turns(n: usize) -> String {
    match n {
        1 => "1 turn".to_string(),
        n => format!("{n} turns"),
    }
}

fn no_turn() -> Error {
    Error::input("nothing has been said yet; type a message first")
}

/// The messages of a file that `/save` or `--session` wrote.
fn read_messages(file: &Path) -> Result<Transcript> {
    let bad = |cause: String| Error::file(file, cause, "give a file that /save wrote");
    let bytes = careful::read_messages(file).map_err(|e| bad(e.to_string()))?;
    let json: Json =
        serde_json::from_slice(&bytes).map_err(|e| bad(format!("not valid JSON: {e}")))?;
    let messages = json.get("messages").unwrap_or(&json);
    Transcript::from_json(messages).map_err(|e| bad(e.to_string()))
}
