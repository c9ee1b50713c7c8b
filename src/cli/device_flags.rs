//! Flags that say what runs where, named as in llama.cpp.

use super::sizes::parse_margin;
use crate::backend::Device;
use crate::memory::{GpuLayers, TensorOverride};
use clap::Args;
use fancy_regex::RegexBuilder;

/// Steps a regex may take on a name; the names of weights are short.
const MOST_STEPS: usize = 100_000;

/// What runs where.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Devices")]
pub struct DeviceArgs {
    /// Layers on the GPU, the output first, then the last layers: a number, `all`, or
    /// `auto`, which is all that fits [default: auto] (also -ngl)
    #[arg(long = "n-gpu-layers", visible_alias = "gpu-layers", value_name = "N",
          allow_negative_numbers = true, value_parser = parse_layers)]
    pub n_gpu_layers: Option<GpuLayers>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// All of [`DeviceArgs`] but the number of layers, of which `bench` takes a list.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Devices")]
pub struct PlaceArgs {
    /// `cpu` (or `none`), `cuda0`, `cuda1`, ...; by default the first GPU that can be
    /// used, else the CPU (also -dev)
    #[arg(long, value_name = "NAME", value_parser = parse_device)]
    pub device: Option<Device>,
    /// Keep weights whose names match on a device, as exps=CPU; the first match counts
    /// (repeatable, or separated by commas; also -ot)
    #[arg(long, value_name = "REGEX=CPU|CUDA0", value_parser = parse_overrides,
          allow_hyphen_values = true)]
    pub override_tensor: Vec<Overrides>,
    /// Keep the experts of the first N layers on the CPU; by default as many as it takes
    /// to fit (also -ncmoe)
    #[arg(long, value_name = "N")]
    pub n_cpu_moe: Option<usize>,
    /// Memory to leave free on each device, in MiB or as 1GiB, when flags are left to the
    /// program
    #[arg(long, value_name = "MIB|SIZE", default_value = "512", value_parser = parse_margin)]
    pub margin: usize,
}

/// The overrides of one flag.
#[derive(Debug, Clone)]
pub struct Overrides(Vec<TensorOverride>);

impl DeviceArgs {
    /// All overrides in order.
    pub fn overrides(&self) -> Vec<TensorOverride> {
        let lists = self.place.override_tensor.iter();
        lists.flat_map(|list| list.0.clone()).collect()
    }

    /// True when a flag asks for a GPU.
    pub fn asks_for_gpu(&self) -> bool {
        let on_gpu = |rule: &TensorOverride| rule.device != Device::Cpu;
        self.overrides().iter().any(on_gpu)
            || self
                .place
                .device
                .is_some_and(|device| device != Device::Cpu)
            || matches!(self.n_gpu_layers, Some(GpuLayers::All))
            || matches!(self.n_gpu_layers, Some(GpuLayers::Count(n)) if n > 0)
    }
}

/// Reads a number of layers; -1 and -2 are llama.cpp's `auto` and `all`.
pub fn parse_layers(text: &str) -> Result<GpuLayers, String> {
    match text {
        "auto" | "-1" => Ok(GpuLayers::Auto),
        "all" | "-2" => Ok(GpuLayers::All),
        _ => match text.parse() {
            Ok(n) => Ok(GpuLayers::Count(n)),
            Err(_) => Err("neither a whole number nor `all` or `auto`".to_string()),
        },
    }
}

/// Reads `cpu`, `none` or `cuda0`, `cuda1`, ...
pub fn parse_device(text: &str) -> Result<Device, String> {
    let name = text.to_ascii_lowercase();
    if name == "cpu" || name == "none" {
        return Ok(Device::Cpu);
    }
    let index = name.strip_prefix("cuda").and_then(device_index);
    let index = index.ok_or_else(|| format!("{text:?} is neither `cpu` nor `cuda0`, `cuda1`, ..."));
    index.map(Device::Cuda)
}

/// Reads digits as they are printed.
fn device_index(text: &str) -> Option<usize> {
    let index: usize = text.parse().ok()?;
    (index < 1000 && index.to_string() == text).then_some(index)
}

/// Reads `REGEX=DEVICE,REGEX=DEVICE`; a comma before the first `=` is the regex's.
fn parse_overrides(text: &str) -> Result<Overrides, String> {
    let mut overrides = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let equals = rest.find('=').ok_or("no `=DEVICE` after the regex")?;
        let end = rest[equals..]
            .find(',')
            .map_or(rest.len(), |at| equals + at);
        let (regex, device) = (&rest[..equals], &rest[equals + 1..end]);
        if regex.is_empty() {
            return Err("no regex before the `=`".to_string());
        }
        let mut builder = RegexBuilder::new(regex);
        let built = builder.backtrack_limit(MOST_STEPS).build();
        overrides.push(TensorOverride {
            regex: built.map_err(|e| format!("{regex:?}: {e}"))?,
            device: parse_device(device)?,
        });
        rest = rest[end..].strip_prefix(',').unwrap_or_default();
    }
    Ok(Overrides(overrides))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_a_number_or_a_word() {
        assert_eq!(parse_layers("33"), Ok(GpuLayers::Count(33)));
        assert_eq!(parse_layers("0"), Ok(GpuLayers::Count(0)));
        for (word, layers) in [
            ("auto", GpuLayers::Auto),
            ("-1", GpuLayers::Auto),
            ("all", GpuLayers::All),
            ("-2", GpuLayers::All),
        ] {
            assert_eq!(parse_layers(word), Ok(layers));
        }
        assert!(parse_layers("-3").is_err() && parse_layers("most").is_err());
    }

    #[test]
    fn devices_have_names() {
        assert_eq!(parse_device("CPU"), Ok(Device::Cpu));
        assert_eq!(parse_device("none"), Ok(Device::Cpu));
        assert_eq!(parse_device("CUDA12"), Ok(Device::Cuda(12)));
        assert!(parse_device("cuda").is_err() && parse_device("vulkan0").is_err());
    }

    #[test]
    fn overrides_come_one_by_one_or_with_commas() {
        let read = |text: &str| -> Vec<(String, Device)> {
            let list = parse_overrides(text).expect("reads").0;
            let pair = |o: &TensorOverride| (o.regex.as_str().to_string(), o.device);
            list.iter().map(pair).collect()
        };
        let (cpu, gpu) = (Device::Cpu, Device::Cuda(0));
        assert_eq!(read("exps=CPU"), [("exps".to_string(), cpu)]);
        assert_eq!(
            read(r"blk\.(1{1,2})\.=CUDA0,exps=cpu"),
            [
                (r"blk\.(1{1,2})\.".to_string(), gpu),
                ("exps".to_string(), cpu)
            ]
        );
        for bad in ["exps", "=CPU", "exps=", "(=CPU", "a=CPU,b", "a=disk"] {
            assert!(parse_overrides(bad).is_err(), "{bad}");
        }
    }
}
