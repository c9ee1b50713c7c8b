//! Models split over several files.

use super::build::{File, STRING, U32, string};
use super::message;
use llama_rs::gguf::Gguf;
use std::path::{Path, PathBuf};

fn shard(no: u32, count: u32) -> File {
    let mut file = File::new()
        .split(no, count)
        .tensor(format!("t{no}"), &[4], 0, 32);
    file.data = vec![no as u8; 48];
    file
}

fn path(dir: &Path, no: u32) -> PathBuf {
    dir.join(format!("m-{:05}-of-00003.gguf", no + 1))
}

/// Three files of one tensor each, the given ones replaced.
fn folder(replaced: &[(u32, File)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for no in 0..3 {
        let first = shard(no, 3).key("general.architecture", STRING, string("llama"));
        let other = replaced.iter().find(|(at, _)| *at == no);
        let file = match other {
            Some((_, file)) => file.clone(),
            None if no == 0 => first,
            None => shard(no, 3),
        };
        std::fs::write(path(dir.path(), no), file.bytes()).unwrap();
    }
    dir
}

#[test]
fn all_files_are_joined() {
    let dir = folder(&[]);
    for mmap in [true, false] {
        let gguf = Gguf::open(&path(dir.path(), 0), mmap).unwrap();
        assert_eq!(gguf.tensors.len(), 3);
        for (no, tensor) in gguf.tensors.iter().enumerate() {
            assert_eq!((tensor.shard, gguf.data(tensor)), (no, &[no as u8; 16][..]));
            assert_eq!(gguf.file_of(tensor)[tensor.offset], no as u8);
        }
        let arch = gguf.meta.get_str("general.architecture").unwrap();
        assert_eq!(arch, Some("llama"));
        let on_disk = (0..3).map(|no| path(dir.path(), no).metadata().unwrap().len());
        assert_eq!(gguf.size_bytes(), on_disk.sum::<u64>());
    }
}

#[test]
fn a_later_file_names_the_first() {
    let dir = folder(&[]);
    let text = message(Gguf::open(&path(dir.path(), 1), true));
    assert!(text.contains("file 2 of a model split over 3"), "{text}");
    assert!(text.contains("give the first one"), "{text}");
    assert!(text.ends_with("m-00001-of-00003.gguf"), "{text}");
}

#[test]
fn missing_files_are_named() {
    let dir = folder(&[]);
    std::fs::remove_file(path(dir.path(), 1)).unwrap();
    std::fs::remove_file(path(dir.path(), 2)).unwrap();
    let text = message(Gguf::open(&path(dir.path(), 0), true));
    let wants = "2 of its 3 files are missing: m-00002-of-00003.gguf, m-00003-of-00003.gguf;";
    assert!(text.contains(wants), "{text}");
}

#[test]
fn many_missing_files_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m-00001-of-99999.gguf");
    std::fs::write(&path, shard(0, 99_999).bytes()).unwrap();
    let text = message(Gguf::open(&path, true));
    assert!(text.contains("and 99994 more"), "{text}");
}

#[test]
fn a_renamed_file_says_which_name_it_needs() {
    let dir = folder(&[]);
    let renamed = dir.path().join("model.gguf");
    std::fs::rename(path(dir.path(), 0), &renamed).unwrap();
    let text = message(Gguf::open(&renamed, true));
    assert!(text.contains("-00001-of-00003.gguf"), "{text}");
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let short = shard(2, 3).bytes().len() as u64 - 1;
    let cases = [
        (1, shard(2, 3), "it is not file 2 of 3"),
        (1, shard(1, 2), "it is not file 2 of 3"),
        (2, File::new(), "it is not file 3 of 3"),
        (
            2,
            shard(2, 3).tensor("t0", &[4], 0, 0),
            "tensor t0 is in an earlier file",
        ),
        (
            0,
            shard(0, 3).key("split.tensors.count", U32, 4u32.to_le_bytes()),
            "hold 3 tensors, not 4",
        ),
        (0, shard(7, 3), "file 7 (from 0) of 3"),
        (0, shard(0, 4_000_000_000), "file 0 (from 0) of 4000000000"),
    ];
    for (no, file, wants) in cases {
        let dir = folder(&[(no, file)]);
        let text = message(Gguf::open(&path(dir.path(), 0), true));
        assert!(text.contains(wants), "{text:?} does not say {wants:?}");
    }
    let dir = folder(&[]);
    let last = std::fs::File::options()
        .write(true)
        .open(path(dir.path(), 2));
    last.unwrap().set_len(short).unwrap();
    let text = message(Gguf::open(&path(dir.path(), 0), true));
    assert!(text.contains("m-00003-of-00003.gguf: truncated"), "{text}");
}
