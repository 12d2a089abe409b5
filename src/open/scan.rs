//! What all files of one partition's scan have in common.

use std::sync::Arc;

use arrow::datatypes::TimeUnit;
use datafusion::common::{DataFusionError, Result};
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
use crate::fetch::ReaderFactory;
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
    pub(crate) metrics_set: ExecutionPlanMetricsSet,
    pub(crate) metrics: ScanMetrics,
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
