//! Removing one of several models: what the others need stays.
#![cfg(unix)]

use super::home::Home;
use super::hub_server::{COMMIT, HubServer, REPO, sha256};
use super::served;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

const A: &[u8] = b"GGUF one of them";
const B: &[u8] = b"GGUF the other..";

/// Two models of one size, both fetched.
fn two() -> (HubServer, Home) {
    let server = HubServer::start(&[("m-Q4_0.gguf", A), ("m-Q8_0.gguf", B)]);
    let home = Home::new();
    for quant in ["Q4_0", "Q8_0"] {
        home.good(&server, &format!("pull {REPO}:{quant}"));
    }
    (server, home)
}

fn blob(home: &Home, content: &[u8]) -> PathBuf {
    home.repo().join("blobs").join(sha256(content))
}

fn named(home: &Home, name: &str) -> PathBuf {
    home.repo().join("snapshots").join(COMMIT).join(name)
}

/// What a removal says was freed.
fn freed(stderr: &str) -> Option<u64> {
    let before = stderr.split(" bytes").next()?;
    before.rsplit(' ').next()?.parse().ok()
}

#[test]
fn nothing_behind_a_link_is_touched() {
    let (server, _) = served();
    let places = [".no_exist", "refs/pr", "blobs/mine"];
    let deeper = [
        format!(".no_exist/{COMMIT}"),
        format!("snapshots/{COMMIT}/mine"),
    ];
    for place in places.iter().map(|p| (*p).to_string()).chain(deeper) {
        let home = Home::new();
        home.good(&server, &format!("pull {REPO}"));
        let outside = tempfile::tempdir().expect("a folder");
        let empty = outside.path().join("empty");
        fs::create_dir(&empty).expect("a folder");
        let commit = outside.path().join(COMMIT);
        fs::create_dir(&commit).expect("a folder");
        fs::write(commit.join("config.json"), "").expect("a file");
        fs::write(outside.path().join("1"), COMMIT).expect("a file");
        let link = home.repo().join(&place);
        fs::create_dir_all(link.parent().expect("a folder")).expect("a folder");
        symlink(outside.path(), &link).expect("a link");
        home.run(&server, &format!("rm {REPO}"));
        assert!(empty.is_dir() && link.is_symlink(), "{place}");
        assert!(commit.join("config.json").exists(), "{place}");
        assert!(outside.path().join("1").exists(), "{place}");
    }
}

#[test]
fn only_notes_of_the_removed_commit_go() {
    let (server, home) = two();
    let refs = home.repo().join("refs");
    let other = "3".repeat(40);
    for (name, text) in [("empty", ""), ("odd", "111"), ("pr", &*other)] {
        fs::write(refs.join(name), text).expect("a file");
    }
    symlink(refs.join("main"), refs.join("link")).expect("a link");
    // So that something of the repository stays.
    let kept = home.repo().join("snapshots").join(&other);
    fs::create_dir(&kept).expect("a folder");
    symlink(blob(&home, B), kept.join("m-Q8_0.gguf")).expect("a link");
    fs::remove_file(named(&home, "m-Q8_0.gguf")).expect("it is there");
    let ran = home.run(&server, &format!("rm {REPO}:Q4_0"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("removed m-Q4_0.gguf"), "{}", ran.stderr);
    let there = |name: &str| refs.join(name).is_symlink() || refs.join(name).exists();
    assert!(!there("main"));
    assert!(["empty", "odd", "pr", "link"].into_iter().all(there));
    home.good(&server, &format!("rm {REPO}"));
    assert!(["empty", "odd", "link"].into_iter().all(there));
    assert!(!there("pr"));
}

#[test]
fn copies_of_one_size_are_not_mixed_up() {
    for hard in [false, true] {
        let (server, home) = two();
        for (name, content) in [("m-Q4_0.gguf", A), ("m-Q8_0.gguf", B)] {
            let name = named(&home, name);
            fs::remove_file(&name).expect("it is there");
            match hard {
                true => fs::hard_link(blob(&home, content), &name).expect("a name"),
                false => fs::write(&name, content).expect("a file"),
            }
        }
        let ran = home.run(&server, &format!("rm {REPO}:Q4_0"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let one = A.len() as u64;
        let first = if hard { 0 } else { one };
        assert_eq!(freed(&ran.stderr), Some(first), "{}", ran.stderr);
        assert!(blob(&home, B).exists() && named(&home, "m-Q8_0.gguf").exists());
        let ran = home.run(&server, &format!("rm {REPO}"));
        let rest = if hard { 2 * one } else { 3 * one };
        assert_eq!(freed(&ran.stderr), Some(rest), "{}", ran.stderr);
        assert!(!home.repo().exists());
    }
}

#[test]
fn a_removal_that_is_refused_can_be_done_again() {
    let (server, home) = two();
    let blobs = home.repo().join("blobs");
    let allow = |mode| fs::set_permissions(&blobs, fs::Permissions::from_mode(mode));
    allow(0o500).expect("allowed");
    let line = format!("rm {REPO}:Q4_0");
    let mut command = home.command(&server, &line);
    if fs::write(blobs.join("probe"), "").is_ok() {
        // To root nothing is refused, so it is done as nobody.
        const NOBODY: u32 = 65_534;
        fs::remove_file(blobs.join("probe")).expect("it is there");
        let chown = std::process::Command::new("chown")
            .args(["-R", &NOBODY.to_string()])
            .arg(home.path())
            .status();
        assert!(chown.expect("chown runs").success());
        command.uid(NOBODY);
    }
    let output = command.output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("cannot remove"), "{stderr}");
    assert!(stderr.contains(&sha256(A)), "{stderr}");
    allow(0o700).expect("allowed");
    home.good(&server, &line);
    assert!(!blob(&home, A).exists() && blob(&home, B).exists());
}

#[test]
fn two_removals_at_once_are_none_too_many() {
    for _ in 0..10 {
        let (server, home) = two();
        let children = [0; 4].map(|_| home.start(&server, &format!("rm {REPO}")));
        for child in children {
            let output = child.wait_with_output().expect("it ends");
            let stderr = String::from_utf8_lossy(&output.stderr);
            let absent = stderr.contains("not in the cache");
            assert!(output.status.success() || absent, "{stderr}");
        }
        assert!(!home.repo().exists());
    }
}

#[test]
fn a_word_that_fits_several_models_is_not_enough() {
    let server = HubServer::start(&[("tiny-Q4_0.gguf", A), ("tiny-Q8_0.gguf", B)]);
    let home = Home::new();
    for quant in ["Q4_0", "Q8_0"] {
        home.good(&server, &format!("pull {REPO}:{quant}"));
    }
    let parts = ["several", "tiny-Q4_0.gguf", "tiny-Q8_0.gguf"];
    home.bad(&server, &format!("rm {REPO}:tiny"), &parts);
    home.good(&server, &format!("rm {REPO}:q4_0"));
    home.good(&server, &format!("rm {REPO}:tiny"));
    assert!(!home.repo().exists());
}
