//! From a planned source to the opener of a partition that is executed.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::common::{Result, internal_datafusion_err};
use datafusion::config::TableParquetOptions;
use datafusion::datasource::physical_plan::{FileScanConfig, FileSource};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_adapter::DefaultPhysicalExprAdapterFactory;
use object_store::ObjectStore;

use super::PrefetchingParquetSource;
use super::opener::PrefetchingParquetOpener;
use super::siblings::FilesOf;
use crate::fetch::{ByteBudget, ReaderFactory, RequestLimits, RequestRules, SpeculativeMemory};
use crate::metrics::ScanMetrics;
use crate::open::virtual_columns::VirtualColumns;
use crate::open::{
    Decryption, LookAhead, PruningSwitches, RowFilterSettings, ScanContext, int96_coercion,
};

impl PrefetchingParquetSource {
    pub(super) fn opener(
        &self,
        object_store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        partition: usize,
    ) -> Result<PrefetchingParquetOpener> {
        let mut scan = self.context(object_store, config, partition)?;
        if self.settings.read_ahead_bytes == 0 {
            return Ok(PrefetchingParquetOpener::new(scan, None));
        }
        let make = |files| self.look_ahead(&scan, config, files);
        // Partitions are executed on clones, their queue is made by the source that the plan holds.
        let look_ahead = match config.file_source.downcast_ref::<Self>() {
            Some(planned) => planned.siblings.join(config, make),
            None => make(FilesOf::Group),
        };
        scan.read_ahead_budget = Some(Arc::clone(look_ahead.budget()));
        Ok(PrefetchingParquetOpener::new(scan, Some(look_ahead)))
    }

    fn look_ahead(
        &self,
        scan: &ScanContext,
        config: &FileScanConfig,
        files: FilesOf,
    ) -> Arc<LookAhead> {
        let group = config.file_groups.get(scan.partition);
        let group = group.map_or(&[][..], |group| group.files());
        let (files, partitions) = match files {
            FilesOf::Queue(files) => (files, config.file_groups.len()),
            FilesOf::Group => (group.to_vec(), 1),
            FilesOf::Rest => (Vec::new(), 1),
        };
        let memory = scan.memory_pool.as_ref().map(|pool| {
            SpeculativeMemory::new(pool, format!("ParquetReadAhead[{}]", scan.partition))
        });
        let bytes = self.settings.read_ahead_bytes;
        let budget = ByteBudget::new(
            bytes.saturating_mul(partitions as u64),
            memory,
            scan.metrics.read_ahead_peak_bytes.clone(),
        );
        let max_files = self.settings.read_ahead_files.saturating_mul(partitions);
        LookAhead::new(files, budget, max_files, partitions)
    }

    fn limits(&self) -> RequestLimits {
        let limits = self
            .limits
            .get_or_init(|| RequestLimits::new(self.settings.max_requests));
        limits.clone()
    }

    fn context(
        &self,
        object_store: Arc<dyn ObjectStore>,
        config: &FileScanConfig,
        partition: usize,
    ) -> Result<ScanContext> {
        let metrics_set = self.inner.metrics().clone();
        let metrics = ScanMetrics::new(&metrics_set, partition);
        let options: &TableParquetOptions = self.inner.table_parquet_options();
        let global = &options.global;
        let decryption = Decryption::try_new(options, self.encryption_factory.as_ref())?;
        let projection = self
            .inner
            .projection()
            .ok_or_else(|| internal_datafusion_err!("a ParquetSource has no projection"))?
            .clone();
        let predicate = self.inner.filter();
        let table_schema = self.inner.table_schema().clone();
        let virtual_columns = VirtualColumns::try_new(
            table_schema.virtual_columns(),
            table_schema.file_schema(),
            predicate.as_ref(),
            global.pushdown_filters,
        )?;
        let readers = ReaderFactory::new(
            self.readers,
            object_store,
            config.object_store_url.as_str().starts_with("file:"),
            self.inner.parquet_file_reader_factory(),
            self.runtime
                .as_ref()
                .map(|runtime| runtime.cache_manager.get_file_metadata_cache()),
            RequestRules {
                limits: self.limits(),
                max_request_bytes: self.settings.max_request_bytes,
                keeps_tail: self.settings.read_ahead_bytes > 0,
                requests: metrics.fetch_request_count.clone(),
                required_requests: metrics.required_request_count.clone(),
                times: Arc::default(),
            },
        );
        let memory_pool = self
            .runtime
            .as_ref()
            .map(|runtime| Arc::clone(&runtime.memory_pool));
        Ok(ScanContext {
            partition,
            columns_read: columns_read(&projection, predicate.as_ref()),
            projection,
            predicate,
            table_schema,
            virtual_columns,
            batch_size: self.batch_size.ok_or_else(|| {
                internal_datafusion_err!(
                    "the batch size of a Parquet scan is set before it is opened"
                )
            })?,
            limit: config.limit,
            preserve_order: config.preserve_order,
            sort: self.sort.clone(),
            metadata_size_hint: self.metadata_size_hint,
            coercion: int96_coercion(
                global.coerce_int96.as_deref(),
                global.coerce_int96_tz.as_deref(),
            )?,
            pruning: PruningSwitches {
                row_group_statistics: global.pruning,
                bloom_filters: global.bloom_filter_on_read,
                page_index: global.enable_page_index,
                max_in_list_size: self.inner.max_in_list_size(),
            },
            row_filter: RowFilterSettings {
                is_pushed_down: global.pushdown_filters,
                reorder: global.reorder_filters,
                force_selectors: global.force_filter_selections,
                max_predicate_cache_bytes: self.inner.max_predicate_cache_size(),
            },
            expr_adapter_factory: config
                .expr_adapter_factory
                .clone()
                .unwrap_or_else(|| Arc::new(DefaultPhysicalExprAdapterFactory) as _),
            decryption,
            readers,
            settings: self.settings,
            memory_pool,
            read_ahead_budget: None,
            metrics,
            metrics_set,
        })
    }
}

/// How many columns a scan reads, as far as the plan says.
fn columns_read(projection: &ProjectionExprs, predicate: Option<&Arc<dyn PhysicalExpr>>) -> usize {
    let projected = projection.iter().map(|projected| &projected.expr);
    let columns: HashSet<usize> = projected
        .chain(predicate)
        .flat_map(collect_columns)
        .map(|column| column.index())
        .collect();
    columns.len()
}
