//! The types of option values: how each is read from text.

use std::fmt;
use std::num::NonZeroUsize;

use super::conditional::ConditionalReadAhead;
use super::{byte_size, count};

/// What an option can hold. As text it is what `Display` gives, which [`Self::parse`] reads back.
pub(super) trait OptionValue: Copy + fmt::Display {
    /// What [`OptionDefinition::kind`](super::OptionDefinition::kind) says.
    const KIND: &'static str;

    fn parse(text: &str) -> Result<Self, Refusal>;
}

/// Why a text is no value, and what would be one, for the error of whoever knows the option's name.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) reason: String,
    pub(super) expected: String,
}

/// A size in bytes: no option counts anything else in 64 bits.
impl OptionValue for u64 {
    const KIND: &'static str = "byte size";

    fn parse(text: &str) -> Result<Self, Refusal> {
        byte_size::parse(text).map_err(|error| Refusal {
            reason: error.to_string(),
            expected: byte_size::EXPECTED.to_owned(),
        })
    }
}

impl OptionValue for usize {
    const KIND: &'static str = "count";

    fn parse(text: &str) -> Result<Self, Refusal> {
        count::parse(text).map_err(|error| Refusal {
            reason: error.to_string(),
            expected: count::expected(Self::MIN),
        })
    }
}

impl OptionValue for NonZeroUsize {
    const KIND: &'static str = "count";

    fn parse(text: &str) -> Result<Self, Refusal> {
        count::parse(text).map_err(|error| Refusal {
            reason: error.to_string(),
            expected: count::expected(Self::MIN.get()),
        })
    }
}

impl OptionValue for ConditionalReadAhead {
    const KIND: &'static str = "choice";

    fn parse(text: &str) -> Result<Self, Refusal> {
        Self::named(text).ok_or_else(|| Refusal {
            reason: "it is not one of the choices".to_owned(),
            expected: Self::expected(),
        })
    }
}
