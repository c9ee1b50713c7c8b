//! Tags that the engine does not know, rewritten to ones that it does.

/// Rewrites `{% generation %}` and its end, which mark for training what the
/// assistant says, to a scope of their own. Each keeps its length, so lines
/// and columns of errors stay right; comments, strings and raw blocks are left
/// alone.
pub(super) fn rewrite_generation(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    let mut raw = false;
    while let Some(at) = rest.find('{') {
        let (text, tail) = rest.split_at(at);
        out.push_str(text);
        let close = match tail.as_bytes().get(1) {
            Some(b'#') if !raw => "#}",
            Some(b'{') if !raw => "}}",
            Some(b'%') => "%}",
            _ => "",
        };
        let len = match close {
            "" => 1,
            "#}" => tail.find(close).map_or(tail.len(), |end| end + 2),
            _ => tag_len(tail, close),
        };
        let (tag, after) = tail.split_at(len);
        match (close, tag_word(tag)) {
            ("%}", "raw") => raw = true,
            ("%}", "endraw") => raw = false,
            _ => {}
        }
        match (close, raw, tag_word(tag)) {
            ("%}", false, word @ "generation") => push_renamed(&mut out, tag, word, "with"),
            ("%}", false, word @ "endgeneration") => push_renamed(&mut out, tag, word, "endwith"),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Length in bytes of the tag that `tail` starts with, past its `close`, which
/// does not count inside a quoted string.
fn tag_len(tail: &str, close: &str) -> usize {
    let bytes = tail.as_bytes();
    let mut quote = None;
    let mut at = 2;
    while at < bytes.len() {
        match (quote, bytes[at]) {
            (Some(_), b'\\') => at += 1,
            (Some(open), byte) if byte == open => quote = None,
            (None, byte @ (b'"' | b'\'')) => quote = Some(byte),
            (None, _) if bytes[at..].starts_with(close.as_bytes()) => return at + close.len(),
            _ => {}
        }
        at += 1;
    }
    tail.len()
}

/// The only word of a `{% word %}` tag, else nothing.
fn tag_word(tag: &str) -> &str {
    tag.strip_prefix("{%")
        .and_then(|inner| inner.strip_suffix("%}"))
        .map(|inner| inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+'))
        .unwrap_or_default()
}

fn push_renamed(out: &mut String, tag: &str, word: &str, name: &str) {
    let Some((before, after)) = tag.split_once(word) else {
        return out.push_str(tag);
    };
    out.push_str(before);
    out.push_str(name);
    out.extend(std::iter::repeat_n(' ', word.len() - name.len()));
    out.push_str(after);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_becomes_a_scope_of_the_same_length() {
        for (source, want) in [
            ("{% generation %}x", "{% with       %}x"),
            ("{%- endgeneration -%}", "{%- endwith       -%}"),
            ("{%generation%}", "{%with      %}"),
            ("a { b {", "a { b {"),
            ("{% generation", "{% generation"),
            ("{# {% generation %} #}", "{# {% generation %} #}"),
            ("{{ '{% generation %}' }}", "{{ '{% generation %}' }}"),
            ("{{ '}}{% generation %}' }}", "{{ '}}{% generation %}' }}"),
            (
                "{% raw %}{{{% generation %}{% endraw %}{% generation %}",
                "{% raw %}{{{% generation %}{% endraw %}{% with       %}",
            ),
            ("{% set generation = 1 %}", "{% set generation = 1 %}"),
            ("é{% generation %}é", "é{% with       %}é"),
        ] {
            assert_eq!(rewrite_generation(source), want);
        }
    }
}
