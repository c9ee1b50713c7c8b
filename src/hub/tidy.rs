//! After a removal: folders that are empty, and notes about what is gone.

use super::cache::{RepoCache, files_below, is_own_folder, names_below, read_ref};
use super::digest::is_hash;
use std::fs;
use std::path::{Path, PathBuf};

/// Removes folders that are empty now, notes of commits that are gone, and at last the
/// repository's folder, unless somebody else has put something into it. What stays keeps its
/// folder, and nothing behind a link is touched.
pub fn tidy(cache: &RepoCache) {
    let commits = cache.commits();
    for commit in &commits {
        remove_empty(commit);
    }
    let refs = cache.refs();
    let gone = commits.iter().filter(|commit| !commit.exists());
    let gone: Vec<_> = gone.filter_map(|commit| commit.file_name()).collect();
    for (note, commit) in notes(&refs) {
        if gone.iter().any(|gone| *gone == &*commit) {
            // It only names what is gone; the next pull writes it anew.
            let _ = fs::remove_file(note);
        }
    }
    let left = cache.snapshots().iter().any(|snapshot| snapshot.exists());
    if left || !files_below(&cache.blobs()).is_empty() {
        return;
    }
    // What other tools note of files that are not on the hub: nothing is in it.
    let absent = cache.dir.join(".no_exist");
    let is_mark = |path: &PathBuf| {
        fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file() && meta.len() == 0)
    };
    let marks = names_below(&absent).into_iter();
    let marks = marks.filter(|name| name.split('/').next().is_some_and(is_hash));
    let marks = marks.map(|name| absent.join(name)).filter(is_mark);
    let notes = notes(&refs).into_iter().map(|(note, _)| note);
    for note in notes.chain(marks) {
        // What stays keeps its folder.
        let _ = fs::remove_file(note);
    }
    for folder in [&absent, &refs] {
        remove_empty(folder);
    }
    for folder in [&cache.blobs(), &cache.all_snapshots(), &cache.dir] {
        remove_folder(folder);
    }
}

/// Files below `refs` that hold a commit's name and nothing else, with that name.
fn notes(refs: &Path) -> Vec<(PathBuf, String)> {
    let paths = names_below(refs).into_iter().map(|name| refs.join(name));
    paths
        .map(|path| (read_ref(&path), path))
        .filter(|(commit, _)| is_hash(commit))
        .map(|(commit, path)| (path, commit))
        .collect()
}

/// Removes a folder if nothing but folders is in it.
fn remove_empty(dir: &Path) {
    if !is_own_folder(dir) {
        return;
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        remove_empty(&entry.path());
    }
    remove_folder(dir);
}

/// Removes a folder if nothing is in it.
fn remove_folder(dir: &Path) {
    if is_own_folder(dir) {
        // Fails, as it should, where there is something in it.
        let _ = fs::remove_dir(dir);
    }
}
