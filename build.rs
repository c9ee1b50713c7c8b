//! Compiles `cuda-kernels/*.cu` with nvcc and embeds them: `src/backend/cuda/image.rs`
//! includes the file `cuda_images.rs` that this writes.
//!
//! Where there is no nvcc the build succeeds, and the binary has no CUDA kernels.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::Write;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

const KERNELS: &str = "cuda-kernels";

/// Where scripts/get-nvcc.sh puts nvcc, below the user's cache folder; the two agree.
const OWN_NVCC: &str = "llama-rs/nvcc-13.0.88/nvidia/cu13/bin/nvcc";

/// What is compiled for when neither the user nor a GPU says: a machine image each from
/// Ampere to Blackwell, and PTX, which the driver compiles for what comes after.
const ALL_ARCHS: [&str; 6] = ["80", "86", "89", "90a", "120", "compute_90"];

/// The oldest compute capability the kernels are written for, times ten.
const MIN_ARCH: u32 = 80;

/// Compiled images of one kernel file that the cache keeps: some profiles and branches.
const KEPT_IMAGES: usize = 6;

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
    println!("cargo:rerun-if-changed={KERNELS}");
    for name in TRACKED.split(' ') {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let out = PathBuf::from(variable("OUT_DIR").ok_or("cargo did not set OUT_DIR")?);
    let types = quant_types()?;
    write_if_changed(&out.join("quant_types.cuh"), type_header(&types).as_bytes())?;
    let off = variable("LLAMA_RS_CUDA").is_some_and(|v| v == "off");
    let (archs, images) = match find_nvcc() {
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
                "cargo:warning=no nvcc, so this build has no CUDA kernels; for them run \
                 scripts/get-nvcc.sh or set CUDA_HOME (LLAMA_RS_CUDA=off silences this)"
            );
            (Vec::new(), BTreeMap::new())
        }
    };
    let rust = rust_source(&types, &archs, &images);
    write_if_changed(&out.join("cuda_images.rs"), rust.as_bytes())
}

/// An environment variable that is set to something.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// nvcc by CUDA_HOME, then PATH, then where scripts/get-nvcc.sh installs it.
fn find_nvcc() -> Option<PathBuf> {
    let home = variable("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("nvcc"));
    let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")));
    let own = cache.map(|cache| cache.join(OWN_NVCC));
    let mut places = home.into_iter().chain(in_path).chain(own);
    places.find(|nvcc| nvcc.is_file())
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
        let number = arch.strip_prefix("compute_").unwrap_or(arch);
        let number = number.strip_suffix('a').unwrap_or(number).parse::<u32>();
        if !number.is_ok_and(|n| n >= MIN_ARCH) {
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
    for name in types {
        let _ = writeln!(text, "#include \"quant/{}.cuh\"", name.to_lowercase());
        let _ = write!(list, " X({name})");
    }
    format!("{text}\n{list}\n")
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

struct Compiler {
    nvcc: PathBuf,
    /// What `nvcc --version` says.
    version: String,
    flags: Vec<String>,
    out: PathBuf,
    /// Compiled images by the hash of all that went into them. It serves every profile
    /// of the target folder, so that a kernel is compiled once for `build` and `clippy`.
    cache: PathBuf,
    /// Compilers that may run at a time.
    jobs: usize,
}

impl Compiler {
    fn new(nvcc: PathBuf, archs: &[String], out: &Path) -> Result<Compiler> {
        println!("cargo:rerun-if-changed={}", nvcc.display());
        let said = Command::new(&nvcc).arg("--version").output();
        let said = said.map_err(|e| format!("{}: {e}", nvcc.display()))?;
        let flags = "-fatbin -std=c++17 -O3 -Xfatbin -compress-all";
        let mut flags: Vec<String> = flags.split(' ').map(str::to_string).collect();
        for arch in archs {
            flags.push(match arch.strip_prefix("compute_") {
                Some(n) => format!("-gencode=arch=compute_{n},code=compute_{n}"),
                None => format!("-gencode=arch=compute_{arch},code=sm_{arch}"),
            });
        }
        // OUT_DIR is <target>/<profile>/build/<package>/out.
        let cache = out.ancestors().nth(4).unwrap_or(out).join(KERNELS);
        fs::create_dir_all(&cache).map_err(|e| format!("{}: {e}", cache.display()))?;
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let asked = variable("NUM_JOBS").and_then(|n| n.parse().ok());
        Ok(Compiler {
            nvcc,
            version: String::from_utf8_lossy(&said.stdout).into_owned(),
            flags,
            out: out.to_path_buf(),
            cache,
            jobs: asked.unwrap_or(cores).clamp(1, cores),
        })
    }

    /// Every kernel file's name with the place and length of its image.
    fn compile_all(&self) -> Result<BTreeMap<String, (PathBuf, u64)>> {
        let names = stems(Path::new(KERNELS), "cu")?;
        let next = AtomicUsize::new(0);
        let (mut images, mut errors) = (BTreeMap::new(), Vec::new());
        std::thread::scope(|scope| {
            let (sender, done) = mpsc::channel();
            for _ in 0..self.jobs.min(names.len()) {
                let (sender, next, names) = (sender.clone(), &next, &names);
                scope.spawn(move || {
                    while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let image = self.compile(name, self.jobs.div_ceil(names.len()));
                        // The receiver outlives this thread.
                        let _ = sender.send(image.map(|image| (name.clone(), image)));
                    }
                });
            }
            drop(sender);
            for result in done {
                match result {
                    Ok((name, image)) => drop(images.insert(name, image)),
                    Err(error) => errors.push(error),
                }
            }
        });
        if errors.is_empty() {
            Ok(images)
        } else {
            Err(errors.join("\n"))
        }
    }

    /// The image of one kernel file, from the cache when nothing changed; `threads`
    /// compile it for several architectures at a time.
    fn compile(&self, name: &str, threads: usize) -> Result<(PathBuf, u64)> {
        let source = Path::new(KERNELS).join(format!("{name}.cu"));
        let file = format!("{name}-{:016x}.fatbin", self.hash(&source)?);
        let cached = self.cache.join(file);
        if !cached.is_file() {
            self.run_nvcc(&source, &cached, threads)?;
            self.prune(name);
        }
        let bytes = fs::read(&cached).map_err(|e| format!("{}: {e}", cached.display()))?;
        let image = self.out.join(format!("{name}.fatbin"));
        write_if_changed(&image, &bytes)?;
        Ok((image, bytes.len() as u64))
    }

    fn run_nvcc(&self, source: &Path, cached: &Path, threads: usize) -> Result<()> {
        // Another build may do the same at the same time.
        let partial = cached.with_extension(format!("{}.partial", std::process::id()));
        let ran = Command::new(&self.nvcc)
            .args(&self.flags)
            .arg(format!("--threads={threads}"))
            .args(["-I", KERNELS, "-I"])
            .arg(&self.out)
            .arg("-o")
            .arg(&partial)
            .arg(source)
            .output()
            .map_err(|e| format!("{}: {e}", self.nvcc.display()))?;
        let said = [ran.stdout, ran.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        if !ran.status.success() {
            let _ = fs::remove_file(&partial);
            let compiler = variable("NVCC_CCBIN").unwrap_or("g++".to_string());
            let hint = match Command::new(&compiler).arg("--version").output() {
                Ok(_) => "",
                Err(_) => {
                    "nvcc needs a C++ compiler: install g++, or build with LLAMA_RS_CUDA=off\n"
                }
            };
            return Err(format!("{}: nvcc failed\n{said}{hint}", source.display()));
        }
        for line in said.lines().filter(|line| line.contains("warning")) {
            println!("cargo:warning={line}");
        }
        fs::rename(&partial, cached).map_err(|e| format!("{}: {e}", cached.display()))
    }

    /// A hash of the compiler, its flags, the source and all headers of ours it includes.
    fn hash(&self, source: &Path) -> Result<u64> {
        let mut files = BTreeMap::new();
        self.read_with_includes(source, &mut files)?;
        let mut hasher = DefaultHasher::new();
        (&self.version, &self.flags).hash(&mut hasher);
        for text in files.values() {
            text.hash(&mut hasher);
        }
        Ok(hasher.finish())
    }

    /// Reads `file` and what it includes in quotes, as far as it lies with it, in
    /// `cuda-kernels` or in `OUT_DIR`; the toolkit's own headers go with its version.
    fn read_with_includes(&self, file: &Path, files: &mut BTreeMap<PathBuf, String>) -> Result<()> {
        let failed = |e| format!("{}: {e}", file.display());
        let file = file.canonicalize().map_err(failed)?;
        if files.contains_key(&file) {
            return Ok(());
        }
        let text = fs::read_to_string(&file).map_err(failed)?;
        let includes: Vec<String> = text
            .lines()
            .filter_map(included)
            .map(str::to_string)
            .collect();
        files.insert(file.clone(), text);
        let beside = file.parent().unwrap_or(Path::new(""));
        for name in includes {
            let places = [beside, Path::new(KERNELS), &self.out];
            let found = places.iter().map(|p| p.join(&name)).find(|p| p.is_file());
            if let Some(found) = found {
                self.read_with_includes(&found, files)?;
            }
        }
        Ok(())
    }

    /// Removes the oldest images of a kernel file.
    fn prune(&self, name: &str) {
        let of_kernel = |path: &Path| {
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            stem.and_then(|stem| stem.rsplit_once('-'))
                .is_some_and(|(of, _)| of == name)
        };
        let entries = fs::read_dir(&self.cache).into_iter().flatten().flatten();
        let mut images: Vec<_> = entries
            .map(|entry| entry.path())
            .filter(|p| of_kernel(p))
            .collect();
        images.sort_by_key(|path| path.metadata().and_then(|m| m.modified()).ok());
        for old in images.iter().rev().skip(KEPT_IMAGES) {
            let _ = fs::remove_file(old);
        }
    }
}

/// The name in a line `#include "name"`.
fn included(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix('#')?.trim_start();
    let rest = rest
        .strip_prefix("include")?
        .trim_start()
        .strip_prefix('"')?;
    rest.split('"').next()
}
