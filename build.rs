//! Compiles `cuda-kernels/*.cu` with nvcc and embeds them: `src/backend/cuda/image.rs`
//! includes the file `cuda_images.rs` that this writes.
//!
//! Where there is no nvcc the build succeeds, and the binary has no CUDA kernels.

#[path = "build/nvcc.rs"]
mod nvcc;

use nvcc::{Compiler, Nvcc};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};

const KERNELS: &str = "cuda-kernels";

/// What is compiled for when neither the user nor a GPU says: a machine image each from
/// Ampere to Blackwell, and PTX, which the driver compiles for what comes after.
const ALL_ARCHS: [&str; 6] = ["80", "86", "89", "90a", "120", "compute_90"];

/// The oldest compute capability the kernels are written for, times ten.
const MIN_ARCH: u32 = 80;

/// Variables whose change runs this again.
const TRACKED: &str = "LLAMA_RS_CUDA LLAMA_RS_CUDA_ARCHS CUDA_HOME NVCC_CCBIN XDG_CACHE_HOME";

type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            // cargo shows what a failed build script says on stderr.
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=build");
    println!("cargo:rerun-if-changed={KERNELS}");
    for name in TRACKED.split(' ') {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let out = PathBuf::from(variable("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    let types = quant_types()?;
    write_if_changed(&out.join("quant_types.cuh"), type_header(&types).as_bytes())?;
    let off = variable("LLAMA_RS_CUDA").is_some_and(|v| v == "off");
    let (archs, images) = match Nvcc::find() {
        _ if off => (Vec::new(), BTreeMap::new()),
        Some(nvcc) => {
            let archs = archs()?;
            let images = Compiler::new(nvcc, &archs, &out)?.compile_all()?;
            (archs, images)
        }
        None => {
            // With an nvcc known, another PATH is no reason to compile everything again.
            println!("cargo:rerun-if-env-changed=PATH");
            println!(
                "cargo:warning=no nvcc from 12.8 on, so this build has no CUDA kernels; for them run \
                 scripts/get-nvcc.sh or set CUDA_HOME (LLAMA_RS_CUDA=off silences this)"
            );
            (Vec::new(), BTreeMap::new())
        }
    };
    // Tests that need kernels are ignored without them.
    println!("cargo:rustc-check-cfg=cfg(cuda_kernels)");
    if !images.is_empty() {
        println!("cargo:rustc-cfg=cuda_kernels");
    }
    let rust = rust_source(&types, &archs, &images);
    write_if_changed(&out.join("cuda_images.rs"), rust.as_bytes())
}

/// An environment variable that is set to something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// `80`, `90a`: machine code; `compute_90`: PTX.
fn archs() -> Result<Vec<String>> {
    let Some(list) = variable("LLAMA_RS_CUDA_ARCHS") else {
        let present = archs_present();
        let all = || ALL_ARCHS.map(str::to_string).to_vec();
        return Ok(if present.is_empty() { all() } else { present });
    };
    let archs: Vec<&str> = list.split(',').map(str::trim).collect();
    for arch in &archs {
        let number = match arch.strip_prefix("compute_") {
            Some(number) => number,
            None => arch.strip_suffix('a').unwrap_or(arch),
        };
        if !number.parse::<u32>().is_ok_and(|n| n >= MIN_ARCH) {
            return Err(format!(
                "LLAMA_RS_CUDA_ARCHS={list:?}: {arch:?} is no architecture from {MIN_ARCH} on; \
                 write a list such as 80,86,89,90a,120,compute_90"
            ));
        }
    }
    Ok(archs.into_iter().map(str::to_string).collect())
}

/// The architectures of the GPUs of this machine that the kernels can run on.
fn archs_present() -> Vec<String> {
    let asked = Command::new("nvidia-smi")
        .args(["--query-gpu=compute_cap", "--format=csv,noheader"])
        .output();
    let Some(Output { status, stdout, .. }) = asked.ok() else {
        return Vec::new();
    };
    let text = String::from_utf8_lossy(&stdout);
    let numbers = text
        .lines()
        .filter_map(|line| line.trim().replace('.', "").parse().ok());
    let mut numbers: Vec<u32> = numbers
        .filter(|&n| status.success() && n >= MIN_ARCH)
        .collect();
    numbers.sort_unstable();
    numbers.dedup();
    // The instructions of Hopper alone (wgmma) need the `a`.
    let name = |n: u32| {
        if n == 90 {
            "90a".to_string()
        } else {
            n.to_string()
        }
    };
    numbers.into_iter().map(name).collect()
}

/// Names of the types that have a file in `cuda-kernels/quant`, in capitals, sorted.
fn quant_types() -> Result<Vec<String>> {
    let mut names = stems(&Path::new(KERNELS).join("quant"), "cuh")?;
    names.retain(|name| name != "unit");
    Ok(names.iter().map(|name| name.to_uppercase()).collect())
}

/// Stems of the files in `folder` with this extension, sorted.
fn stems(folder: &Path, extension: &str) -> Result<Vec<String>> {
    let failed = |e| format!("{}: {e}", folder.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|e| e == extension) {
            found.extend(path.file_stem().map(|s| s.to_string_lossy().into_owned()));
        }
    }
    found.sort();
    Ok(found)
}

fn type_header(types: &[String]) -> String {
    let mut text =
        "// Every type of cuda-kernels/quant; build.rs writes this.\n#pragma once\n".to_string();
    let mut list = "#define FOR_EACH_TYPE(X)".to_string();
    // Products with F32 weights stay in F32.
    let mut f16_list = "#define FOR_EACH_F16_TYPE(X)".to_string();
    // Without those that share a kernel of mul_mat_vec.cu.
    let mut lone_list = "#define FOR_EACH_LONE_TYPE(X)".to_string();
    for name in types {
        let _ = writeln!(text, "#include \"quant/{}.cuh\"", name.to_lowercase());
        let _ = write!(list, " X({name})");
        if name != "F32" {
            let _ = write!(f16_list, " X({name})");
        }
        if !["F32", "Q4_K", "Q6_K"].contains(&name.as_str()) {
            let _ = write!(lone_list, " X({name})");
        }
    }
    format!("{text}\n{list}\n{f16_list}\n{lone_list}\n")
}

fn rust_source(
    types: &[String],
    archs: &[String],
    images: &BTreeMap<String, (PathBuf, u64)>,
) -> String {
    // No kernels: no targets either.
    let archs = if images.is_empty() { &[] } else { archs };
    let mut text = format!(
        "/// Types that have a decoder in `cuda-kernels/quant`.\n\
         pub const QUANT_TYPES: &[&str] = &{types:?};\n\
         /// What the kernels were compiled for: `80`, `90a`, or PTX as `compute_90`.\n\
         pub const ARCHS: &[&str] = &{archs:?};\n"
    );
    let mut list = String::new();
    for (at, (name, (path, bytes))) in images.iter().enumerate() {
        let _ = writeln!(
            text,
            "static IMAGE_{at}: Aligned<{bytes}> = Aligned(*include_bytes!({path:?}));"
        );
        let _ = write!(list, "(\"{name}.cu\", &IMAGE_{at}.0), ");
    }
    let _ = writeln!(
        text,
        "/// Kernel files and what they compiled to.\n\
         pub static IMAGES: &[(&str, &[u8])] = &[{list}];"
    );
    text
}

/// Leaves the time of a file alone whose contents stay, so that nothing is rebuilt.
fn write_if_changed(path: &Path, contents: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == contents) {
        return Ok(());
    }
    fs::write(path, contents).map_err(|e| format!("{}: {e}", path.display()))
}
