//! What all files of one partition's scan have in common.

use std::sync::Arc;

use arrow::datatypes::TimeUnit;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr_adapter::PhysicalExprAdapterFactory;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;

use super::decryption::Decryption;
use super::order::SortPushdown;
use super::virtual_columns::VirtualColumns;
use crate::config::PrefetchSettings;
use crate::fetch::{ByteBudget, ReaderFactory};
use crate::metrics::ScanMetrics;

/// One partition's scan: what is asked of every file, and with what means.
pub(crate) struct ScanContext {
    pub(crate) partition: usize,
    /// Over the table schema: columns of the file, partition columns, virtual columns.
    pub(crate) projection: ProjectionExprs,
    /// Over the table schema.
    pub(crate) predicate: Option<Arc<dyn PhysicalExpr>>,
    pub(crate) table_schema: TableSchema,
    pub(crate) virtual_columns: Option<Arc<VirtualColumns>>,
    /// Columns that the projection and the predicate read.
    pub(crate) columns_read: usize,
    /// Rows of an output batch.
    pub(crate) batch_size: usize,
    /// Rows that the scan is asked for in total.
    pub(crate) limit: Option<usize>,
    /// Whether rows must come in the order of the files.
    pub(crate) preserve_order: bool,
    pub(crate) sort: SortPushdown,
    /// Bytes at a file's end that are read at first, where the file itself does not say.
    pub(crate) metadata_size_hint: Option<usize>,
    pub(crate) coercion: MetadataCoercion,
    pub(crate) pruning: PruningSwitches,
    pub(crate) row_filter: RowFilterSettings,
    pub(crate) expr_adapter_factory: Arc<dyn PhysicalExprAdapterFactory>,
    pub(crate) decryption: Decryption,
    pub(crate) readers: ReaderFactory,
    pub(crate) settings: PrefetchSettings,
    pub(crate) memory_pool: Option<Arc<dyn MemoryPool>>,
    /// Where the scan reads ahead: what it may hold.
    pub(crate) read_ahead_budget: Option<Arc<ByteBudget>>,
    pub(crate) metrics_set: ExecutionPlanMetricsSet,
    pub(crate) metrics: ScanMetrics,
}

/// Bytes that are reserved for the metadata of a file where no size hint says how many are read at first.
const BYTES_OF_METADATA: u64 = 64 * 1024;

impl ScanContext {
    /// Whether rows are left out while they are decoded.
    pub(crate) fn has_row_filter(&self) -> bool {
        self.row_filter.is_pushed_down && self.predicate.is_some()
    }

    /// Bytes that reading `file` may take, as far as they can be guessed before it is opened: its part of the projection.
    pub(crate) fn expected_bytes(&self, file: &PartitionedFile) -> u64 {
        let bytes = match &file.range {
            Some(range) => u64::try_from(range.end.saturating_sub(range.start)).unwrap_or(0),
            None => file.object_meta.size,
        };
        let columns = self.table_schema.file_schema().fields().len().max(1);
        let read = self.columns_read.min(columns);
        bytes / columns as u64 * read as u64
    }

    /// Bytes that are read to find the metadata of `file`: none where they are cached.
    pub(crate) fn bytes_to_open(&self, file: &PartitionedFile) -> u64 {
        if self.readers.has_metadata_of(file) {
            return 0;
        }
        let hint = file.metadata_size_hint.or(self.metadata_size_hint);
        let hint = hint.map_or(BYTES_OF_METADATA, |hint| hint as u64);
        hint.min(file.object_meta.size)
    }
}

/// How Int96 timestamps are read.
#[derive(Debug, Clone, Default)]
pub(crate) struct MetadataCoercion {
    pub(crate) int96_unit: Option<TimeUnit>,
    pub(crate) int96_time_zone: Option<Arc<str>>,
}

/// Which kinds of pruning are on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PruningSwitches {
    pub(crate) row_group_statistics: bool,
    pub(crate) bloom_filters: bool,
    pub(crate) page_index: bool,
    /// Longest `IN` list that is rewritten for pruning.
    pub(crate) max_in_list_size: usize,
}

/// Whether and how the predicate is evaluated while decoding.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowFilterSettings {
    pub(crate) is_pushed_down: bool,
    pub(crate) reorder: bool,
    pub(crate) force_selectors: bool,
    /// Bytes of decoded predicate columns that the decoder may keep; `None` for its own default.
    pub(crate) max_predicate_cache_bytes: Option<usize>,
}

/// Reads stock's two options for Int96 timestamps.
///
/// # Errors
/// A configuration error that names the option, for a unit other than `ns`, `us`, `ms` and `s`, or a time zone that is not
/// one.
pub(crate) fn int96_coercion(
    unit: Option<&str>,
    time_zone: Option<&str>,
) -> Result<MetadataCoercion> {
    let int96_unit = unit
        .map(|unit| match unit.to_lowercase().as_str() {
            "ns" => Ok(TimeUnit::Nanosecond),
            "us" => Ok(TimeUnit::Microsecond),
            "ms" => Ok(TimeUnit::Millisecond),
            "s" => Ok(TimeUnit::Second),
            _ => Err(DataFusionError::Configuration(format!(
                "datafusion.execution.parquet.coerce_int96: expected ns, us, ms or s, got '{unit}'"
            ))),
        })
        .transpose()?;
    let int96_time_zone = time_zone
        .map(|time_zone| match time_zone.parse::<arrow::array::timezone::Tz>() {
            Ok(_) => Ok(Arc::from(time_zone)),
            Err(error) => Err(DataFusionError::Configuration(format!(
                "datafusion.execution.parquet.coerce_int96_tz: expected a time zone, got '{time_zone}': {error}"
            ))),
        })
        .transpose()?;
    Ok(MetadataCoercion {
        int96_unit,
        int96_time_zone,
    })
}
