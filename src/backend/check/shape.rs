//! Shapes as text: `200000,16`, `q4_K:4096,14336,8`, `d_state=128,head_dim=64`.

use crate::error::{Error, Result};
use crate::quant::DType;

/// Largest extent: far beyond any model, and products of two do not overflow.
const MOST: usize = 1 << 28;

/// Longest shape that is read, and named in errors.
const MOST_TEXT: usize = 200;

/// A shape of an op as a user gives it: numbers in the order that the op names, or
/// `name=number` pairs, both separated by commas; before numbers may stand a kind
/// (`q4_K:`), such as the type of a matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct ShapeText {
    text: String,
    kind: Option<String>,
    /// Name (none for plain numbers) and value.
    numbers: Vec<(Option<String>, usize)>,
}

impl ShapeText {
    /// Reads a shape.
    ///
    /// # Errors
    /// A number is missing, not from 1 to 2^28, or named in part only.
    pub fn parse(text: &str) -> Result<ShapeText> {
        if text.len() > MOST_TEXT {
            return Err(Error::input(format!(
                "a shape of {} characters; write numbers as 4096,512",
                text.len()
            )));
        }
        let (kind, rest) = match text.split_once(':') {
            Some((kind, rest)) => (Some(kind.trim().to_string()), rest),
            None => (None, text),
        };
        let mut numbers: Vec<(Option<String>, usize)> = Vec::new();
        for part in rest.split(',') {
            let (name, value) = match part.split_once('=') {
                Some((name, value)) => (Some(name.trim().to_string()), value),
                None => (None, part),
            };
            let value = value.trim().parse().ok();
            let Some(value) = value.filter(|v| (1..=MOST).contains(v)) else {
                return Err(Error::input(format!(
                    "shape {text:?}: {part:?} is not a whole number from 1 to {MOST}; \
                     write numbers as 4096,512 or name=number pairs"
                )));
            };
            if numbers.first().is_some_and(|(n, _)| n.is_some()) != name.is_some()
                && !numbers.is_empty()
            {
                return Err(Error::input(format!(
                    "shape {text:?}: {part:?} differs from what stands before it; name \
                     all numbers or none"
                )));
            }
            if name.is_some() && numbers.iter().any(|(n, _)| *n == name) {
                return Err(Error::input(format!(
                    "shape {text:?}: {part:?} is there twice; give each name once"
                )));
            }
            numbers.push((name, value));
        }
        Ok(ShapeText {
            text: text.to_string(),
            kind,
            numbers,
        })
    }

    /// The shape as it was given.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn wrong(&self, op: &str, why: &str, form: &str) -> Error {
        Error::input(format!(
            "{op}: shape {:?}: {why}; {op} takes {form}",
            self.text
        ))
    }

    /// One to four plain numbers, padded with 1. `form` says what `op` takes.
    ///
    /// # Errors
    /// They are named, too many, or have a kind before them.
    pub fn tensor(&self, op: &str, form: &str) -> Result<[usize; 4]> {
        if self.kind.is_some() || self.numbers.iter().any(|(name, _)| name.is_some()) {
            return Err(self.wrong(op, "not plain numbers", form));
        }
        if self.numbers.len() > 4 {
            return Err(self.wrong(op, "more than four numbers", form));
        }
        let ne = |i: usize| self.numbers.get(i).map_or(1, |n| n.1);
        Ok(std::array::from_fn(ne))
    }

    /// The values of `names`, given in this order or by name; one with a default may be
    /// left out.
    ///
    /// # Errors
    /// One is missing, or one is there that the op does not know.
    pub fn numbers<const N: usize>(
        &self,
        op: &str,
        form: &str,
        names: [(&str, Option<usize>); N],
    ) -> Result<[usize; N]> {
        let by_name = self.numbers.iter().all(|(name, _)| name.is_some());
        let known = |name: &Option<String>| names.iter().any(|n| Some(n.0) == name.as_deref());
        if by_name && let Some((Some(name), _)) = self.numbers.iter().find(|n| !known(&n.0)) {
            return Err(self.wrong(op, &format!("{name:?} is unknown"), form));
        }
        if self.numbers.len() > N {
            return Err(self.wrong(op, "too many numbers", form));
        }
        let mut values = [0; N];
        for (i, (name, default)) in names.into_iter().enumerate() {
            let given = match by_name {
                true => self.numbers.iter().find(|n| n.0.as_deref() == Some(name)),
                false => self.numbers.get(i),
            };
            let value = given.map(|n| n.1).or(default);
            values[i] = value.ok_or_else(|| self.wrong(op, &format!("no {name}"), form))?;
        }
        Ok(values)
    }

    /// The kind before the colon among `kinds`, whatever its case; the first one
    /// when there is none.
    ///
    /// # Errors
    /// It is none of them: the list.
    pub fn kind<T: Copy>(&self, op: &str, kinds: &[(String, T)]) -> Result<T> {
        let found = match &self.kind {
            None => kinds.first(),
            Some(kind) => kinds.iter().find(|k| k.0.eq_ignore_ascii_case(kind)),
        };
        found.map(|k| k.1).ok_or_else(|| {
            let names: Vec<&str> = kinds.iter().map(|k| k.0.as_str()).collect();
            let kind = self.kind.as_deref().unwrap_or_default();
            Error::input(format!(
                "{op}: shape {:?}: no kind {kind:?}; there are {}",
                self.text,
                names.join(", ")
            ))
        })
    }

    /// The type of a weight of rows of `k` values, F16 when none is given.
    ///
    /// # Errors
    /// No such type, or `k` is not a multiple of its block.
    pub fn weight_type(&self, op: &str, k: usize) -> Result<DType> {
        let types = DType::ALL.iter().filter(|&&d| d != DType::I32);
        let mut types: Vec<_> = types.map(|&d| (d.name().to_string(), d)).collect();
        types.sort_by_key(|t| t.1 != DType::F16);
        let dtype = self.kind(op, &types)?;
        match k.is_multiple_of(dtype.block_len()) {
            true => Ok(dtype),
            false => Err(Error::input(format!(
                "{op}: shape {:?}: rows of {k} values; those of {} are multiples of {}",
                self.text,
                dtype.name(),
                dtype.block_len()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ShapeText {
        ShapeText::parse(text).expect(text)
    }

    #[test]
    fn numbers_kinds_and_names_are_read() {
        assert_eq!(
            read("200000,16").tensor("CUMSUM", ""),
            Ok4([200000, 16, 1, 1])
        );
        let product = read("q4_K:4096,14336,8");
        let names = [("k", None), ("m", None), ("n", Some(1))];
        assert_eq!(product.numbers("MUL_MAT", "", names), Ok4([4096, 14336, 8]));
        assert_eq!(product.weight_type("MUL_MAT", 4096).ok(), Some(DType::Q4K));
        assert_eq!(read("4096,8").weight_type("", 1).ok(), Some(DType::F16));
        let named = read("m=5, k=3");
        assert_eq!(named.numbers("MUL_MAT", "", names), Ok4([3, 5, 1]));
    }

    /// What [`assert_eq`] compares results with: errors have no equality.
    struct Ok4<const N: usize>([usize; N]);

    impl<const N: usize> PartialEq<Ok4<N>> for Result<[usize; N]> {
        fn eq(&self, other: &Ok4<N>) -> bool {
            self.as_ref().is_ok_and(|v| *v == other.0)
        }
    }

    impl<const N: usize> std::fmt::Debug for Ok4<N> {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.0.fmt(f)
        }
    }

    #[test]
    fn bad_shapes_are_one_line_that_says_what() {
        for (text, part) in [
            ("", "\"\""),
            ("12,", "\"\""),
            ("0", "\"0\""),
            ("-4", "\"-4\""),
            ("99999999999999999999", "99999999999999999999"),
            ("300000000", "300000000"),
            ("4096,x", "\"x\""),
            ("k=", "\"k=\""),
            ("k=1,2", "\"2\""),
            ("k=1,k=2", "twice"),
        ] {
            let error = ShapeText::parse(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn shapes_that_an_op_does_not_take_say_what_it_takes() {
        let form = "k,m,n";
        let names = [("k", None), ("m", None), ("n", None)];
        for (text, part) in [
            ("5,5", "no n"),
            ("5,5,5,5", "too many"),
            ("k=1,m=2,q=3", "\"q\" is unknown"),
            ("k=1,m=2", "no n"),
        ] {
            let error = read(text).numbers("MUL_MAT", form, names);
            let error = error.expect_err(text).to_string();
            assert!(error.contains(part) && error.contains(form), "{error}");
        }
        assert!(read("q4_K:5").tensor("CUMSUM", "").is_err());
        assert!(read("1,1,1,1,1").tensor("CUMSUM", "").is_err());
        let error = read("q9:256").weight_type("MUL_MAT", 256).expect_err("q9");
        assert!(error.to_string().contains("Q4_K"), "{error}");
        let error = read("q4_k:100").weight_type("MUL_MAT", 100);
        assert!(error.expect_err("100").to_string().contains("256"));
    }
}
