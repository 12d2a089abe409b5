//! The fourth step: row groups, by byte range, access plan and statistics.

use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::{
    ParquetAccessPlan, ParquetRowSelection, RowGroupAccessPlanFilter,
};
use parquet::file::metadata::RowGroupMetaData;

use super::indexes::Chunks;
use super::metadata::AdaptedFile;

/// A file of which it is known which row groups may hold a matching row.
pub(crate) struct PrunedFile {
    pub(super) adapted: AdaptedFile,
    pub(super) row_groups: RowGroupAccessPlanFilter,
    /// What has been read of page index and bloom filters.
    pub(super) indexes: Chunks,
}

impl AdaptedFile {
    /// Keeps the row groups of this scan's byte range and access plan whose statistics do not rule them out.
    pub(crate) fn prune_row_groups(self) -> Result<PrunedFile> {
        let file_metadata = Arc::clone(self.metadata.metadata());
        let groups = file_metadata.row_groups();
        let opening = &self.opening;
        let mut row_groups =
            RowGroupAccessPlanFilter::new(initial_plan(&opening.file_name, &opening.file, groups)?);
        if let Some(range) = &opening.file.range {
            row_groups.prune_by_range(groups, range);
        }

        let switches = opening.scan.pruning;
        let metrics = &opening.file_metrics;
        let statistics_decide = match &self.pruning_predicate {
            Some(predicate) if switches.row_group_statistics => {
                row_groups.prune_by_statistics(
                    &self.physical_schema,
                    self.metadata.parquet_schema(),
                    groups,
                    predicate,
                    metrics,
                );
                true
            }
            _ => false,
        };
        let left = row_groups.remaining_row_group_count();
        if !statistics_decide {
            metrics.row_groups_pruned_statistics.add_matched(left);
        }
        let bloom_filters_decide =
            self.pruning_predicate.is_some() && switches.bloom_filters && !row_groups.is_empty();
        if !bloom_filters_decide {
            metrics.row_groups_pruned_bloom_filter.add_matched(left);
        }
        Ok(PrunedFile {
            adapted: self,
            row_groups,
            indexes: Chunks::default(),
        })
    }
}

/// The row groups and rows that the file's extensions ask for; all where there are none.
fn initial_plan(
    file_name: &str,
    file: &PartitionedFile,
    groups: &[RowGroupMetaData],
) -> Result<ParquetAccessPlan> {
    let plan = file.extensions.get::<ParquetAccessPlan>();
    let selection = file.extensions.get::<ParquetRowSelection>();
    match (plan, selection) {
        (Some(_), Some(_)) => exec_err!(
            "Invalid parquet access extensions for {file_name}. \
             Specify either ParquetAccessPlan or ParquetRowSelection, not both"
        ),
        (Some(plan), None) if plan.len() != groups.len() => exec_err!(
            "Invalid ParquetAccessPlan for {file_name}. Specified {} row groups, but file has {}",
            plan.len(),
            groups.len()
        ),
        (Some(plan), None) => Ok(ParquetAccessPlan::clone(plan)),
        (None, Some(selection)) => ParquetAccessPlan::try_new_from_overall_row_selection(
            selection.selection().clone(),
            groups,
        ),
        (None, None) => Ok(ParquetAccessPlan::new_all(groups.len())),
    }
}
