//! The options: what they are called, what they accept, and whose word counts.

mod byte_size;
mod conditional;
mod count;
mod definition;
mod settings;
mod value;

use std::any::Any;
use std::ffi::OsString;
use std::num::NonZeroUsize;

use datafusion::common::config_err;
use datafusion::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::error::Result;
use datafusion::prelude::SessionConfig;

pub use conditional::ConditionalReadAhead;
pub use definition::OptionDefinition;
pub use settings::{PrefetchSettings, PrefetchTableOptions};

use definition::DEFINITIONS;

/// The options of a session, a DataFusion config extension with the prefix `parquet_prefetch`.
///
/// Once a session has the extension, SQL can set and show its options by their keys, as
/// `parquet_prefetch.prefetch_size`. Everything is off by default. `docs/configuration.md` of the
/// project lists every option with its spellings.
///
/// ```
/// use datafusion::prelude::{SessionConfig, SessionContext};
/// use datafusion_parquet_prefetch::{PrefetchOptions, PrefetchSettings};
///
/// # #[tokio::main]
/// # async fn main() -> datafusion::error::Result<()> {
/// let config = SessionConfig::new().with_option_extension(PrefetchOptions::default());
/// let ctx = SessionContext::new_with_config(config);
/// ctx.sql("SET parquet_prefetch.prefetch_size = '20 MiB'").await?;
/// let settings = PrefetchSettings::from_config(ctx.state().config_options());
/// assert_eq!(settings.prefetch_size_bytes, 20 * 1024 * 1024);
/// # Ok(())
/// # }
/// ```
///
/// The options alone change no scan: see
/// [`PrefetchSessionStateBuilderExt`](crate::PrefetchSessionStateBuilderExt) for what does. For how
/// they combine with those of a table, see [`PrefetchSettings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PrefetchOptions {
    settings: PrefetchSettings,
}

impl PrefetchOptions {
    /// The options with their defaults: everything off.
    pub fn new() -> Self {
        Self::default()
    }

    /// Every option there is, with its names and its meaning.
    pub fn definitions() -> &'static [OptionDefinition] {
        DEFINITIONS
    }

    /// The options in `config`, or the defaults if it has none.
    pub fn from_config(config: &ConfigOptions) -> Self {
        config.extensions.get::<Self>().copied().unwrap_or_default()
    }

    /// The defaults, overridden by the environment: each option by its
    /// [`environment_variable`](OptionDefinition::environment_variable), such as
    /// `DATAFUSION_EXECUTION_PARQUET_PREFETCH_SIZE`.
    ///
    /// DataFusion's own options are read from the environment by [`SessionConfig::from_env`], which
    /// never sees an extension; [`Self::session_config_from_env`] does both.
    ///
    /// # Errors
    ///
    /// As with DataFusion's own, a value that is not valid is an error: a configuration error naming
    /// variable and value.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(|name| std::env::var_os(name))
    }

    /// A session config from the environment: DataFusion's own options, and ours.
    ///
    /// # Errors
    ///
    /// Those of [`SessionConfig::from_env`] and [`Self::from_env`].
    pub fn session_config_from_env() -> Result<SessionConfig> {
        Ok(SessionConfig::from_env()?.with_option_extension(Self::from_env()?))
    }

    /// What the session says, checked. A scan goes by [`PrefetchSettings::resolve`].
    pub fn settings(&self) -> PrefetchSettings {
        self.settings
    }

    /// With this budget for row-group prefetch in bytes; 0 is off.
    pub fn with_prefetch_size_bytes(mut self, bytes: u64) -> Self {
        self.settings.prefetch_size_bytes = bytes;
        self
    }

    /// With this budget of one partition's scan for reading ahead in the background, in bytes; 0 is
    /// off.
    pub fn with_read_ahead_bytes(mut self, bytes: u64) -> Self {
        self.settings.read_ahead_bytes = bytes;
        self
    }

    /// With this answer to whether bytes that are needed only if a row filter keeps rows are read
    /// ahead too.
    pub fn with_read_ahead_conditional(mut self, conditional: ConditionalReadAhead) -> Self {
        self.settings.read_ahead_conditional = conditional;
        self
    }

    /// With this many files of one partition's scan that may be opened ahead of the one that is
    /// being decoded; 0 keeps read-ahead within that file.
    pub fn with_read_ahead_files(mut self, files: usize) -> Self {
        self.settings.read_ahead_files = files;
        self
    }

    /// With requests split, and the parts fetched in parallel, that are for more bytes than this; 0
    /// never splits.
    pub fn with_max_request_bytes(mut self, bytes: u64) -> Self {
        self.settings.max_request_bytes = bytes;
        self
    }

    /// With at most this many requests of one scan, all its partitions together, in flight at the
    /// same time.
    pub fn with_max_requests(mut self, requests: NonZeroUsize) -> Self {
        self.settings.max_requests = requests;
        self
    }

    fn from_variables(lookup: impl Fn(&str) -> Option<OsString>) -> Result<Self> {
        let mut options = Self::default();
        for option in DEFINITIONS {
            let name = option.environment_variable();
            if let Some(value) = lookup(&name) {
                let value = value.to_string_lossy();
                options.set_option(option, &name, &value)?;
                log::info!(
                    "Set {} to {value} from the environment variable {name}",
                    option.extension_key()
                );
            }
        }
        Ok(options)
    }

    /// Sets an option; `key` is what the user called it.
    pub(crate) fn set_option(
        &mut self,
        option: &OptionDefinition,
        key: &str,
        value: &str,
    ) -> Result<()> {
        option.set(&mut self.settings, key, value)
    }
}

impl ConfigExtension for PrefetchOptions {
    const PREFIX: &'static str = "parquet_prefetch";
}

impl ExtensionOptions for PrefetchOptions {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(*self)
    }

    /// `ConfigOptions` hands over the key without the prefix, `TableOptions` with it.
    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        let name = key
            .strip_prefix(Self::PREFIX)
            .and_then(|rest| rest.strip_prefix('.'))
            .unwrap_or(key);
        let Some(option) = OptionDefinition::named(name) else {
            let known: Vec<_> = DEFINITIONS
                .iter()
                .map(OptionDefinition::extension_key)
                .collect();
            return config_err!(
                "Unknown option '{}.{name}'; expected one of: {}",
                Self::PREFIX,
                known.join(", ")
            );
        };
        self.set_option(option, &option.extension_key(), value)
    }

    /// The keys are whole, so that `SHOW` finds them and an entry can be set again as it is.
    fn entries(&self) -> Vec<ConfigEntry> {
        DEFINITIONS
            .iter()
            .map(|option| option.entry(self.settings))
            .collect()
    }
}

/// Compiles the Rust examples of the document.
#[cfg(doctest)]
#[doc = include_str!("../docs/configuration.md")]
struct ConfigurationDocument;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    fn from_variables(variables: &[(&str, &str)]) -> Result<PrefetchOptions> {
        PrefetchOptions::from_variables(|name| {
            let (_, value) = variables.iter().find(|(variable, _)| *variable == name)?;
            Some(value.into())
        })
    }

    #[test]
    fn the_environment_overrides_the_default() {
        assert_eq!(from_variables(&[]).unwrap(), PrefetchOptions::default());
        let options = from_variables(&[
            ("DATAFUSION_EXECUTION_PARQUET_PREFETCH_SIZE", "20 MiB"),
            ("DATAFUSION_EXECUTION_PARQUET_READ_AHEAD_BYTES", "1G"),
            (
                "DATAFUSION_EXECUTION_PARQUET_READ_AHEAD_CONDITIONAL",
                "Never",
            ),
            ("DATAFUSION_EXECUTION_PARQUET_READ_AHEAD_FILES", "3"),
            ("DATAFUSION_EXECUTION_PARQUET_MAX_REQUEST_BYTES", ""),
            ("DATAFUSION_EXECUTION_PARQUET_MAX_REQUESTS", "default"),
        ]);
        assert_eq!(
            options.unwrap(),
            PrefetchOptions::new()
                .with_prefetch_size_bytes(20 << 20)
                .with_read_ahead_bytes(1 << 30)
                .with_read_ahead_conditional(ConditionalReadAhead::Never)
                .with_read_ahead_files(3)
                .with_max_request_bytes(0)
        );
    }

    #[rstest]
    #[case("DATAFUSION_EXECUTION_PARQUET_PREFETCH_SIZE", "lots")]
    #[case("DATAFUSION_EXECUTION_PARQUET_READ_AHEAD_BYTES", "-1")]
    #[case("DATAFUSION_EXECUTION_PARQUET_READ_AHEAD_CONDITIONAL", "")]
    #[case("DATAFUSION_EXECUTION_PARQUET_READ_AHEAD_FILES", "")]
    #[case("DATAFUSION_EXECUTION_PARQUET_MAX_REQUEST_BYTES", "8 blocks")]
    #[case("DATAFUSION_EXECUTION_PARQUET_MAX_REQUESTS", "0")]
    fn a_bad_environment_variable_is_an_error(#[case] variable: &str, #[case] value: &str) {
        let error = from_variables(&[(variable, value)])
            .unwrap_err()
            .to_string();
        for part in [variable, &format!("'{value}'")] {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }

    #[test]
    fn keys_count_with_and_without_prefix() {
        let mut options = PrefetchOptions::new();
        options.set("prefetch_size", "1").unwrap();
        assert_eq!(options.settings().prefetch_size_bytes, 1);
        options.set("parquet_prefetch.prefetch_size", "2").unwrap();
        assert_eq!(options.settings().prefetch_size_bytes, 2);
    }

    #[test]
    fn a_refused_value_changes_nothing() {
        let mut options = PrefetchOptions::new().with_prefetch_size_bytes(3);
        for key in ["prefetch_size", "parquet_prefetch.prefetch_size"] {
            let error = options.set(key, "-1").unwrap_err().to_string();
            assert!(
                error.contains("'parquet_prefetch.prefetch_size'") && error.contains("'-1'"),
                "{error}"
            );
        }
        for key in [
            "",
            "prefetch",
            "prefetch_size.x",
            "parquet_prefetch",
            "parquet_prefetch.",
        ] {
            let error = options.set(key, "1").unwrap_err().to_string();
            assert!(
                error.contains("expected one of: parquet_prefetch.prefetch_size"),
                "{error}"
            );
        }
        assert_eq!(options, PrefetchOptions::new().with_prefetch_size_bytes(3));
    }

    proptest! {
        /// What a session shows can be shipped as text and set again elsewhere.
        #[test]
        fn entries_can_be_set_again(
            prefetch_size_bytes in any::<u64>(),
            read_ahead_bytes in any::<u64>(),
            conditional in prop::sample::select(vec![
                ConditionalReadAhead::Always,
                ConditionalReadAhead::Never,
                ConditionalReadAhead::Adaptive,
            ]),
            files in any::<usize>(),
            max_request_bytes in any::<u64>(),
            max_requests in any::<NonZeroUsize>(),
        ) {
            let options = PrefetchOptions::new()
                .with_prefetch_size_bytes(prefetch_size_bytes)
                .with_read_ahead_bytes(read_ahead_bytes)
                .with_read_ahead_conditional(conditional)
                .with_read_ahead_files(files)
                .with_max_request_bytes(max_request_bytes)
                .with_max_requests(max_requests);
            let mut config = ConfigOptions::new();
            config.extensions.insert(PrefetchOptions::new());
            for entry in options.entries() {
                config.set(&entry.key, &entry.value.unwrap()).unwrap();
            }
            prop_assert_eq!(PrefetchOptions::from_config(&config), options);
        }
    }
}
