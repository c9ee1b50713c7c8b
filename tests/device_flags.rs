//! Flags that say what runs where, on machines with and without a GPU.

#[path = "cli/sandbox.rs"]
#[allow(dead_code)] // shared with `cli.rs`, which uses all of it
mod sandbox;
#[path = "cli/tiny.rs"]
mod tiny;

use sandbox::{Sandbox, json};

#[test]
fn values_that_mean_nothing_are_usage_errors() {
    let sandbox = Sandbox::new();
    for (flags, part) in [
        ("-ngl most", "'most'"),
        ("-ngl -3", "'-3'"),
        ("--device vulkan0", "cuda0"),
        ("-ot exps", "=DEVICE"),
        ("-ot (=CPU", "'(=CPU'"),
    ] {
        sandbox.bad(&format!("simple -m model.gguf x {flags}"), 2, &[part]);
    }
}

#[test]
fn a_gpu_that_is_not_there_is_an_error_when_it_is_named() {
    let sandbox = Sandbox::new();
    for line in [
        "simple -m model.gguf x",
        "chat -m model.gguf",
        "bench -m ids.gguf -p 1 -n 1 -r 1",
        "logits -m ids.gguf --tokens 1",
    ] {
        let line = format!("{line} --device cuda99");
        sandbox.bad(&line, 1, &["--device cuda99: ", "there is: cpu"]);
    }
    let line = "simple -m model.gguf x --device cpu -ot ffn=CUDA0";
    sandbox.bad(line, 1, &["cuda0", "not in use", "in use: cpu"]);
}

#[test]
fn where_layers_go_changes_no_text() {
    let sandbox = Sandbox::new();
    let alone = "simple -m model.gguf abc -n 8 --device none --quiet";
    assert_eq!(sandbox.good(alone), "abcdefghijk\n");
    for flags in [
        "-ngl 0",
        "-ngl 1",
        "-ngl all",
        "-ngl auto",
        "-ngl -1",
        "-ot ffn=CPU,attn=CPU",
    ] {
        let line = format!("simple -m model.gguf abc -n 8 --quiet {flags}");
        assert_eq!(sandbox.good(&line), "abcdefghijk\n", "{flags}");
    }
}

#[test]
fn an_override_that_matches_nothing_is_told() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run("simple -m model.gguf x --device cpu -ot exps=CPU");
    assert_eq!(ran.code, Some(0));
    assert!(ran.stderr.contains("\"exps\""), "{}", ran.stderr);
}

#[test]
fn bench_tells_backend_and_layers() {
    let sandbox = Sandbox::new();
    let line = "bench -m ids.gguf -p 2 -n 2 -r 1 --device cpu";
    let tests = json(&sandbox.good(&format!("{line} -o json")));
    assert_eq!(
        (&tests[0]["backends"], &tests[0]["n_gpu_layers"]),
        (&"CPU".into(), &0.into())
    );
    let table = sandbox.good(line);
    assert!(
        table.contains("| backend | ngl |") && table.contains("| CPU | 0 |"),
        "{table}"
    );
}
