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
        (("HF_ENDPOINT", "nonsense"), "not an address"),
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
    let endpoint = "http://me:hidden@127.0.0.1:9";
    let file = format!("{REPO}/resolve/main/x-Q8_0.gguf");
    for (line, endpoint, code) in [
        (format!("pull {endpoint}/{file}"), server.address(), 2),
        (format!("pull {endpoint}/{REPO}"), server.address(), 2),
        (format!("pull {REPO}"), endpoint, 1),
        (format!("pull http://h/{file}"), endpoint, 1),
    ] {
        let ran = run_with(&home, &server, &line, &[("HF_ENDPOINT", endpoint)]);
        assert_eq!(ran.code, Some(code), "{line}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        assert!(!ran.stderr.contains("hidden"), "{}", ran.stderr);
    }
}
