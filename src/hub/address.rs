//! Addresses: where a token may go, and where a redirect leads.

use ureq::http::Uri;
use ureq::http::uri::Authority;

/// Scheme, host and port: what a token belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    https: bool,
    host: String,
    port: u16,
}

impl Origin {
    /// Of a complete http or https address without a user name in it.
    pub fn of(uri: &Uri) -> Option<Origin> {
        let https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority()?;
        let port = port(authority)?;
        if authority.as_str().contains('@') || authority.host().is_empty() {
            return None;
        }
        Some(Origin {
            https,
            host: authority.host().to_ascii_lowercase(),
            port: port.unwrap_or(if https { 443 } else { 80 }),
        })
    }

    /// True where going on to `next` gives up encryption.
    pub fn is_downgrade(&self, next: &Origin) -> bool {
        self.https && !next.https
    }
}

/// The port of an address, none where it is the usual one; no answer at all for what is no
/// port, in whose place the usual one would be asked.
#[allow(
    clippy::option_option,
    reason = "not there and not usable are two things"
)]
pub fn port(authority: &Authority) -> Option<Option<u16>> {
    let text = authority.as_str();
    let text = text.rsplit_once('@').map_or(text, |(_, text)| text);
    match text.strip_prefix(authority.host())? {
        "" => Some(None),
        port => {
            let digits = port.strip_prefix(':')?;
            let port = digits.parse().ok()?;
            (port > 0 && !digits.starts_with('+')).then_some(Some(port))
        }
    }
}

/// The address that `reference` means in an answer of `from`, as RFC 3986 has it.
pub fn resolved(from: &Uri, reference: &str) -> Option<Uri> {
    let reference = reference.split('#').next()?;
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    if reference.starts_with("//") {
        return format!("{scheme}:{reference}").parse().ok();
    }
    let scheme_chars = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric());
    if reference
        .split_once("://")
        .is_some_and(|(start, _)| scheme_chars(start))
    {
        return reference.parse().ok();
    }
    let (path, query) = match reference.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (reference, None),
    };
    let path = match path.chars().next() {
        None => from.path().to_string(),
        Some('/') => without_dots(path),
        Some(_) => {
            let (folder, _) = from.path().rsplit_once('/')?;
            without_dots(&format!("{folder}/{path}"))
        }
    };
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    format!("{scheme}://{authority}{path}{query}").parse().ok()
}

/// A path from the root, with its `.` and `..` gone.
fn without_dots(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/').skip(1) {
        match part {
            "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    if path.ends_with("/.") || path.ends_with("/..") {
        parts.push("");
    }
    format!("/{}", parts.join("/"))
}

/// An address for a message: without what follows `?`, which may be a signature, and without
/// a path that may hold a password.
pub fn shown(uri: &Uri) -> String {
    let text = uri.to_string();
    let text = text.split('?').next().unwrap_or(&text);
    match (text.contains('@'), uri.scheme_str(), uri.host()) {
        (true, Some(scheme), Some(host)) => format!("{scheme}://{host}/***"),
        _ => super::name::shown(text),
    }
}

/// Text with the bytes that `%XX` stands for; other `%` stay. None for what is no UTF-8 then.
pub fn decoded(text: &str) -> Option<String> {
    let hex = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits).ok()?;
        let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
        plain.then(|| u8::from_str_radix(digits, 16).ok())?
    };
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = (byte == b'%')
            .then(|| after.get(..2).and_then(hex))
            .flatten();
        out.push(code.unwrap_or(byte));
        rest = &after[if code.is_some() { 2 } else { 0 }..];
    }
    String::from_utf8(out).ok()
}

/// A path with everything but letters, digits and `-._~/` as `%XX`.
pub fn encoded(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out += &format!("%{byte:02X}");
        }
    }
    out
}

/// The address of the next page in a `Link` header, `<ADDRESS>; rel="next"`.
pub fn next_page(link: &str) -> Option<&str> {
    let links = link.split('<').skip(1);
    let mut parts = links.filter_map(|part| part.split_once('>'));
    let is_next = |params: &str| params.contains("rel=\"next\"") || params.contains("rel=next");
    parts
        .find(|(_, params)| is_next(params))
        .map(|(address, _)| address)
}

#[cfg(test)]
mod tests {
    use super::{Origin, decoded, encoded, next_page, resolved, shown};
    use ureq::http::Uri;

    fn uri(text: &str) -> Uri {
        text.parse().expect("an address")
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        let of = |text: &str| Origin::of(&uri(text));
        assert_eq!(of("https://Hub.example/a"), of("https://hub.example:443/b"));
        assert_ne!(of("https://hub.example/a"), of("http://hub.example/a"));
        assert_ne!(of("https://hub.example/a"), of("https://hub.example.net/a"));
        assert_ne!(of("http://127.0.0.1:1/a"), of("http://127.0.0.1:2/a"));
        assert_eq!(of("https://me:secret@hub.example/a"), None);
        assert_eq!(of("ftp://hub.example/a"), None);
        for port in ["99999", "0", "+1", ""] {
            let Ok(uri) = format!("http://h:{port}/a").parse() else {
                continue;
            };
            assert_eq!(Origin::of(&uri), None, "{port}");
        }
    }

    #[test]
    fn references_are_resolved() {
        let to = |reference: &str| {
            let next = resolved(&uri("https://h:1/a/b?c"), reference);
            next.map(|next| next.to_string()).unwrap_or_default()
        };
        assert_eq!(to("https://x/y?z"), "https://x/y?z");
        assert_eq!(to("//x/y"), "https://x/y");
        assert_eq!(to("/y?d#e"), "https://h:1/y?d");
        assert_eq!(to("y"), "https://h:1/a/y");
        assert_eq!(to("?d=https://x/y"), "https://h:1/a/b?d=https://x/y");
        assert_eq!(to("../y/./z/.."), "https://h:1/y/");
        assert_eq!(to("../../../y"), "https://h:1/y");
    }

    #[test]
    fn passwords_and_signatures_are_not_shown() {
        for (text, expected) in [
            ("https://h:1/a/b?signature", "https://h:1/a/b"),
            ("https://me:pw@h/a", "https://h/***"),
            ("https://h/me:pw@x/a", "https://h/***"),
        ] {
            assert_eq!(shown(&uri(text)), expected);
        }
    }

    #[test]
    fn paths_are_encoded_and_links_read() {
        assert_eq!(encoded("a b/ü?#%.gguf"), "a%20b/%C3%BC%3F%23%25.gguf");
        for (text, expected) in [
            ("a%20b/%C3%BC%3F%23%25.gguf", Some("a b/ü?#%.gguf")),
            ("100%, %4, %+1, %", Some("100%, %4, %+1, %")),
            ("a%ff", None),
        ] {
            assert_eq!(decoded(text).as_deref(), expected);
        }
        let link = "<https://h/a,b>; rel=\"prev\", <https://h/c?d>; rel=\"next\"";
        assert_eq!(next_page(link), Some("https://h/c?d"));
        assert_eq!(next_page("<https://h/a>; rel=\"prev\""), None);
        assert_eq!(next_page("nonsense"), None);
    }
}
