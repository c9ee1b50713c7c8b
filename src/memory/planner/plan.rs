//! What fits into the memory that there is, and why no more.

use super::budget::{Budget, Room};
use super::solve::{self, CTX_STEP, Found, Left, Point, Space};
use super::{Need, Setup};
use crate::backend::Device;
use crate::backend::sched::HOST;
use crate::error::{Error, Result};
use crate::memory::GpuLayers;
use crate::memory::placement::OFFLOAD;
use std::collections::HashMap;

/// How long the context should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    pub n_ctx: usize,
    /// The least that is of use; `n_ctx` where that is given.
    pub least: usize,
}

/// A device's part in a plan, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub device: Device,
    pub free: Option<usize>,
    pub need: Need,
    pub margin: usize,
}

impl Share {
    /// What is left beside the margin; below 0 where it does not fit. Where nothing goes,
    /// nothing has to be left free.
    pub fn left(&self) -> Option<i128> {
        let taken = match self.need.total() {
            0 => 0,
            total => total as i128 + self.margin as i128,
        };
        self.free.map(|free| free as i128 - taken)
    }
}

/// What goes where.
#[derive(Debug, Clone)]
pub struct Plan {
    /// False: nothing does, and `point` is the last that was tried.
    pub fits: bool,
    pub point: Point,
    /// Layers of the model with its output.
    pub most_layers: usize,
    /// By device number.
    pub shares: Vec<Share>,
    /// What is less than wanted, and why.
    pub reductions: Vec<String>,
}

/// Asks a [`Setup`] about many choices.
pub struct Planner<'a> {
    base: Setup<'a>,
    budget: Budget,
    /// By length of context.
    setups: HashMap<usize, Setup<'a>>,
    known: HashMap<Point, Vec<Need>>,
}

impl<'a> Planner<'a> {
    /// A planner for what `base` evaluates, with any context.
    pub fn new(base: Setup<'a>, budget: Budget) -> Planner<'a> {
        Planner {
            base,
            budget,
            setups: HashMap::new(),
            known: HashMap::new(),
        }
    }

    /// The same with another budget.
    pub fn with_budget(self, budget: Budget) -> Planner<'a> {
        Planner { budget, ..self }
    }

    /// What a session with this context evaluates.
    pub fn setup(&mut self, n_ctx: usize) -> Result<&Setup<'a>> {
        if !self.setups.contains_key(&n_ctx) {
            self.setups.insert(n_ctx, self.base.with_context(n_ctx)?);
        }
        Ok(&self.setups[&n_ctx])
    }

    /// What a session with this context evaluates, when there is no more to ask.
    pub fn into_setup(mut self, n_ctx: usize) -> Result<Setup<'a>> {
        match self.setups.remove(&n_ctx) {
            Some(setup) => Ok(setup),
            None => self.base.with_context(n_ctx),
        }
    }

    /// What each device needs, by number.
    pub fn needs(&mut self, point: Point) -> Result<Vec<Need>> {
        if let Some(needs) = self.known.get(&point) {
            return Ok(needs.clone());
        }
        let setup = self.setup(point.n_ctx)?;
        let schedule = setup.schedule(point.n_layers, point.n_cpu_moe);
        let mut needs = setup.needs(&schedule)?;
        for (need, room) in needs.iter_mut().zip(&self.budget.rooms) {
            if need.total() > 0 {
                need.overhead = room.overhead;
            }
        }
        self.known.insert(point, needs.clone());
        Ok(needs)
    }

    fn left(&mut self, point: Point) -> Result<Left> {
        let needs = self.needs(point)?;
        let left = |number: usize| self.budget.left(number, &needs[number]);
        let host = left(HOST);
        Ok(Left {
            // Without a device the host alone decides.
            device: if needs.len() > OFFLOAD {
                left(OFFLOAD)
            } else {
                host.max(0)
            },
            host,
        })
    }

    fn space(&self, wish: Wish) -> Space {
        let placement = self.base.placement();
        let most = self.base.model().n_layer() + 1;
        let most_layers = placement.offload.map_or(0, |_| most);
        let n_layers = match placement.layers {
            GpuLayers::Auto => None,
            GpuLayers::All => Some(most_layers),
            GpuLayers::Count(n) => Some(n.min(most_layers)),
        };
        let given = n_layers.is_some() && wish.n_ctx == wish.least;
        let decided = given || !placement.may_move_experts();
        Space {
            most_layers,
            most_moe: self.base.most_moe(),
            wanted_ctx: wish.n_ctx,
            least_ctx: wish.least,
            n_layers,
            n_cpu_moe: placement.n_cpu_moe.or(decided.then_some(0)),
        }
    }

    /// True when the user has left nothing to choose.
    pub fn is_given(&self, wish: Wish) -> bool {
        let space = self.space(wish);
        let layers = space.most_layers == 0 || space.n_layers.is_some();
        layers && wish.n_ctx <= wish.least
    }

    /// The best that fits, or the last that was tried with its numbers.
    ///
    /// # Errors
    /// The model cannot be evaluated so.
    pub fn plan(&mut self, wish: Wish) -> Result<Plan> {
        let space = self.space(wish);
        let found = self.best(&space)?;
        let point = found.point;
        let devices = self.base.placement().devices();
        let rooms = self.budget.rooms.clone();
        let shares = self.needs(point)?.into_iter().zip(devices).zip(rooms);
        let share = |((need, device), room): ((Need, Device), Room)| Share {
            device,
            free: room.free,
            need,
            margin: room.margin,
        };
        Ok(Plan {
            fits: found.fits,
            point,
            most_layers: self.base.model().n_layer() + 1,
            shares: shares.map(share).collect(),
            reductions: match found.fits {
                true => self.reductions(&space, point)?,
                false => Vec::new(),
            },
        })
    }

    fn reductions(&mut self, space: &Space, point: Point) -> Result<Vec<String>> {
        let (whole, mut before) = (space.whole(), space.short());
        let mut reductions = Vec::new();
        if point.n_ctx < whole.n_ctx {
            let (now, wanted) = (point.n_ctx, whole.n_ctx);
            let why = self.why_not(Point {
                n_ctx: wanted,
                ..point
            })?;
            reductions.push(format!("a context of {now} tokens, not {wanted}: {why}"));
        }
        if point.n_cpu_moe > before.n_cpu_moe {
            let (now, most) = (point.n_cpu_moe, space.most_moe);
            let why = self.why_not(before)?;
            reductions.push(format!(
                "experts of the first {now} of {most} layers stay on the CPU: {why}"
            ));
            before.n_cpu_moe = point.n_cpu_moe;
        }
        if point.n_layers < before.n_layers {
            let (now, most) = (point.n_layers, space.most_layers);
            let why = self.why_not(before)?;
            reductions.push(format!("{now} of {most} layers on the GPU: {why}"));
        }
        Ok(reductions)
    }

    /// What a point that does not fit lacks: `-ngl 33 -c 8192 needs ... on cuda0`.
    fn why_not(&mut self, point: Point) -> Result<String> {
        let needs = self.needs(point)?;
        let devices = self.base.placement().devices();
        let tight = (0..needs.len()).rfind(|&number| !self.budget.fits(number, &needs[number]));
        let number = tight.unwrap_or(needs.len() - 1);
        let (mut need, room) = (needs[number], self.budget.rooms[number]);
        let mut parts = Vec::new();
        if number == HOST && !self.budget.counts_mapped {
            need.weights = 0;
            parts.push("weights stay in the file".to_string());
        } else {
            parts.push(format!("weights {}", mib(need.weights)));
        }
        parts.extend([
            format!("KV cache {}", mib(need.kv)),
            format!("compute {}", mib(need.compute)),
        ]);
        let rest = [("overhead", need.overhead), ("margin", room.margin)];
        let rest = rest.into_iter().filter(|(_, bytes)| *bytes > 0);
        parts.extend(rest.map(|(name, bytes)| format!("{name} {}", mib(bytes))));
        Ok(format!(
            "{} needs {} MiB on {} ({}), {} MiB are free",
            flags(point),
            mib(need.total().saturating_add(room.margin)),
            devices[number],
            parts.join(", "),
            room.free.unwrap_or(usize::MAX) >> 20,
        ))
    }

    /// The error that says what does not fit, and which flags alone would make it fit.
    pub fn error(&mut self, plan: &Plan, wish: Wish) -> Error {
        let remedy = match self.flags_that_fit(wish) {
            Ok(flags) if !flags.is_empty() => format!("give {}", flags.join(" or ")),
            Ok(_) => "free some memory, or take a smaller model".to_string(),
            Err(error) => return error,
        };
        match self.why_not(plan.point) {
            Ok(why) => Error::DoesNotFit(format!("{why}; {remedy}")),
            Err(error) => error,
        }
    }

    fn flags_that_fit(&mut self, wish: Wish) -> Result<Vec<String>> {
        let space = self.space(wish);
        let may_move = self.base.placement().may_move_experts() && space.most_moe > 0;
        let least = Space {
            wanted_ctx: space.least_ctx,
            ..space
        };
        let experts = Space {
            n_cpu_moe: None,
            ..least
        };
        let layers = Space {
            n_layers: None,
            n_cpu_moe: space.n_cpu_moe.filter(|_| !may_move),
            ..least
        };
        let context = Space {
            least_ctx: CTX_STEP.min(space.least_ctx),
            ..least
        };
        let others = [
            (experts, may_move && space.n_cpu_moe.is_some()),
            (layers, space.n_layers.is_some()),
            (context, space.least_ctx > CTX_STEP),
        ];
        let mut flags = Vec::new();
        for (other, is_other) in others {
            if !is_other {
                continue;
            }
            let found = self.best(&other)?;
            if found.fits {
                flags.push(changed_flags(&space, found.point));
            }
        }
        flags.dedup();
        Ok(flags)
    }

    fn best(&mut self, space: &Space) -> Result<Found> {
        solve::solve(space, &mut |point| self.left(point))
    }
}

/// The flags of a point, as every command takes them.
pub fn flags(point: Point) -> String {
    let Point {
        n_layers,
        n_ctx,
        n_cpu_moe,
    } = point;
    let experts = match n_cpu_moe {
        0 => String::new(),
        n => format!(" --n-cpu-moe {n}"),
    };
    format!("-ngl {n_layers} -c {n_ctx}{experts}")
}

fn mib(bytes: usize) -> usize {
    bytes.div_ceil(1 << 20)
}

/// The flags of a point that say something else than what was asked for.
fn changed_flags(asked: &Space, point: Point) -> String {
    let mut flags = Vec::new();
    if asked.most_layers > 0 && asked.n_layers != Some(point.n_layers) {
        flags.push(format!("-ngl {}", point.n_layers));
    }
    if point.n_ctx != asked.least_ctx {
        flags.push(format!("-c {}", point.n_ctx));
    }
    if point.n_cpu_moe != asked.n_cpu_moe.unwrap_or(0) {
        flags.push(format!("--n-cpu-moe {}", point.n_cpu_moe));
    }
    flags.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_paste_into_commands() {
        let point = |n_layers, n_cpu_moe| Point {
            n_layers,
            n_ctx: 4096,
            n_cpu_moe,
        };
        assert_eq!(flags(point(33, 0)), "-ngl 33 -c 4096");
        assert_eq!(flags(point(0, 0)), "-ngl 0 -c 4096");
        assert_eq!(flags(point(33, 7)), "-ngl 33 -c 4096 --n-cpu-moe 7");
    }

    #[test]
    fn what_is_left_may_be_negative() {
        let share = |free| Share {
            device: Device::Cpu,
            free,
            need: Need {
                kv: 70,
                ..Need::default()
            },
            margin: 40,
        };
        assert_eq!(share(Some(100)).left(), Some(-10));
        assert_eq!(share(Some(110)).left(), Some(0));
        assert_eq!(share(None).left(), None);
    }
}
