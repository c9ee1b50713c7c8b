//! What a repository holds, by the hub's API.

use super::address::{Origin, encoded, next_page, resolved, shown};
use super::digest::{Kind, is_hash};
use super::failure::Tried;
use super::name::{check_path, is_gguf, shown as shown_name};
use super::transport::Transport;
use super::{Event, Report};
use crate::error::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use ureq::http::{Uri, header};

/// Pages of 1,000 entries; the largest repositories of models have two or three.
const MOST_PAGES: usize = 50;
/// GGUF files of one repository.
const MOST_FILES: usize = 20_000;

/// A GGUF file on the hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteFile {
    /// In the repository; safe to use below a folder.
    pub path: String,
    pub size: u64,
    /// Names the content: its hash, in lower-case hex.
    pub id: String,
    /// Which hash `id` is.
    pub hash: Kind,
}

/// GGUF files of a repository at one commit.
#[derive(Debug)]
pub struct Listing {
    pub commit: String,
    pub files: Vec<RemoteFile>,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default, rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    oid: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

/// An entry of the list.
enum Listed {
    File(RemoteFile),
    /// A GGUF file that cannot have its name in the cache, and why.
    Odd(Error),
    Other,
}

/// Asks for the newest commit of the main branch and all GGUF files in it; those with names
/// that the cache cannot have are left out, with a warning.
///
/// # Errors
/// The hub cannot be reached, refuses, or answers nonsense, or all names are such.
pub fn list(transport: &Transport, repo: &str, report: Report<'_>) -> Tried<Listing> {
    let api = format!("{}/api/models/{repo}", transport.access().endpoint);
    let warn = |text: String| report(Event::Warning(text));
    let uri = parse(&format!("{api}/revision/main"))?;
    let (body, _) = transport.json(&uri, &warn)?;
    let commit = json::<Revision>(&uri, &body)?.sha;
    // As in git: SHA-1 or SHA-256.
    if !is_hash(&commit) {
        return Err(nonsense(&uri, "the commit is no hash").into());
    }
    let mut files = Vec::new();
    let mut odd = Vec::new();
    let mut page = parse(&format!("{api}/tree/main?recursive=true"))?;
    for _ in 0..MOST_PAGES {
        let (body, headers) = transport.json(&page, &warn)?;
        for entry in json::<Vec<Entry>>(&page, &body)? {
            match listed(&page, entry)? {
                Listed::File(file) => files.push(file),
                Listed::Odd(error) => odd.push(error),
                Listed::Other => {}
            }
        }
        if files.len() + odd.len() > MOST_FILES {
            break;
        }
        let links = headers.get_all(header::LINK).iter();
        let mut links = links.filter_map(|link| link.to_str().ok());
        let Some(next) = links.find_map(next_page) else {
            warn_of_odd(odd, files.is_empty(), report)?;
            return Ok(Listing { commit, files });
        };
        page = resolved(&page, next)
            .ok_or_else(|| nonsense(&page, "the next page has no usable address"))?;
        // The token goes along.
        if Origin::of(&page).as_ref() != Some(&transport.access().origin) {
            return Err(nonsense(&page, "the next page is on another host").into());
        }
    }
    Err(nonsense(&page, "the list of files does not end").into())
}

/// The address of a file's content.
pub fn content_address(endpoint: &str, repo: &str, commit: &str, path: &str) -> Result<Uri> {
    parse(&format!(
        "{endpoint}/{repo}/resolve/{commit}/{}",
        encoded(path)
    ))
}

/// One warning for all files that are left out; an error where there is nothing else.
fn warn_of_odd(mut odd: Vec<Error>, only: bool, report: Report<'_>) -> Result<()> {
    let count = odd.len();
    match odd.pop() {
        None => Ok(()),
        Some(error) if only => Err(error),
        Some(error) => {
            let more = match count {
                1 => String::new(),
                _ => format!("; so are {} others", count - 1),
            };
            report(Event::Warning(format!("left out: {error}{more}")));
            Ok(())
        }
    }
}

fn listed(page: &Uri, entry: Entry) -> Result<Listed> {
    if entry.kind == "directory" || !is_gguf(&entry.path) {
        return Ok(Listed::Other);
    }
    if let Err(error) = check_path(&entry.path) {
        return Ok(Listed::Odd(error));
    }
    let (oid, size, hash) = match entry.lfs {
        Some(lfs) => (lfs.oid, lfs.size, Kind::Sha256),
        None => (entry.oid, entry.size, Kind::Git),
    };
    if size == 0 {
        return Ok(Listed::Other);
    }
    // The hash becomes a file's name.
    if oid.len() != hash.digits() || !is_hash(&oid) {
        return Err(nonsense(page, "a file without its hash"));
    }
    Ok(Listed::File(RemoteFile {
        path: entry.path,
        size,
        id: oid.to_ascii_lowercase(),
        hash,
    }))
}

fn parse(address: &str) -> Result<Uri> {
    address.parse().map_err(|_| {
        let address = shown_name(address);
        Error::input(format!(
            "{address:?} is not a usable address; check HF_ENDPOINT"
        ))
    })
}

fn json<T: DeserializeOwned>(uri: &Uri, body: &[u8]) -> Result<T> {
    serde_json::from_slice(body).map_err(|error| {
        let start = body.trim_ascii_start();
        if start.starts_with(b"<") {
            return nonsense(uri, "a web page instead of JSON");
        }
        let error = shown_name(&error.to_string());
        nonsense(uri, &format!("unusable JSON ({error})"))
    })
}

fn nonsense(uri: &Uri, cause: &str) -> Error {
    Error::input(format!(
        "{}: {cause}, which is not what a model hub answers; check HF_ENDPOINT and the network's \
         login page",
        shown(uri)
    ))
}
