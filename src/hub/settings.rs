//! What the environment says: the variables that Hugging Face tools share.

use super::address::Origin;
use super::transport::Patience;
use crate::error::{Error, Result};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::http::Uri;

/// The public hub.
pub const PUBLIC_HUB: &str = "https://huggingface.co";

/// Bytes a token file may have; tokens have some 40.
const MOST_TOKEN_BYTES: u64 = 4096;

/// Where models are kept.
pub struct Settings {
    /// The folder with `models--USER--REPO`.
    pub cache: PathBuf,
    /// No requests at all.
    pub offline: bool,
}

/// What only requests need: where from, as whom.
pub struct Access {
    /// Without a `/` at the end.
    pub endpoint: String,
    pub origin: Origin,
    pub token: Option<String>,
    pub patience: Patience,
}

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// No place for the cache is known.
    pub fn from_env() -> Result<Settings> {
        let cache = match (path("HF_HUB_CACHE"), hugging_face_home()) {
            (Some(cache), _) => cache,
            (None, Some(home)) => home.join("hub"),
            (None, None) => {
                return Err(Error::input(
                    "no place for downloaded models: there is no home folder; set HF_HOME",
                ));
            }
        };
        Ok(Settings {
            cache: std::path::absolute(&cache).map_err(|e| unusable(&cache, &e))?,
            offline: flag("HF_HUB_OFFLINE"),
        })
    }
}

impl Access {
    /// Reads the environment. What is in the cache is usable without.
    ///
    /// # Errors
    /// A variable has a value that cannot be used.
    pub fn from_env() -> Result<Access> {
        let (endpoint, origin) = endpoint()?;
        Ok(Access {
            origin,
            endpoint,
            token: token(hugging_face_home().as_deref())?,
            patience: patience(),
        })
    }
}

fn unusable(cache: &Path, error: &std::io::Error) -> Error {
    Error::input(format!(
        "{}: not a usable path: {error}; change to a folder that exists, or set HF_HOME to a \
         path from the root",
        cache.display()
    ))
}

/// `HF_ENDPOINT` without a `/` at the end, and where that is.
///
/// # Errors
/// It is no address, or holds a user or password. The value is not repeated.
pub fn endpoint() -> Result<(String, Origin)> {
    let given = text("HF_ENDPOINT").unwrap_or_else(|| PUBLIC_HUB.to_string());
    let has_scheme = given.contains("://");
    let given = given.trim_end_matches('/').to_string();
    let uri = given.parse::<Uri>().ok();
    let uri = uri.filter(|uri| uri.query().is_none() && !given.contains('@'));
    match uri.as_ref().and_then(Origin::of) {
        Some(origin) => Ok((given, origin)),
        None if !has_scheme => Err(Error::input(
            "HF_ENDPOINT: `https://` is missing at its start; add it, or `http://`",
        )),
        None => Err(Error::input(format!(
            "HF_ENDPOINT is not an address such as {PUBLIC_HUB}, without user and password, and \
             with a port below 65536 if any; correct or unset it"
        ))),
    }
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn text(name: &str) -> Option<String> {
    variable(name).map(|value| value.to_string_lossy().into_owned())
}

/// A path; `~/` at its start is the user's folder, for no shell has replaced it.
fn path(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(variable(name)?);
    match path.strip_prefix("~") {
        Ok(below) => Some(std::env::home_dir()?.join(below)),
        Err(_) => Some(path),
    }
}

fn flag(name: &str) -> bool {
    let value = text(name).unwrap_or_default().to_ascii_uppercase();
    matches!(value.as_str(), "1" | "ON" | "YES" | "TRUE")
}

/// `HF_HOME`, else `huggingface` in the user's folder for caches.
fn hugging_face_home() -> Option<PathBuf> {
    let caches = || {
        let caches = path("XDG_CACHE_HOME");
        caches.or_else(|| Some(std::env::home_dir()?.join(".cache")))
    };
    path("HF_HOME").or_else(|| Some(caches()?.join("huggingface")))
}

/// `HF_TOKEN`, else the file that Hugging Face tools write. Never part of a message.
fn token(home: Option<&Path>) -> Result<Option<String>> {
    let file = path("HF_TOKEN_PATH").or_else(|| Some(home?.join("token")));
    let (token, place) = match (text("HF_TOKEN"), file) {
        (Some(token), _) => (token, "HF_TOKEN".to_string()),
        (None, Some(file)) => {
            let meta = std::fs::metadata(&file);
            // A pipe or a device has no end.
            if !meta.is_ok_and(|meta| meta.is_file() && meta.len() <= MOST_TOKEN_BYTES) {
                return Ok(None);
            }
            let place = file.display().to_string();
            match std::fs::read(&file) {
                Ok(bytes) => (String::from_utf8_lossy(&bytes).into_owned(), place),
                // A cache that is shared may hold somebody else's.
                Err(error) => {
                    tracing::warn!("{place}: {error}; no token is sent");
                    return Ok(None);
                }
            }
        }
        (None, None) => return Ok(None),
    };
    let token = token.trim();
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::input(format!(
            "{place}: not a token, which has letters, digits and underscores; correct or remove it"
        )));
    }
    Ok((!token.is_empty()).then(|| token.to_string()))
}

/// The two variables are for tests, which cannot wait that long.
fn patience() -> Patience {
    const MOST: u64 = 600_000;
    let milliseconds = |name: &str, default: u64| {
        let given = text(name).and_then(|value| value.parse().ok());
        Duration::from_millis(given.unwrap_or(default).min(MOST))
    };
    Patience {
        first_pause: milliseconds("LLAMA_RS_HUB_PAUSE_MS", 1000),
        silence: milliseconds("LLAMA_RS_HUB_SILENCE_MS", 30_000),
    }
}
