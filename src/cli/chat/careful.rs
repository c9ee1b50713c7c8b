//! Reading files that others may have changed: no end, no bound, things that stand twice.

use serde::Deserializer;
use serde::de::{Error as _, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes of a file of messages: far above what a context holds.
const MOST_BYTES: u64 = 256 << 20;

/// The bytes of a file of messages.
pub fn read_messages(path: &Path) -> io::Result<Vec<u8>> {
    read_at_most(path, MOST_BYTES)
}

/// The bytes of a file; one of more than `most` is refused without reading on.
pub fn read_at_most(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = regular(path)?;
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::other(format!("more than {most} bytes"))),
        false => Ok(bytes),
    }
}

/// Opens a file, not a device or a pipe, which may have no end.
fn regular(path: &Path) -> io::Result<File> {
    match path.metadata()?.is_file() {
        true => File::open(path),
        false => Err(io::Error::other("is no regular file")),
    }
}

/// Settings of which one that stands twice is an error.
pub fn without_duplicates<'de, D: Deserializer<'de>>(
    json: D,
) -> std::result::Result<BTreeMap<String, String>, D::Error> {
    struct Settings;
    impl<'de> Visitor<'de> for Settings {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
            out.write_str("settings by name")
        }

        fn visit_map<A: MapAccess<'de>>(
            self,
            mut map: A,
        ) -> std::result::Result<Self::Value, A::Error> {
            let mut settings = BTreeMap::new();
            while let Some((name, value)) = map.next_entry::<String, String>()? {
                if settings.insert(name.clone(), value).is_some() {
                    return Err(A::Error::custom(format!("duplicate setting `{name}`")));
                }
            }
            Ok(settings)
        }
    }
    json.deserialize_map(Settings)
}
