//! The driver's entry points: which ones are needed, and its errors as ours.

use crate::error::{Error, Result};
use cudarc::driver::sys::{self, CUresult};
use std::ffi::{CStr, c_char};

/// The function that tells the driver's version; asked for before the others.
pub const VERSION_SYMBOL: &str = "cuDriverGetVersion";

/// Every driver function that this program calls. `cudarc` looks them up late and
/// panics when one is missing, so all are looked for once before the first call;
/// a test holds the list equal to what the sources call.
pub const SYMBOLS: &[&str] = &[
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    VERSION_SYMBOL,
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernelEx",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamSynchronize",
];

/// Errors after which the context serves no more: every later call fails too.
const STICKY: &[CUresult] = &[
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    CUresult::CUDA_ERROR_ASSERT,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUresult::CUDA_ERROR_INVALID_PC,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
];

/// CUDA's own name of an error (`CUDA_ERROR_NO_DEVICE`) and its sentence.
pub fn error_text(error: CUresult) -> String {
    let text = |ask: unsafe fn(CUresult, *mut *const c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the driver writes a pointer to a constant string, or null.
        unsafe {
            if ask(error, &mut text) != CUresult::CUDA_SUCCESS || text.is_null() {
                return None;
            }
            Some(CStr::from_ptr(text).to_string_lossy().into_owned())
        }
    };
    let name = text(sys::cuGetErrorName).unwrap_or_else(|| format!("{error:?}"));
    match text(sys::cuGetErrorString) {
        Some(sentence) => format!("{name} ({sentence})"),
        None => name,
    }
}

/// Turns what a driver call returned into our error; `what` was being done.
/// Out of memory is [`Error::DoesNotFit`], anything else is the environment's fault.
pub fn check(result: CUresult, what: &str) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = error_text(result);
    if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
        return Err(Error::DoesNotFit(format!(
            "{what}: {text}; give the GPU less with a lower -ngl or -c"
        )));
    }
    let remedy = if STICKY.contains(&result) {
        "the GPU stopped an earlier launch and this process cannot go on with it; \
         run again, with --device cpu if it fails again"
    } else {
        "see what nvidia-smi says, or run with --device cpu"
    };
    Err(Error::input(format!("{what}: {text}; {remedy}")))
}

#[cfg(test)]
mod tests {
    use super::SYMBOLS;
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Names `cu...` behind `sys::` in `source`.
    fn called(source: &str, found: &mut BTreeSet<String>) {
        for (at, _) in source.match_indices("sys::cu") {
            let name = source[at + "sys::".len()..].chars();
            let name: String = name
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            if name != "culib" {
                found.insert(name);
            }
        }
    }

    fn sources(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, found);
            } else {
                let source = std::fs::read_to_string(&path).expect("UTF-8");
                called(source.split("#[cfg(test)]").next().unwrap_or(""), found);
            }
        }
    }

    #[test]
    fn the_symbols_are_those_the_sources_call() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backend/cuda");
        let mut found = BTreeSet::new();
        sources(&folder, &mut found);
        let listed = SYMBOLS.iter().map(|s| s.to_string()).collect();
        assert_eq!(found, listed);
    }
}
