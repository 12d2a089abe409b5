//! The last step: pages, order, and the decoder.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::physical_plan::parquet::{
    ParquetAccessPlan, build_row_filter, can_expr_be_pushed_down_with_schemas,
};
use datafusion::physical_expr::{PhysicalExpr, split_conjunction};
use datafusion::physical_plan::metrics::{MetricBuilder, MetricCategory, MetricType};
use log::debug;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::metrics::ArrowReaderMetrics;
use parquet::arrow::arrow_reader::{RowFilter, RowSelectionPolicy};
use parquet::arrow::push_decoder::ParquetPushDecoderBuilder;
use parquet::file::metadata::ParquetMetaData;

use super::dynamic::RowGroupPruner;
use super::file::OpeningFile;
use super::metadata::AdaptedFile;
use super::narrow::Narrowing;
use super::opened::OpenedFile;
use super::order::PreparedPlan;
use super::projection::{DecoderProjection, leaf_mask};
use super::prune::PrunedFile;
use crate::decode::{ByteSource, FileScan, PRUNING_WINDOW, Prefetch, ReadAhead, ReadAheadParts};
use crate::fetch::{Permit, SpeculativeMemory, len};
use crate::metrics::ScannedBytes;
use crate::plan::{RangePlanner, Reach, ScanOrder};

impl PrunedFile {
    /// Settles what is read of the file and in which order. Nothing of that is read here.
    pub(crate) fn plan(self) -> Result<OpenedFile> {
        let Self {
            mut adapted,
            mut row_groups,
            ..
        } = self;
        let scan = Arc::clone(&adapted.opening.scan);
        let file_metadata = Arc::clone(adapted.metadata.metadata());

        if let Some(limit) = scan.limit.filter(|_| !scan.preserve_order) {
            row_groups.prune_by_limit(
                limit,
                file_metadata.row_groups(),
                &adapted.opening.file_metrics,
            );
        }
        let fully_matched = row_groups.is_fully_matched().clone();
        let access_plan = row_groups.build();
        let narrowing = Narrowing::try_new(&mut adapted, &access_plan);
        let access_plan = adapted.prune_pages(access_plan, &fully_matched, &file_metadata);
        let plan = scan
            .sort
            .prepare(access_plan, &file_metadata, &adapted.physical_schema)?;
        adapted.begin(plan, narrowing)
    }
}

impl AdaptedFile {
    /// Rules out pages by the page index; rows of other columns that belong to them are skipped too.
    fn prune_pages(
        &self,
        access_plan: ParquetAccessPlan,
        fully_matched: &[bool],
        file_metadata: &ParquetMetaData,
    ) -> ParquetAccessPlan {
        let Some(filter) = self
            .page_pruning
            .as_ref()
            .filter(|_| !access_plan.is_empty())
        else {
            return access_plan;
        };
        if file_metadata.column_index().is_some()
            && let Some(offset_index) = file_metadata.offset_index()
        {
            let spared: usize = access_plan
                .row_group_index_iter()
                .filter(|&idx| fully_matched[idx])
                .filter_map(|idx| offset_index.get(idx)?.first())
                .map(|column| column.page_locations.len())
                .sum();
            if spared > 0 {
                MetricBuilder::new(&self.opening.scan.metrics_set)
                    .with_new_label("filename", self.opening.file_name.clone())
                    .with_type(MetricType::Summary)
                    .with_category(MetricCategory::Rows)
                    .counter(
                        "page_index_pages_skipped_by_fully_matched",
                        self.opening.scan.partition,
                    )
                    .add(spared);
            }
        }
        filter.prune_plan_with_page_index(
            access_plan,
            &self.physical_schema,
            self.metadata.parquet_schema(),
            file_metadata,
            &self.opening.file_metrics,
        )
    }

    fn begin(self, plan: PreparedPlan, narrowing: Option<Narrowing>) -> Result<OpenedFile> {
        let Self {
            mut opening,
            metadata,
            physical_schema,
            ..
        } = self;
        let permit = opening
            .background
            .take()
            .map(|background| background.permit);
        let scan = &opening.scan;
        let file_metrics = &opening.file_metrics;
        let file_metadata = Arc::clone(metadata.metadata());
        let projection = DecoderProjection::try_new(
            &opening.projection,
            &physical_schema,
            metadata.parquet_schema(),
            &opening.output_schema,
            scan.virtual_columns.as_deref(),
        )?;
        let has_selection = plan.row_selection.is_some();
        let filter = opening
            .predicate
            .as_ref()
            .filter(|_| scan.row_filter.is_pushed_down)
            .and_then(|predicate| {
                PushedDownFilter::build(predicate, &physical_schema, &file_metadata, &opening)
            });

        let order = ScanOrder::new(
            &plan.row_group_indexes,
            plan.row_selection.clone(),
            &file_metadata,
            scan.limit.filter(|_| filter.is_none()),
        );
        let pruner = opening
            .predicate
            .as_ref()
            // The decoder cannot drop row groups under a selection without losing step with it.
            .filter(|_| plan.row_group_indexes.len() > 1 && !has_selection)
            .and_then(|predicate| {
                RowGroupPruner::try_new(
                    predicate,
                    &physical_schema,
                    &file_metadata,
                    scan.pruning.max_in_list_size,
                    opening.predicate_creation_errors.clone(),
                    file_metrics.predicate_evaluation_errors.clone(),
                )
            });
        let prefetch = Prefetch {
            budget_bytes: scan.settings.prefetch_size_bytes,
            ranges: RangePlanner::new(
                metadata.clone(),
                scan.batch_size,
                projection.mask(),
                filter.as_ref().map(|filter| &filter.columns),
                scan.row_filter.max_predicate_cache_bytes != Some(0),
            ),
            max_row_groups: if pruner.is_some() {
                PRUNING_WINDOW
            } else {
                usize::MAX
            },
            memory: scan.memory_pool.as_ref().map(|pool| {
                SpeculativeMemory::new(pool, format!("ParquetPrefetch[{}]", scan.partition))
            }),
        };

        let reach = if filter.is_some() && scan.limit.is_some() {
            Reach::UNDER_A_LIMIT
        } else if pruner.is_some() && scan.sort.is_asked_for() {
            Reach::under_a_threshold(PRUNING_WINDOW)
        } else {
            Reach::UNLIMITED
        };
        let ahead = read_ahead(&opening, permit, &order, &file_metadata, reach);

        let reader_metrics = ArrowReaderMetrics::enabled();
        let mut builder = ParquetPushDecoderBuilder::new_with_metadata(metadata)
            .with_projection(projection.mask().clone())
            .with_batch_size(scan.batch_size)
            .with_metrics(reader_metrics.clone())
            .with_row_groups(plan.row_group_indexes);
        if scan.row_filter.force_selectors {
            builder = builder.with_row_selection_policy(RowSelectionPolicy::Selectors);
        }
        if let Some(selection) = plan.row_selection {
            builder = builder.with_row_selection(selection);
        }
        if let Some(limit) = scan.limit {
            builder = builder.with_limit(limit);
        }
        if let Some(filter) = filter {
            builder = builder.with_row_filter(filter.row_filter);
            if let Some(bytes) = scan.row_filter.max_predicate_cache_bytes {
                builder = builder.with_max_predicate_cache_size(bytes);
            }
        }

        let scan = FileScan {
            decoder: Some(builder.build()?),
            order,
            bytes: ByteSource::new(
                opening.file.object_meta.location.clone(),
                opening.reader,
                prefetch,
                ahead,
                opening.metrics,
            ),
            projection,
            pruner,
            row_groups_pruned_dynamic: file_metrics.row_groups_pruned_dynamic_filter.clone(),
            reader_metrics,
            predicate_cache_inner_records: file_metrics.predicate_cache_inner_records.clone(),
            predicate_cache_records: file_metrics.predicate_cache_records.clone(),
            baseline_metrics: opening.baseline_metrics,
        };
        Ok(OpenedFile {
            selected_rows: scan.selected_rows(),
            scan,
            narrowing,
            pruner: opening.pruner,
            files_pruned: opening.file_metrics.files_ranges_pruned_statistics,
        })
    }
}

/// The read-ahead of the row groups of `order`, where the scan does that.
fn read_ahead(
    opening: &OpeningFile,
    permit: Option<Permit>,
    order: &ScanOrder,
    file_metadata: &ParquetMetaData,
    reach: Reach,
) -> Option<ReadAhead> {
    let scan = &opening.scan;
    let budget = scan.read_ahead_budget.as_ref()?;
    let budget = budget.share(scan.settings.read_ahead_bytes);
    // What was read to find the metadata is kept where it holds data too, and fits.
    let tail = opening.readers.take_tail().filter(|tail| {
        let columns = order
            .pending()
            .iter()
            .flat_map(|read| file_metadata.row_group(read.row_group_idx).columns());
        columns
            .map(|column| column.byte_range())
            .any(|(start, len)| start >= tail.range().start && len > 0)
    });
    let tail = tail.and_then(|tail| {
        let bytes = len(tail.range());
        let permit = match permit {
            Some(permit) if permit.bytes() >= bytes => permit,
            _ => budget.try_take(bytes).ok()?,
        };
        Some((tail, permit))
    });
    let scanned = ScannedBytes::of(&opening.file_metrics);
    Some(ReadAhead::new(ReadAheadParts {
        location: opening.file.object_meta.location.clone(),
        readers: Arc::clone(&opening.readers),
        budget,
        reach,
        conditional: scan.settings.read_ahead_conditional,
        tail,
        scanned: opening.readers.are_pinned().then_some(scanned),
        metrics: opening.metrics.clone(),
    }))
}

/// The part of the predicate that is evaluated while decoding.
struct PushedDownFilter {
    row_filter: RowFilter,
    /// Leaf columns that it reads.
    columns: ProjectionMask,
}

impl PushedDownFilter {
    /// `None` where no conjunct can be evaluated while decoding, or building the filter fails: the file is then read
    /// without one, as by stock.
    fn build(
        predicate: &Arc<dyn PhysicalExpr>,
        physical_schema: &arrow::datatypes::SchemaRef,
        file_metadata: &ParquetMetaData,
        opening: &OpeningFile,
    ) -> Option<Self> {
        let row_filter = build_row_filter(
            predicate,
            physical_schema,
            file_metadata,
            opening.scan.row_filter.reorder,
            &opening.file_metrics,
        )
        .unwrap_or_else(|error| {
            debug!(
                "{}: read without a row filter, it cannot be built: {error}",
                opening.file_name
            );
            None
        })?;
        let conjuncts = split_conjunction(predicate)
            .into_iter()
            .filter(|conjunct| can_expr_be_pushed_down_with_schemas(conjunct, physical_schema));
        let parquet_schema = file_metadata.file_metadata().schema_descr();
        let columns = leaf_mask(conjuncts, physical_schema, parquet_schema);
        Some(Self {
            row_filter,
            columns,
        })
    }
}
