//! The search for what fits, knowing nothing of models: numbers, and a question.
//!
//! First the whole: all layers, the wanted context. Then a shorter context, down to the
//! least; then experts on the host, from the first layers on; then whole layers. What a
//! step leaves over goes to the context again.

use super::search::largest;
use crate::error::Result;

/// Contexts that are not given are multiples of this, or the least or the wanted one.
pub(super) const CTX_STEP: usize = 256;

/// What is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Point {
    /// On the device; the output is one of them.
    pub n_layers: usize,
    /// Tokens.
    pub n_ctx: usize,
    /// Layers, the first ones, whose experts stay on the host.
    pub n_cpu_moe: usize,
}

/// What may be chosen.
#[derive(Debug, Clone, Copy)]
pub struct Space {
    /// Layers of the model with its output; 0 without a device.
    pub most_layers: usize,
    /// Layers of the model up to the last one with experts.
    pub most_moe: usize,
    pub wanted_ctx: usize,
    /// The least that is of use; as long as the wanted one where that is given.
    pub least_ctx: usize,
    /// As given, if so.
    pub n_layers: Option<usize>,
    /// As given, if so.
    pub n_cpu_moe: Option<usize>,
}

/// Bytes that a choice leaves; below 0 where it does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    pub device: i128,
    pub host: i128,
}

impl Left {
    /// The less of both.
    pub fn least(&self) -> i128 {
        self.device.min(self.host)
    }
}

/// What a point leaves. The device needs more with every layer, less with every layer
/// whose experts stay behind; the host the other way round; both with every token.
pub type Question<'a> = &'a mut dyn FnMut(Point) -> Result<Left>;

impl Space {
    /// All that is wanted.
    pub fn whole(&self) -> Point {
        Point {
            n_layers: self.n_layers.unwrap_or(self.most_layers),
            n_ctx: self.wanted_ctx,
            n_cpu_moe: self.n_cpu_moe.unwrap_or(0),
        }
    }

    /// The whole with the least context.
    pub fn short(&self) -> Point {
        Point {
            n_ctx: self.least_ctx.min(self.wanted_ctx),
            ..self.whole()
        }
    }
}

/// What a search found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// False: `point` is the last that was tried, and nothing fits.
    pub fits: bool,
    pub point: Point,
}

impl Found {
    fn nothing(point: Point) -> Found {
        Found { fits: false, point }
    }
}

/// The best point that fits.
///
/// # Errors
/// Those of `left`.
pub fn solve(space: &Space, left: Question<'_>) -> Result<Found> {
    let whole = space.whole();
    if left(whole)?.least() >= 0 {
        return Ok(Found {
            fits: true,
            point: whole,
        });
    }
    let mut point = space.short();
    let mut lacks = left(point)?;
    if lacks.least() >= 0 {
        return grown(space, point, left);
    }
    if lacks.device >= 0 {
        // All that moves would go to the host, which has too little as it is.
        return Ok(Found::nothing(point));
    }
    if space.n_cpu_moe.is_none() && space.most_moe > 0 && point.n_layers > 0 {
        // As few as needed: all, less as many as the device has room for.
        let stay = |n_back: usize| Point {
            n_cpu_moe: space.most_moe - n_back,
            ..point
        };
        let all = left(stay(0))?;
        if all.device >= 0 {
            let (none, bad) = ((0, Some(all.device)), (space.most_moe, lacks.device));
            let n_back = largest(none, bad, &mut |n| Ok(left(stay(n))?.device))?;
            // Moving more would leave the host less.
            let point = stay(n_back);
            return match left(point)?.host >= 0 {
                true => grown(space, point, left),
                false => Ok(Found::nothing(point)),
            };
        }
        (point, lacks) = (stay(0), all);
    }
    if space.n_layers.is_none() && space.most_layers > 0 {
        let with = |n_layers| Point { n_layers, ..point };
        let bad = (space.most_layers, lacks.device);
        point = match largest((0, None), bad, &mut |n| Ok(left(with(n))?.device))? {
            // Without layers there no expert has to be kept from it.
            0 => Point {
                n_layers: 0,
                ..space.short()
            },
            n => with(n),
        };
        if left(point)?.least() >= 0 {
            return grown(space, point, left);
        }
    }
    Ok(Found::nothing(point))
}

/// `point`, which fits, with the longest context that does.
fn grown(space: &Space, point: Point, left: Question<'_>) -> Result<Found> {
    let found = |point| Ok(Found { fits: true, point });
    let with = |n_ctx| Point { n_ctx, ..point };
    let lacks = left(with(space.wanted_ctx))?.least();
    if lacks >= 0 {
        return found(with(space.wanted_ctx));
    }
    // In steps, of which `point` may be between two.
    let step = point.n_ctx / CTX_STEP;
    let good = (step, Some(left(point)?.least()));
    let bad = (space.wanted_ctx.div_ceil(CTX_STEP), lacks);
    if bad.0 <= step {
        return found(point);
    }
    let longest = largest(good, bad, &mut |n| Ok(left(with(n * CTX_STEP))?.least()))?;
    found(with(point.n_ctx.max(longest * CTX_STEP)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 32 layers of 10 dense and 90 expert bytes, 30 of the output; 1 byte of KV cache a
    /// layer for 256 tokens.
    #[derive(Clone, Copy)]
    struct Machine {
        device: usize,
        host: usize,
    }

    const N_LAYER: usize = 32;

    fn needs(p: Point) -> (usize, usize) {
        let on_device = p.n_layers.saturating_sub(1);
        let output = if p.n_layers > 0 { 30 } else { 0 };
        let first = N_LAYER - on_device;
        let experts = (first..N_LAYER).filter(|&il| il >= p.n_cpu_moe).count();
        let kv = |layers: usize| layers * p.n_ctx.div_ceil(256);
        let device = output + 10 * on_device + 90 * experts + kv(on_device);
        let host = 30 - output + 10 * first + 90 * (N_LAYER - experts) + kv(first);
        (device, host)
    }

    fn answer(machine: Machine, space: &Space) -> Option<Point> {
        let mut asked = 0;
        let found = solve(space, &mut |p| {
            asked += 1;
            let (device, host) = needs(p);
            Ok(Left {
                device: machine.device as i128 - device as i128,
                host: machine.host as i128 - host as i128,
            })
        });
        assert!(asked < 25, "{asked} questions");
        let found = found.expect("no errors");
        found.fits.then_some(found.point)
    }

    const SPACE: Space = Space {
        most_layers: N_LAYER + 1,
        most_moe: N_LAYER,
        wanted_ctx: 131_072,
        least_ctx: 4096,
        n_layers: None,
        n_cpu_moe: None,
    };

    fn at(n_layers: usize, n_ctx: usize, n_cpu_moe: usize) -> Option<Point> {
        Some(Point {
            n_layers,
            n_ctx,
            n_cpu_moe,
        })
    }

    #[test]
    fn first_the_context_then_experts_then_layers() {
        let on = |device| Machine {
            device,
            host: 1 << 20,
        };
        // The whole needs 30 + 3200 + 32 * 512.
        let whole = 30 + 3200 + 32 * 512;
        assert_eq!(answer(on(whole), &SPACE), at(33, 131_072, 0));
        assert_eq!(answer(on(whole - 1), &SPACE), at(33, 130_816, 0));
        // With 4096 tokens 30 + 3200 + 32 * 16.
        let short = 30 + 3200 + 32 * 16;
        assert_eq!(answer(on(short), &SPACE), at(33, 4096, 0));
        assert_eq!(answer(on(short + 31), &SPACE), at(33, 4096, 0));
        assert_eq!(answer(on(short + 32), &SPACE), at(33, 4352, 0));
        // Experts of one layer make room for 89 / 32 steps.
        assert_eq!(answer(on(short - 1), &SPACE), at(33, 4096 + 512, 1));
        assert_eq!(answer(on(short - 90), &SPACE), at(33, 4096, 1));
        let dense = 30 + 320 + 32 * 16;
        assert_eq!(answer(on(dense), &SPACE), at(33, 4096, 32));
        // A layer less: 26 - 1 are free for 31 layers.
        assert_eq!(answer(on(dense - 1), &SPACE), at(32, 4096, 32));
        assert_eq!(answer(on(30 + 26), &SPACE), at(2, 4096, 32));
        assert_eq!(answer(on(30 + 27), &SPACE), at(2, 4352, 32));
        assert_eq!(answer(on(30), &SPACE), at(1, 131_072, 32));
        assert_eq!(answer(on(29), &SPACE), at(0, 131_072, 0));
    }

    #[test]
    fn what_is_given_stays() {
        let on = |device| Machine {
            device,
            host: 1 << 20,
        };
        let layers = |n| Space {
            n_layers: Some(n),
            n_cpu_moe: Some(0),
            ..SPACE
        };
        assert_eq!(answer(on(100 + 30 + 17), &layers(2)), at(2, 4352, 0));
        assert_eq!(answer(on(100 + 30 + 15), &layers(2)), None);
        let ctx = Space {
            wanted_ctx: 1000,
            least_ctx: 1000,
            n_cpu_moe: Some(0),
            ..SPACE
        };
        assert_eq!(answer(on(30 + 5 * 104), &ctx), at(6, 1000, 0));
        let both = Space {
            n_layers: Some(6),
            ..ctx
        };
        assert_eq!(answer(on(30 + 5 * 104), &both), at(6, 1000, 0));
        assert_eq!(answer(on(30 + 5 * 104 - 1), &both), None);
        let experts = Space {
            n_cpu_moe: Some(31),
            ..SPACE
        };
        assert_eq!(answer(on(30 + 410 + 32 * 16), &experts), at(33, 4096, 31));
    }

    #[test]
    fn the_host_has_its_limit_too() {
        let cpu = Space {
            most_layers: 0,
            most_moe: 32,
            ..SPACE
        };
        let with = |host| answer(Machine { device: 0, host }, &cpu);
        assert_eq!(with(30 + 3200 + 32 * 20), at(0, 5120, 0));
        assert_eq!(with(30 + 3200 + 32 * 16 - 1), None);
        assert_eq!(with(usize::MAX), at(0, 131_072, 0));
        // The device takes half of the layers, the host has no room for the rest.
        let split = Machine {
            device: 30 + 16 * 116,
            host: 16 * 116 - 1,
        };
        let dense = Space {
            n_cpu_moe: Some(0),
            ..SPACE
        };
        assert_eq!(answer(split, &dense), None);
        let room = Machine {
            host: 16 * 116,
            ..split
        };
        assert_eq!(answer(room, &dense), at(17, 4096, 0));
    }

    #[test]
    fn short_contexts_are_taken_as_they_are() {
        let short = Space {
            wanted_ctx: 300,
            least_ctx: 300,
            ..SPACE
        };
        let on = |device| {
            answer(
                Machine {
                    device,
                    host: 1 << 20,
                },
                &short,
            )
        };
        assert_eq!(on(1 << 20), at(33, 300, 0));
        assert_eq!(on(29), at(0, 300, 0));
    }
}
