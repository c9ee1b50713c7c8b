//! `bench`: tests, lists, formats.

use super::sandbox::{Sandbox, json};
use serde_json::Value as Json;

/// The objects of `bench -o json`.
fn objects(sandbox: &Sandbox, flags: &str) -> Vec<Json> {
    let text = sandbox.good(&format!("bench -m ids.gguf {flags} -o json"));
    json(&text).as_array().expect("an array").clone()
}

fn number(object: &Json, key: &str) -> f64 {
    object[key]
        .as_f64()
        .unwrap_or_else(|| panic!("no {key} in {object}"))
}

#[test]
fn bench_needs_no_vocabulary() {
    let sandbox = Sandbox::new();
    let tests = objects(&sandbox, "-p 8 -n 4 -r 3 -t 1");
    let names: Vec<&str> = tests.iter().flat_map(|t| t["test"].as_str()).collect();
    assert_eq!(names, ["pp8", "tg4"]);
    for test in &tests {
        assert_eq!(test["n_threads"], 1);
        assert_eq!(test["backends"], "CPU");
        assert_eq!(test["model_filename"], "ids.gguf");
        // Embedding, output, and seven matrices of the layer, 64 x 64, and three norms.
        assert_eq!(test["model_n_params"], 9 * 64 * 64 + 3 * 64);
        assert_eq!(test["samples_ts"].as_array().map(Vec::len), Some(3));
        assert!(number(test, "avg_ts") > 0.0 && number(test, "stddev_ts") >= 0.0);
    }
    assert!(
        tests[0]["gb_per_second"].is_null(),
        "of a prompt: {}",
        tests[0]
    );
    // All weights but the embedding, of which one row is read; K and V rows of f16 for
    // three tokens.
    let rows = 3 * 2 * 64 * 2;
    let weights = (8 * 64 * 64 + 3 * 64 + 64) * 4;
    assert_eq!(number(&tests[1], "bytes_per_step") as usize, weights + rows);
    let share = number(&tests[1], "gb_per_second") / number(&tests[1], "memory_gb_per_second");
    // Printed with four digits.
    assert!((number(&tests[1], "share_of_memory") - share).abs() < 1e-2 * (1.0 + share));
}

#[test]
fn bench_takes_lists() {
    let sandbox = Sandbox::new();
    let tests = objects(&sandbox, "-p 8,5 -n 2 -d 0,9 -npl 1,3 -ub 4,16 -r 1 -t 1");
    let name = |t: &Json| {
        (
            t["n_ubatch"].as_u64(),
            t["test"].as_str().map(str::to_string),
        )
    };
    let got: Vec<_> = tests.iter().map(name).collect();
    let of_one = [
        "pp8",
        "pp5",
        "tg2",
        "pp8 @ d9",
        "pp5 @ d9",
        "tg2 @ d9",
        "tg2 x3",
        "tg2 x3 @ d9",
    ];
    let want = [4, 16].map(|ub| of_one.map(|test| (Some(ub), Some(test.to_string()))));
    assert_eq!(got, want.concat());
    let deep = tests.last().expect("a test");
    assert_eq!((&deep["n_depth"], &deep["n_seqs"]), (&9.into(), &3.into()));
}

#[test]
fn bench_prints_a_table_and_csv() {
    let sandbox = Sandbox::new();
    let table = sandbox.good("bench -m ids.gguf -p 8 -n 0 -r 1");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 3, "{table}");
    assert!(lines[0].starts_with("| model | size | params | backend | ngl |"));
    assert!(lines[0].contains("| test | t/s |"), "{table}");
    assert!(lines[2].starts_with("| llama 37.06 K F32 | 144.8 KiB | 37.06 K | CPU | 0 |"));
    assert!(
        lines[2].contains("| pp8 | ") && lines[2].contains(" ± 0.00 |"),
        "{table}"
    );
    let columns = |line: &str| line.matches('|').count();
    assert!(
        lines.iter().all(|line| columns(line) == columns(lines[0])),
        "{table}"
    );
    let csv = sandbox.good("bench -m ids.gguf -p 8 -n 2 -r 2 -o csv");
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 3, "{csv}");
    assert!(lines[0].starts_with("model_filename,model_type,"), "{csv}");
    assert!(lines[2].contains(",\"tg2\",0,2,0,1,"), "{csv}");
    assert_eq!(sandbox.good("bench -m ids.gguf -p 0 -n 0 -o json"), "[]\n");
}

#[test]
fn bench_refuses_what_cannot_be() {
    let sandbox = Sandbox::new();
    sandbox.bad("bench -m ids.gguf -npl 0", 2, &["--n-parallel"]);
    sandbox.bad("bench -m ids.gguf -p 8,x", 2, &["--n-prompt"]);
    sandbox.bad(
        "bench -m ids.gguf -p 8 -n 4 -d 90 -c 90",
        3,
        &["pp8 @ d90", "98 tokens", "-c gives 90"],
    );
}
