//! The options the crate knows, as one table: everything that names, reads, shows or documents an
//! option goes through it.

use std::fmt;

use datafusion::common::config_err;
use datafusion::config::{ConfigEntry, ConfigExtension};
use datafusion::error::Result;

use super::byte_size;
use super::{PrefetchOptions, PrefetchSettings, PrefetchTableOptions};

/// Where DataFusion keeps the options of its Parquet scans.
const DATAFUSION_NAMESPACE: &str = "datafusion.execution.parquet";

/// The prefix of format options in `CREATE EXTERNAL TABLE ... OPTIONS` and `COPY ... OPTIONS`.
const TABLE_NAMESPACE: &str = "format";

/// Every option, in the order in which they are documented and shown.
pub(super) static DEFINITIONS: &[OptionDefinition] = &[OptionDefinition {
    name: "prefetch_size",
    description: "Budget in bytes of a Parquet scan for row-group prefetch: when a read is \
         needed anyway, it is widened by the projected columns of complete subsequent row groups \
         while all bytes buffered, required and prefetched fit. What is required is always read. \
         0 turns prefetch off",
    kind: Kind::ByteSize(Field {
        settings: |settings| &mut settings.prefetch_size_bytes,
        table: |table| &mut table.prefetch_size_bytes,
    }),
}];

/// One option: its names, its meaning, and how its value is read and shown.
///
/// [`PrefetchOptions::definitions`] lists them all. A program with its own way to set options (a
/// command line, a settings file) can work from that list instead of naming the options itself.
pub struct OptionDefinition {
    name: &'static str,
    description: &'static str,
    kind: Kind,
}

/// The type of an option's value, and where the value is kept.
enum Kind {
    ByteSize(Field<u64>),
}

/// Where an option is kept in the session's settings and in a table's overrides. As the settings
/// are `Copy`, the one accessor serves for reading too.
struct Field<T> {
    settings: fn(&mut PrefetchSettings) -> &mut T,
    table: fn(&mut PrefetchTableOptions) -> &mut Option<T>,
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

    /// The kind of value, such as `byte size`.
    pub fn kind(&self) -> &'static str {
        match self.kind {
            Kind::ByteSize(_) => "byte size",
        }
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
    pub(super) fn value(&self, mut settings: PrefetchSettings) -> String {
        match &self.kind {
            Kind::ByteSize(field) => (field.settings)(&mut settings).to_string(),
        }
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
        let is_default = value.trim().eq_ignore_ascii_case("default");
        match &self.kind {
            Kind::ByteSize(field) => {
                *(field.settings)(settings) = if is_default {
                    *(field.settings)(&mut PrefetchSettings::default())
                } else {
                    parse_byte_size(key, value)?
                };
            }
        }
        Ok(())
    }

    /// Sets a table's override. `key` is only for the error.
    pub(super) fn set_on_table(
        &self,
        table: &mut PrefetchTableOptions,
        key: &str,
        value: &str,
    ) -> Result<()> {
        match &self.kind {
            Kind::ByteSize(field) => *(field.table)(table) = Some(parse_byte_size(key, value)?),
        }
        Ok(())
    }
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

fn parse_byte_size(key: &str, value: &str) -> Result<u64> {
    byte_size::parse(value).or_else(|reason| {
        config_err!(
            "Invalid value '{value}' for option '{key}': {reason}; expected {}",
            byte_size::EXPECTED
        )
    })
}
