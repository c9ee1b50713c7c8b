//! Tensor records: name, shape, type and place in the file.
//!
//! Read with our own cursor: `TensorInfo::read_from` of gguf-rs-lib does not
//! say which tensor it rejects, nor which type.

use super::cursor::{Cursor, shown};
use crate::error::{Error, Result};
use crate::quant::DType;
use gguf_rs_lib::format::GGUFTensorType;
use gguf_rs_lib::format::constants::{GGUF_MAX_DIMENSIONS, GGUF_MAX_TENSOR_NAME_LENGTH};
use std::collections::HashSet;

/// One tensor's place in its file.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    pub name: String,
    /// GGUF order: contiguous dimension first.
    pub shape: Vec<u64>,
    /// GGUF type id; [`TensorInfo::dtype`] says whether we can compute with it.
    pub type_id: u32,
    /// Absolute byte offset in its file.
    pub offset: usize,
    pub bytes: usize,
    /// Which file of a split model holds it; 0 where there is one file.
    pub shard: usize,
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

/// Reads `count` records and checks each tensor's place.
///
/// # Errors
/// A damaged record, an unknown type, a duplicate, an overlap, a misplaced
/// tensor, or one that ends past the file.
pub(super) fn read(cursor: &mut Cursor, count: u64, alignment: u64) -> Result<Vec<TensorInfo>> {
    let mut names = HashSet::new();
    let mut records = Vec::new();
    for _ in 0..count {
        let record = Record::read(cursor)?;
        if !names.insert(record.name) {
            return Err(cursor.bad(format!("tensor {} appears twice", shown(record.name))));
        }
        records.push(record);
    }
    // The data section starts at the next multiple of the alignment.
    let start = (cursor.at as u64).next_multiple_of(alignment);
    let mut end = 0;
    let mut tensors = Vec::with_capacity(records.len());
    for record in records {
        let tensor = record.place(cursor, start, alignment)?;
        end = end.max(tensor.offset + tensor.bytes);
        tensors.push(tensor);
    }
    if end > cursor.bytes.len() {
        return Err(cursor.bad(format!(
            "truncated: its tensors end at byte {end}, the file has {}",
            cursor.bytes.len()
        )));
    }
    check_overlap(cursor, &tensors)?;
    Ok(tensors)
}

/// A record as it stands in the file.
struct Record<'a> {
    name: &'a str,
    shape: Vec<u64>,
    type_id: u32,
    /// From the start of the data section.
    offset: u64,
}

impl<'a> Record<'a> {
    fn read(cursor: &mut Cursor<'a>) -> Result<Record<'a>> {
        let name = cursor.name("a tensor name", GGUF_MAX_TENSOR_NAME_LENGTH)?;
        let n_dims = cursor.u32(name)?;
        if n_dims == 0 || n_dims as usize > GGUF_MAX_DIMENSIONS {
            return Err(cursor.bad(format!(
                "tensor {} has {n_dims} dimensions, not 1 to {GGUF_MAX_DIMENSIONS}",
                shown(name)
            )));
        }
        let shape = (0..n_dims).map(|_| cursor.u64(name));
        Ok(Record {
            name,
            shape: shape.collect::<Result<_>>()?,
            type_id: cursor.u32(name)?,
            offset: cursor.u64(name)?,
        })
    }

    /// Size and absolute offset; the caller holds the end against the file.
    fn place(self, cursor: &Cursor, start: u64, alignment: u64) -> Result<TensorInfo> {
        let name = shown(self.name);
        let Ok(ty) = GGUFTensorType::from_u32(self.type_id) else {
            return Err(unknown_type(cursor, &name, self.type_id));
        };
        let (shape, block_len) = (&self.shape, ty.block_size() as u64);
        let n_values = (shape.iter()).try_fold(1u64, |n, &dim| n.checked_mul(dim));
        let size = n_values
            .filter(|&n| n > 0 && shape[0].is_multiple_of(block_len))
            .and_then(|n| ty.checked_calculate_size(n));
        let Some(size) = size else {
            return Err(cursor.bad(format!(
                "tensor {name} has shape {shape:?}, which is impossible for type {}",
                ty.name()
            )));
        };
        if !self.offset.is_multiple_of(alignment) {
            return Err(cursor.bad(format!(
                "tensor {name} lies at offset {}, not a multiple of {alignment}",
                self.offset
            )));
        }
        // Bounded so that offset + size cannot overflow.
        let bounded = |v: u64| usize::try_from(v).ok().filter(|&v| v <= usize::MAX / 2);
        let offset = start.checked_add(self.offset).and_then(bounded);
        match (offset, bounded(size)) {
            (Some(offset), Some(bytes)) => Ok(TensorInfo {
                name: self.name.to_string(),
                shape: self.shape,
                type_id: self.type_id,
                offset,
                bytes,
                shard: 0,
            }),
            _ => Err(cursor.bad(format!(
                "tensor {name} claims {size} bytes at offset {}, the file has {}",
                self.offset,
                cursor.bytes.len()
            ))),
        }
    }
}

fn unknown_type(cursor: &Cursor, name: &str, type_id: u32) -> Error {
    let known: Vec<&str> = DType::ALL.iter().map(|t| t.name()).collect();
    Error::file(
        cursor.path,
        format!("tensor {name} has the unknown type {type_id}"),
        format!("fetch the model in one of {}", known.join(", ")),
    )
}

fn check_overlap(cursor: &Cursor, tensors: &[TensorInfo]) -> Result<()> {
    let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
    by_offset.sort_by_key(|t| t.offset);
    // No tensor is empty, so neighbours overlap if any two do.
    for pair in by_offset.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            return Err(cursor.bad(format!(
                "tensors {} and {} overlap",
                shown(&pair[0].name),
                shown(&pair[1].name)
            )));
        }
    }
    Ok(())
}
