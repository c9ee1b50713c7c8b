//! temp
use crate::quant::DType;
pub const TILE_ROWS: usize = 16;
pub fn has_type(_: DType) -> bool {
    true
}
pub fn device_bytes(dtype: DType, ne: [usize; 4]) -> usize {
    dtype.row_bytes(ne[0].next_multiple_of(32)).unwrap_or(0) * ne[1].next_multiple_of(16) * ne[2]
}
