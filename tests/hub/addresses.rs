//! Addresses that are mistyped: told, with nothing sent and no secret shown.

use super::home::{Home, Ran};
use super::hub_server::{HubServer, REPO};
use super::{FILE, served};

fn run_with(server: &HubServer, line: &str, variable: (&str, &str)) -> Ran {
    let home = Home::new();
    let mut command = home.command(server, line);
    command.env("HF_TOKEN", "hf_hidden");
    let output = command.env(variable.0, variable.1).output();
    output.expect("it ends").into()
}

#[test]
fn a_port_that_is_none_is_not_the_usual_one() {
    let (server, _) = served();
    for (variable, value, part) in [
        ("HF_ENDPOINT", "http://127.0.0.1:99999", "a port below"),
        ("HF_ENDPOINT", "http://127.0.0.1:0", "a port below"),
        ("HTTPS_PROXY", "http://127.0.0.1:99999", "not a proxy"),
        ("HTTPS_PROXY", "127.0.0.1:99999", "not a proxy"),
    ] {
        let ran = run_with(&server, &format!("pull {REPO}"), (variable, value));
        assert_eq!(ran.code, Some(1), "{value}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{value}: {}", ran.stderr);
    }
    assert!(server.requests().is_empty());
    server.faults().redirect = Some("http://127.0.0.1:99999".into());
    let line = format!("pull {REPO}");
    Home::new().bad(&server, &line, &["no usable address"]);
}

#[test]
fn what_is_missing_in_an_address_is_told() {
    let (server, _) = served();
    let missing = ("HF_ENDPOINT", "huggingface.co");
    let ran = run_with(&server, &format!("pull {REPO}"), missing);
    assert!(
        ran.stderr.contains("`https://` is missing"),
        "{}",
        ran.stderr
    );
    for rest in ["", "/", "/tree/main"] {
        let line = format!("pull https://hub.example/{REPO}{rest}");
        let ran = Home::new().run(&server, &line);
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        let part = format!("give {REPO};");
        assert!(ran.stderr.contains(&part), "{}", ran.stderr);
    }
}

#[test]
fn signatures_are_not_shown() {
    let (server, _) = served();
    for line in [
        "pull https://cdn.h/x.gguf?X-Amz-Signature=hidden".to_string(),
        "pull https:/cdn.h/x.gguf?X-Amz-Signature=hidden".to_string(),
        "logits -hf https://h/x.gguf?s=hidden --tokens 1".to_string(),
        format!("logits -hf {REPO}:a@hidden.gguf -hff me@hidden.gguf --tokens 1"),
        format!("logits -hf {REPO}:{FILE} -hff x/y?hidden --tokens 1"),
    ] {
        let ran = Home::new().run(&server, &line);
        assert_eq!(ran.code, Some(2), "{line}: {}", ran.stderr);
        assert!(!ran.stderr.contains("hidden"), "{}", ran.stderr);
    }
}
