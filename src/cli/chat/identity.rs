//! Which model a session is of.

use crate::Result;
use crate::gguf::Gguf;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Bytes of each tensor that tell models of the same shape apart: a cache line of weights.
const SAMPLE_BYTES: usize = 64;
/// Digits of a model's digest in messages.
const SHOWN_DIGITS: usize = 8;

/// Which model a session is of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// For people.
    pub name: String,
    /// SHA-256 of tensor names, types, shapes and the first bytes of each.
    pub digest: String,
}

impl Identity {
    /// Of an opened file.
    ///
    /// # Errors
    /// A name of the wrong type.
    pub fn of(gguf: &Gguf) -> Result<Identity> {
        let mut hash = Sha256::new();
        for tensor in &gguf.tensors {
            hash.update(format!(
                "{} {} {:?};",
                tensor.name, tensor.type_id, tensor.shape
            ));
            let data = gguf.data(tensor);
            hash.update(&data[..data.len().min(SAMPLE_BYTES)]);
        }
        let file = gguf.path.file_name().unwrap_or(gguf.path.as_os_str());
        let name = match gguf.meta.get_str("general.name")? {
            Some(name) => name.to_string(),
            None => file.to_string_lossy().into_owned(),
        };
        let digest = hash.finalize();
        let digest = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Identity { name, digest })
    }

    /// The name, and enough of the digest to tell models of one name apart.
    pub fn describe(&self) -> String {
        let digest: String = self.digest.chars().take(SHOWN_DIGITS).collect();
        format!("{:?} ({digest})", self.name)
    }
}
