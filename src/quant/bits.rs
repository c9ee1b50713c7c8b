//! Bit patterns that several block formats share.
//!
//! Every function writes (or adds to) 8-bit lanes in value order. `q` has the
//! length its comment names; a run is a stretch of consecutive values.

/// Splits nibbles: each `RUN` bytes give `RUN` values from their low nibbles,
/// then `RUN` values from their high nibbles. `q` holds `2 * qs.len()` lanes.
pub(super) fn nibbles<const RUN: usize>(qs: &[u8], q: &mut [u8]) {
    for (q, qs) in q.chunks_exact_mut(2 * RUN).zip(qs.chunks_exact(RUN)) {
        let (low, high) = q.split_at_mut(RUN);
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(qs) {
            *low = byte & 15;
            *high = byte >> 4;
        }
    }
}

/// Splits 2-bit fields of a super-block: each 32 bytes give 128 values, run `j`
/// of 32 values from bits `2j` and `2j + 1`. `q` holds 256 lanes.
pub(super) fn bit_pairs(qs: &[u8; 64], q: &mut [u8]) {
    for (q, qs) in q.chunks_exact_mut(128).zip(qs.chunks_exact(32)) {
        for (j, q) in q.chunks_exact_mut(32).enumerate() {
            for (q, &byte) in q.iter_mut().zip(qs) {
                *q = (byte >> (2 * j)) & 3;
            }
        }
    }
}

/// Adds one high bit to each value of a super-block: bit `j` of byte `l` belongs
/// to value `32 j + l` and becomes its bit `to`. `q` holds 256 lanes.
pub(super) fn add_bit_planes(planes: &[u8; 32], to: u32, q: &mut [u8]) {
    for (j, q) in q.chunks_exact_mut(32).enumerate() {
        for (q, &byte) in q.iter_mut().zip(planes) {
            *q |= ((byte >> j) & 1) << to;
        }
    }
}

/// Adds the fifth bit to each of 32 values: bit `i` of the little-endian word
/// belongs to value `i`.
pub(super) fn add_fifth_bits(qh: [u8; 4], q: &mut [u8]) {
    let word = u32::from_le_bytes(qh);
    for (i, q) in q.iter_mut().take(32).enumerate() {
        *q |= (((word >> i) & 1) as u8) << 4;
    }
}

/// The eight 6-bit scales and eight 6-bit mins of Q4_K and Q5_K.
///
/// Bytes 0..4 hold scales 0..4 and bytes 4..8 mins 0..4 in their low six bits;
/// bytes 8..12 hold the low nibbles of scales 4..8 (low) and mins 4..8 (high),
/// whose upper two bits sit on top of bytes 0..4 and 4..8.
pub(super) fn scales_and_mins(packed: &[u8; 12]) -> ([u8; 8], [u8; 8]) {
    let (mut scales, mut mins) = ([0; 8], [0; 8]);
    for j in 0..4 {
        let (s, m, low) = (packed[j], packed[j + 4], packed[j + 8]);
        scales[j] = s & 63;
        mins[j] = m & 63;
        scales[j + 4] = (low & 15) | ((s >> 6) << 4);
        mins[j + 4] = (low >> 4) | ((m >> 6) << 4);
    }
    (scales, mins)
}
