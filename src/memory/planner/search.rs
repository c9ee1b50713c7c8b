//! The search for the largest number that fits, in few questions.

use crate::error::Result;

/// A number, and the bytes that it leaves.
pub type At = (usize, i128);

/// The largest number from `good` on that leaves 0 or more, where `bad` is known to leave
/// less and what fits stays so below. Bytes are nearly a straight line, so the guess is
/// where it crosses 0, and then a neighbor; as a line that bends could be slow, every third
/// guess halves. What `good` leaves need not be known.
pub fn largest(
    good: (usize, Option<i128>),
    bad: At,
    left: &mut dyn FnMut(usize) -> Result<i128>,
) -> Result<usize> {
    // Two places on the line.
    let mut line = (good.1.map(|bytes| (good.0, bytes)), bad);
    let (mut good, mut bad) = (good.0, bad.0);
    for guess in 1.. {
        if bad - good <= 1 {
            break;
        }
        let half = good + (bad - good) / 2;
        let at = match line {
            (Some(before), last) if guess % 3 != 0 => crossing(last, before).unwrap_or(half),
            _ => half,
        };
        let at = at.clamp(good + 1, bad - 1);
        let bytes = left(at)?;
        if bytes >= 0 {
            good = at;
        } else {
            bad = at;
        }
        line = (Some(line.1), (at, bytes));
    }
    Ok(good)
}

/// The last number at which the line through two places is not below 0.
fn crossing((x1, y1): (usize, i128), (x2, y2): (usize, i128)) -> Option<usize> {
    let (mut dx, mut dy) = (x1 as i128 - x2 as i128, y1.checked_sub(y2)?);
    if dy < 0 {
        (dx, dy) = (-dx, dy.checked_neg()?);
    }
    // As far from x1 as y1 is from 0, rounded down.
    let steps = y1.checked_mul(dx)?.checked_neg()?.checked_div_euclid(dy)?;
    let at = (x1 as i128).checked_add(steps)?;
    usize::try_from(at.max(0)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    /// `largest` among 0..=most, of which one more does not fit, and how many questions it
    /// asked.
    fn found(most: usize, zero: Option<i128>, left: &dyn Fn(usize) -> i128) -> (usize, usize) {
        let mut asked = 0;
        let bad = (most + 1, left(most + 1));
        assert!(bad.1 < 0, "not even one more");
        let n = largest((0, zero), bad, &mut |n| {
            asked += 1;
            Ok(left(n))
        });
        (n.expect("no errors"), asked)
    }

    #[test]
    fn the_largest_is_found_in_few_steps() {
        for most in [0, 1, 2, 33, 500] {
            for limit in 0..=most {
                // A line, one with a bend, and steps.
                let line = |n: usize| 1000 * (limit as i128 - n as i128) + 700;
                let bent = |n: usize| match n <= limit {
                    true => (limit - n) as i128,
                    false => -((n - limit) as i128).pow(3),
                };
                let (n, asked) = found(most, Some(line(0)), &line);
                assert_eq!(n, limit);
                assert!(asked <= 2, "{asked} questions for {limit} of {most}");
                let (n, asked) = found(most, None, &line);
                assert_eq!(n, limit);
                assert!(asked <= 4, "{asked} questions for {limit} of {most}");
                let (n, asked) = found(most, Some(bent(0)), &bent);
                assert_eq!(n, limit);
                assert!(asked <= 27, "{asked} questions for {limit} of {most}");
                let (n, _) = found(most, None, &|n| if n <= limit { 0 } else { -1 });
                assert_eq!(n, limit);
            }
        }
        assert!(largest((0, None), (4, -1), &mut |_| Err(Error::input("no"))).is_err());
        // No limit is known.
        assert_eq!(
            found(9, Some(i128::MAX), &|n| match n {
                0..4 => i128::MAX,
                _ => i128::MIN,
            })
            .0,
            3
        );
    }
}
