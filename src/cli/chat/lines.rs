//! Messages from a pipe, or from a terminal that knows no escapes.

use super::input::BLOCK;
use crate::cli::prompt;
use std::io::{BufRead, Read};

/// The lines of a message, without the backslashes that continue them; `None` at the end of
/// the input.
pub fn read_message(lines: &mut dyn BufRead) -> crate::Result<Option<String>> {
    let mut text = String::new();
    let mut n_lines = 0;
    // Where its first character is that is no space. What was read is not looked at again,
    // or messages of many lines would never end.
    let mut begin = None;
    loop {
        let mut bytes = Vec::new();
        let left = prompt::MOST_BYTES.saturating_sub(text.len() as u64) + 1;
        let n_read = Read::take(&mut *lines, left)
            .read_until(b'\n', &mut bytes)
            .map_err(|e| crate::Error::io("cannot read standard input", e))?;
        if n_read as u64 == left {
            return Err(prompt::too_long("the prompt"));
        }
        if n_read == 0 {
            return Ok((n_lines > 0).then_some(text));
        }
        let line = String::from_utf8_lossy(&bytes);
        let line = line.strip_suffix('\n').unwrap_or(&line);
        let line = line.strip_suffix('\r').unwrap_or(line);
        if n_lines > 0 {
            text.push('\n');
        }
        n_lines += 1;
        let first = line.find(|c: char| !c.is_whitespace());
        begin = begin.or(first.map(|at| text.len() + at));
        text.push_str(line);
        let block = begin.and_then(|at| text[at..].strip_prefix(BLOCK));
        let goes_on = match block {
            // A blank line closes none.
            Some(rest) => first.is_none() || !rest.trim_end().ends_with(BLOCK),
            None => text.ends_with('\\'),
        };
        if !goes_on {
            return Ok(Some(text));
        }
        if block.is_none() {
            text.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::input::inside_block;
    use super::read_message;

    #[test]
    fn a_pipe_has_messages_of_several_lines_too() {
        let mut pipe = "one\r\ntwo\\\nlines\\\n3\n\"\"\"\na\\\n\nb\"\"\"\nlast\\".as_bytes();
        let mut messages = Vec::new();
        while let Some(text) = read_message(&mut pipe).expect("bytes in memory") {
            messages.push(inside_block(&text).unwrap_or(&text).to_string());
        }
        assert_eq!(messages, ["one", "two\nlines\n3", "a\\\n\nb", "last"]);
        // In time that grows with the text, not with its square.
        for (line, n_left) in [("\\\n", 300_000), (" \\\n", 600_000)] {
            let many = line.repeat(300_000) + "end";
            let text = read_message(&mut many.as_bytes()).expect("bytes in memory");
            assert_eq!(text.map(|t| t.len()), Some(n_left + 3));
        }
        let blank = "\"\"\"".to_string() + &"\n".repeat(300_000);
        let text = read_message(&mut blank.as_bytes()).expect("bytes in memory");
        assert_eq!(text.map(|t| t.len()), Some(3 + 299_999));
        let mut open = "\"\"\"a\nb".as_bytes();
        let text = read_message(&mut open).expect("bytes in memory");
        assert_eq!(text.as_deref().and_then(inside_block), Some("a\nb"));
    }
}
