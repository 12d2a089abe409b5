//! What a table says, and what a scan goes by.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;

use datafusion::common::config_err;
use datafusion::config::ConfigOptions;
use datafusion::error::Result;

use super::definition::DEFINITIONS;
use super::{ConditionalReadAhead, PrefetchOptions};

/// The settings of one scan, checked.
///
/// # Precedence
///
/// For each option on its own: what the **table** says (`CREATE EXTERNAL TABLE ... OPTIONS`), else
/// what the **session** says at the time the query is planned (`SET`, environment), else the
/// **default**. A table that turns an option off stays off, whatever the session says.
/// [`Self::resolve`] is the one place where this is decided.
///
/// # Display
///
/// For `EXPLAIN`: the options that differ from their defaults, as `prefetch_size=20971520`,
/// separated by `, `; nothing if there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PrefetchSettings {
    /// The budget for row-group prefetch in bytes; 0 is off.
    pub prefetch_size_bytes: u64,
    /// The budget of one partition's scan for reading ahead in the background, in bytes; 0 is off.
    pub read_ahead_bytes: u64,
    /// Whether bytes that are needed only if a row filter keeps rows are read ahead too.
    pub read_ahead_conditional: ConditionalReadAhead,
    /// How many files of one partition's scan may be opened ahead of the one that is being decoded;
    /// 0 keeps read-ahead within that file.
    pub read_ahead_files: usize,
    /// Requests for more bytes than this are split, and the parts fetched in parallel; 0 never
    /// splits.
    pub max_request_bytes: u64,
    /// How many requests of one scan, all its partitions together, may be in flight at the same
    /// time. What the decoder waits for does not queue behind what is read ahead.
    pub max_requests: NonZeroUsize,
}

/// Everything off. What only says how a scan of ours goes about it has the value to begin with once
/// something is on: files to open ahead 256, requests of at most 8 MiB, 256 at the same time.
impl Default for PrefetchSettings {
    fn default() -> Self {
        Self {
            prefetch_size_bytes: 0,
            read_ahead_bytes: 0,
            read_ahead_conditional: ConditionalReadAhead::default(),
            read_ahead_files: 256,
            max_request_bytes: 8 << 20,
            // 256, in the way in which nothing can fail.
            max_requests: NonZeroUsize::MIN.saturating_add(255),
        }
    }
}

impl PrefetchSettings {
    /// Decides between what the table and what the session say; see [Precedence](Self#precedence).
    pub fn resolve(table: &PrefetchTableOptions, session: &PrefetchOptions) -> Self {
        let PrefetchTableOptions {
            prefetch_size_bytes,
            read_ahead_bytes,
            read_ahead_conditional,
            read_ahead_files,
            max_request_bytes,
            max_requests,
        } = *table;
        let session = session.settings();
        Self {
            prefetch_size_bytes: prefetch_size_bytes.unwrap_or(session.prefetch_size_bytes),
            read_ahead_bytes: read_ahead_bytes.unwrap_or(session.read_ahead_bytes),
            read_ahead_conditional: read_ahead_conditional
                .unwrap_or(session.read_ahead_conditional),
            read_ahead_files: read_ahead_files.unwrap_or(session.read_ahead_files),
            max_request_bytes: max_request_bytes.unwrap_or(session.max_request_bytes),
            max_requests: max_requests.unwrap_or(session.max_requests),
        }
    }

    /// The session's settings, for a scan of a table without options of its own; the defaults if
    /// `config` does not have [`PrefetchOptions`].
    pub fn from_config(config: &ConfigOptions) -> Self {
        Self::resolve(
            &PrefetchTableOptions::default(),
            &PrefetchOptions::from_config(config),
        )
    }

    /// With this budget for row-group prefetch in bytes; 0 is off.
    pub fn with_prefetch_size_bytes(mut self, bytes: u64) -> Self {
        self.prefetch_size_bytes = bytes;
        self
    }

    /// With this budget for reading ahead in the background, in bytes; 0 is off.
    pub fn with_read_ahead_bytes(mut self, bytes: u64) -> Self {
        self.read_ahead_bytes = bytes;
        self
    }

    /// With this answer to whether bytes that are needed only if a row filter keeps rows are read
    /// ahead too.
    pub fn with_read_ahead_conditional(mut self, conditional: ConditionalReadAhead) -> Self {
        self.read_ahead_conditional = conditional;
        self
    }

    /// With this many files that may be opened ahead of the one that is being decoded; 0 keeps
    /// read-ahead within that file.
    pub fn with_read_ahead_files(mut self, files: usize) -> Self {
        self.read_ahead_files = files;
        self
    }

    /// With requests split that are for more bytes than this; 0 never splits.
    pub fn with_max_request_bytes(mut self, bytes: u64) -> Self {
        self.max_request_bytes = bytes;
        self
    }

    /// With at most this many requests of one scan in flight at the same time.
    pub fn with_max_requests(mut self, requests: NonZeroUsize) -> Self {
        self.max_requests = requests;
        self
    }

    /// Whether nothing at all is read before it is asked for, so that the stock path can be taken.
    /// The options that say how something is read ahead turn nothing on.
    pub fn is_off(&self) -> bool {
        let Self {
            prefetch_size_bytes,
            read_ahead_bytes,
            read_ahead_conditional: _,
            read_ahead_files: _,
            max_request_bytes: _,
            max_requests: _,
        } = *self;
        prefetch_size_bytes == 0 && read_ahead_bytes == 0
    }
}

impl fmt::Display for PrefetchSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = DEFINITIONS.iter().filter(|option| option.is_set(*self));
        for (i, option) in shown.enumerate() {
            let separator = if i == 0 { "" } else { ", " };
            write!(f, "{separator}{}={}", option.name(), option.value(*self))?;
        }
        Ok(())
    }
}

/// What one table says about the options, each of which it may leave to the session.
///
/// For the order in which table and session count, see [`PrefetchSettings`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct PrefetchTableOptions {
    /// The budget for row-group prefetch in bytes. `Some(0)` turns it off for this table, `None`
    /// leaves it to the session.
    pub prefetch_size_bytes: Option<u64>,
    /// The budget for reading ahead in the background, in bytes. `Some(0)` turns it off for this
    /// table, `None` leaves it to the session.
    pub read_ahead_bytes: Option<u64>,
    /// Whether bytes that are needed only if a row filter keeps rows are read ahead too. `None`
    /// leaves it to the session.
    pub read_ahead_conditional: Option<ConditionalReadAhead>,
    /// How many files may be opened ahead of the one that is being decoded. `Some(0)` keeps
    /// read-ahead within that file, `None` leaves it to the session.
    pub read_ahead_files: Option<usize>,
    /// Requests for more bytes than this are split. `Some(0)` never splits, `None` leaves it to the
    /// session.
    pub max_request_bytes: Option<u64>,
    /// How many requests of one scan may be in flight at the same time. `None` leaves it to the
    /// session.
    pub max_requests: Option<NonZeroUsize>,
}

impl PrefetchTableOptions {
    /// Takes our options out of the format options of a table, and returns the others as they are.
    ///
    /// An option is found under its table key, `format.prefetch_size`, which is how DataFusion's SQL
    /// hands it over (it adds the `format.` where a statement leaves it out, and lower-cases the key),
    /// and under its bare name, `prefetch_size`, which is the form that
    /// [`ParquetFormatFactory::new_with_options`] wants for its own. As everywhere in DataFusion
    /// below the SQL, keys are case-sensitive. Empty text, `NULL` and `0` turn off an option that
    /// is a byte size; for the others, empty text and `NULL` are not valid.
    ///
    /// # Errors
    ///
    /// A configuration error naming key and value if a value is not valid, or naming both keys if an
    /// option is given twice.
    ///
    /// [`ParquetFormatFactory::new_with_options`]: datafusion::datasource::file_format::parquet::ParquetFormatFactory::new_with_options
    pub fn split(options: &HashMap<String, String>) -> Result<(Self, HashMap<String, String>)> {
        let mut table = Self::default();
        let mut others = options.clone();
        for option in DEFINITIONS {
            let table_key = option.table_key();
            let (key, value) = match (others.remove(&table_key), others.remove(option.name())) {
                (None, None) => continue,
                (Some(value), None) => (table_key.as_str(), value),
                (None, Some(value)) => (option.name(), value),
                (Some(_), Some(_)) => {
                    return config_err!(
                        "Option '{table_key}' is given twice, the second time as '{}'",
                        option.name()
                    );
                }
            };
            option.set_on_table(&mut table, key, &value)?;
        }
        Ok((table, others))
    }

    /// With this budget for row-group prefetch in bytes; `Some(0)` is off, `None` leaves it to the
    /// session.
    pub fn with_prefetch_size_bytes(mut self, bytes: Option<u64>) -> Self {
        self.prefetch_size_bytes = bytes;
        self
    }

    /// With this budget for reading ahead in the background, in bytes; `Some(0)` is off, `None`
    /// leaves it to the session.
    pub fn with_read_ahead_bytes(mut self, bytes: Option<u64>) -> Self {
        self.read_ahead_bytes = bytes;
        self
    }

    /// With this answer to whether bytes that are needed only if a row filter keeps rows are read
    /// ahead too; `None` leaves it to the session.
    pub fn with_read_ahead_conditional(
        mut self,
        conditional: Option<ConditionalReadAhead>,
    ) -> Self {
        self.read_ahead_conditional = conditional;
        self
    }

    /// With this many files that may be opened ahead of the one that is being decoded; `Some(0)`
    /// keeps read-ahead within that file, `None` leaves it to the session.
    pub fn with_read_ahead_files(mut self, files: Option<usize>) -> Self {
        self.read_ahead_files = files;
        self
    }

    /// With requests split that are for more bytes than this; `Some(0)` never splits, `None` leaves
    /// it to the session.
    pub fn with_max_request_bytes(mut self, bytes: Option<u64>) -> Self {
        self.max_request_bytes = bytes;
        self
    }

    /// With at most this many requests of one scan in flight at the same time; `None` leaves it to
    /// the session.
    pub fn with_max_requests(mut self, requests: Option<NonZeroUsize>) -> Self {
        self.max_requests = requests;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OptionDefinition;
    use rstest::rstest;

    fn map(options: &[(&str, &str)]) -> HashMap<String, String> {
        options
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    /// A value for the table and another one for the session, neither of them the default.
    #[rstest]
    #[case::prefetch_size("prefetch_size", "5", "7")]
    #[case::read_ahead_bytes("read_ahead_bytes", "5", "7")]
    #[case::read_ahead_conditional("read_ahead_conditional", "never", "adaptive")]
    #[case::read_ahead_files("read_ahead_files", "0", "7")]
    #[case::max_request_bytes("max_request_bytes", "0", "7")]
    #[case::max_requests("max_requests", "1", "7")]
    fn precedence(#[case] name: &str, #[case] of_table: &str, #[case] of_session: &str) {
        let option = OptionDefinition::named(name).unwrap();
        let default = option.default_value();
        for (table, session, expected) in [
            (None, None, default.as_str()),
            (None, Some(of_session), of_session),
            (Some(of_table), None, of_table),
            (Some(of_table), Some(of_session), of_table),
            (Some(default.as_str()), Some(of_session), &default),
            (None, Some(default.as_str()), &default),
        ] {
            let mut table_options = PrefetchTableOptions::default();
            if let Some(value) = table {
                option
                    .set_on_table(&mut table_options, name, value)
                    .unwrap();
            }
            let mut options = PrefetchOptions::default();
            if let Some(value) = session {
                options.set_option(option, name, value).unwrap();
            }
            let settings = PrefetchSettings::resolve(&table_options, &options);
            assert_eq!(option.value(settings), expected, "{table:?}, {session:?}");
            // The other options go by what was said of them, which is nothing.
            let shown = if expected == default {
                String::new()
            } else {
                format!("{name}={expected}")
            };
            assert_eq!(settings.to_string(), shown);
        }
    }

    #[test]
    fn each_setter_sets_its_own_option() {
        let requests = NonZeroUsize::new(6).unwrap();
        let settings = PrefetchSettings::default()
            .with_prefetch_size_bytes(1)
            .with_read_ahead_bytes(2)
            .with_read_ahead_conditional(ConditionalReadAhead::Never)
            .with_read_ahead_files(4)
            .with_max_request_bytes(5)
            .with_max_requests(requests);
        assert_eq!(
            settings.to_string(),
            "prefetch_size=1, read_ahead_bytes=2, read_ahead_conditional=never, \
             read_ahead_files=4, max_request_bytes=5, max_requests=6"
        );
        let options = PrefetchOptions::new()
            .with_prefetch_size_bytes(1)
            .with_read_ahead_bytes(2)
            .with_read_ahead_conditional(ConditionalReadAhead::Never)
            .with_read_ahead_files(4)
            .with_max_request_bytes(5)
            .with_max_requests(requests);
        assert_eq!(options.settings(), settings);
        let table = PrefetchTableOptions::default()
            .with_prefetch_size_bytes(Some(1))
            .with_read_ahead_bytes(Some(2))
            .with_read_ahead_conditional(Some(ConditionalReadAhead::Never))
            .with_read_ahead_files(Some(4))
            .with_max_request_bytes(Some(5))
            .with_max_requests(Some(requests));
        assert_eq!(
            PrefetchSettings::resolve(&table, &PrefetchOptions::new()),
            settings
        );
    }

    #[test]
    fn only_a_budget_turns_something_on() {
        let off = PrefetchSettings::default();
        assert_eq!(off.to_string(), "");
        let still_off = off
            .with_read_ahead_conditional(ConditionalReadAhead::Never)
            .with_read_ahead_files(1)
            .with_max_request_bytes(1)
            .with_max_requests(NonZeroUsize::MIN);
        for (settings, is_off) in [
            (off, true),
            (still_off, true),
            (off.with_prefetch_size_bytes(1), false),
            (off.with_read_ahead_bytes(1), false),
        ] {
            assert_eq!(settings.is_off(), is_off, "{settings}");
        }
    }

    #[test]
    fn split_takes_ours_and_leaves_the_others() {
        let (table, others) = PrefetchTableOptions::split(&map(&[
            ("format.prefetch_size", "20 MiB"),
            ("format.read_ahead_bytes", "1G"),
            ("read_ahead_conditional", "ADAPTIVE"),
            ("format.read_ahead_files", "+3"),
            ("format.max_request_bytes", "NULL"),
            ("max_requests", " 4 "),
            ("format.pruning", "true"),
            ("format.prefetch_size::column", "1"),
            ("FORMAT.PREFETCH_SIZE", "1"),
            ("execution.parquet.prefetch_size", "1"),
        ]))
        .unwrap();
        assert_eq!(
            table,
            PrefetchTableOptions {
                prefetch_size_bytes: Some(20 << 20),
                read_ahead_bytes: Some(1 << 30),
                read_ahead_conditional: Some(ConditionalReadAhead::Adaptive),
                read_ahead_files: Some(3),
                max_request_bytes: Some(0),
                max_requests: NonZeroUsize::new(4),
            }
        );
        assert_eq!(
            others,
            map(&[
                ("format.pruning", "true"),
                ("format.prefetch_size::column", "1"),
                ("FORMAT.PREFETCH_SIZE", "1"),
                ("execution.parquet.prefetch_size", "1"),
            ])
        );
    }

    #[rstest]
    #[case::absent(&[], None)]
    #[case::zero(&[("format.prefetch_size", "0")], Some(0))]
    #[case::empty(&[("format.prefetch_size", "")], Some(0))]
    #[case::null(&[("format.prefetch_size", "NULL")], Some(0))]
    #[case::bare_name(&[("prefetch_size", "9")], Some(9))]
    fn absent_is_not_off(#[case] options: &[(&str, &str)], #[case] expected: Option<u64>) {
        let (table, others) = PrefetchTableOptions::split(&map(options)).unwrap();
        assert_eq!(table.prefetch_size_bytes, expected);
        assert_eq!(others, HashMap::new());
    }

    #[rstest]
    #[case::garbage(&[("format.prefetch_size", "many")], &["'format.prefetch_size'", "'many'"])]
    #[case::default_is_the_sessions_word(&[("prefetch_size", "default")], &["'prefetch_size'", "'default'"])]
    #[case::no_choice(
        &[("format.read_ahead_conditional", "")],
        &["'format.read_ahead_conditional'", "''", "one of: always, never, adaptive"]
    )]
    #[case::no_count(&[("read_ahead_files", "NULL")], &["'read_ahead_files'", "'NULL'", "from 0 to"])]
    #[case::zero_requests(&[("format.max_requests", "0")], &["'format.max_requests'", "'0'", "from 1 to"])]
    #[case::twice(
        &[("format.prefetch_size", "1"), ("prefetch_size", "1")],
        &["'format.prefetch_size'", "'prefetch_size'", "twice"]
    )]
    fn split_errors_name_the_key(#[case] options: &[(&str, &str)], #[case] parts: &[&str]) {
        let error = PrefetchTableOptions::split(&map(options))
            .unwrap_err()
            .to_string();
        for part in parts {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}
