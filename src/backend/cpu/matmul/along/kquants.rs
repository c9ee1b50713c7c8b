//! Super-blocks of 256 values; layouts as in `unpack/kquants.rs`.

use std::arch::x86_64::*;

use super::super::acts::{C16_AT, D_AT, N32_AT, RECORD};
use super::{Along, RECORDS, ROWS};
use crate::quant::DType;

/// Four bytes a lane.
type Codes = [[u8; 64]; 4];

/// Activations of an affine block.
#[repr(C, align(64))]
pub struct Affine {
    /// Groups 0 and 2, 1 and 3, 4 and 6, 5 and 7: as the nibbles of 64 bytes lie.
    q: Codes,
    /// `n32` of groups 0, 2, 1, 3 and 4, 6, 5, 7, each for four rows.
    n: [[f32; 16]; 2],
    d: [f32; RECORDS],
}

/// Activations of a centred block with groups of 16.
#[repr(C, align(64))]
pub struct Centred {
    q: Codes,
    /// `c16` of all groups, each for four rows.
    c: [[i32; 16]; 4],
    d: [f32; RECORDS],
}

/// Where the groups of [`Affine`] lie.
const AFFINE_ORDER: [usize; RECORDS] = [0, 2, 1, 3, 4, 6, 5, 7];

/// Four bytes of a record.
fn word(record: &[u8; RECORD], at: usize) -> [u8; 4] {
    [record[at], record[at + 1], record[at + 2], record[at + 3]]
}

fn scales(records: &[[u8; RECORD]; RECORDS]) -> [f32; RECORDS] {
    records
        .each_ref()
        .map(|r| f32::from_le_bytes(word(r, D_AT)))
}

/// Lane `4 * i + r` becomes lane `4 * r + i`.
const TRANSPOSE: [u32; 16] = {
    let mut at = [0; 16];
    let mut i = 0;
    while i < 16 {
        at[i] = (4 * (i % 4) + i / 4) as u32;
        i += 1;
    }
    at
};

/// In each quarter, bytes `4 * r + order[i]` to bytes `4 * i + r`.
const fn interleave(order: [u8; 4]) -> [u8; 64] {
    let mut at = [0; 64];
    let mut i = 0;
    while i < 64 {
        at[i] = 4 * (i % 4) as u8 + order[i % 16 / 4];
        i += 1;
    }
    at
}

/// The same 16 bytes in each quarter.
const fn quarters(bytes: [u8; 16]) -> [u8; 64] {
    let mut at = [0; 64];
    let mut i = 0;
    while i < 64 {
        at[i] = bytes[i % 16];
        i += 1;
    }
    at
}

macro_rules! avx512_fn {
    ($($item:item)*) => {
        $(#[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        $item)*
    };
}

avx512_fn! {
    fn load(bytes: &[u8; 64]) -> __m512i {
        // SAFETY: 64 readable bytes.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    fn load_f32(values: &[f32; 16]) -> __m512 {
        // SAFETY: 16 readable values.
        unsafe { _mm512_loadu_ps(values.as_ptr()) }
    }

    fn load_i32(values: &[i32; 16]) -> __m512i {
        // SAFETY: 16 readable values.
        unsafe { _mm512_loadu_si512(values.as_ptr().cast()) }
    }

    /// 16 bytes of each row, a quarter each.
    unsafe fn quarter_rows(p: *const u8, stride: usize) -> __m512i {
        // SAFETY: the caller vouches for 16 readable bytes of four rows.
        unsafe {
            let at = |r: usize| _mm_loadu_si128(p.add(r * stride).cast());
            let v = _mm512_castsi128_si512(at(0));
            let v = _mm512_inserti32x4::<1>(v, at(1));
            let v = _mm512_inserti32x4::<2>(v, at(2));
            _mm512_inserti32x4::<3>(v, at(3))
        }
    }

    fn split(v: __m512i) -> [__m128i; 4] {
        [
            _mm512_castsi512_si128(v),
            _mm512_extracti32x4_epi32::<1>(v),
            _mm512_extracti32x4_epi32::<2>(v),
            _mm512_extracti32x4_epi32::<3>(v),
        ]
    }

    /// The rows' sums of pairs of lanes, row after row in each quarter. Exact below 2^15.
    fn add_pairs(sums: [__m512i; ROWS]) -> [__m512i; 2] {
        let one = _mm512_set1_epi16(1);
        [
            _mm512_madd_epi16(_mm512_packs_epi32(sums[0], sums[1]), one),
            _mm512_madd_epi16(_mm512_packs_epi32(sums[2], sums[3]), one),
        ]
    }

    /// `y` and, one after the other, the quarters of `sums` times `d`.
    fn add_groups(sums: [__m512; 2], order: [usize; 4], d: &[f32; RECORDS], y: __m128) -> __m128 {
        let mut y = y;
        for (half, sums) in sums.into_iter().enumerate() {
            let quarters = [
                _mm512_castps512_ps128(sums),
                _mm512_extractf32x4_ps::<1>(sums),
                _mm512_extractf32x4_ps::<2>(sums),
                _mm512_extractf32x4_ps::<3>(sums),
            ];
            for i in 0..4 {
                y = _mm_fmadd_ps(quarters[order[i]], _mm_set1_ps(d[4 * half + i]), y);
            }
        }
        y
    }
}

pub struct Q4K;
pub struct Q6K;

impl Along for Q4K {
    const DTYPE: DType = DType::Q4K;
    type X = Affine;

    fn arrange(records: &[[u8; RECORD]; RECORDS]) -> Affine {
        let mut x = Affine {
            q: [[0; 64]; 4],
            n: [[0.0; 16]; 2],
            d: scales(records),
        };
        for (i, g) in AFFINE_ORDER.into_iter().enumerate() {
            x.q[i / 2][32 * (i % 2)..][..32].copy_from_slice(&records[g][..32]);
            x.n[i / 4][4 * (i % 4)..][..4].fill(f32::from_le_bytes(word(&records[g], N32_AT)));
        }
        x
    }

    /// Budget, for 1,024 weights (576 bytes): nibbles 24, `vpdpbusd` 16, adding up 30,
    /// scales some 35, sums 20: 125 instructions on two ports, 63 cycles, 9 bytes a
    /// cycle: twice what one core reads from memory.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn block(p: *const u8, stride: usize, x: &Affine, y: __m128) -> __m128 {
        const ORDER: [u8; 64] = interleave([0, 2, 1, 3]);
        const LOW4: u32 = 0x0F0F_0F0F;
        const LOW6: u32 = 0x3F3F_3F3F;
        const TOP2: u32 = 0x3030_3030;
        let quarters = |a: u32, b: u32, c: u32, d: u32| {
            _mm512_set4_epi32(d as i32, c as i32, b as i32, a as i32)
        };
        // SAFETY: the caller's contract: the head of the block.
        let head = unsafe { quarter_rows(p, stride) };
        // Scales 0..4 and 4..8, minimums 0..4 and 4..8 of each row, a byte each.
        let low = _mm512_shuffle_epi32::<0b11_10_11_01>(head);
        let low = _mm512_srlv_epi32(low, quarters(0, 0, 0, 4));
        let low = _mm512_and_si512(low, quarters(LOW6, LOW4, LOW6, LOW4));
        let top = _mm512_srli_epi32::<2>(_mm512_shuffle_epi32::<0b10_10_01_01>(head));
        // low | top & mask
        let bytes = _mm512_ternarylogic_epi32::<0xF8>(low, top, quarters(0, TOP2, 0, TOP2));
        // Quarter i: groups of one of them, four rows each.
        // SAFETY: tables of 64 bytes.
        let transpose = unsafe { _mm512_loadu_si512(TRANSPOSE.as_ptr().cast()) };
        let bytes = _mm512_permutexvar_epi32(transpose, bytes);
        let factors = split(_mm512_shuffle_epi8(bytes, load(&ORDER)));
        let to_f32 = |v: __m128i| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(v));
        // d and dmin of the four rows.
        let first = _mm512_permutexvar_epi32(quarters(0, 4, 8, 12), head);
        let both = _mm256_cvtph_ps(_mm512_castsi512_si128(first));
        let both = _mm512_castps256_ps512(both);
        let d = _mm512_permutexvar_ps(quarters(0, 2, 4, 6), both);
        let dmin = _mm512_permutexvar_ps(quarters(1, 3, 5, 7), both);

        let nibbles = _mm512_set1_epi8(15);
        let zero = _mm512_setzero_si512();
        let [xa, xb, xc, xd] = [load(&x.q[0]), load(&x.q[1]), load(&x.q[2]), load(&x.q[3])];
        let (mut a, mut b, mut c, mut e) = ([zero; 4], [zero; 4], [zero; 4], [zero; 4]);
        for r in 0..ROWS {
            // SAFETY: the nibbles of row `r`.
            let (u, v) = unsafe {
                let qs = p.add(r * stride + 16);
                (
                    _mm512_loadu_si512(qs.cast()),
                    _mm512_loadu_si512(qs.add(64).cast()),
                )
            };
            let low = |q: __m512i| _mm512_and_si512(q, nibbles);
            let high = |q: __m512i| _mm512_and_si512(_mm512_srli_epi16::<4>(q), nibbles);
            a[r] = _mm512_dpbusd_epi32(zero, low(u), xa);
            b[r] = _mm512_dpbusd_epi32(zero, high(u), xb);
            c[r] = _mm512_dpbusd_epi32(zero, low(v), xc);
            e[r] = _mm512_dpbusd_epi32(zero, high(v), xd);
        }
        // A lane is at most 4 * 15 * 127, a pair twice that; both fit 16 bits.
        let quads = |sums: [__m512i; ROWS]| {
            let [top, bottom] = add_pairs(sums);
            let pairs = _mm512_packs_epi32(top, bottom);
            _mm512_madd_epi16(pairs, _mm512_set1_epi16(1))
        };
        // The two halves of each group: groups 0, 2 and 1, 3 together.
        let groups = |a: __m512i, b: __m512i| {
            let even = _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
            let odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b);
            _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd))
        };
        let dots = [groups(quads(a), quads(b)), groups(quads(c), quads(e))];
        let mut sums = dots;
        for i in 0..2 {
            let scale = _mm512_mul_ps(to_f32(factors[i]), d);
            let min = _mm512_mul_ps(to_f32(factors[2 + i]), dmin);
            sums[i] = _mm512_fnmadd_ps(min, load_f32(&x.n[i]), _mm512_mul_ps(dots[i], scale));
        }
        add_groups(sums, [0, 2, 1, 3], &x.d, y)
    }
}

impl Along for Q6K {
    const DTYPE: DType = DType::Q6K;
    type X = Centred;

    fn arrange(records: &[[u8; RECORD]; RECORDS]) -> Centred {
        let mut x = Centred {
            q: [[0; 64]; 4],
            c: [[0; 16]; 4],
            d: scales(records),
        };
        for (g, record) in records.iter().enumerate() {
            x.q[g / 2][32 * (g % 2)..][..32].copy_from_slice(&record[..32]);
            for half in 0..2 {
                let c = i32::from_le_bytes(word(record, C16_AT + 4 * half));
                x.c[g / 2][8 * (g % 2) + 4 * half..][..4].fill(c);
            }
        }
        x
    }

    /// Budget, for 1,024 weights (840 bytes): unpacking 56, `vpdpbusd` 16, adding up
    /// 36, scales some 30, sums 22: 160 instructions on two ports, 80 cycles, 10 bytes
    /// a cycle.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn block(p: *const u8, stride: usize, x: &Centred, y: __m128) -> __m128 {
        /// Even groups before odd ones, eight at a time.
        const EVEN_ODD: [u8; 64] = quarters([0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]);
        const ORDER: [u8; 64] = interleave([0, 1, 2, 3]);
        // SAFETY: the caller's contract: scales and d of the blocks; tables of 64 bytes.
        let (scales, d, transpose) = unsafe {
            let at = |r: usize| p.add(208 + r * stride).cast::<u16>().read_unaligned();
            let d = [at(0), at(1), at(2), at(3)];
            (
                quarter_rows(p.add(192), stride),
                _mm_loadl_epi64(d.as_ptr().cast()),
                _mm512_loadu_si512(TRANSPOSE.as_ptr().cast()),
            )
        };
        let bytes = _mm512_shuffle_epi8(scales, load(&EVEN_ODD));
        let bytes = _mm512_permutexvar_epi32(transpose, bytes);
        let factors = split(_mm512_shuffle_epi8(bytes, load(&ORDER)));
        let d = _mm512_broadcast_f32x4(_mm_cvtph_ps(d));
        let factor = |v: __m128i| _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(v)), d);

        let (nibbles, upper) = (_mm512_set1_epi8(15), _mm512_set1_epi8(0x30));
        let zero = _mm512_setzero_si512();
        // Places of the two bits in both halves of 64 values, for low and high nibbles.
        let left = _mm512_inserti64x4::<1>(_mm512_set1_epi16(4), _mm256_set1_epi16(2));
        let right = _mm512_inserti64x4::<1>(zero, _mm256_set1_epi16(2));
        let mut sums = [_mm512_setzero_ps(); 2];
        for half in 0..2 {
            let (xa, xb) = (load(&x.q[2 * half]), load(&x.q[2 * half + 1]));
            let (mut a, mut b) = ([zero; ROWS], [zero; ROWS]);
            for r in 0..ROWS {
                // SAFETY: this half of row `r`.
                let (l, h) = unsafe {
                    let row = p.add(r * stride);
                    let h = _mm256_loadu_si256(row.add(128 + 32 * half).cast());
                    (_mm512_loadu_si512(row.add(64 * half).cast()), h)
                };
                let h = _mm512_broadcast_i64x4(h);
                let low = _mm512_and_si512(l, nibbles);
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(l), nibbles);
                // nibble | bits & mask
                let join = |q: __m512i, h: __m512i| _mm512_ternarylogic_epi32::<0xF8>(q, h, upper);
                a[r] = _mm512_dpbusd_epi32(zero, join(low, _mm512_sllv_epi16(h, left)), xa);
                b[r] = _mm512_dpbusd_epi32(zero, join(high, _mm512_srlv_epi16(h, right)), xb);
            }
            // A lane is at most 4 * 63 * 127: it fits 16 bits, a pair does not.
            let groups = |sums: [__m512i; ROWS], c: &[i32; 16]| {
                let [top, bottom] = add_pairs(sums);
                let (top, bottom) = (_mm512_castsi512_ps(top), _mm512_castsi512_ps(bottom));
                let even = _mm512_castps_si512(_mm512_shuffle_ps::<0b10_00_10_00>(top, bottom));
                let odd = _mm512_castps_si512(_mm512_shuffle_ps::<0b11_01_11_01>(top, bottom));
                _mm512_add_epi32(_mm512_add_epi32(even, odd), load_i32(c))
            };
            let (a, b) = (groups(a, &x.c[2 * half]), groups(b, &x.c[2 * half + 1]));
            let even = _mm512_cvtepi32_ps(_mm512_shuffle_i32x4::<0b10_00_10_00>(a, b));
            let odd = _mm512_cvtepi32_ps(_mm512_shuffle_i32x4::<0b11_01_11_01>(a, b));
            let first = _mm512_mul_ps(even, factor(factors[2 * half]));
            sums[half] = _mm512_fmadd_ps(odd, factor(factors[2 * half + 1]), first);
        }
        add_groups(sums, [0, 1, 2, 3], &x.d, y)
    }
}
