//! `llama-rs devices` on machines with no driver, with a broken, an old and a working
//! one: drivers are stubs in C, compiled here. Never a panic, one line, exit 0.
#![cfg(target_os = "linux")]

#[path = "cuda/stub.rs"]
mod stub;

use assert_cmd::Command;
use llama_rs::backend::cuda::image;
use serde_json::Value as Json;
use stub::driver;
use tempfile::TempDir;

/// What `devices` printed with `code` as the driver.
struct Ran {
    stdout: String,
    stderr: String,
}

fn run(code: Option<&str>, words: &[&str], visible: Option<&str>) -> Ran {
    let folder: TempDir = tempfile::tempdir().expect("a folder");
    if let Some(code) = code {
        stub::install(folder.path(), code);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_llama-rs"));
    command.args(words).env_remove("CUDA_VISIBLE_DEVICES");
    command.env("LD_LIBRARY_PATH", folder.path());
    if let Some(visible) = visible {
        command.env("CUDA_VISIBLE_DEVICES", visible);
    }
    let output = command.output().expect("the program starts");
    let ran = Ran {
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
    };
    assert_eq!(output.status.code(), Some(0), "{}", ran.stderr);
    assert!(ran.stderr.lines().count() <= 1, "{}", ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{}", ran.stderr);
    ran
}

/// Runs with a driver under which no GPU is usable; stderr has all `parts`.
fn unusable(code: &str, visible: Option<&str>, parts: &[&str]) -> Ran {
    let ran = run(Some(code), &["devices"], visible);
    for part in parts {
        assert!(ran.stderr.contains(part), "no {part:?} in {}", ran.stderr);
    }
    // Without kernels that is told too, with what to do.
    assert_eq!(ran.stderr.contains("get-nvcc.sh"), !image::present());
    assert!(ran.stdout.contains("\ncpu "), "{}", ran.stdout);
    ran
}

#[test]
fn a_library_without_functions_is_no_driver() {
    let parts = ["libcuda", "cuDriverGetVersion", "--device cpu"];
    unusable("", None, &parts);
}

#[test]
fn a_missing_function_is_named() {
    let code = driver(&[("cuGraphLaunch", "")]);
    unusable(&code, None, &["cuGraphLaunch"]);
}

#[test]
fn an_old_driver_is_told_before_what_it_lacks() {
    let old = "int cuDriverGetVersion(int *v) { *v = 11040; return 0; }\n";
    unusable(old, None, &["CUDA 11.4", "CUDA 13.0", "update"]);
}

#[test]
fn a_driver_that_fails_is_quoted() {
    let code = driver(&[("cuInit", "int cuInit(int f) { return 999; }\n")]);
    unusable(&code, None, &["does not start", "CUDA_ERROR_STUB"]);
    let fails = "int cuDeviceGetName(char *s, int n, int d) { return 999; }\n";
    let code = driver(&[("cuDeviceGetName", fails)]);
    unusable(&code, None, &["properties", "CUDA_ERROR_STUB"]);
}

#[test]
fn no_gpu_is_told_with_what_may_hide_it() {
    let none = "int cuInit(int f) { return 100; }\n";
    let ran = unusable(&driver(&[("cuInit", none)]), None, &["no GPU"]);
    assert!(!ran.stderr.contains("CUDA_VISIBLE_DEVICES"));
    let zero = "int cuDeviceGetCount(int *n) { *n = 0; return 0; }\n";
    let code = driver(&[("cuDeviceGetCount", zero)]);
    unusable(&code, Some(""), &["no GPU", "CUDA_VISIBLE_DEVICES=\"\""]);
}

#[test]
fn an_old_gpu_is_listed_with_its_memory_but_not_usable() {
    let ran = unusable(&driver(&[]), None, &["GT", "7.5", "8.0"]);
    let row = ran.stdout.lines().nth(2).expect("a GPU's row");
    for part in ["cuda0", "7.5", "1.0 GiB", "4.0 GiB", "GT, not usable"] {
        assert!(row.contains(part), "no {part:?} in {row}");
    }
}

/// A GPU newer than every machine image is served by PTX, when the binary has that.
#[test]
fn a_gpu_is_usable_as_far_as_there_is_an_image_for_it() {
    let newest =
        "int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 99 : 0; return 0; }\n";
    let code = driver(&[("cuDeviceGetAttribute", newest)]);
    let ran = run(Some(&code), &["devices", "--json"], None);
    let object: Json = serde_json::from_str(&ran.stdout).expect("JSON");
    let gpu = &object["devices"][1];
    assert_eq!(gpu["compute_capability"], "99.0");
    assert_eq!(gpu["free_bytes"], 1_u64 << 30);
    assert_eq!(gpu["usable"], image::serves((99, 0)), "{object}");
    assert_eq!(gpu["reason"].is_null(), image::serves((99, 0)));
    assert_eq!(ran.stderr.is_empty(), image::serves((99, 0)));
    if image::present() && !image::serves((99, 0)) {
        assert!(ran.stderr.contains("no kernel image for GT"));
        assert!(ran.stderr.contains("LLAMA_RS_CUDA_ARCHS=990"));
    }
}

#[test]
fn json_has_the_cpu_and_the_state_of_cuda() {
    let ran = run(Some(""), &["devices", "--json"], None);
    let object: Json = serde_json::from_str(&ran.stdout).expect("JSON");
    let devices = object["devices"].as_array().expect("an array");
    assert_eq!(devices.len(), 1);
    assert_eq!(devices[0]["name"], "cpu");
    let free = devices[0]["free_bytes"].as_u64().expect("bytes");
    let total = devices[0]["total_bytes"].as_u64().expect("bytes");
    assert!(0 < free && free <= total);
    assert!(devices[0]["threads"].as_u64() > Some(0));
    let cuda = &object["cuda"];
    assert_eq!(cuda["kernels"], image::present());
    assert_eq!(cuda["archs"], serde_json::json!(image::ARCHS));
    let reason = cuda["reason"].as_str().expect("a reason");
    assert!(reason.contains("cuDriverGetVersion"), "{reason}");
}

/// Whatever this machine has.
#[test]
fn the_machine_as_it_is_gives_an_answer() {
    let ran = run(None, &["devices"], None);
    assert!(ran.stdout.lines().count() >= 2, "{}", ran.stdout);
}
