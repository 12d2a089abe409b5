//! Counts: plain decimal integers, for which there is no way to say "off" but 0.

use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;

use thiserror::Error;

/// What a count of at least `min` has to look like, for error messages.
pub(super) fn expected(min: usize) -> String {
    format!(
        "a whole number from {min} to {}, in decimal digits and without a unit, such as 256",
        usize::MAX
    )
}

/// Why a text is no count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum CountError {
    #[error("it names no number")]
    Missing,
    #[error("it is not a plain decimal integer")]
    NotANumber,
    #[error("it is too large")]
    TooLarge,
    #[error("it has to be at least 1")]
    Zero,
}

/// Reads a count, `['+'] digits` with white space allowed around it; `T` decides whether 0 is one.
///
/// Unlike a size, a count has no natural "off", so empty text and `NULL` are errors rather than a
/// guess between 0 and the default.
pub(super) fn parse<T>(text: &str) -> Result<T, CountError>
where
    T: FromStr<Err = ParseIntError>,
{
    let text = text.trim();
    if text.eq_ignore_ascii_case("null") {
        return Err(CountError::Missing);
    }
    text.parse()
        .map_err(|error: ParseIntError| match error.kind() {
            IntErrorKind::Empty => CountError::Missing,
            IntErrorKind::PosOverflow => CountError::TooLarge,
            IntErrorKind::Zero => CountError::Zero,
            _ => CountError::NotANumber,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;
    use std::num::NonZeroUsize;

    #[rstest]
    #[case("1", 1)]
    #[case("256", 256)]
    #[case("+7", 7)]
    #[case(" \t12 ", 12)]
    #[case("007", 7)]
    #[case(&usize::MAX.to_string(), usize::MAX)]
    fn accepted(#[case] text: &str, #[case] count: usize) {
        assert_eq!(parse(text), Ok(count));
        assert_eq!(parse(text), Ok(NonZeroUsize::new(count).unwrap()));
    }

    #[rstest]
    #[case("", CountError::Missing)]
    #[case("  ", CountError::Missing)]
    #[case("null", CountError::Missing)]
    #[case(" NULL", CountError::Missing)]
    #[case("-1", CountError::NotANumber)]
    #[case("-0", CountError::NotANumber)]
    #[case("+", CountError::NotANumber)]
    #[case("++1", CountError::NotANumber)]
    #[case("+ 1", CountError::NotANumber)]
    #[case("1 2", CountError::NotANumber)]
    #[case("1.0", CountError::NotANumber)]
    #[case("1_000", CountError::NotANumber)]
    #[case("1e3", CountError::NotANumber)]
    #[case("0x10", CountError::NotANumber)]
    #[case("1K", CountError::NotANumber)]
    #[case("8 MiB", CountError::NotANumber)]
    #[case("true", CountError::NotANumber)]
    #[case("\u{0662}", CountError::NotANumber)]
    #[case(&format!("{}0", usize::MAX), CountError::TooLarge)]
    fn refused(#[case] text: &str, #[case] error: CountError) {
        assert_eq!(parse::<usize>(text), Err(error));
        assert_eq!(parse::<NonZeroUsize>(text), Err(error));
    }

    #[test]
    fn the_type_decides_about_zero() {
        for text in ["0", "+0", "000"] {
            assert_eq!(parse(text), Ok(0_usize));
            assert_eq!(parse::<NonZeroUsize>(text), Err(CountError::Zero));
        }
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in any::<String>()) {
            let _ = parse::<usize>(&text);
        }

        #[test]
        fn what_is_shown_is_read_back(count in any::<usize>()) {
            prop_assert_eq!(parse(&count.to_string()), Ok(count));
        }
    }
}
