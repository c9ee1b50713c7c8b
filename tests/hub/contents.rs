//! Which file is taken, what is in the cache, and getting rid of it.

use super::home::Home;
use super::hub_server::{HubServer, REPO, sha256};
use super::{FILE, model, served};
use serde_json::Value as Json;

/// A second commit.
const NEWER: &str = "2222222222222222222222222222222222222222";

pub fn list(home: &Home, server: &HubServer) -> Vec<Json> {
    let text = home.good(server, "list --json");
    let json: Json = serde_json::from_str(&text).expect("JSON on stdout");
    json["models"].as_array().expect("models").clone()
}

#[test]
fn the_named_or_the_nearest_file_is_taken_from_several_pages() {
    let server = HubServer::start(&[
        ("a-F16.gguf", b"GGUF f16"),
        ("a-Q5_K_M.gguf", b"GGUF q5"),
        ("a-Q8_0.gguf", b"GGUF q8"),
        ("mmproj-a-Q4_K_M.gguf", b"GGUF mmproj"),
        ("README.md", b"# a"),
        ("sub/b-Q8_0.gguf", b"GGUF sub"),
    ]);
    let home = Home::new();
    for (what, name) in [
        ("", "a-Q5_K_M.gguf"),
        (":q8_0", "a-Q8_0.gguf"),
        (":sub/b-Q8_0.gguf", "sub/b-Q8_0.gguf"),
    ] {
        let path = home.good(&server, &format!("pull {REPO}{what}"));
        assert!(path.trim_end().ends_with(name), "{what}: {path}");
    }
    assert!(
        server
            .requests()
            .iter()
            .any(|r| r.target.contains("cursor=2"))
    );
    let parts = [
        "there is no Q2_K",
        "a-F16.gguf",
        "a-Q8_0.gguf",
        "sub/b-Q8_0.gguf",
    ];
    let stderr = home.bad(&server, &format!("pull {REPO}:Q2_K"), &parts);
    assert!(!stderr.contains("mmproj"), "{stderr}");
    home.bad(&server, &format!("pull {REPO}:Q4_K_M"), &["there is no"]);
    // What is no model, too, when it is named exactly.
    let file = "mmproj-a-Q4_K_M.gguf";
    let path = home.good(&server, &format!("pull {REPO}:{file}"));
    assert!(path.trim_end().ends_with(file), "{path}");
    server.faults().relative_pages = true;
    Home::new().good(&server, &format!("pull {REPO}:sub/b-Q8_0.gguf"));
}

#[test]
fn a_repository_without_a_user_is_as_good_as_others() {
    let (server, model) = served();
    let home = Home::new();
    let snapshot = home.path().join("hub/models--gpt2/snapshots").join(NEWER);
    std::fs::create_dir_all(&snapshot).expect("a folder");
    std::fs::write(snapshot.join(FILE), &model).expect("a file");
    // No name that the hub allows; it cannot be removed, so it is not shown.
    let odd = home.path().join("hub/models--a--b--c/snapshots/c0");
    std::fs::create_dir_all(&odd).expect("a folder");
    std::fs::write(odd.join(FILE), &model).expect("a file");
    let kept = list(&home, &server);
    assert_eq!((kept.len(), &kept[0]["repo"]), (1, &"gpt2".into()));
    home.good(&server, "logits -hf gpt2 --tokens 1");
    home.good(&server, "rm gpt2:q4_k_m");
    assert!(list(&home, &server).is_empty());
    home.bad(&server, "pull gpt2", &["404", "/api/models/gpt2/"]);
}

#[test]
fn what_lies_deep_is_found_again_or_not_fetched() {
    let deep = |folders: usize| "f/".repeat(folders) + FILE;
    let server = HubServer::start(&[(&deep(32), b"GGUF deep")]);
    let home = Home::new();
    let path = home.good(&server, &format!("pull {REPO}"));
    assert_eq!(list(&home, &server)[0]["file"], deep(32));
    let line = format!("pull {REPO}:{}", deep(32));
    let mut offline = home.command(&server, &line);
    let output = offline.env("HF_HUB_OFFLINE", "1").output();
    assert_eq!(output.expect("it ends").stdout, path.as_bytes());
    let server = HubServer::start(&[(&deep(33), b"GGUF deep")]);
    home.bad(&server, &format!("pull {REPO}"), &["folders", "refused"]);
    let server = HubServer::start(&[(&deep(33), b"GGUF deep"), ("m-Q8_0.gguf", b"GGUF q8")]);
    let ran = home.run(&server, &format!("pull {REPO}"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("left out"), "{}", ran.stderr);
}

#[test]
fn without_network_the_cache_serves() {
    let (server, _) = served();
    let home = Home::new();
    let offline = |line: &str, endpoint: &str| {
        let mut command = home.command(&server, line);
        command.env("HF_ENDPOINT", endpoint);
        if endpoint == server.address() {
            command.env("HF_HUB_OFFLINE", "1");
        }
        let output = command.output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr).to_string();
        (output.status.code(), stderr)
    };
    let logits = format!("logits -hf {REPO} --tokens 1");
    // Nobody listens on the port of discarded data.
    let nobody = "http://127.0.0.1:9";
    for (endpoint, part) in [
        (server.address(), "HF_HUB_OFFLINE"),
        (nobody, "cannot reach"),
    ] {
        let (code, stderr) = offline(&logits, endpoint);
        assert_eq!((code, stderr.lines().count()), (Some(1), 1), "{stderr}");
        assert!(stderr.contains(part), "{stderr}");
    }
    home.good(&server, &format!("pull {REPO}"));
    let requests = server.requests().len();
    for endpoint in [server.address(), nobody] {
        for line in [logits.as_str(), &format!("pull {REPO}"), "list"] {
            let (code, stderr) = offline(line, endpoint);
            assert_eq!(code, Some(0), "{line}: {stderr}");
        }
    }
    assert_eq!(server.requests().len(), requests);
}

#[test]
fn pull_looks_for_a_newer_commit() {
    let (server, old) = served();
    let home = Home::new();
    home.good(&server, &format!("pull {REPO}"));
    home.good(&server, &format!("pull {REPO}"));
    assert_eq!(server.file_requests().len(), 1);
    let mut newer = old.clone();
    newer.push(0);
    server.commit(NEWER, FILE, &newer);
    // What is in the cache is good enough for the others.
    home.good(&server, &format!("inspect -hf {REPO}"));
    assert_eq!(server.file_requests().len(), 1);
    let path = home.good(&server, &format!("pull {REPO}"));
    assert!(path.contains(NEWER), "{path}");
    assert_eq!(std::fs::read(path.trim_end()).expect("a file"), newer);
    assert_eq!(list(&home, &server).len(), 2);
    home.good(&server, &format!("rm {REPO}"));
    assert!(!home.repo().exists());
}

#[test]
fn all_shards_are_fetched_and_the_first_is_the_model() {
    let shards: Vec<String> = (1..=3)
        .map(|no| format!("q/m-Q4_K_M-0000{no}-of-00003.gguf"))
        .collect();
    let contents: Vec<Vec<u8>> = (1..=3)
        .map(|no| format!("GGUF {no}").into_bytes())
        .collect();
    let files: Vec<(&str, &[u8])> = shards
        .iter()
        .zip(&contents)
        .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
        .collect();
    let server = HubServer::start(&files);
    let home = Home::new();
    let path = home.good(&server, &format!("pull {REPO}:{}", shards[1]));
    assert!(path.trim_end().ends_with(&shards[0]), "{path}");
    let folder = std::path::Path::new(path.trim_end())
        .parent()
        .expect("a folder");
    for (name, bytes) in files {
        let name = name.strip_prefix("q/").expect("in q");
        assert_eq!(std::fs::read(folder.join(name)).expect("a file"), bytes);
    }
    let kept = list(&home, &server);
    assert_eq!(
        (kept.len(), &kept[0]["files"], &kept[0]["bytes"]),
        (1, &3.into(), &18.into())
    );
    let server = HubServer::start(&[(&shards[0], b"GGUF 1")]);
    let parts = ["missing", &shards[0]];
    Home::new().bad(&server, &format!("pull {REPO}:Q4_K_M"), &parts);
}

#[test]
fn list_and_rm_know_what_is_there() {
    let model = model();
    let server = HubServer::start(&[(FILE, &model), ("tiny-Q8_0.gguf", b"GGUF q8")]);
    let home = Home::new();
    assert_eq!(list(&home, &server), [Json::Null; 0]);
    assert_eq!(home.good(&server, "list"), "");
    home.good(&server, &format!("pull {REPO}"));
    home.good(&server, &format!("pull {REPO}:Q8_0"));
    let table = home.good(&server, "list");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[0].starts_with("repo "), "{table}");
    assert!(
        lines[1].contains(REPO) && lines[1].contains(FILE),
        "{table}"
    );
    home.bad(
        &server,
        &format!("rm {REPO}:Q2_K"),
        &["Q2_K", "not in the cache"],
    );
    home.bad(&server, "rm tester/none", &["tester/none"]);
    let ran = home.run(&server, &format!("rm {REPO}:q4_k_m"));
    let freed = format!("{} bytes", model.len());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""));
    assert!(ran.stderr.contains(&freed), "{}", ran.stderr);
    assert_eq!(home.blobs(), [sha256(b"GGUF q8")]);
    assert_eq!(list(&home, &server)[0]["file"], "tiny-Q8_0.gguf");
    home.good(&server, &format!("rm {REPO}"));
    assert!(!home.repo().exists());
}

#[test]
fn a_partial_file_is_listed_and_removed_unless_somebody_fetches_it() {
    let (server, model) = served();
    let home = Home::new();
    server.faults().stall_after = Some(16_384);
    let mut child = home.start(&server, &format!("pull {REPO}"));
    home.wait_for_partial(16_384);
    let kept = list(&home, &server);
    assert_eq!(
        (&kept[0]["partial"], &kept[0]["file"]),
        (&true.into(), &FILE.into())
    );
    home.bad(&server, &format!("rm {REPO}"), &[FILE, "another process"]);
    child.kill().expect("killed");
    child.wait().expect("it ends");
    assert_eq!(home.blobs().len(), 2, "{}", model.len());
    home.good(&server, &format!("rm {REPO}:Q4_K_M"));
    assert!(!home.repo().exists());
}

#[cfg(unix)]
#[test]
fn what_is_linked_into_the_cache_is_left_alone() {
    use std::os::unix::fs::symlink;
    let (server, _) = served();
    let home = Home::new();
    home.good(&server, &format!("pull {REPO}"));
    let outside = tempfile::tempdir().expect("a folder");
    let precious = outside.path().join("other.gguf");
    std::fs::write(&precious, "GGUF").expect("a file");
    symlink(&precious, home.repo().join("blobs/feed")).expect("a link");
    let link = home.repo().join("snapshots/cafe");
    symlink(outside.path(), &link).expect("a link");
    home.bad(&server, &format!("rm {REPO}"), &["nothing removed", "cafe"]);
    std::fs::remove_file(link).expect("it is there");
    home.good(&server, &format!("rm {REPO}"));
    assert!(precious.exists());
    assert!(list(&home, &server).is_empty());
}

#[test]
fn contents_without_a_name_go_with_their_repository() {
    let (server, _) = served();
    let home = Home::new();
    let blobs = home.repo().join("blobs");
    std::fs::create_dir_all(&blobs).expect("a folder");
    // The first of several files; the process was killed during the next.
    std::fs::write(blobs.join(sha256(b"a shard")), "a shard").expect("a file");
    home.bad(&server, &format!("rm {REPO}:Q8_0"), &["not in the cache"]);
    home.good(&server, &format!("rm {REPO}"));
    assert!(home.blobs().is_empty());
}
