//! Whole chains.

use super::*;
use crate::sampling::{Grammar, GrammarSource, Vocabulary};

fn sampled(params: SamplingParams, logits: &[f32], n: usize) -> Vec<u32> {
    let mut chain = Chain::new(&params).unwrap();
    (0..n)
        .map(|_| {
            let id = chain.sample(logits).unwrap();
            chain.accept(id);
            id
        })
        .collect()
}

/// All samplers on, seed 1.
fn everything() -> SamplingParams {
    SamplingParams {
        repeat_penalty: 1.1,
        seed: Some(1),
        ..SamplingParams::chat_defaults()
    }
}

#[test]
fn zero_temperature_is_argmax() {
    for temp in [0.0, -1.0, -0.0] {
        let params = SamplingParams {
            temp,
            ..SamplingParams::chat_defaults()
        };
        assert!(Chain::new(&params).unwrap().is_greedy());
        assert_eq!(sampled(params, &[1.0, 9.0, 9.0], 3), [1, 1, 1]);
    }
}

#[test]
fn a_plain_greedy_chain_needs_no_logits() {
    let is_argmax = |params: SamplingParams| Chain::new(&params).unwrap().is_argmax();
    let greedy = SamplingParams::greedy;
    assert!(is_argmax(greedy()));
    assert!(!is_argmax(everything()));
    assert!(!is_argmax(SamplingParams {
        banned: vec![2],
        ..greedy()
    }));
    assert!(!is_argmax(SamplingParams {
        presence_penalty: 1.0,
        ..greedy()
    }));
    let chain = Chain::new(&greedy()).unwrap();
    assert_eq!(chain.choice(Some(7)).unwrap(), 7);
    assert_eq!(chain.choice(None).unwrap_err().exit_code(), 1);
}

#[test]
fn penalties_work_on_greedy() {
    let params = SamplingParams {
        presence_penalty: 2.0,
        ..SamplingParams::greedy()
    };
    assert_eq!(sampled(params, &[1.0, 3.0, 2.0], 3), [1, 2, 0]);
}

#[test]
fn impossible_rows_are_errors() {
    let inf = f32::INFINITY;
    for params in [SamplingParams::greedy(), everything()] {
        let mut chain = Chain::new(&params).unwrap();
        for bad in [&[-inf, -inf][..], &[0.0, f32::NAN], &[0.0, inf], &[]] {
            let message = chain.sample(bad).unwrap_err().to_string();
            assert!(message.starts_with("sampling: "), "{message}");
        }
        assert_eq!(chain.sample(&[-inf, -3.0]).unwrap(), 1);
    }
}

#[test]
fn banned_ids_never_come() {
    for base in [SamplingParams::greedy(), everything()] {
        let params = SamplingParams {
            banned: vec![7, 2, 2],
            ..base
        };
        let ids = sampled(params.clone(), &[0.0, 1.0, 50.0], 200);
        assert!(!ids.contains(&2));
        let params = SamplingParams {
            banned: vec![0, 1, 2],
            ..params
        };
        let mut chain = Chain::new(&params).unwrap();
        assert!(chain.sample(&[0.0, 1.0, 50.0]).is_err());
    }
}

#[test]
fn same_seed_same_tokens() {
    let logits: Vec<f32> = (0..100).map(|i| (i % 17) as f32 / 4.0).collect();
    let mut chain = Chain::new(&everything()).unwrap();
    let mut run = || -> Vec<u32> {
        let mut ids = Vec::new();
        for _ in 0..50 {
            ids.push(chain.sample(&logits).unwrap());
            chain.accept(ids[ids.len() - 1]);
        }
        chain.reset();
        ids
    };
    let first = run();
    assert_eq!(first, run(), "after reset");
    let other = SamplingParams {
        seed: Some(2),
        ..everything()
    };
    assert_ne!(first, sampled(other, &logits, 50));
}

#[test]
fn a_drawn_seed_can_be_used_again() {
    let params = SamplingParams::chat_defaults();
    let chain = Chain::new(&params).unwrap();
    let seed = chain.seed();
    assert!(seed.is_some());
    assert_ne!(seed, Chain::new(&params).unwrap().seed(), "once in 2^32");
    let again = Chain::new(&SamplingParams { seed, ..params }).unwrap();
    assert_eq!(again.seed(), seed);
}

#[test]
fn temperature_applies_after_truncation() {
    // At temp 1 token 1 has 4 % of the best: min-p 0.05 drops it, however
    // hot the temperature that follows.
    let params = SamplingParams {
        temp: 100.0,
        ..everything()
    };
    let logits = [0.04f32, 1.0].map(f32::ln);
    let params = SamplingParams {
        repeat_penalty: 1.0,
        top_p: 1.0,
        ..params
    };
    assert_eq!(sampled(params, &logits, 50), [1; 50]);
}

#[test]
fn describes_itself() {
    assert_eq!(
        Chain::new(&everything()).unwrap().describe(),
        "penalties last 64 repeat 1.1 presence 0 frequency 0, top-k 40, top-p 0.95, \
         min-p 0.05, temp 0.8, dist seed 1"
    );
    let greedy = Chain::new(&SamplingParams::greedy()).unwrap();
    assert_eq!(greedy.describe(), "greedy");
}

#[test]
#[ignore = "timing: run with --release --ignored --nocapture"]
fn time_of_a_large_vocabulary() {
    let mut rng = crate::sampling::rng::Rng::new(5);
    let logits: Vec<f32> = (0..262_144)
        .map(|_| (rng.next_f64() * 20.0) as f32)
        .collect();
    let wide = SamplingParams {
        top_k: 0,
        ..everything()
    };
    let all = SamplingParams {
        top_p: 1.0,
        min_p: 0.0,
        ..wide.clone()
    };
    let cases = [SamplingParams::greedy(), everything(), wide, all];
    for params in cases {
        let mut chain = Chain::new(&params).unwrap();
        let mut best = f64::INFINITY;
        for _ in 0..20 {
            let start = std::time::Instant::now();
            let id = chain.sample(&logits).unwrap();
            best = best.min(start.elapsed().as_secs_f64());
            chain.accept(id);
        }
        println!("{:.3} ms  {}", best * 1e3, chain.describe());
        if params.top_k != 0 || chain.is_greedy() {
            assert!(best < 1e-3, "{best} s");
        }
    }
}

/// All samplers that cut the list, the bias and DRY, too.
fn all_samplers() -> SamplingParams {
    let pieces = (0..100u8).map(|id| vec![id]);
    let mut params = SamplingParams {
        top_n_sigma: 2.0,
        typical_p: 0.9,
        xtc_probability: 0.5,
        dynatemp_range: 0.3,
        logit_bias: vec![(3, 1.0), (4, f32::NEG_INFINITY)],
        vocabulary: Some(Arc::new(Vocabulary::new(pieces, vec![]))),
        ..everything()
    };
    params.dry.multiplier = 0.8;
    params
}

#[test]
fn the_order_is_as_given() {
    let names = |samplers: &str| {
        let params = SamplingParams {
            samplers: SamplerKind::from_letters(samplers).unwrap(),
            ..all_samplers()
        };
        let text = Chain::new(&params).unwrap().describe();
        let words = text.split(", ").map(|part| part.split(' ').next().unwrap());
        words.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(
        names("edskypmxt"),
        "without bias penalties dry top-n-sigma top-k typical top-p min-p xtc temp dist"
    );
    assert_eq!(names("tk"), "without bias temp top-k dist");
    assert_eq!(names(""), "without bias dist");
}

#[test]
fn only_what_changes_logits_comes_before_greedy_and_mirostat() {
    let describe = |change: fn(&mut SamplingParams)| {
        let mut params = all_samplers();
        params.logit_bias.clear();
        params.dry.multiplier = 0.0;
        change(&mut params);
        Chain::new(&params).unwrap().describe()
    };
    let penalties = "penalties last 64 repeat 1.1 presence 0 frequency 0";
    let greedy = describe(|p| p.temp = 0.0);
    assert_eq!(greedy, format!("{penalties}, greedy"));
    let mirostat = describe(|p| p.mirostat = 2);
    assert_eq!(
        mirostat,
        format!("{penalties}, temp 0.8 range 0.3 exponent 1, mirostat 2 tau 5 eta 0.1 seed 1")
    );
    assert!(describe(|p| (p.temp, p.mirostat) = (0.0, 1)).ends_with("greedy"));
}

#[test]
fn biases_count_on_greedy_too() {
    let with = |logit_bias: &[(u32, f32)]| {
        let params = SamplingParams {
            logit_bias: logit_bias.to_vec(),
            ..SamplingParams::greedy()
        };
        assert!(!Chain::new(&params).unwrap().is_argmax());
        sampled(params, &[1.0, 3.0, 2.0], 1)[0]
    };
    // 1 + 2.5 is more than 3; without 1 the best is 2.
    assert_eq!(with(&[(0, 2.5)]), 0);
    assert_eq!(with(&[(1, f32::NEG_INFINITY)]), 2);
    assert_eq!(with(&[(1, -1.5), (900, 9.0)]), 2);
}

#[test]
fn every_chain_repeats_with_its_seed() {
    let logits: Vec<f32> = (0..100).map(|i| (i % 17) as f32 / 4.0).collect();
    for mirostat in 0..3 {
        for letters in ["edskypmxt", "txmpyksde", "x", "y", "s"] {
            let params = SamplingParams {
                mirostat,
                samplers: SamplerKind::from_letters(letters).unwrap(),
                ..all_samplers()
            };
            let mut chain = Chain::new(&params).unwrap();
            let mut run = || -> Vec<u32> {
                let ids = (0..100).map(|_| {
                    let id = chain.sample(&logits).unwrap();
                    chain.accept(id);
                    id
                });
                let ids = ids.collect();
                chain.reset();
                ids
            };
            let first = run();
            assert_eq!(first, run(), "{letters}, mirostat {mirostat}");
            assert!(!first.contains(&4), "banned by its bias");
        }
    }
}

#[test]
fn extreme_rows_and_settings_give_a_token() {
    let inf = f32::NEG_INFINITY;
    let rows: [&[f32]; 4] = [
        &[f32::MAX, f32::MIN, inf],
        &[0.0; 5],
        &[inf, inf, -1e30],
        &[f32::MIN, f32::MIN],
    ];
    for letters in ["edskypmxt", "txmpyksde"] {
        for mirostat in 0..3 {
            let params = SamplingParams {
                mirostat,
                samplers: SamplerKind::from_letters(letters).unwrap(),
                top_p: 0.0,
                typical_p: 0.0,
                min_p: 1.0,
                top_n_sigma: f32::MIN_POSITIVE,
                xtc_threshold: 0.0,
                xtc_probability: 1.0,
                dynatemp_range: f32::MAX,
                logit_bias: vec![],
                ..all_samplers()
            };
            for row in rows {
                let id = sampled(params.clone(), row, 20)[0] as usize;
                assert!(row[id] > inf, "{letters}: {row:?}");
            }
        }
    }
}

#[test]
fn a_grammar_comes_before_all_samplers() {
    let pieces = ["y", "n", "yes", "z", ""].map(|p| p.as_bytes().to_vec());
    let vocabulary = Arc::new(Vocabulary::new(pieces.into_iter(), vec![4]));
    let source = GrammarSource::Gbnf("root ::= \"n\" | \"yes\"".to_string());
    let grammar = Grammar::new("g", source, vocabulary).unwrap();
    let with = |change: fn(&mut SamplingParams)| {
        let mut params = SamplingParams {
            grammar: Some(Arc::new(grammar)),
            ..SamplingParams::greedy()
        };
        change(&mut params);
        Chain::new(&params).unwrap()
    };
    // z is likeliest by far, y leads to nothing that the vocabulary has.
    let logits = [1.0, 2.0, 3.0, 9.0, 0.0];
    let mut chain = with(|p| p.top_k = 1);
    assert!(!chain.is_argmax());
    assert_eq!(chain.describe(), "grammar, greedy");
    // What is not chosen here is a prompt, also where it looks like the text, and also
    // where it is told in the middle of the text.
    for prompt in [3, 0, 2] {
        chain.accept(prompt);
        assert_eq!(chain.sample(&logits).unwrap(), 2);
        chain.forget();
        chain.accept(2);
        assert_eq!(chain.sample(&logits).unwrap(), 2);
        assert!(!chain.is_whole());
        chain.accept(2);
        assert!(chain.is_whole());
        chain.forget();
        chain.accept(prompt);
        assert_eq!(chain.sample(&logits).unwrap(), 4);
        chain.reset();
    }
    let impossible = [
        f32::NEG_INFINITY,
        f32::NEG_INFINITY,
        f32::NEG_INFINITY,
        9.0,
        0.0,
    ];
    let error = chain.sample(&impossible).unwrap_err().to_string();
    assert!(error.contains("grammar"), "{error}");
}
