//! Sessions that read with stock's scan or with ours, and the tables in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::error::Result;
use datafusion::execution::memory_pool::{MemoryPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext, col};
use datafusion_parquet_prefetch::{
    ConditionalReadAhead, PrefetchOptions, PrefetchSessionStateBuilderExt,
};
use object_store::ObjectStore;
use url::Url;

/// Where the tests' store is registered.
pub(crate) const BUCKET: &str = "mem://bucket";

/// Whose scan a session reads with. A `prefetch_size` of `None` leaves the option off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scan {
    /// A session that never heard of this crate.
    Stock,
    /// Tables are made by `CREATE EXTERNAL TABLE`, and so by our format.
    Prefetch { prefetch_size: Option<u64> },
    /// Tables are made by stock's `register_parquet`, and converted by our rule.
    PrefetchByRule { prefetch_size: Option<u64> },
    /// As `Prefetch`, and reads ahead.
    ReadAhead(Ahead),
    /// As `PrefetchByRule`, and reads ahead.
    ReadAheadByRule(Ahead),
}

/// How a scan reads ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub(crate) bytes: u64,
    pub(crate) prefetch_size: u64,
    pub(crate) conditional: ConditionalReadAhead,
}

/// Reads up to `bytes` ahead, and widens no fetch.
pub(crate) const fn ahead(bytes: u64) -> Scan {
    Scan::ReadAhead(Ahead {
        bytes,
        prefetch_size: 0,
        conditional: ConditionalReadAhead::Always,
    })
}

/// As [`ahead`], for stock's tables, and with fetches that are widened by `prefetch_size`.
pub(crate) const fn ahead_by_rule(bytes: u64, prefetch_size: u64) -> Scan {
    Scan::ReadAheadByRule(Ahead {
        bytes,
        prefetch_size,
        conditional: ConditionalReadAhead::Adaptive,
    })
}

impl Scan {
    /// The way in which this scan's tables come to be.
    pub(crate) fn registration(self) -> Registration {
        match self {
            Scan::Stock | Scan::Prefetch { .. } | Scan::ReadAhead(_) => {
                Registration::CreateExternalTable
            }
            Scan::PrefetchByRule { .. } | Scan::ReadAheadByRule(_) => Registration::RegisterParquet,
        }
    }
}

/// How a table is made known to a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registration {
    CreateExternalTable,
    RegisterParquet,
}

/// A session that reads with `scan`.
pub(crate) fn session(
    scan: Scan,
    config: SessionConfig,
    runtime: Arc<RuntimeEnv>,
) -> SessionContext {
    let options = PrefetchOptions::new();
    let options = match scan {
        Scan::Stock => return SessionContext::new_with_config_rt(config, runtime),
        Scan::Prefetch { prefetch_size } | Scan::PrefetchByRule { prefetch_size } => {
            options.with_prefetch_size_bytes(prefetch_size.unwrap_or(0))
        }
        Scan::ReadAhead(ahead) | Scan::ReadAheadByRule(ahead) => options
            .with_read_ahead_bytes(ahead.bytes)
            .with_prefetch_size_bytes(ahead.prefetch_size)
            .with_read_ahead_conditional(ahead.conditional),
    };
    let state = SessionStateBuilder::new()
        .with_config(config.with_option_extension(options))
        .with_runtime_env(runtime)
        .with_default_features()
        .with_parquet_prefetch()
        .build();
    SessionContext::new_with_state(state)
}

/// A runtime that finds `store` at [`BUCKET`].
pub(crate) fn runtime(store: Arc<dyn ObjectStore>) -> Arc<RuntimeEnv> {
    runtime_with_pool(store, Arc::new(UnboundedMemoryPool::default()))
}

/// As [`runtime`], with a memory pool of the test's choice.
pub(crate) fn runtime_with_pool(
    store: Arc<dyn ObjectStore>,
    pool: Arc<dyn MemoryPool>,
) -> Arc<RuntimeEnv> {
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(pool)
        .build_arc()
        .unwrap();
    runtime.register_object_store(&Url::parse(BUCKET).unwrap(), store);
    runtime
}

/// Stock's configuration with settings by their full keys.
pub(crate) fn config<K: AsRef<str>, V: AsRef<str>>(
    settings: impl IntoIterator<Item = (K, V)>,
) -> SessionConfig {
    let mut config = SessionConfig::new();
    for (key, value) in settings {
        config
            .options_mut()
            .set(key.as_ref(), value.as_ref())
            .unwrap();
    }
    config
}

/// One partition, and nothing else that differs from stock.
pub(crate) fn one_partition() -> SessionConfig {
    SessionConfig::new().with_target_partitions(1)
}

/// A table of Parquet files.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    name: String,
    location: String,
    columns: Option<String>,
    schema: Option<Schema>,
    partitioned_by: Vec<(String, DataType)>,
    order: Vec<String>,
    options: BTreeMap<String, String>,
}

impl Table {
    /// A table of the object at `path` in [`BUCKET`], or of all objects below it if it ends in
    /// a slash.
    pub(crate) fn new(name: &str, path: &str) -> Self {
        Self::at(name, &format!("{BUCKET}/{path}"))
    }

    /// A table at a whole URL.
    pub(crate) fn at(name: &str, url: &str) -> Self {
        Self {
            name: name.to_owned(),
            location: url.to_owned(),
            columns: None,
            schema: None,
            partitioned_by: Vec::new(),
            order: Vec::new(),
            options: BTreeMap::new(),
        }
    }

    /// The columns of the files as SQL declares them, instead of being inferred.
    pub(crate) fn with_columns(mut self, columns: &str) -> Self {
        self.columns = Some(columns.to_owned());
        self
    }

    /// The columns of the files as a schema, which only `register_parquet` takes.
    pub(crate) fn with_schema(mut self, schema: Schema) -> Self {
        self.schema = Some(schema);
        self
    }

    /// A column that the folder names hold: of text or of 32-bit integers.
    pub(crate) fn partitioned_by(mut self, column: &str, data_type: DataType) -> Self {
        self.partitioned_by.push((column.to_owned(), data_type));
        self
    }

    /// The columns by which each file is sorted, ascending, nulls last.
    pub(crate) fn with_order(mut self, columns: &[&str]) -> Self {
        self.order = columns.iter().map(|&column| column.to_owned()).collect();
        self
    }

    /// A table option of `CREATE EXTERNAL TABLE`.
    pub(crate) fn with_option(mut self, key: &str, value: &str) -> Self {
        self.options.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Makes the table known to `ctx`.
    pub(crate) async fn register(
        &self,
        ctx: &SessionContext,
        registration: Registration,
    ) -> Result<()> {
        match registration {
            Registration::CreateExternalTable => {
                Box::pin(ctx.sql(&self.statement())).await?;
            }
            Registration::RegisterParquet => {
                assert!(
                    self.options.is_empty(),
                    "only a statement takes table options"
                );
                let schema = self.file_schema(ctx).await?;
                let order = self
                    .order
                    .iter()
                    .map(|name| col(name.as_str()).sort(true, false));
                let options = ParquetReadOptions {
                    table_partition_cols: self.partitioned_by.clone(),
                    schema: schema.as_ref(),
                    file_sort_order: if self.order.is_empty() {
                        Vec::new()
                    } else {
                        vec![order.collect()]
                    },
                    ..ParquetReadOptions::default()
                };
                Box::pin(ctx.register_parquet(&self.name, &self.location, options)).await?;
            }
        }
        Ok(())
    }

    fn statement(&self) -> String {
        assert!(self.schema.is_none(), "a statement takes no schema");
        let Self {
            name,
            location,
            columns,
            schema: _,
            partitioned_by,
            order,
            options,
        } = self;
        let mut sql = format!("CREATE EXTERNAL TABLE {name}");
        let partitions: Vec<String> = partitioned_by
            .iter()
            .map(|(column, data_type)| {
                let sql_type = match data_type {
                    DataType::Int32 => "INT",
                    DataType::Utf8View => "VARCHAR",
                    other => unreachable!("no partition column of {other} is made here"),
                };
                format!("{column} {sql_type}")
            })
            .collect();
        let columns = columns
            .iter()
            .cloned()
            .chain(partitions)
            .collect::<Vec<_>>();
        if self.columns.is_some() {
            sql += &format!(" ({})", columns.join(", "));
        }
        sql += " STORED AS PARQUET";
        if !partitioned_by.is_empty() {
            let names: Vec<&str> = partitioned_by
                .iter()
                .map(|(name, _)| name.as_str())
                .collect();
            sql += &format!(" PARTITIONED BY ({})", names.join(", "));
        }
        if !order.is_empty() {
            sql += &format!(" WITH ORDER ({})", order.join(", "));
        }
        sql += &format!(" LOCATION '{location}'");
        if !options.is_empty() {
            let options: Vec<String> = options
                .iter()
                .map(|(key, value)| format!("'{key}' '{value}'"))
                .collect();
            sql += &format!(" OPTIONS ({})", options.join(", "));
        }
        sql
    }

    /// The declared columns of the files, as the SQL planner of `ctx` understands them.
    async fn file_schema(&self, ctx: &SessionContext) -> Result<Option<Schema>> {
        let Some(columns) = &self.columns else {
            return Ok(self.schema.clone());
        };
        Box::pin(ctx.sql(&format!("CREATE TABLE declared_columns ({columns})"))).await?;
        let schema = ctx
            .table("declared_columns")
            .await?
            .schema()
            .as_arrow()
            .clone();
        ctx.deregister_table("declared_columns")?;
        Ok(Some(schema))
    }
}
