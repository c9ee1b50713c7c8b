//! Certificates to trust, in networks with an authority of their own.

use crate::error::{Error, Result};
use std::path::PathBuf;
use ureq::tls::{PemItem, RootCerts, parse_pem};

/// A system's own collection has some 250 KB.
const MOST_BYTES: u64 = 16 << 20;

/// Those of `SSL_CERT_FILE`; none where it is not set.
///
/// # Errors
/// It names no regular file, or none with certificates.
pub fn from_env() -> Result<Option<RootCerts>> {
    let Some(file) = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty()) else {
        return Ok(None);
    };
    let file = PathBuf::from(file);
    let unusable = |cause: &str| Error::file(&file, cause, "correct or unset SSL_CERT_FILE");
    // Before opening: to open a pipe would wait for its other end, and a device has none.
    let meta = std::fs::metadata(&file).map_err(|e| unusable(&e.to_string()))?;
    if !meta.is_file() {
        return Err(unusable("not a regular file"));
    }
    if meta.len() > MOST_BYTES {
        return Err(unusable("too large for a file of certificates"));
    }
    let pem = std::fs::read(&file).map_err(|e| unusable(&e.to_string()))?;
    let items = parse_pem(&pem).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = items.collect();
    if certificates.is_empty() {
        return Err(unusable("no certificates in it"));
    }
    Ok(Some(RootCerts::new_with_certs(&certificates)))
}
