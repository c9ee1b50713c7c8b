//! Texts that end a reply and are never shown, not even in part.

/// What may be shown after one more piece of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopResult {
    /// Text that is certainly before any stop text.
    pub emit: String,
    /// A stop text has come: the reply is over.
    pub stopped: bool,
}

/// Finds stop texts in a stream, however it is cut into pieces. Text that could
/// be the beginning of a stop text is held back until it is clear.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped: bool,
}

impl StopMatcher {
    /// A matcher of these texts; empty ones are ignored.
    pub fn new(mut stops: Vec<String>) -> StopMatcher {
        stops.retain(|stop| !stop.is_empty());
        StopMatcher {
            stops,
            held: String::new(),
            stopped: false,
        }
    }

    /// Takes the next piece. The stop text that is complete first ends the
    /// reply; of those complete at the same place, the longest. After that
    /// nothing is emitted any more.
    pub fn push(&mut self, text: &str) -> StopResult {
        if self.stopped {
            return self.result(String::new());
        }
        self.held.push_str(text);
        if let Some(start) = self.first_stop() {
            self.stopped = true;
            let mut emit = std::mem::take(&mut self.held);
            emit.truncate(start);
            return self.result(emit);
        }
        let keep_from = self.undecided_from();
        let held = self.held.split_off(keep_from);
        let emit = std::mem::replace(&mut self.held, held);
        self.result(emit)
    }

    /// The stream has ended: what was held back was not a stop text.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn result(&self, emit: String) -> StopResult {
        StopResult {
            emit,
            stopped: self.stopped,
        }
    }

    /// Byte position where the stop text that ends first begins.
    fn first_stop(&self) -> Option<usize> {
        self.stops
            .iter()
            .filter_map(|stop| {
                self.held
                    .find(stop)
                    .map(|start| (start + stop.len(), start))
            })
            .min()
            .map(|(_, start)| start)
    }

    /// Byte position from which the held text is the beginning of a stop text.
    fn undecided_from(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest);
        (from..self.held.len())
            .filter(|&at| self.held.is_char_boundary(at))
            .find(|&at| {
                self.stops
                    .iter()
                    .any(|stop| stop.starts_with(&self.held[at..]))
            })
            .unwrap_or(self.held.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All text shown, and whether a stop text came.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, bool) {
        let mut matcher = StopMatcher::new(stops.iter().map(|s| s.to_string()).collect());
        let mut shown = String::new();
        let mut stopped = false;
        for piece in pieces {
            let result = matcher.push(piece);
            assert!(!stopped || result.emit.is_empty());
            shown.push_str(&result.emit);
            stopped = result.stopped;
        }
        shown.push_str(&matcher.finish());
        (shown, stopped)
    }

    #[test]
    fn a_stop_across_pieces_is_never_shown() {
        assert_eq!(
            run(&["</end>"], &["hi<", "/en", "d>more"]),
            ("hi".into(), true)
        );
        assert_eq!(
            run(&["</end>"], &["hi<", "/en", "t>"]),
            ("hi</ent>".into(), false)
        );
        assert_eq!(run(&["</end>"], &["hi</e"]), ("hi</e".into(), false));
        assert_eq!(run(&["éà"], &["aé", "à"]), ("a".into(), true));
    }

    #[test]
    fn nothing_undecided_is_emitted() {
        let mut matcher = StopMatcher::new(vec!["aab".into()]);
        assert_eq!(matcher.push("xaa").emit, "x");
        assert_eq!(matcher.push("a").emit, "a");
        assert_eq!(
            matcher.push("b"),
            StopResult {
                emit: String::new(),
                stopped: true
            }
        );
        assert_eq!(
            matcher.push("z"),
            StopResult {
                emit: String::new(),
                stopped: true
            }
        );
        assert_eq!(matcher.finish(), "");
    }

    #[test]
    fn overlapping_and_empty_stops() {
        assert_eq!(run(&["abcd", "bc"], &["xabcd"]), ("xa".into(), true));
        assert_eq!(run(&["bc", "abc"], &["x", "a", "bc"]), ("x".into(), true));
        assert_eq!(run(&["", "q"], &["plain"]), ("plain".into(), false));
        assert_eq!(run(&[""], &["", "a", ""]), ("a".into(), false));
        assert_eq!(run(&[], &["a"]), ("a".into(), false));
    }

    proptest! {
        #[test]
        fn pieces_do_not_matter(text in "[abé]{0,20}", stops in prop::collection::vec("[abé]{0,4}", 0..4), cuts in prop::collection::vec(0usize..20, 0..6)) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let mut pieces = Vec::new();
            let mut rest = text.as_str();
            for cut in cuts {
                let at = rest.char_indices().nth(cut % 4).map_or(rest.len(), |(at, _)| at);
                let (piece, tail) = rest.split_at(at);
                pieces.push(piece);
                rest = tail;
            }
            pieces.push(rest);
            let (shown, stopped) = run(&stops, &pieces);
            prop_assert_eq!((shown.clone(), stopped), run(&stops, &[&text]));
            prop_assert!(text.starts_with(&shown));
            let hit = stops.iter().any(|s| !s.is_empty() && text.contains(s));
            prop_assert_eq!(stopped, hit);
            prop_assert!(stops.iter().all(|s| s.is_empty() || !shown.contains(s)));
        }
    }
}
