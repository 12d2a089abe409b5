//! Whether to read ahead what may turn out not to be needed.

use std::fmt;
use std::str::FromStr;

use datafusion::common::config_datafusion_err;
use datafusion::error::{DataFusionError, Result};

/// Whether *conditional* bytes are read ahead: those that are needed only if a row filter keeps rows.
///
/// With filter pushdown, a row group's columns are wanted in steps: those of the filter first, the
/// others once it has kept a row. Waiting for the filter costs a round trip for each row group whose
/// rows are kept; not waiting costs the bytes of each whose rows are not.
///
/// As text it is `always`, `never` or `adaptive`, read in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ConditionalReadAhead {
    /// They are read ahead like all others.
    #[default]
    Always,
    /// They are read once the filter has kept rows.
    Never,
    /// They are read ahead or not by what the filter has kept so far.
    Adaptive,
}

impl ConditionalReadAhead {
    const ALL: [Self; 3] = [Self::Always, Self::Never, Self::Adaptive];

    fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::Never => "never",
            Self::Adaptive => "adaptive",
        }
    }

    /// The choice with this name.
    pub(super) fn named(text: &str) -> Option<Self> {
        let text = text.trim();
        Self::ALL
            .into_iter()
            .find(|choice| choice.name().eq_ignore_ascii_case(text))
    }

    /// What the text of a choice has to look like, for error messages.
    pub(super) fn expected() -> String {
        format!("one of: {}", Self::ALL.map(Self::name).join(", "))
    }
}

impl fmt::Display for ConditionalReadAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text may be in any case, with white space around it. The error is a configuration error that
/// names the text and the choices.
impl FromStr for ConditionalReadAhead {
    type Err = DataFusionError;

    fn from_str(text: &str) -> Result<Self> {
        Self::named(text).ok_or_else(|| {
            config_datafusion_err!(
                "Invalid conditional read-ahead '{text}'; expected {}",
                Self::expected()
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(ConditionalReadAhead::Always, "always", "ALWAYS")]
    #[case(ConditionalReadAhead::Never, "never", " Never ")]
    #[case(ConditionalReadAhead::Adaptive, "adaptive", "aDaptive")]
    fn names(#[case] choice: ConditionalReadAhead, #[case] shown: &str, #[case] read: &str) {
        assert_eq!(choice.to_string(), shown);
        assert_eq!(shown.parse::<ConditionalReadAhead>().unwrap(), choice);
        assert_eq!(read.parse::<ConditionalReadAhead>().unwrap(), choice);
    }

    #[test]
    fn the_default_reads_ahead() {
        assert_eq!(
            ConditionalReadAhead::default(),
            ConditionalReadAhead::Always
        );
    }

    #[rstest]
    fn other_text_is_refused(
        #[values("", "null", "true", "on", "1", "al ways", "never,always")] text: &str,
    ) {
        let error = text
            .parse::<ConditionalReadAhead>()
            .unwrap_err()
            .to_string();
        for part in [&format!("'{text}'"), "one of: always, never, adaptive"] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}
