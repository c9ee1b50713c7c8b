//! The running softmax of tiles.

use super::simd_math::softmax_columns;
use crate::backend::cpu::simd::Simd;

const WIDTH: usize = 32;
const NONE: f32 = f32::NEG_INFINITY;

/// Score of a cell in a column: column 1 begins late, 2 is hidden, 3 damaged.
fn score(cell: usize, column: usize) -> f32 {
    match column {
        1 if cell < 9 => NONE,
        2 => NONE,
        3 => f32::NAN,
        _ => ((cell * 37 + column * 11) % 101) as f32 * 0.3 - 12.0,
    }
}

#[test]
fn a_running_softmax_is_that_of_all_cells() {
    for simd in Simd::ALL.into_iter().filter(|s| s.available()) {
        let (mut max, mut sum) = ([NONE; WIDTH], [0.0; WIDTH]);
        // Of each column, what weights times cells add up to, as the output does.
        let mut out = [0.0f32; WIDTH];
        for cells in [0..7, 7..12, 12..40] {
            let first = cells.start;
            let scores = cells.flat_map(|c| (0..WIDTH).map(move |l| score(c, l)));
            let mut x: Vec<f32> = scores.collect();
            let mut keep = [f32::NAN; WIDTH];
            softmax_columns(simd, &mut x, &mut max, &mut sum, &mut keep);
            for (l, out) in out.iter_mut().enumerate() {
                let weights = x[l..].iter().step_by(WIDTH).enumerate();
                *out = *out * keep[l] + weights.map(|(i, w)| w * (first + i) as f32).sum::<f32>();
            }
        }
        assert_eq!((sum[2], out[2]), (0.0, 0.0), "{simd:?}: nothing is seen");
        assert!(
            sum[3].is_nan() && out[3].is_nan(),
            "{simd:?}: NaN is not lost"
        );
        for l in [0, 1, 4, 17, 31] {
            let weights = (0..40).map(|c| f64::from(score(c, l)).exp());
            let (total, want) = weights
                .enumerate()
                .fold((0.0, 0.0), |(t, o), (c, w)| (t + w, o + w * c as f64));
            // 40 sums and an exponential of 2 ulp: far below 1e-5 in f32.
            let got = f64::from(out[l] / sum[l]);
            assert!(
                (got / (want / total) - 1.0).abs() < 1e-5,
                "{simd:?} {l}: {got}"
            );
        }
    }
}
