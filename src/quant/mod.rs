//! The one table of tensor element types.
//!
//! A type is one row of `dtypes!` plus one file here (layout, dequantize,
//! unpack to 8-bit lanes, tests). Block layouts follow the GGUF format as
//! written down in ggml's `ggml-common.h`; results are held bit for bit
//! against the `gguf` Python package (`tests/quant.rs`). The activation format
//! [`q8`] is ours.

mod bits;
mod block;
mod float;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
pub mod q8;
mod q8_0;
mod row;

pub use block::{Block, MAX_BLOCK_GROUPS, MAX_BLOCK_LEN, cast_blocks, f16_at};
pub use iq4_nl::IQ4_VALUES;
pub use mxfp4::{MXFP4_VALUES, half_scale};
pub use q8::{Q8_LEN, dot_q8, quantize_q8};
pub use row::dot_row;

/// Names each type once: variant, GGUF id, name, values a block, bytes a block,
/// and for block formats the module and struct that implement [`Block`]. The
/// leading `($)` lets it write [`with_block!`], the one dispatch on the type.
macro_rules! dtypes {
    (($dollar:tt) $($variant:ident = $id:literal, $name:literal, $len:literal, $bytes:literal
        $(, $module:ident::$block:ident)?;)*) => {
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

        $(const _: () = assert!(usize::is_multiple_of(MAX_BLOCK_LEN, $len));)*
        $($(
            pub use $module::$block;
            const _: () = {
                assert!(size_of::<$block>() == $bytes && align_of::<$block>() == 1);
                assert!(<$block as Block>::DTYPE.id() == $id && <$block as Block>::LEN == $len);
                assert!(matches!(<$block as Block>::GROUP, 16 | 32));
            };
        )?)*

        /// Runs generic code on the block format of a type:
        /// `with_block!(dtype, B => f::<B>(x), DType::F32 => .., ..)`. `B` names the
        /// format's struct; the arms after it serve the types without blocks.
        macro_rules! with_block {
            ($dollar dtype:expr, $dollar B:ident => $dollar body:expr,
                $dollar($dollar other:pat => $dollar arm:expr),+ $dollar(,)?) => {
                match $dollar dtype {
                    $($($crate::quant::DType::$variant => {
                        type $dollar B = $crate::quant::$block;
                        $dollar body
                    })?)*
                    $dollar($dollar other => $dollar arm),+
                }
            };
        }
        pub(crate) use with_block;
    };
}

dtypes! { ($)
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    BF16 = 30, "BF16", 1, 2;
    I32 = 26, "I32", 1, 4;
    Q4_0 = 2, "Q4_0", 32, 18, q4_0::BlockQ4_0;
    Q4_1 = 3, "Q4_1", 32, 20, q4_1::BlockQ4_1;
    Q5_0 = 6, "Q5_0", 32, 22, q5_0::BlockQ5_0;
    Q5_1 = 7, "Q5_1", 32, 24, q5_1::BlockQ5_1;
    Q8_0 = 8, "Q8_0", 32, 34, q8_0::BlockQ8_0;
    Q2K = 10, "Q2_K", 256, 84, q2_k::BlockQ2K;
    Q3K = 11, "Q3_K", 256, 110, q3_k::BlockQ3K;
    Q4K = 12, "Q4_K", 256, 144, q4_k::BlockQ4K;
    Q5K = 13, "Q5_K", 256, 176, q5_k::BlockQ5K;
    Q6K = 14, "Q6_K", 256, 210, q6_k::BlockQ6K;
    Iq4Nl = 20, "IQ4_NL", 32, 18, iq4_nl::BlockIq4Nl;
    Iq4Xs = 23, "IQ4_XS", 256, 136, iq4_xs::BlockIq4Xs;
    Mxfp4 = 39, "MXFP4", 32, 17, mxfp4::BlockMxfp4;
}

impl DType {
    /// Bytes of a row of `k` values; `None` when `k` is not a whole number of blocks.
    pub fn row_bytes(self, k: usize) -> Option<usize> {
        if !k.is_multiple_of(self.block_len()) {
            return None;
        }
        (k / self.block_len()).checked_mul(self.block_bytes())
    }

    /// True for block formats (everything but F32, F16, BF16 and I32).
    pub const fn is_quantized(self) -> bool {
        self.block_len() > 1
    }
}
