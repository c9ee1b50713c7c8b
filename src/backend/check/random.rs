//! Random numbers and random weights of every type.

use crate::quant::DType;

/// Deterministic random numbers (xorshift).
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        ((self.bits() >> 20) % n as u64) as usize
    }
    /// Between -1 and 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
    /// `n` values between -1 and 1.
    pub fn units(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

/// Byte places of the f16 factors in a block: random bytes there could be NaN.
fn f16_places(dtype: DType) -> &'static [usize] {
    match dtype {
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 | DType::Iq4Nl | DType::Iq4Xs => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
        DType::Q2K => &[80, 82],
        DType::Q3K => &[108],
        DType::Q6K => &[208],
        DType::F32 | DType::F16 | DType::BF16 | DType::I32 | DType::Mxfp4 => &[],
    }
}

/// Random weights of `n_values`: all bit patterns of the quantized values.
pub fn random_weights(dtype: DType, n_values: usize, random: &mut Random) -> Vec<u8> {
    let half = |v: f32| half::f16::from_f32(v).to_le_bytes();
    let bhalf = |v: f32| half::bf16::from_f32(v).to_le_bytes();
    match dtype {
        DType::F32 => (0..n_values)
            .flat_map(|_| random.unit().to_le_bytes())
            .collect(),
        DType::F16 => (0..n_values).flat_map(|_| half(random.unit())).collect(),
        DType::BF16 => (0..n_values).flat_map(|_| bhalf(random.unit())).collect(),
        _ => blocks(dtype, n_values / dtype.block_len(), random),
    }
}

fn blocks(dtype: DType, n_blocks: usize, random: &mut Random) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    bytes.resize_with(n_blocks * dtype.block_bytes(), || {
        (random.bits() >> 32) as u8
    });
    for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
        for &at in f16_places(dtype) {
            let factor = half::f16::from_f32(random.unit() * 0.02);
            block[at..at + 2].copy_from_slice(&factor.to_le_bytes());
        }
        if dtype == DType::Mxfp4 {
            block[0] = 115 + block[0] % 8;
        }
    }
    bytes
}
