//! Models from a hub: the built binary against a server on this machine.

#[path = "hub/addresses.rs"]
mod addresses;
#[path = "hub/contents.rs"]
mod contents;
#[path = "hub/faults.rs"]
mod faults;
#[path = "hub/home.rs"]
mod home;
#[path = "common/hub_server.rs"]
mod hub_server;
#[path = "hub/leftovers.rs"]
mod leftovers;
#[path = "hub/ours.rs"]
mod ours;
#[path = "hub/proxies.rs"]
mod proxies;
#[path = "hub/removal.rs"]
mod removal;
#[path = "hub/repair.rs"]
mod repair;
#[path = "hub/settings.rs"]
mod settings;

#[allow(dead_code, reason = "tests/cli.rs uses the rest")]
#[path = "cli/tiny.rs"]
mod tiny;

use home::{Home, Ran};
use hub_server::{COMMIT, HubServer, REPO, sha256};
use std::path::Path;
use std::time::Duration;

/// The name of the file that [`served`] has.
const FILE: &str = "tiny-Q4_K_M.gguf";

/// Bytes of a small model that runs.
fn model() -> Vec<u8> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arch");
    std::fs::read(dir.join("llama-dense-Q4_K_M.gguf")).expect("the fixture is there")
}

fn served() -> (HubServer, Vec<u8>) {
    let model = model();
    (HubServer::start(&[(FILE, &model)]), model)
}

fn interrupt(child: &std::process::Child) {
    let pid = child.id().to_string();
    let status = std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status();
    assert!(status.expect("kill runs").success());
}

#[test]
fn pull_prints_the_path_in_the_layout_that_other_tools_share() {
    let (server, model) = served();
    let home = Home::new();
    let ran = home.run(&server, &format!("pull {REPO}"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let path = home.repo().join("snapshots").join(COMMIT).join(FILE);
    assert_eq!(ran.stdout, format!("{}\n", path.display()));
    assert_eq!(std::fs::read(&path).expect("a file"), model);
    assert_eq!(home.blobs(), [sha256(&model)]);
    let main = std::fs::read_to_string(home.repo().join("refs/main"));
    assert_eq!(main.expect("a ref"), COMMIT);
    #[cfg(unix)]
    assert_eq!(
        std::fs::read_link(&path).expect("a link"),
        Path::new(&format!("../../blobs/{}", sha256(&model)))
    );
    // One line at the start, one at the end.
    assert_eq!(ran.stderr.lines().count(), 2, "{}", ran.stderr);
    let quiet = Home::new().run(&server, &format!("pull --quiet {REPO}"));
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""));
}

#[test]
fn every_command_takes_a_model_from_the_hub_and_a_cached_one_costs_no_request() {
    let (server, _) = served();
    let home = Home::new();
    home.good(&server, &format!("logits -hf {REPO} --tokens 1,2"));
    let requests = server.requests().len();
    assert_eq!(server.file_requests().len(), 1);
    for line in [
        format!("logits -hf {REPO}:q4_k_m --tokens 1,2"),
        format!("logits -hf {REPO}:{FILE} --tokens 1,2"),
        format!("logits -hf {REPO} -hff {FILE} --tokens 1,2"),
        format!("logits --hf-repo={REPO} --tokens 1"),
        format!("bench -hf {REPO} -p 1 -n 1 -r 1"),
        format!("inspect -hf {REPO}"),
        format!(
            "logits -hf {}/{REPO}/resolve/main/{FILE} --tokens 1",
            server.address()
        ),
    ] {
        home.good(&server, &line);
    }
    assert_eq!(server.requests().len(), requests);
}

#[test]
fn a_split_model_from_the_hub_speaks() {
    let shards = [tiny::vocabulary(), tiny::ids_only("llama")];
    let shards: Vec<Vec<u8>> = (0..)
        .zip(shards)
        .map(|(no, mut shard)| {
            shard.u32("split.no", no);
            shard.u32("split.count", 2);
            shard.bytes()
        })
        .collect();
    let server = HubServer::start(&[
        ("m-F32-00001-of-00002.gguf", &shards[0]),
        ("m-F32-00002-of-00002.gguf", &shards[1]),
    ]);
    let home = Home::new();
    let line = format!("simple -hf {REPO} --device cpu -n 2 a");
    assert_eq!(home.good(&server, &line), "abc\n");
    assert_eq!(server.file_requests().len(), 2);
    assert_eq!(home.good(&server, &line), "abc\n");
    assert_eq!(server.file_requests().len(), 2);
}

#[test]
fn wrong_usage_exits_with_2() {
    let (server, _) = served();
    let home = Home::new();
    for line in [
        "logits -hf a/b/c --tokens 1".to_string(),
        "logits -hf model.gguf --tokens 1".to_string(),
        format!("logits -hf {REPO} -m model.gguf --tokens 1"),
        format!("logits -hff {FILE} --tokens 1"),
        format!("logits -hf {REPO}:Q8_0 -hff {FILE} --tokens 1"),
        format!("inspect -hf {REPO}:{FILE} -hff {FILE}"),
        format!("simple -hf {REPO} -hff ../x a"),
        format!("simple -hf {REPO} -hff= a"),
        "pull ../evil".to_string(),
        "pull".to_string(),
        format!("inspect -hf {REPO} model.gguf"),
    ] {
        let ran = home.run(&server, &line);
        assert_eq!(ran.code, Some(2), "{line}: {}", ran.stderr);
    }
    assert!(server.requests().is_empty());
}

#[test]
fn a_killed_download_goes_on_where_it_was() {
    let (server, model) = served();
    let home = Home::new();
    let there = model.len() * 6 / 10;
    server.faults().stall_after = Some(there);
    let mut child = home.start(&server, &format!("pull {REPO}"));
    home.wait_for_partial(there as u64);
    child.kill().expect("killed");
    child.wait().expect("it ends");
    server.faults().stall_after = None;
    home.good(&server, &format!("pull {REPO}"));
    let requests = server.file_requests();
    assert_eq!(requests.len(), 2);
    assert_eq!(
        requests[1].header("range"),
        Some(format!("bytes={there}-").as_str())
    );
    let etag = format!("\"{}\"", sha256(&model));
    assert_eq!(requests[1].header("if-range"), Some(etag.as_str()));
    assert_eq!(server.sent(), model.len() as u64);
    assert_eq!(home.blobs(), [sha256(&model)]);
}

#[cfg(unix)]
#[test]
fn an_interrupted_download_exits_with_130_and_keeps_what_came() {
    let (server, model) = served();
    let home = Home::new();
    let there = model.len() / 2;
    server.faults().stall_after = Some(there);
    let child = home.start(&server, &format!("logits -hf {REPO} --tokens 1"));
    home.wait_for_partial(there as u64);
    interrupt(&child);
    let ran: Ran = child.wait_with_output().expect("it ends").into();
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(130), ""));
    let said = ran.stderr.contains("the same command goes on");
    assert!(said, "{}", ran.stderr);
    let mut offline = home.command(&server, &format!("logits -hf {REPO} --tokens 1"));
    let output = offline.env("HF_HUB_OFFLINE", "1").output();
    let ran: Ran = output.expect("it ends").into();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    for part in ["partly in the cache", "llama-rs pull"] {
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
    server.faults().stall_after = None;
    home.good(&server, &format!("logits -hf {REPO} --tokens 1"));
    assert_eq!(server.sent(), model.len() as u64);
}

#[test]
fn of_two_processes_the_second_waits_for_the_first() {
    let (server, model) = served();
    let home = Home::new();
    server.faults().pace = Duration::from_millis(10);
    let first = home.start(&server, &format!("pull {REPO}"));
    home.wait_for_partial(1);
    let second = home.start(&server, &format!("pull {REPO}"));
    let [first, second] = [first, second].map(|child| {
        let output = child.wait_with_output().expect("it ends");
        Ran::from(output)
    });
    assert_eq!(
        (first.code, second.code),
        (Some(0), Some(0)),
        "{}",
        second.stderr
    );
    assert_eq!(first.stdout, second.stdout);
    assert!(
        second.stderr.contains("another process is fetching"),
        "{}",
        second.stderr
    );
    assert_eq!(server.file_requests().len(), 1);
    assert_eq!(server.sent(), model.len() as u64);
}

#[test]
fn a_file_that_another_tool_fetched_is_found() {
    let (server, model) = served();
    let home = Home::new();
    let snapshot = home.repo().join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).expect("a folder");
    std::fs::write(snapshot.join(FILE), model).expect("a file");
    home.good(&server, &format!("logits -hf {REPO} --tokens 1"));
    assert!(server.requests().is_empty());
}
