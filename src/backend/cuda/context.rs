//! One GPU opened: its context, its kernels, launches.
//!
//! Every method may be called from any thread: it makes the context current first.

use super::device::{self, DeviceInfo, Unavailable};
use super::driver::check;
use super::image;
use crate::error::{Error, Result};
use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdevice_attribute as Attribute, CUfunction,
    CUfunction_attribute_enum as FunctionAttribute, CUmodule, CUresult,
};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

/// A GPU in use. Buffers, streams and graphs hold it by `Arc`, so it outlives them.
pub struct Context {
    info: DeviceInfo,
    device: CUdevice,
    raw: CUcontext,
    max_shared_bytes: u32,
    kernels: Mutex<Kernels>,
    /// Dynamic shared memory that functions have leave for, which setting less takes back.
    allowed: Mutex<HashMap<usize, u32>>,
}

/// What is loaded so far.
#[derive(Default)]
struct Kernels {
    /// The first images of [`image::IMAGES`], in their order.
    modules: Vec<CUmodule>,
    functions: HashMap<String, Function>,
}

/// A kernel, ready to be launched while its context lives.
#[derive(Debug, Clone, Copy)]
pub struct Function(pub(super) CUfunction);

// SAFETY: the driver's handles are plain addresses that any thread may use once the
// context is current there, which every method sees to; the maps are behind a mutex.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}
// SAFETY: as above; the handle is only read.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Context {
    /// Opens GPU `index` as [`device::discover`] counts. Kernels are loaded when
    /// [`Context::function`] first needs them.
    ///
    /// Errors name what is missing (kernels, driver, the GPU) and the remedy.
    pub fn open(index: usize) -> Result<Arc<Context>> {
        if !image::present() {
            return Err(Unavailable::NoKernels.error());
        }
        let all = device::discover().map_err(|e| e.error())?;
        let count = all.len();
        let Some(info) = all.into_iter().nth(index) else {
            return Err(Error::input(format!(
                "there is no cuda{index}: the driver shows {count} GPU{}; see llama-rs devices",
                if count == 1 { "" } else { "s" }
            )));
        };
        if let Some(reason) = &info.unusable {
            return Err(reason.error());
        }
        let device = device::handle(index).map_err(|e| e.error())?;
        let attribute = |which| device::attribute(device, which).map_err(|e| e.error());
        let max_shared = Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        let max_shared_bytes = attribute(max_shared)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `device` is the driver's; `drop` releases what is retained here.
        let result = unsafe { sys::cuDevicePrimaryCtxRetain(&mut raw, device) };
        check(result, &format!("{} cannot be opened", info.name))?;
        let context = Arc::new(Context {
            info,
            device,
            raw,
            max_shared_bytes,
            kernels: Mutex::default(),
            allowed: Mutex::default(),
        });
        context.make_current()?;
        Ok(context)
    }

    /// Makes this the calling thread's context.
    pub fn make_current(&self) -> Result<()> {
        // SAFETY: the context is retained until `drop`.
        let result = unsafe { sys::cuCtxSetCurrent(self.raw) };
        check(result, &self.info.name)
    }

    /// `cuda0`.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// What the GPU is called.
    pub fn description(&self) -> &str {
        &self.info.description
    }

    /// Compute capability: major, minor.
    pub fn compute_capability(&self) -> (u32, u32) {
        self.info.compute_capability
    }

    /// Multiprocessors of the GPU, or of the part of it that this process has.
    pub fn multiprocessors(&self) -> Result<u32> {
        let which = Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        device::attribute(self.device, which).map_err(|e| e.error())
    }

    /// Shared memory that a block may have, in bytes.
    pub fn max_shared_bytes(&self) -> u32 {
        self.max_shared_bytes
    }

    /// Free and total memory in bytes.
    pub fn mem_info(&self) -> Result<(usize, usize)> {
        self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are written.
        let result = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        check(result, &format!("the memory of {}", self.name()))?;
        Ok((free, total))
    }

    /// The `extern "C"` kernel `entry`, from whichever image has it; images are loaded
    /// in turn until one does. Not to be called first while a stream is captured.
    pub fn function(&self, entry: &str) -> Result<Function> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = kernels.functions.get(entry) {
            return Ok(*function);
        }
        self.make_current()?;
        for at in 0..image::IMAGES.len() {
            if at == kernels.modules.len() {
                kernels.modules.push(self.load(image::IMAGES[at])?);
            }
            if let Some(function) = find(kernels.modules[at], entry)? {
                kernels.functions.insert(entry.to_string(), function);
                return Ok(function);
            }
        }
        Err(Error::input(format!(
            "this binary has no kernel {entry}; build it again with nvcc, or run with --device cpu"
        )))
    }

    fn load(&self, (file, bytes): (&str, &[u8])) -> Result<CUmodule> {
        let mut module = std::ptr::null_mut();
        // SAFETY: `bytes` is a fat binary, which tells its own length.
        let result = unsafe { sys::cuModuleLoadData(&mut module, bytes.as_ptr().cast()) };
        if result == CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU {
            let gpu = self.info.description.clone();
            let capability = self.info.compute_capability;
            return Err(Unavailable::NoImage { gpu, capability }.error());
        }
        let what = format!("the kernels of {file} cannot be loaded on {}", self.name());
        check(result, &what)?;
        Ok(module)
    }

    /// Lets `function` have `bytes` of dynamic shared memory a block. Needed above
    /// 48 KiB; does no harm below.
    pub fn allow_shared(&self, function: Function, bytes: u32) -> Result<()> {
        if bytes > self.max_shared_bytes {
            return Err(Error::input(format!(
                "a kernel needs {bytes} bytes of shared memory, {} has {} a block; \
                 run with --device cpu",
                self.name(),
                self.max_shared_bytes
            )));
        }
        let mut allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        let most = allowed.entry(function.0 as usize).or_default();
        if *most >= bytes {
            return Ok(());
        }
        self.make_current()?;
        let limit = FunctionAttribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the function belongs to a module of this context.
        let result = unsafe { sys::cuFuncSetAttribute(function.0, limit, bytes as i32) };
        check(result, "shared memory of a kernel")?;
        // All that a multiprocessor has, so that blocks of the next kernel find room beside.
        let share = FunctionAttribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
        // SAFETY: as above.
        let result = unsafe { sys::cuFuncSetAttribute(function.0, share, 100) };
        check(result, "shared memory of a kernel")?;
        *most = bytes;
        Ok(())
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("info", &self.info).finish()
    }
}

/// `entry` in `module`; `None` when it is not there.
fn find(module: CUmodule, entry: &str) -> Result<Option<Function>> {
    let Ok(name) = CString::new(entry) else {
        return Ok(None);
    };
    let mut function = std::ptr::null_mut();
    // SAFETY: the module is loaded and the name ends with a zero.
    let result = unsafe { sys::cuModuleGetFunction(&mut function, module, name.as_ptr()) };
    if result == CUresult::CUDA_ERROR_NOT_FOUND {
        return Ok(None);
    }
    check(result, &format!("kernel {entry}"))?;
    Ok(Some(Function(function)))
}

impl Drop for Context {
    fn drop(&mut self) {
        let kernels = self
            .kernels
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        // SAFETY: everything that holds the context is gone, so nothing of it is in
        // use. Errors cannot be helped here.
        unsafe {
            sys::cuCtxSetCurrent(self.raw);
            for module in kernels.modules.drain(..) {
                sys::cuModuleUnload(module);
            }
            sys::cuCtxSetCurrent(std::ptr::null_mut());
            sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}
