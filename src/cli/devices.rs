//! `llama-rs devices`: what a model can run on, and why not on more.

use super::args::DevicesArgs;
use super::output::{Product, human_bytes};
use crate::backend::cuda::device::{self, DeviceInfo, Unavailable};
use crate::backend::cuda::image;
use serde_json::{Value as Json, json};
use std::io::{self, Write};

/// The processor and its memory, in bytes; `None` where the system does not tell.
struct Cpu {
    description: String,
    threads: usize,
    free: Option<usize>,
    total: Option<usize>,
}

/// Runs the command. That there is no GPU to use is an answer, not an error.
pub fn run(args: DevicesArgs) -> anyhow::Result<()> {
    let cpu = cpu();
    let found = device::discover();
    let gpus = found.as_deref().unwrap_or_default();
    let free: Vec<_> = gpus
        .iter()
        .map(|gpu| device::free_bytes(gpu.index).ok())
        .collect();
    let reasons = reasons(&found);
    let mut product = Product::stdout();
    if args.json {
        let mut devices = vec![cpu_json(&cpu)];
        devices.extend(
            gpus.iter()
                .zip(&free)
                .map(|(gpu, free)| gpu_json(gpu, *free)),
        );
        let usable = gpus.iter().any(|gpu| gpu.unusable.is_none());
        let object = json!({
            "devices": devices,
            "cuda": {
                "kernels": image::present(),
                "archs": image::ARCHS,
                "reason": (!usable).then(|| reasons.join("; ")),
            },
        });
        writeln!(product, "{object}")?;
    } else {
        print_table(&mut product, &cpu, gpus, &free)?;
    }
    product.flush()?;
    if !reasons.is_empty() {
        tracing::warn!("{}", reasons.join("; "));
    }
    Ok(())
}

/// Everything in the way of using every GPU, each thing once.
fn reasons(found: &Result<Vec<DeviceInfo>, Unavailable>) -> Vec<String> {
    let mut reasons = Vec::new();
    if !image::present() {
        reasons.push(Unavailable::NoKernels);
    }
    match found {
        Ok(gpus) => reasons.extend(gpus.iter().filter_map(|gpu| gpu.unusable.clone())),
        Err(reason) => reasons.push(reason.clone()),
    }
    let mut texts: Vec<String> = Vec::new();
    for reason in reasons {
        let text = reason.to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}

fn print_table(
    product: &mut Product,
    cpu: &Cpu,
    gpus: &[DeviceInfo],
    free: &[Option<usize>],
) -> io::Result<()> {
    let size = |bytes: Option<usize>| bytes.map_or("?".to_string(), human_bytes);
    let heads = ["name", "compute", "free", "total", "description"];
    let mut rows = vec![heads.map(str::to_string)];
    rows.push([
        "cpu".to_string(),
        "-".to_string(),
        size(cpu.free),
        size(cpu.total),
        format!("{}, {} threads", cpu.description, cpu.threads),
    ]);
    for (gpu, free) in gpus.iter().zip(free) {
        let note = if gpu.unusable.is_some() {
            ", not usable"
        } else {
            ""
        };
        rows.push([
            gpu.name.clone(),
            capability(gpu),
            size(*free),
            size(Some(gpu.total_bytes)),
            format!("{}{note}", gpu.description),
        ]);
    }
    for [name, compute, free, total, description] in rows {
        writeln!(
            product,
            "{name:<7}  {compute:>7}  {free:>10}  {total:>10}  {description}"
        )?;
    }
    Ok(())
}

fn capability(gpu: &DeviceInfo) -> String {
    let (major, minor) = gpu.compute_capability;
    format!("{major}.{minor}")
}

fn cpu_json(cpu: &Cpu) -> Json {
    json!({
        "name": "cpu",
        "description": cpu.description,
        "threads": cpu.threads,
        "free_bytes": cpu.free,
        "total_bytes": cpu.total,
        "usable": true,
    })
}

fn gpu_json(gpu: &DeviceInfo, free: Option<usize>) -> Json {
    json!({
        "name": gpu.name,
        "description": gpu.description,
        "compute_capability": capability(gpu),
        "free_bytes": free,
        "total_bytes": gpu.total_bytes,
        "usable": gpu.unusable.is_none(),
        "reason": gpu.unusable.as_ref().map(Unavailable::to_string),
    })
}

fn cpu() -> Cpu {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let (info, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let model = value(&info, "model name").unwrap_or(std::env::consts::ARCH);
    Cpu {
        description: model.to_string(),
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        free: kib(&memory, "MemAvailable"),
        total: kib(&memory, "MemTotal"),
    }
}

/// What stands behind `key:` in a file of `/proc`.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| name.trim() == key)?;
    Some(value.trim())
}

/// A number of KiB in bytes.
fn kib(text: &str, key: &str) -> Option<usize> {
    let number = value(text, key)?.strip_suffix("kB")?.trim();
    number.parse::<usize>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::{kib, value};

    #[test]
    fn proc_files_are_read_by_key() {
        let text = "MemTotal:       16 kB\nMemAvailable:   8 kB\nmodel name\t: Some: CPU\n";
        assert_eq!(kib(text, "MemAvailable"), Some(8192));
        assert_eq!(value(text, "model name"), Some("Some: CPU"));
        assert_eq!(kib(text, "model name"), None);
        assert_eq!(kib(text, "Mem"), None);
    }
}
