//! Proxies that cannot be used are told, and never passed by.

use super::home::{Home, Ran};
use super::hub_server::{HubServer, REPO};
use super::served;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// A proxy that gives one answer to all; its address, and how often it was asked.
fn proxy(answer: &'static str) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::SeqCst);
            let request = BufReader::new(&stream).lines().map_while(Result::ok);
            request.take_while(|line| !line.is_empty()).for_each(drop);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    (address, asked)
}

fn pull(home: &Home, server: &HubServer, variables: &[(&str, &str)]) -> Ran {
    let mut command = home.command(server, &format!("pull {REPO}"));
    let command = command.env("HF_TOKEN", "hf_secret");
    let output = command.envs(variables.iter().copied()).output();
    output.expect("it ends").into()
}

#[test]
fn one_of_an_unknown_kind_is_an_error_and_not_passed_by() {
    let (server, _) = served();
    let home = Home::new();
    for value in [
        "socks5://me:hidden@127.0.0.1:9",
        "socks4://h",
        "ftp://h:1",
        "a b",
    ] {
        for name in ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "HTTP_PROXY"] {
            let ran = pull(&home, &server, &[(name, value)]);
            assert_eq!(ran.code, Some(1), "{}", ran.stderr);
            assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
            for part in [name, "http://HOST:PORT", "NO_PROXY"] {
                assert!(ran.stderr.contains(part), "{}", ran.stderr);
            }
            assert!(!ran.stderr.contains("hidden"), "{}", ran.stderr);
        }
    }
    assert!(server.requests().is_empty());
    let around = [("ALL_PROXY", "socks5://h:1"), ("NO_PROXY", "x, 127.0.0.1")];
    assert_eq!(pull(&home, &server, &around).code, Some(0));
}

#[test]
fn one_that_does_not_answer_is_named() {
    let (server, _) = served();
    // Nobody listens on the port of discarded data.
    let variables = [("HTTPS_PROXY", "http://me:hidden@127.0.0.1:9")];
    let ran = pull(&Home::new(), &server, &variables);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    for part in [
        "the proxy 127.0.0.1:9 of HTTPS_PROXY",
        "correct or unset HTTPS_PROXY",
    ] {
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
    assert!(!ran.stderr.contains("HF_ENDPOINT"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("hidden"), "{}", ran.stderr);
}

#[test]
fn one_that_refuses_is_asked_once() {
    for (answer, parts) in [
        ("HTTP/1.1 403 No\r\n\r\n", ["403, refused", "NO_PROXY"]),
        ("HTTP/1.1 407 No\r\n\r\n", ["407", "password"]),
        ("HTTP/1.1 502 No\r\n\r\n", ["502", "check the network"]),
        ("", ["cannot reach", "of HTTPS_PROXY"]),
    ] {
        let (server, _) = served();
        let (address, asked) = proxy(answer);
        let ran = pull(&Home::new(), &server, &[("HTTPS_PROXY", &address)]);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
        for part in parts.into_iter().chain([address.as_str()]) {
            assert!(ran.stderr.contains(part), "{part}: {}", ran.stderr);
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1, "{}", ran.stderr);
        assert!(server.requests().is_empty());
    }
}

#[test]
fn one_that_answers_drop_by_drop_is_not_waited_for() {
    let (server, _) = served();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut more = stream.write_all(b"HTTP/1.1 200 OK\r\nX: ");
                while more.is_ok() {
                    std::thread::sleep(Duration::from_millis(50));
                    more = stream.write_all(b"x");
                }
            });
        }
    });
    let variables = [
        ("HTTPS_PROXY", address.as_str()),
        ("LLAMA_RS_HUB_SILENCE_MS", "500"),
    ];
    let started = Instant::now();
    let ran = pull(&Home::new(), &server, &variables);
    assert!(started.elapsed() < Duration::from_secs(15));
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    for part in ["no answer", &address, "unset HTTPS_PROXY"] {
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
}

#[test]
fn one_that_speaks_http_instead_of_tls_is_named() {
    let (server, _) = served();
    // The answer comes at once, for no request line ever does.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let plain = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
    });
    let value = format!("https://me:hidden@{plain}");
    let ran = pull(&Home::new(), &server, &[("HTTPS_PROXY", &value)]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    for part in ["the proxy", &plain, "write http:// in HTTPS_PROXY"] {
        assert!(ran.stderr.contains(part), "{}", ran.stderr);
    }
    assert!(!ran.stderr.contains("hidden"), "{}", ran.stderr);
    assert!(server.requests().is_empty());
}

#[test]
fn a_password_that_ends_early_is_neither_shown_nor_looked_up() {
    let (server, _) = served();
    for value in [
        "http://me:1234/hidden@127.0.0.1:9",
        "http://me:1234?hidden@127.0.0.1:9",
        "me:1234#hidden@127.0.0.1:9",
    ] {
        let ran = pull(&Home::new(), &server, &[("HTTPS_PROXY", value)]);
        assert_eq!(ran.code, Some(1), "{}", ran.stderr);
        for part in ["%2F", "%3F", "%23", "HTTPS_PROXY"] {
            assert!(ran.stderr.contains(part), "{}", ran.stderr);
        }
        for part in ["hidden", "1234", "me:"] {
            assert!(!ran.stderr.contains(part), "{}", ran.stderr);
        }
    }
}

#[test]
fn exceptions_may_have_a_port() {
    let (server, _) = served();
    let port = server.address().rsplit(':').next().expect("a port");
    let here = format!("127.0.0.1:{port}");
    for (exception, code) in [(&*here, 0), ("127.0.0.1:1", 1)] {
        let variables = [("HTTPS_PROXY", "127.0.0.1:9"), ("NO_PROXY", exception)];
        let ran = pull(&Home::new(), &server, &variables);
        assert_eq!(ran.code, Some(code), "{exception}: {}", ran.stderr);
    }
}
