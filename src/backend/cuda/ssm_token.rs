//! What a Mamba layer does for one token between its products in and out becomes two
//! launches of `cuda-kernels/ssm_token.cu`, with the bits of the four that they stand for:
//! convolution, the product for dt, B and C, the product for dt of all channels, and scan.
//!
//! `LLAMA_RS_CHAIN=off` leaves them launches of their own.

use super::bind::Launch;
use super::context::Context;
use super::kernel::Kernel;
use super::layout::TILE_ROWS;
use super::ops::X_GROUP;
use super::seen::{Seen, VIEW, view_at as view};
use crate::error::Result;
use crate::quant::DType;

// As `cuda-kernels/ssm_token.cu` has them.
const TAPS: u32 = 4;
const D_STATE: u32 = 16;
const WARP: u32 = 32;
const UNIT: u32 = 32;
const MOST_UNITS: u32 = 5;
/// Blocks that share a row tile, and the groups of x that they have at most.
const PARTS: u32 = 4;
const MOST_GROUPS: u32 = 20;
const SCAN_THREADS: u32 = 64;

/// The first of the two.
pub const FIRST: &str = "ssm_token_x";

/// Types that dt's product may have, by the launch that it stands for.
const DT_PRODUCTS: [(&str, &str); 2] = [
    ("mul_mat_vec_Q5_0", "ssm_token_scan_Q5_0"),
    ("mul_mat_vec_Q8_0", "ssm_token_scan_Q8_0"),
];

/// Word of the flag behind the views of SSM_CONV.
const SILU: usize = 7 * VIEW;

/// The words of both launches, and what their shapes depend on.
struct Fused {
    x: Vec<u64>,
    scan: Vec<u64>,
    /// Rows of dt, B and C together.
    m: u32,
    channels: u32,
}

/// W, x and y of a product with nothing added, normed or gated.
fn plain_product(job: &[u64]) -> Option<[Seen<'_>; 3]> {
    let plain = [1, 3, 4, 5].iter().all(|&at| view(job, at).data() == 0);
    plain.then(|| [0, 2, 6].map(|at| view(job, at)))
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// `None` when the four do not read each other, or have shapes that the kernels have not.
fn fused(conv: &[u64], x_job: &[u64], dt_job: &[u64], scan: &[u64]) -> Option<Fused> {
    let [u, x, taps, past, ids, rows, bias] = [0, 1, 2, 3, 4, 5, 6].map(|at| view(conv, at));
    let [x_w, x_x, x_y] = plain_product(x_job)?;
    let [dt_w, dt_x, dt_y] = plain_product(dt_job)?;
    let [y, state, scan_u, dt, a] = [0, 1, 2, 3, 4].map(|at| view(scan, at));
    let [b, c, scan_ids, scan_rows] = [5, 6, 7, 8].map(|at| view(scan, at));
    let [dt_bias, d, z] = [9, 10, 11].map(|at| view(scan, at));
    let (channels, dt_rank) = (x.ne(0), dt_x.ne(0));
    let q6 = x_w.dtype() == DType::Q6K.id() as u64;
    let reads = x_x.data() == u.data()
        && scan_u.data() == u.data()
        && dt_x.data() == x_y.data()
        && b.data() == x_y.data() + 4 * u64::from(dt_rank)
        && c.data() == b.data() + 4 * u64::from(D_STATE)
        && dt.data() == dt_y.data()
        && (scan_ids.data(), scan_rows.data()) == (ids.data(), rows.data());
    let shapes = (x.ne(1), ids.ne(0)) == (1, 1)
        && channels % (PARTS * X_GROUP as u32) == 0
        && channels / X_GROUP as u32 <= MOST_GROUPS
        && (taps.ne(0), state.ne(0)) == (TAPS, D_STATE)
        && (x_w.ne(0), dt_w.ne(1)) == (channels, channels)
        && (a.ne(0), a.ne(1)) == (D_STATE, channels)
        && (state.ne(2), state.ne(3)) == (channels, past.ne(2))
        && x_w.ne(1) == dt_rank + 2 * D_STATE
        && dt_rank % UNIT == 0
        && dt_rank / UNIT <= MOST_UNITS
        && (q6 || x_w.dtype() == DType::Q4K.id() as u64);
    let fours = [&x, &taps, &past, &bias, &x_y, &a, &state];
    let wanted = reads
        && shapes
        && fours.iter().all(|v| v.data() % 16 == 0)
        && taps.nb(1) == 16
        && conv[SILU] & 0xffff_ffff == 1
        && d.data() != 0
        && z.data() != 0;
    if !wanted {
        return None;
    }
    let head = [
        ids.data(),
        rows.data(),
        x.live()?,
        x.data(),
        taps.data(),
        bias.data(),
        past.data(),
        pair(channels, past.ne(2)),
    ];
    let m = x_w.ne(1);
    let x_words = [x_w.data(), x_y.data(), pair(m, u32::from(q6))];
    let scan_words = [dt_w, dt_x, b, c, a, dt_bias, d, z, state, y].map(|v| v.data());
    Some(Fused {
        x: [&head[..], &x_words].concat(),
        scan: [&head[..], &scan_words, &[u64::from(dt_rank / UNIT)]].concat(),
        m,
        channels,
    })
}

/// The two launches that do the work of these, if these are the four.
fn token(context: &Context, launches: &[Launch]) -> Result<Option<[Launch; 2]>> {
    let [conv, x, dt, scan] = launches else {
        return Ok(None);
    };
    let product = DT_PRODUCTS.iter().find(|(from, _)| *from == dt.entry());
    let entries = [conv, x, scan].map(Launch::entry);
    let ("ssm_conv_4", "mul_mat_vec_mixed_1", "ssm_scan_channels_16", Some((_, entry))) =
        (entries[0], entries[1], entries[2], product)
    else {
        return Ok(None);
    };
    let jobs = [x, dt].map(|launch| launch.jobs().collect::<Vec<_>>());
    let ([x_job], [dt_job]) = (&jobs[0][..], &jobs[1][..]) else {
        return Ok(None);
    };
    // Blocks that are done write results while others still read what the four read.
    let apart = !x.disturbs(conv, None) && [conv, x, dt].iter().all(|l| !scan.disturbs(l, None));
    let found = fused(conv.values(), x_job, dt_job, scan.values());
    let Some(f) = found.filter(|_| apart) else {
        return Ok(None);
    };
    let tile = TILE_ROWS as u32;
    let grid = |rows: u32, blocks: u32| [(rows.div_ceil(tile) * blocks) as usize, 1, 1];
    let threads = f.channels / X_GROUP as u32 / PARTS * WARP;
    let first = Kernel::new(FIRST, grid(f.m, PARTS), threads);
    let second = Kernel::new(*entry, grid(f.channels, 1), SCAN_THREADS);
    Ok(Some([
        Launch::of_words(context, &first, &[&f.x], false)?.in_place_of(&[conv, x]),
        Launch::of_words(context, &second, &[&f.scan], false)?.in_place_of(&[conv, x, dt, scan]),
    ]))
}

/// `launches` of one token with two instead of four wherever that can be.
/// The GPU must have clusters of blocks (sm_90).
pub fn fuse(context: &Context, launches: Vec<Launch>) -> Result<Vec<Launch>> {
    if context.compute_capability() < (9, 0) {
        return Ok(launches);
    }
    let mut fused: Vec<Launch> = Vec::new();
    for launch in launches {
        fused.push(launch);
        let at = fused.len().saturating_sub(4);
        if let Some(two) = token(context, &fused[at..])? {
            fused.truncate(at);
            fused.extend(two);
        }
    }
    Ok(fused)
}

#[cfg(test)]
mod tests {
    use super::super::seen::tests::view as words;
    use super::*;

    const C: u64 = 1024;
    const RANK: u64 = 64;

    fn of(data: u64, ne: [u64; 2]) -> [u64; VIEW] {
        words(data, [ne[0], ne[1], 1, 1], None, DType::F32)
    }

    /// Conv, product, product, scan. Addresses of what they write: 0x1000, 0x2000, 0x3000, 0x4000.
    fn four() -> [Vec<u64>; 4] {
        let none = of(0, [1, 1]);
        let mut taps = of(0x20, [4, C]);
        taps[3] = 16;
        let past = words(0x30, [C, 3, 2, 1], None, DType::F32);
        let x = words(0x10, [C, 1, 1, 1], Some(0x99), DType::F32);
        let (ids, rows) = (of(0x40, [1, 1]), of(0x50, [2, 1]));
        let conv = [
            of(0x1000, [C, 1]),
            x,
            taps,
            past,
            ids,
            rows,
            of(0x60, [C, 1]),
        ];
        let product = |w: [u64; VIEW], x, y| {
            let views = [
                w,
                none,
                of(x, [w[6] & 0xffff_ffff, 1]),
                none,
                none,
                none,
                of(y, [1, 1]),
            ];
            [&views.concat()[..], &[1 << 32, 0]].concat()
        };
        let m = RANK + 32;
        let x_w = words(0x70, [C, m, 1, 1], None, DType::Q6K);
        let dt_w = words(0x80, [RANK, C, 1, 1], None, DType::Q5_0);
        let b = 0x2000 + 4 * RANK;
        let scan = [
            of(0x4000, [1, C]),
            words(0x90, [16, 1, C, 2], None, DType::F32),
            of(0x1000, [1, C]),
            of(0x3000, [C, 1]),
            of(0xa0, [16, C]),
            of(b, [16, 1]),
            of(b + 64, [16, 1]),
            ids,
            rows,
            of(0xb0, [C, 1]),
            of(0xc0, [C, 1]),
            of(0xd0, [1, C]),
        ];
        [
            [&conv.concat()[..], &[1]].concat(),
            product(x_w, 0x1000, 0x2000),
            product(dt_w, 0x2000, 0x3000),
            [&scan.concat()[..], &[4]].concat(),
        ]
    }

    fn fits(change: impl FnOnce(&mut [Vec<u64>; 4])) -> bool {
        let mut four = four();
        change(&mut four);
        let [conv, x, dt, scan] = &four;
        fused(conv, x, dt, scan).is_some()
    }

    #[test]
    fn the_four_of_a_layer_become_two() {
        let [conv, x, dt, scan] = four();
        let f = fused(&conv, &x, &dt, &scan).expect("they fit");
        let head = [0x40, 0x50, 0x99, 0x10, 0x20, 0x60, 0x30, C | 2 << 32];
        assert_eq!(f.x[..8], head);
        assert_eq!(f.x[8..], [0x70, 0x2000, 96 | 1 << 32]);
        assert_eq!(f.scan[..8], head);
        let b = 0x2000 + 4 * RANK;
        let rest = [
            0x80,
            0x2000,
            b,
            b + 64,
            0xa0,
            0xb0,
            0xc0,
            0xd0,
            0x90,
            0x4000,
            2,
        ];
        assert_eq!(f.scan[8..], rest);
        assert_eq!((u64::from(f.m), u64::from(f.channels)), (RANK + 32, C));
    }

    #[test]
    fn others_stay_launches() {
        assert!(fits(|_| ()));
        assert!(!fits(|f| f[0][SILU] = 0), "no SiLU");
        assert!(!fits(|f| f[0][VIEW + 6] = C | 2 << 32), "two tokens");
        assert!(!fits(|f| f[1][3 * VIEW] = 1), "a norm");
        assert!(!fits(|f| f[1][2 * VIEW] = 1), "another x");
        assert!(
            !fits(|f| f[1][8] = (DType::Q5K.id() as u64) << 32 | 0xffff_ffff),
            "another type"
        );
        assert!(!fits(|f| f[2][2 * VIEW] = 1), "another dt");
        assert!(!fits(|f| f[3][5 * VIEW] += 4), "another b");
        assert!(!fits(|f| f[3][11 * VIEW] = 0), "no gate");
        assert!(!fits(|f| f[3][7 * VIEW] = 1), "other sequences");
    }
}
