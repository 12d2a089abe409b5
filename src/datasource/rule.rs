//! Turns the scans of stock's Parquet source into ours.

use std::fmt;
use std::sync::{Arc, OnceLock};

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, not_impl_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetFileReaderFactory;
use datafusion::datasource::physical_plan::{
    FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{DisplayFormatType, ExecutionPlan};
use log::debug;
use object_store::memory::InMemory;
use parquet::arrow::async_reader::AsyncFileReader;

use super::source::PrefetchingParquetSource;
use crate::config::PrefetchSettings;

/// A physical optimizer rule that makes every scan of a [`ParquetSource`] prefetch.
///
/// For scans that are planned without asking the session's format factory: `register_parquet`, `read_parquet`, and the
/// table providers of others. Settings are the session's at planning time; with prefetching off, plans are left as they
/// are.
///
/// Put it before the rules that push filters, sorts and limits down: a [`ParquetSource`] keeps to itself what a sort
/// pushdown left in it, so a scan that has already been through one is left alone, with a debug message. Applying the rule
/// twice changes nothing.
pub struct PrefetchRule {
    runtime: Arc<RuntimeEnv>,
}

impl PrefetchRule {
    /// `runtime` is the session's: its memory pool accounts for prefetched bytes, its cache of file metadata is shared.
    pub fn new(runtime: Arc<RuntimeEnv>) -> Self {
        Self { runtime }
    }

    fn convert(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        settings: PrefetchSettings,
    ) -> Option<Arc<dyn ExecutionPlan>> {
        let (config, source) = plan
            .downcast_ref::<DataSourceExec>()?
            .downcast_to_file_source::<ParquetSource>()?;
        if has_sort_pushdown(source) {
            debug!(
                "a Parquet scan stays as it is: its order was pushed down before {}",
                self.name()
            );
            return None;
        }
        let metadata_size_hint = match metadata_size_hint(config, source) {
            Ok(hint) => hint,
            Err(error) => {
                debug!("a Parquet scan stays as it is, for what it cannot be asked: {error}");
                return None;
            }
        };
        let source = PrefetchingParquetSource::new(source.clone(), settings, metadata_size_hint)
            .with_maybe_encrypted(has_encryption_factory(source))
            .with_runtime_env(Arc::clone(&self.runtime));
        let config = FileScanConfigBuilder::from(config.clone())
            .with_source(Arc::new(source))
            .build();
        Some(DataSourceExec::from_data_source(config))
    }
}

impl fmt::Debug for PrefetchRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl PhysicalOptimizerRule for PrefetchRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let settings = PrefetchSettings::from_config(config);
        if settings.is_off() {
            return Ok(plan);
        }
        plan.transform_up(|node| {
            Ok(match self.convert(&node, settings) {
                Some(converted) => Transformed::yes(converted),
                None => Transformed::no(node),
            })
        })
        .data()
    }

    fn name(&self) -> &str {
        "parquet_prefetch"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// What a file source adds to `EXPLAIN`.
struct Extra<'a>(&'a ParquetSource);

impl fmt::Display for Extra<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_extra(DisplayFormatType::Default, f)
    }
}

/// The result of a sort pushdown can be seen in `EXPLAIN` only. A predicate that spells the same words errs to the safe
/// side.
fn has_sort_pushdown(source: &ParquetSource) -> bool {
    let extra = Extra(source).to_string();
    extra.contains("sort_order_for_reorder=") || extra.contains("reverse_row_groups=")
}

/// A factory of decryption keys that was set on the source itself can be seen in its debug output only. Anything else
/// that spells the same words errs to the safe side: stock's scan reads the file.
fn has_encryption_factory(source: &ParquetSource) -> bool {
    format!("{source:?}").contains("encryption_factory: Some(")
}

/// The size hint of a source, which it tells to nobody but its reader factory: so this is one for a moment.
fn metadata_size_hint(config: &FileScanConfig, source: &ParquetSource) -> Result<Option<usize>> {
    let probe = Arc::new(HintProbe::default());
    let source = source
        .clone()
        .with_parquet_file_reader_factory(Arc::clone(&probe) as _)
        .with_batch_size(1);
    let planned = source
        .create_morselizer(Arc::new(InMemory::new()), config, 0)
        .and_then(|morselizer| {
            morselizer
                .plan_file(PartitionedFile::new("", 0))
                .map(|_| ())
        });
    match (probe.hint.get(), planned) {
        (Some(hint), _) => Ok(*hint),
        (None, Err(error)) => Err(error),
        (None, Ok(())) => not_impl_err!("its reader factory was not asked"),
    }
}

#[derive(Debug, Default)]
struct HintProbe {
    hint: OnceLock<Option<usize>>,
}

impl ParquetFileReaderFactory for HintProbe {
    fn create_reader(
        &self,
        _partition_index: usize,
        _partitioned_file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        _metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        let _ = self.hint.set(metadata_size_hint);
        not_impl_err!("this factory makes no readers")
    }
}
