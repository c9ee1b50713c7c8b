//! What a user asks for, `USER/REPO[:QUANT|:FILE]`, and which names are safe.

use super::address::decoded;
use crate::error::{Error, Result};
use std::fmt;

/// Bytes a part of a repository's name may have, as the hub has it.
const MOST_NAME_BYTES: usize = 96;
/// Bytes of a file's path in a repository, and of each of its parts: what file systems take.
const MOST_PATH_BYTES: usize = 1024;
const MOST_PART_BYTES: usize = 255;
/// Folders that a file's path in a repository may have; the cache is searched as deep.
pub(super) const MOST_FOLDERS: usize = 32;

/// Which file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The preferred one; see [`super::pick`].
    Best,
    /// The one whose name has this word, such as `Q4_K_M`.
    Quant(String),
    /// This one, by its path in the repository.
    File(String),
}

/// A repository and which of its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// `USER/REPO`, or `REPO` alone.
    pub repo: String,
    pub what: What,
    /// `https://HOST` when an address was given instead of a name.
    pub origin: Option<String>,
}

impl Wanted {
    /// Reads `USER/REPO`, `USER/REPO:QUANT`, `USER/REPO:FILE`, or the address of a file,
    /// `https://HOST/USER/REPO/resolve/main/FILE` (also with `blob`).
    ///
    /// # Errors
    /// The text is none of these.
    pub fn parse(text: &str) -> Result<Wanted> {
        if let Some((scheme, rest)) = text.split_once("://") {
            return address(text, scheme, rest);
        }
        let (repo, what) = match text.split_once(':') {
            None => (text, What::Best),
            Some((repo, what)) => (repo, selector(what)?),
        };
        check_repo(repo)?;
        Ok(Wanted {
            repo: repo.to_string(),
            what,
            origin: None,
        })
    }

    /// The same repository, but this file.
    ///
    /// # Errors
    /// A file or quantization is named already, or the name is not safe. Neither says more
    /// than the command line.
    pub fn with_file(mut self, file: &str) -> Result<Wanted> {
        if self.what != What::Best {
            return Err(Error::input(format!(
                "both {} and the file {:?} are given; name the file once",
                shown(&self.to_string()),
                shown(file)
            )));
        }
        check_path(file)?;
        self.what = What::File(file.to_string());
        Ok(self)
    }
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            What::Best => write!(f, "{}", self.repo),
            What::Quant(what) | What::File(what) => write!(f, "{}:{what}", self.repo),
        }
    }
}

fn address(text: &str, scheme: &str, rest: &str) -> Result<Wanted> {
    let scheme = scheme.to_ascii_lowercase();
    let known = matches!(scheme.as_str(), "http" | "https");
    let rest = rest.split(['?', '#']).next().unwrap_or(rest);
    let parts: Vec<&str> = rest.split('/').collect();
    let (host, repo, file) = match &parts[..] {
        [host, user, repo, "resolve" | "blob", "main", file @ ..] if known => {
            (host, format!("{user}/{repo}"), file)
        }
        [host, repo, "resolve" | "blob", "main", file @ ..] if known => {
            (host, (*repo).to_string(), file)
        }
        [_, user, repo] | [_, user, repo, ""] | [_, user, repo, "tree", "main"]
            if known && is_repo(&format!("{user}/{repo}")) && !text.contains('@') =>
        {
            return Err(Error::input(format!(
                "{}: the address of a repository, not of a file; give {user}/{repo}",
                shown(text)
            )));
        }
        _ => return Err(no_address(text)),
    };
    if host.contains('@') {
        return Err(no_address(text));
    }
    check_repo(&repo)?;
    let file = decoded(&file.join("/")).ok_or_else(|| no_address(text))?;
    check_path(&file)?;
    Ok(Wanted {
        repo,
        what: What::File(file),
        origin: Some(format!("{scheme}://{}", host.to_ascii_lowercase())),
    })
}

fn no_address(text: &str) -> Error {
    Error::input(match text.contains('@') {
        true => "an address with `@` in it is neither used nor shown, for it may hold a password; \
                 leave user and password out, and set HF_TOKEN"
            .to_string(),
        false => format!(
            "{}: not the address of a file in a repository; \
             give USER/REPO:FILE or https://HOST/USER/REPO/resolve/main/FILE",
            shown(text)
        ),
    })
}

fn selector(text: &str) -> Result<What> {
    if is_gguf(text) {
        check_path(text)?;
        return Ok(What::File(text.to_string()));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if text.is_empty() || text.len() > MOST_NAME_BYTES || !text.chars().all(plain) {
        return Err(Error::input(format!(
            "{:?} is neither a quantization such as Q4_K_M nor a file that ends in .gguf",
            shown(text)
        )));
    }
    Ok(What::Quant(text.to_string()))
}

/// An error unless the text is a repository's name.
fn check_repo(text: &str) -> Result<()> {
    if is_repo(text) {
        return Ok(());
    }
    let advice = match is_gguf(text) {
        true => "give a file with -m, or USER/REPO:FILE",
        false => "give USER/REPO, USER/REPO:QUANT or USER/REPO:FILE",
    };
    Err(Error::input(format!(
        "{:?} is not a repository's name; {advice}",
        shown(text)
    )))
}

/// True for `USER/REPO`, or the `REPO` of some old ones, as the hub allows it: no `--` and
/// no `..`, which would also make the cache's folder names ambiguous. A lone name of a file
/// is none.
pub(super) fn is_repo(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let good = |part: &str| {
        !part.is_empty()
            && part.len() <= MOST_NAME_BYTES
            && part.chars().all(plain)
            && !part.starts_with(['.', '-'])
            && !part.ends_with(['.', '-'])
            && !part.contains("--")
            && !part.contains("..")
    };
    match text.split_once('/') {
        Some((user, repo)) => good(user) && good(repo),
        None => good(text) && !is_gguf(text),
    }
}

/// An error unless a path in a repository stays below it on every system.
///
/// # Errors
/// It does not, or is longer or deeper than the cache can have it.
pub fn check_path(path: &str) -> Result<()> {
    let bad_char = |c: char| c.is_control() || matches!(c, '\\' | ':');
    let bad_part = |part: &str| {
        matches!(part, "" | "." | "..") || part.len() > MOST_PART_BYTES || part.contains(bad_char)
    };
    if path.matches('/').count() > MOST_FOLDERS {
        return Err(Error::input(format!(
            "{:?} lies in more than {MOST_FOLDERS} folders; refused",
            shown(path)
        )));
    }
    if path.len() > MOST_PATH_BYTES || path.split('/').any(bad_part) {
        return Err(Error::input(format!(
            "{:?} is not a safe name of a file; refused",
            shown(path)
        )));
    }
    Ok(())
}

/// True for names that end in `.gguf`.
pub(super) fn is_gguf(path: &str) -> bool {
    let bytes = path.as_bytes();
    let ending = b".gguf";
    bytes.len() > ending.len() && bytes[bytes.len() - ending.len()..].eq_ignore_ascii_case(ending)
}

/// What precedes the query of an address, if the text may be one that has a query.
pub(super) fn unsigned(text: &str) -> Option<&str> {
    let (open, query) = text.split_once('?')?;
    (open.contains('/') && !query.is_empty()).then_some(open)
}

/// Text of others for a message: its first characters. Nothing of a text with `@`, which may
/// be an address with a password, however it is mistyped; nor what follows `?`, which may be
/// a signature.
pub fn shown(text: &str) -> String {
    const MOST: usize = 120;
    if text.contains('@') {
        return "***".to_string();
    }
    if let Some(open) = unsigned(text) {
        return shown(open) + "?***";
    }
    let mut chars = text.chars();
    let mut short: String = chars.by_ref().take(MOST).collect();
    if chars.next().is_some() {
        short += "...";
    }
    short
}

#[cfg(test)]
mod tests {
    use super::{MOST_FOLDERS, Wanted, What, check_path};

    fn parsed(text: &str) -> (String, What) {
        let wanted = Wanted::parse(text).expect("a name");
        (wanted.repo, wanted.what)
    }

    #[test]
    fn names_have_a_repository_and_perhaps_a_quantization_or_a_file() {
        let repo = || "Some-User/Model.v1_GGUF".to_string();
        assert_eq!(parsed("Some-User/Model.v1_GGUF"), (repo(), What::Best));
        assert_eq!(
            parsed("Some-User/Model.v1_GGUF:q4_k_m"),
            (repo(), What::Quant("q4_k_m".into()))
        );
        assert_eq!(
            parsed("Some-User/Model.v1_GGUF:sub/m.Q8_0.gguf"),
            (repo(), What::File("sub/m.Q8_0.gguf".into()))
        );
        assert_eq!(
            parsed("gpt2:Q8_0"),
            ("gpt2".into(), What::Quant("Q8_0".into()))
        );
    }

    #[test]
    fn addresses_of_files_are_names_too() {
        for kind in ["resolve", "blob"] {
            let text = format!("https://hub.example/u/r/{kind}/main/sub/m.gguf?download=true");
            let wanted = Wanted::parse(&text).expect("an address");
            assert_eq!(wanted.repo, "u/r");
            assert_eq!(wanted.what, What::File("sub/m.gguf".into()));
            assert_eq!(wanted.origin.as_deref(), Some("https://hub.example"));
        }
        let wanted = Wanted::parse("HTTPS://Hub.example/u/r/blob/main/a%20b%2Fm%C3%BC%zz.gguf");
        let wanted = wanted.expect("an address");
        assert_eq!(wanted.what, What::File("a b/mü%zz.gguf".into()));
        assert_eq!(wanted.origin.as_deref(), Some("https://hub.example"));
        let old = "https://hub.example/gpt2/resolve/main/sub/m.gguf";
        let (repo, what) = parsed(old);
        assert_eq!(
            (repo.as_str(), what),
            ("gpt2", What::File("sub/m.gguf".into()))
        );
    }

    #[test]
    fn other_names_are_refused() {
        for bad in [
            "",
            "u.gguf",
            "a--b",
            "u/",
            "/r",
            "u/r/x",
            "../r",
            "u/..",
            "u/a--b",
            "u/r:",
            "u/r:a b",
            "u\\r",
            "u/r\n",
            "u/r:../m.gguf",
            "u/r:/m.gguf",
            "u/.r",
            "https://h/u/r",
            "https://h/u/r/resolve/main",
            "https://h/u/r/tree/main/x",
            "https://me@h/u/r/resolve/main/m.gguf",
            "https://h/u/r/resolve/main/../m.gguf",
            "https://h/u/r/resolve/main/%2e%2E/m.gguf",
            "https://h/u/r/resolve/main/a%00.gguf",
            "https://h/u/r/resolve/main/a%ff.gguf",
            "ftp://h/u/r/resolve/main/m.gguf",
        ] {
            assert!(Wanted::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_may_hold_a_password_is_not_repeated() {
        for bad in [
            "https://me:12/hidden@h/u/r/resolve/main/m.gguf",
            "https://me:hidden@h/u/r/resolve/main/m.gguf",
            "https://me:p hidden@h/u",
            "https://me:p'hidden@h/u",
            "me:hidden@h/://u/r/resolve/main/m.gguf",
            "me:hidden@h/u/r",
            "hidden@h/u",
            "https:/me:hidden@h/u/r/resolve/main/m.gguf",
            "https:me:hidden@h/m.gguf",
        ] {
            let error = Wanted::parse(bad).expect_err(bad).to_string();
            assert!(!error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn paths_stay_below_the_repository() {
        for good in ["m.gguf", "a/b/m.gguf", "a b.gguf", "ü.gguf", "a..b.gguf"] {
            assert!(check_path(good).is_ok(), "{good:?}");
        }
        for bad in [
            "",
            "/m.gguf",
            "../m.gguf",
            "a/../m.gguf",
            "a//m.gguf",
            "a/./m.gguf",
            "a\\m.gguf",
            "m\0.gguf",
            "m\n.gguf",
            "C:m.gguf",
            "m\u{85}.gguf",
        ] {
            assert!(check_path(bad).is_err(), "{bad:?}");
        }
        assert!(check_path(&"a".repeat(256)).is_err());
        assert!(check_path(&("a/".repeat(MOST_FOLDERS) + "m")).is_ok());
        assert!(check_path(&("a/".repeat(MOST_FOLDERS + 1) + "m")).is_err());
    }
}
