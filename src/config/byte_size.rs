//! Sizes in bytes as people write them, read exactly: no floating point is involved.

use thiserror::Error;

/// What a size has to look like, for error messages.
pub(super) const EXPECTED: &str = "a whole number of bytes up to 18446744073709551615, as an \
     integer or with a unit (B, KB, MB, GB, TB, K, M, G, T, KiB, MiB, GiB, TiB), such as \
     20971520, '20 MiB' or '1.5G'; NULL, empty and 0 mean off";

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum ByteSizeError {
    #[error("it is negative")]
    Negative,
    #[error("it does not begin with a decimal number")]
    NotANumber,
    #[error("'{0}' is not a unit")]
    UnknownUnit(String),
    #[error("it is not a whole number of bytes")]
    NotWhole,
    #[error("it is too large")]
    TooLarge,
}

/// Reads a size in bytes; empty text and `NULL` are 0.
///
/// The grammar is `['+'] digits ['.' digits] [unit]` with white space allowed around the number,
/// and the unit in any case. `KB MB GB TB` are powers of 1000, `KiB MiB GiB TiB` powers of 1024,
/// and the bare letters `K M G T` are powers of 1024 too, as in DataFusion's own
/// `datafusion.runtime.memory_limit`.
pub(super) fn parse(text: &str) -> Result<u64, ByteSizeError> {
    let text = text.trim();
    if text.is_empty() || text.eq_ignore_ascii_case("null") {
        return Ok(0);
    }
    if text.starts_with('-') {
        return Err(ByteSizeError::Negative);
    }
    let text = text.strip_prefix('+').unwrap_or(text);
    let number_len = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(number_len);
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if is_digits(fraction) => (whole, fraction),
        Some(_) => return Err(ByteSizeError::NotANumber),
        None => (number, ""),
    };
    if !is_digits(whole) {
        return Err(ByteSizeError::NotANumber);
    }
    let unit = unit_bytes(unit.trim_start())?;
    digits(whole)
        .try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(digit))
        .and_then(|whole| whole.checked_mul(unit))
        .ok_or(ByteSizeError::TooLarge)?
        .checked_add(fraction_bytes(fraction, unit)?)
        .ok_or(ByteSizeError::TooLarge)
}

/// `0.fraction * unit`, if that is a whole number.
///
/// Horner's scheme from the last digit on: each step divides by ten, and once a division leaves a
/// remainder no later step can make the sum whole again. So the intermediate values stay below
/// `10 * unit`, however many digits there are.
fn fraction_bytes(fraction: &str, unit: u64) -> Result<u64, ByteSizeError> {
    digits(fraction).rev().try_fold(0_u64, |sum, digit| {
        let tenfold = sum + digit * unit;
        if tenfold.is_multiple_of(10) {
            Ok(tenfold / 10)
        } else {
            Err(ByteSizeError::NotWhole)
        }
    })
}

fn unit_bytes(unit: &str) -> Result<u64, ByteSizeError> {
    Ok(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return Err(ByteSizeError::UnknownUnit(unit.to_owned())),
    })
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn digits(text: &str) -> impl DoubleEndedIterator<Item = u64> {
    text.bytes().map(|b| u64::from(b - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("20971520", 20_971_520)]
    #[case("20MB", 20_000_000)]
    #[case("20 MiB", 20 << 20)]
    #[case("1.5G", 3 << 29)]
    #[case("  +7  kIb ", 7 << 10)]
    #[case("1k", 1_024)]
    #[case("1KB", 1_000)]
    #[case("3M", 3 << 20)]
    #[case("2T", 2 << 40)]
    #[case("2tb", 2_000_000_000_000)]
    #[case("12 b", 12)]
    #[case("1.0", 1)]
    #[case("0.001KB", 1)]
    #[case("0.0000000000009094947017729282379150390625TiB", 1)]
    #[case("000000000000000000000000000001", 1)]
    #[case("18446744073709551615", u64::MAX)]
    #[case("16777215.9999990463256835937500000T", u64::MAX - (1 << 20) + 1)]
    #[case("", 0)]
    #[case(" \t", 0)]
    #[case("Null", 0)]
    #[case("0", 0)]
    #[case("0 GB", 0)]
    fn accepted(#[case] text: &str, #[case] bytes: u64) {
        assert_eq!(parse(text), Ok(bytes));
    }

    #[rstest]
    #[case("-1", ByteSizeError::Negative)]
    #[case("-0", ByteSizeError::Negative)]
    #[case("NaN", ByteSizeError::NotANumber)]
    #[case("inf", ByteSizeError::NotANumber)]
    #[case("true", ByteSizeError::NotANumber)]
    #[case("MB", ByteSizeError::NotANumber)]
    #[case(".5G", ByteSizeError::NotANumber)]
    #[case("5.G", ByteSizeError::NotANumber)]
    #[case("1.2.3", ByteSizeError::NotANumber)]
    #[case("+-1", ByteSizeError::NotANumber)]
    #[case("\u{0662}MB", ByteSizeError::NotANumber)]
    #[case("1,000", ByteSizeError::UnknownUnit(",000".to_owned()))]
    #[case("1_000", ByteSizeError::UnknownUnit("_000".to_owned()))]
    #[case("1e6", ByteSizeError::UnknownUnit("e6".to_owned()))]
    #[case("1 K B", ByteSizeError::UnknownUnit("K B".to_owned()))]
    #[case("1PB", ByteSizeError::UnknownUnit("PB".to_owned()))]
    #[case("1 \u{212a}B", ByteSizeError::UnknownUnit("\u{212a}B".to_owned()))]
    #[case("0.5", ByteSizeError::NotWhole)]
    #[case("1.0001KB", ByteSizeError::NotWhole)]
    #[case("0.1K", ByteSizeError::NotWhole)]
    #[case("18446744073709551616", ByteSizeError::TooLarge)]
    #[case("16777216T", ByteSizeError::TooLarge)]
    #[case("99999999999999999999999999999999", ByteSizeError::TooLarge)]
    fn refused(#[case] text: &str, #[case] error: ByteSizeError) {
        assert_eq!(parse(text), Err(error));
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in any::<String>()) {
            let _ = parse(&text);
        }

        #[test]
        fn near_misses_are_answered(text in r"[ +-]{0,2}[0-9.]{0,24}[ ]?[kKmMgGtTiIbB]{0,4}") {
            let _ = parse(&text);
        }

        #[test]
        fn an_integer_reads_back(bytes in any::<u64>()) {
            prop_assert_eq!(parse(&bytes.to_string()), Ok(bytes));
        }

        /// Any size written exactly as a decimal fraction of a unit is that size again.
        #[test]
        fn a_fraction_of_a_unit_reads_back(
            bytes in any::<u64>(),
            unit in prop::sample::select(vec![
                ("KB", 1_000_u64), ("mb", 1_000_000), ("GB", 1_000_000_000),
                ("K", 1 << 10), ("MiB", 1 << 20), ("g", 1 << 30), ("TiB", 1 << 40),
            ]),
            spaces in "[ ]{0,3}",
        ) {
            let (unit, unit_bytes) = unit;
            let mut text = format!("{}.", bytes / unit_bytes);
            let mut rest = bytes % unit_bytes;
            loop {
                text.push(char::from_digit(u32::try_from(rest * 10 / unit_bytes).unwrap(), 10).unwrap());
                rest = rest * 10 % unit_bytes;
                if rest == 0 {
                    break;
                }
            }
            prop_assert_eq!(parse(&format!("{text}{spaces}{unit}")), Ok(bytes));
        }
    }
}
