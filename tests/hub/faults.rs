//! Servers that fail, lie, or are not what they seem.

use super::home::Home;
use super::hub_server::{HubServer, REPO, git_hash, sha256};
use super::{FILE, served};
use std::time::{Duration, Instant};

fn pull() -> String {
    format!("pull {REPO}")
}

#[test]
fn a_connection_that_breaks_is_taken_up_again() {
    let (server, model) = served();
    let home = Home::new();
    server.faults().cut_after = Some(300_000);
    server.faults().cuts = 2;
    let ran = home.run(&server, &pull());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("trying again"), "{}", ran.stderr);
    assert_eq!(server.file_requests().len(), 3);
    assert_eq!(server.sent(), model.len() as u64);
}

#[test]
fn one_that_always_breaks_is_given_up_with_what_to_do() {
    let (server, _) = served();
    let home = Home::new();
    server.faults().cut_after = Some(16_384);
    server.faults().cuts = usize::MAX;
    let parts = [FILE, "96.0 KiB of", "same command again to continue"];
    home.bad(&server, &pull(), &parts);
    assert_eq!(server.file_requests().len(), 6);
    server.faults().cuts = 0;
    home.good(&server, &pull());
    let last = server.file_requests().pop().expect("requests");
    assert_eq!(last.header("range"), Some("bytes=98304-"));
}

#[test]
fn a_server_without_ranges_sends_it_all_again() {
    let (server, model) = served();
    let home = Home::new();
    server.faults().ignore_range = true;
    server.faults().cut_after = Some(163_840);
    server.faults().cuts = 1;
    home.good(&server, &pull());
    assert_eq!(server.file_requests().len(), 2);
    assert_eq!(server.sent(), 163_840 + model.len() as u64);
    assert_eq!(home.blobs(), [sha256(&model)]);
}

#[test]
fn a_part_of_another_file_is_not_added() {
    let (server, model) = served();
    let home = Home::new();
    server.faults().other_part = true;
    server.faults().cut_after = Some(163_840);
    server.faults().cuts = 1;
    home.good(&server, &pull());
    let requests = server.file_requests();
    let ranges: Vec<_> = requests.iter().map(|r| r.header("range")).collect();
    assert_eq!(ranges, [None, Some("bytes=163840-"), None]);
    assert_eq!(home.blobs(), [sha256(&model)]);
}

#[test]
fn a_partial_file_may_be_whole_or_too_long() {
    let (server, model) = served();
    let home = Home::new();
    let blobs = home.repo().join("blobs");
    let partial = blobs.join(format!("{}.partial", sha256(&model)));
    std::fs::create_dir_all(&blobs).expect("a folder");
    std::fs::write(&partial, &model).expect("a file");
    home.good(&server, &pull());
    assert!(server.file_requests().is_empty());
    let home = Home::new();
    let blobs = home.repo().join("blobs");
    std::fs::create_dir_all(&blobs).expect("a folder");
    let partial = blobs.join(format!("{}.partial", sha256(&model)));
    // So much that to read it would take minutes.
    let file = std::fs::File::create(&partial).expect("a file");
    file.set_len(1 << 40).expect("a hole");
    let started = Instant::now();
    home.good(&server, &pull());
    assert_eq!(server.sent(), model.len() as u64);
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_refused_range_starts_over() {
    let (server, model) = served();
    let home = Home::new();
    let blobs = home.repo().join("blobs");
    std::fs::create_dir_all(&blobs).expect("a folder");
    let partial = blobs.join(format!("{}.partial", sha256(&model)));
    std::fs::write(&partial, &model[..1000]).expect("a file");
    server.faults().file_status = Some((416, 1));
    home.good(&server, &pull());
    assert_eq!(server.sent(), model.len() as u64);
}

#[test]
fn corrupted_bytes_are_refused_and_named_and_do_not_stay() {
    let (server, model) = served();
    let home = Home::new();
    server.faults().corrupt = true;
    home.bad(
        &server,
        &pull(),
        &[FILE, "corrupted", &sha256(&model), "deleted"],
    );
    assert_eq!(home.blobs(), [""; 0]);
    assert!(!home.repo().join("snapshots").exists());
    server.faults().corrupt = false;
    home.good(&server, &pull());
}

#[test]
fn a_file_outside_lfs_is_checked_by_its_git_hash() {
    let (server, model) = served();
    let home = Home::new();
    server.faults().outside_lfs = true;
    server.faults().corrupt = true;
    let parts = [FILE, "corrupted", "git hash", &git_hash(&model), "deleted"];
    home.bad(&server, &pull(), &parts);
    assert_eq!(home.blobs(), [""; 0]);
    server.faults().corrupt = false;
    // Also when it comes in two pieces.
    server.faults().cut_after = Some(300_000);
    server.faults().cuts = 1;
    home.good(&server, &pull());
    assert_eq!(home.blobs(), [git_hash(&model)]);
}

#[test]
fn a_size_that_lies_is_refused() {
    let (server, _) = served();
    let home = Home::new();
    server.faults().longer = 5;
    home.bad(&server, &pull(), &[FILE, "the hub lists"]);
    assert!(home.blobs().iter().all(|name| name.contains(".partial")));
}

#[test]
fn what_comes_after_the_file_is_not_read() {
    let (server, _) = served();
    let home = Home::new();
    server.faults().endless = true;
    home.good(&server, &pull());
}

#[test]
fn a_page_instead_of_a_file_is_recognised() {
    for (body, kind) in [
        ("<!DOCTYPE html><html></html>", "a web page"),
        ("{\"error\":\"no\"}", "JSON"),
        ("nothing of use", "not GGUF"),
    ] {
        let (server, _) = served();
        let home = Home::new();
        server.faults().instead = Some(body);
        home.bad(&server, &pull(), &[FILE, kind]);
    }
    let (server, _) = served();
    server.faults().list = Some("<html>log in</html>");
    Home::new().bad(&server, &pull(), &["web page"]);
    server.faults().list = Some("{\"error\":\"no\"}");
    Home::new().bad(&server, &pull(), &["JSON"]);
}

#[test]
fn a_login_page_does_not_cost_what_came_before_it() {
    let (server, model) = served();
    let home = Home::new();
    let blobs = home.repo().join("blobs");
    std::fs::create_dir_all(&blobs).expect("a folder");
    let partial = blobs.join(format!("{}.partial", sha256(&model)));
    std::fs::write(&partial, &model[..500_000]).expect("a file");
    server.faults().instead = Some("<html>log in</html>");
    home.bad(&server, &pull(), &[FILE, "a web page"]);
    server.faults().instead = None;
    home.good(&server, &pull());
    assert_eq!(server.sent(), model.len() as u64 - 500_000);
}

#[test]
fn what_came_from_other_bytes_is_fetched_anew() {
    let (server, model) = served();
    let home = Home::new();
    let blobs = home.repo().join("blobs");
    std::fs::create_dir_all(&blobs).expect("a folder");
    let partial = blobs.join(format!("{}.partial", sha256(&model)));
    std::fs::write(&partial, vec![7; 1000]).expect("a file");
    let note = blobs.join(format!("{}.partial.json", sha256(&model)));
    std::fs::write(&note, "{\"file\":\"x\",\"etag\":\"\\\"other\\\"\"}").expect("a file");
    home.good(&server, &pull());
    assert_eq!(
        server.file_requests()[0].header("if-range"),
        Some("\"other\"")
    );
    assert_eq!(home.blobs(), [sha256(&model)]);
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_noticed_before() {
    let (server, _) = served();
    let home = Home::new();
    server.faults().list = Some(
        "[{\"type\":\"file\",\"oid\":\"\",\"size\":1,\"path\":\"a.gguf\",\"lfs\":{\"oid\":\
         \"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\",\
         \"size\":1000000000000000000}}]",
    );
    home.bad(&server, &pull(), &["to fetch", "free", "HF_HOME"]);
    assert!(server.file_requests().is_empty());
}

#[test]
fn refusals_say_what_to_do() {
    let (server, _) = served();
    let home = Home::new();
    server.faults().token = Some("hf_good");
    home.bad(&server, &pull(), &["401", "HF_TOKEN", "gated"]);
    let with_token = |token: &str| {
        let mut command = home.command(&server, &format!("{} -v -v", pull()));
        let output = command.env("HF_TOKEN", token).output().expect("it ends");
        let stderr = String::from_utf8_lossy(&output.stderr).to_string();
        assert!(!stderr.contains(token), "{stderr}");
        (output.status.code(), stderr)
    };
    let (code, stderr) = with_token("hf_wrong");
    assert_eq!(code, Some(1));
    assert!(stderr.contains("the token is wrong"), "{stderr}");
    assert_eq!(with_token("hf_good").0, Some(0));
    // Where other tools keep it.
    let home = Home::new();
    std::fs::write(home.path().join("token"), "hf_good\n").expect("a file");
    home.good(&server, &pull());
    server.faults().token = None;
    for (status, part) in [(403, "HF_TOKEN"), (404, "no such repository")] {
        server.faults().api_status = Some((status, 1));
        Home::new().bad(&server, &pull(), &[&status.to_string(), part, REPO]);
    }
    Home::new().bad(&server, "pull tester/none", &["404", "tester/none"]);
}

#[test]
fn a_busy_server_is_asked_again() {
    for status in [429, 500, 503] {
        let (server, _) = served();
        server.faults().file_status = Some((status, 2));
        server.faults().api_status = Some((status, 2));
        Home::new().good(&server, &pull());
        assert_eq!(server.file_requests().len(), 3);
        server.faults().api_status = Some((status, usize::MAX));
        Home::new().bad(&server, &pull(), &[&status.to_string(), "try again later"]);
    }
}

#[test]
fn a_token_stays_with_its_host() {
    let (server, model) = served();
    let other = HubServer::start(&[(FILE, &model)]);
    server.faults().token = Some("hf_secret");
    server.faults().redirect = Some(other.address().to_string());
    let home = Home::new();
    let mut command = home.command(&server, &pull());
    let output = command.env("HF_TOKEN", "hf_secret").output();
    assert_eq!(output.expect("it ends").status.code(), Some(0));
    assert_eq!(other.requests().len(), 1);
    assert_eq!(other.requests()[0].header("authorization"), None);
    let own = server.requests();
    assert!(
        own.iter()
            .all(|r| r.header("authorization") == Some("Bearer hf_secret"))
    );
}

#[test]
fn redirects_and_lists_end() {
    let (server, _) = served();
    server.faults().endless_redirect = true;
    Home::new().bad(&server, &pull(), &["redirects"]);
    assert_eq!(server.file_requests().len(), 11);
    server.faults().endless_redirect = false;
    server.faults().endless_list = true;
    Home::new().bad(&server, &pull(), &["does not end"]);
}

#[test]
fn names_that_lead_elsewhere_are_left_out() {
    for name in [
        "../evil-Q4_0.gguf",
        "/evil-Q4_0.gguf",
        "a/../../evil-Q4_0.gguf",
        "..\\\\evil-Q4_0.gguf",
        "evil\\u0000.gguf",
        "evil\\u001b[2J.gguf",
        "x:y-Q4_0.gguf",
    ] {
        let (server, _) = served();
        server.faults().extra_name = Some(name);
        let home = Home::new();
        let ran = home.run(&server, &pull());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let warning = ran.stderr.lines().next().unwrap_or_default();
        assert!(warning.contains("not a safe name"), "{}", ran.stderr);
        assert!(!ran.stderr.contains('\u{1b}'), "{:?}", ran.stderr);
        home.bad(&server, &format!("{}:Q4_0", pull()), &["there is no Q4_0"]);
        assert_eq!(server.file_requests().len(), 1);
        // With nothing else there is nothing to take.
        let server = HubServer::start(&[]);
        server.faults().extra_name = Some(name);
        Home::new().bad(&server, &pull(), &["not a safe name"]);
    }
}

#[test]
fn names_cannot_change_how_a_message_looks() {
    let names = ["a\u{202e}FFUG.gguf", "b\u{2028}error c.gguf", "d.gguf"];
    let server = HubServer::start(&names.map(|name| (name, &b"GGUF"[..])));
    let home = Home::new();
    let parts = [
        "name one of",
        r"a\u{202e}FFUG.gguf",
        r"b\u{2028}error c.gguf",
    ];
    let stderr = home.bad(&server, &pull(), &parts);
    assert!(!stderr.contains(['\u{202e}', '\u{2028}']), "{stderr:?}");
    server.faults().encoded_names = true;
    let ran = home.run(&server, &format!("{}:{}", pull(), names[0]));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(!ran.stderr.contains('\u{202e}'), "{:?}", ran.stderr);
}

#[test]
fn an_answer_that_fits_no_request_says_what_to_do() {
    for status in [206, 416] {
        let (server, _) = served();
        server.faults().file_status = Some((status, 1));
        let parts = [FILE, &status.to_string(), "check HF_ENDPOINT"];
        Home::new().bad(&server, &pull(), &parts);
    }
}

#[test]
fn silence_is_noticed_and_slowness_is_none() {
    let (server, model) = served();
    let home = Home::new();
    let silent = |home: &Home| {
        let mut command = home.command(&server, &pull());
        command.env("LLAMA_RS_HUB_SILENCE_MS", "300");
        let started = Instant::now();
        let output = command.output().expect("it ends");
        (output.status.code(), started.elapsed())
    };
    server.faults().stall_after = Some(16_384);
    let (code, took) = silent(&home);
    assert_eq!(code, Some(1));
    assert!(took < Duration::from_secs(10), "{took:?}");
    server.faults().stall_after = None;
    // All of it takes longer than the silence that is allowed.
    server.faults().pace = Duration::from_millis(10);
    let (code, took) = silent(&Home::new());
    assert_eq!(code, Some(0));
    assert!(
        took > Duration::from_millis(10 * (model.len() as u64 / 16_384)),
        "{took:?}"
    );
}
