//! Reads a GGUF file: header, metadata, tensor records, with every check.
//!
//! Format: versions 2 and 3, little endian. Each length is bounded by the
//! bytes that remain, and counts by fixed limits, so a hostile file cannot ask
//! for memory it does not hold.

use super::cursor::{Cursor, shown};
use super::{FileBytes, Metadata, TensorInfo, Value, identify, records, split};
use crate::error::Result;
use gguf_rs_lib::format::GGUFValueType;
use gguf_rs_lib::format::constants::{
    GGUF_DEFAULT_ALIGNMENT, GGUF_MAX_METADATA_COUNT, GGUF_MAX_METADATA_KEY_LENGTH,
    GGUF_MAX_TENSOR_COUNT,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An opened model: metadata, tensor records, and the bytes of its file or files.
pub struct Gguf {
    /// The file that was opened, the first one of a split model.
    pub path: PathBuf,
    pub version: u32,
    pub meta: Metadata,
    pub tensors: Vec<TensorInfo>,
    /// The files of a split model in order, else one.
    pub(super) files: Vec<Arc<FileBytes>>,
}

impl Gguf {
    /// Opens and checks a file and the other files of a split model; tensor
    /// data is not touched.
    ///
    /// # Errors
    /// A file that is missing, damaged or not GGUF; see [`split`] for shards.
    pub fn open(path: &Path, mmap: bool) -> Result<Gguf> {
        let first = Gguf::from_bytes(path, FileBytes::open(path, mmap)?)?;
        split::join(first, mmap)
    }

    /// Checks one file's bytes; `path` is its name in messages.
    ///
    /// # Errors
    /// Bytes that are damaged or not GGUF.
    pub fn from_bytes(path: &Path, bytes: FileBytes) -> Result<Gguf> {
        let bytes = Arc::new(bytes);
        let mut parser = Parser(Cursor {
            path,
            bytes: &bytes,
            at: 0,
        });
        let (version, meta, tensors) = parser.file(bytes.clone())?;
        Ok(Gguf {
            path: path.to_path_buf(),
            version,
            meta,
            tensors,
            files: vec![bytes],
        })
    }

    /// Raw bytes of a tensor of this model.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        &self.file_of(tensor)[tensor.offset..tensor.offset + tensor.bytes]
    }

    /// The bytes of the file that holds `tensor`, at whose `offset` its data begins.
    pub fn file_of(&self, tensor: &TensorInfo) -> &Arc<FileBytes> {
        &self.files[tensor.shard]
    }

    /// Size of the file, or of all files of a split model.
    pub fn size_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len() as u64).sum()
    }
}

struct Parser<'a>(Cursor<'a>);

impl Parser<'_> {
    fn file(&mut self, bytes: Arc<FileBytes>) -> Result<(u32, Metadata, Vec<TensorInfo>)> {
        identify::check_magic(self.0.path, self.0.bytes)?;
        self.0.at = 4;
        let version = self.0.u32("the version")?;
        identify::check_version(self.0.path, version)?;
        let n_tensors = self.0.u64("the tensor count")?;
        let n_keys = self.0.u64("the metadata count")?;
        if n_tensors > GGUF_MAX_TENSOR_COUNT || n_keys > GGUF_MAX_METADATA_COUNT {
            return Err(self.0.bad(format!(
                "the header claims {n_tensors} tensors and {n_keys} metadata keys; \
                 the most are {GGUF_MAX_TENSOR_COUNT} and {GGUF_MAX_METADATA_COUNT}"
            )));
        }
        let mut meta = Metadata::new(self.0.path, bytes);
        for _ in 0..n_keys {
            let (key, value) = self.entry()?;
            if meta.set(key, value) {
                let key = shown(key);
                return Err(self.0.bad(format!("metadata key {key} appears twice")));
            }
        }
        let alignment = self.alignment(&meta)?;
        let tensors = records::read(&mut self.0, n_tensors, alignment)?;
        Ok((version, meta, tensors))
    }

    /// `general.alignment`: at least 8, so that numbers in the map are aligned.
    fn alignment(&self, meta: &Metadata) -> Result<u64> {
        let alignment = meta.get_u64("general.alignment")?;
        let alignment = alignment.unwrap_or(GGUF_DEFAULT_ALIGNMENT as u64);
        if alignment.is_power_of_two() && (8..=1 << 20).contains(&alignment) {
            return Ok(alignment);
        }
        Err(self.0.bad(format!(
            "general.alignment is {alignment}, not a power of two from 8 to 1048576"
        )))
    }
}

impl<'a> Parser<'a> {
    fn entry(&mut self) -> Result<(&'a str, Value)> {
        let key = self
            .0
            .name("a metadata key", GGUF_MAX_METADATA_KEY_LENGTH)?;
        let ty = self.value_type(key)?;
        let value = self.value(key, ty)?;
        Ok((key, value))
    }

    fn value_type(&mut self, key: &str) -> Result<GGUFValueType> {
        let id = self.0.u32(key)?;
        GGUFValueType::from_u32(id).map_err(|_| {
            let key = shown(key);
            (self.0).bad(format!("metadata key {key} has unknown value type {id}"))
        })
    }

    fn value(&mut self, key: &str, ty: GGUFValueType) -> Result<Value> {
        use GGUFValueType as T;
        let mut raw = [0u8; 8];
        // Strings and arrays have no size of their own: nothing is taken yet.
        let scalar = self.0.take(ty.size_in_bytes().unwrap_or(0) as u64, key)?;
        raw[..scalar.len()].copy_from_slice(scalar);
        let bits = u64::from_le_bytes(raw);
        Ok(match ty {
            T::U8 | T::U16 | T::U32 | T::U64 => Value::Uint(bits),
            T::I8 => Value::Int(i64::from(bits as i8)),
            T::I16 => Value::Int(i64::from(bits as i16)),
            T::I32 => Value::Int(i64::from(bits as i32)),
            T::I64 => Value::Int(bits as i64),
            T::F32 => Value::Float(f64::from(f32::from_bits(bits as u32))),
            T::F64 => Value::Float(f64::from_bits(bits)),
            T::Bool => {
                self.check_bools(key, scalar)?;
                Value::Bool(bits == 1)
            }
            T::String => Value::Str(self.0.string(key)?),
            T::Array => self.array(key)?,
        })
    }

    fn check_bools(&self, key: &str, values: &[u8]) -> Result<()> {
        match values.iter().find(|&&value| value > 1) {
            None => Ok(()),
            Some(value) => Err(self.0.bad(format!(
                "metadata key {} holds a bool of value {value}",
                shown(key)
            ))),
        }
    }

    /// Walks over an array, so that its range is known to hold its elements.
    fn array(&mut self, key: &str) -> Result<Value> {
        let ty = self.value_type(key)?;
        let len = self.0.u64(key)?;
        let start = self.0.at;
        match (ty, ty.size_in_bytes()) {
            (GGUFValueType::String, _) => {
                // Each string takes 8 bytes at least, so a false length ends soon.
                for _ in 0..len {
                    self.0.string(key)?;
                }
            }
            (_, None) => {
                let key = shown(key);
                return Err(self.0.bad(format!("metadata key {key} nests arrays")));
            }
            (_, Some(size)) => {
                let bytes = self.0.take(len.saturating_mul(size as u64), key)?;
                if ty == GGUFValueType::Bool {
                    self.check_bools(key, bytes)?;
                }
            }
        }
        // `len` elements were seen inside the file, so it fits a usize.
        Ok(Value::Array(ty, len as usize, start..self.0.at))
    }
}
