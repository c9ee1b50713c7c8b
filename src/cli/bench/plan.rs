//! Which tests there are, and which share a session.

use super::args::BenchArgs;
use std::fmt;

/// What a test evaluates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A prompt of so many tokens.
    Prefill(usize),
    /// So many tokens of each sequence, one at a time.
    Decode(usize),
}

/// One test; its name is as in llama-bench.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Test {
    pub kind: Kind,
    /// Tokens in the context at the start.
    pub n_depth: usize,
    /// Sequences side by side.
    pub n_seqs: usize,
}

impl Test {
    /// Tokens that each sequence has before a run is timed. A decode test starts after
    /// at least one token, as a reply does.
    pub fn start(&self) -> usize {
        match self.kind {
            Kind::Prefill(_) => self.n_depth,
            Kind::Decode(_) => self.n_depth.max(1),
        }
    }

    /// Tokens of a run for each sequence.
    pub fn n_tokens(&self) -> usize {
        match self.kind {
            Kind::Prefill(n) | Kind::Decode(n) => n,
        }
    }

    /// Context that it needs.
    pub fn n_ctx(&self) -> usize {
        self.start().saturating_add(self.n_tokens())
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Kind::Prefill(n) => write!(f, "pp{n}")?,
            Kind::Decode(n) => write!(f, "tg{n}")?,
        }
        if self.n_seqs > 1 {
            write!(f, " x{}", self.n_seqs)?;
        }
        match self.n_depth {
            0 => Ok(()),
            n => write!(f, " @ d{n}"),
        }
    }
}

/// The tests in order, those of as many sequences together: they share a session.
/// Prompts are of one sequence.
pub fn groups(args: &BenchArgs) -> Vec<Vec<Test>> {
    let test = |kind, n_depth, n_seqs| Test {
        kind,
        n_depth,
        n_seqs,
    };
    let mut counts = args.n_seqs.clone();
    counts.retain(|&n| n > 1);
    counts.insert(0, 1);
    counts.dedup();
    let mut groups = Vec::new();
    for n_seqs in counts {
        let mut group = Vec::new();
        for &n_depth in &args.n_depth {
            if n_seqs == 1 {
                let prompts = args.n_prompt.iter().filter(|&&n| n > 0);
                group.extend(prompts.map(|&n| test(Kind::Prefill(n), n_depth, 1)));
            }
            if args.n_seqs.contains(&n_seqs) {
                let lengths = args.n_gen.iter().filter(|&&n| n > 0);
                group.extend(lengths.map(|&n| test(Kind::Decode(n), n_depth, n_seqs)));
            }
        }
        groups.push(group);
    }
    groups.retain(|group| !group.is_empty());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Command};
    use clap::Parser;

    fn names(flags: &str) -> Vec<Vec<String>> {
        let words = format!("llama-rs bench {flags}");
        let cli = Cli::try_parse_from(words.split_whitespace()).map_err(|e| e.to_string());
        let Command::Bench(args) = cli.expect("parses").command else {
            panic!("not bench");
        };
        let group = |group: &Vec<Test>| group.iter().map(Test::to_string).collect();
        groups(&args).iter().map(group).collect()
    }

    #[test]
    fn tests_are_named_as_in_llama_bench() {
        assert_eq!(names(""), [["pp512", "tg128"]]);
        let deep = names("-p 16,32 -n 4 -d 0,64");
        let want = [
            "pp16",
            "pp32",
            "tg4",
            "pp16 @ d64",
            "pp32 @ d64",
            "tg4 @ d64",
        ];
        assert_eq!(deep, [want]);
    }

    #[test]
    fn sequences_side_by_side_only_decode() {
        let several = names("-p 8 -n 4 --n-parallel 2,1,16 -d 5");
        assert_eq!(several.len(), 3);
        assert_eq!(several[0], ["pp8 @ d5", "tg4 @ d5"]);
        assert_eq!(several[1], ["tg4 x2 @ d5"]);
        assert_eq!(several[2], ["tg4 x16 @ d5"]);
        assert_eq!(names("-p 0 -n 4 --n-parallel 8"), [["tg4 x8"]]);
        assert!(names("-p 0 -n 0").is_empty());
    }
}
