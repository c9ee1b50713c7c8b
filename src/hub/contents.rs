//! What is in the cache, and removing it.

use super::cache::{RepoCache, files_below, is_own_folder, read_ref, repositories};
use super::name::{Wanted, What};
use super::{own, partial, pick};
use crate::error::{Error, Result};
use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File, TryLockError};
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
pub fn list(root: &Path) -> Vec<Kept> {
    let mut all = Vec::new();
    for repo in repositories(root) {
        let cache = RepoCache::new(root, &repo);
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
    all
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

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}

/// What an interrupted download left, or somebody put in its place.
struct Partial {
    /// Need not exist: there may only be a note.
    path: PathBuf,
    id: String,
    /// What it will be, if that is noted.
    file: Option<String>,
    /// None for what is no regular file.
    bytes: Option<u64>,
}

impl Partial {
    /// True where something of a file is there.
    fn is_begun(&self) -> bool {
        self.bytes.is_some_and(|n| n > 0 || self.file.is_some())
    }

    fn name(&self) -> String {
        let unknown = || format!("blobs/{}.partial", self.id);
        self.file.clone().unwrap_or_else(unknown)
    }
}

fn partials(cache: &RepoCache) -> Vec<Partial> {
    let blobs = cache.blobs();
    let entries = is_own_folder(&blobs).then(|| fs::read_dir(&blobs));
    let entries = entries.into_iter().flatten().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    // Sorted, and one for a file and its note.
    let ids: BTreeSet<String> = names
        .filter_map(|name| partial::id_of(&name).map(str::to_string))
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

/// Removes what is meant: names in all commits, contents that no name refers to any more,
/// partial files. Returns the bytes that were freed.
///
/// # Errors
/// Nothing is meant, another process is fetching it, or the file system refuses.
pub fn remove(cache: &RepoCache, wanted: &Wanted) -> Result<u64> {
    let mut names = Vec::new();
    for snapshot in cache.snapshots() {
        let files = files_below(&snapshot);
        let models = pick::models(files.iter().map(String::as_str));
        let meant = models.iter().filter(|model| model.is(&wanted.what));
        names.extend(
            meant
                .flat_map(|model| &model.files)
                .map(|file| snapshot.join(file)),
        );
    }
    let mut partials = partials(cache);
    partials.retain(|partial| pick::is_meant(&partial.name(), &wanted.what));
    let all = wanted.what == What::Best;
    // A model of which only some files came has contents without names.
    let nameless = all && !unreferenced(cache).is_empty();
    if names.is_empty() && partials.is_empty() && !nameless {
        return Err(Error::input(format!(
            "{wanted} is not in the cache; `llama-rs list` shows what is"
        )));
    }
    let _locks = lock_all(cache, &partials)?;
    let mut freed = 0;
    for partial in &partials {
        freed += partial.bytes.unwrap_or(0);
        partial::delete(&partial.path);
    }
    let mut contents = HashSet::new();
    let mut sizes = HashSet::new();
    for name in &names {
        if fs::read_link(name).is_ok() {
            contents.extend(fs::canonicalize(name));
        } else {
            // A copy: its content cannot be told but by its size.
            sizes.insert(size(name));
        }
        delete(name)?;
    }
    for blob in unreferenced(cache) {
        let copied = sizes.contains(&size(&blob));
        let meant = fs::canonicalize(&blob).is_ok_and(|content| contents.contains(&content));
        if all || copied || meant {
            freed += size(&blob);
            delete(&blob)?;
        }
    }
    tidy(cache);
    Ok(freed)
}

fn delete(path: &Path) -> Result<()> {
    fs::remove_file(path).map_err(|e| Error::io(format!("cannot remove {}", path.display()), e))
}

/// Locks what is being removed, so that nobody is fetching it.
fn lock_all(cache: &RepoCache, partials: &[Partial]) -> Result<Vec<File>> {
    let mut locks = Vec::new();
    for partial in partials {
        let Ok(file) = own::open(&cache.lock(&partial.id), File::options().write(true)) else {
            continue;
        };
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(Error::input(format!(
                "another process is fetching {}; wait for it, or stop it",
                partial.name()
            )));
        }
        locks.push(file);
    }
    Ok(locks)
}

/// Contents that no name in any commit refers to. What is being fetched, by us or others,
/// is none, and neither is what somebody linked into the cache.
fn unreferenced(cache: &RepoCache) -> Vec<PathBuf> {
    let snapshots = cache.snapshots().into_iter();
    let names = snapshots.flat_map(|snapshot| {
        let files = files_below(&snapshot).into_iter();
        files.map(move |file| snapshot.join(file))
    });
    let used: HashSet<PathBuf> = names.flat_map(fs::canonicalize).collect();
    let blobs = files_below(&cache.blobs()).into_iter();
    blobs
        .filter(|name| !name.contains(['.', '/']))
        .map(|name| cache.blobs().join(name))
        .filter(|blob| fs::symlink_metadata(blob).is_ok_and(|meta| meta.is_file()))
        .filter(|blob| fs::canonicalize(blob).is_ok_and(|content| !used.contains(&content)))
        .collect()
}

/// Removes folders that are empty now, notes of commits that are gone, and at last the
/// repository's folder.
fn tidy(cache: &RepoCache) {
    let snapshots = cache.snapshots();
    for snapshot in &snapshots {
        remove_empty(snapshot);
    }
    for name in files_below(&cache.refs()) {
        let note = cache.refs().join(name);
        let commit = read_ref(&note);
        let is_gone = |snapshot: &PathBuf| snapshot.ends_with(&commit) && !snapshot.exists();
        if snapshots.iter().any(is_gone) {
            // It only names what is gone; the next pull writes it anew.
            let _ = fs::remove_file(note);
        }
    }
    let left = cache.snapshots().iter().any(|snapshot| snapshot.exists());
    if !left && files_below(&cache.blobs()).is_empty() {
        // Only notes of other tools may be left in it.
        let _ = fs::remove_dir_all(&cache.dir);
    }
}

/// Removes a folder if nothing but folders is in it.
fn remove_empty(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(&entry.path());
        }
    }
    // Fails, as it should, where there is something in it.
    let _ = fs::remove_dir(dir);
}
