//! From flags and what the machine has to a placement.

use super::device_flags::{DeviceArgs, PlaceArgs};
use crate::backend::Device;
use crate::backend::cuda::{self, DeviceInfo, Unavailable};
use crate::memory::planner::MARGIN_BYTES;
use crate::memory::{GpuLayers, Placement};
use crate::{Error, Result};

/// What discovery gives.
type Found = std::result::Result<Vec<DeviceInfo>, Unavailable>;

/// Devices for a session, and the GPU among them.
#[derive(Debug)]
pub struct Choice {
    pub placement: Placement,
    pub gpu: Option<DeviceInfo>,
}

/// What the flags ask for on this machine; without a GPU that can be used the
/// CPU, unless one is asked for by name or `LLAMA_RS_REQUIRE_CUDA=1` is set.
pub fn choose(args: &DeviceArgs) -> Result<Choice> {
    let required =
        std::env::var_os("LLAMA_RS_REQUIRE_CUDA").is_some_and(|v| !v.is_empty() && v != "0");
    choose_among(args, required, &cuda::discover)
}

/// Where something runs that is no model: `named`, or the first GPU that can be used,
/// else the CPU. That a named GPU is there is left to who opens it.
pub fn device(named: Option<Device>) -> Result<Device> {
    if let Some(device) = named {
        return Ok(device);
    }
    let any = DeviceArgs {
        n_gpu_layers: None,
        place: PlaceArgs {
            device: None,
            override_tensor: Vec::new(),
            n_cpu_moe: None,
            margin: MARGIN_BYTES,
        },
    };
    let gpu = choose(&any)?.gpu;
    Ok(gpu.map_or(Device::Cpu, |gpu| Device::Cuda(gpu.index)))
}

fn choose_among(args: &DeviceArgs, required: bool, discover: &dyn Fn() -> Found) -> Result<Choice> {
    let layers = args.n_gpu_layers.unwrap_or(GpuLayers::Auto);
    let cpu = Choice {
        placement: Placement {
            overrides: args.overrides(),
            n_cpu_moe: args.place.n_cpu_moe,
            ..Placement::cpu()
        },
        gpu: None,
    };
    // Nobody looks for a GPU that the flags leave nothing to.
    let unwanted = layers == GpuLayers::Count(0) && !args.asks_for_gpu();
    if args.place.device == Some(Device::Cpu) || unwanted {
        return Ok(cpu);
    }
    let found = discover();
    if let Some(Device::Cuda(index)) = args.place.device {
        let gpu = named(index, &found)?;
        return Ok(with(gpu, layers, cpu));
    }
    let why = match &found {
        Ok(gpus) => match gpus.iter().find(|gpu| gpu.unusable.is_none()) {
            Some(gpu) => return Ok(with(gpu.clone(), layers, cpu)),
            None => gpus.iter().find_map(|gpu| gpu.unusable.clone()),
        },
        Err(why) => Some(why.clone()),
    };
    let why = why.unwrap_or(Unavailable::NoDriver);
    if required {
        let text = format!("LLAMA_RS_REQUIRE_CUDA is set, and no GPU can be used: {why}");
        return Err(Error::input(text));
    }
    let none_there = matches!(why, Unavailable::NoDriver | Unavailable::NoGpu { .. });
    if args.asks_for_gpu() || !none_there {
        tracing::warn!("running on the CPU: {why}");
    } else {
        tracing::info!("running on the CPU: no usable NVIDIA GPU (see llama-rs devices)");
    }
    Ok(cpu)
}

/// The GPU of this index.
fn named(index: usize, found: &Found) -> Result<DeviceInfo> {
    let no = |why: String| {
        let gpus = found.iter().flatten();
        let usable = gpus.filter(|gpu| gpu.unusable.is_none());
        let names = usable.map(|gpu| format!(", {} ({})", gpu.name, gpu.description));
        let there = names.collect::<String>();
        Error::input(format!("--device cuda{index}: {why}; there is: cpu{there}"))
    };
    let gpus = found.as_ref().map_err(|why| no(why.to_string()))?;
    let gpu = gpus.iter().find(|gpu| gpu.index == index);
    let gpu = gpu.ok_or_else(|| no("no such GPU".to_string()))?;
    match &gpu.unusable {
        Some(why) => Err(no(why.to_string())),
        None => Ok(gpu.clone()),
    }
}

fn with(gpu: DeviceInfo, layers: GpuLayers, cpu: Choice) -> Choice {
    Choice {
        placement: Placement {
            offload: Some(Device::Cuda(gpu.index)),
            layers,
            ..cpu.placement
        },
        gpu: Some(gpu),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        args: DeviceArgs,
    }

    fn gpu(index: usize, unusable: Option<Unavailable>) -> DeviceInfo {
        DeviceInfo {
            index,
            name: format!("cuda{index}"),
            description: format!("GPU {index}"),
            compute_capability: (9, 0),
            total_bytes: 1 << 30,
            unusable,
        }
    }

    fn chosen(flags: &str, required: bool, found: &Found) -> Result<Choice> {
        let words = std::iter::once("x").chain(flags.split_whitespace());
        let flags = Flags::try_parse_from(words).expect("flags");
        choose_among(&flags.args, required, &|| found.clone())
    }

    fn offload(flags: &str, found: &Found) -> Option<Device> {
        let choice = chosen(flags, false, found).expect("a choice");
        let gpu = choice.gpu.map(|gpu| Device::Cuda(gpu.index));
        assert_eq!(choice.placement.offload, gpu);
        gpu
    }

    #[test]
    fn the_first_gpu_that_can_be_used_is_taken() {
        let old = Unavailable::OldDriver(11040);
        let found = Ok(vec![gpu(0, Some(old)), gpu(1, None), gpu(2, None)]);
        assert_eq!(offload("", &found), Some(Device::Cuda(1)));
        assert_eq!(offload("--device cuda2", &found), Some(Device::Cuda(2)));
        assert_eq!(offload("--device none", &found), None);
        assert_eq!(offload("--n-gpu-layers 0", &found), None);
        let experts = "--n-gpu-layers 0 --override-tensor exps=CUDA1";
        assert_eq!(offload(experts, &found), Some(Device::Cuda(1)));
        assert_eq!(offload("--n-gpu-layers 3", &Ok(vec![])), None);
    }

    #[test]
    fn an_absent_gpu_is_an_error_when_it_is_named_or_required() {
        let none = Err(Unavailable::NoDriver);
        assert_eq!(offload("", &none), None);
        let refused = |flags: &str, required, found: &Found| {
            let error = chosen(flags, required, found).expect_err(flags);
            assert_eq!(error.exit_code(), 1);
            let text = error.to_string();
            assert_eq!(text.lines().count(), 1, "{text}");
            text
        };
        let text = refused("--device cuda0", false, &none);
        assert!(text.contains("driver") && text.ends_with("there is: cpu"));
        let two = Ok(vec![gpu(0, None), gpu(1, Some(Unavailable::NoKernels))]);
        let text = refused("--device cuda7", false, &two);
        assert!(text.ends_with("there is: cpu, cuda0 (GPU 0)"), "{text}");
        let text = refused("--device cuda1", false, &two);
        assert!(text.contains("no CUDA kernels"), "{text}");
        let text = refused("", true, &none);
        assert!(text.contains("LLAMA_RS_REQUIRE_CUDA"), "{text}");
        assert!(chosen("--device cpu", true, &none).is_ok());
    }
}
