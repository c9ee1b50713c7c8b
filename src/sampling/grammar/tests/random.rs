//! Random grammars against a plain search, and random text as a grammar or a schema.

use super::*;
use proptest::prelude::*;

/// The text of an expression over `a`, `b` and the rules `root`, `x`, `y`.
fn expression() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("\"a\"".to_string()),
        Just("\"ab\"".to_string()),
        Just("\"\"".to_string()),
        Just("[ab]".to_string()),
        Just("[^a]".to_string()),
        Just("\"a\" root".to_string()),
        Just("x".to_string()),
        Just("y".to_string()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 1..4).prop_map(|all| all.join(" ")),
            prop::collection::vec(inner.clone(), 2..4)
                .prop_map(|all| format!("({})", all.join(" | "))),
            (
                inner,
                prop::sample::select(vec!["*", "+", "?", "{2}", "{1,2}"])
            )
                .prop_map(|(one, times)| format!("({one}){times}")),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn random_grammars_take_what_a_plain_search_takes(
        root in expression(),
        x in expression(),
        y in expression(),
        texts in prop::collection::vec("[ab]{0,5}", 8),
    ) {
        let text = format!("root ::= {root}\nx ::= {x}\ny ::= {y}\n");
        // Left recursion, or no text at all.
        if let Ok(grammar) = of_gbnf("test", &text) {
            let grammar = Arc::new(grammar);
            for bytes in texts {
                let want = plain_search(&text, bytes.as_bytes());
                prop_assert_eq!(takes(&grammar, bytes.as_bytes()), want, "{}: {}", text, bytes);
            }
        }
    }

    #[test]
    fn random_text_is_a_grammar_or_an_error(
        text in "(root|x)? ?(::=)?([x \"\\[\\]()|*+?{},0-9\n\\\\.^-]|\"a\"|é){0,30}",
    ) {
        for text in [text.clone(), format!("root ::= {text}")] {
            if let Ok(grammar) = of_gbnf("test", &text) {
                let mask = Matcher::new(Arc::new(grammar)).unwrap().mask();
                prop_assert!(mask.is_ok());
            }
        }
    }

    #[test]
    fn random_patterns_are_held_to_or_refused(
        // Begun at its start and short, so that random characters come to its end.
        pattern in "\\^([ab\"\\\\.*+?()\\[\\]|{}0-9dw^$-]|é|\\\\d){0,4}\\$?",
        seed: u64,
    ) {
        let schema = serde_json::json!({ "type": "string", "pattern": pattern });
        let made = of_schema("test", &schema.to_string());
        // The regular expressions that it is compared with refuse some that the parser takes.
        let compared = fancy_regex::Regex::new(&pattern).is_ok();
        if let Some(grammar) = made.ok().filter(|_| compared) {
            let characters = "ab\"\\.*+?()[]|{}0123456789dw^$-é".as_bytes();
            let text = random_text(&Arc::new(grammar), seed, characters);
            let value = serde_json::from_slice(&text).unwrap();
            prop_assert!(super::fits::fits(&value, &schema, &schema), "{schema}: {value}");
        }
    }
}
