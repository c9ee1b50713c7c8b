//! The wrapper around the driver, over a driver that only notes what it is asked for:
//! the order in which things are freed, and what its errors become. What kernels
//! compute is tested on GPUs.
#![cfg(target_os = "linux")]

#[path = "cuda/stub.rs"]
mod stub;

use llama_rs::Error;
use llama_rs::backend::cuda::context::Context;
use llama_rs::backend::cuda::image;
use llama_rs::backend::cuda::memory::{DeviceBuffer, PinnedBuffer};
use llama_rs::backend::cuda::stream::{Event, Start, Stream};
use std::process::Command;

/// Notes the name of each call; GPUs of compute capability 9.0 with 1 GiB free of 4;
/// the kernel `broken` is there and fails.
const NOTES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int note(const char *name) {
    FILE *f = fopen(getenv("STUB_NOTES"), "a");
    fprintf(f, "%s\n", name);
    fclose(f);
    return 0;
}
"#;

const OWN: &[(&str, &str)] = &[
    (
        "cuDeviceGetAttribute",
        "int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : a == 76 ? 0 : 1000; return 0; }\n",
    ),
    (
        "cuMemAlloc_v2",
        "int cuMemAlloc_v2(void **p, unsigned long n) { if (n > 1ul << 30) return 2; *p = malloc(n); return note(\"cuMemAlloc_v2\"); }\n",
    ),
    (
        "cuMemHostAlloc",
        "int cuMemHostAlloc(void **p, unsigned long n, int f) { if (n > 1ul << 30 || f) return 2; *p = malloc(n); memset(*p, 7, n); return 0; }\n",
    ),
    (
        "cuModuleGetFunction",
        "int cuModuleGetFunction(void **f, void *m, const char *name) { *f = (void *)1; return strcmp(name, \"broken\") ? 500 : 0; }\n",
    ),
    (
        "cuLaunchKernelEx",
        "int cuLaunchKernelEx(void *f) { return 700; }\n",
    ),
    (
        "cuStreamEndCapture",
        "int cuStreamEndCapture(void *s, void **g) { *g = (void *)2; return note(\"cuStreamEndCapture\"); }\n",
    ),
];

/// Functions that only note their name.
const NOTED: &[&str] = &[
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuEventDestroy_v2",
    "cuGraphDestroy",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamDestroy_v2",
];

/// Runs test `name` of this file again with the driver above; its notes.
fn with_driver(name: &str) -> Option<Vec<String>> {
    if !image::serves((9, 0)) {
        eprintln!("skipped: this build has no kernels for compute capability 9.0");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let notes = folder.path().join("notes");
    let noted: Vec<_> = NOTED
        .iter()
        .map(|name| format!("int {name}(void) {{ return note(\"{name}\"); }}\n"))
        .collect();
    let noted = NOTED
        .iter()
        .zip(&noted)
        .map(|(name, code)| (*name, code.as_str()));
    let own: Vec<_> = OWN.iter().copied().chain(noted).collect();
    stub::install(folder.path(), &format!("{NOTES}{}", stub::driver(&own)));
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args([name, "--exact", "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", folder.path())
        .env("STUB_NOTES", &notes)
        .output()
        .expect("it runs again");
    let said = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{stderr}"
    );
    let notes = std::fs::read_to_string(notes).expect("notes");
    Some(notes.lines().map(str::to_string).collect())
}

/// False when all ignored tests are asked for, so that a real driver would serve.
fn under_the_driver() -> bool {
    std::env::var_os("STUB_NOTES").is_some()
}

fn text(error: Error, code: u8) -> String {
    assert_eq!(error.exit_code(), code, "{error}");
    let text = error.to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

#[test]
#[cfg_attr(not(cuda_kernels), ignore = "this build has no kernels")]
fn the_context_goes_after_all_that_needs_it() {
    let Some(notes) = with_driver("under_the_driver_all_is_made_and_dropped") else {
        return;
    };
    let at = |name: &str| {
        let found = notes.iter().position(|note| note == name);
        found.unwrap_or_else(|| panic!("no {name} in {notes:?}"))
    };
    let released = at("cuDevicePrimaryCtxRelease_v2");
    assert_eq!(released, notes.len() - 1, "{notes:?}");
    for name in NOTED {
        assert!(at(name) <= released);
        assert!(at(name) >= at("cuDevicePrimaryCtxRetain"));
    }
    assert!(at("cuModuleUnload") > at("cuMemFree_v2"));
    // Every image is loaded once, however often kernels are asked for.
    let loads = notes.iter().filter(|n| *n == "cuModuleLoadData").count();
    assert_eq!(loads, image::IMAGES.len());
}

#[test]
#[ignore = "run by the test above, with a driver"]
fn under_the_driver_all_is_made_and_dropped() {
    if !under_the_driver() {
        return;
    }
    let context = Context::open(0).expect("a GPU");
    let stream = Stream::new(&context).expect("a stream");
    let event = Event::new(&context).expect("an event");
    let buffer = DeviceBuffer::alloc(&context, 1000, "weights", "").expect("memory");
    let mut pinned = PinnedBuffer::alloc(&context, 100, "weights").expect("memory");
    assert_eq!(pinned.as_slice(), [0; 100]);
    pinned.as_mut_slice()[99] = 1;
    assert_eq!((buffer.bytes(), pinned.as_slice()[99]), (1000, 1));
    assert_eq!(context.mem_info().expect("sizes"), (1 << 30, 4 << 30));
    for _ in 0..2 {
        assert!(context.function("nowhere").is_err());
        assert!(context.function("nul\0").is_err());
    }
    let graph = stream.capture(|| event.record(&stream)).expect("a graph");
    drop(context);
    // From another thread, in which no context is current.
    std::thread::scope(|scope| {
        scope.spawn(|| drop(buffer));
    });
    drop((stream, event, pinned, graph));
}

#[test]
#[cfg_attr(not(cuda_kernels), ignore = "this build has no kernels")]
fn the_driver_s_errors_become_ours() {
    let Some(notes) = with_driver("under_the_driver_things_fail") else {
        return;
    };
    // A recording that failed is ended all the same.
    assert!(notes.iter().any(|note| note == "cuStreamEndCapture"));
    assert!(notes.iter().any(|note| note == "cuGraphDestroy"));
}

#[test]
#[ignore = "run by the test above, with a driver"]
fn under_the_driver_things_fail() {
    if !under_the_driver() {
        return;
    }
    let absent = text(Context::open(1).expect_err("one GPU"), 1);
    assert!(
        absent.contains("no cuda1") && absent.contains("1 GPU;"),
        "{absent}"
    );
    let context = Context::open(0).expect("a GPU");
    let bytes = (3 << 30) + 1;
    let full = DeviceBuffer::alloc(&context, bytes, "the KV cache", "try -c 8192");
    let full = text(full.expect_err("too much"), 3);
    let told =
        "no room for the KV cache: 3073 MiB, and 1024 MiB are free on cuda0 (GT); try -c 8192";
    assert_eq!(full, told);
    let pinned = PinnedBuffer::alloc(&context, bytes, "the upload").expect_err("too much");
    assert!(text(pinned, 3).starts_with("no room for the upload: 3073 MiB of pinned host memory"));
    let unknown = text(context.function("nowhere").expect_err("no such kernel"), 1);
    assert!(unknown.contains("nowhere"), "{unknown}");

    let stream = Stream::new(&context).expect("a stream");
    let broken = context.function("broken").expect("a kernel");
    assert!(context.allow_shared(broken, 1000).is_ok());
    assert!(text(context.allow_shared(broken, 1001).expect_err("too much"), 1).contains("1001"));
    let launch = || {
        // SAFETY: the stub reads nothing.
        unsafe { stream.launch(broken, [1, 2, 3], (32, 0), Start::default(), &mut []) }
    };
    let failed = text(launch().expect_err("it fails"), 1);
    for part in ["1 x 2 x 3", "CUDA_ERROR_STUB", "run again"] {
        assert!(failed.contains(part), "no {part:?} in {failed}");
    }
    assert!(stream.capture(launch).is_err());
}
