//! `--lookup`: drafts change the speed, never the text.

use super::sandbox::Sandbox;

/// How many drafted tokens were kept.
fn n_kept(stderr: &str) -> usize {
    let rest = stderr.split("lookup kept ").nth(1);
    let n = rest.and_then(|rest| rest.split(' ').next()?.parse().ok());
    n.unwrap_or(0)
}

#[test]
fn drafts_do_not_change_the_text() {
    let sandbox = Sandbox::new();
    let flat = "--top-k 0 --top-p 1 --min-p 0 --ignore-eos";
    let mut kept = [0, 0];
    for (i, how) in [
        "--temp 0",
        "--temp 0 --stop fgh",
        "--temp 0 --repeat-penalty 1.3 --ignore-eos",
        "-s 1 --temp 1 --ignore-eos",
        &format!("-s 2 --temp 3 {flat}"),
        &format!("-s 3 --temp 6 {flat} --repeat-penalty 1.1"),
    ]
    .iter()
    .enumerate()
    {
        for n in [1, 2, 7, 40, 200] {
            let run = |mode: &str| {
                let text = "cdefghcdefghabcabcdefg";
                sandbox.run(&format!(
                    "simple -m model.gguf --lookup {mode} -n {n} {how} {text}"
                ))
            };
            let (plain, ahead) = (run("off"), run("on"));
            assert_eq!(plain.code, Some(0), "{}", plain.stderr);
            assert_eq!(ahead.stdout, plain.stdout, "{how} -n {n}");
            assert_eq!(ahead.code, plain.code);
            assert_eq!(n_kept(&plain.stderr), 0);
            kept[usize::from(i > 2)] += n_kept(&ahead.stderr);
        }
    }
    // Greedy, and with random numbers.
    assert!(kept[0] > 0 && kept[1] > 0, "{kept:?}");
}

#[test]
fn drafts_fit_the_grammar() {
    let sandbox = Sandbox::new();
    for how in [
        "--temp 0",
        "-s 4 --temp 4 --top-k 0 --top-p 1 --min-p 0",
        "-s 5 --temp 4 --top-k 0 --top-p 1 --min-p 0 --dry-multiplier 0.1 --mirostat 2",
    ] {
        let run = |mode: &str| {
            let grammar = "root::=(\"abcd\"|\"abc\"|[fg]){30}";
            let line = "simple -m model.gguf -n 130 cdabcdfg";
            sandbox.run(&format!("{line} --grammar {grammar} {how} --lookup {mode}"))
        };
        let (plain, ahead) = (run("off"), run("on"));
        assert_eq!(ahead.code, Some(0), "{}", ahead.stderr);
        assert_eq!(ahead.stdout, plain.stdout, "{how}");
        assert!(n_kept(&ahead.stderr) > 0, "{how}: {}", ahead.stderr);
    }
}

#[test]
fn drafts_end_with_the_context() {
    let sandbox = Sandbox::new();
    let run = |mode: &str| {
        let line = "simple -m model.gguf -c 40 -n 100 --ignore-eos xyabcdefgabcd";
        sandbox.run(&format!("{line} --lookup {mode}"))
    };
    let (plain, ahead) = (run("off"), run("on"));
    assert_eq!((ahead.code, plain.code), (Some(3), Some(3)));
    assert_eq!(ahead.stdout, plain.stdout);
    assert!(n_kept(&ahead.stderr) > 0, "{}", ahead.stderr);
}

#[test]
fn a_chat_goes_on_after_drafts() {
    let sandbox = Sandbox::new();
    let run = |mode: &str| {
        let line = "chat -m model.gguf -s 5 --temp 3 --ignore-eos -n 30";
        sandbox.run_with(&format!("{line} --lookup {mode}"), "abcd\nabcd\nfgabc\n")
    };
    let (plain, ahead) = (run("off"), run("on"));
    assert_eq!(ahead.code, Some(0), "{}", ahead.stderr);
    assert_eq!(ahead.stdout, plain.stdout);
    assert!(n_kept(&ahead.stderr) > 0, "{}", ahead.stderr);
}
