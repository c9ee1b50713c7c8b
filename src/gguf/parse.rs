//! Reads a GGUF file: header, metadata, tensor records, with every check.
//!
//! Format: versions 2 and 3, little endian. Each length is bounded by the
//! bytes that remain, so a hostile file cannot ask for memory it does not hold.

use super::{FileBytes, Metadata, Value};
use crate::error::{Error, Result};
use crate::quant::DType;
use gguf_rs_lib::format::header::TensorInfo as Record;
use gguf_rs_lib::format::{GGUFTensorType, GGUFValueType};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FETCH_AGAIN: &str = "fetch the file again";
/// Keys and tensors are at least this long on disk, which bounds their counts.
const MIN_ENTRY_BYTES: u64 = 12;

/// One tensor's place in the file.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    pub name: String,
    /// GGUF order: contiguous dimension first.
    pub shape: Vec<u64>,
    /// GGUF type id; [`TensorInfo::dtype`] says whether we can compute with it.
    pub type_id: u32,
    /// Absolute byte offset in the file.
    pub offset: usize,
    pub bytes: usize,
}

impl TensorInfo {
    /// The element type, when it is one of ours.
    pub fn dtype(&self) -> Option<DType> {
        DType::from_id(self.type_id)
    }

    /// Name of the type, also of those we only know by name.
    pub fn type_name(&self) -> String {
        match self.dtype() {
            Some(dtype) => dtype.name().to_string(),
            None => GGUFTensorType::from_u32(self.type_id).map_or_else(
                |_| format!("type {}", self.type_id),
                |t| t.name().to_string(),
            ),
        }
    }
}

/// An opened file: bytes, metadata and tensor records.
pub struct Gguf {
    pub path: PathBuf,
    pub version: u32,
    pub meta: Metadata,
    pub tensors: Vec<TensorInfo>,
    bytes: Arc<FileBytes>,
}

impl Gguf {
    /// Opens and checks a file; tensor data is not touched.
    pub fn open(path: &Path, mmap: bool) -> Result<Gguf> {
        let bytes = Arc::new(FileBytes::open(path, mmap)?);
        Parser {
            path,
            bytes: &bytes,
            at: 0,
        }
        .file(bytes.clone())
    }

    /// Raw bytes of a tensor.
    pub fn data(&self, tensor: &TensorInfo) -> &[u8] {
        &self.bytes[tensor.offset..tensor.offset + tensor.bytes]
    }

    /// The whole file's bytes.
    pub fn bytes(&self) -> &Arc<FileBytes> {
        &self.bytes
    }
}

struct Parser<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn bad(&self, cause: impl Into<String>) -> Error {
        Error::file(self.path, cause, FETCH_AGAIN)
    }

    fn take(&mut self, n: u64, what: &str) -> Result<&[u8]> {
        let left = self.bytes.len() - self.at;
        match usize::try_from(n) {
            Ok(n) if n <= left => {
                self.at += n;
                Ok(&self.bytes[self.at - n..self.at])
            }
            _ => Err(self.bad(format!(
                "truncated or damaged: {what} needs {n} bytes at offset {}, the file has {left} left",
                self.at
            ))),
        }
    }

    fn u32(&mut self, what: &str) -> Result<u32> {
        let b = self.take(4, what)?;
        Ok(b.iter().rev().fold(0, |v, &b| v << 8 | u32::from(b)))
    }

    fn u64(&mut self, what: &str) -> Result<u64> {
        let b = self.take(8, what)?;
        Ok(b.iter().rev().fold(0, |v, &b| v << 8 | u64::from(b)))
    }

    fn file(mut self, bytes: Arc<FileBytes>) -> Result<Gguf> {
        let version = self.header()?;
        let n_tensors = self.u64("the tensor count")?;
        let n_keys = self.u64("the metadata count")?;
        let most = self.bytes.len() as u64 / MIN_ENTRY_BYTES;
        if n_tensors > most || n_keys > most {
            return Err(self.bad(format!(
                "the header claims {n_tensors} tensors and {n_keys} metadata keys, more than {} bytes can hold",
                self.bytes.len()
            )));
        }
        let mut meta = Metadata::new(self.path, bytes.clone());
        for _ in 0..n_keys {
            let (key, value) = self.entry()?;
            if meta.set(&key, value) {
                return Err(self.bad(format!("metadata key {key} appears twice")));
            }
        }
        let tensors = self.tensors(n_tensors, &meta)?;
        Ok(Gguf {
            path: self.path.to_path_buf(),
            version,
            meta,
            tensors,
            bytes,
        })
    }

    fn header(&mut self) -> Result<u32> {
        let magic: [u8; 4] = self.bytes.first_chunk().copied().unwrap_or_default();
        if &magic != b"GGUF" {
            return Err(self.not_gguf());
        }
        self.at = 4;
        let version = self.u32("the version")?;
        match version {
            2 | 3 => Ok(version),
            1 => Err(Error::file(
                self.path,
                "GGUF version 1 is no longer readable",
                "convert the model again to version 3",
            )),
            v if v.swap_bytes() == 2 || v.swap_bytes() == 3 => Err(Error::file(
                self.path,
                "a big-endian GGUF file",
                "fetch the little-endian file of this model",
            )),
            v => Err(Error::file(
                self.path,
                format!("GGUF version {v} is unknown"),
                "versions 2 and 3 can be read; fetch another file or a newer llama-rs",
            )),
        }
    }

    fn not_gguf(&self) -> Error {
        let head = &self.bytes[..self.bytes.len().min(512)];
        let text = String::from_utf8_lossy(head).to_ascii_lowercase();
        let text = text.trim_start();
        let (cause, remedy) = if text.starts_with("<!doctype") || text.starts_with("<html") {
            (
                "a saved web page, not a GGUF file",
                "use the page's download link for the .gguf file",
            )
        } else if text.starts_with("version https://git-lfs") {
            (
                "a Git LFS pointer, not the file itself",
                "run `git lfs pull` or download the .gguf file",
            )
        } else if head.starts_with(b"PK\x03\x04") {
            (
                "a zip or PyTorch file, not a GGUF file",
                "convert the model to GGUF first",
            )
        } else if head.starts_with(b"ggml")
            || head.starts_with(b"lmgg")
            || head.starts_with(b"tjgg")
        {
            (
                "an old GGML file from before GGUF",
                "fetch the model in GGUF format",
            )
        } else {
            ("not a GGUF file", "give the path of a .gguf file")
        };
        Error::file(self.path, cause, remedy)
    }

    fn string_range(&mut self, what: &str) -> Result<std::ops::Range<usize>> {
        let len = self.u64(what)?;
        self.take(len, what)?;
        Ok(self.at - len as usize..self.at)
    }

    fn entry(&mut self) -> Result<(String, Value)> {
        let range = self.string_range("a metadata key")?;
        let key = String::from_utf8(self.bytes[range].to_vec())
            .map_err(|_| self.bad("a metadata key is not valid UTF-8"))?;
        let ty = self.value_type(&key)?;
        let value = self.value(&key, ty)?;
        Ok((key, value))
    }

    fn value_type(&mut self, key: &str) -> Result<GGUFValueType> {
        let id = self.u32(key)?;
        GGUFValueType::from_u32(id)
            .map_err(|_| self.bad(format!("metadata key {key} has unknown value type {id}")))
    }

    fn value(&mut self, key: &str, ty: GGUFValueType) -> Result<Value> {
        use GGUFValueType as T;
        let size = ty.size_in_bytes().unwrap_or(0) as u64;
        let mut raw = [0u8; 8];
        let scalar = self.take(size, key)?;
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
            T::Bool if bits > 1 => {
                return Err(self.bad(format!("metadata key {key} is a bool of value {bits}")));
            }
            T::Bool => Value::Bool(bits == 1),
            T::String => Value::Str(self.string_range(key)?),
            T::Array => {
                let ty = self.value_type(key)?;
                let len = self.u64(key)?;
                let start = self.at;
                self.skip_array(key, ty, len)?;
                // skip_array has seen `len` elements inside the file.
                Value::Array(ty, len as usize, start..self.at)
            }
        })
    }

    fn skip_array(&mut self, key: &str, ty: GGUFValueType, len: u64) -> Result<()> {
        match ty {
            GGUFValueType::Array => Err(self.bad(format!("metadata key {key} nests arrays"))),
            GGUFValueType::String => {
                if len > (self.bytes.len() - self.at) as u64 / 8 {
                    return Err(self.bad(format!(
                        "metadata key {key} claims {len} strings, more than the file can hold"
                    )));
                }
                for _ in 0..len {
                    self.string_range(key)?;
                }
                Ok(())
            }
            _ => {
                let size = ty.size_in_bytes().unwrap_or(1) as u64;
                self.take(len.saturating_mul(size), key).map(|_| ())
            }
        }
    }

    fn tensors(&mut self, count: u64, meta: &Metadata) -> Result<Vec<TensorInfo>> {
        let alignment = meta.get_u64("general.alignment")?.unwrap_or(32);
        if !alignment.is_power_of_two() || !(8..=1 << 20).contains(&alignment) {
            return Err(self.bad(format!(
                "general.alignment is {alignment}, not a power of two from 8 to 1048576"
            )));
        }
        let mut names = HashSet::new();
        let mut records = Vec::new();
        for i in 0..count {
            let mut rest = &self.bytes[self.at..];
            let before = rest.len();
            let record = Record::read_from(&mut rest)
                .map_err(|e| self.bad(format!("tensor record {i} of {count} is damaged: {e}")))?;
            self.at += before - rest.len();
            if !names.insert(record.name.clone()) {
                return Err(self.bad(format!("tensor {} appears twice", record.name)));
            }
            records.push(record);
        }
        let start = (self.at as u64).next_multiple_of(alignment);
        let tensors = records
            .into_iter()
            .map(|r| self.place(r, start, alignment))
            .collect::<Result<Vec<_>>>()?;
        self.check_overlap(&tensors)?;
        Ok(tensors)
    }

    /// Checks one record's size and range against the file.
    fn place(&self, record: Record, start: u64, alignment: u64) -> Result<TensorInfo> {
        let name = &record.name;
        let count = record
            .checked_element_count()
            .filter(|&n| n > 0 && n < 1 << 48)
            .ok_or_else(|| {
                self.bad(format!(
                    "tensor {name} has an impossible shape {:?}",
                    record.dimensions
                ))
            })?;
        let size = GGUFTensorType::from_u32(record.tensor_type)
            .ok()
            .and_then(|t| t.checked_calculate_size(count))
            .ok_or_else(|| {
                self.bad(format!(
                    "tensor {name} has unknown type {}",
                    record.tensor_type
                ))
            })?;
        if !record.offset.is_multiple_of(alignment) {
            return Err(self.bad(format!(
                "tensor {name} lies at offset {}, not a multiple of {alignment}",
                record.offset
            )));
        }
        let end = start
            .checked_add(record.offset)
            .and_then(|o| o.checked_add(size));
        match end {
            Some(end) if end <= self.bytes.len() as u64 => Ok(TensorInfo {
                offset: (start + record.offset) as usize,
                bytes: size as usize,
                shape: record.dimensions,
                type_id: record.tensor_type,
                name: record.name,
            }),
            _ => Err(self.bad(format!(
                "truncated: tensor {name} ends at byte {}, the file has {}",
                end.map_or_else(|| "2^64 or more".to_string(), |e| e.to_string()),
                self.bytes.len()
            ))),
        }
    }

    fn check_overlap(&self, tensors: &[TensorInfo]) -> Result<()> {
        let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
        by_offset.sort_by_key(|t| t.offset);
        for pair in by_offset.windows(2) {
            if pair[0].offset + pair[0].bytes > pair[1].offset {
                return Err(self.bad(format!(
                    "tensors {} and {} overlap",
                    pair[0].name, pair[1].name
                )));
            }
        }
        Ok(())
    }
}
