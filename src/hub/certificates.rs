//! Certificates to trust, in networks with an authority of their own; and what is wrong with
//! a secure connection, in plain words.

use crate::error::{Error, Result};
use rustls::{CertificateError, RootCertStore};
use std::path::PathBuf;
use ureq::tls::{PemItem, RootCerts, parse_pem};

/// A system's own collection has some 250 KB.
const MOST_BYTES: u64 = 16 << 20;
/// What some editors put before text.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// What `SSL_CERT_FILE` names.
fn file() -> Option<PathBuf> {
    let file = std::env::var_os("SSL_CERT_FILE").filter(|file| !file.is_empty());
    file.map(PathBuf::from)
}

/// Those of `SSL_CERT_FILE`; none where it is not set.
///
/// # Errors
/// It names no regular file, or none with certificates.
pub fn from_env() -> Result<Option<RootCerts>> {
    let Some(file) = file() else {
        return Ok(None);
    };
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
    let items = parse_pem(pem.strip_prefix(MARK).unwrap_or(&pem));
    let mut certificates = Vec::new();
    let mut broken = false;
    for item in items {
        match item {
            Ok(PemItem::Certificate(certificate)) => certificates.push(certificate),
            Ok(_) => {}
            Err(_) => broken = true,
        }
    }
    let some = !certificates.is_empty();
    certificates.retain(|certificate| {
        let certificate = certificate.der().to_vec().into();
        RootCertStore::empty().add(certificate).is_ok()
    });
    match certificates.is_empty() {
        false => Ok(Some(RootCerts::new_with_certs(&certificates))),
        true if some || broken => Err(unusable(
            "no certificate in it can be used; they are damaged",
        )),
        true => Err(unusable("no certificates in it")),
    }
}

/// The TLS layer's error in one of the HTTP crate's, if it is one.
pub fn tls_error(error: &ureq::Error) -> Option<&rustls::Error> {
    match error {
        ureq::Error::Rustls(error) => Some(error),
        ureq::Error::Io(error) => error.get_ref()?.downcast_ref(),
        _ => None,
    }
}

/// True where the other side does not speak TLS at all.
pub fn is_plain(error: &rustls::Error) -> bool {
    matches!(error, rustls::Error::InvalidMessage(_))
}

/// What is wrong with the certificate or the connection of the other side, and what to do.
pub fn told(error: &rustls::Error) -> String {
    use rustls::Error::{AlertReceived, InvalidCertificate, PeerIncompatible};
    match error {
        InvalidCertificate(error) => about_certificate(error),
        error if is_plain(error) => "it does not speak TLS; http:// may be meant".to_string(),
        AlertReceived(_) => "it refuses the connection; ask who runs it".to_string(),
        PeerIncompatible(_) => {
            "it has no version or cipher of TLS that is known here; ask who runs it".to_string()
        }
        _ => "it does not keep to TLS; ask who runs it".to_string(),
    }
}

fn about_certificate(error: &CertificateError) -> String {
    use CertificateError::{
        Expired, ExpiredContext, NotValidForName, NotValidForNameContext, NotValidYet,
        NotValidYetContext, Revoked, UnknownIssuer,
    };
    let text = match (error, file()) {
        (UnknownIssuer, Some(file)) => {
            return format!(
                "its certificate is not signed by one in {}, which SSL_CERT_FILE names; add the \
                 certificate of the authority that signed it",
                file.display()
            );
        }
        (error, Some(file)) if is_authority(error) => {
            return format!(
                "its certificate is marked as one of an authority, and a server's own must be \
                 marked as an end entity (CA:FALSE); make one so, and put it, or the authority's \
                 that signs it, into {} of SSL_CERT_FILE",
                file.display()
            );
        }
        (error, None) if is_authority(error) => {
            "its certificate is marked as one of an authority, not as an end entity (CA:FALSE); \
             ask who runs it"
        }
        (UnknownIssuer, None) => {
            "its certificate is of no known authority; in a network with certificates of its own \
             set SSL_CERT_FILE to them"
        }
        (Expired | ExpiredContext { .. }, _) => {
            "its certificate has run out; check this machine's clock, or ask who runs it"
        }
        (NotValidYet | NotValidYetContext { .. }, _) => {
            "its certificate is not valid yet; check this machine's clock"
        }
        (NotValidForName | NotValidForNameContext { .. }, _) => {
            "its certificate is for another host; check the address"
        }
        (Revoked, _) => "its certificate was revoked; ask who runs it",
        _ => "its certificate cannot be used; ask who runs it",
    };
    text.to_string()
}

/// True for an authority's certificate in the place of a server's. The error has no type that
/// can be named here.
fn is_authority(error: &CertificateError) -> bool {
    matches!(error, CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity"))
}

#[cfg(test)]
mod tests {
    use super::told;
    use rustls::{CertificateError, Error, InvalidMessage};

    #[test]
    fn what_is_wrong_is_told_in_plain_words() {
        let certificate = |error| told(&Error::InvalidCertificate(error));
        for (text, part) in [
            (certificate(CertificateError::Expired), "has run out"),
            (
                certificate(CertificateError::NotValidForName),
                "another host",
            ),
            (certificate(CertificateError::BadEncoding), "cannot be used"),
            (
                told(&Error::InvalidMessage(InvalidMessage::InvalidContentType)),
                "does not speak TLS",
            ),
            (told(&Error::DecryptError), "keep to TLS"),
        ] {
            assert!(text.contains(part), "{text}");
            assert!(!text.contains("::") && text.contains(';'), "{text}");
        }
    }
}
