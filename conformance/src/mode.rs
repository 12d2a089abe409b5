//! The ways in which ours is run.

use clap::ValueEnum;
use datafusion::prelude::SessionContext;
use datafusion_parquet_prefetch::{PrefetchOptions, PrefetchSessionContext};

/// One way to run the test files with our format and rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Installed, with nothing turned on: has to be stock.
    Off,
    /// A budget in which nothing can be prefetched, so that our reading is used with stock's fetches.
    OneByte,
    /// A budget that some row groups of the files fit and some do not.
    OneMebibyte,
    /// A budget that everything fits.
    OneGibibyte,
    /// Reads ahead within what some row groups fit and some do not.
    ReadAheadSome,
    /// Reads ahead, and widens fetches, with budgets that everything fits.
    ReadAheadAll,
}

impl Mode {
    /// Every mode, in the order in which they are reported.
    pub(crate) fn all() -> Vec<Self> {
        Self::value_variants().to_vec()
    }

    /// The head of the mode's columns.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::OneByte => "1 B",
            Self::OneMebibyte => "1 MiB",
            Self::OneGibibyte => "1 GiB",
            Self::ReadAheadSome => "ahead 64 KiB",
            Self::ReadAheadAll => "ahead 1 GiB",
        }
    }

    fn options(self) -> PrefetchOptions {
        let (bytes, read_ahead_bytes) = match self {
            Self::Off => (0, 0),
            Self::OneByte => (1, 0),
            Self::OneMebibyte => (1 << 20, 0),
            Self::OneGibibyte => (1 << 30, 0),
            Self::ReadAheadSome => (0, 64 << 10),
            Self::ReadAheadAll => (1 << 30, 1 << 30),
        };
        PrefetchOptions::new()
            .with_prefetch_size_bytes(bytes)
            .with_read_ahead_bytes(read_ahead_bytes)
    }

    /// Installs format, rule and options in a session that is otherwise as the test file wants it.
    pub(crate) fn install(self, ctx: &SessionContext) {
        ctx.state_ref()
            .write()
            .config_mut()
            .options_mut()
            .extensions
            .insert(self.options());
        // Shares the session's state, which is where all of it is put.
        let _installed = PrefetchSessionContext::from(ctx.clone());
    }
}
