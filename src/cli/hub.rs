//! What a hub reports, on stderr.

use super::interrupt::LastWord;
use super::output::transfer;
use crate::Result;
use crate::hub::{Event, Hub, Kept, Wanted};
use indicatif::ProgressBar;
use std::cell::RefCell;
use std::path::PathBuf;

/// The first file of a model: from the cache, else fetched.
pub fn find(wanted: &Wanted) -> Result<PathBuf> {
    let display = Display::default();
    let path = Hub::from_env()?.find(wanted, &|event| display.show(event))?;
    tracing::info!("{wanted}: {}", path.display());
    Ok(path)
}

/// As [`find`], but the newest.
pub fn pull(wanted: &Wanted) -> Result<PathBuf> {
    let display = Display::default();
    Hub::from_env()?.pull(wanted, &|event| display.show(event))
}

/// Every model in the cache.
pub fn list() -> Result<Vec<Kept>> {
    let display = Display::default();
    Hub::from_env()?.list(&|event| display.show(event))
}

/// Removes models; returns the bytes that were freed.
pub fn remove(wanted: &Wanted) -> Result<u64> {
    let display = Display::default();
    Hub::from_env()?.remove(wanted, &|event| display.show(event))
}

/// Shows events; one bar, for the file that is being fetched.
#[derive(Default)]
struct Display {
    bar: RefCell<Option<(String, ProgressBar)>>,
    last_word: RefCell<Option<LastWord>>,
}

impl Display {
    fn show(&self, event: Event<'_>) {
        match event {
            Event::Info(text) => self.aside(|| tracing::info!("{text}")),
            Event::Warning(text) => self.aside(|| tracing::warn!("{text}")),
            Event::Bytes { file, done, total } => {
                let mut last_word = self.last_word.borrow_mut();
                if last_word.is_none() {
                    *last_word = LastWord::new("interrupted; the same command goes on from here");
                }
                self.progress(file, done, total);
            }
        }
    }

    /// Prints lines that the bar must not mix with.
    fn aside(&self, print: impl FnOnce()) {
        match &*self.bar.borrow() {
            Some((_, bar)) => bar.suspend(print),
            None => print(),
        }
    }

    fn progress(&self, file: &str, done: u64, total: u64) {
        let mut current = self.bar.borrow_mut();
        if done == total {
            if let Some((_, bar)) = current.take() {
                bar.finish_and_clear();
            }
            return;
        }
        match &*current {
            Some((shown, bar)) if shown == file => bar.set_position(done),
            _ => *current = Some((file.to_string(), transfer(file, done, total))),
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        if let Some((_, bar)) = self.bar.get_mut() {
            bar.finish_and_clear();
        }
    }
}
