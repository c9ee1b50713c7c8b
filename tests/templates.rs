//! Chat templates: those of known models against their expected prompts (from
//! the shared data; counted as ignored without it), and small ones of our own.

use libtest_mimic::{Arguments, Failed, Trial};
use llama_rs::chat::{ChatTemplate, RenderOptions};
use serde_json::Value;
use std::path::{Path, PathBuf};

fn main() {
    let args = Arguments::from_args();
    let mut trials = shared();
    trials.extend(own());
    trials.extend(hostile());
    libtest_mimic::run(&args, trials).exit();
}

fn folder() -> PathBuf {
    match std::env::var_os("LLAMA_RS_TEST_DATA") {
        Some(data) => PathBuf::from(data),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data"),
    }
    .join("templates")
}

/// One trial for each template and conversation of `expected.json`.
fn shared() -> Vec<Trial> {
    let folder = folder();
    let path = folder.join("expected.json");
    let Ok(json) = std::fs::read_to_string(&path) else {
        let missing = Trial::test("shared templates (no shared data)", || Ok(()));
        return vec![missing.with_ignored_flag(true)];
    };
    let data: Value = serde_json::from_str(&json).expect("expected.json is JSON");
    let mut trials = Vec::new();
    for (template, cases) in data["expected"].as_object().expect("templates by name") {
        for (name, expected) in cases.as_object().expect("conversations by name") {
            let file = folder.join(format!("{template}.jinja"));
            let (data, expected) = (data.clone(), expected.clone());
            let conversation = name.clone();
            trials.push(Trial::test(format!("{template}/{name}"), move || {
                check(&file, &data, &conversation, &expected)
            }));
        }
    }
    assert!(
        trials.len() >= 100,
        "expected.json lists {} cases",
        trials.len()
    );
    trials
}

fn check(file: &Path, data: &Value, conversation: &str, expected: &Value) -> Result<(), Failed> {
    let source = std::fs::read_to_string(file)?;
    let template = ChatTemplate::parse(&source, &file.display().to_string())?;
    let opts = RenderOptions {
        add_generation_prompt: data["add_generation_prompt"] == true,
        bos_token: data["bos_token"].as_str().unwrap_or_default(),
        eos_token: data["eos_token"].as_str().unwrap_or_default(),
        now: data["now"].as_str(),
        kwargs: Default::default(),
    };
    let got = template.render(&data["conversations"][conversation], &opts);
    match (&expected["ok"], &expected["error"], got) {
        (Value::String(want), _, Ok(got)) if *want == got => Ok(()),
        (_, Value::String(want), Err(got)) => {
            let message = want.trim_start_matches("TemplateError: ");
            match got.to_string().contains(message) {
                true => Ok(()),
                false => Err(format!("error {got:?}, expected {want:?}").into()),
            }
        }
        (_, _, got) => Err(format!("got {got:?}\nexpected {expected:?}").into()),
    }
}

/// Small templates with what Python's Jinja makes of them.
fn own() -> Vec<Trial> {
    let data: Value = serde_json::from_str(include_str!("template_cases.json"))
        .expect("template_cases.json is JSON");
    let cases = data["cases"].as_array().expect("a list of cases").clone();
    cases
        .into_iter()
        .map(|case| {
            let data = data.clone();
            let source = case["template"].as_str().unwrap_or_default().to_string();
            Trial::test(format!("own/{}", source.replace('\n', " ")), move || {
                let opts = RenderOptions {
                    add_generation_prompt: true,
                    bos_token: "<s>",
                    eos_token: "</s>",
                    now: data["now"].as_str(),
                    kwargs: Default::default(),
                };
                let got = ChatTemplate::parse(&source, "own")
                    .and_then(|template| template.render(&data["messages"], &opts));
                match (case["ok"].as_str(), got) {
                    (Some(want), Ok(got)) if want == got => Ok(()),
                    (None, Err(_)) => Ok(()),
                    (want, got) => Err(format!("got  {got:?}\nwant {want:?}").into()),
                }
            })
        })
        .collect()
}

/// Templates that must end in an error, soon, without taking the stack or the
/// memory with them.
fn hostile() -> Vec<Trial> {
    let ladder =
        "{% set x = ['aaaaaaaaaaaaaaaa'] %}".to_string() + &"{% set x = [x, x] %}".repeat(60);
    let nest = |step: &str, last: &str| {
        format!(
            "{{% set ns = namespace(x=[1]) %}}{{% for i in range(100000) %}}{{% for j in range(100000) %}}{{% set ns.x = {step} %}}{{% endfor %}}{{% endfor %}}{last}"
        )
    };
    let brackets = "[".repeat(60) + "ns.x" + &"]".repeat(60);
    let cases = [
        ("macro recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".to_string()),
        ("macro recursion, two", "{% macro f(g) %}{{ g(f) }}{% endmacro %}{{ f(f) }}".to_string()),
        ("caller recursion", "{% macro f() %}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}".to_string()),
        ("loop recursion", "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_string()),
        ("include itself", "{% include 'chat template' %}".to_string()),
        ("nested loops", "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}x{% endfor %}{% endfor %}{% endfor %}".to_string()),
        ("silent loops", "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".to_string()),
        ("long string", "{{ 'x' * 10**9 }}".to_string()),
        ("long string, captured", "{% set x %}{{ 'x' * 10**9 }}{% endset %}".to_string()),
        ("long list", "{{ [1] * 10**9 }}".to_string()),
        ("long list, allowed", "{{ [1] * 10**8 }}".to_string()),
        ("long list of long strings", "{{ ''.join(['x' * 10**6] * 10**7) }}".to_string()),
        ("long list, filtered", "{{ (['x' * 10**6] * 10**7)|join }}".to_string()),
        ("long list, as text", "{{ (['x' * 10**6] * 10**7)|string|length }}".to_string()),
        ("long list, as JSON", "{{ (['x' * 10**6] * 10**7)|tojson|length }}".to_string()),
        ("long range", "{{ range(10**12)|list }}".to_string()),
        ("doubling", "{% set ns = namespace(x='x') %}{% for i in range(64) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x|length }}".to_string()),
        ("doubling in place", "{% set ns = namespace(x='xx') %}{% for i in range(64) %}{% set ns.x = ns.x.replace('x', 'xx') %}{% endfor %}".to_string()),
        ("doubling by filter", "{% set ns = namespace(x='xx') %}{% for i in range(64) %}{% set ns.x = ns.x|replace('x', 'xx') %}{% endfor %}".to_string()),
        ("wide format", "{{ '{:1000000000}'.format(1) }}".to_string()),
        ("repeated format", "{{ ('{0}' * 10**6).format('x' * 10**6) }}".to_string()),
        ("wide filter format", "{{ '%1000000000d'|format(1) }}".to_string()),
        ("wide indent", "{{ 'a\nb'|indent(10**9) }}".to_string()),
        ("wide JSON", "{{ [1]|tojson(indent=10**9) }}".to_string()),
        ("power", "{{ 10 ** 10 ** 10 }}".to_string()),
        ("batch", "{{ [1]|batch(10**9, 0)|list }}".to_string()),
        ("slices", "{{ [1]|slice(10**9)|list }}".to_string()),
        ("shared lists, printed", ladder.clone() + "{{ x }}"),
        ("shared lists, as JSON", ladder.clone() + "{{ x|tojson }}"),
        ("deep list", nest("[ns.x]", "")),
        ("deeper list", nest(&brackets, "")),
        ("deep reverse", nest("ns.x|reverse", "")),
        ("deep dict", nest("{'a': ns.x}", "")),
        ("deep sum", nest("ns.x + [1]", "")),
        ("deep expression", "{{ ".to_string() + &"(".repeat(50_000) + "1" + &")".repeat(50_000) + " }}"),
        ("deep list literal", "{{ ".to_string() + &"[".repeat(100_000)),
        ("long attribute", "{{ x".to_string() + &".a".repeat(120_000) + " }}"),
        ("long calls", "{{ x".to_string() + &"()".repeat(120_000) + " }}"),
        ("long filter chain", "{{ 1".to_string() + &"|z".repeat(120_000) + " }}"),
        ("long not", "{{ ".to_string() + &"not ".repeat(60_000) + "x.y.z }}"),
        ("long elif", "{% if a %}".to_string() + &"{% elif b %}".repeat(20_000) + "{% endif %}{{ x.y }}"),
        ("deep if", "{% if 1 %}".repeat(25_000)),
        ("too long", "x".repeat(1 << 20)),
        ("unclosed", "{{ 'abc".to_string()),
        // The engine does not count these steps: the time limit ends them, so
        // they come last.
        ("shared lists, compared", ladder.clone() + &ladder.replace("set x", "set y").replace("[x, x]", "[y, y]") + "{{ x == y }}"),
        ("skipping slice", "{% for i in range(99999) %}{{ ([1] * 10**8)[::10**8]|list }}{% endfor %}".to_string()),
    ];
    cases
        .into_iter()
        .map(|(name, source)| Trial::test(format!("hostile/{name}"), move || must_fail(&source)))
        .collect()
}

fn must_fail(source: &str) -> Result<(), Failed> {
    let start = std::time::Instant::now();
    let opts = RenderOptions::default();
    let got = ChatTemplate::parse(source, "hostile").and_then(|template| {
        template.render(
            &serde_json::json!([{"role": "user", "content": "hi"}]),
            &opts,
        )
    });
    let seconds = start.elapsed().as_secs_f32();
    match got {
        // A full load of fuel burns in under a second and the time limit is
        // 5 s; the rest is for slow machines.
        Err(_) if seconds < 10.0 => Ok(()),
        Err(e) => Err(format!("took {seconds} s: {e}").into()),
        Ok(text) => Err(format!("gave {} bytes", text.len()).into()),
    }
}
