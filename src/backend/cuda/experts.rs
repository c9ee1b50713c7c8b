//! Experts of few tokens: four launches (MOE_ROUTE, gate and up, down, MOE_SUM) become two of
//! `cuda-kernels/moe_token.cu`, with their bits.
//!
//! `LLAMA_RS_CHAIN=off` leaves them launches of their own.

use super::bind::Launch;
use super::chain::LINK;
use super::context::Context;
use super::kernel::Kernel;
use super::layout::TILE_ROWS;
use super::ops::{X_GROUP, x_group_bytes};
use super::seen::{VEC_JOB, view_at};
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
            && self.route[18] <= MOST_USED
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
        let n_used = self.route[18];
        let blocks = sms.min(n_used as usize * Layer::tiles(self.up));
        let groups = view_at(self.up, W).ne(0) as usize / X_GROUP;
        let grid = [blocks, self.tokens(), 1];
        let kernel = Kernel::new(format!("moe_up_{each}"), grid, UP_THREADS)
            .shared(SLOTS_BYTES as usize + groups * x_group_bytes(1));
        let words = [&self.route[..18], &[n_used | self.route[19] << 32], self.up].concat();
        (kernel, words)
    }

    /// `MoeDown`.
    fn down(&self) -> (Kernel, Vec<u64>) {
        let grid = [Layer::tiles(self.down), self.tokens(), 1];
        let kernel = Kernel::new("moe_down", grid, DOWN_THREADS);
        let sum = [&self.sum[..9], &self.sum[18..36]];
        (kernel, [self.down, &sum.concat()].concat())
    }
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
    let in_place = Launch::of_words(context, &kernel, &[&words], false)?.in_place_of(&[route, up]);
    let (kernel, words) = layer.down();
    let rest = Launch::of_words(context, &kernel, &[&words], false)?.in_place_of(&[down, sum]);
    Ok(Some([in_place, rest]))
}
