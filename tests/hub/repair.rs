//! What is damaged in the cache, and what is odd in it, is told and mended.

use super::home::Home;
use super::hub_server::{HubServer, REPO, sha256};
use super::{FILE, served};
use std::fs;

/// The same number of bytes, but others.
fn damage(home: &Home, model: &[u8], other: &[u8]) {
    let blob = home.repo().join("blobs").join(sha256(model));
    let mut bytes = model.to_vec();
    bytes[..other.len()].copy_from_slice(other);
    fs::write(blob, bytes).expect("a file");
}

#[test]
fn a_damaged_file_is_named_as_such_and_mended_by_pull() {
    let (server, model) = served();
    let home = Home::new();
    let pull = format!("pull {REPO}");
    let path = home.good(&server, &pull);
    damage(&home, &model, b"JUNK");
    let line = format!("logits -hf {REPO} --tokens 1");
    let advice = format!("llama-rs rm {REPO}");
    let stderr = home.bad(&server, &line, &["damaged in the cache", &advice]);
    assert!(!stderr.contains("give the path"), "{stderr}");
    // A file that is named is its user's.
    let line = format!("logits -m {} --tokens 1", path.trim_end());
    home.bad(&server, &line, &["give the path of a .gguf file"]);
    for other in [&b"JUNK"[..], b"GGUF\x03\0\0\0 other"] {
        damage(&home, &model, other);
        let ran = home.run(&server, &pull);
        assert_eq!((ran.code, &ran.stdout), (Some(0), &path), "{}", ran.stderr);
        assert!(ran.stderr.contains("damaged"), "{}", ran.stderr);
        assert_eq!(fs::read(path.trim_end()).expect("a file"), model);
    }
    assert_eq!(server.file_requests().len(), 3);
    assert_eq!(home.blobs(), [sha256(&model)]);
}

#[test]
fn pull_says_that_it_checks_what_is_there() {
    let (server, _) = served();
    let home = Home::new();
    for outside_lfs in [false, true] {
        server.faults().outside_lfs = outside_lfs;
        let path = home.good(&server, &format!("pull {REPO}"));
        let ran = home.run(&server, &format!("pull {REPO}"));
        assert_eq!((ran.code, ran.stdout), (Some(0), path));
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        assert!(ran.stderr.contains("checking"), "{}", ran.stderr);
    }
    assert_eq!(server.file_requests().len(), 2);
}

#[test]
fn of_what_is_in_the_cache_any_type_is_taken() {
    let (server, model) = served();
    for name in ["m-IQ3_XXS.gguf", "m-TQ1_0.gguf", "m-of-tomorrow.gguf"] {
        let home = Home::new();
        let snapshot = home.repo().join("snapshots/c0");
        fs::create_dir_all(&snapshot).expect("a folder");
        for name in [name, "other-and-longer.gguf"] {
            fs::write(snapshot.join(name), &model).expect("a file");
        }
        home.good(&server, &format!("logits -hf {REPO} --tokens 1"));
    }
    assert!(server.requests().is_empty());
}

#[test]
fn a_cache_that_cannot_be_read_is_not_an_empty_one() {
    let (server, _) = served();
    let home = Home::new();
    fs::write(home.path().join("file"), "").expect("a file");
    let run = |line: &str| {
        let mut command = home.command(&server, line);
        let output = command.env("HF_HOME", home.path().join("file")).output();
        let output = output.expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr).to_string();
        (output.status.code(), stderr)
    };
    for line in [
        "list".to_string(),
        format!("rm {REPO}"),
        format!("pull {REPO}"),
        format!("logits -hf {REPO} --tokens 1"),
    ] {
        let (code, stderr) = run(&line);
        assert_eq!((code, stderr.lines().count()), (Some(1), 1), "{stderr}");
        assert!(stderr.contains("cannot read"), "{line}: {stderr}");
        assert!(stderr.contains("set HF_HUB_CACHE"), "{line}: {stderr}");
    }
    assert!(server.requests().is_empty());
    // One repository of several.
    home.good(&server, &format!("pull {REPO}"));
    let broken = home.path().join("hub/models--a--b");
    fs::write(&broken, "no folder").expect("a file");
    let ran = home.run(&server, "list");
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.contains(REPO), "{}", ran.stdout);
    assert!(ran.stderr.contains("models--a--b"), "{}", ran.stderr);
    home.bad(&server, "rm a/b", &["cannot read"]);
    home.good(&server, &format!("rm {REPO}"));
    home.bad(&server, "list", &["models--a--b", "cannot read"]);
}

#[cfg(unix)]
#[test]
fn a_path_is_printed_as_it_is() {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let (server, model) = served();
    let home = Home::new();
    let odd = std::ffi::OsString::from_vec(b"h\xffome".to_vec());
    let mut command = home.command(&server, &format!("pull {REPO}"));
    let output = command.env("HF_HOME", home.path().join(odd)).output();
    let stdout = output.expect("it ends").stdout;
    let path = stdout.strip_suffix(b"\n").expect("a line");
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
    assert_eq!(fs::read(path).expect("a file"), model);
}

#[test]
fn a_pasted_address_may_be_encoded() {
    let model = super::model();
    let server = HubServer::start(&[("sub/a b-Q8_0.gguf", &model)]);
    server.faults().encoded_names = true;
    let address = format!("{}/{REPO}/resolve/main", server.address());
    let home = Home::new();
    for file in [
        "sub%2Fa%20b-Q8_0.gguf?download=true",
        "sub/a%20b-Q8%5f0.gguf",
    ] {
        let path = home.good(&server, &format!("pull {address}/{file}"));
        assert!(path.ends_with("sub/a b-Q8_0.gguf\n"), "{path}");
    }
    assert_eq!(server.file_requests().len(), 1);
    let ran = home.run(&server, &format!("pull {address}/%2e%2e/{FILE}"));
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
}
