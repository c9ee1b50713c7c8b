//! Holds the sources to the architecture: who imports whom, where `unsafe` may
//! stand, and how long a file may be.
//!
//! Imports run one way, `cli -> session -> model -> arch -> graph -> quant ->
//! error`; what else is allowed stands in [`MAY_IMPORT`].

use std::path::{Path, PathBuf};

/// Module (longest prefix wins) and what it may import besides itself.
/// `gguf::meta` is also known by the names `gguf` re-exports from it.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("error", &[]),
    ("quant", &["error"]),
    ("gguf", &["quant", "error"]),
    ("graph", &["quant", "error"]),
    ("backend", &["graph", "quant", "error"]),
    ("arch", &["graph", "quant", "error", "gguf::meta"]),
    ("memory", &["graph", "quant", "error", "backend"]),
    (
        "memory::planner",
        &[
            "model", "arch", "graph", "quant", "error", "backend", "memory",
        ],
    ),
    (
        "model",
        &["arch", "graph", "quant", "error", "gguf", "backend"],
    ),
    (
        "session",
        &[
            "model", "arch", "graph", "quant", "error", "memory", "backend",
        ],
    ),
    ("tokenizer", &["error", "gguf::meta"]),
    ("chat", &["error", "gguf::meta"]),
    ("sampling", &["error", "gguf::meta"]),
    ("hub", &["error"]),
    ("cli", &["*"]),
    ("lib", &["*"]),
    ("main", &["*"]),
];

/// Names by which one module is reached through another's re-exports.
const ALIASES: &[(&str, &str)] = &[
    ("Error", "error"),
    ("Result", "error"),
    // What keeps strings alive that metadata only points to.
    ("gguf::FileBytes", "gguf::meta"),
    ("gguf::Metadata", "gguf::meta"),
    ("gguf::StrArray", "gguf::meta"),
    ("gguf::Value", "gguf::meta"),
];

/// Files under `src` (or folders, ending in `/`) that may hold `unsafe`.
const MAY_BE_UNSAFE: &[&str] = &[
    "gguf/mmap.rs",
    "quant/block.rs",
    "backend/cuda/",
    "backend/cpu/pool.rs",
    "backend/cpu/buffer.rs",
    "backend/cpu/view.rs",
    "backend/cpu/simd.rs",
    "backend/cpu/simd_",
    "backend/cpu/matmul/",
    "cli/interrupt.rs",
];

const MOST_LINES: usize = 400;

/// Everything wrong with one file; `name` is its path below `src`.
fn faults(name: &str, source: &str) -> Vec<String> {
    let code = without_comments_and_strings(source);
    let mut faults = Vec::new();
    let lines = source.lines().count();
    if lines > MOST_LINES {
        faults.push(format!("{name}: {lines} lines, more than {MOST_LINES}"));
    }
    for (number, line) in code.lines().enumerate() {
        if has_word(line, "unsafe") && !may_be_unsafe(name, line) {
            faults.push(format!(
                "{name}:{}: unsafe does not belong here",
                number + 1
            ));
        }
    }
    let module = module_of(name);
    // Unit tests, last in a file, may open files and build what they need.
    // Also a whole file that exists for tests only.
    let code = code.replace("#![cfg(test)]", "#[cfg(test)]");
    let product = code.split("#[cfg(test)]").next().unwrap_or_default();
    for path in imports(&module, product) {
        if let Some(fault) = forbidden(&module, &path) {
            faults.push(format!("{name}: {fault}"));
        }
    }
    faults
}

fn may_be_unsafe(name: &str, line: &str) -> bool {
    let block_impl = name.starts_with("quant/") && line.trim().starts_with("unsafe impl Block for");
    block_impl || MAY_BE_UNSAFE.iter().any(|place| name.starts_with(place))
}

/// Why `module` may not import `path` (segments from the crate's root).
fn forbidden(module: &[String], path: &[String]) -> Option<String> {
    let mut target = path.join("::");
    if let Some((_, real)) = ALIASES.iter().find(|(name, _)| under(&target, name)) {
        target = real.to_string();
    }
    let module = module.join("::");
    let rule = MAY_IMPORT
        .iter()
        .filter(|(prefix, _)| under(&module, prefix))
        .max_by_key(|(prefix, _)| prefix.len());
    let Some((prefix, allowed)) = rule else {
        return Some(format!("module {module} is in no row of MAY_IMPORT"));
    };
    let own = prefix.split("::").next().unwrap_or_default();
    let planner = under(&target, "memory::planner") && own == "memory" && *prefix == "memory";
    let fine =
        (under(&target, own) && !planner) || allowed.iter().any(|a| *a == "*" || under(&target, a));
    (!fine).then(|| format!("{prefix} may not import {target}"))
}

/// True when `path` is `prefix` or lies below it.
fn under(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// `memory/kv.rs` is `[memory, kv]`, `memory/mod.rs` is `[memory]`.
fn module_of(name: &str) -> Vec<String> {
    let stem = name.trim_end_matches(".rs").trim_end_matches("/mod");
    stem.split('/').map(str::to_string).collect()
}

/// Paths from the crate's root that `code` names, by `crate::` or by enough `super::`.
fn imports(module: &[String], code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        if !code[..at].ends_with(is_ident) {
            tree(&code[at + "crate::".len()..], &[], &mut found);
        }
    }
    for (at, _) in code.match_indices("super::") {
        if code[..at].ends_with(is_ident) || code[..at].ends_with("super::") {
            continue;
        }
        let mut rest = &code[at..];
        let mut base = module.to_vec();
        while let Some(after) = rest.strip_prefix("super::") {
            rest = after;
            base.pop();
        }
        tree(rest, &base, &mut found);
    }
    found
}

/// Reads a use tree such as `a::{b, c::*}`; returns the bytes read.
fn tree(text: &str, base: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let start = text.len() - text.trim_start().len();
    let rest = &text[start..];
    if rest.starts_with('{') {
        let mut at = start + 1;
        loop {
            at += tree(&text[at..], base, found);
            let left = &text[at..];
            let next = left.find([',', '}']).unwrap_or(left.len());
            at += (next + 1).min(left.len());
            let inside = text[at..].trim_start();
            if left[next..].starts_with('}') || inside.is_empty() {
                return at;
            }
            if inside.starts_with('}') {
                return at + text[at..].find('}').unwrap_or(0) + 1;
            }
        }
    }
    let len = rest.find(|c| !is_ident(c)).unwrap_or(rest.len());
    let mut path = base.to_vec();
    if len > 0 && &rest[..len] != "self" {
        path.push(rest[..len].to_string());
    }
    match rest[len..].strip_prefix("::") {
        Some(below) if len > 0 && !below.starts_with('<') => {
            start + len + 2 + tree(below, &path, found)
        }
        _ => {
            found.push(path);
            start + len
        }
    }
}

fn is_ident(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_ident) && !line[at + word.len()..].starts_with(is_ident)
    })
}

/// The source with comments, strings and characters blanked, lines kept.
fn without_comments_and_strings(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(c) = rest.chars().next() {
        let len = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => block_comment(rest),
            '"' => string(rest),
            'r' if !out.ends_with(is_ident) => raw_string(rest),
            '\'' => character(rest),
            _ => 0,
        };
        if len == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            out.extend(rest[..len].chars().filter(|&c| c == '\n'));
            out.push(' ');
            rest = &rest[len..];
        }
    }
    out
}

fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if text[at..].starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

fn string(text: &str) -> usize {
    let mut escaped = true; // the opening quote does not close
    for (at, c) in text.char_indices() {
        match c {
            '"' if !escaped => return at + 1,
            '\\' if !escaped => escaped = true,
            _ => escaped = false,
        }
    }
    text.len()
}

fn raw_string(text: &str) -> usize {
    let hashes = text[1..].len() - text[1..].trim_start_matches('#').len();
    if !text[1 + hashes..].starts_with('"') {
        return 0;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    let body = hashes + 2;
    text[body..]
        .find(&close)
        .map_or(text.len(), |at| body + at + close.len())
}

/// Length of a character literal, 0 for a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match chars.next() {
        Some((_, '\\')) => text[3..].find('\'').map_or(0, |at| at + 4),
        Some(_) => match chars.next() {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        None => 0,
    }
}

/// Every `.rs` file below `dir`, in order.
fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("the folder is readable") {
        let path = entry.expect("the entry is readable").path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn sources_keep_to_the_architecture() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = rust_files(&src);
    assert!(files.iter().any(|f| f.ends_with("lib.rs")));
    let mut wrong = Vec::new();
    for file in files {
        let source = std::fs::read_to_string(&file).expect("sources are UTF-8");
        let name = file.strip_prefix(&src).expect("found below src");
        wrong.extend(faults(&name.to_string_lossy().replace('\\', "/"), &source));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn tests_are_short_enough() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for file in rust_files(&root.join("tests")) {
        let lines = std::fs::read_to_string(&file).unwrap().lines().count();
        assert!(lines <= MOST_LINES, "{}: {lines} lines", file.display());
    }
}

/// The checks themselves: each bad source is caught, each good one passes.
#[test]
fn the_checks_can_fail() {
    let bad = [
        ("quant/q4_k.rs", "use crate::graph::Tensor;"),
        ("arch/llama.rs", "fn f() { crate::backend::cpu::run() }"),
        ("arch/llama.rs", "use crate::gguf::{Metadata, parse::Gguf};"),
        ("graph/op.rs", "use crate::{error::Result, arch::Hparams};"),
        (
            "graph/op.rs",
            "use crate::{\n    quant::{DType, Block},\n    model::Model,\n};",
        ),
        ("memory/kv.rs", "use crate::model::Model;"),
        ("memory/kv.rs", "use super::planner::Plan;"),
        ("tokenizer/bpe.rs", "use super::super::session::Session;"),
        ("tokenizer/mod.rs", "use super::chat::stop;"),
        ("sampling/chain.rs", "fn f(t: &crate::graph::Tensor) {}"),
        (
            "quant/mod.rs",
            "macro_rules! m { () => { $crate::cli::x() } }",
        ),
        ("new_room.rs", "use crate::error::Result;"),
        ("graph/op.rs", "let x = 'u'; unsafe { f() }"),
        ("graph/op.rs", "let x = '\"'; unsafe { f() } // \""),
        ("quant/q4_k.rs", "unsafe impl Send for X {}"),
        ("session.rs", "fn f<'a>(x: &'a u8) { unsafe { g() } }"),
    ];
    for (name, source) in bad {
        assert_eq!(faults(name, source).len(), 1, "{name}: {source}");
    }
    assert_eq!(faults("error.rs", &"\n".repeat(MOST_LINES + 1)).len(), 1);
    let good = [
        ("cli/chat.rs", "use crate::{session::Session, tokenizer};"),
        (
            "memory/planner.rs",
            "use crate::model::Model; use super::kv::Kv;",
        ),
        ("memory/mod.rs", "pub mod planner;"),
        (
            "arch/mod.rs",
            "use crate::gguf::meta::Metadata; use crate::Result;",
        ),
        ("backend/cpu/pool.rs", "unsafe impl Sync for X {}"),
        ("backend/cpu/simd_avx2.rs", "unsafe { f() }"),
        ("quant/q4_k.rs", "unsafe impl Block for Q4K {}"),
        (
            "graph/op.rs",
            "// unsafe crate::cli\n/* crate::cli /* */ unsafe */",
        ),
        (
            "graph/op.rs",
            "let s = \"unsafe \\\" crate::cli\"; let r = r#\"crate::cli\"#;",
        ),
        (
            "graph/op.rs",
            "#[cfg(test)]\nmod tests { use crate::model::Model; }",
        ),
        (
            "graph/op.rs",
            "use super::tensor::Shape; use mycrate::cli; fn not_unsafe() {}",
        ),
    ];
    for (name, source) in good {
        assert_eq!(faults(name, source), [""; 0], "{name}: {source}");
    }
}
