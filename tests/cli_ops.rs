//! `llama-rs ops` of the built binary, on the CPU, over small shapes.

#[allow(dead_code, reason = "shared with tests/cli.rs")]
#[path = "cli/sandbox.rs"]
mod sandbox;
#[allow(dead_code, reason = "shared with tests/cli.rs")]
#[path = "cli/tiny.rs"]
mod tiny;

use sandbox::{Sandbox, json};

#[test]
fn list_has_a_row_for_each_op() {
    let sandbox = Sandbox::new();
    let table = sandbox.good("ops list -o add,ARGMAX,MUL_MAT_NORM");
    let rows: Vec<&str> = table.lines().collect();
    assert_eq!(rows.len(), 4, "{table}");
    assert!(rows[1].starts_with("ADD "), "{table}");
    let all = json(&sandbox.good("ops list --json -o ADD,HEAD_ROWS,PACK_F16"));
    let [add, heads, pack] = [0, 1, 2].map(|i| &all[i]);
    assert_eq!(
        (&add["op"], &add["cpu"], &add["cuda"]),
        (&"ADD".into(), &true.into(), &true.into())
    );
    assert!(add["cases"].as_u64() > Some(10), "{add}");
    assert_eq!(
        (&heads["cpu"], &heads["cuda"]),
        (&false.into(), &true.into())
    );
    assert_eq!((&pack["cases"], &pack["cuda"]), (&0.into(), &true.into()));
}

#[test]
fn cases_are_checked_and_counted() {
    let sandbox = Sandbox::new();
    let table = sandbox.good("ops test -b cpu -t 2 -o MOE_SUM");
    let lines: Vec<&str> = table.lines().collect();
    let n = lines.len() - 1;
    assert!(n > 5, "{table}");
    for line in &lines[..n] {
        assert!(
            line.starts_with("MOE_SUM/") && line.contains("  OK "),
            "{line}"
        );
    }
    assert_eq!(lines[n], format!("cpu: {n} OK, 0 failed, 0 not supported"));
    let rows = json(&sandbox.good("ops test -b cpu --json -o CUMSUM --shape 300,7"));
    assert_eq!(rows[0]["case"], "CUMSUM/300,7");
    assert_eq!(rows[0]["status"], "OK");
    assert!(rows[0]["nmse"].as_f64() < Some(1e-9), "{rows}");
}

#[test]
fn every_kind_of_shape_can_be_checked() {
    let sandbox = Sandbox::new();
    for (op, shape) in [
        ("MUL_MAT", "q4_K:256,32,3"),
        ("MUL_MAT_ID", "q8_0:64,32,8,2,5"),
        ("ATTN", "head_dim=32,n_head=4,n_head_kv=2,n_kv=40,n=7"),
        ("ROPE", "norm:64,3,5"),
        ("GET_ROWS", "q6_k:256,9,4"),
        ("SET_ROWS", "f16:64,5"),
        ("TOP_K", "100,3,8"),
        (
            "SSM_SCAN",
            "d_state=16,head_dim=1,n_head=40,n_tokens=20,n_seqs=2",
        ),
        (
            "SSM_SCAN",
            "d_state=128,head_dim=8,n_head=4,n_group=2,n_tokens=9",
        ),
        ("SSM_CONV", "channels=40,n_tokens=9,n_seqs=2"),
        (
            "GATED_DELTA_NET",
            "d_k=16,d_v=8,n_k_head=2,n_v_head=4,n_tokens=9",
        ),
    ] {
        let table = sandbox.good(&format!("ops test -b cpu -t 2 -o {op} --shape {shape}"));
        assert!(table.contains("1 OK, 0 failed"), "{table}");
    }
}

#[test]
fn ops_are_timed() {
    let sandbox = Sandbox::new();
    let table = sandbox.good("ops perf -b cpu -t 1 -o ADD --shape 4096,100");
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 2, "{table}");
    assert!(
        lines[1].starts_with("ADD ") && lines[1].contains("4096,100"),
        "{table}"
    );
    let rows = json(&sandbox.good("ops perf --json -b cpu -t 1 -o MUL_MAT --shape q4_k:256,512,4"));
    let row = &rows[0];
    assert_eq!(row["bytes"], 144 * 512 + 4 * (256 * 4 + 512 * 4));
    assert_eq!(row["flops"], 2 * 256 * 512 * 4);
    for key in ["us", "gb_s", "gflop_s", "share_of_peak", "peak_gb_s"] {
        assert!(row[key].as_f64() > Some(0.0), "{key}: {row}");
    }
    assert!(row["repeats"].as_u64() >= Some(3), "{row}");
}

#[test]
fn what_cannot_be_done_is_one_line() {
    let sandbox = Sandbox::new();
    sandbox.bad("ops test -o FROB", 1, &["FROB", "MUL_MAT"]);
    sandbox.bad("ops test -b gpu", 1, &["-b", "gpu", "cpu", "cuda0"]);
    sandbox.bad("ops perf -b cuda99 -o ADD", 1, &[]);
    sandbox.bad(
        "ops perf -b cpu -o HEAD_ROWS",
        1,
        &["HEAD_ROWS", "ops list"],
    );
    sandbox.bad("ops test -b cpu -o SOLVE_TRI", 1, &["GATED_DELTA_NET"]);
    sandbox.bad("ops test -b cpu -o PACK_F16", 1, &["PACK_F16", "no cases"]);
    sandbox.bad("ops test --shape 5", 2, &["--op"]);
    sandbox.bad("ops perf -o ADD,MUL --shape 5", 1, &["--shape", "one op"]);
    sandbox.bad("ops list -o ADD --shape 5", 1, &["--shape"]);
    sandbox.bad("ops fly", 2, &["fly"]);
    for (op, shape, part) in [
        ("CUMSUM", "0,5", "\"0\""),
        ("CUMSUM", "5,x", "\"x\""),
        ("MUL_MAT", "q9:5,5,5", "q9"),
        ("MUL_MAT", "q4_K:100,5,5", "256"),
        ("ATTN", "head_dim=64", "n_head"),
        ("SSM_SCAN", "d_state=5000,head_dim=4,n_head=4", "SSM_SCAN"),
        ("TOP_K", "5,5,9", "do not go together"),
    ] {
        let line = format!("ops test -b cpu -o {op} --shape {shape}");
        sandbox.bad(&line, 1, &[op, part]);
    }
    let line = "ops perf -b cpu -o CUMSUM --shape 100000000,100000000";
    sandbox.bad(line, 3, &["CUMSUM", "MiB", "smaller"]);
}
