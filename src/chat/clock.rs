//! The date that a template sees through `strftime_now`.

use crate::error::{Error, Result};
use jiff::civil::DateTime;
use std::fmt::Write;

/// The longest text one call of `strftime_now` may give, in bytes.
const MAX_LEN_BYTES: usize = 4096;

/// The moment a prompt is rendered at: `iso` (local time, ISO 8601; an offset
/// or `Z` at its end is not applied) or the computer's own clock, which reads
/// UTC where the time zone cannot be known.
pub(super) fn moment(iso: Option<&str>) -> Result<DateTime> {
    let Some(iso) = iso else {
        return Ok(jiff::Zoned::now().datetime());
    };
    iso.trim()
        .trim_end_matches(['Z', 'z'])
        .parse()
        .map_err(|_| {
            Error::input(format!(
                "{iso:?} is not a date and time; write it as 2026-01-15T12:30:45"
            ))
        })
}

/// Formats as Python's `strftime` does in the C locale for a time without a
/// zone. `-` after `%` drops padding; an unknown directive stays as written.
pub(super) fn strftime(at: &DateTime, format: &str) -> String {
    let mut out = String::new();
    let mut rest = format;
    while let Some(start) = rest.find('%') {
        out.push_str(&rest[..start]);
        let spec = &rest[start + 1..];
        let bare = spec.strip_prefix('-');
        let body = bare.unwrap_or(spec);
        let Some(directive) = body.chars().next() else {
            out.push_str(&rest[start..]);
            rest = "";
            break;
        };
        rest = &body[directive.len_utf8()..];
        match field(at, directive) {
            Some(text) if bare.is_some() => out.push_str(unpadded(&text)),
            Some(text) => out.push_str(&text),
            None => {
                out.push('%');
                out.push_str(&spec[..spec.len() - rest.len()]);
            }
        }
        if out.len() > MAX_LEN_BYTES {
            break;
        }
    }
    out.push_str(rest);
    let mut end = out.len().min(MAX_LEN_BYTES);
    while !out.is_char_boundary(end) {
        end -= 1;
    }
    out.truncate(end);
    out
}

/// Without leading zeros and blanks, but never empty.
fn unpadded(text: &str) -> &str {
    let bare = text.trim_start_matches(['0', ' ']);
    match bare.is_empty() {
        true => &text[text.len().saturating_sub(1)..],
        false => bare,
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

fn name_of(names: &[&'static str], index: i8) -> &'static str {
    usize::try_from(index)
        .ok()
        .and_then(|at| names.get(at))
        .copied()
        .unwrap_or_default()
}

/// The text of one directive, or nothing where it is unknown.
fn field(at: &DateTime, directive: char) -> Option<String> {
    let weekday = at.weekday().to_monday_zero_offset();
    let day_of_year = at.day_of_year();
    let month = name_of(&MONTHS, at.month() - 1);
    let day = name_of(&DAYS, weekday);
    let hour12 = match at.hour() % 12 {
        0 => 12,
        hour => hour,
    };
    let iso_week = at.iso_week_date();
    Some(match directive {
        'Y' => format!("{}", at.year()),
        'C' => format!("{:02}", at.year() / 100),
        'y' => format!("{:02}", at.year().rem_euclid(100)),
        'm' => format!("{:02}", at.month()),
        'd' => format!("{:02}", at.day()),
        'e' => format!("{:2}", at.day()),
        'H' => format!("{:02}", at.hour()),
        'k' => format!("{:2}", at.hour()),
        'I' => format!("{hour12:02}"),
        'l' => format!("{hour12:2}"),
        'M' => format!("{:02}", at.minute()),
        'S' => format!("{:02}", at.second()),
        'f' => format!("{:06}", at.subsec_nanosecond() / 1000),
        'p' => (if at.hour() < 12 { "AM" } else { "PM" }).to_string(),
        'P' => (if at.hour() < 12 { "am" } else { "pm" }).to_string(),
        'B' => month.to_string(),
        'b' | 'h' => month.chars().take(3).collect(),
        'A' => day.to_string(),
        'a' => day.chars().take(3).collect(),
        'j' => format!("{day_of_year:03}"),
        'u' => format!("{}", weekday + 1),
        'w' => format!("{}", (weekday + 1) % 7),
        // Weeks that begin on Sunday (%U) or Monday (%W); week 0 comes before the first.
        'U' => format!(
            "{:02}",
            (day_of_year + 6 - (i16::from(weekday) + 1) % 7) / 7
        ),
        'W' => format!("{:02}", (day_of_year + 6 - i16::from(weekday)) / 7),
        'G' => format!("{}", iso_week.year()),
        'V' => format!("{:02}", iso_week.week()),
        // A time without a zone has neither a name nor an offset.
        'Z' | 'z' => String::new(),
        '%' => "%".to_string(),
        'n' => "\n".to_string(),
        't' => "\t".to_string(),
        _ => return composite(at, directive),
    })
}

/// The directives that are made of others.
fn composite(at: &DateTime, directive: char) -> Option<String> {
    let parts: &[char] = match directive {
        'F' => &['Y', '-', 'm', '-', 'd'],
        'T' | 'X' => &['H', ':', 'M', ':', 'S'],
        'R' => &['H', ':', 'M'],
        'D' | 'x' => &['m', '/', 'd', '/', 'y'],
        'r' => &['I', ':', 'M', ':', 'S', ' ', 'p'],
        'c' => &['a', ' ', 'b', ' ', 'e', ' ', 'T', ' ', 'Y'],
        _ => return None,
    };
    let mut out = String::new();
    for part in parts {
        match part.is_ascii_alphabetic() {
            true => out.push_str(&field(at, *part)?),
            false => out.write_char(*part).ok()?,
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_those_of_python() {
        // Right side: Python 3's datetime(...).strftime(...).
        let at = moment(Some("2026-01-05T00:07:09.25")).unwrap();
        for (format, want) in [
            ("%Y-%m-%d", "2026-01-05"),
            ("%d %b %Y", "05 Jan 2026"),
            ("%B %d, %Y", "January 05, 2026"),
            ("%A %a %j %y", "Monday Mon 005 26"),
            ("%H:%M:%S %I %p", "00:07:09 12 AM"),
            ("%-d %-m %-H %e", "5 1 0  5"),
            ("%F %T %R %D", "2026-01-05 00:07:09 00:07 01/05/26"),
            ("%c", "Mon Jan  5 00:07:09 2026"),
            ("%U %W %V %G %u %w", "01 01 02 2026 1 1"),
            ("%f|%Z|%z|", "250000|||"),
            ("100%% é %", "100% é %"),
            ("%Q %-Q %é", "%Q %-Q %é"),
        ] {
            assert_eq!(strftime(&at, format), want, "{format}");
        }
    }

    #[test]
    fn moments_are_read_or_refused() {
        assert_eq!(
            strftime(&moment(Some("2026-11-29T13:05:00Z")).unwrap(), "%I %p %d"),
            "01 PM 29"
        );
        assert!(moment(Some("2026-11-29")).is_ok());
        assert!(
            moment(Some("yesterday"))
                .unwrap_err()
                .to_string()
                .contains("2026-01-15T")
        );
        assert!(moment(None).unwrap().year() >= 2026);
    }

    #[test]
    fn a_long_format_is_cut() {
        let at = moment(Some("2026-01-05T00:07:09")).unwrap();
        assert!(strftime(&at, &"%c".repeat(100_000)).len() <= MAX_LEN_BYTES);
        assert!(strftime(&at, &"é".repeat(100_000)).len() <= MAX_LEN_BYTES);
    }
}
