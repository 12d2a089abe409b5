//! The source of a scan: stock's, with reading replaced.

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_datafusion_err, plan_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetFileReaderFactory;
use datafusion::datasource::physical_plan::{
    FileOpener, FileScanConfig, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::parquet_encryption::EncryptionFactory;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::filter_pushdown::FilterPushdownPropagation;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayFormatType, SortOrderPushdownResult};
use datafusion_datasource::morsel::Morselizer;
use object_store::ObjectStore;

use super::facts::SourceFacts;
use super::opener::OpenerMorselizer;
use super::siblings::Siblings;
use crate::config::{PrefetchOptions, PrefetchSettings, PrefetchTableOptions};
use crate::fetch::{ReaderChoice, RequestLimits};
use crate::open::order::{SortPushdown, SortPushdownOutcome, reorder_files, sort_pushdown};

/// A [`FileSource`] that plans as [`ParquetSource`] does and prefetches row groups while it reads.
///
/// Every planning method is the wrapped source's; what it returns is wrapped again with the same settings. With
/// [`PrefetchSettings::is_off`] reading is the wrapped source's too, so a scan without prefetching *is* stock's scan.
///
/// # Who makes one
/// [`PrefetchingParquetFormat`](crate::PrefetchingParquetFormat) for the tables of its format, and
/// [`PrefetchRule`](crate::PrefetchRule) for scans that were planned with a [`ParquetSource`]. Build one by hand only for a
/// [`FileScanConfig`] of your own that no rule will see.
#[derive(Debug, Clone)]
pub struct PrefetchingParquetSource {
    pub(super) inner: ParquetSource,
    pub(super) settings: PrefetchSettings,
    /// What stock's source keeps to itself, worked out by the same rule.
    pub(super) sort: SortPushdown,
    pub(super) batch_size: Option<usize>,
    pub(super) metadata_size_hint: Option<usize>,
    /// The one that `inner` has, which does not give it away.
    pub(super) encryption_factory: Option<Arc<dyn EncryptionFactory>>,
    pub(super) readers: ReaderChoice,
    pub(super) runtime: Option<Arc<RuntimeEnv>>,
    /// The options of its table, while the session's have not been asked.
    unsettled: Option<PrefetchTableOptions>,
    /// Shared by the partitions of a scan, which are made from clones.
    pub(super) limits: Arc<OnceLock<RequestLimits>>,
    pub(super) siblings: Siblings,
}

impl PrefetchingParquetSource {
    /// Wraps `inner`, with `settings` as they are.
    ///
    /// # Errors
    /// Where `inner` has already been through [`FileSource::try_pushdown_sort`], or has an encryption factory and no
    /// decryption properties, which would go before it: both are private to a stock source, and would be lost. Give the
    /// factory to [`Self::with_encryption_factory`] instead.
    pub fn try_new(inner: ParquetSource, settings: PrefetchSettings) -> Result<Self> {
        Self::try_new_with_factory_of(inner, settings, None)
    }

    /// As [`Self::try_new`], for who knows the encryption factory that `inner` has.
    pub(super) fn try_new_with_factory_of(
        inner: ParquetSource,
        settings: PrefetchSettings,
        encryption_factory: Option<Arc<dyn EncryptionFactory>>,
    ) -> Result<Self> {
        let facts = SourceFacts::of(&inner)?;
        let needs_factory = facts.has_encryption_factory
            && inner
                .table_parquet_options()
                .crypto
                .file_decryption
                .is_none();
        if needs_factory && encryption_factory.is_none() {
            return plan_err!(
                "the encryption factory of this Parquet scan is private to it, and is not the one that the session has \
                under the id in its options"
            );
        }
        let readers = ReaderChoice::of(inner.parquet_file_reader_factory(), None);
        Ok(Self {
            inner,
            settings,
            sort: SortPushdown::default(),
            batch_size: None,
            metadata_size_hint: facts.metadata_size_hint,
            encryption_factory,
            readers,
            runtime: None,
            unsettled: None,
            limits: Arc::default(),
            siblings: Siblings::default(),
        })
    }

    /// Accounts for prefetched bytes in the memory pool of `runtime`, and shares its cache of file metadata.
    pub fn with_runtime_env(mut self, runtime: Arc<RuntimeEnv>) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Asks `factory` for the keys of each file, unless the table's options hold decryption properties. The factory is given
    /// the `factory_options` in them.
    pub fn with_encryption_factory(mut self, factory: Arc<dyn EncryptionFactory>) -> Self {
        self.inner = self.inner.with_encryption_factory(Arc::clone(&factory));
        self.encryption_factory = Some(factory);
        self
    }

    /// Reads by what was decided about the factory that is set on the source.
    pub(super) fn with_readers(mut self, readers: ReaderChoice) -> Self {
        self.readers = readers;
        self
    }

    /// Leaves it to [`PrefetchRule`](crate::PrefetchRule) to settle what a table with `table_options` does in a session.
    pub(super) fn with_settings_left_open(mut self, table_options: PrefetchTableOptions) -> Self {
        self.unsettled = Some(table_options);
        self
    }

    /// This source with its settings settled by the session's `options`, if they have been left open.
    pub(super) fn settled(
        &self,
        options: &PrefetchOptions,
        runtime: &Arc<RuntimeEnv>,
    ) -> Option<Self> {
        let table_options = self.unsettled.as_ref()?;
        let mut settled = self.clone();
        settled.settings = PrefetchSettings::resolve(table_options, options);
        settled.unsettled = None;
        settled.limits = Arc::default();
        settled.runtime.get_or_insert_with(|| Arc::clone(runtime));
        Some(settled)
    }

    /// The wrapped source. Its sort pushdown is private to it, so a scan that is unwrapped after it reads its row groups in
    /// the same order as this one.
    pub fn inner(&self) -> &ParquetSource {
        &self.inner
    }

    /// The settings this scan was planned with.
    pub fn settings(&self) -> PrefetchSettings {
        self.settings
    }

    /// The factory that this scan asks for keys, if it has one.
    pub fn encryption_factory(&self) -> Option<&Arc<dyn EncryptionFactory>> {
        self.encryption_factory.as_ref()
    }

    /// The session's means that this scan uses, if it was given them.
    pub fn runtime_env(&self) -> Option<&Arc<RuntimeEnv>> {
        self.runtime.as_ref()
    }

    /// The scan that `config` describes, by this source.
    pub(super) fn into_exec(self, config: &FileScanConfig) -> Arc<DataSourceExec> {
        let mut config = config.clone();
        config.file_source = Arc::new(self);
        DataSourceExec::from_data_source(config)
    }

    /// Whether stock's scan reads the files.
    fn is_read_by_stock(&self) -> bool {
        self.settings.is_off()
    }

    fn rewrap(&self, inner: &Arc<dyn FileSource>) -> Result<Self> {
        let inner = inner
            .downcast_ref::<ParquetSource>()
            .ok_or_else(|| {
                internal_datafusion_err!("a ParquetSource planned itself into another file source")
            })?
            .clone();
        Ok(Self {
            inner,
            ..self.clone()
        })
    }

    /// The factory that makes this scan's readers, if one was set.
    pub fn parquet_file_reader_factory(&self) -> Option<&Arc<dyn ParquetFileReaderFactory>> {
        self.inner.parquet_file_reader_factory()
    }
}

impl FileSource for PrefetchingParquetSource {
    fn create_file_opener(
        &self,
        object_store: Arc<dyn ObjectStore>,
        base_config: &FileScanConfig,
        partition: usize,
    ) -> Result<Arc<dyn FileOpener>> {
        if self.is_read_by_stock() {
            return self
                .inner
                .create_file_opener(object_store, base_config, partition);
        }
        Ok(Arc::new(self.opener(
            object_store,
            base_config,
            partition,
        )?))
    }

    fn create_morselizer(
        &self,
        object_store: Arc<dyn ObjectStore>,
        base_config: &FileScanConfig,
        partition: usize,
    ) -> Result<Box<dyn Morselizer>> {
        if self.is_read_by_stock() {
            return self
                .inner
                .create_morselizer(object_store, base_config, partition);
        }
        let opener = self.opener(object_store, base_config, partition)?;
        opener.start();
        Ok(Box::new(OpenerMorselizer::new(Arc::new(opener))))
    }

    fn table_schema(&self) -> &TableSchema {
        self.inner.table_schema()
    }

    fn with_batch_size(&self, batch_size: usize) -> Arc<dyn FileSource> {
        let inner = self.inner.with_batch_size(batch_size);
        match self.rewrap(&inner) {
            Ok(source) => Arc::new(Self {
                batch_size: Some(batch_size),
                ..source
            }),
            // Cannot be while stock's source is what it is; reading without prefetching is right all the same.
            Err(_) => inner,
        }
    }

    fn filter(&self) -> Option<Arc<dyn PhysicalExpr>> {
        self.inner.filter()
    }

    fn projection(&self) -> Option<&ProjectionExprs> {
        self.inner.projection()
    }

    fn metrics(&self) -> &ExecutionPlanMetricsSet {
        self.inner.metrics()
    }

    fn file_type(&self) -> &str {
        self.inner.file_type()
    }

    fn fmt_extra(&self, t: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        self.inner.fmt_extra(t, f)?;
        match t {
            DisplayFormatType::Default | DisplayFormatType::Verbose if !self.settings.is_off() => {
                write!(f, ", {}", self.settings)
            }
            // The tree names the scan and its predicate only, and none of stock's settings either.
            _ => Ok(()),
        }
    }

    fn supports_repartitioning(&self) -> bool {
        self.inner.supports_repartitioning()
    }

    fn repartitioned(
        &self,
        target_partitions: usize,
        repartition_file_min_size: usize,
        output_ordering: Option<datafusion::physical_expr::LexOrdering>,
        config: &FileScanConfig,
    ) -> Result<Option<FileScanConfig>> {
        // Changes the file groups only: the source of `config`, which is this one, stays.
        self.inner.repartitioned(
            target_partitions,
            repartition_file_min_size,
            output_ordering,
            config,
        )
    }

    fn try_pushdown_filters(
        &self,
        filters: Vec<Arc<dyn PhysicalExpr>>,
        config: &ConfigOptions,
    ) -> Result<FilterPushdownPropagation<Arc<dyn FileSource>>> {
        let FilterPushdownPropagation {
            filters,
            updated_node,
        } = self.inner.try_pushdown_filters(filters, config)?;
        let updated_node = updated_node
            .map(|inner| {
                self.rewrap(&inner)
                    .map(|source| Arc::new(source) as Arc<dyn FileSource>)
            })
            .transpose()?;
        Ok(FilterPushdownPropagation {
            filters,
            updated_node,
        })
    }

    fn try_pushdown_sort(
        &self,
        order: &[PhysicalSortExpr],
        eq_properties: &EquivalenceProperties,
    ) -> Result<SortOrderPushdownResult<Arc<dyn FileSource>>> {
        Ok(match self.inner.try_pushdown_sort(order, eq_properties)? {
            SortOrderPushdownResult::Unsupported => SortOrderPushdownResult::Unsupported,
            SortOrderPushdownResult::Exact { inner } => SortOrderPushdownResult::Exact {
                inner: Arc::new(self.rewrap(&inner)?),
            },
            SortOrderPushdownResult::Inexact { inner } => {
                match sort_pushdown(order, eq_properties, self.table_schema().file_schema())? {
                    SortPushdownOutcome::Inexact(sort) => SortOrderPushdownResult::Inexact {
                        inner: Arc::new(Self {
                            sort,
                            ..self.rewrap(&inner)?
                        }),
                    },
                    // Stock would order its row groups in a way that ours could not follow.
                    SortPushdownOutcome::Exact | SortPushdownOutcome::Unsupported => {
                        SortOrderPushdownResult::Unsupported
                    }
                }
            }
        })
    }

    fn reorder_files(&self, files: Vec<PartitionedFile>) -> Vec<PartitionedFile> {
        // By what was worked out, not by what stock's source keeps: only the former survives being sent elsewhere.
        let files = reorder_files(files, &self.sort, self.table_schema().table_schema());
        if self.settings.read_ahead_bytes > 0 {
            self.siblings.begin(&files);
        }
        files
    }

    fn try_pushdown_projection(
        &self,
        projection: &ProjectionExprs,
    ) -> Result<Option<Arc<dyn FileSource>>> {
        self.inner
            .try_pushdown_projection(projection)?
            .map(|inner| {
                self.rewrap(&inner)
                    .map(|source| Arc::new(source) as Arc<dyn FileSource>)
            })
            .transpose()
    }

    fn apply_expressions(
        &self,
        f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.inner.apply_expressions(f)
    }
}
