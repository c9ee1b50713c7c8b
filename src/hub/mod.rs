//! Models from a hub: Hugging Face, or what speaks its API.
//!
//! A model that is in the cache is used without any request. Nothing here prints: messages
//! and progress go to the caller as [`Event`]s.

mod address;
mod attempt;
mod cache;
mod certificates;
mod connect;
mod contents;
mod digest;
mod exceptions;
mod failure;
mod fetch;
mod listing;
mod name;
mod own;
mod partial;
mod pick;
mod place;
mod proxy;
mod remove;
mod settings;
mod tidy;
mod transport;
mod unused;

pub use contents::Kept;
pub use name::{Wanted, What, check_path, shown};

use crate::error::{Error, Result};
use address::Origin;
use cache::RepoCache;
use failure::{Failure, Tried};
use listing::{Listing, RemoteFile};
use settings::{Access, Settings};
use std::path::{Path, PathBuf};
use transport::Transport;

/// Files named in a message; the others are counted.
const MOST_NAMED: usize = 30;

/// What happens while a model is fetched.
#[derive(Debug)]
pub enum Event<'a> {
    Info(String),
    Warning(String),
    /// So much of a file is here.
    Bytes {
        file: &'a str,
        done: u64,
        total: u64,
    },
}

/// Where events go.
pub type Report<'a> = &'a dyn Fn(Event<'_>);

/// A hub and the cache of what came from it.
pub struct Hub {
    settings: Settings,
}

impl Hub {
    /// As the environment says: `HF_HOME`, `HF_HUB_CACHE`, `XDG_CACHE_HOME`,
    /// `HF_HUB_OFFLINE`; when it comes to requests also `HF_ENDPOINT`, `HF_TOKEN`.
    ///
    /// # Errors
    /// No place for the cache is known.
    pub fn from_env() -> Result<Hub> {
        Ok(Hub {
            settings: Settings::from_env()?,
        })
    }

    /// The first file of a model: from the cache when all of it is there, else fetched.
    ///
    /// # Errors
    /// It is neither in the cache nor to be had.
    pub fn find(&self, wanted: &Wanted, report: Report<'_>) -> Result<PathBuf> {
        check_origin(wanted)?;
        if let Some(path) = self.cached(wanted)? {
            return Ok(path);
        }
        if self.settings.offline {
            return Err(self.offline(wanted));
        }
        let fetched = self.fetch(wanted, false, report);
        fetched.map_err(Failure::into_error)
    }

    /// As [`Hub::find`], but asks the hub for a newer commit first, and checks what is in the
    /// cache.
    ///
    /// # Errors
    /// It is not to be had.
    pub fn pull(&self, wanted: &Wanted, report: Report<'_>) -> Result<PathBuf> {
        check_origin(wanted)?;
        if self.settings.offline {
            return self.cached(wanted)?.ok_or_else(|| self.offline(wanted));
        }
        match self.fetch(wanted, true, report) {
            Err(Failure::Unreachable(cause, advice)) => match self.cached(wanted)? {
                Some(path) => {
                    report(Event::Warning(format!("{cause}; this is from the cache")));
                    Ok(path)
                }
                None => Err(Failure::Unreachable(cause, advice).into_error()),
            },
            done => done.map_err(Failure::into_error),
        }
    }

    /// Every model in the cache, by repository and name.
    ///
    /// # Errors
    /// The cache cannot be read.
    pub fn list(&self, report: Report<'_>) -> Result<Vec<Kept>> {
        contents::list(&self.settings.cache, report)
    }

    /// Removes a model, or with nothing named all models of the repository; returns the
    /// bytes that were freed.
    ///
    /// # Errors
    /// There is none, another process is fetching it, or the file system refuses.
    pub fn remove(&self, wanted: &Wanted, report: Report<'_>) -> Result<u64> {
        remove::remove(&self.cache(wanted), wanted, report)
    }

    fn cache(&self, wanted: &Wanted) -> RepoCache {
        RepoCache::new(&self.settings.cache, &wanted.repo)
    }

    /// The first file of what is meant, if the cache has it.
    fn cached(&self, wanted: &Wanted) -> Result<Option<PathBuf>> {
        let cache = self.cache(wanted);
        match cache.find(&wanted.what) {
            Some(path) => Ok(Some(path)),
            // Perhaps it only cannot be seen.
            None => cache.check_readable().map(|()| None),
        }
    }

    /// The error for what is not in the cache, or not all of it.
    fn offline(&self, wanted: &Wanted) -> Error {
        let cache = self.cache(wanted);
        let mut partials = contents::partials(&cache).into_iter();
        let begun = partials.any(|partial| partial.is_begun() && partial.is_meant(&wanted.what));
        Error::input(match begun || cache.has_some_of(&wanted.what) {
            true => format!(
                "{wanted} is only partly in the cache and HF_HUB_OFFLINE is set; run \
                 `llama-rs pull {wanted}` with a network to complete it"
            ),
            false => format!(
                "{wanted} is not in the cache and HF_HUB_OFFLINE is set; unset it, or give a \
                 file with -m"
            ),
        })
    }

    /// Asks the hub; with `check` what is in the cache must have its hash.
    fn fetch(&self, wanted: &Wanted, check: bool, report: Report<'_>) -> Tried<PathBuf> {
        let transport = Transport::new(Access::from_env()?)?;
        let cache = self.cache(wanted);
        cache.check_readable()?;
        cache.check_own()?;
        let listing = listing::list(&transport, &wanted.repo, report)?;
        let files = choose(&listing, wanted)?;
        for file in &files {
            place::check(&cache, &listing.commit, file)?;
        }
        // Again when another process removes what was here a moment ago.
        for _ in 0..2 {
            check_space(&cache, &self.settings.cache, &files)?;
            for file in &files {
                let (endpoint, commit) = (&transport.access().endpoint, &listing.commit);
                let uri = listing::content_address(endpoint, &wanted.repo, commit, &file.path)?;
                fetch::blob(&transport, &cache, file, &uri, check, report)?;
            }
            if let Some(path) = name_all(&cache, &listing.commit, &files)? {
                if let Err(error) = cache.set_main(&listing.commit) {
                    report(Event::Warning(error.to_string()));
                }
                return Ok(path);
            }
        }
        Err(Error::input(format!(
            "{wanted}: another process removes it while it is fetched; run the same command again"
        ))
        .into())
    }
}

/// Gives the files their names in a commit; the first one's path unless one is gone.
fn name_all(cache: &RepoCache, commit: &str, files: &[&RemoteFile]) -> Result<Option<PathBuf>> {
    let mut first = None;
    for file in files {
        let Some(path) = cache.link(commit, &file.path, &file.id)? else {
            return Ok(None);
        };
        first.get_or_insert(path);
    }
    Ok(first)
}

/// An address must be of the hub that is asked, for nothing is sent elsewhere.
fn check_origin(wanted: &Wanted) -> Result<()> {
    let Some(given) = &wanted.origin else {
        return Ok(());
    };
    if given == settings::PUBLIC_HUB {
        return Ok(());
    }
    let (endpoint, origin) = settings::endpoint()?;
    let given_origin = given.parse().ok().and_then(|uri| Origin::of(&uri));
    match given_origin == Some(origin) {
        true => Ok(()),
        false => Err(Error::input(format!(
            "{given} is not the hub that is asked, {endpoint}; set HF_ENDPOINT={given}"
        ))),
    }
}

/// The files of the model that is meant, in order.
fn choose<'a>(listing: &'a Listing, wanted: &Wanted) -> Result<Vec<&'a RemoteFile>> {
    let models = pick::models(listing.files.iter().map(|file| file.path.as_str()));
    let model = pick::pick(&models, &wanted.what).ok_or_else(|| nothing_fits(&models, wanted))?;
    let of_name = |name: &String| listing.files.iter().find(|file| file.path == *name);
    Ok(model.files.iter().filter_map(of_name).collect())
}

fn nothing_fits(models: &[pick::Model], wanted: &Wanted) -> Error {
    let repo = &wanted.repo;
    let models: Vec<&pick::Model> = models
        .iter()
        .filter(|model| pick::can_run(model.name()))
        .collect();
    if models.is_empty() {
        return Error::input(format!(
            "{repo} has no GGUF models; look for a repository that does, often named ...-GGUF"
        ));
    }
    let name = |model: &&pick::Model| match model.complete {
        true => model.name().to_string(),
        false => format!("{} (some of its files are missing)", model.name()),
    };
    let names = names_text(models.iter().map(name));
    let what = match &wanted.what {
        What::Best => "it is not clear which model is meant".to_string(),
        What::Quant(what) | What::File(what) => format!("there is no {what}"),
    };
    Error::input(format!("{repo}: {what}; name one of: {names}"))
}

/// Names in a row, at most [`MOST_NAMED`]; the others are counted.
fn names_text(mut names: impl ExactSizeIterator<Item = String>) -> String {
    let mut first: Vec<String> = names.by_ref().take(MOST_NAMED).collect();
    if names.len() > 0 {
        first.push(format!("and {} more", names.len()));
    }
    first.join(", ")
}

/// An error when what is missing does not fit on the disk.
fn check_space(cache: &RepoCache, root: &Path, files: &[&RemoteFile]) -> Result<()> {
    std::fs::create_dir_all(root)
        .map_err(|e| place::unwritable(format!("cannot create {}", root.display()), &e))?;
    let missing = files
        .iter()
        .filter(|file| !fetch::is_there(cache, file))
        .map(|file| {
            let partial = std::fs::metadata(partial::path_of(&cache.blob(&file.id)));
            let here = partial.map_or(0, |meta| meta.len());
            // What is too long is thrown away.
            file.size.checked_sub(here).unwrap_or(file.size)
        });
    let needed = missing.fold(0, u64::saturating_add);
    match cache::free_bytes(root) {
        Some(free) if free < needed => Err(Error::input(format!(
            "{}: {} to fetch, {} free; make room, or set HF_HOME to a folder on another disk",
            root.display(),
            size_text(needed),
            size_text(free)
        ))),
        _ => Ok(()),
    }
}

/// `12.3 MiB`, for messages.
fn size_text(bytes: u64) -> String {
    let mut size = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if size < 1024.0 {
            return format!("{size:.1} {unit}");
        }
        size /= 1024.0;
    }
    format!("{size:.1} TiB")
}
