//! Names of the kernels in `cuda-kernels/`, read from the sources.

use llama_rs::quant::DType;
use std::collections::BTreeSet;
use std::path::Path;

const EXTERN: &str = "extern \"C\"";

/// A macro that defines kernels.
struct Macro {
    name: String,
    params: Vec<String>,
    /// Names of kernels, with `##` before a parameter.
    kernels: Vec<String>,
}

fn words(list: &str) -> Vec<String> {
    list.split(',').map(|w| w.trim().to_string()).collect()
}

/// Text in the first pair of brackets, and what follows it.
fn brackets(text: &str) -> Option<(&str, &str)> {
    let open = text.find('(')?;
    let mut depth = 0;
    for (at, c) in text.char_indices().skip_while(|&(at, _)| at < open) {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((&text[open + 1..at], &text[at + 1..]));
        }
    }
    None
}

/// What may stand between `extern "C"` and a kernel's name, with brackets.
const ATTRIBUTES: [&str; 2] = ["__launch_bounds__", "__cluster_dims__"];

/// Names that `extern "C"` declares in `text`.
fn kernels(text: &str) -> Vec<String> {
    let after = text.split(EXTERN).skip(1).filter_map(|mut rest| {
        while let Some((before, _)) = rest.split_once('(')
            && ATTRIBUTES.iter().any(|a| before.ends_with(a))
        {
            rest = brackets(rest)?.1;
        }
        let head = &rest[..rest.find('(')?];
        head.split_whitespace().last().map(str::to_string)
    });
    after.collect()
}

fn macro_of(line: &str) -> Option<Macro> {
    let rest = line.strip_prefix("#define ")?;
    let kernels = kernels(rest);
    let (params, _) = brackets(rest)?;
    (!kernels.is_empty()).then(|| Macro {
        name: rest[..rest.find('(').unwrap_or(0)].to_string(),
        params: words(params),
        kernels,
    })
}

impl Macro {
    /// Names of the kernels that an invocation with `args` defines.
    fn expand<'a>(&'a self, args: &'a [String]) -> impl Iterator<Item = String> + 'a {
        self.kernels.iter().map(move |name| {
            let params = self.params.iter().zip(args);
            params.fold(name.clone(), |name, (param, arg)| {
                match name.strip_suffix(&format!("##{param}")) {
                    Some(stem) => format!("{stem}{arg}"),
                    None => name,
                }
            })
        })
    }
}

/// Every `extern "C"` kernel of the `.cu` files in `folder`.
pub fn entries(folder: &Path) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for entry in std::fs::read_dir(folder).expect("cuda-kernels") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|e| e != "cu") {
            continue;
        }
        let source = std::fs::read_to_string(&path).expect("a source file");
        let source = source.replace("\\\n", " ");
        let (defines, rest): (Vec<&str>, Vec<&str>) =
            source.lines().partition(|l| l.starts_with("#define"));
        let macros: Vec<Macro> = defines.into_iter().filter_map(macro_of).collect();
        all.extend(kernels(&rest.join("\n")));
        for line in rest {
            let Some((args, _)) = brackets(line) else {
                continue;
            };
            let called = &line[..line.find('(').unwrap_or(0)];
            for m in &macros {
                // As build.rs has these lists.
                let left_out: Option<&[DType]> = match called {
                    "FOR_EACH_TYPE" => Some(&[]),
                    "FOR_EACH_F16_TYPE" => Some(&[DType::F32]),
                    "FOR_EACH_LONE_TYPE" => Some(&[DType::F32, DType::Q4K, DType::Q6K]),
                    _ => None,
                };
                if let Some(left_out) = left_out.filter(|_| args == m.name) {
                    for &dtype in DType::ALL {
                        if dtype != DType::I32 && !left_out.contains(&dtype) {
                            all.extend(m.expand(&[dtype.name().to_string()]));
                        }
                    }
                } else if called == m.name {
                    all.extend(m.expand(&words(args)));
                }
            }
        }
    }
    all
}
