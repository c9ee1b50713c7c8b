//! Why a request did not succeed, and what to do.

use super::address::shown;
use super::certificates;
use super::connect::AtProxy;
use super::proxy::Way;
use crate::error::Error;
use std::io::ErrorKind;
use std::time::Duration;
use ureq::Timeout;
use ureq::http::Uri;

/// Why a request did not succeed.
#[derive(Debug)]
pub enum Failure {
    /// Nobody answers at all; and the variable of the proxy that does not.
    Unreachable(String, Option<&'static str>),
    /// May go better the next time; after a pause that the server asks for.
    Again(String, Option<Duration>),
    Final(Error),
}

impl Failure {
    pub fn again(cause: impl Into<String>) -> Failure {
        Failure::Again(cause.into(), None)
    }

    /// The error for a user when nothing more is tried.
    pub fn into_error(self) -> Error {
        match self {
            Failure::Unreachable(cause, Some(variable)) => Error::input(format!(
                "{cause}; correct or unset {variable}, or name the hub in NO_PROXY"
            )),
            Failure::Unreachable(cause, None) => Error::input(format!(
                "{cause}; check the network and HF_ENDPOINT (models that are in the cache need none)"
            )),
            Failure::Again(cause, _) => Error::input(format!("{cause}; try again later")),
            Failure::Final(error) => error,
        }
    }
}

/// The result of asking.
pub type Tried<T> = std::result::Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Final(error)
    }
}

/// The failure of a request that got no answer.
pub fn unanswered(uri: &Uri, proxy: Option<&Way>, error: ureq::Error) -> Failure {
    let host = uri.authority().map_or_else(String::new, |a| a.to_string());
    let (error, at_proxy) = match error {
        ureq::Error::Other(other) => match other.downcast::<AtProxy>() {
            Ok(at_proxy) => (at_proxy.0, true),
            Err(other) => (ureq::Error::Other(other), false),
        },
        error => (error, false),
    };
    if let Some(cause) = certificates::tls_error(&error) {
        let cause = match proxy.filter(|_| at_proxy) {
            Some(way) if certificates::is_plain(cause) => format!(
                "{way}, on the way to {host}: it does not speak TLS; if it speaks http, write \
                 http:// in {}",
                way.variable()
            ),
            Some(way) => format!(
                "{way}, on the way to {host}: no secure connection: {}",
                certificates::told(cause)
            ),
            None => format!(
                "{}: no secure connection: {}",
                shown(uri),
                certificates::told(cause)
            ),
        };
        return Error::input(cause).into();
    }
    let unreachable = |cause: &str| match proxy {
        Some(way) => Failure::Unreachable(
            format!("cannot reach {way}, on the way to {host}: {cause}"),
            Some(way.variable()),
        ),
        None => Failure::Unreachable(format!("cannot reach {host}: {cause}"), None),
    };
    if let (Some(proxy), ureq::Error::ConnectProxyFailed(answer)) = (proxy, &error) {
        return match proxy.refusal(answer, &host) {
            (text, true) => Failure::Unreachable(text, None),
            (text, false) => Error::input(text).into(),
        };
    }
    match error {
        ureq::Error::HostNotFound => unreachable("no host of that name was found"),
        ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => unreachable("no answer"),
        ureq::Error::ConnectionFailed => unreachable("no connection"),
        ureq::Error::Io(e) if at_proxy || is_unreachable(e.kind()) => unreachable(&e.to_string()),
        // How the resolver of the C library fails; it has no kind of its own.
        ureq::Error::Io(e) if e.to_string().contains("lookup address") => {
            unreachable("no host of that name was found")
        }
        error => Failure::again(format!(
            "{}: {}",
            shown(uri),
            super::name::shown(&error.to_string())
        )),
    }
}

fn is_unreachable(kind: ErrorKind) -> bool {
    use ErrorKind::{AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkUnreachable};
    let kinds = [
        AddrNotAvailable,
        ConnectionRefused,
        HostUnreachable,
        NetworkUnreachable,
    ];
    kinds.contains(&kind)
}
