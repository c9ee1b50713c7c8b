//! Sums, running sums and maxima of f32, compiled for each instruction set. Every path
//! adds in the same order.

use super::simd::Simd;
use super::simd_math::multiversion;

/// Lanes of a sum or a maximum: two AVX-512 registers of f64, two of f32.
const SUM_LANES: usize = 16;
const MAX_LANES: usize = 32;
/// Neighbours of a running sum that are added among themselves first, so that not every
/// value waits for the one before.
const FOUR: usize = 4;

#[inline(always)]
fn sum_body<const FMA: bool>(x: &[f32]) -> f64 {
    let mut lanes = [0.0f64; SUM_LANES];
    let (blocks, tail) = x.as_chunks::<SUM_LANES>();
    for block in blocks {
        for i in 0..SUM_LANES {
            lanes[i] += f64::from(block[i]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(tail) {
        *lane += f64::from(*x);
    }
    lanes.iter().sum()
}

multiversion! {
    /// Sum in f64.
    pub fn sum(x: &[f32]) -> f64 = sum_body
}

/// The sums of 1, 2, 3 and 4 neighbours.
#[inline(always)]
fn sums_of_four(x: &[f32; FOUR]) -> [f64; FOUR] {
    let mut sums = x.map(f64::from);
    for i in 1..FOUR {
        sums[i] += sums[i - 1];
    }
    sums
}

#[inline(always)]
fn total_body<const FMA: bool>(x: &[f32]) -> f64 {
    let (fours, tail) = x.as_chunks::<FOUR>();
    let mut total = 0.0;
    for four in fours {
        total += sums_of_four(four)[FOUR - 1];
    }
    for x in tail {
        total += f64::from(*x);
    }
    total
}

multiversion! {
    /// What [`running_sum`] gives back.
    pub fn total(x: &[f32]) -> f64 = total_body
}

#[inline(always)]
fn running_sum_body<const FMA: bool>(x: &[f32], before: f64, y: &mut [f32]) -> f64 {
    let (fours, tail) = x.as_chunks::<FOUR>();
    let (y_fours, y_tail) = y.as_chunks_mut::<FOUR>();
    let mut total = 0.0;
    for (four, y) in fours.iter().zip(y_fours) {
        let (sums, base) = (sums_of_four(four), before + total);
        for i in 0..FOUR {
            y[i] = (base + sums[i]) as f32;
        }
        total += sums[FOUR - 1];
    }
    for (x, y) in tail.iter().zip(y_tail) {
        total += f64::from(*x);
        *y = (before + total) as f32;
    }
    total
}

multiversion! {
    /// Running sums of `x`, added to `before`; gives the sum of `x` alone.
    pub fn running_sum(x: &[f32], before: f64, y: &mut [f32]) -> f64 = running_sum_body
}

#[inline(always)]
fn max_body<const FMA: bool>(x: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; MAX_LANES];
    let (blocks, tail) = x.as_chunks::<MAX_LANES>();
    for block in blocks {
        for i in 0..MAX_LANES {
            lanes[i] = larger(lanes[i], block[i]);
        }
    }
    for (lane, x) in lanes.iter_mut().zip(tail) {
        *lane = larger(*lane, *x);
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, larger)
}

multiversion! {
    /// The largest value that is no NaN; -inf when there is none.
    pub fn max(x: &[f32]) -> f32 = max_body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_agree_with_plain_loops() {
        for n in [0, 1, 3, 4, 5, 15, 16, 17, 31, 32, 33, 100] {
            // Small integers: sums are exact in any order.
            let x: Vec<f32> = (0..n).map(|i| ((i * 37 + 11) % 23) as f32 - 9.0).collect();
            let want: f64 = x.iter().map(|&v| f64::from(v)).sum();
            let max_want = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            for simd in Simd::ALL.into_iter().filter(|s| s.available()) {
                assert_eq!((sum(simd, &x), total(simd, &x)), (want, want));
                assert_eq!(max(simd, &x), max_want);
                let mut y = vec![0.0; n];
                assert_eq!(running_sum(simd, &x, 5.0, &mut y), want);
                let mut running = 5.0;
                for (x, y) in x.iter().zip(y) {
                    running += x;
                    assert_eq!(y, running);
                }
            }
        }
    }

    #[test]
    fn maxima_pass_over_nan() {
        for simd in Simd::ALL.into_iter().filter(|s| s.available()) {
            let mut x = [f32::NAN; 70];
            assert_eq!(max(simd, &x), f32::NEG_INFINITY);
            x[69] = -2.0;
            x[3] = -3.0;
            assert_eq!(max(simd, &x), -2.0);
        }
    }
}
