//! Compiles the generic loops for an instruction set.

/// Compiles unpackers and kernels for lanes `$v` with target features
/// `$features`, and makes `fn ops(dtype, acts) -> Option<Ops>` of them.
/// `$nt` lists 1, 2, ... up to the tokens that fit the registers.
macro_rules! compile_kernels {
    ($v:ty, $features:literal, [$($nt:literal)*]) => {
        #[target_feature(enable = $features)]
        unsafe fn unpack_q8<U: Unpack>(
            src: *const u8,
            stride: usize,
            k: usize,
            scratch: &Scratch,
        ) {
            // SAFETY: the contract of `UnpackFn`.
            unsafe { gemm::unpack::<$v, U>(src, stride, k, scratch.tile) }
        }

        #[target_feature(enable = $features)]
        unsafe fn unpack_f32<U: Unpack>(
            src: *const u8,
            stride: usize,
            k: usize,
            scratch: &Scratch,
        ) {
            // SAFETY: the contract of `UnpackFn`.
            unsafe {
                gemm::unpack::<$v, U>(src, stride, k, scratch.tile);
                float::expand::<$v, U>(scratch.tile, k, scratch.values);
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn widen<T: float::FloatFormat>(
            src: *const u8,
            stride: usize,
            k: usize,
            scratch: &Scratch,
        ) {
            // SAFETY: the contract of `UnpackFn`.
            unsafe { float::widen::<$v, T>(src, stride, k, scratch.values) }
        }

        #[target_feature(enable = $features)]
        unsafe fn q8<
            const NT: usize,
            const HALVES: usize,
            const OFFSET: u32,
            const WIDE: bool,
        >(
            scratch: &Scratch,
            k0: usize,
            k: usize,
            acts: &Acts,
            tx: *const u32,
            acc: *mut f32,
        ) {
            // SAFETY: the contract of `KernelFn`.
            unsafe {
                gemm::q8::<$v, NT, HALVES, OFFSET, WIDE>(scratch.tile, k0, k, acts, tx, acc)
            }
        }

        #[target_feature(enable = $features)]
        unsafe fn f32<const NT: usize>(
            scratch: &Scratch,
            k0: usize,
            k: usize,
            acts: &Acts,
            tx: *const u32,
            acc: *mut f32,
        ) {
            // SAFETY: the contract of `KernelFn`.
            unsafe { float::f32::<$v, NT>(scratch.values, k0, k, acts, tx, acc) }
        }

        #[target_feature(enable = $features)]
        unsafe fn dot_float<T: float::FloatFormat>(
            rows: (*const u8, usize),
            k: (usize, usize),
            acts: &Acts,
            token: u32,
            acc: *mut f32,
        ) {
            // SAFETY: the contract of `DotFn`.
            unsafe { float::dot::<$v, T>(rows, k, acts, token, acc) }
        }

        #[target_feature(enable = $features)]
        unsafe fn unpack_q16<T: float::FloatFormat>(
            src: *const u8,
            stride: usize,
            k: usize,
            scratch: &Scratch,
        ) {
            // SAFETY: the contract of `UnpackFn`.
            unsafe { q16::unpack::<$v, T>(src, stride, k, scratch.tile16()) }
        }

        #[target_feature(enable = $features)]
        unsafe fn multiply_q16<const NT: usize>(
            scratch: &Scratch,
            k0: usize,
            k: usize,
            acts: &Acts,
            tx: *const u32,
            acc: *mut f32,
        ) {
            // SAFETY: the contract of `KernelFn`.
            unsafe { q16::q16::<$v, NT>(scratch.tile16(), k0, k, acts, tx, acc) }
        }

        #[target_feature(enable = $features)]
        unsafe fn dot_q16<T: float::FloatFormat>(
            rows: (*const u8, usize),
            k: (usize, usize),
            acts: &Acts,
            token: u32,
            acc: *mut f32,
        ) {
            // SAFETY: the contract of `DotFn`.
            unsafe { q16::dot::<$v, T>(rows, k, acts, token, acc) }
        }

        #[target_feature(enable = $features)]
        unsafe fn dot<U: Unpack>(
            rows: (*const u8, usize),
            k: (usize, usize),
            acts: &Acts,
            token: u32,
            acc: *mut f32,
        ) {
            // SAFETY: the contract of `DotFn`.
            unsafe { gemm::dot::<$v, U>(rows, k, acts, token, acc) }
        }

        const F32_KERNELS: &[KernelFn] = &[$(f32::<$nt>),*];

        /// Tokens whose two sums and one product fit the registers, beside a lane of W
        /// and what is being loaded; where there are fewer registers there are fewer kernels.
        const MOST_TOKENS_16: usize = 10;

        /// What multiplies a block format with 8-bit activations.
        fn quant<U: Unpack>() -> Ops {
            let kernels: &[KernelFn] = match (U::GROUP, U::KIND, U::WIDE) {
                (16, Kind::Centred(4), _) => &[$(q8::<$nt, 2, 4, false>),*],
                (16, Kind::Centred(32), _) => &[$(q8::<$nt, 2, 32, false>),*],
                (16, Kind::Centred(_), _) => unreachable!("start16 knows the two"),
                (16, Kind::Affine, _) => &[$(q8::<$nt, 2, 0, false>),*],
                (_, Kind::Affine, _) => &[$(q8::<$nt, 1, 0, false>),*],
                (_, Kind::Centred(_), false) => &[$(q8::<$nt, 1, 1, false>),*],
                (_, Kind::Centred(_), true) => &[$(q8::<$nt, 1, 1, true>),*],
            };
            let kernels = match U::GROUP {
                16 => &kernels[..kernels.len().min(MOST_TOKENS_16)],
                _ => kernels,
            };
            Ops { unpack: unpack_q8::<U>, kernels, dot: Some(dot::<U>), along: None }
        }

        /// What multiplies a block format with f32 activations.
        fn quant_f32<U: Unpack>() -> Ops {
            Ops { unpack: unpack_f32::<U>, kernels: F32_KERNELS, dot: None, along: None }
        }

        /// What multiplies a float format with f32 activations.
        fn float<T: float::FloatFormat>() -> Ops {
            Ops { unpack: widen::<T>, kernels: F32_KERNELS, dot: Some(dot_float::<T>), along: None }
        }

        /// What multiplies a float format of two bytes with 16-bit activations.
        fn float_q16<T: float::FloatFormat>() -> Ops {
            const KERNELS: &[KernelFn] = &[$(multiply_q16::<$nt>),*];
            Ops { unpack: unpack_q16::<T>, kernels: KERNELS, dot: Some(dot_q16::<T>), along: None }
        }

        /// The functions for a type and kind of activations; `None` where they do not
        /// go together.
        pub fn ops(dtype: DType, acts: ActKind) -> Option<Ops> {
            fn quantized<U: Unpack>(acts: ActKind) -> Option<Ops> {
                match acts {
                    ActKind::Q8 => Some(quant::<U>()),
                    ActKind::Q16 => None,
                    ActKind::F32 => Some(quant_f32::<U>()),
                }
            }
            match dtype {
                DType::F32 | DType::F16 | DType::BF16 if acts == ActKind::Q8 => None,
                DType::F16 if acts == ActKind::Q16 => Some(float_q16::<float::F16>()),
                DType::BF16 if acts == ActKind::Q16 => Some(float_q16::<float::Bf16>()),
                DType::F32 if acts == ActKind::Q16 => None,
                DType::F32 => Some(float::<float::F32>()),
                DType::F16 => Some(float::<float::F16>()),
                DType::BF16 => Some(float::<float::Bf16>()),
                DType::I32 => None,
                DType::Q4_0 => quantized::<unpack::Q4_0>(acts),
                DType::Q4_1 => quantized::<unpack::Q4_1>(acts),
                DType::Q5_0 => quantized::<unpack::Q5_0>(acts),
                DType::Q5_1 => quantized::<unpack::Q5_1>(acts),
                DType::Q8_0 => quantized::<unpack::Q8_0>(acts),
                DType::Q2K => quantized::<unpack::Q2K>(acts),
                DType::Q3K => quantized::<unpack::Q3K>(acts),
                DType::Q4K => quantized::<unpack::Q4K>(acts),
                DType::Q5K => quantized::<unpack::Q5K>(acts),
                DType::Q6K => quantized::<unpack::Q6K>(acts),
                DType::Iq4Nl => quantized::<unpack::Iq4Nl>(acts),
                DType::Iq4Xs => quantized::<unpack::Iq4Xs>(acts),
                DType::Mxfp4 => quantized::<unpack::Mxfp4>(acts),
            }
        }
    };
}
pub(super) use compile_kernels;
