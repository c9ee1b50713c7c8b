//! Finds nvcc and compiles kernel files with it, each only when something it is made
//! of has changed.

use crate::{KERNELS, Result, stems, variable, write_if_changed};
use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

/// Where scripts/get-nvcc.sh puts nvcc, below the user's cache folder; the two agree.
const OWN_NVCC: &str = "llama-rs/nvcc-13.0.88/nvidia/cu13/bin/nvcc";

/// The first nvcc (major, minor) that knows every architecture of the default list.
const MIN_NVCC: (u32, u32) = (12, 8);

/// Compiled images of one kernel file that the cache keeps: some profiles and branches.
const KEPT_IMAGES: usize = 6;

/// An nvcc that runs and is new enough.
pub struct Nvcc {
    path: PathBuf,
    /// All that `nvcc --version` says.
    version: String,
}

impl Nvcc {
    /// nvcc by CUDA_HOME, then PATH, then where scripts/get-nvcc.sh installs it.
    pub fn find() -> Option<Nvcc> {
        let home = variable("CUDA_HOME").map(|home| Path::new(&home).join("bin/nvcc"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let in_path = std::env::split_paths(&path).map(|folder| folder.join("nvcc"));
        let cache = variable("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| variable("HOME").map(|home| Path::new(&home).join(".cache")));
        let own = cache.map(|cache| cache.join(OWN_NVCC));
        let places = home.into_iter().chain(in_path).chain(own);
        places.filter(|nvcc| nvcc.is_file()).find_map(Nvcc::open)
    }

    /// The nvcc at `path`; one that does not serve is passed over with a warning.
    fn open(path: PathBuf) -> Option<Nvcc> {
        let said = Command::new(&path).arg("--version").output();
        let said = said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned());
        let version = said.unwrap_or_default();
        if release(&version).is_some_and(|release| release >= MIN_NVCC) {
            return Some(Nvcc { path, version });
        }
        let (place, (major, minor)) = (path.display(), MIN_NVCC);
        println!("cargo:warning={place} is not used: it is no nvcc from {major}.{minor} on");
        None
    }
}

/// `..., release 13.0, V13.0.88` is (13, 0).
fn release(version: &str) -> Option<(u32, u32)> {
    let (_, rest) = version.split_once("release ")?;
    let (major, minor) = rest.split(',').next()?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Compiles kernel files into fat binaries.
pub struct Compiler {
    nvcc: Nvcc,
    flags: Vec<String>,
    out: PathBuf,
    /// Compiled images by the hash of all that went into them. It serves every profile
    /// of the target folder, so that a kernel is compiled once for `build` and `clippy`.
    cache: PathBuf,
    /// Compilers that may run at a time.
    jobs: usize,
}

impl Compiler {
    /// A compiler for `archs` that leaves its images in `out`.
    pub fn new(nvcc: Nvcc, archs: &[String], out: &Path) -> Result<Compiler> {
        println!("cargo:rerun-if-changed={}", nvcc.path.display());
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
            flags,
            out: out.to_path_buf(),
            cache,
            jobs: asked.unwrap_or(cores).clamp(1, cores),
        })
    }

    /// Every kernel file's name with the place and length of its image.
    pub fn compile_all(&self) -> Result<BTreeMap<String, (PathBuf, u64)>> {
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
        let ran = Command::new(&self.nvcc.path)
            .args(&self.flags)
            .arg(format!("--threads={threads}"))
            .args(["-I", KERNELS, "-I"])
            .arg(&self.out)
            .arg("-o")
            .arg(&partial)
            .arg(source)
            .output()
            .map_err(|e| format!("{}: {e}", self.nvcc.path.display()))?;
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
        (&self.nvcc.version, &self.flags).hash(&mut hasher);
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
