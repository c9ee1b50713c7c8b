//! Which GPUs are there, and why one is not usable. Nothing here panics, whatever
//! the machine has for a driver.

use super::driver::{SYMBOLS, VERSION_SYMBOL, error_text};
use super::image;
use crate::error::Error;
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute, CUresult};
use std::sync::OnceLock;

/// The oldest driver that loads what nvcc 13.0 made, as `cuDriverGetVersion` counts.
const MIN_DRIVER: i32 = 13000;

/// A GPU that the driver shows.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    /// The driver's number of it, after `CUDA_VISIBLE_DEVICES`.
    pub index: usize,
    /// As users give it: `cuda0`.
    pub name: String,
    /// What the GPU is called: `NVIDIA H200`.
    pub description: String,
    /// Compute capability: major, minor.
    pub compute_capability: (u32, u32),
    pub total_bytes: usize,
    /// Why this program cannot use it, if so.
    pub unusable: Option<Unavailable>,
}

/// Why there is no GPU to use: what and remedy, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    #[error(
        "this binary has no CUDA kernels: run scripts/get-nvcc.sh (or set CUDA_HOME), \
         then build it again"
    )]
    NoKernels,
    #[error("no NVIDIA driver (libcuda) is found; install one, or run with --device cpu")]
    NoDriver,
    #[error(
        "the NVIDIA driver is for CUDA {}, CUDA {} is needed; update it, or run with --device cpu",
        version_text(*.0), version_text(MIN_DRIVER)
    )]
    OldDriver(i32),
    #[error(
        "the NVIDIA driver (libcuda) has no function {0}; update or reinstall it, or run \
         with --device cpu"
    )]
    MissingSymbol(&'static str),
    #[error("{what}: {error}; see what nvidia-smi says, or run with --device cpu")]
    Driver { what: &'static str, error: String },
    #[error("the NVIDIA driver shows no GPU{hint}; see nvidia-smi, or run with --device cpu")]
    NoGpu { hint: String },
    #[error(
        "{gpu} has compute capability {}.{}, {}.{} is needed; run with --device cpu",
        .capability.0, .capability.1, image::MIN_CAPABILITY.0, image::MIN_CAPABILITY.1
    )]
    TooOld { gpu: String, capability: (u32, u32) },
    #[error(
        "no kernel image for {gpu} (compute capability {}.{}), this binary has {}; build it \
         with LLAMA_RS_CUDA_ARCHS={}, or run with --device cpu",
        .capability.0, .capability.1, image::ARCHS.join(", "), image::arch_for(*.capability)
    )]
    NoImage { gpu: String, capability: (u32, u32) },
}

impl Unavailable {
    /// The same as an error of the environment.
    pub fn error(&self) -> Error {
        Error::input(self.to_string())
    }
}

/// 13000 is 13.0, 11040 is 11.4.
fn version_text(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// All GPUs of this machine, usable or not, at least one.
pub fn discover() -> Result<Vec<DeviceInfo>, Unavailable> {
    init()?;
    let mut count = 0;
    // SAFETY: the driver is initialized; `count` is written.
    let result = unsafe { sys::cuDeviceGetCount(&mut count) };
    driver(result, "the GPUs cannot be counted")?;
    if count <= 0 {
        return Err(no_gpu());
    }
    (0..count as usize).map(info).collect()
}

/// Free memory of GPU `index` in bytes. It takes a context (some 0.2 s), so it is
/// asked for apart.
pub fn free_bytes(index: usize) -> Result<usize, Unavailable> {
    const WHAT: &str = "the free memory of the GPU cannot be read";
    init()?;
    let device = handle(index)?;
    let (mut context, mut free, mut total) = (std::ptr::null_mut(), 0, 0);
    // SAFETY: `device` is the driver's. What is retained is released, and no longer
    // this thread's context then.
    let result = unsafe {
        driver(sys::cuDevicePrimaryCtxRetain(&mut context, device), WHAT)?;
        let mut result = sys::cuCtxSetCurrent(context);
        if result == CUresult::CUDA_SUCCESS {
            result = sys::cuMemGetInfo_v2(&mut free, &mut total);
        }
        sys::cuCtxSetCurrent(std::ptr::null_mut());
        sys::cuDevicePrimaryCtxRelease_v2(device);
        result
    };
    driver(result, WHAT).map(|()| free)
}

/// Loads and initializes the driver, once in a process.
pub fn init() -> Result<(), Unavailable> {
    static STATE: OnceLock<Result<(), Unavailable>> = OnceLock::new();
    STATE
        .get_or_init(|| {
            // `cudarc` panics when the library vanishes between the look and the use.
            std::panic::catch_unwind(load).unwrap_or(Err(Unavailable::NoDriver))
        })
        .clone()
}

fn load() -> Result<(), Unavailable> {
    // SAFETY: loading the driver runs its initializers, which is what it is for.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable::NoDriver);
    }
    let missing = |symbol: &&'static str| {
        // SAFETY: the symbol is looked up, not used.
        let found = unsafe { sys::culib().get::<*const ()>(symbol.as_bytes()) };
        found.is_err()
    };
    if missing(&VERSION_SYMBOL) {
        return Err(Unavailable::MissingSymbol(VERSION_SYMBOL));
    }
    let mut version = 0;
    // SAFETY: the function is there, needs no initialization and writes `version`.
    let result = unsafe { sys::cuDriverGetVersion(&mut version) };
    // Old drivers lack functions, so their age is told first.
    if result == CUresult::CUDA_SUCCESS && version < MIN_DRIVER {
        return Err(Unavailable::OldDriver(version));
    }
    if let Some(symbol) = SYMBOLS.iter().find(|symbol| missing(symbol)) {
        return Err(Unavailable::MissingSymbol(symbol));
    }
    driver(result, "the version of the NVIDIA driver cannot be read")?;
    // SAFETY: the function is there.
    let result = unsafe { sys::cuInit(0) };
    if result == CUresult::CUDA_ERROR_NO_DEVICE {
        return Err(no_gpu());
    }
    driver(result, "the NVIDIA driver does not start")
}

fn no_gpu() -> Unavailable {
    let hint = match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(value) => format!(" with CUDA_VISIBLE_DEVICES={value:?}"),
        Err(_) => String::new(),
    };
    Unavailable::NoGpu { hint }
}

fn driver(result: CUresult, what: &'static str) -> Result<(), Unavailable> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let error = error_text(result);
    Err(Unavailable::Driver { what, error })
}

/// The driver's handle of GPU `index`.
pub fn handle(index: usize) -> Result<CUdevice, Unavailable> {
    let mut device = 0;
    let ordinal = i32::try_from(index).unwrap_or(i32::MAX);
    // SAFETY: the driver is initialized; it checks the number.
    let result = unsafe { sys::cuDeviceGet(&mut device, ordinal) };
    driver(result, "the GPU cannot be opened").map(|()| device)
}

/// An attribute of a GPU.
pub fn attribute(device: CUdevice, attribute: Attribute) -> Result<u32, Unavailable> {
    let mut value = 0;
    // SAFETY: `device` comes from `handle`; `value` is written.
    let result = unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) };
    driver(result, "the GPU's properties cannot be read")?;
    Ok(u32::try_from(value).unwrap_or(0))
}

fn info(index: usize) -> Result<DeviceInfo, Unavailable> {
    const WHAT: &str = "the GPU's properties cannot be read";
    let device = handle(index)?;
    let mut name = [0_u8; 128];
    let mut total_bytes = 0;
    // SAFETY: `device` is the driver's; the name is cut at the length given.
    unsafe {
        let len = name.len() as i32;
        driver(
            sys::cuDeviceGetName(name.as_mut_ptr().cast(), len, device),
            WHAT,
        )?;
        driver(sys::cuDeviceTotalMem_v2(&mut total_bytes, device), WHAT)?;
    }
    let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
    let description = String::from_utf8_lossy(&name[..end]).into_owned();
    let capability = (
        attribute(
            device,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        )?,
        attribute(
            device,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        )?,
    );
    Ok(DeviceInfo {
        index,
        name: format!("cuda{index}"),
        unusable: why_unusable(&description, capability),
        description,
        compute_capability: capability,
        total_bytes,
    })
}

fn why_unusable(gpu: &str, capability: (u32, u32)) -> Option<Unavailable> {
    let gpu = gpu.to_string();
    if capability < image::MIN_CAPABILITY {
        return Some(Unavailable::TooOld { gpu, capability });
    }
    if !image::present() {
        return Some(Unavailable::NoKernels);
    }
    (!image::serves(capability)).then_some(Unavailable::NoImage { gpu, capability })
}
