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

fn own() -> Vec<Trial> {
    Vec::new()
}
