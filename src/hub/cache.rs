//! The folder that Hugging Face tools share.
//!
//! ```text
//! models--USER--REPO/blobs/<id>                 contents, named by hash
//!                    refs/main                  the newest commit that is known
//!                    snapshots/<commit>/<path>  -> ../../blobs/<id>
//! .locks/models--USER--REPO/<id>.lock           held while a content is fetched
//! ```
//!
//! Ours alone are `blobs/<id>.partial` and `blobs/<id>.partial.json`; see [`super::partial`].

use super::digest::is_hash;
use super::name::{MOST_FOLDERS, What, is_repo};
use super::place::{self, unwritable};
use super::{own, pick};
use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// One repository's folder.
pub struct RepoCache {
    pub dir: PathBuf,
    locks: PathBuf,
}

impl RepoCache {
    /// Of `USER/REPO`; need not exist.
    pub fn new(root: &Path, repo: &str) -> RepoCache {
        let name = folder_of(repo);
        RepoCache {
            dir: root.join(&name),
            locks: root.join(".locks").join(&name),
        }
    }

    pub fn blobs(&self) -> PathBuf {
        self.dir.join("blobs")
    }

    pub fn blob(&self, id: &str) -> PathBuf {
        self.blobs().join(id)
    }

    /// The file to lock while the content `id` is fetched.
    pub fn lock(&self, id: &str) -> PathBuf {
        self.locks.join(format!("{id}.lock"))
    }

    pub fn refs(&self) -> PathBuf {
        self.dir.join("refs")
    }

    /// The folder of all commits.
    pub fn all_snapshots(&self) -> PathBuf {
        self.dir.join("snapshots")
    }

    /// Where a file has its name in a commit.
    pub fn name(&self, commit: &str, path: &str) -> PathBuf {
        self.all_snapshots().join(commit).join(path)
    }

    /// An error where what is here cannot be seen.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn check_readable(&self) -> Result<()> {
        let fixed = [self.dir.clone(), self.blobs(), self.all_snapshots()];
        let mut folders = fixed.into_iter().chain(self.snapshots());
        folders.try_for_each(|folder| match fs::read_dir(&folder) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(unreadable(&folder, &e)),
            _ => Ok(()),
        })
    }

    /// An error where writing or removing here would do so somewhere else.
    ///
    /// # Errors
    /// A folder of the repository is a link.
    pub fn check_own(&self) -> Result<()> {
        let (blobs, all) = (self.blobs(), self.all_snapshots());
        let (refs, locks) = (self.refs(), self.locks.clone());
        let all_locks = locks.parent().unwrap_or(&locks).to_path_buf();
        let folders = [self.dir.clone(), blobs, all, refs, locks, all_locks];
        folders
            .iter()
            .try_for_each(|folder| place::check_no_link(folder))
    }

    /// The newest known commit, empty when none is.
    fn main(&self) -> String {
        read_ref(&self.refs().join("main"))
    }

    /// The folders of all commits: the newest known first, the others by age.
    pub fn snapshots(&self) -> Vec<PathBuf> {
        let main = self.main();
        let dir = self.all_snapshots();
        let entries = is_own_folder(&dir).then(|| fs::read_dir(&dir));
        let entries = entries.into_iter().flatten().flatten().flatten();
        let mut all: Vec<(bool, SystemTime, PathBuf)> = entries
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .map(|entry| {
                let modified = entry.metadata().and_then(|meta| meta.modified());
                let is_main = entry.file_name().to_str() == Some(&*main);
                (
                    is_main,
                    modified.unwrap_or(SystemTime::UNIX_EPOCH),
                    entry.path(),
                )
            })
            .collect();
        all.sort();
        all.into_iter().rev().map(|(_, _, path)| path).collect()
    }

    /// Of [`RepoCache::snapshots`] those that are called as commits are: the others are
    /// somebody else's.
    pub fn commits(&self) -> Vec<PathBuf> {
        let mut commits = self.snapshots();
        commits.retain(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(is_hash)
        });
        commits
    }

    /// The first file of the model that is meant, when all its files are here.
    pub fn find(&self, what: &What) -> Option<PathBuf> {
        self.snapshots().into_iter().find_map(|snapshot| {
            let files = files_below(&snapshot);
            let models = pick::models(files.iter().map(String::as_str));
            let model = pick::pick_here(&models, what)?;
            Some(snapshot.join(model.name()))
        })
    }

    /// True when a model that is meant has some of its files here, but not all.
    pub fn has_some_of(&self, what: &What) -> bool {
        self.snapshots().into_iter().any(|snapshot| {
            let files = files_below(&snapshot);
            let models = pick::models(files.iter().map(String::as_str));
            models.iter().any(|m| !m.complete && m.is(what))
        })
    }

    /// Gives the content `id` its name in a commit; a copy where links are not possible.
    /// None where the content is gone: another process may have removed it meanwhile.
    ///
    /// # Errors
    /// The file system refuses, or the name would be somewhere else.
    pub fn link(&self, commit: &str, path: &str, id: &str) -> Result<Option<PathBuf>> {
        let link = self.name(commit, path);
        place::check_folders(self, &link)?;
        let up = "../".repeat(2 + path.matches('/').count());
        let target = PathBuf::from(format!("{up}blobs/{id}"));
        if fs::read_link(&link).is_ok_and(|there| there == target) {
            return Ok(link.is_file().then_some(link));
        }
        let done = (|| {
            fs::create_dir_all(link.parent().unwrap_or(&self.dir))?;
            match fs::remove_file(&link) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            symlink(&target, &link).or_else(|_| duplicate(&self.blob(id), &link))
        })();
        match done {
            // Even after an error: another process made it in the same moment.
            _ if link.is_file() => Ok(Some(link)),
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                Err(unwritable(format!("cannot create {}", link.display()), &e))
            }
            _ => Ok(None),
        }
    }

    /// Notes the newest commit.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn set_main(&self, commit: &str) -> Result<()> {
        if self.main() == commit {
            return Ok(());
        }
        let file = self.refs().join("main");
        let temporary = self.refs().join(format!("main.{}", std::process::id()));
        own::in_folder(&self.refs(), || {
            own::write(&temporary, commit)?;
            fs::rename(&temporary, &file)
        })
        .map_err(|e| unwritable(format!("cannot write {}", file.display()), &e))
    }
}

/// The commit that a file in `refs` names.
pub fn read_ref(file: &Path) -> String {
    const MOST_BYTES: u64 = 256;
    let text = own::read(file, MOST_BYTES).unwrap_or_default();
    text.trim().to_string()
}

fn unreadable(folder: &Path, error: &io::Error) -> Error {
    let remedy = "set HF_HUB_CACHE (or HF_HOME) to a folder that can be read";
    Error::input(format!(
        "cannot read {}: {error}; {remedy}",
        folder.display()
    ))
}

/// `models--USER--REPO`.
fn folder_of(repo: &str) -> String {
    format!("models--{}", repo.replacen('/', "--", 1))
}

/// All repositories in a cache, by name; folders of no possible name are none of ours.
///
/// # Errors
/// There is a cache, but it cannot be read.
pub fn repositories(root: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(root) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| unreadable(root, &e))?.flatten(),
    };
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut repos: Vec<String> = names
        .filter_map(|name| Some(name.strip_prefix("models--")?.replacen("--", "/", 1)))
        .filter(|repo| is_repo(repo))
        .collect();
    repos.sort();
    Ok(repos)
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A second name, else a second copy, of a file; never half a copy.
fn duplicate(from: &Path, to: &Path) -> io::Result<()> {
    if fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let mut name = to.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.partial", std::process::id()));
    let temporary = to.with_file_name(name);
    let copied = fs::copy(from, &temporary).and_then(|_| fs::rename(&temporary, to));
    if copied.is_err() {
        // The copy's own error is the one to tell.
        let _ = fs::remove_file(&temporary);
    }
    copied
}

/// False for what is linked into the cache: it is somebody else's.
pub fn is_own_folder(dir: &Path) -> bool {
    fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir())
}

/// Paths, with `/`, of the files below a folder; links count when their target is there.
pub fn files_below(dir: &Path) -> Vec<String> {
    let mut names = names_below(dir);
    names.retain(|name| dir.join(name).is_file());
    names
}

/// As [`files_below`], but of everything that is no folder, also links to nothing.
pub fn names_below(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    if is_own_folder(dir) {
        walk(dir, "", 0, &mut found);
    }
    found.sort();
    found
}

fn walk(dir: &Path, prefix: &str, depth: usize, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let path = format!("{prefix}{name}");
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if depth < MOST_FOLDERS {
                walk(&entry.path(), &format!("{path}/"), depth + 1, found);
            }
        } else {
            found.push(path);
        }
    }
}

/// Makes renames in a folder last over a power cut, where that can be asked for.
pub fn sync_folder(dir: &Path) {
    if let Ok(dir) = File::open(dir) {
        // Some file systems have no such thing; the file itself is synced.
        let _ = dir.sync_all();
    }
}

/// Bytes that can still be written where `dir` is, if that is known.
#[cfg(unix)]
pub fn free_bytes(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    stat.f_bavail.checked_mul(stat.f_frsize)
}

/// Bytes that can still be written where `dir` is, if that is known.
#[cfg(not(unix))]
pub fn free_bytes(_: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::{RepoCache, files_below, repositories};
    use crate::hub::name::What;
    use std::fs;

    const ID: &str = "0123456789abcdef";

    #[test]
    fn a_linked_file_is_found_and_a_lone_shard_is_not() {
        let root = tempfile::tempdir().expect("a folder");
        let cache = RepoCache::new(root.path(), "u/r");
        fs::create_dir_all(cache.blobs()).expect("a folder");
        fs::write(cache.blob(ID), "GGUF").expect("a file");
        let link = cache.link("c1", "sub/m-Q8_0.gguf", ID).expect("a link");
        let link = link.expect("its content");
        assert_eq!(fs::read(&link).expect("its target"), b"GGUF");
        cache
            .link("c1", "x-Q4_0-00001-of-00002.gguf", ID)
            .expect("a link");
        cache.set_main("c1").expect("noted");
        assert_eq!(cache.find(&What::Best), Some(link.clone()));
        assert_eq!(cache.find(&What::Quant("q8_0".into())), Some(link));
        assert_eq!(cache.find(&What::Quant("Q4_0".into())), None);
        assert_eq!(repositories(root.path()).expect("readable"), ["u/r"]);
        fs::remove_file(cache.blob(ID)).expect("removed");
        assert_eq!(cache.find(&What::Best), None);
        assert_eq!(files_below(&cache.snapshots()[0]), [""; 0]);
        for path in ["sub/m-Q8_0.gguf", "new.gguf"] {
            assert_eq!(cache.link("c1", path, ID).expect("no error"), None);
        }
    }

    #[test]
    fn the_newest_known_commit_comes_first() {
        let root = tempfile::tempdir().expect("a folder");
        let cache = RepoCache::new(root.path(), "u/r");
        fs::create_dir_all(cache.blobs()).expect("a folder");
        fs::write(cache.blob(ID), "GGUF").expect("a file");
        for commit in ["c1", "c2", "c3"] {
            cache.link(commit, "m.gguf", ID).expect("a link");
        }
        cache.set_main("c2").expect("noted");
        assert!(cache.snapshots()[0].ends_with("c2"));
        assert_eq!(cache.snapshots().len(), 3);
    }
}
