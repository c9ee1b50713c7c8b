//! Models split over several files, `NAME-00001-of-00003.gguf` and so on.
//!
//! Keys: `split.count` files, `split.no` of this one from 0, and
//! `split.tensors.count` over all. The first file holds the model's metadata.

use super::cursor::shown;
use super::{FileBytes, Gguf};
use crate::error::{Error, Result};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Five digits in the name allow no more.
const MOST_SHARDS: u64 = 99_999;
/// Missing files named in a message; the others are counted.
const MOST_NAMED: usize = 4;

/// Adds the other files of a split model to its first; others stay as they are.
///
/// # Errors
/// A file that is not the first, missing files (all of them named), and files
/// that do not belong together.
pub(super) fn join(mut first: Gguf, mmap: bool) -> Result<Gguf> {
    let count = first.meta.get_u64("split.count")?.unwrap_or(1);
    if count <= 1 {
        return Ok(first);
    }
    let paths = shard_paths(&first, count)?;
    let missing: Vec<&PathBuf> = paths[1..].iter().filter(|path| !path.exists()).collect();
    if !missing.is_empty() {
        return Err(incomplete(&first.path, count, &missing));
    }
    for (no, path) in paths.iter().enumerate().skip(1) {
        let shard = Gguf::from_bytes(path, FileBytes::open(path, mmap)?)?;
        add(&mut first, shard, no, count)?;
    }
    let mut names = HashSet::new();
    if let Some(twice) = first.tensors.iter().find(|t| !names.insert(&t.name)) {
        return Err(mixed(
            &paths[twice.shard],
            format!("tensor {} is in an earlier file too", shown(&twice.name)),
        ));
    }
    let n_tensors = first.tensors.len() as u64;
    match first.meta.get_u64("split.tensors.count")? {
        Some(want) if want != n_tensors => Err(mixed(
            &first.path,
            format!("its {count} files hold {n_tensors} tensors, not {want}"),
        )),
        _ => Ok(first),
    }
}

/// The paths of all files, given the first.
fn shard_paths(first: &Gguf, count: u64) -> Result<Vec<PathBuf>> {
    let path = &first.path;
    let no = first.meta.get_u64("split.no")?.unwrap_or(0);
    if count > MOST_SHARDS || no >= count {
        return Err(mixed(path, format!("file {no} (from 0) of {count}")));
    }
    let suffix = |no: u64| format!("-{:05}-of-{count:05}.gguf", no + 1);
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(stem) = name.and_then(|name| name.strip_suffix(&suffix(no))) else {
        return Err(Error::file(
            path,
            format!(
                "file {} of a model split over {count}, under another name",
                no + 1
            ),
            format!(
                "name its files as they were made, this one ending in {}",
                suffix(no)
            ),
        ));
    };
    let sibling = |no: u64| path.with_file_name(format!("{stem}{}", suffix(no)));
    if no > 0 {
        return Err(Error::file(
            path,
            format!("file {} of a model split over {count}", no + 1),
            format!("give the first one, {}", sibling(0).display()),
        ));
    }
    Ok((0..count).map(sibling).collect())
}

fn add(first: &mut Gguf, shard: Gguf, no: usize, count: u64) -> Result<()> {
    let claimed = (
        shard.meta.get_u64("split.no")?,
        shard.meta.get_u64("split.count")?,
    );
    if claimed != (Some(no as u64), Some(count)) {
        return Err(mixed(
            &shard.path,
            format!("by its metadata it is not file {} of {count}", no + 1),
        ));
    }
    first.files.extend(shard.files);
    let tensors = shard.tensors.into_iter();
    first.tensors.extend(tensors.map(|mut tensor| {
        tensor.shard = no;
        tensor
    }));
    Ok(())
}

fn mixed(path: &Path, cause: String) -> Error {
    Error::file(
        path,
        format!("split model: {cause}"),
        "the files are damaged or of different models; fetch them again",
    )
}

fn incomplete(first: &Path, count: u64, missing: &[&PathBuf]) -> Error {
    let names = missing.iter().filter_map(|path| path.file_name());
    let named: Vec<_> = (names.take(MOST_NAMED))
        .map(|name| name.to_string_lossy())
        .collect();
    let mut named = named.join(", ");
    if missing.len() > MOST_NAMED {
        named += &format!(" and {} more", missing.len() - MOST_NAMED);
    }
    Error::file(
        first,
        format!(
            "{} of its {count} files are missing: {named}",
            missing.len()
        ),
        "fetch them into the same folder",
    )
}
