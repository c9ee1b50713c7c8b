//! Drivers for tests: libraries in C with the driver's functions, compiled here.

use llama_rs::backend::cuda::driver::SYMBOLS;
use std::path::Path;
use std::process::Command;

/// A stub function: returns success unless `SPECIAL` or the case says more.
fn plain(symbol: &str) -> String {
    format!("int {symbol}(void) {{ return 0; }}\n")
}

/// Functions that write something: their name and definition. The GPU is a GTX 1650.
const SPECIAL: &[(&str, &str)] = &[
    (
        "cuDriverGetVersion",
        "int cuDriverGetVersion(int *v) { *v = 13000; return 0; }\n",
    ),
    (
        "cuGetErrorName",
        "int cuGetErrorName(int e, const char **s) { *s = \"CUDA_ERROR_STUB\"; return 0; }\n",
    ),
    (
        "cuGetErrorString",
        "int cuGetErrorString(int e, const char **s) { *s = 0; return 1; }\n",
    ),
    (
        "cuDeviceGetCount",
        "int cuDeviceGetCount(int *n) { *n = 1; return 0; }\n",
    ),
    (
        "cuDeviceGetName",
        "int cuDeviceGetName(char *s, int n, int d) { s[0] = 'G'; s[1] = 'T'; s[2] = 0; return 0; }\n",
    ),
    (
        "cuDeviceTotalMem_v2",
        "int cuDeviceTotalMem_v2(unsigned long *n, int d) { *n = 4ul << 30; return 0; }\n",
    ),
    (
        "cuDeviceGetAttribute",
        "int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 7 : 5; return 0; }\n",
    ),
    (
        "cuMemGetInfo_v2",
        "int cuMemGetInfo_v2(unsigned long *f, unsigned long *t) { *f = 1ul << 30; *t = 4ul << 30; return 0; }\n",
    ),
];

/// A driver with all functions, of which `own` are defined otherwise.
pub fn driver(own: &[(&str, &str)]) -> String {
    let definition = |symbol: &str| {
        let mut special = own.iter().chain(SPECIAL);
        let found = special.find(|(name, _)| *name == symbol);
        found.map_or_else(|| plain(symbol), |(_, code)| code.to_string())
    };
    SYMBOLS.iter().map(|symbol| definition(symbol)).collect()
}

/// Makes `code` the driver of programs whose `LD_LIBRARY_PATH` is `folder`.
pub fn install(folder: &Path, code: &str) {
    let source = folder.join("stub.c");
    std::fs::write(&source, code).expect("written");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        // The name that is looked for first, so that a real driver is not found.
        .arg(folder.join("libcuda.so"))
        .arg(&source)
        .status();
    assert!(compiled.expect("cc runs").success(), "{code}");
}
