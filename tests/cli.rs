//! The built binary: exit codes, what is on stdout and what on stderr.

#[path = "cli/bench.rs"]
mod bench;
#[path = "cli/lookup.rs"]
mod lookup;
#[cfg(unix)]
#[path = "cli/processes.rs"]
mod processes;
#[path = "cli/sandbox.rs"]
mod sandbox;
#[path = "cli/tiny.rs"]
mod tiny;

use sandbox::{Sandbox, json};
use serde_json::Value as Json;

#[test]
fn usage_errors_exit_with_2() {
    let sandbox = Sandbox::new();
    sandbox.bad("simple --tmp 1 a", 2, &["--tmp", "--temp"]);
    sandbox.bad("simple -fa a", 2, &["--flash-attn"]);
    sandbox.bad("simple -n x a", 2, &["'x'", "--predict"]);
    sandbox.bad("simple a -p b", 2, &["--prompt"]);
    sandbox.bad("tokenize -m vocab.gguf", 2, &["--stdin"]);
    sandbox.bad("logits -m ids.gguf --tokens 1,b", 2, &["\"b\""]);
    sandbox.bad("nonsense", 2, &["nonsense"]);
    let ran = sandbox.run("--version");
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.starts_with("llama-rs 0."), "{}", ran.stdout);
}

#[test]
fn files_that_cannot_serve_are_named_with_cause_and_remedy() {
    let sandbox = Sandbox::new();
    let model = tiny::model().bytes();
    let write = |name: &str, bytes: &[u8]| {
        std::fs::write(sandbox.path().join(name), bytes).expect("written");
    };
    write("cut.gguf", &model[..model.len() - 100]);
    write("header.gguf", &model[..40]);
    write("page.gguf", b"<!DOCTYPE html><html></html>");
    write("text.gguf", b"hello");
    write("empty.gguf", b"");
    tiny::ids_only("frobnicator").write(sandbox.path(), "arch.gguf");
    let mut unknown_type = tiny::ids_only("llama");
    unknown_type.type_id = 77;
    unknown_type.write(sandbox.path(), "type.gguf");

    sandbox.bad("simple -m none.gguf a", 1, &["none.gguf"]);
    sandbox.bad("simple -m cut.gguf a", 1, &["cut.gguf", "truncated"]);
    sandbox.bad("simple -m header.gguf a", 1, &["header.gguf", "truncated"]);
    sandbox.bad("simple -m page.gguf a", 1, &["page.gguf", "web page"]);
    sandbox.bad(
        "simple -m text.gguf a",
        1,
        &["text.gguf", "not a GGUF file"],
    );
    sandbox.bad("inspect empty.gguf", 1, &["empty.gguf"]);
    sandbox.bad(
        "bench -m arch.gguf",
        1,
        &["arch.gguf", "frobnicator", "llama"],
    );
    sandbox.bad("bench -m type.gguf", 1, &["type.gguf", "77"]);
    // I32, which no weight can be.
    let mut integers = tiny::ids_only("llama");
    integers.type_id = 26;
    integers.write(sandbox.path(), "i32.gguf");
    sandbox.bad("bench -m i32.gguf", 1, &["i32.gguf", "token_embd.weight"]);
    sandbox.bad(
        "bench -m ids.gguf --override-kv llama.rope.scaling.factor=float:-1",
        1,
        &["ids.gguf", "--rope-freq-scale"],
    );
    for flag in [
        "rope-freq-base=nan",
        "rope-freq-base=0",
        "yarn-ext-factor=inf",
    ] {
        let (name, _) = flag.split_once('=').expect("a value");
        sandbox.bad(
            &format!("bench -m ids.gguf --{flag}"),
            1,
            &["ids.gguf", name],
        );
    }
}

#[test]
fn logits_that_are_no_numbers_are_an_error() {
    let sandbox = Sandbox::new();
    // Scores that overflow are not taken for masked ones.
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/arch");
    for more in ["1", "1,2,3,4,5", "1,2 --top 2", "1,2 -n 2"] {
        let line = format!("logits -m {dir}/llama-dense-Q4_K_M.gguf --tokens {more}");
        let words = ["NaN", "weights"];
        sandbox.bad(&format!("{line} --yarn-attn-factor 1e38"), 1, &words);
    }
}

#[test]
fn constants_that_make_no_sense_are_errors() {
    let sandbox = Sandbox::new();
    for key in ["attention.layer_norm_rms_epsilon", "rope.freq_base"] {
        let line = format!("logits -m ids.gguf --tokens 1 --override-kv llama.{key}=float:-1");
        sandbox.bad(&line, 1, &["ids.gguf", key, "positive"]);
    }
}

#[test]
fn a_vocabulary_says_what_it_can_serve() {
    let sandbox = Sandbox::new();
    for line in [
        "simple -m vocab.gguf a",
        "chat -m vocab.gguf",
        "bench -m vocab.gguf",
        "logits -m vocab.gguf -p a",
    ] {
        let words = ["vocab.gguf", "no tensors", "tokenize", "inspect"];
        sandbox.bad(line, 1, &words);
    }
}

#[test]
fn a_file_of_ids_says_what_it_can_serve() {
    let sandbox = Sandbox::new();
    for line in [
        "simple -m ids.gguf a",
        "chat -m ids.gguf",
        "tokenize -m ids.gguf a",
        "logits -m ids.gguf -p a",
    ] {
        sandbox.bad(
            line,
            1,
            &["ids.gguf", "logits --tokens", "bench", "inspect"],
        );
    }
}

#[test]
fn simple_prints_prompt_continuation_and_one_newline() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run("simple -m model.gguf -n 3 u v");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "u vwxy\n"));
    for part in ["load", "prefill", "decode", "tok/s", "KV"] {
        assert!(ran.stderr.contains(part), "no {part} in {}", ran.stderr);
    }
    assert!(!ran.stderr.contains('\x1b'), "{}", ran.stderr);
    assert_eq!(sandbox.good("simple -m model.gguf -n 0 a"), "a\n");
    assert_eq!(sandbox.good("simple -m model.gguf -n -1 x"), "xyz\n");
    assert_eq!(sandbox.good("simple -m model.gguf x -ngl 3 -ub 1"), "xyz\n");
    assert_eq!(sandbox.good("simple -m model.gguf -p E"), "E🦀\n");
    assert_eq!(
        sandbox.good("simple -m model.gguf -p E -n 2"),
        "E\u{fffd}\n"
    );
    assert_eq!(sandbox.good("simple -m model.gguf a --stop ef"), "abcd\n");
    let ran = sandbox.run("simple --quiet -m model.gguf x");
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("xyz\n", ""));
}

#[test]
fn simple_takes_its_prompt_from_files_and_pipes() {
    let sandbox = Sandbox::new();
    std::fs::write(sandbox.path().join("prompt.txt"), "x\n").expect("written");
    let simple = |flags: &str, stdin: &str| {
        let line = format!("simple -m model.gguf -n 1 {flags}");
        sandbox.run_with(line.trim(), stdin).stdout
    };
    assert_eq!(simple("", "w\n"), "wx\n");
    assert_eq!(simple("a", "w\n"), "ab\n");
    assert!(simple("-f prompt.txt", "w").starts_with("x\n"));
    assert_eq!(simple("-f -", "w"), "wx\n");
    assert_eq!(simple("-f - a b", "w"), "a b\nwx\n");
}

#[test]
fn an_empty_prompt_is_an_error() {
    let sandbox = Sandbox::new();
    sandbox.bad("simple -m model.gguf", 1, &["prompt is empty"]);
    sandbox.bad("simple -m model.gguf -p ", 1, &["prompt is empty"]);
    sandbox.bad("logits -m ids.gguf --tokens ", 1, &["prompt is empty"]);
}

#[test]
fn a_full_context_exits_with_3() {
    let sandbox = Sandbox::new();
    // BOS, a space and the letters: 8 tokens.
    sandbox.bad(
        "simple -m model.gguf -c 4 abcdef",
        3,
        &["8 tokens", "holds 4"],
    );
    sandbox.bad(
        "logits -m ids.gguf -c 2 --tokens 1,2,3",
        3,
        &["3 tokens", "holds 2"],
    );
    let ran = sandbox.run("simple -m model.gguf -c 5 -n 20 a");
    assert_eq!(ran.code, Some(3));
    // Three tokens of prompt, two more places, and the token that found none.
    assert_eq!(ran.stdout, "abcd\n");
    assert!(ran.stderr.contains("context of 5 tokens is full"));
}

#[test]
fn sampling_is_repeatable_and_its_seed_is_shown() {
    let sandbox = Sandbox::new();
    let line = "simple -m model.gguf --temp 5 --top-k 0 --top-p 1 --min-p 0 -n 20 --ignore-eos a";
    let seeded = |seed: &str| sandbox.good(&format!("{line} -s {seed}"));
    assert_eq!(seeded("7"), seeded("7"));
    assert_ne!(seeded("7"), seeded("8"));
    let ran = sandbox.run(&format!("{line} -s 4711"));
    assert!(ran.stderr.contains("4711"), "{}", ran.stderr);
    assert_eq!(sandbox.good("simple -m model.gguf --temp 0 x"), "xyz\n");
}

#[test]
fn tokenize_has_three_formats() {
    let sandbox = Sandbox::new();
    let vocab = "tokenize -m vocab.gguf";
    assert_eq!(
        sandbox.good(&format!("{vocab} --json a")),
        "{\"ids\":[1,3,4]}\n"
    );
    assert_eq!(
        sandbox.good(&format!("{vocab} --ids --no-bos ab")),
        "[3, 4, 5]\n"
    );
    assert_eq!(
        sandbox.good(&format!("{vocab} a")),
        "1\t\"<s>\"\n3\t\" \"\n4\t\"a\"\n"
    );
    let ran = sandbox.run_with(&format!("{vocab} --ids --no-bos --stdin"), "a");
    assert_eq!(ran.stdout, "[3, 4]\n");
    // The text brings its own BOS: still one.
    let ids = sandbox.good(&format!("{vocab} --ids <s>a"));
    assert!(ids.starts_with("[1, "), "{ids}");
    assert!(!ids.starts_with("[1, 1"), "{ids}");
    let plain = sandbox.good(&format!("{vocab} --ids --no-parse-special <s>a"));
    assert_ne!(ids, plain);
}

#[test]
fn logits_follow_each_prompt_token() {
    let sandbox = Sandbox::new();
    let all = json(&sandbox.good("logits -m ids.gguf --tokens 4,5 --exact --json"));
    assert_eq!(all["tokens"], serde_json::json!([4, 5]));
    assert_eq!(all["n_vocab"], tiny::N_EMBD);
    let rows = all["logits"].as_array().expect("rows");
    assert_eq!(rows.len(), 2);
    for (row, successor) in rows.iter().zip([5, 6]) {
        let row: Vec<f64> = row
            .as_array()
            .expect("a row")
            .iter()
            .flat_map(Json::as_f64)
            .collect();
        assert_eq!(row.len(), tiny::N_EMBD);
        // The RMS norm scales a unit vector of 64 values to 8.
        assert!((row[successor] - 8.0).abs() < 0.01, "{}", row[successor]);
    }
    let top = json(&sandbox.good("logits -m model.gguf -p w --top 3 -n 5 --json"));
    let last = top["top"].as_array().expect("rows").last().expect("one");
    assert_eq!(last["id"].as_array().map(Vec::len), Some(3));
    assert_eq!(last["id"][0], 27);
    // x, y, z and the end.
    assert_eq!(top["greedy"], serde_json::json!([27, 28, 29, 2]));
    sandbox.bad("logits -m ids.gguf --tokens 64", 1, &["64", "vocabulary"]);
}

#[test]
fn template_prints_the_prompt_exactly() {
    let sandbox = Sandbox::new();
    let write = |name: &str, text: &str| {
        std::fs::write(sandbox.path().join(name), text).expect("written");
    };
    write("messages.json", r#"[{"role":"user","content":"hi"}]"#);
    write("object.json", "{}");
    write(
        "t.jinja",
        "{{ bos_token }}{{ messages[0].content }}{% if add_generation_prompt %}!{% endif %}",
    );
    write("raise.jinja", "{{ raise_exception('never') }}");
    let of_file = "template --chat-template-file t.jinja --messages messages.json";
    assert_eq!(sandbox.good(of_file), "hi!");
    assert_eq!(sandbox.good(&format!("{of_file} -m vocab.gguf")), "<s>hi!");
    assert_eq!(
        sandbox.good(&format!("{of_file} --bos B --no-generation-prompt")),
        "Bhi"
    );
    assert_eq!(
        sandbox.good("template -m model.gguf --messages messages.json"),
        "hi"
    );
    let raises = "template --chat-template-file raise.jinja --messages messages.json";
    sandbox.bad(raises, 1, &["never"]);
    let object = "template --chat-template-file t.jinja --messages object.json";
    sandbox.bad(object, 1, &["object.json"]);
}

#[test]
fn inspect_shows_metadata_and_tensors() {
    let sandbox = Sandbox::new();
    let object = json(&sandbox.good("inspect --json model.gguf"));
    assert_eq!(object["version"], 3);
    let metadata = &object["metadata"];
    assert_eq!(metadata["general.architecture"], "llama");
    let tokens = &metadata["tokenizer.ggml.tokens"];
    assert_eq!(tokens["length"], tiny::N_EMBD);
    assert_eq!(tokens["first"].as_array().map(Vec::len), Some(8));
    let tensor = &object["tensors"][0];
    assert_eq!(tensor["name"], "token_embd.weight");
    assert_eq!(tensor["type"], "F32");
    assert_eq!(tensor["shape"], serde_json::json!([64, 64]));
    assert_eq!(tensor["bytes"], 64 * 64 * 4);
    let offset = tensor["offset"].as_u64().expect("an offset") as usize;
    let file = tiny::model().bytes();
    assert_eq!(file[offset..offset + 4], 1f32.to_le_bytes());
    assert!(sandbox.good("inspect vocab.gguf").contains("0 tensors"));
}

#[test]
fn chat_reads_one_message_a_line_until_the_end() {
    let sandbox = Sandbox::new();
    let chat = "chat -m model.gguf --temp 0";
    let ran = sandbox.run_with(chat, "w\n\n  \nx");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "xyz\nyz\n"));
    let ran = sandbox.run_with(chat, "");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""));
    let ran = sandbox.run_with(chat, "/exit\nx\n");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""));
    sandbox.bad(
        "chat -m base.gguf",
        1,
        &["base.gguf", "--chat-template", "simple"],
    );
}

#[test]
fn chat_evaluates_only_what_is_new() {
    let sandbox = Sandbox::new();
    let chat = "chat -m model.gguf --temp 0";
    let prefilled = |stdin: &str| {
        let ran = sandbox.run_with(chat, stdin);
        let (_, rest) = ran.stderr.rsplit_once("prefill ").expect("statistics");
        let n = rest.split(' ').next().and_then(|n| n.parse().ok());
        n.unwrap_or(0u32)
    };
    // BOS, a space and `w`; the reply `xyz` stays in the cache, so the second
    // turn brings only its `x`.
    assert_eq!(prefilled("w\n"), 3);
    assert_eq!(prefilled("w\nx\n"), 3 + 1);
}

#[test]
fn chat_in_a_full_context_exits_with_3() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run_with("chat -m model.gguf --temp 0 -c 5", "a\nx\n");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), "bcd\n"));
    assert!(ran.stderr.contains("context of 5 tokens is full"));
    let ran = sandbox.run_with("chat -m model.gguf --temp 0 -c 5", "abcdefgh\n");
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""));
}
