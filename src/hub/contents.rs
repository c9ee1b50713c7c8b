//! What is in the cache.

use super::cache::{RepoCache, files_below, is_own_folder, repositories};
use super::digest::is_hash;
use super::name::What;
use super::{Event, Report, partial, pick};
use crate::error::Result;
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// One model in the cache.
#[derive(Debug, Clone)]
pub struct Kept {
    pub repo: String,
    /// Path in the repository, of its first file.
    pub file: String,
    /// The file's path; none while some of it is still to be fetched.
    pub path: Option<PathBuf>,
    /// Number of files it is split over.
    pub files: usize,
    /// All files together.
    pub bytes: u64,
    /// When the first was written.
    pub modified: SystemTime,
}

/// Every model in a cache, by repository and name; one that several commits share once.
///
/// # Errors
/// The cache cannot be read. A repository that cannot, beside others, is a warning.
pub fn list(root: &Path, report: Report<'_>) -> Result<Vec<Kept>> {
    let mut all = Vec::new();
    let mut unreadable = None;
    for repo in repositories(root)? {
        let cache = RepoCache::new(root, &repo);
        let earlier = match cache.check_readable() {
            Ok(()) => None,
            Err(error) => unreadable.replace(error),
        };
        if let Some(error) = earlier {
            report(Event::Warning(error.to_string()));
        }
        let mut seen = HashSet::new();
        for snapshot in cache.snapshots() {
            let files = files_below(&snapshot);
            for model in pick::models(files.iter().map(String::as_str)) {
                let paths: Vec<PathBuf> = model.files.iter().map(|f| snapshot.join(f)).collect();
                let content = fs::canonicalize(&paths[0]).unwrap_or_default();
                if seen.insert((model.name().to_string(), content)) {
                    let kept = kept(&repo, model.name(), &paths);
                    let path = kept.path.filter(|_| model.complete);
                    all.push(Kept { path, ..kept });
                }
            }
        }
        let partials = partials(&cache).into_iter();
        all.extend(partials.filter(Partial::is_begun).map(|partial| Kept {
            path: None,
            ..kept(&repo, &partial.name(), &[partial.path])
        }));
    }
    match unreadable {
        Some(error) if all.is_empty() => return Err(error),
        Some(error) => report(Event::Warning(error.to_string())),
        None => {}
    }
    Ok(all)
}

fn kept(repo: &str, file: &str, paths: &[PathBuf]) -> Kept {
    let modified = fs::metadata(&paths[0]).and_then(|meta| meta.modified());
    Kept {
        repo: repo.to_string(),
        file: file.to_string(),
        path: Some(paths[0].clone()),
        files: paths.len(),
        bytes: paths
            .iter()
            .map(|path| size(path))
            .fold(0, u64::saturating_add),
        modified: modified.unwrap_or(SystemTime::UNIX_EPOCH),
    }
}

/// Bytes of a file, 0 where that is not known.
pub fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}

/// What an interrupted download left, or somebody put in its place.
pub struct Partial {
    /// Need not exist: there may only be a note.
    pub path: PathBuf,
    pub id: String,
    /// What it will be, if that is noted.
    file: Option<String>,
    /// None for what is no regular file.
    pub bytes: Option<u64>,
}

impl Partial {
    /// True where something of a file is there.
    pub fn is_begun(&self) -> bool {
        self.bytes.is_some_and(|n| n > 0 || self.file.is_some())
    }

    /// True when it is meant; what it will be may not be known.
    pub fn is_meant(&self, what: &What) -> bool {
        let file = self.file.as_ref();
        *what == What::Best || file.is_some_and(|file| pick::is_meant(file, what))
    }

    /// What it will be, else its own name.
    pub fn name(&self) -> String {
        let unknown = || format!("blobs/{}.partial", self.id);
        self.file.clone().unwrap_or_else(unknown)
    }
}

/// All partial files of a repository, by id; others' files may have such an ending too.
pub fn partials(cache: &RepoCache) -> Vec<Partial> {
    let blobs = cache.blobs();
    let entries = is_own_folder(&blobs).then(|| fs::read_dir(&blobs));
    let entries = entries.into_iter().flatten().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    // Sorted, and one for a file and its note.
    let ids: BTreeSet<String> = names
        .filter_map(|name| partial::id_of(&name).map(str::to_string))
        .filter(|id| is_hash(id))
        .collect();
    let partials = ids.into_iter().map(|id| {
        let path = partial::path_of(&cache.blob(&id));
        let meta = fs::symlink_metadata(&path).ok();
        Partial {
            file: partial::read_note(&path).map(|note| note.file),
            bytes: meta.filter(fs::Metadata::is_file).map(|meta| meta.len()),
            path,
            id,
        }
    });
    partials.collect()
}
