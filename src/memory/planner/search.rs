//! The search for the largest number that fits, in few questions.

use crate::error::Result;

/// The largest of `1..=most` that leaves 0 or more, 0 when none does; what fits stays so
/// below. Bytes are nearly a straight line, so the guess is where it crosses 0, and then a
/// neighbor; as a line that bends could be slow, every third guess halves.
pub fn largest(most: usize, left: &mut dyn FnMut(usize) -> Result<i128>) -> Result<usize> {
    if most == 0 {
        return Ok(0);
    }
    let lacks = left(most)?;
    if lacks >= 0 {
        return Ok(most);
    }
    let (mut good, mut bad) = (0, most);
    // Two places on the line.
    let (mut last, mut before) = ((most, lacks), None);
    for guess in 0.. {
        if bad - good <= 1 {
            break;
        }
        let half = good + (bad - good) / 2;
        let at = match before {
            Some(before) if guess % 3 != 0 => crossing(last, before).unwrap_or(half),
            _ => half,
        };
        let at = at.clamp(good + 1, bad - 1);
        let bytes = left(at)?;
        if bytes >= 0 {
            good = at;
        } else {
            bad = at;
        }
        (last, before) = ((at, bytes), Some(last));
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

    /// `largest` among 1..=most, and how many questions it asked.
    fn found(most: usize, left: &dyn Fn(usize) -> i128) -> (usize, usize) {
        let mut asked = 0;
        let n = largest(most, &mut |n| {
            asked += 1;
            Ok(left(n))
        });
        (n.expect("no errors"), asked)
    }

    #[test]
    fn the_largest_is_found_in_few_steps() {
        for most in [0, 1, 2, 33, 500] {
            for limit in 0..most + 3 {
                // A line, one with a bend, and steps.
                let line = |n: usize| 1000 * (limit as i128 - n as i128) + 700;
                let bent = |n: usize| match n <= limit {
                    true => (limit - n) as i128,
                    false => -((n - limit) as i128).pow(3),
                };
                let (n, asked) = found(most, &line);
                assert_eq!(n, most.min(limit));
                assert!(asked <= 5, "{asked} questions for {limit} of {most}");
                let (n, asked) = found(most, &bent);
                assert_eq!(n, most.min(limit));
                assert!(asked <= 27, "{asked} questions for {limit} of {most}");
                let (n, _) = found(most, &|n| if n <= limit { 0 } else { -1 });
                assert_eq!(n, most.min(limit));
            }
        }
        assert!(largest(4, &mut |_| Err(Error::input("no"))).is_err());
        // No limit is known.
        assert_eq!(found(9, &|_| i128::MAX).0, 9);
        assert_eq!(
            found(9, &|n| if n < 4 { i128::MAX } else { i128::MIN }).0,
            3
        );
    }
}
