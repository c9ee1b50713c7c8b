//! Texts under GBNF.

use super::*;

/// Grammars over few characters, so that random texts often fit.
const GRAMMARS: [&str; 9] = [
    "root ::= \"a\"",
    "root ::= (\"a\" | \"b\"*)* \"+\"",
    "root ::= ((\"a\"*)*)*",
    "root ::= \"(\" root \")\" root | \"\"",
    "root ::= t (\"+\" t)*\nt ::= \"a\" | \"(\" root \")\"",
    "root ::= x x? \"b\"\nx ::= \"a\" x | \"a\" x x | \"a\"",
    "root ::= \"a\"{2,4} \"b\"{1,} \"a\"{0,1}",
    "root ::= [^a+]+ | [ab]* \"aab\"",
    "root ::= x | \"a\" y\nx ::= \"a\" x \"b\" | \"\"\ny ::= \"a\" x y | \"b\"?",
];

#[test]
fn takes_what_a_plain_search_takes() {
    let mut rng = Rng::new(5);
    let mut n_taken = 0;
    for text in GRAMMARS {
        let grammar = gbnf(text);
        for _ in 0..300 {
            let n = rng.next_u64() % 7;
            let bytes = (0..n).map(|_| b"aab+()"[rng.next_u64() as usize % 6]);
            let bytes: Vec<u8> = bytes.collect();
            let taken = takes(&grammar, &bytes);
            assert_eq!(
                taken,
                plain_search(text, &bytes),
                "{text}: {}",
                bytes.escape_ascii()
            );
            n_taken += usize::from(taken);
        }
    }
    assert!(
        n_taken > 100,
        "only {n_taken} fit: the texts test too little"
    );
}

#[test]
fn every_text_that_is_made_fits() {
    for text in GRAMMARS {
        let grammar = gbnf(text);
        for seed in 0..40 {
            let made = random_text(&grammar, seed, b")ba");
            assert!(plain_search(text, &made), "{text}: {}", made.escape_ascii());
        }
    }
}

#[test]
fn at_the_end_only_end_tokens_are_allowed() {
    let grammar = gbnf("root ::= \"yes\" | \"ab\" \"a\"?");
    let mut matcher = Matcher::new(grammar.clone()).unwrap();
    // `yes` is token 257, `ab` 258.
    let bytes = [u32::from(b'a'), u32::from(b'y'), 257, 258];
    assert_eq!(allowed(&mut matcher, &grammar), bytes);
    assert!(!matcher.may_end());
    matcher.accept(258);
    assert_eq!(allowed(&mut matcher, &grammar), [u32::from(b'a'), END]);
    assert!(matcher.may_end());
    matcher.accept(END);
    matcher.accept(b'a'.into());
    assert_eq!(allowed(&mut matcher, &grammar), [END]);
    matcher.reset();
    assert_eq!(allowed(&mut matcher, &grammar), bytes);
    matcher.accept(b'z'.into());
    assert!(allowed(&mut matcher, &grammar).is_empty());
    assert!(!matcher.may_end());
}

#[test]
fn characters_may_be_split_over_tokens() {
    let grammar = gbnf("root ::= \"🦀\" [à-ï]");
    let mut matcher = Matcher::new(grammar.clone()).unwrap();
    // A crab is F0 9F A6 80; token 263 is F0 9F, 264 is A6 80 C3.
    assert_eq!(allowed(&mut matcher, &grammar), [0xF0, 263]);
    matcher.accept(263);
    assert_eq!(allowed(&mut matcher, &grammar), [0xA6, 264]);
    matcher.accept(264);
    // à to ï are C3 A0 to C3 AF.
    let last: Vec<u32> = (0xA0..=0xAF).collect();
    assert_eq!(allowed(&mut matcher, &grammar), last);
    matcher.accept(0xA9);
    assert_eq!(allowed(&mut matcher, &grammar), [END]);
    let any = gbnf("root ::= .");
    for (text, fits) in [("🦀", true), ("é", true), ("ab", false), ("", false)] {
        assert_eq!(takes(&any, text.as_bytes()), fits, "{text}");
    }
    // An overlong slash and half of a surrogate pair are no UTF-8.
    assert!(!takes(&any, b"\xC0\xAF") && !takes(&any, b"\xED\xA0\x80"));
}

/// Takes `n` times `text`, as far as it is allowed, in bounded time.
fn long(grammar: &str, text: &str, n: usize) -> usize {
    let grammar = gbnf(grammar);
    let mut matcher = Matcher::new(grammar).unwrap();
    let started = Instant::now();
    let mut taken = 0;
    for byte in text.bytes().cycle().take(n * text.len()) {
        if !matcher.mask().unwrap().has(byte.into()) {
            break;
        }
        matcher.accept(byte.into());
        taken += 1;
    }
    // Some tenths of a second here, unoptimised and with others at work.
    assert!(started.elapsed() < Duration::from_secs(20));
    taken
}

#[test]
fn long_and_ambiguous_texts_stay_cheap() {
    for nested in ["(\"a\"*)*", "((\"a\"*)*)*", "(\"a\"* | \"b\"+)+"] {
        assert_eq!(long(&format!("root ::= {nested}"), "a", 10_000), 10_000);
    }
    // As many ways to read it as there are binary trees.
    assert_eq!(
        long("root ::= \"a\" root | \"a\" root root | \"a\"", "a", 500),
        500
    );
    assert_eq!(
        long("root ::= x*\nx ::= \"a\"? \"a\"? (\"a\" x)?", "a", 500),
        500
    );
    // No deeper than the limit, but no overflow.
    let deep = long("root ::= \"(\" root \")\" | \"\"", "(", 60_000);
    assert!((900..1100).contains(&deep), "{deep}");
    // Lists by recursion at the end nest nothing.
    assert_eq!(long("root ::= \"a\" (\"+\" root)?", "a+", 5000), 10_000);
}

#[test]
fn what_is_forgotten_on_the_way_changes_nothing() {
    // Every count is a set of its own, with a row for each: more than are kept.
    let grammar = gbnf("root ::= [ab]{0,9000} \"+\"");
    let mut matcher = Matcher::new(grammar.clone()).unwrap();
    for n in 0..9000 {
        let id = if n % 3 == 0 { b'a' } else { b'b' };
        assert!(matcher.mask().unwrap().has(id.into()), "{n}");
        matcher.accept(id.into());
    }
    assert_eq!(allowed(&mut matcher, &grammar), [u32::from(b'+')]);
}

#[test]
fn one_that_is_too_ambiguous_is_an_error_in_time() {
    // Each of 150 rules may begin with any of those after it, at many places.
    let rule = |i: usize| {
        let calls: Vec<String> = (i + 1..150).map(|j| format!("r{j} r{i}")).collect();
        format!("r{i} ::= \"a\" | \"b\" r0 | {}\n", calls.join(" | "))
    };
    let rules: String = (0..149).map(rule).collect();
    let text = format!("root ::= r0*\n{rules}r149 ::= \"a\" | \"b\" r0\n");
    let started = Instant::now();
    let grammar = gbnf(&text);
    let mut ended = 0;
    if let Ok(mut matcher) = Matcher::new(grammar) {
        for byte in b"babbabbb".iter().cycle().take(60) {
            match matcher.mask() {
                Ok(_) => matcher.accept((*byte).into()),
                Err(error) => {
                    assert!(
                        error.to_string().starts_with("grammar: too many"),
                        "{error}"
                    );
                    break;
                }
            }
            ended += 1;
        }
    }
    assert!(started.elapsed() < Duration::from_secs(60), "{ended}");
}
