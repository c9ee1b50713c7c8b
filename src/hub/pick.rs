//! Which model of a repository is meant.

use super::name::{What, is_gguf};
use std::collections::BTreeMap;

/// What is taken when nothing is named, the first that is there. Q4_K_M is the usual
/// compromise of size, speed and quality. Then come the others of four bits, those with the
/// least loss first; then more bits, fewest first, which cost memory but no quality; then
/// three bits and fewer, where quality falls; last the unquantized, several times as large.
const ORDER: [&str; 49] = [
    "Q4_K_M", "Q4_K_L", "Q4_K_XL", "Q4_K_S", "Q4_K", "IQ4_NL", "IQ4_XS", "Q4_1", "Q4_0", "MXFP4",
    "NVFP4", "Q5_K_M", "Q5_K_L", "Q5_K_XL", "Q5_K_S", "Q5_K", "Q5_1", "Q5_0", "Q6_K", "Q6_K_L",
    "Q6_K_XL", "Q8_0", "Q8_K_XL", "Q3_K_XL", "Q3_K_L", "Q3_K_M", "IQ3_M", "Q3_K_S", "Q3_K",
    "IQ3_S", "IQ3_XS", "IQ3_XXS", "Q2_K_XL", "Q2_K_L", "Q2_K", "Q2_K_S", "IQ2_M", "IQ2_S",
    "IQ2_XS", "IQ2_XXS", "TQ2_0", "IQ1_M", "TQ1_0", "IQ1_S", "Q2_0", "Q1_0", "BF16", "F16", "F32",
];

/// GGUF files that are no language models: image projectors and importance matrices.
const NOT_MODELS: [&str; 2] = ["mmproj", "imatrix"];

/// One model: a file, or the files it is split over, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Paths in the repository.
    pub files: Vec<String>,
    /// False when some of the files it is split over are missing.
    pub complete: bool,
}

impl Model {
    /// The path of the first file.
    pub fn name(&self) -> &str {
        &self.files[0]
    }

    /// True when it can be meant: for a file by any of its files, else by a word of the name.
    pub fn is(&self, what: &What) -> bool {
        is_meant(self.name(), what)
    }
}

/// True when the file, or the model that it is a part of, can be meant.
pub fn is_meant(path: &str, what: &What) -> bool {
    match what {
        What::Best => true,
        What::Quant(quant) => has_word(path, quant) && can_run(path),
        What::File(file) => part(path).0 == part(file).0,
    }
}

/// True for a word that names a quantization, perhaps with more, such as `UD-Q4_K_XL`.
pub fn is_quant(word: &str) -> bool {
    ORDER.iter().any(|quant| has_word(word, quant))
}

/// Groups the GGUF files among `paths` into models, sorted by name.
pub fn models<'a>(paths: impl Iterator<Item = &'a str>) -> Vec<Model> {
    let mut groups: BTreeMap<(String, usize), BTreeMap<usize, String>> = BTreeMap::new();
    for path in paths.filter(|path| is_gguf(path)) {
        let ((stem, count), no) = part(path);
        let group = groups.entry((stem.to_string(), count)).or_default();
        group.insert(no, path.to_string());
    }
    let groups = groups.into_iter();
    groups
        .map(|((_, count), files)| Model {
            complete: files.keys().copied().eq(1..=count),
            files: files.into_values().collect(),
        })
        .collect()
}

/// What a file is a part of, a stem and a number of files, and which part it is.
fn part(path: &str) -> ((&str, usize), usize) {
    let (stem, no, count) = shard(path).unwrap_or((path, 1, 1));
    ((stem, count), no)
}

/// `STEM-00002-of-00003.gguf` as stem, 2 and 3.
fn shard(path: &str) -> Option<(&str, usize, usize)> {
    const DIGITS: usize = 5;
    let number = |text: &str| {
        let digits = text.len() == DIGITS && text.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| text.parse().ok())?
    };
    let (stem, _) = path.rsplit_once('.')?;
    let (stem, count) = stem.rsplit_once("-of-")?;
    let (stem, no) = stem.rsplit_once('-')?;
    let (no, count): (usize, usize) = (number(no)?, number(count)?);
    (1..=count).contains(&no).then_some((stem, no, count))
}

/// False for the GGUF files beside a model that cannot be run.
pub fn can_run(path: &str) -> bool {
    let name = file_name(path).to_ascii_lowercase();
    !NOT_MODELS.iter().any(|word| name.contains(word))
}

/// The model that is meant: the preferred one where nothing is named, or the only one. Of
/// several that fit equally, the one with the shortest path. What cannot be run is only
/// taken where exactly that file is named.
pub fn pick<'a>(models: &'a [Model], what: &What) -> Option<&'a Model> {
    let named = matches!(what, What::File(_));
    let usable: Vec<&Model> = models
        .iter()
        .filter(|model| model.complete && (named || can_run(model.name())))
        .collect();
    let first = |what: &What| {
        let fitting = usable.iter().filter(|model| model.is(what));
        fitting
            .min_by_key(|model| (model.name().len(), model.name()))
            .copied()
    };
    if *what != What::Best {
        return first(what);
    }
    let mut order = ORDER.iter();
    let preferred = order.find_map(|quant| first(&What::Quant((*quant).to_string())));
    preferred.or(match usable[..] {
        [only] => Some(only),
        _ => None,
    })
}

/// As [`pick`] from what is in the cache: with nothing named any model is better than none.
pub fn pick_here<'a>(models: &'a [Model], what: &What) -> Option<&'a Model> {
    let usable = models.iter().filter(|m| m.complete && can_run(m.name()));
    let any = usable.min_by_key(|model| (model.name().len(), model.name()));
    pick(models, what).or(any.filter(|_| *what == What::Best))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// True when `word` stands in `text`, in any case, and is not a piece of a longer name:
/// `Q4_K` is none of `IQ4_K` and `Q4_K_M`.
fn has_word(text: &str, word: &str) -> bool {
    let (text, word) = (text.to_ascii_lowercase(), word.to_ascii_lowercase());
    let mut found = text.match_indices(&word);
    found.any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(char::is_alphanumeric)
            && !after.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::{What, models, pick, pick_here};

    fn picked(paths: &[&str], what: &What) -> Option<Vec<String>> {
        let models = models(paths.iter().copied());
        pick(&models, what).map(|model| model.files.clone())
    }

    fn quant(text: &str) -> What {
        What::Quant(text.to_string())
    }

    fn one(path: &str) -> Option<Vec<String>> {
        Some(vec![path.to_string()])
    }

    #[test]
    fn without_a_name_the_nearest_to_q4_k_m() {
        let all = [
            "m-F16.gguf",
            "m-Q8_0.gguf",
            "m-Q4_K_M.gguf",
            "m-Q3_K_M.gguf",
        ];
        assert_eq!(picked(&all, &What::Best), one("m-Q4_K_M.gguf"));
        let rest = ["m-F16.gguf", "m-Q8_0.gguf", "m-Q3_K_M.gguf"];
        assert_eq!(picked(&rest, &What::Best), one("m-Q8_0.gguf"));
        assert_eq!(picked(&["m.gguf", "README.md"], &What::Best), one("m.gguf"));
        assert_eq!(picked(&["a.gguf", "b.gguf"], &What::Best), None);
        assert_eq!(
            picked(&["m-UD-Q4_K_M.gguf", "m-Q4_K_M.gguf"], &What::Best),
            one("m-Q4_K_M.gguf")
        );
    }

    #[test]
    fn of_what_is_here_any_is_better_than_none() {
        let here = |paths: &[&str], what: &What| {
            let models = models(paths.iter().copied());
            pick_here(&models, what).map(|model| model.files.clone())
        };
        let odd = ["mmproj.gguf", "new-b.gguf", "new-a.gguf"];
        assert_eq!(here(&odd, &What::Best), one("new-a.gguf"));
        assert_eq!(here(&odd, &quant("Q8_0")), None);
        let some = ["m-IQ3_XXS.gguf", "m-IQ2_M.gguf", "m-TQ1_0.gguf"];
        assert_eq!(here(&some, &What::Best), one("m-IQ3_XXS.gguf"));
        assert_eq!(here(&some[1..], &What::Best), one("m-IQ2_M.gguf"));
    }

    #[test]
    fn a_quantization_is_a_whole_word_in_any_case() {
        let all = [
            "m-IQ4_XS.gguf",
            "m-Q4_K_M.gguf",
            "m.q4_k_s.gguf",
            "m_Q6_K.gguf",
        ];
        assert_eq!(picked(&all, &quant("q4_k_m")), one("m-Q4_K_M.gguf"));
        assert_eq!(picked(&all, &quant("Q4_K_S")), one("m.q4_k_s.gguf"));
        assert_eq!(picked(&all, &quant("Q6_K")), one("m_Q6_K.gguf"));
        assert_eq!(picked(&all, &quant("Q4_K")), None);
        assert_eq!(picked(&all, &quant("Q4_XS")), None);
    }

    #[test]
    fn what_cannot_be_run_is_only_picked_by_its_name() {
        let all = ["mmproj-m-Q4_K_M.gguf", "m.imatrix.gguf", "m-F16.gguf"];
        assert_eq!(picked(&all, &What::Best), one("m-F16.gguf"));
        assert_eq!(picked(&all, &quant("Q4_K_M")), None);
        assert_eq!(
            picked(&all, &What::File("m.imatrix.gguf".into())),
            one("m.imatrix.gguf")
        );
    }

    #[test]
    fn shards_are_one_model() {
        let all = [
            "q/m-Q8_0-00002-of-00002.gguf",
            "q/m-Q8_0-00001-of-00002.gguf",
        ];
        let both = Some(vec![all[1].to_string(), all[0].to_string()]);
        assert_eq!(picked(&all, &What::Best), both);
        assert_eq!(picked(&all, &What::File(all[0].into())), both);
        assert_eq!(picked(&all[..1], &What::Best), None);
    }
}
