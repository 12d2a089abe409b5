//! Turns the scans of stock's Parquet source into ours.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::datasource::physical_plan::{FileScanConfig, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use log::debug;

use super::facts::encryption_factory_of;
use super::source::PrefetchingParquetSource;
use crate::config::{PrefetchOptions, PrefetchSettings, PrefetchTableOptions};
use crate::fetch::ReaderChoice;

/// A physical optimizer rule that makes every scan of a [`ParquetSource`] prefetch.
///
/// For scans that are planned without asking the session's format factory: `register_parquet`, `read_parquet`, and the
/// table providers of others. Settings are the session's at planning time; with prefetching off, plans are left as they
/// are.
///
/// Put it before the rules that push filters, sorts and limits down: a [`ParquetSource`] keeps to itself what a sort
/// pushdown left in it, so a scan that has already been through one is left alone, with a debug message. So is a scan with
/// an encryption factory that is not the session's under the id in its options. Applying the rule twice changes nothing.
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
        options: &PrefetchOptions,
    ) -> Option<Arc<dyn ExecutionPlan>> {
        let exec = plan.downcast_ref::<DataSourceExec>()?;
        let (config, source) = if let Some((config, source)) =
            exec.downcast_to_file_source::<ParquetSource>()
        {
            (config, self.wrap(config, source, options)?)
        } else {
            let (config, source) = exec.downcast_to_file_source::<PrefetchingParquetSource>()?;
            (config, source.settled(options, &self.runtime)?)
        };
        if !has_properties_of_its_source(exec) {
            debug!(
                "a Parquet scan stays as it is: it was given other properties than its source has"
            );
            return None;
        }
        Some(source.into_exec(config))
    }

    fn wrap(
        &self,
        config: &FileScanConfig,
        source: &ParquetSource,
        options: &PrefetchOptions,
    ) -> Option<PrefetchingParquetSource> {
        let settings = PrefetchSettings::resolve(&PrefetchTableOptions::default(), options);
        if settings.is_off() {
            return None;
        }
        let store = self.runtime.object_store(&config.object_store_url).ok();
        let readers = ReaderChoice::of(source.parquet_file_reader_factory(), store.as_ref());
        let encryption_factory = encryption_factory_of(source, &self.runtime);
        PrefetchingParquetSource::try_new_with_factory_of(
            source.clone(),
            settings,
            encryption_factory,
        )
        .inspect_err(|error| debug!("a Parquet scan stays as it is: {error}"))
        .ok()
        .map(|source| {
            source
                .with_readers(readers)
                .with_runtime_env(Arc::clone(&self.runtime))
        })
    }
}

/// Whether nobody has set constraints or a partitioning on the node, which its source knows nothing of.
fn has_properties_of_its_source(exec: &DataSourceExec) -> bool {
    let fresh = DataSourceExec::new(Arc::clone(exec.data_source()));
    let (own, expected) = (exec.properties(), fresh.properties());
    // By what they print: an unknown partitioning is equal to none, not even to itself.
    own.output_partitioning().to_string() == expected.output_partitioning().to_string()
        && own.equivalence_properties().constraints()
            == expected.equivalence_properties().constraints()
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
        let options = PrefetchOptions::from_config(config);
        plan.transform_up(|node| {
            Ok(match self.convert(&node, &options) {
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
