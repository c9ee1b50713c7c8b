//! `llama-rs fit-params`: which flags fit, before anything is loaded.

use super::device_flags::DeviceArgs;
use super::flags::{CtxSize, EvalArgs, positive};
use super::model_flags::ModelArgs;
use super::output::{Product, human_bytes};
use super::sizes::{DeviceMemory, parse_device_memory};
use super::{device_choice, load};
use crate::backend::Device;
use crate::backend::cuda::{self, device};
use crate::memory::host::available_bytes;
use crate::memory::placement::OFFLOAD;
use crate::memory::planner::{self, Budget, Evaluation, Plan, Planner, Setup, Share, Wish};
use crate::memory::{GpuLayers, Placement};
use crate::model::Model;
use crate::{Error, Result};
use clap::Args;
use serde_json::{Value as Json, json};
use std::io::Write;

/// The least context unless `--min-ctx` or the model says less.
pub const MIN_CTX: usize = 4096;

/// `fit-params`.
#[derive(Debug, Args)]
pub struct FitArgs {
    #[command(flatten)]
    pub model: ModelArgs,
    #[command(flatten)]
    pub eval: EvalArgs,
    /// The context is not made shorter than this for more layers on the GPU
    #[arg(long, value_name = "N", default_value_t = MIN_CTX, value_parser = positive)]
    pub min_ctx: usize,
    /// Plan for a GPU that need not be here, with so much free, as cuda0=8GiB; `cpu` too
    /// (repeatable, or separated by commas)
    #[arg(long, value_name = "NAME=SIZE", value_delimiter = ',',
          value_parser = parse_device_memory)]
    pub device_memory: Vec<DeviceMemory>,
    /// Print the whole plan as JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
pub fn run(mut args: FitArgs) -> anyhow::Result<()> {
    // Planning reads no weights.
    args.model.no_mmap = false;
    let model = load::model(load::open(&args.model)?, &args.eval)?;
    let (placement, budget) = devices(&args)?;
    let wish = wish(&args, &model);
    load::warn_of_long(wish.least, &model);
    let how = evaluation(&args, wish.n_ctx);
    let setup = Setup::new(&model, &placement, how)?;
    let mut planner = Planner::new(setup, budget.clone());
    let given = args
        .eval
        .context
        .ctx_size
        .is_some_and(|size| size != CtxSize::Auto);
    if given && planner.is_given(wish) {
        planner = planner.with_budget(budget.without_margins());
    }
    let plan = planner.plan(wish)?;
    tell(&plan, wish, &model);
    let error = (!plan.fits).then(|| planner.error(&plan, wish));
    // Who reads both sees the flags last.
    std::io::stderr().flush()?;
    let flags = flags(&plan, &args.eval.devices);
    let mut product = Product::stdout();
    if args.json {
        writeln!(product, "{}", plan_json(&plan, &flags, &model, &error))?;
    } else if plan.fits {
        writeln!(product, "{flags}")?;
    }
    product.flush()?;
    match error {
        None => Ok(()),
        Some(error) => Err(error.into()),
    }
}

fn wish(args: &FitArgs, model: &Model) -> Wish {
    let wanted = model.n_ctx_train().clamp(1, load::MOST_FITTED_CTX);
    load::wish(
        &args.eval.context,
        model,
        Wish {
            n_ctx: wanted,
            least: args.min_ctx.min(wanted),
        },
    )
}

fn evaluation(args: &FitArgs, n_ctx: usize) -> Evaluation {
    let (kv_type_k, kv_type_v) = args.eval.numerics.kv_types();
    let context = &args.eval.context;
    Evaluation {
        kv_types: [kv_type_k, kv_type_v],
        n_ctx,
        n_ubatch: context.ubatch_size.min(context.batch_size),
        n_seqs: 1,
        n_all_logits: 0,
        n_threads: load::n_threads(context),
        exact: args.eval.numerics.exact_activations(),
    }
}

/// The devices to plan for, and what they have free.
fn devices(args: &FitArgs) -> Result<(Placement, Budget)> {
    let flags = &args.eval.devices;
    let told = |device| {
        let mut all = args.device_memory.iter().rev();
        let memory = all.find(|memory| memory.device == device);
        memory.map(|memory| memory.bytes)
    };
    let host = told(Device::Cpu).or_else(available_bytes);
    let gpus = args.device_memory.iter().map(|memory| memory.device);
    let mut gpus = gpus.filter(|device| *device != Device::Cpu);
    let absent = match (flags.place.device, gpus.next()) {
        (Some(named), _) => Some(named).filter(|&named| told(named).is_some()),
        (None, Some(first)) if gpus.any(|other| other != first) => {
            let text = "--device-memory names several GPUs, and a model goes to one; \
                        choose with --device";
            return Err(Error::input(text));
        }
        (None, first) => first,
    };
    let (placement, room) = match absent.filter(|device| *device != Device::Cpu) {
        // Nobody asks whether it is here, nor whether this program has kernels.
        Some(gpu) => {
            let placement = Placement {
                offload: Some(gpu),
                layers: flags.n_gpu_layers.unwrap_or(GpuLayers::Auto),
                overrides: flags.overrides(),
                n_cpu_moe: flags.place.n_cpu_moe,
            };
            (placement, Some((told(gpu), cuda::overhead_bytes(false))))
        }
        None => {
            let choice = device_choice::choose(flags)?;
            let gpu = choice.gpu.map(|gpu| device::free_bytes(gpu.index));
            let free = gpu.transpose().map_err(|e| Error::input(e.to_string()))?;
            let room = free.map(|free| (Some(free), cuda::overhead_bytes(true)));
            (choice.placement, room)
        }
    };
    Ok((placement, Budget::new(host, room, flags.place.margin)))
}

/// The table and the reductions, on stderr.
fn tell(plan: &Plan, wish: Wish, model: &Model) {
    let heads = [
        "device", "free", "weights", "KV cache", "compute", "overhead", "margin", "left",
    ];
    let mut rows = vec![heads.map(str::to_string)];
    rows.extend(plan.shares.iter().map(row));
    for [name, rest @ ..] in rows {
        let cells: String = rest.iter().map(|cell| format!("  {cell:>10}")).collect();
        tracing::info!("{name:<6}{cells}");
    }
    for reduction in &plan.reductions {
        tracing::info!("{reduction}");
    }
    let (n_ctx, trained) = (plan.point.n_ctx, model.n_ctx_train());
    if plan.fits && n_ctx == wish.n_ctx && n_ctx < trained {
        tracing::info!("the context of {n_ctx} tokens is shorter than the {trained} of training");
    }
}

fn row(share: &Share) -> [String; 8] {
    let left = match share.left() {
        None => "?".to_string(),
        Some(left) => {
            let size = human_bytes(usize::try_from(left.unsigned_abs()).unwrap_or(usize::MAX));
            if left < 0 { format!("-{size}") } else { size }
        }
    };
    [
        share.device.to_string(),
        share.free.map_or("?".to_string(), human_bytes),
        human_bytes(share.need.weights),
        human_bytes(share.need.kv),
        human_bytes(share.need.compute),
        human_bytes(share.need.overhead),
        human_bytes(share.margin),
        left,
    ]
}

/// One line that every command takes.
fn flags(plan: &Plan, given: &DeviceArgs) -> String {
    let mut flags = planner::flags(plan.point);
    // Without a name it is the first GPU.
    let gpu = plan.shares.get(OFFLOAD).map(|share| share.device);
    if let Some(gpu) = gpu.filter(|gpu| plan.point.n_layers > 0 && *gpu != Device::Cuda(0)) {
        flags += &format!(" --device {gpu}");
    }
    for rule in given.overrides() {
        // The line is cut at blanks when it is pasted.
        let regex: String = rule.regex.as_str().chars().map(no_blank).collect();
        flags += &format!(" -ot {regex}={}", rule.device);
    }
    flags
}

/// A regex's character, blanks as the regex's own name for them.
fn no_blank(c: char) -> String {
    match c.is_ascii_whitespace() {
        true => format!("\\x{:02x}", u32::from(c)),
        false => c.to_string(),
    }
}

fn plan_json(plan: &Plan, flags: &str, model: &Model, error: &Option<Error>) -> Json {
    let devices: Vec<Json> = plan.shares.iter().map(share_json).collect();
    json!({
        "fits": plan.fits,
        "args": plan.fits.then_some(flags),
        "n_gpu_layers": plan.point.n_layers,
        "most_gpu_layers": plan.most_layers,
        "n_ctx": plan.point.n_ctx,
        "n_ctx_train": model.n_ctx_train(),
        "n_cpu_moe": plan.point.n_cpu_moe,
        "devices": devices,
        "reductions": plan.reductions,
        "error": error.as_ref().map(Error::to_string),
    })
}

fn share_json(share: &Share) -> Json {
    let left = share
        .left()
        .map(|left| i64::try_from(left).unwrap_or(i64::MIN));
    json!({
        "name": share.device.to_string(),
        "free_bytes": share.free,
        "weights_bytes": share.need.weights,
        "kv_bytes": share.need.kv,
        "compute_bytes": share.need.compute,
        "overhead_bytes": share.need.overhead,
        "margin_bytes": share.margin,
        "left_bytes": left,
    })
}

#[cfg(test)]
mod tests {
    use super::no_blank;

    #[test]
    fn a_regex_has_no_blanks_when_it_is_pasted() {
        let text: String = "a b\tc.*".chars().map(no_blank).collect();
        assert_eq!(text, r"a\x20b\x09c.*");
    }
}
