//! The file format: stock's, with a source of our own.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{GetExt, Result, Statistics, internal_datafusion_err};
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::file_format::{FileFormat, FileMeta};
use datafusion::datasource::physical_plan::{
    FileScanConfig, FileSinkConfig, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::physical_expr::{LexOrdering, LexRequirement};
use datafusion::physical_plan::ExecutionPlan;
use log::debug;
use object_store::{ObjectMeta, ObjectStore};

use super::factory::PrefetchingParquetFormatFactory;
use super::facts::encryption_factory_of;
use super::source::PrefetchingParquetSource;
use crate::config::{PrefetchOptions, PrefetchSettings, PrefetchTableOptions};
use crate::fetch::ReaderChoice;

/// The Parquet format with scans that prefetch.
///
/// Schema, statistics and writing are [`ParquetFormat`]'s; statistics of files that are read with keys are not inferred, since a
/// listing table would share them with sessions that have no keys. A scan takes its settings when it is planned, from the table's
/// own options and the session's as they are then (see [`PrefetchSettings`] for which wins).
///
/// Registered by [`PrefetchingParquetFormatFactory`] for `STORED AS PARQUET`; construct one yourself for
/// [`ListingOptions::new`](datafusion::datasource::listing::ListingOptions::new).
#[derive(Debug)]
pub struct PrefetchingParquetFormat {
    inner: ParquetFormat,
    table_options: PrefetchTableOptions,
}

impl PrefetchingParquetFormat {
    /// Wraps stock's format, with all prefetching options left to the session.
    pub fn new(inner: ParquetFormat) -> Self {
        Self {
            inner,
            table_options: PrefetchTableOptions::default(),
        }
    }

    /// Sets the table's own prefetching options.
    pub fn with_table_options(mut self, table_options: PrefetchTableOptions) -> Self {
        self.table_options = table_options;
        self
    }

    /// The wrapped format.
    pub fn inner(&self) -> &ParquetFormat {
        &self.inner
    }

    /// Whether what is inferred of a file may hold decrypted values. A listing table keeps statistics in a cache of the runtime
    /// environment, where a session without the keys finds them too.
    fn withholds_statistics(&self, state: &dyn Session) -> bool {
        let crypto = &self.inner.options().crypto;
        let options = PrefetchOptions::from_config(state.config_options());
        (crypto.file_decryption.is_some() || crypto.factory_id.is_some())
            && !PrefetchSettings::resolve(&self.table_options, &options).is_off()
    }

    /// The table's own prefetching options.
    pub fn table_options(&self) -> &PrefetchTableOptions {
        &self.table_options
    }
}

impl Default for PrefetchingParquetFormat {
    fn default() -> Self {
        Self::new(ParquetFormat::default())
    }
}

#[async_trait]
impl FileFormat for PrefetchingParquetFormat {
    fn get_ext(&self) -> String {
        PrefetchingParquetFormatFactory::new().get_ext()
    }

    fn get_ext_with_compression(
        &self,
        file_compression_type: &FileCompressionType,
    ) -> Result<String> {
        self.inner.get_ext_with_compression(file_compression_type)
    }

    fn compression_type(&self) -> Option<FileCompressionType> {
        self.inner.compression_type()
    }

    async fn infer_schema(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        objects: &[ObjectMeta],
    ) -> Result<SchemaRef> {
        self.inner.infer_schema(state, store, objects).await
    }

    async fn infer_stats(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Statistics> {
        if self.withholds_statistics(state) {
            return Ok(Statistics::new_unknown(&table_schema));
        }
        self.inner
            .infer_stats(state, store, table_schema, object)
            .await
    }

    async fn infer_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<Option<LexOrdering>> {
        self.inner
            .infer_ordering(state, store, table_schema, object)
            .await
    }

    async fn infer_stats_and_ordering(
        &self,
        state: &dyn Session,
        store: &Arc<dyn ObjectStore>,
        table_schema: SchemaRef,
        object: &ObjectMeta,
    ) -> Result<FileMeta> {
        if self.withholds_statistics(state) {
            let statistics = Statistics::new_unknown(&table_schema);
            let ordering = self.infer_ordering(state, store, table_schema, object);
            return Ok(FileMeta::new(statistics).with_ordering(ordering.await?));
        }
        self.inner
            .infer_stats_and_ordering(state, store, table_schema, object)
            .await
    }

    async fn create_physical_plan(
        &self,
        state: &dyn Session,
        conf: FileScanConfig,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut conf = conf;
        let mut factory_of_source = None;
        if let Some(source) = conf
            .file_source()
            .downcast_ref::<PrefetchingParquetSource>()
        {
            factory_of_source = source.encryption_factory().cloned();
            conf.file_source = Arc::new(source.inner().clone());
        }
        let plan = self.inner.create_physical_plan(state, conf).await?;
        let (config, source) = plan
            .downcast_ref::<DataSourceExec>()
            .and_then(|exec| exec.downcast_to_file_source::<ParquetSource>())
            .ok_or_else(|| {
                internal_datafusion_err!("the Parquet format planned a scan of another kind")
            })?;
        let session_options = PrefetchOptions::from_config(state.config_options());
        let settings = PrefetchSettings::resolve(&self.table_options, &session_options);
        if settings.is_off() && session_options.settings().is_off() {
            // Nobody asked for anything, so the plan is stock's, also to whoever takes it apart or sends it elsewhere.
            return Ok(plan);
        }
        // One that the source has stays there, unless the format's options name another.
        let encryption_factory =
            encryption_factory_of(source, state.runtime_env()).or(factory_of_source);
        let source = match PrefetchingParquetSource::try_new_with_factory_of(
            source.clone(),
            settings,
            encryption_factory,
        ) {
            Ok(source) => source
                .with_readers(ReaderChoice::Cached)
                .with_runtime_env(Arc::clone(state.runtime_env())),
            Err(error) => {
                debug!("a Parquet scan stays stock's: {error}");
                return Ok(plan);
            }
        };
        Ok(source.into_exec(config))
    }

    async fn create_writer_physical_plan(
        &self,
        input: Arc<dyn ExecutionPlan>,
        state: &dyn Session,
        conf: FileSinkConfig,
        order_requirements: Option<LexRequirement>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.inner
            .create_writer_physical_plan(input, state, conf, order_requirements)
            .await
    }

    fn file_source(&self, table_schema: TableSchema) -> Arc<dyn FileSource> {
        let inner = self.inner.file_source(table_schema);
        let settings = PrefetchSettings::resolve(&self.table_options, &PrefetchOptions::default());
        let source = inner
            .downcast_ref::<ParquetSource>()
            .map(|inner| PrefetchingParquetSource::try_new(inner.clone(), settings));
        match source {
            // For a provider that makes its scan of this: `create_physical_plan` settles it, or else the rule does.
            Some(Ok(source)) => Arc::new(source.with_settings_left_open(self.table_options)),
            // Reads all the same, and the rule will look at it.
            _ => inner,
        }
    }
}
