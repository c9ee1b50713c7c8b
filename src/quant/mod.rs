//! The one table of tensor element types.
//!
//! A type is one row of [`dtypes!`] plus one file here (layout, dequantize,
//! unpack to 8-bit lanes, tests). Block layouts follow the GGUF format as
//! written down in ggml's `ggml-common.h`; results are held bit for bit
//! against the `gguf` Python package (`tests/quant.rs`).

mod block;

pub use block::{Block, cast_blocks, f16_at};

/// Names each type once: variant, GGUF id, name, values a block, bytes a block.
macro_rules! dtypes {
    ($($variant:ident = $id:literal, $name:literal, $len:literal, $bytes:literal;)*) => {
        /// Element type of a tensor.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum DType { $($variant),* }

        impl DType {
            /// Every type, in table order.
            pub const ALL: &'static [DType] = &[$(DType::$variant),*];

            /// The type with this GGUF (ggml) id.
            pub fn from_id(id: u32) -> Option<DType> {
                match id { $($id => Some(DType::$variant),)* _ => None }
            }

            /// GGUF (ggml) id.
            pub const fn id(self) -> u32 {
                match self { $(DType::$variant => $id),* }
            }

            /// Name as users know it, such as `Q4_K`.
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name),* }
            }

            /// Values in a block.
            pub const fn block_len(self) -> usize {
                match self { $(DType::$variant => $len),* }
            }

            /// Bytes in a block.
            pub const fn block_bytes(self) -> usize {
                match self { $(DType::$variant => $bytes),* }
            }
        }
    };
}

dtypes! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    BF16 = 30, "BF16", 1, 2;
    I32 = 26, "I32", 1, 4;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q2K = 10, "Q2_K", 256, 84;
    Q3K = 11, "Q3_K", 256, 110;
    Q4K = 12, "Q4_K", 256, 144;
    Q5K = 13, "Q5_K", 256, 176;
    Q6K = 14, "Q6_K", 256, 210;
    Iq4Nl = 20, "IQ4_NL", 32, 18;
    Iq4Xs = 23, "IQ4_XS", 256, 136;
    Mxfp4 = 39, "MXFP4", 32, 17;
}

impl DType {
    /// Bytes of a row of `k` values; `None` when `k` is not a whole number of blocks.
    pub fn row_bytes(self, k: usize) -> Option<usize> {
        if k % self.block_len() != 0 {
            return None;
        }
        (k / self.block_len()).checked_mul(self.block_bytes())
    }

    /// True for block formats (everything but F32, F16, BF16 and I32).
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }
}
