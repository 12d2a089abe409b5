//! A second look at a file that was opened before its turn, once dynamic filters say more than they did.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::datasource::physical_plan::parquet::{
    PagePruningAccessPlanFilter, ParquetAccessPlan, ParquetFileMetrics,
};
use datafusion::physical_expr::{DynamicFilterTracking, PhysicalExpr};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, PruningMetrics};
use parquet::file::metadata::ParquetMetaData;

use super::ScanContext;
use super::dynamic::RowGroupPruner;
use super::metadata::AdaptedFile;
use crate::decode::FileScan;

/// What it takes to prune an opened file again, by what is in memory: statistics, and the page index where it was read.
///
/// A file is opened when its scan is executed, which may be before a join has built the side that filters this one. Stock
/// opens it when its turn comes, and prunes it by that filter. Here, what was settled at opening is narrowed then.
pub(super) struct Narrowing {
    /// Since before the file was first pruned.
    tracking: DynamicFilterTracking,
    predicate: Arc<dyn PhysicalExpr>,
    row_groups: Option<RowGroupPruner>,
    /// Of before pages were ruled out.
    access_plan: ParquetAccessPlan,
    scan: Arc<ScanContext>,
    physical_schema: SchemaRef,
    metadata: Arc<ParquetMetaData>,
    file_name: String,
    metrics: ParquetFileMetrics,
}

impl Narrowing {
    /// `None` where there will be nothing to look at again. Under a limit the rows that it needs are counted already.
    pub(super) fn try_new(
        adapted: &mut AdaptedFile,
        access_plan: &ParquetAccessPlan,
    ) -> Option<Self> {
        let tracking = adapted.late_filters.take()?;
        let opening = &adapted.opening;
        let scan = &opening.scan;
        if scan.limit.is_some() || access_plan.row_group_index_iter().next().is_none() {
            return None;
        }
        let predicate = opening.predicate.as_ref()?;
        let metadata = adapted.metadata.metadata();
        let row_groups = scan.pruning.row_group_statistics.then(|| {
            RowGroupPruner::try_new(
                predicate,
                &adapted.physical_schema,
                metadata,
                scan.pruning.max_in_list_size,
                opening.predicate_creation_errors.clone(),
                opening.file_metrics.predicate_evaluation_errors.clone(),
            )
        });
        Some(Self {
            tracking,
            predicate: Arc::clone(predicate),
            row_groups: row_groups.flatten(),
            // Which row groups were fully matched, they were by a weaker predicate.
            access_plan: ParquetAccessPlan::new(access_plan.clone().into_inner()),
            scan: Arc::clone(scan),
            physical_schema: Arc::clone(&adapted.physical_schema),
            metadata: Arc::clone(metadata),
            file_name: opening.file_name.clone(),
            metrics: opening.file_metrics.clone(),
        })
    }

    /// Leaves out of `file`, of which nothing has been decoded, what the filters have ruled out since it was opened.
    ///
    /// # Errors
    /// A selection of the file's access plan that does not fit its row groups.
    pub(super) fn narrow(mut self, file: &mut FileScan) -> Result<()> {
        let has_changed = self
            .tracking
            .watcher()
            .is_some_and(|filters| filters.changed());
        if !has_changed {
            return Ok(());
        }
        let mut access_plan = self.access_plan.clone();
        let dropped = self.prune_row_groups(&mut access_plan);
        let (access_plan, pages) = self.prune_pages(access_plan);
        let plan = self
            .scan
            .sort
            .prepare(access_plan, &self.metadata, &self.physical_schema)?;
        if file.narrow(plan.row_group_indexes, plan.row_selection, &self.metadata)? {
            self.metrics.row_groups_pruned_dynamic_filter.add(dropped);
            if let Some(pages) = pages {
                settle(
                    &self.metrics.page_index_pages_pruned,
                    &pages.page_index_pages_pruned,
                );
                settle(
                    &self.metrics.page_index_rows_pruned,
                    &pages.page_index_rows_pruned,
                );
            }
        }
        Ok(())
    }

    fn prune_row_groups(&mut self, access_plan: &mut ParquetAccessPlan) -> usize {
        let Some(pruner) = &mut self.row_groups else {
            return 0;
        };
        let row_groups = access_plan.row_group_indexes();
        let verdicts = pruner.prune(&row_groups);
        let dropped = row_groups.into_iter().zip(verdicts);
        let dropped = dropped.filter(|(_, is_ruled_out)| *is_ruled_out);
        dropped.map(|(idx, _)| access_plan.skip(idx)).count()
    }

    /// Also gives what the metrics of this look are, which takes the place of the first one.
    fn prune_pages(
        &self,
        access_plan: ParquetAccessPlan,
    ) -> (ParquetAccessPlan, Option<ParquetFileMetrics>) {
        let has_index =
            self.metadata.column_index().is_some() && self.metadata.offset_index().is_some();
        if !self.scan.pruning.page_index || !has_index {
            return (access_plan, None);
        }
        let filter =
            PagePruningAccessPlanFilter::new(&self.predicate, Arc::clone(&self.physical_schema));
        let set = ExecutionPlanMetricsSet::new();
        let metrics = ParquetFileMetrics::new(self.scan.partition, &self.file_name, &set);
        let _timer = self.metrics.page_index_eval_time.timer();
        let access_plan = filter.prune_plan_with_page_index(
            access_plan,
            &self.physical_schema,
            self.metadata.file_metadata().schema_descr(),
            &self.metadata,
            &metrics,
        );
        (access_plan, Some(metrics))
    }
}

/// Has `metric` say what `now` does. What was once pruned stays pruned.
fn settle(metric: &PruningMetrics, now: &PruningMetrics) {
    metric.add_pruned(now.pruned().saturating_sub(metric.pruned()));
    let before = metric.matched();
    metric.add_matched(now.matched().saturating_sub(before));
    metric.subtract_matched(before.saturating_sub(now.matched()));
}
