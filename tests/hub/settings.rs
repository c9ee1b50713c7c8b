//! What the environment says, and when that counts.

use super::home::{Home, Ran};
use super::hub_server::{HubServer, REPO};
use super::served;

fn run_with(home: &Home, server: &HubServer, line: &str, variables: &[(&str, &str)]) -> Ran {
    let mut command = home.command(server, line);
    command.envs(variables.iter().copied());
    command.output().expect("it ends").into()
}

#[test]
fn what_only_requests_need_is_read_for_requests_only() {
    let (server, _) = served();
    for (variable, message) in [
        (("HF_TOKEN", "two words"), "not a token"),
        (("HF_ENDPOINT", "http://"), "not an address"),
    ] {
        let home = Home::new();
        let cold = run_with(&home, &server, &format!("pull {REPO}"), &[variable]);
        assert_eq!(cold.code, Some(1), "{}", cold.stderr);
        assert!(cold.stderr.contains(message), "{}", cold.stderr);
        home.good(&server, &format!("pull {REPO}"));
        for line in [
            "list".to_string(),
            format!("logits -hf {REPO} --tokens 1"),
            format!("rm {REPO}"),
        ] {
            let ran = run_with(&home, &server, &line, &[variable]);
            assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
        }
        home.good(&server, &format!("pull {REPO}"));
        let offline = [variable, ("HF_HUB_OFFLINE", "1")];
        let ran = run_with(&home, &server, &format!("pull {REPO}"), &offline);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    }
}

#[test]
fn a_tilde_is_the_users_folder() {
    let (server, _) = served();
    let user = Home::new();
    let at = user.path().to_string_lossy().into_owned();
    for (name, value, folder) in [
        ("HF_HOME", "~/a", "a/hub"),
        ("HF_HUB_CACHE", "~/b/c", "b/c"),
    ] {
        let variables = [("HOME", at.as_str()), (name, value)];
        let ran = run_with(&user, &server, &format!("pull {REPO}"), &variables);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let folder = user.path().join(folder);
        assert!(ran.stdout.starts_with(&*folder.to_string_lossy()));
        assert!(folder.is_dir() && !user.path().join("~").exists());
    }
}

#[test]
fn passwords_in_addresses_are_not_shown() {
    let (server, _) = served();
    let home = Home::new();
    let run = |words: &[&str], endpoint: &str, code: i32| {
        let mut command = home.command(&server, "--quiet");
        let output = command.args(words).env("HF_ENDPOINT", endpoint);
        let ran: Ran = output.output().expect("it ends").into();
        assert_eq!(ran.code, Some(code), "{words:?} {endpoint}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        for secret in ["hidden", "me:"] {
            assert!(!ran.stderr.contains(secret), "{words:?}: {}", ran.stderr);
        }
    };
    let file = "u/r/resolve/main/x-Q8_0.gguf";
    for given in [
        &format!("http://me:hidden@127.0.0.1:9/{file}"),
        &format!("https://me:12/hidden@h/{file}"),
        &format!("https:/me:hidden@h/{file}"),
        "https://me:p hidden@h/u",
        "https://me:p'hidden@h/u",
        "https://me:hidden@h/u",
        "me:hidden@h/u/r",
    ] {
        run(&["pull", given], server.address(), 2);
        run(&["rm", given], server.address(), 2);
        run(
            &["logits", "-hf", given, "--tokens", "1"],
            server.address(),
            2,
        );
        run(&["pull", REPO, given], server.address(), 2);
        run(&[given], server.address(), 2);
    }
    let port = server.address().replace("http://", "");
    for endpoint in [
        &format!("me:hidden@{port}"),
        &format!("http://me:hidden@{port}"),
        &format!("{}/me:hidden@x", server.address()),
        "http:/me:hidden@h",
        r"http:\\me:hidden@h",
        "http://me:1/hidden@h",
    ] {
        run(&["pull", REPO], endpoint, 1);
        run(&["pull", &format!("https://h/{file}")], endpoint, 1);
        run(
            &["pull", &format!("{}/{file}", server.address())],
            endpoint,
            1,
        );
    }
    assert!(server.requests().is_empty());
}

#[test]
fn a_token_that_is_no_text_is_told() {
    let (server, _) = served();
    let home = Home::new();
    std::fs::write(home.path().join("token"), b"hf_\xff").expect("a file");
    home.bad(&server, &format!("pull {REPO}"), &["token: not a token"]);
}

#[cfg(unix)]
#[test]
fn certificates_are_not_waited_for() {
    let (server, _) = served();
    let home = Home::new();
    let pipe = home.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo runs").success());
    for file in [pipe.to_string_lossy().as_ref(), "/dev/zero", "/"] {
        let variables = [("SSL_CERT_FILE", file)];
        let ran = run_with(&home, &server, &format!("pull {REPO}"), &variables);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert!(ran.stderr.contains("not a regular file"), "{}", ran.stderr);
        assert!(ran.stderr.contains("SSL_CERT_FILE"), "{}", ran.stderr);
    }
}

/// Of nobody; it runs out in 2036, which is of no importance here.
const CERTIFICATE: &str = "\
-----BEGIN CERTIFICATE-----\n\
MIIBczCCARmgAwIBAgIUMwMd7DAnpE/lo9jRWHnXYs63lcAwCgYIKoZIzj0EAwIw\n\
DzENMAsGA1UEAwwEdGVzdDAeFw0yNjExMzAxMDUyMDBaFw0zNjExMjcxMDUyMDBa\n\
MA8xDTALBgNVBAMMBHRlc3QwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNCAASbt3ln\n\
MpGtHJWqU3p76YmLh6LwyBuBl0XiQH0SgeTQGkrIRL4HG3HbsjknB9Aq6CNYwr2O\n\
GQ5oJMj56QQuM03Go1MwUTAdBgNVHQ4EFgQU3pqAjdxbKYluim0WnLpBZL6GWcMw\n\
HwYDVR0jBBgwFoAU3pqAjdxbKYluim0WnLpBZL6GWcMwDwYDVR0TAQH/BAUwAwEB\n\
/zAKBggqhkjOPQQDAgNIADBFAiAJ6umbFrU0pc4MkppcFpeunAHYuc6duVUM872/\n\
TVpNNAIhAKIkHgCiVbHn8nH2Sgwzm3NuOGdwiGGqy6IGbqzT2mvP\n\
-----END CERTIFICATE-----\n\n";

#[test]
fn certificates_may_follow_a_mark_and_must_be_some() {
    let (server, _) = served();
    let home = Home::new();
    let file = home.path().join("certificates");
    let at = file.to_string_lossy().into_owned();
    let marked = format!("\u{feff}{CERTIFICATE}");
    let damaged = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let mixed = format!("{damaged}{CERTIFICATE}");
    for (text, refused) in [
        (CERTIFICATE, None),
        (&*marked, None),
        (&*mixed, None),
        (damaged, Some("damaged")),
        ("", Some("no certificates in it")),
    ] {
        std::fs::write(&file, text).expect("a file");
        let variables = [("SSL_CERT_FILE", at.as_str())];
        let ran = run_with(&home, &server, &format!("pull {REPO}"), &variables);
        let good = refused.is_none_or(|part| ran.stderr.contains(part));
        assert!(good, "{text}: {}", ran.stderr);
        assert_eq!(ran.code, Some(i32::from(refused.is_some())), "{text}");
    }
}
