//! The proxy on the way to the hub, as the environment says.

use super::address::port;
use super::exceptions::Exceptions;
use crate::error::{Error, Result};
use std::fmt;
use ureq::http::Uri;
use ureq::{Proxy, ProxyProtocol};

/// Where one may be named; the first that is set counts.
const VARIABLES: [&str; 6] = [
    "HTTPS_PROXY",
    "https_proxy",
    "ALL_PROXY",
    "all_proxy",
    "HTTP_PROXY",
    "http_proxy",
];

/// A proxy, the variable that names it, and which hosts go without it.
pub struct Way {
    variable: &'static str,
    proxy: Proxy,
    exceptions: Exceptions,
}

impl Way {
    /// Reads the environment; none where no variable is set.
    ///
    /// # Errors
    /// What a variable names is no proxy. The value is not repeated: it may hold a password.
    pub fn from_env() -> Result<Option<Way>> {
        let value = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let mut set = VARIABLES.iter().map(|name| (*name, value(name)));
        let Some((variable, Some(value))) = set.find(|(_, value)| value.is_some()) else {
            return Ok(None);
        };
        if value.to_str().is_some_and(is_split_password) {
            return Err(Error::input(format!(
                "{variable}: an `@` follows a `/`, `?` or `#`; in the user and password write \
                 these as %2F, %3F and %23"
            )));
        }
        let proxy = value.to_str().and_then(parsed);
        let proxy = proxy.ok_or_else(|| unsupported(variable))?;
        Ok(Some(Way {
            variable,
            proxy,
            exceptions: Exceptions::from_env(),
        }))
    }

    /// What the HTTP crate is given: it has no other kinds, and panics where it meets one.
    pub fn proxy(&self) -> Option<Proxy> {
        self.is_known().then(|| self.proxy.clone())
    }

    /// The variable that names it.
    pub fn variable(&self) -> &'static str {
        self.variable
    }

    fn is_known(&self) -> bool {
        let kind = self.proxy.protocol();
        matches!(kind, ProxyProtocol::Http | ProxyProtocol::Https)
    }

    /// True where requests for an address go through it.
    pub fn leads_to(&self, uri: &Uri) -> bool {
        !self.exceptions.have(uri)
    }

    /// An error where an address would have to be asked for in a way that is not known here;
    /// never is it asked for directly instead.
    ///
    /// # Errors
    /// The proxy is of another kind.
    pub fn check(&self, uri: &Uri) -> Result<()> {
        match self.is_known() || !self.leads_to(uri) {
            true => Ok(()),
            false => Err(unsupported(self.variable)),
        }
    }

    /// Why it does not connect, from what the HTTP crate says of its answer, and what to do;
    /// and whether that may be otherwise later.
    pub fn refusal(&self, answer: &str, host: &str) -> (String, bool) {
        let code = answer.rsplit('/').next().unwrap_or_default();
        let code: Option<u16> = code.trim().parse().ok();
        let variable = self.variable;
        let (text, later) = match code {
            Some(407) => (
                format!("407, it wants a user and password; add them to {variable}"),
                false,
            ),
            Some(code @ 500..) => (format!("{code}"), true),
            Some(code) => (
                format!("{code}, refused; ask who runs it, or name the host in NO_PROXY"),
                false,
            ),
            None => ("no answer".to_string(), true),
        };
        (format!("cannot reach {host} through {self}: {text}"), later)
    }
}

/// Without user and password.
impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (host, port) = (self.proxy.host(), self.proxy.port());
        write!(f, "the proxy {host}:{port} of {}", self.variable)
    }
}

/// A proxy as the HTTP crate reads it, unless it would take another port than is named.
fn parsed(value: &str) -> Option<Proxy> {
    let proxy = Proxy::new(value).ok()?;
    port(proxy.uri().authority()?)?;
    Some(proxy)
}

/// True where the host would be a piece of the user or password, which ends at the first of
/// these characters.
fn is_split_password(value: &str) -> bool {
    let rest = value.split_once("://").map_or(value, |(_, rest)| rest);
    rest.split_once(['/', '?', '#'])
        .is_some_and(|(_, after)| after.contains('@'))
}

fn unsupported(variable: &str) -> Error {
    Error::input(format!(
        "{variable}: not a proxy that can be used, which is http://HOST:PORT or \
         https://HOST:PORT, with USER:PASSWORD@ before the host if need be; correct or unset it, \
         or name the hub in NO_PROXY"
    ))
}

#[cfg(test)]
mod tests {
    use super::{Exceptions, Way, is_split_password, parsed};

    fn way(value: &str) -> Way {
        Way {
            variable: "HTTPS_PROXY",
            proxy: parsed(value).expect("a proxy"),
            exceptions: Exceptions::default(),
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        let uri = "https://hub.example/a".parse().expect("an address");
        for good in ["http://p:1", "p:1", "https://me:pw@p", "http://[::1]:3128"] {
            assert!(way(good).check(&uri).is_ok(), "{good}");
        }
        for bad in ["socks5://p:1", "socks4a://p", "socks5h://me:pw@p:1"] {
            assert!(way(bad).check(&uri).is_err(), "{bad}");
        }
        for bad in ["ftp://p:1", "//", "a b", "p:99999", "http://me:pw@p:0"] {
            assert!(parsed(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_host_is_no_piece_of_a_password() {
        for bad in [
            "http://me:1/pw@p",
            "me:1?pw@p",
            "http:/me@p",
            "http://a@b#c@p",
        ] {
            assert!(is_split_password(bad), "{bad}");
        }
        for good in ["http://me:p%2Fw@p:1/", "p", "http://p/?a"] {
            assert!(!is_split_password(good), "{good}");
        }
    }

    #[test]
    fn it_is_shown_without_user_and_password() {
        let shown = way("http://me:pw@p.example:3128").to_string();
        assert_eq!(shown, "the proxy p.example:3128 of HTTPS_PROXY");
        let (text, later) = way("p:1").refusal("proxy server responded 403/403", "h");
        assert!(text.contains("403, refused") && !later, "{text}");
        assert!(way("p:1").refusal("proxy server responded 502/502", "h").1);
        assert!(way("p:1").refusal("proxy server did not respond", "h").1);
    }
}
