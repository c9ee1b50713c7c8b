//! Matrix products of one token that follow each other become one launch of
//! `cuda-kernels/chain.cu`, with the bits of the launches that it stands for.
//!
//! `LLAMA_RS_CHAIN=off` leaves every product its own launch.

use super::bind::Launch;
use super::context::Context;
use super::kernel::Kernel;
use super::layout::TILE_ROWS;
use super::ops::{X_GROUP, x_group_bytes};
use super::seen::{Seen, VEC_JOB as JOB, view_at};
use super::ssm_token;
use super::stream::Stream;
use crate::error::Result;
use crate::quant::DType;
use std::io::Write;

/// The launch that a chain stands for: one token of `mul_mat_vec_int.cu`.
pub const LINK: &str = "mul_mat_vec_mixed_1";

// As `cuda-kernels/chain.cu` has them.
const ENTRY: &str = "chain";
const THREADS: u32 = 18 * 32;
const MOST_PHASES: usize = 8;
const MOST_JOBS: usize = 4;
const TEAMS: u32 = 2;
const SLOT_BYTES: u32 = 20_224;
/// Slots of a team: three do as well as four on an H200; one leaves nothing under way.
const SLOTS: [u32; 2] = [3, 2];
const X_GROUP_BYTES: u32 = x_group_bytes(1) as u32;
/// Static shared memory of the kernel, rounded up.
const STATIC_BYTES: u32 = 6 << 10;
/// Words of a `ChainPhase`.
const PHASE: usize = 5 + 6 * MOST_JOBS;
const STATE_BYTES: usize = 8;

/// The operands of one product.
struct Job<'a>(&'a [u64]);

impl<'a> Job<'a> {
    fn view(&self, at: usize) -> Seen<'a> {
        view_at(self.0, at)
    }

    /// x, norm, live count, groups and eps: what the products of a phase share.
    fn shared(&self) -> Option<[u64; 5]> {
        let (w, x, ids) = (self.view(0), self.view(2), self.view(4));
        let one_token = ids.data() == 0 && x.ne(1) == 1 && x.ne(2) == 1;
        let groups = u64::from(w.ne(0) / X_GROUP as u32);
        let eps = self.0[JOB - 1] & 0xffff_ffff;
        let live = x.live()?;
        one_token.then_some([x.data(), self.view(3).data(), live, groups, eps])
    }

    fn tiles(&self) -> u32 {
        self.view(0).ne(1).div_ceil(TILE_ROWS as u32)
    }

    /// `ChainJob`.
    fn words(&self, first_tile: u32) -> [u64; 6] {
        let w = self.view(0);
        let q6 = u64::from(w.dtype() == DType::Q6K.id() as u64);
        let glu = self.0[JOB - 2] & 0xffff_ffff;
        [
            w.data(),
            self.view(1).data(),
            self.view(5).data(),
            self.view(6).data(),
            u64::from(first_tile) | u64::from(w.ne(1)) << 32,
            q6 | glu << 32,
        ]
    }
}

/// Word of a phase with the address of its norm's weight.
const NORM_WORD: usize = 1;

/// A launch with these jobs as a phase: `ChainPhase`, and its groups of x.
fn phase<'a>(entry: &str, jobs: impl Iterator<Item = &'a [u64]>) -> Option<(Vec<u64>, u32)> {
    if entry != LINK {
        return None;
    }
    let jobs: Vec<Job> = jobs.map(Job).collect();
    let shared = jobs.first()?.shared()?;
    if jobs.len() > MOST_JOBS
        || jobs
            .iter()
            .any(|j| j.0.len() != JOB || j.shared() != Some(shared))
    {
        return None;
    }
    let [x, norm, live, groups, eps] = shared;
    let (mut tiles, mut all) = (0, Vec::new());
    for job in &jobs {
        all.extend(job.words(tiles));
        tiles += job.tiles();
    }
    all.resize(PHASE - 5, 0);
    let mut words = vec![x, norm, live, groups | eps << 32];
    words.push(u64::from(tiles) | (jobs.len() as u64) << 32);
    words.extend(all);
    Some((words, groups as u32))
}

/// Whether one launch may do the work of several.
pub fn wanted() -> bool {
    std::env::var_os("LLAMA_RS_CHAIN").is_none_or(|v| v != "off")
}

/// What chains need of the GPU.
pub struct Chains {
    sms: u32,
    shared_bytes: u32,
    state: u64,
}

/// The launch as a kernel with a state.
fn kernel(sms: u32) -> Kernel {
    Kernel::new(ENTRY, [sms as usize, 1, 1], THREADS)
}

impl Chains {
    /// `None` where a chain cannot run: GPUs before sm_90, too little shared memory, or
    /// one that does not take a block on each multiprocessor at once. `state` gives
    /// memory of so many bytes that is zero at first.
    pub fn open(
        context: &Context,
        stream: &Stream,
        state: impl FnOnce(&Kernel, usize) -> Result<u64>,
    ) -> Result<Option<Chains>> {
        if context.compute_capability() < (9, 0) {
            return Ok(None);
        }
        let sms = context.multiprocessors()?;
        let chains = Chains {
            sms,
            shared_bytes: context.max_shared_bytes(),
            state: state(&kernel(sms), STATE_BYTES)?,
        };
        let Some(slots) = chains.slots(0) else {
            return Ok(None);
        };
        // An empty chain says whether this binary has the kernel for the GPU (PTX for older
        // ones has not) and whether the driver takes it.
        let ran = chains
            .launch(context, &[], slots, 0, true)
            .and_then(|empty| {
                // SAFETY: it reads and writes nothing but its state.
                unsafe { empty.run(stream)? };
                stream.sync()
            });
        if let Err(error) = ran {
            let _ = writeln!(
                std::io::stderr(),
                "{error}; every matrix product gets a launch of its own, which is slower"
            );
            return Ok(None);
        }
        Ok(Some(chains))
    }

    /// Slots of a team that fit beside `groups` groups of x.
    fn slots(&self, groups: u32) -> Option<u32> {
        let left = self
            .shared_bytes
            .saturating_sub(STATIC_BYTES + groups * X_GROUP_BYTES);
        SLOTS.into_iter().find(|n| TEAMS * n * SLOT_BYTES <= left)
    }

    /// A chain of these phases; `early`: what follows may start before the last is done.
    fn launch(
        &self,
        context: &Context,
        phases: &[&[u64]],
        slots: u32,
        groups: u32,
        early: bool,
    ) -> Result<Launch> {
        let mut kernel = kernel(self.sms);
        kernel.shared_bytes = TEAMS * slots * SLOT_BYTES + groups * X_GROUP_BYTES;
        let mut words = phases.concat();
        words.resize(MOST_PHASES * PHASE, 0);
        let [n, slots, early] = [phases.len() as u64, u64::from(slots), u64::from(early)];
        let args = [&words[..], &[n], &[slots], &[self.state], &[early]];
        Launch::of_words(context, &kernel, &args, true)
    }

    /// `launches` with every run of two or more products as chains.
    pub fn link(&self, context: &Context, launches: Vec<Launch>) -> Result<Vec<Launch>> {
        // A chain asks for the weights of its norms before what is ahead of it is done.
        let written: Vec<_> = launches.iter().flat_map(Launch::writes).collect();
        let constant = |at: u64| !written.iter().any(|range| range.contains(&at));
        let phases = launches.iter().map(|launch| {
            phase(launch.entry(), launch.jobs()).filter(|(words, _)| constant(words[NORM_WORD]))
        });
        let phases: Vec<_> = phases.collect();
        let (mut linked, mut at) = (Vec::new(), 0);
        let mut launches = launches.into_iter();
        while at < phases.len() {
            let run = phases[at..]
                .iter()
                .map_while(Option::as_ref)
                .take(MOST_PHASES);
            let run: Vec<_> = run.collect();
            let groups = run.iter().map(|p| p.1).max().unwrap_or(0);
            let slots = self.slots(groups).filter(|_| run.len() > 1);
            let n = if slots.is_some() { run.len() } else { 1 };
            let replaced: Vec<Launch> = launches.by_ref().take(n).collect();
            match slots {
                Some(slots) => {
                    let words: Vec<&[u64]> = run.iter().map(|p| p.0.as_slice()).collect();
                    // Measured on an H200: 706 instead of 620 tok/s for mamba-2.8b; why is not known.
                    let next = launches.as_slice().first();
                    let early = next.is_none_or(|l| l.entry() != ssm_token::FIRST);
                    linked.push(self.launch(context, &words, slots, groups, early)?);
                }
                None => linked.extend(replaced),
            }
            at += n;
        }
        Ok(linked)
    }
}

#[cfg(test)]
mod tests {
    use super::super::seen::{VIEW, tests::view};
    use super::*;

    /// A product of `m` rows of type `dtype` with x of `tokens` tokens at `x`.
    fn job(dtype: DType, m: u64, x: u64, tokens: u64) -> Vec<u64> {
        let none = |at| view(at, [1; 4], None, DType::F32);
        let vector = |at, n| view(at, [n, tokens, 1, 1], Some(77), DType::F32);
        let w = view(1000 + m, [512, m, 1, 1], None, dtype);
        let views = [
            w,
            none(0),
            vector(x, 512),
            none(4),
            none(0),
            none(5),
            vector(6, m),
        ];
        let eps = u64::from(1e-5_f32.to_bits());
        views
            .into_iter()
            .flatten()
            .chain([3 | 9 << 32, eps])
            .collect()
    }

    fn phase_of(jobs: &[Vec<u64>]) -> Option<(Vec<u64>, u32)> {
        phase(LINK, jobs.iter().map(Vec::as_slice))
    }

    #[test]
    fn products_of_one_x_are_a_phase() {
        let jobs = [job(DType::Q4K, 33, 8, 1), job(DType::Q6K, 16, 8, 1)];
        let (words, groups) = phase_of(&jobs).expect("a phase");
        assert_eq!(groups, 2);
        // x, norm, live, groups and eps, row tiles (3 and 1) and jobs.
        let eps = u64::from(1e-5_f32.to_bits());
        assert_eq!(words[..5], [8, 4, 77, 2 | eps << 32, 4 | 2 << 32]);
        // w, w2, b, y, first row tile and rows, type and gate.
        assert_eq!(words[5..11], [1033, 0, 5, 6, 33 << 32, 3 << 32]);
        assert_eq!(words[11..17], [1016, 0, 5, 6, 3 | 16 << 32, 1 | 3 << 32]);
        assert!(words[17..].iter().all(|&w| w == 0));
        assert_eq!(words.len(), 5 + 6 * MOST_JOBS);
    }

    #[test]
    fn what_does_not_share_x_or_has_more_tokens_is_none() {
        let one = job(DType::Q4K, 32, 8, 1);
        assert!(phase_of(&[one.clone(), job(DType::Q4K, 32, 9, 1)]).is_none());
        assert!(phase_of(&[job(DType::Q4K, 32, 8, 2)]).is_none());
        let mut experts = one.clone();
        experts[4 * VIEW] = 1;
        assert!(phase_of(&[experts]).is_none());
        assert!(phase("mul_mat_vec_mixed_4", [one.as_slice()].into_iter()).is_none());
    }

    #[test]
    fn slots_fit_beside_x() {
        let chains = |kib: u32| Chains {
            sms: 1,
            shared_bytes: kib << 10,
            state: 0,
        };
        // Hopper, with k of 14,336 and of 32,768; consumer Blackwell.
        assert_eq!(chains(227).slots(56), Some(3));
        assert_eq!(chains(227).slots(128), Some(3));
        assert_eq!(chains(99).slots(16), Some(2));
        assert_eq!(chains(99).slots(56), None);
    }
}
