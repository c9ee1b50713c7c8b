//! Experts of few tokens: four launches (MOE_ROUTE, gate and up, down, MOE_SUM) become two of
//! `cuda-kernels/moe_token.cu`, with their bits.
//!
//! Only with `LLAMA_RS_EXPERTS=on`: on a GPU their speed was measured, their results were not
//! held against anything yet.

use super::bind::Launch;
use super::chain::LINK;
use super::context::Context;
use super::kernel::Kernel;
use super::layout::TILE_ROWS;
use super::ops::{X_GROUP, x_group_bytes};
use super::seen::{VEC_JOB, VIEW, view_at};
use crate::error::Result;

// As `cuda-kernels/moe_token.cu` has them.
const UP_THREADS: u32 = 16 * 32;
/// Dynamic shared memory for weights that are under way, and static, rounded up.
const SLOTS_BYTES: u32 = 16 * 3 * 3360;
const UP_STATIC_BYTES: u32 = 6 << 10;
const DOWN_THREADS: u32 = 24 * 32;
const DOWN_MOST_GROUPS: u32 = 8;
const MOST_GROUPS: u32 = 128;
const MOST_USED: u64 = 64;

/// Words of `moe_route` behind its two views.
const N_USED: usize = 2 * VIEW;
const NORMED: usize = 2 * VIEW + 1;

/// Views of a `VecJob`.
const W: usize = 0;
const W2: usize = 1;
const X: usize = 2;
const NORM: usize = 3;
const IDS: usize = 4;
const B: usize = 5;
const Y: usize = 6;

/// The one job of a launch of experts.
fn experts_of(launch: &Launch) -> Option<&[u64]> {
    let mut jobs = launch.jobs();
    let (job, more) = (jobs.next()?, jobs.next());
    let fits = launch.entry() == LINK
        && more.is_none()
        && job.len() == VEC_JOB
        && view_at(job, IDS).data() != 0
        && view_at(job, B).data() == 0;
    fits.then_some(job)
}

/// What the four launches have to say to each other.
struct Layer<'a> {
    /// Of `moe_route`: result, logits, experts of a token, whether weights are normed.
    route: &'a [u64],
    up: &'a [u64],
    down: &'a [u64],
    /// Of `moe_sum`: result, experts' results, weights, addend.
    sum: &'a [u64],
}

impl Layer<'_> {
    fn fits(&self) -> bool {
        let at = |words, i| view_at(words, i).data();
        let groups = |job| view_at(job, W).ne(0) / X_GROUP as u32;
        at(self.up, W2) != 0
            && at(self.down, W2) == 0
            && at(self.down, NORM) == 0
            && at(self.up, IDS) == at(self.route, 0)
            && at(self.down, IDS) == at(self.route, 0)
            && view_at(self.up, IDS).nb(1) == view_at(self.route, 0).nb(1)
            && view_at(self.up, X).ne(1) == 1
            && at(self.up, Y) == at(self.down, X)
            && at(self.down, Y) == at(self.sum, 1)
            && self.route[N_USED] <= MOST_USED
            && groups(self.up) <= MOST_GROUPS
            && groups(self.down) <= DOWN_MOST_GROUPS
    }

    fn tokens(&self) -> usize {
        view_at(self.up, IDS).ne(1) as usize
    }

    fn tiles(job: &[u64]) -> usize {
        (view_at(job, W).ne(1) as usize).div_ceil(TILE_ROWS)
    }

    /// `MoeUp`, on `sms` multiprocessors.
    fn up(&self, each: &str, sms: usize) -> (Kernel, Vec<u64>) {
        let n_used = self.route[N_USED];
        let blocks = sms.min(n_used as usize * Layer::tiles(self.up));
        let groups = view_at(self.up, W).ne(0) as usize / X_GROUP;
        let grid = [blocks, self.tokens(), 1];
        let kernel = Kernel::new(format!("moe_up_{each}"), grid, UP_THREADS)
            .shared(SLOTS_BYTES as usize + groups * x_group_bytes(1));
        let words = [
            &self.route[..N_USED],
            &[n_used | self.route[NORMED] << 32],
            self.up,
        ]
        .concat();
        (kernel, words)
    }

    /// `MoeDown`.
    fn down(&self) -> (Kernel, Vec<u64>) {
        let grid = [Layer::tiles(self.down), self.tokens(), 1];
        let kernel = Kernel::new("moe_down", grid, DOWN_THREADS);
        let sum = [&self.sum[..VIEW], &self.sum[2 * VIEW..4 * VIEW]];
        (kernel, [self.down, &sum.concat()].concat())
    }
}

/// Whether to; see above.
pub fn wanted() -> bool {
    std::env::var_os("LLAMA_RS_EXPERTS").is_some_and(|v| v == "on")
}

/// `launches` with experts as two launches wherever that can be.
pub fn fuse(context: &Context, launches: Vec<Launch>) -> Result<Vec<Launch>> {
    let sms = context.multiprocessors()? as usize;
    let mut fused = Vec::new();
    let mut left = launches.into_iter();
    let mut next: Vec<Launch> = Vec::new();
    loop {
        next.extend(left.by_ref().take(4 - next.len()));
        if next.is_empty() {
            return Ok(fused);
        }
        match two_of(context, &next, sms)? {
            Some(two) => {
                next.clear();
                fused.extend(two);
            }
            None => fused.push(next.remove(0)),
        }
    }
}

/// The two launches that do the work of four.
fn two_of(context: &Context, four: &[Launch], sms: usize) -> Result<Option<[Launch; 2]>> {
    let [route, up, down, sum] = four else {
        return Ok(None);
    };
    let (Some(each), Some(up_job), Some(down_job)) = (
        route.entry().strip_prefix("moe_route_"),
        experts_of(up),
        experts_of(down),
    ) else {
        return Ok(None);
    };
    if !["4", "8"].contains(&each) || sum.entry() != "moe_sum" {
        return Ok(None);
    }
    let layer = Layer {
        route: route.values(),
        up: up_job,
        down: down_job,
        sum: sum.values(),
    };
    // Blocks that are done write results while others still read.
    let disturbed = up.disturbs(route, None)
        || route.disturbs(up, Some(route))
        || up.disturbs(up, Some(route))
        || sum.disturbs(down, None)
        || sum.disturbs(sum, Some(down));
    if !layer.fits() || disturbed {
        return Ok(None);
    }
    let (kernel, words) = layer.up(each, sms);
    if kernel.shared_bytes + UP_STATIC_BYTES > context.max_shared_bytes() {
        return Ok(None);
    }
    let first = Launch::of_words(context, &kernel, &[&words], false)?.in_place_of(&[route, up]);
    let (kernel, words) = layer.down();
    let second = Launch::of_words(context, &kernel, &[&words], false)?.in_place_of(&[down, sum]);
    Ok(Some([first, second]))
}

#[cfg(test)]
mod tests {
    use super::super::seen::tests::view;
    use super::*;
    use crate::quant::DType;

    fn of(data: u64, ne: [u64; 4]) -> [u64; VIEW] {
        view(data, ne, None, DType::F32)
    }

    /// A product of `w` with experts `ids` of `x`, to `y`.
    fn job(w: [u64; 4], w2: u64, x: [u64; VIEW], y: u64) -> Vec<u64> {
        let none = |at| of(at, [1; 4]);
        let w = view(100, w, None, DType::Q4K);
        let views = [
            w,
            none(w2),
            x,
            none(0),
            of(10, [2, 1, 1, 1]),
            none(0),
            none(y),
        ];
        [views.concat(), vec![0, 0]].concat()
    }

    /// Two of four experts, 512 to 300 and back.
    fn four() -> [Vec<u64>; 4] {
        let route = [of(10, [4, 1, 1, 1]), of(20, [4, 1, 1, 1])].concat();
        let up = job([512, 300, 4, 1], 200, of(30, [512, 1, 1, 1]), 40);
        let down = job([512, 512, 4, 1], 0, of(40, [300, 2, 1, 1]), 50);
        let sum = [60, 50, 18, 70].map(|at| of(at, [512, 1, 1, 1])).concat();
        [
            [route, vec![2, 1]].concat(),
            up,
            down,
            [sum, vec![0]].concat(),
        ]
    }

    fn with<T>(four: &[Vec<u64>; 4], tell: impl FnOnce(&Layer) -> T) -> T {
        let [route, up, down, sum] = four.each_ref().map(Vec::as_slice);
        tell(&Layer {
            route,
            up,
            down,
            sum,
        })
    }

    #[test]
    fn four_launches_become_two() {
        let four = four();
        assert!(with(&four, |l| l.fits()));
        let (kernel, words) = with(&four, |l| l.up("4", 132));
        // Two experts of 19 row tiles.
        assert_eq!(
            (kernel.entry.as_str(), kernel.grid),
            ("moe_up_4", [38, 1, 1])
        );
        assert_eq!(words[..2 * VIEW], four[0][..2 * VIEW]);
        assert_eq!(words[2 * VIEW], 2 | 1 << 32);
        assert_eq!(words[2 * VIEW + 1..], four[1]);
        let (kernel, words) = with(&four, |l| l.down());
        assert_eq!(
            (kernel.entry.as_str(), kernel.grid),
            ("moe_down", [32, 1, 1])
        );
        assert_eq!(words[..VEC_JOB], four[2]);
        // Result, weights, addend.
        let views = [0, 1, 2].map(|at| view_at(&words[VEC_JOB..], at).data());
        assert_eq!(views, [60, 18, 70]);
    }

    #[test]
    fn others_stay_launches() {
        let fits = |change: fn(&mut [Vec<u64>; 4])| {
            let mut four = four();
            change(&mut four);
            with(&four, |l| l.fits())
        };
        assert!(fits(|_| ()));
        assert!(!fits(|f| f[1][W2 * VIEW] = 0), "no gate");
        assert!(!fits(|f| f[2][NORM * VIEW] = 1), "a norm of down");
        assert!(!fits(|f| f[1][IDS * VIEW] = 11), "other experts");
        assert!(!fits(|f| f[2][X * VIEW] = 41), "another x");
        assert!(!fits(|f| f[3][VIEW] = 51), "another sum");
        assert!(!fits(|f| f[2][W * VIEW + 6] = 4096 | 512 << 32), "a long k");
        assert!(!fits(|f| f[0][N_USED] = 65), "too many experts");
    }
}
