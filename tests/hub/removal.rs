//! Removing: what is in use, or somebody else's, stays.
#![cfg(unix)]

use super::contents::list;
use super::home::Home;
use super::hub_server::{COMMIT, REPO, sha256};
use super::{FILE, served};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;

#[test]
fn contents_that_an_unusual_name_refers_to_stay() {
    let (server, model) = served();
    let deep = "f/".repeat(40) + "m.gguf";
    for name in [deep.as_bytes(), b"\xff.gguf", b"\xff/m.gguf"] {
        let home = Home::new();
        home.good(&server, &format!("pull {REPO}"));
        let blob = home.repo().join("blobs").join(sha256(&model));
        let name = home
            .repo()
            .join("snapshots")
            .join(COMMIT)
            .join(OsStr::from_bytes(name));
        fs::create_dir_all(name.parent().expect("a folder")).expect("a folder");
        symlink(&blob, &name).expect("a link");
        home.good(&server, &format!("rm {REPO}"));
        assert_eq!(fs::read(&name).expect("a file"), model);
    }
}

#[test]
fn contents_stay_where_not_everything_can_be_seen() {
    let (server, model) = served();
    let home = Home::new();
    home.good(&server, &format!("pull {REPO}"));
    let blob = home.repo().join("blobs").join(sha256(&model));
    let outside = tempfile::tempdir().expect("a folder");
    symlink(&blob, outside.path().join("m.gguf")).expect("a link");
    let link = home.repo().join("snapshots/c0");
    symlink(outside.path(), &link).expect("a link");
    for line in [format!("rm {REPO}"), format!("rm {REPO}:Q4_K_M")] {
        home.bad(&server, &line, &["nothing removed", "c0"]);
        assert_eq!(list(&home, &server).len(), 1);
    }
    assert_eq!(fs::read(link.join("m.gguf")).expect("a file"), model);
    fs::remove_file(link).expect("it is there");
    home.good(&server, &format!("rm {REPO}"));
    assert!(!home.repo().exists());
}

#[test]
fn a_folder_that_is_a_link_is_not_written_through() {
    let (server, model) = served();
    let commit = format!("snapshots/{}", COMMIT);
    for name in ["", "blobs", "snapshots", "refs", &commit] {
        let home = Home::new();
        home.good(&server, &format!("pull {REPO}"));
        let outside = tempfile::tempdir().expect("a folder");
        let folder = home.repo().join(name);
        let moved = outside.path().join("moved");
        fs::rename(&folder, &moved).expect("moved");
        let folder = folder.to_string_lossy().trim_end_matches('/').to_string();
        symlink(&moved, &folder).expect("a link");
        let before = count(outside.path());
        home.bad(&server, &format!("pull {REPO}"), &["is a link", &folder]);
        let rm = home.run(&server, &format!("rm {REPO}"));
        assert_eq!(rm.code, Some(1), "{name}: {}", rm.stderr);
        assert_eq!(count(outside.path()), before, "{name}");
        // To read does no harm.
        if name.is_empty() {
            home.good(&server, &format!("logits -hf {REPO} --tokens 1"));
        }
        assert!(!model.is_empty());
    }
}

/// Everything below a folder.
fn count(dir: &std::path::Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let entries = entries.map(|entry| match entry.file_type().is_ok_and(|t| t.is_dir()) {
        true => 1 + count(&entry.path()),
        false => 1,
    });
    entries.sum()
}

#[test]
fn what_others_have_put_there_stays() {
    let (server, model) = served();
    for name in [
        "notes.txt",
        "mine/notes.txt",
        "snapshots/notes.txt",
        ".no_exist/c0/x",
        "blobs/notes",
        "blobs/my.backup.partial",
        "blobs/my.backup.partial.json",
        "refs/notes",
        "refs/heads/notes",
        "snapshots/mine/m-Q8_0.gguf",
        "snapshots/mine/deep/notes",
    ] {
        let home = Home::new();
        home.good(&server, &format!("pull {REPO}"));
        let notes = home.repo().join(name);
        fs::create_dir_all(notes.parent().expect("a folder")).expect("a folder");
        fs::write(&notes, "text").expect("a file");
        home.good(&server, &format!("rm {REPO}"));
        assert_eq!(fs::read(&notes).expect("a file"), b"text", "{name}");
        assert!(!home.repo().join("blobs").join(sha256(&model)).exists());
        if name.contains("mine/m-") {
            home.bad(&server, &format!("rm {REPO}"), &["no commit's", name]);
        }
    }
    // What only says that there is nothing.
    let home = Home::new();
    home.good(&server, &format!("pull {REPO}"));
    let absent = home.repo().join(".no_exist").join(COMMIT);
    fs::create_dir_all(&absent).expect("a folder");
    fs::write(absent.join("config.json"), "").expect("a file");
    home.good(&server, &format!("rm {REPO}"));
    assert!(!home.repo().exists());
}

#[test]
fn folders_in_the_place_of_partial_files_are_told() {
    let (server, model) = served();
    let id = sha256(&model);
    for ending in ["partial", "partial.json"] {
        let home = Home::new();
        let folder = home.repo().join(format!("blobs/{id}.{ending}"));
        fs::create_dir_all(folder.join("inner")).expect("a folder");
        let named = format!("{id}.{ending}: ");
        for line in [format!("pull {REPO}"), format!("rm {REPO}")] {
            home.bad(&server, &line, &[&named, "look into it and remove it"]);
        }
        assert!(folder.join("inner").exists());
        fs::remove_dir(folder.join("inner")).expect("it is there");
        home.good(&server, &format!("pull {REPO}"));
        assert_eq!(home.blobs(), [id.as_str()]);
        fs::create_dir_all(&folder).expect("a folder");
        home.good(&server, &format!("rm {REPO}"));
        assert!(!home.repo().exists());
    }
}

#[test]
fn names_without_their_contents_are_removed() {
    let (server, model) = served();
    let home = Home::new();
    home.good(&server, &format!("pull {REPO}"));
    fs::remove_file(home.repo().join("blobs").join(sha256(&model))).expect("it is there");
    home.bad(&server, &format!("rm {REPO}:Q8_0"), &["not in the cache"]);
    home.good(&server, &format!("rm {REPO}:Q4_K_M"));
    assert!(!home.repo().exists());
}

#[test]
fn a_folder_in_the_place_of_a_name_or_content_is_told() {
    let (server, model) = served();
    let home = Home::new();
    let name = home.repo().join("snapshots").join(COMMIT).join(FILE);
    fs::create_dir_all(name.join("inner")).expect("a folder");
    let parts = ["cannot create", FILE, "look into it and remove it"];
    home.bad(&server, &format!("pull {REPO}"), &parts);
    assert!(server.file_requests().is_empty());
    let home = Home::new();
    let blob = home.repo().join("blobs").join(sha256(&model));
    fs::create_dir_all(&blob).expect("a folder");
    let parts = ["cannot create", &sha256(&model), "look into it"];
    let stderr = home.bad(&server, &format!("pull {REPO}"), &parts);
    assert!(!stderr.contains("partial"), "{stderr}");
    assert!(server.file_requests().is_empty());
}
