//! `NO_PROXY`: hosts that are asked without a proxy.

use std::net::IpAddr;
use ureq::http::Uri;

/// The hosts, as other programs read the variable.
#[derive(Default)]
pub struct Exceptions(Vec<Exception>);

/// One of them; with a port only there.
struct Exception {
    hosts: Hosts,
    port: Option<u16>,
}

enum Hosts {
    All,
    /// This name and what ends in a dot and it.
    Name(String),
    Address(IpAddr),
    /// What starts so: `192.168.` or `192.168.*`.
    Start(String),
}

impl Exceptions {
    /// Reads the environment.
    pub fn from_env() -> Exceptions {
        let variables = ["NO_PROXY", "no_proxy"].map(std::env::var_os);
        let mut set = variables.into_iter().flatten();
        let value = set.find(|value| !value.is_empty()).unwrap_or_default();
        Exceptions::parse(&value.to_string_lossy())
    }

    fn parse(text: &str) -> Exceptions {
        let entries = text.split([',', ' ']).map(str::trim);
        let entries = entries.filter(|entry| !entry.is_empty());
        Exceptions(entries.map(exception).collect())
    }

    /// True where an address is one of them.
    pub fn have(&self, uri: &Uri) -> bool {
        let Some(host) = uri.host() else {
            return false;
        };
        let host = host.trim_matches(['[', ']']).trim_end_matches('.');
        let host = host.to_ascii_lowercase();
        let usual = if uri.scheme_str() == Some("http") {
            80
        } else {
            443
        };
        let port = uri.port_u16().unwrap_or(usual);
        let mut fitting = self.0.iter().filter(|one| one.hosts.have(&host));
        fitting.any(|one| one.port.is_none_or(|only| only == port))
    }
}

impl Hosts {
    fn have(&self, host: &str) -> bool {
        match self {
            Hosts::All => true,
            // An address has no parts that are names.
            Hosts::Name(_) if host.parse::<IpAddr>().is_ok() => false,
            Hosts::Name(name) => host
                .strip_suffix(name.as_str())
                .is_some_and(|before| before.is_empty() || before.ends_with('.')),
            Hosts::Address(address) => host.parse() == Ok(*address),
            Hosts::Start(start) => host.starts_with(start.as_str()),
        }
    }
}

fn exception(entry: &str) -> Exception {
    let entry = entry.to_ascii_lowercase();
    // More than one colon is an IPv6 address, which has a port only after brackets.
    let (host, port) = match entry.rsplit_once(':') {
        Some((host, port)) if host.ends_with(']') || !host.contains(':') => {
            (host, port.parse().ok())
        }
        _ => (entry.as_str(), None),
    };
    // What looks like a port and is none belongs to no host.
    let host = if port.is_some() { host } else { &entry };
    let host = host.trim_matches(['[', ']']);
    let hosts = if host == "*" {
        Hosts::All
    } else if let Ok(address) = host.parse() {
        Hosts::Address(address)
    } else if let Some(start) = host.strip_suffix('*') {
        Hosts::Start(start.to_string())
    } else if host.ends_with('.') && host.starts_with(|c: char| c.is_ascii_digit()) {
        Hosts::Start(host.to_string())
    } else {
        let name = host.trim_start_matches('*').trim_matches('.');
        Hosts::Name(name.to_string())
    };
    Exception { hosts, port }
}

#[cfg(test)]
mod tests {
    use super::Exceptions;

    #[test]
    fn hosts_are_excepted_as_other_programs_do() {
        for (value, address, expected) in [
            ("*", "https://h/", true),
            ("::1", "http://[::1]:8765/", true),
            ("[::1]", "http://[0:0:0:0:0:0:0:1]/", true),
            ("[::1]:8765", "http://[::1]:8765/", true),
            ("[::1]:8764", "http://[::1]:8765/", false),
            ("localhost", "http://LOCALHOST:1/", true),
            ("localhost", "http://mylocalhost/", false),
            (".localhost", "http://localhost/", true),
            ("*.example.com", "http://a.example.com/", true),
            ("*.example.com", "http://example.com/", true),
            ("example.com", "http://a.example.com./", true),
            ("example.com", "http://example.com.net/", false),
            ("x, 127.0.0.1:8765", "http://127.0.0.1:8765/", true),
            ("127.0.0.1:8765", "http://127.0.0.1/", false),
            ("h:443", "https://h/", true),
            ("h:443", "http://h/", false),
            ("h:99999", "http://h/", false),
            ("0.0.1", "http://127.0.0.1/", false),
            ("127.", "http://127.0.0.1/", true),
            ("127.*", "http://127.0.0.1/", true),
            ("", "http://h/", false),
        ] {
            let uri = address.parse().expect("an address");
            let have = Exceptions::parse(value).have(&uri);
            assert_eq!(have, expected, "{value} {address}");
        }
    }
}
