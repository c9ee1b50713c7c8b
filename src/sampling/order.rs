//! Which samplers run, and in what order.

use crate::error::{Error, Result};

/// A sampler that can be named in `--samplers`; the last draw follows them all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplerKind {
    Penalties,
    Dry,
    TopNSigma,
    TopK,
    Typical,
    TopP,
    MinP,
    Xtc,
    Temperature,
}

use SamplerKind as K;

/// Letter of `--sampling-seq`, name of `--samplers`, other spellings of it; in the
/// order that llama.cpp's users know.
const NAMES: [(K, char, &str, &[&str]); 9] = [
    (K::Penalties, 'e', "penalties", &[]),
    (K::Dry, 'd', "dry", &[]),
    (K::TopNSigma, 's', "top_n_sigma", &["top-n-sigma"]),
    (K::TopK, 'k', "top_k", &["top-k"]),
    (
        K::Typical,
        'y',
        "typ_p",
        &["typ-p", "typ", "typical", "typical-p", "typical_p"],
    ),
    (K::TopP, 'p', "top_p", &["top-p", "nucleus"]),
    (K::MinP, 'm', "min_p", &["min-p"]),
    (K::Xtc, 'x', "xtc", &[]),
    (K::Temperature, 't', "temperature", &["temp"]),
];

impl SamplerKind {
    /// All of them, in the order in which they run when nothing is said.
    pub fn default_order() -> Vec<SamplerKind> {
        NAMES.iter().map(|row| row.0).collect()
    }

    /// Reads names separated by `;`, such as `penalties;top_k;temperature`.
    ///
    /// # Errors
    /// A name that is no sampler's.
    pub fn from_names(text: &str) -> Result<Vec<SamplerKind>> {
        let names = text.split(';').map(str::trim).filter(|n| !n.is_empty());
        names
            .map(|name| {
                let row = NAMES.iter().find(|r| r.2 == name || r.3.contains(&name));
                row.map(|row| row.0).ok_or_else(|| {
                    let known: Vec<&str> = NAMES.iter().map(|row| row.2).collect();
                    unknown(name, &known.join(";"))
                })
            })
            .collect()
    }

    /// As [`SamplerKind::from_names`] reads them.
    pub fn to_names(kinds: &[SamplerKind]) -> String {
        let names = kinds.iter().filter_map(|kind| {
            let row = NAMES.iter().find(|row| row.0 == *kind);
            row.map(|row| row.2)
        });
        names.collect::<Vec<_>>().join(";")
    }

    /// Reads letters, such as `edskypmxt`, which is the default.
    ///
    /// # Errors
    /// A letter that is no sampler's.
    pub fn from_letters(text: &str) -> Result<Vec<SamplerKind>> {
        text.chars()
            .map(|letter| {
                let row = NAMES.iter().find(|row| row.1 == letter);
                row.map(|row| row.0).ok_or_else(|| {
                    let known: String = NAMES.iter().map(|row| row.1).collect();
                    unknown(&letter.to_string(), &known)
                })
            })
            .collect()
    }
}

fn unknown(name: &str, known: &str) -> Error {
    Error::input(format!(
        "sampling: {name:?} is no sampler; there are {known}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_letters_mean_the_same() {
        let all = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
        let names = K::from_names(all).unwrap();
        assert_eq!(names, K::default_order());
        assert_eq!(K::to_names(&names), all);
        assert_eq!(names, K::from_letters("edskypmxt").unwrap());
        let others = K::from_names(" temp ; nucleus;;top-k;").unwrap();
        assert_eq!(others, K::from_letters("tpk").unwrap());
        assert_eq!(K::from_names("").unwrap(), []);
    }

    #[test]
    fn unknown_ones_are_errors_that_list_the_known() {
        let text = K::from_names("top_k;tail").unwrap_err().to_string();
        assert!(
            text.contains("\"tail\"") && text.contains("penalties;dry"),
            "{text}"
        );
        let text = K::from_letters("kf").unwrap_err().to_string();
        assert!(
            text.contains("\"f\"") && text.contains("edskypmxt"),
            "{text}"
        );
    }
}
