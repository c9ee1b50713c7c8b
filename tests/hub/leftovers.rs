//! Caches that are read-only, changed by others meanwhile, or hold what nobody expects.

use super::contents::list;
use super::home::Home;
use super::hub_server::{COMMIT, HubServer, REPO, sha256};
use super::{FILE, served};
use std::fs;
use std::time::{Duration, Instant};

#[test]
fn what_is_there_is_used_without_writing() {
    let (server, _) = served();
    let home = Home::new();
    let pull = format!("pull {REPO}");
    let path = home.good(&server, &pull);
    let locks = home.path().join("hub/.locks");
    fs::remove_dir_all(&locks).expect("locks were there");
    fs::write(&locks, "no folder").expect("a file");
    assert_eq!(home.good(&server, &pull), path);
    // The newest commit cannot be noted.
    let refs = home.repo().join("refs");
    fs::remove_dir_all(&refs).expect("refs were there");
    fs::write(&refs, "no folder").expect("a file");
    let ran = home.run(&server, &pull);
    assert_eq!((ran.code, ran.stdout), (Some(0), path), "{}", ran.stderr);
    assert!(ran.stderr.contains("cannot write"), "{}", ran.stderr);
    fs::remove_dir_all(home.repo()).expect("a folder");
    home.bad(&server, &pull, &["cannot lock"]);
}

#[cfg(unix)]
#[test]
fn a_read_only_cache_serves_what_it_has() {
    use std::os::unix::fs::PermissionsExt;
    let model = super::model();
    let server = HubServer::start(&[(FILE, &model), ("tiny-Q8_0.gguf", b"GGUF q8")]);
    let home = Home::new();
    let path = home.good(&server, &format!("pull {REPO}"));
    let hub = home.path().join("hub");
    let set_mode = |mode: &str| {
        let mut command = std::process::Command::new("chmod");
        let status = command.args(["-R", mode]).arg(&hub).status();
        assert!(status.expect("chmod runs").success());
    };
    set_mode("a-w");
    for line in [format!("pull {REPO}"), format!("pull {REPO}:{FILE}")] {
        let ran = home.run(&server, &line);
        assert_eq!((ran.code, &ran.stdout), (Some(0), &path), "{}", ran.stderr);
        assert!(!ran.stderr.contains("warning"), "{}", ran.stderr);
    }
    home.good(&server, &format!("logits -hf {REPO} --tokens 1"));
    assert_eq!(list(&home, &server).len(), 1);
    // The superuser may write all the same.
    if fs::metadata(&hub).is_ok_and(|meta| meta.permissions().mode() & 0o222 == 0)
        && fs::File::create(hub.join("probe")).is_err()
    {
        let parts = ["cannot", "HF_HUB_CACHE"];
        home.bad(&server, &format!("pull {REPO}:Q8_0"), &parts);
    }
    set_mode("u+w");
}

#[test]
fn a_refused_download_leaves_nothing() {
    let (server, _) = served();
    let home = Home::new();
    for status in [401, 404] {
        server.faults().file_status = Some((status, 1));
        home.bad(&server, &format!("pull {REPO}"), &[&status.to_string()]);
        assert!(!home.repo().exists());
        assert!(list(&home, &server).is_empty());
    }
}

/// A possible name of a content.
const FEED: &str = "feedfeedfeedfeedfeedfeedfeedfeedfeedfeed";

#[test]
fn leftovers_without_a_name_or_bytes_can_be_removed() {
    let (server, _) = served();
    let home = Home::new();
    let blobs = home.repo().join("blobs");
    let [partial, note] = ["", ".json"].map(|end| blobs.join(format!("{FEED}.partial{end}")));
    let unnamed = format!("blobs/{FEED}.partial");
    let named = "{\"file\":\"m-Q8_0.gguf\",\"etag\":null}";
    for (bytes, text, shown) in [
        (Some(""), None, None),
        (None, Some(named), None),
        (Some("GG"), None, Some(&*unnamed)),
        (Some("GG"), Some("nonsense"), Some(&*unnamed)),
        (Some(""), Some(named), Some("m-Q8_0.gguf")),
    ] {
        fs::create_dir_all(&blobs).expect("a folder");
        for (path, text) in [(&partial, bytes), (&note, text)] {
            if let Some(text) = text {
                fs::write(path, text).expect("a file");
            }
        }
        let kept = list(&home, &server);
        let names: Vec<_> = kept.iter().filter_map(|m| m["file"].as_str()).collect();
        assert_eq!(names, Vec::from_iter(shown), "{bytes:?} {text:?}");
        assert!(kept.iter().all(|model| model["partial"] == true));
        home.good(&server, &format!("rm {REPO}"));
        assert!(!home.repo().exists(), "{bytes:?} {text:?}");
    }
}

#[test]
fn a_model_with_missing_files_is_listed_as_such() {
    let (server, _) = served();
    let home = Home::new();
    let snapshot = home.repo().join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).expect("a folder");
    fs::write(snapshot.join("m-Q8_0-00001-of-00002.gguf"), "GGUF").expect("a file");
    let kept = list(&home, &server);
    assert_eq!(kept[0]["partial"], true);
    assert_eq!(kept[0]["path"], serde_json::Value::Null);
    home.good(&server, &format!("rm {REPO}:Q8_0"));
    assert!(!home.repo().exists());
}

#[cfg(unix)]
#[test]
fn links_and_pipes_in_the_place_of_our_files_do_no_harm() {
    use std::os::unix::fs::symlink;
    let (server, model) = served();
    let outside = tempfile::tempdir().expect("a folder");
    let precious = outside.path().join("precious");
    fs::write(&precious, "text").expect("a file");
    let id = sha256(&model);
    let pipe_at = |path: &std::path::Path| {
        let status = std::process::Command::new("mkfifo").arg(path).status();
        assert!(status.expect("mkfifo runs").success());
    };
    for is_pipe in [false, true] {
        let home = Home::new();
        let plant = |name: &str| {
            let path = home.path().join("hub").join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            match is_pipe {
                true => pipe_at(&path),
                false => symlink(&precious, &path).expect("a link"),
            }
            path
        };
        let folder = "models--tester--tiny-GGUF";
        let lock = plant(&format!(".locks/{folder}/{id}.lock"));
        let plant_all = || {
            for name in [".partial", ".partial.json"] {
                plant(&format!("{folder}/blobs/{id}{name}"));
            }
            plant(&format!("{folder}/refs/main"));
        };
        plant_all();
        let line = format!("pull {REPO}");
        home.bad(
            &server,
            &line,
            &["cannot lock", "not a regular file; remove it"],
        );
        assert!(list(&home, &server).is_empty());
        home.good(&server, &format!("rm {REPO}"));
        // What is no note of ours stays.
        assert!(home.blobs().is_empty());
        fs::remove_file(home.repo().join("refs/main")).expect("it is there");
        fs::remove_file(lock).expect("it is there");
        plant_all();
        home.good(&server, &line);
        assert_eq!(home.blobs(), [id.as_str()]);
        assert_eq!(list(&home, &server).len(), 1);
        assert_eq!(fs::read(&precious).expect("untouched"), b"text");
    }
}

#[test]
fn what_another_process_removes_meanwhile_is_fetched_once_more() {
    let shards = [b"GGUF 1".to_vec(), [&b"GGUF"[..], &[0; 300_000]].concat()];
    let server = HubServer::start(&[
        ("m-Q4_0-00001-of-00002.gguf", &shards[0]),
        ("m-Q4_0-00002-of-00002.gguf", &shards[1]),
    ]);
    server.faults().pace = Duration::from_millis(20);
    let home = Home::new();
    let child = home.start(&server, &format!("pull {REPO}"));
    let first = home.repo().join("blobs").join(sha256(&shards[0]));
    let started = Instant::now();
    while !(first.exists() && server.file_requests().len() == 2) {
        assert!(started.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(2));
    }
    fs::remove_file(&first).expect("it is there");
    let output = child.wait_with_output().expect("it ends");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert_eq!(server.file_requests().len(), 3);
    assert_eq!(fs::read(&first).expect("a file"), shards[0]);
}
