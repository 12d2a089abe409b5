//! The options the crate knows, as one table: everything that names, reads, shows or documents an
//! option goes through it.

use std::fmt;
use std::num::NonZeroUsize;

use datafusion::common::config_err;
use datafusion::config::{ConfigEntry, ConfigExtension};
use datafusion::error::Result;

use super::conditional::ConditionalReadAhead;
use super::value::{OptionValue, Refusal};
use super::{PrefetchOptions, PrefetchSettings, PrefetchTableOptions};

/// Where DataFusion keeps the options of its Parquet scans.
const DATAFUSION_NAMESPACE: &str = "datafusion.execution.parquet";

/// The prefix of format options in `CREATE EXTERNAL TABLE ... OPTIONS` and `COPY ... OPTIONS`.
const TABLE_NAMESPACE: &str = "format";

/// Every option, in the order in which they are documented and shown.
pub(super) static DEFINITIONS: &[OptionDefinition] = &[
    OptionDefinition {
        name: "prefetch_size",
        description: "Budget in bytes of a Parquet scan for row-group prefetch: when a read is \
             needed anyway, it is widened by the projected columns of complete subsequent row \
             groups while all bytes buffered, required and prefetched fit. What is required is \
             always read. 0 turns prefetch off",
        field: &Field::<u64> {
            settings: |settings| &mut settings.prefetch_size_bytes,
            table: |table| &mut table.prefetch_size_bytes,
        },
    },
    OptionDefinition {
        name: "read_ahead_bytes",
        description: "Budget in bytes of one partition's scan for reading ahead in the \
             background: while a row group decodes, later bytes of the scan, of the same file and \
             of later files, are fetched in the order in which decoding will need them. What is \
             required is always read. 0 turns read-ahead off",
        field: &Field::<u64> {
            settings: |settings| &mut settings.read_ahead_bytes,
            table: |table| &mut table.read_ahead_bytes,
        },
    },
    OptionDefinition {
        name: "read_ahead_conditional",
        description: "Whether bytes that are needed only if a row filter keeps rows are read \
             ahead too: always, never, or adaptive, which goes by what the filter has kept so far",
        field: &Field::<ConditionalReadAhead> {
            settings: |settings| &mut settings.read_ahead_conditional,
            table: |table| &mut table.read_ahead_conditional,
        },
    },
    OptionDefinition {
        name: "read_ahead_files",
        description: "How many files of one partition's scan may be opened ahead of the one that \
             is being decoded. 0 keeps read-ahead within that file",
        field: &Field::<usize> {
            settings: |settings| &mut settings.read_ahead_files,
            table: |table| &mut table.read_ahead_files,
        },
    },
    OptionDefinition {
        name: "max_request_bytes",
        description: "Requests for more bytes than this are split, and the parts fetched in \
             parallel. 0 never splits",
        field: &Field::<u64> {
            settings: |settings| &mut settings.max_request_bytes,
            table: |table| &mut table.max_request_bytes,
        },
    },
    OptionDefinition {
        name: "max_requests",
        description: "How many requests of one scan, all its partitions together, may be in \
             flight at the same time. What the decoder waits for does not queue behind what is \
             read ahead",
        field: &Field::<NonZeroUsize> {
            settings: |settings| &mut settings.max_requests,
            table: |table| &mut table.max_requests,
        },
    },
];

/// One option: its names, its meaning, and how its value is read and shown.
///
/// [`PrefetchOptions::definitions`] lists them all. A program with its own way to set options (a
/// command line, a settings file) can work from that list instead of naming the options itself.
pub struct OptionDefinition {
    name: &'static str,
    description: &'static str,
    field: &'static dyn AnyField,
}

/// Where an option is kept in the session's settings and in a table's overrides. As the settings
/// are `Copy`, the one accessor serves for reading too.
struct Field<T> {
    settings: fn(&mut PrefetchSettings) -> &mut T,
    table: fn(&mut PrefetchTableOptions) -> &mut Option<T>,
}

/// A [`Field`] of whatever type, so that one table holds them all.
trait AnyField: Send + Sync {
    fn kind(&self) -> &'static str;
    fn show(&self, settings: PrefetchSettings) -> String;
    fn set(&self, settings: &mut PrefetchSettings, text: &str) -> Result<(), Refusal>;
    fn set_to_default(&self, settings: &mut PrefetchSettings);
    fn set_on_table(&self, table: &mut PrefetchTableOptions, text: &str) -> Result<(), Refusal>;
}

impl<T: OptionValue> AnyField for Field<T> {
    fn kind(&self) -> &'static str {
        T::KIND
    }

    fn show(&self, mut settings: PrefetchSettings) -> String {
        (self.settings)(&mut settings).to_string()
    }

    fn set(&self, settings: &mut PrefetchSettings, text: &str) -> Result<(), Refusal> {
        *(self.settings)(settings) = T::parse(text)?;
        Ok(())
    }

    fn set_to_default(&self, settings: &mut PrefetchSettings) {
        *(self.settings)(settings) = *(self.settings)(&mut PrefetchSettings::default());
    }

    fn set_on_table(&self, table: &mut PrefetchTableOptions, text: &str) -> Result<(), Refusal> {
        *(self.table)(table) = Some(T::parse(text)?);
        Ok(())
    }
}

impl OptionDefinition {
    /// The bare name, such as `prefetch_size`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The key under which any session that has the extension knows the option, such as
    /// `parquet_prefetch.prefetch_size`.
    pub fn extension_key(&self) -> String {
        format!("{}.{}", PrefetchOptions::PREFIX, self.name)
    }

    /// The key next to DataFusion's own Parquet options, such as
    /// `datafusion.execution.parquet.prefetch_size`. Only
    /// [`PrefetchSessionContext`](crate::PrefetchSessionContext) understands it.
    pub fn datafusion_key(&self) -> String {
        format!("{DATAFUSION_NAMESPACE}.{}", self.name)
    }

    /// The key in the options of a table, such as `format.prefetch_size`.
    pub fn table_key(&self) -> String {
        format!("{TABLE_NAMESPACE}.{}", self.name)
    }

    /// The environment variable that [`PrefetchOptions::from_env`] reads, such as
    /// `DATAFUSION_EXECUTION_PARQUET_PREFETCH_SIZE`.
    pub fn environment_variable(&self) -> String {
        self.datafusion_key().to_uppercase().replace('.', "_")
    }

    /// The kind of value: `byte size`, `choice` or `count`.
    pub fn kind(&self) -> &'static str {
        self.field.kind()
    }

    /// The default, as [`PrefetchOptions`] shows it.
    pub fn default_value(&self) -> String {
        self.value(PrefetchSettings::default())
    }

    /// What the option does, in a sentence or two.
    pub fn description(&self) -> &'static str {
        self.description
    }

    /// The option with this bare name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        DEFINITIONS
            .iter()
            .find(|definition| definition.name == name)
    }

    /// The option with this key in DataFusion's namespace.
    pub(crate) fn with_datafusion_key(key: &str) -> Option<&'static Self> {
        key.strip_prefix(DATAFUSION_NAMESPACE)
            .and_then(|rest| rest.strip_prefix('.'))
            .and_then(Self::named)
    }

    /// The entry for `SHOW` and `information_schema.df_settings`.
    ///
    /// The value is never absent: whoever ships a session's settings as text drops those without.
    pub(super) fn entry(&self, settings: PrefetchSettings) -> ConfigEntry {
        ConfigEntry {
            key: self.extension_key(),
            value: Some(self.value(settings)),
            description: self.description,
        }
    }

    /// The value as text, which [`Self::set`] reads back as the same value.
    pub(super) fn value(&self, settings: PrefetchSettings) -> String {
        self.field.show(settings)
    }

    /// Whether the option has another value than its default.
    pub(super) fn is_set(&self, settings: PrefetchSettings) -> bool {
        self.value(settings) != self.default_value()
    }

    /// Sets the session's value. `DEFAULT` is the default, since that text is what
    /// `SET key TO DEFAULT` hands over. `key` is only for the error.
    pub(super) fn set(
        &self,
        settings: &mut PrefetchSettings,
        key: &str,
        value: &str,
    ) -> Result<()> {
        if value.trim().eq_ignore_ascii_case("default") {
            self.field.set_to_default(settings);
            return Ok(());
        }
        self.field
            .set(settings, value)
            .or_else(|refusal| invalid_value(key, value, refusal))
    }

    /// Sets a table's override. `key` is only for the error.
    pub(super) fn set_on_table(
        &self,
        table: &mut PrefetchTableOptions,
        key: &str,
        value: &str,
    ) -> Result<()> {
        self.field
            .set_on_table(table, value)
            .or_else(|refusal| invalid_value(key, value, refusal))
    }
}

fn invalid_value(key: &str, value: &str, refusal: Refusal) -> Result<()> {
    let Refusal { reason, expected } = refusal;
    config_err!("Invalid value '{value}' for option '{key}': {reason}; expected {expected}")
}

impl fmt::Debug for OptionDefinition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OptionDefinition")
            .field("name", &self.name)
            .field("kind", &self.kind())
            .field("default_value", &self.default_value())
            .finish_non_exhaustive()
    }
}
