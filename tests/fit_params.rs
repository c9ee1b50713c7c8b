//! `llama-rs fit-params`: one line that pastes, exit codes, bad files, GPUs that are not
//! here. The build may have no kernels, nor the machine a driver.

#[path = "cli/sandbox.rs"]
#[allow(dead_code)] // shared with `cli.rs`, which uses all of it
mod sandbox;
#[path = "cli/tiny.rs"]
#[allow(dead_code)] // as above
mod tiny;

use sandbox::{Sandbox, json};
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

/// The smallest GPU that the tiny models go to: what is recorded of a GPU's own needs,
/// the margin, and a few MiB.
const SMALL: &str = "cuda0=2GiB";

fn arch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/arch");
    folder.join(format!("{name}.gguf"))
}

/// The one line of a run that fits.
fn line(sandbox: &Sandbox, flags: &str) -> String {
    let text = sandbox.good(&format!("fit-params {flags}"));
    let line = text.strip_suffix('\n').expect("a whole line");
    assert!(!line.contains('\n'), "{flags}: {text}");
    for sentinel in ["-c 0", "-1", "999", "4294967295", "auto", "all"] {
        let bad = line
            .split(" -")
            .any(|flag| format!("-{flag}").ends_with(sentinel));
        assert!(!bad, "{flags}: {line}");
    }
    line.to_string()
}

/// The value of a flag in a line.
fn value(line: &str, flag: &str) -> Option<usize> {
    let mut words = line.split(' ').skip_while(|word| *word != flag);
    words.nth(1)?.parse().ok()
}

fn plan(sandbox: &Sandbox, flags: &str) -> Json {
    json(&sandbox.good(&format!("fit-params {flags} --json")))
}

#[test]
fn the_line_pastes_into_every_command() {
    let sandbox = Sandbox::new();
    let fitted = line(&sandbox, "-m model.gguf --device cpu");
    assert_eq!(fitted, "-ngl 0 -c 256");
    let text = sandbox.good(&format!("simple {fitted} -m model.gguf abc -n 4 --quiet"));
    assert_eq!(text, "abcdefg\n");
    sandbox.good(&format!("bench {fitted} -m ids.gguf -p 2 -n 2 -r 1"));
    sandbox.good(&format!("logits {fitted} -m ids.gguf --tokens 1"));
    let chat = format!("chat {fitted} -m model.gguf --temp 0 --quiet");
    assert_eq!(sandbox.run_with(&chat, "w\n").stdout, "xyz\n");
    // So does what was planned for a GPU, here without one.
    let fitted = line(&sandbox, &format!("-m model.gguf --device-memory {SMALL}"));
    assert_eq!(fitted, "-ngl 2 -c 256");
    let text = sandbox.good(&format!("simple {fitted} -m model.gguf abc -n 4 --quiet"));
    assert_eq!(text, "abcdefg\n");
    let mixture = arch("qwen3moe-moe-Q4_K_M");
    let all = format!(
        "-m {} --device-memory {SMALL} --n-cpu-moe 1",
        mixture.display()
    );
    let fitted = line(&sandbox, &all);
    assert_eq!(value(&fitted, "--n-cpu-moe"), Some(1), "{fitted}");
    let tokens = format!("logits {fitted} -m {} --tokens 1", mixture.display());
    sandbox.good(&tokens);
}

#[test]
fn without_a_model_the_one_in_the_program_is_planned() {
    let sandbox = Sandbox::new();
    assert_eq!(line(&sandbox, "--device cpu"), "-ngl 0 -c 512");
}

#[test]
fn overrides_are_repeated_without_blanks() {
    let sandbox = Sandbox::new();
    let flags = format!("-m model.gguf --device-memory {SMALL} -ot ffn_(up|down)=CPU,attn=CUDA0");
    let fitted = line(&sandbox, &flags);
    assert_eq!(fitted, "-ngl 2 -c 256 -ot ffn_(up|down)=cpu -ot attn=cuda0");
    let host = plan(&sandbox, &flags)["devices"][0]["weights_bytes"].clone();
    // Two matrices of 64 x 64 in F32.
    assert_eq!(host, 2 * 64 * 64 * 4);
}

#[test]
fn what_is_given_stays_and_the_rest_is_solved() {
    let sandbox = Sandbox::new();
    let model = format!("-m model.gguf --device-memory {SMALL}");
    let with = |flags: &str| line(&sandbox, &format!("{model} {flags}"));
    assert_eq!(with("-c 100"), "-ngl 2 -c 100");
    assert_eq!(with("-ngl 1"), "-ngl 1 -c 256");
    assert_eq!(with("-ngl 1 -c 33"), "-ngl 1 -c 33");
    assert_eq!(with("-ngl all -c auto"), "-ngl 2 -c 256");
    // More than there are is all; 0 is the training context.
    assert_eq!(with("-ngl 99 -c 0"), "-ngl 2 -c 256");
    assert_eq!(with("--device cpu"), "-ngl 0 -c 256");
}

#[test]
fn little_memory_shortens_the_context_then_moves_layers() {
    let sandbox = Sandbox::new();
    let file = arch("llama-dense-Q4_K_M");
    let model = format!("-m {} --margin 0", file.display());
    let whole = plan(&sandbox, &format!("{model} --device-memory cuda0=64GiB"));
    let most = &whole["most_gpu_layers"];
    assert_eq!(
        (&whole["n_gpu_layers"], &whole["reductions"]),
        (most, &Json::Array(vec![]))
    );
    let gpu = &whole["devices"][1];
    let bytes = |key: &str| gpu[key].as_u64().expect("bytes");
    let parts = [
        "weights_bytes",
        "kv_bytes",
        "compute_bytes",
        "overhead_bytes",
    ];
    let total: u64 = parts.iter().map(|key| bytes(key)).sum();
    assert_eq!(bytes("left_bytes") + total, 64 << 30);

    let at = |free: u64, min_ctx: u64| {
        let memory = format!("--device-memory cuda0={free}b --min-ctx {min_ctx}");
        let ran = sandbox.run(&format!("fit-params {model} {memory}"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        (ran.stdout, ran.stderr)
    };
    let n_ctx = whole["n_ctx"].as_u64().expect("a number");
    let (fits, _) = at(total, 256);
    assert_eq!(fits.trim_end(), whole["args"].as_str().expect("a line"));
    // A byte less: the context goes down by one step.
    let (shorter, told) = at(total - 1, 256);
    let shorter_ctx = value(shorter.trim_end(), "-c").expect("a context");
    assert!(
        (n_ctx - 256..n_ctx).contains(&(shorter_ctx as u64)),
        "{shorter}"
    );
    assert_eq!(value(&shorter, "-ngl"), most.as_u64().map(|n| n as usize));
    assert!(told.contains(" tokens, not "), "{told}");
    // When it may not, a layer goes.
    let (fewer, told) = at(total - 1, n_ctx);
    assert_eq!(value(fewer.trim_end(), "-c"), Some(n_ctx as usize));
    let n_layers = value(&fewer, "-ngl").expect("layers") as u64;
    assert!(n_layers < most.as_u64().expect("layers"), "{fewer}");
    assert!(told.contains(" layers on the GPU: -ngl "), "{told}");
    for word in [
        "device", "weights", "KV cache", "compute", "margin", "left", "cuda0",
    ] {
        assert!(told.contains(word), "no {word} in {told}");
    }
}

#[test]
fn what_does_not_fit_is_exit_code_3_with_numbers() {
    let sandbox = Sandbox::new();
    let model = "-m model.gguf";
    for (flags, parts) in [
        // Nothing fits a host without memory.
        (
            "--device-memory cpu=1MiB",
            &["cpu", "margin 512", "1 MiB are free"][..],
        ),
        (
            "--device-memory cuda0=64MiB -ngl 2 -c 64",
            &[
                "cuda0",
                "-ngl 2 -c 64 needs",
                "64 MiB are free",
                "give -ngl 0",
            ],
        ),
        (
            "--device-memory cuda0=2GiB -ngl all -c 100000000",
            &["cuda0", "KV cache", "give -c "],
        ),
    ] {
        let ran = sandbox.run(&format!("fit-params {model} {flags}"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""), "{flags}");
        let last = ran.stderr.lines().last().expect("a reason");
        assert!(last.starts_with("error: "), "{flags}: {last}");
        for part in parts {
            assert!(last.contains(part), "{flags}: no {part:?} in {last}");
        }
        let ran = sandbox.run(&format!("fit-params {model} {flags} --json"));
        assert_eq!(ran.code, Some(3));
        let plan = json(&ran.stdout);
        assert_eq!((&plan["fits"], &plan["args"]), (&false.into(), &Json::Null));
        let devices = plan["devices"].as_array().expect("devices");
        let short = |d: &Json| d["left_bytes"].as_i64().is_some_and(|left| left < 0);
        assert!(devices.iter().any(short), "{plan}");
    }
}

#[test]
fn what_would_fit_is_told() {
    let sandbox = Sandbox::new();
    let told = |flags: &str| {
        let ran = sandbox.run(&format!("fit-params -m model.gguf {flags}"));
        assert_eq!(ran.code, Some(3), "{flags}");
        let last = ran.stderr.lines().last().expect("a reason").to_string();
        let remedy = last.split("; ").last().expect("a remedy").to_string();
        remedy.strip_prefix("give ").unwrap_or(&remedy).to_string()
    };
    // The host has no room for what -ngl leaves it, the GPU has for all.
    let flags = "--device-memory cuda0=2GiB,cpu=100KiB";
    let remedy = told(&format!("{flags} -ngl 1 -c 64"));
    assert_eq!(remedy, "-ngl 2");
    sandbox.good(&format!("fit-params -m model.gguf {flags} {remedy} -c 64"));
    // The margin is not for what is given, as in other commands.
    let flags = "--device cpu --device-memory cpu=16MiB";
    sandbox.good(&format!("fit-params -m model.gguf {flags} -ngl 0 -c 256"));
    let ran = sandbox.run(&format!("fit-params -m model.gguf {flags} --json"));
    let plan = json(&ran.stdout);
    let error = plan["error"].as_str().expect("an error");
    assert!(error.contains("margin 512"), "{error}");
    // A longer context than a host has for it.
    let remedy = told("--device cpu --device-memory cpu=600MiB --min-ctx 256 -c 100000000");
    assert!(remedy.starts_with("-c "), "{remedy}");
    sandbox.good(&format!(
        "fit-params -m model.gguf --device cpu --device-memory cpu=600MiB {remedy}"
    ));
}

#[test]
fn bad_files_never_fit() {
    let sandbox = Sandbox::new();
    let whole = std::fs::read(sandbox.path().join("model.gguf")).expect("a file");
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(sandbox.path().join(name), bytes).expect("written");
    };
    write("cut.gguf", &whole[..whole.len() - 100]);
    write("head.gguf", &whole[..200]);
    write("page.gguf", b"<!DOCTYPE html><html></html>");
    write("empty.gguf", b"");
    tiny::ids_only("nonsense").write(sandbox.path(), "other.gguf");
    for (file, part) in [
        ("none.gguf", "none.gguf"),
        ("cut.gguf", "cut.gguf"),
        ("head.gguf", "head.gguf"),
        ("page.gguf", "page.gguf"),
        ("empty.gguf", "empty"),
        ("other.gguf", "nonsense"),
        ("vocab.gguf", "no tensors"),
    ] {
        for memory in ["", " --device-memory cuda0=8GiB", " --json"] {
            sandbox.bad(&format!("fit-params -m {file}{memory}"), 1, &[part]);
        }
    }
}

#[test]
fn flags_that_mean_nothing_are_usage_errors() {
    let sandbox = Sandbox::new();
    for (flags, part) in [
        ("--margin much", "'much'"),
        ("--margin -1", "-1"),
        ("--device-memory cuda0", "=SIZE"),
        ("--device-memory cuda0=8", "8GiB"),
        ("--min-ctx 0", "'0'"),
        ("-c some", "`auto`"),
        ("--n-cpu-moe x", "'x'"),
    ] {
        sandbox.bad(&format!("fit-params -m model.gguf {flags}"), 2, &[part]);
    }
    let two = "--device-memory cuda0=8GiB,cuda1=4GiB";
    sandbox.bad(&format!("fit-params -m model.gguf {two}"), 1, &["--device"]);
    let one = line(&sandbox, &format!("-m model.gguf {two} --device cuda1"));
    assert_eq!(one, "-ngl 2 -c 256 --device cuda1");
    for command in ["simple -m model.gguf a", "bench -m ids.gguf -p 1 -n 1 -r 1"] {
        let flags = "--margin 1GiB --n-cpu-moe 3 -ngl auto -c auto";
        sandbox.good(&format!("{command} {flags}"));
    }
}

#[test]
fn every_command_tells_context_and_cache() {
    let sandbox = Sandbox::new();
    for (line, context) in [
        ("simple -m model.gguf -c 40 a", "context 40 tokens"),
        ("chat -m model.gguf -c 40", "context 40 tokens"),
        (
            "bench -m ids.gguf -c 40 -p 1 -n 1 -r 1",
            "context 40 tokens",
        ),
        ("chat -m model.gguf", "context 256 tokens, KV cache"),
        (
            "simple -m model.gguf -c auto a",
            "context 256 tokens, KV cache",
        ),
    ] {
        let ran = sandbox.run(line);
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains(context), "{line}: {}", ran.stderr);
        let below = ran
            .stderr
            .contains("the model was trained with 256; -c raises it");
        assert_eq!(below, line.contains("-c 40"), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains("KV cache"), "{line}: {}", ran.stderr);
    }
}

#[test]
fn a_host_without_room_gets_the_shortest_context() {
    let sandbox = Sandbox::new();
    let long = "-m ids.gguf --override-kv llama.context_length=int:100000 -p 1 -n 1 -r 1";
    let context = |flags: &str| {
        let ran = sandbox.run(&format!("bench {long} {flags}"));
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        let mut words = ran.stderr.split_whitespace();
        words.find(|word| *word == "context").expect("a context");
        words
            .next()
            .expect("a number")
            .parse::<usize>()
            .expect("a number")
    };
    assert_eq!(context("-c auto"), 100_000);
    // No machine has so much; what bench needs is the least.
    assert_eq!(context("-c auto --margin 1000TiB"), context("-c 2"));
}

#[test]
fn the_table_comes_before_the_line() {
    let sandbox = Sandbox::new();
    let mut both = std::process::Command::new("sh");
    let program = env!("CARGO_BIN_EXE_llama-rs");
    let line = format!("'{program}' fit-params -m model.gguf --device cpu 2>&1");
    both.args(["-c", &line]).current_dir(sandbox.path());
    let output = both.output().expect("a shell");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(text.lines().last(), Some("-ngl 0 -c 256"), "{text}");
    assert!(text.lines().count() >= 3, "{text}");
}
