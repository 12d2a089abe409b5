//! Pruning while a file is being read, by filters that tighten as the query runs.
//!
//! A top-k sort or a hash join hands its scan a predicate that knows more and more. It is asked
//! again between row groups ([`RowGroupPruner`]) and, by the statistics of the whole file, between
//! batches ([`stop_early`]).

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, RecordBatch, UInt64Array};
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::{Column, Result, ScalarValue};
use datafusion::physical_expr::{DynamicFilterTracking, PhysicalExpr};
use datafusion::physical_optimizer::pruning::{
    FilePruner, PruningPredicate, PruningPredicateBuilder,
};
use datafusion::physical_plan::metrics::{Count, PruningMetrics};
use futures::stream::{self, BoxStream, StreamExt};
use log::debug;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

/// Statistics of some row groups of a file, as a pruning predicate wants them.
#[derive(Debug)]
pub(crate) struct RowGroupStatistics<'a> {
    metadata: &'a ParquetMetaData,
    arrow_schema: &'a Schema,
    row_groups: Vec<&'a RowGroupMetaData>,
}

impl<'a> RowGroupStatistics<'a> {
    /// The statistics of `row_groups`, in that order. `arrow_schema` is that of the file.
    ///
    /// # Panics
    ///
    /// If the file has no such row group.
    pub(crate) fn new(
        metadata: &'a ParquetMetaData,
        arrow_schema: &'a Schema,
        row_groups: &[usize],
    ) -> Self {
        let row_groups = row_groups.iter().map(|&i| metadata.row_group(i)).collect();
        Self {
            metadata,
            arrow_schema,
            row_groups,
        }
    }

    /// What `read` makes of a column, or `None` where the file has nothing on it.
    ///
    /// A missing null count is taken for zero: old writers leave it out where there are no nulls,
    /// and a null never satisfies a predicate that the other statistics refute.
    fn read<T>(
        &self,
        column: &Column,
        read: impl FnOnce(&StatisticsConverter<'a>) -> parquet::errors::Result<T>,
    ) -> Option<T> {
        let parquet_schema = self.metadata.file_metadata().schema_descr();
        StatisticsConverter::try_new(&column.name, self.arrow_schema, parquet_schema)
            .map(|converter| converter.with_missing_null_counts_as_zero(true))
            .and_then(|converter| read(&converter))
            .ok()
    }
}

impl PruningStatistics for RowGroupStatistics<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.read(column, |of| {
            of.row_group_mins(self.row_groups.iter().copied())
        })
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.read(column, |of| {
            of.row_group_maxes(self.row_groups.iter().copied())
        })
    }

    fn num_containers(&self) -> usize {
        self.row_groups.len()
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        let counts = self.read(column, |of| {
            of.row_group_null_counts(self.row_groups.iter().copied())
        })?;
        Some(Arc::new(counts))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let counts = self
            .row_groups
            .iter()
            .map(|row_group| u64::try_from(row_group.num_rows()));
        Some(Arc::new(UInt64Array::from_iter(
            counts.map(std::result::Result::ok),
        )))
    }

    fn contained(&self, _: &Column, _: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}

/// Decides at the boundary between two row groups which of those to come can be left out.
///
/// It only ever learns from a dynamic filter that changed. So a reader should ask [`Self::changed`]
/// first, and only then for all pending row groups at once: the work then grows with the number of
/// changes, not with that of boundaries.
#[derive(Debug)]
pub(crate) struct RowGroupPruner {
    predicate: Arc<dyn PhysicalExpr>,
    tracking: DynamicFilterTracking,
    arrow_schema: SchemaRef,
    metadata: Arc<ParquetMetaData>,
    max_in_list_size: usize,
    state: PrunerState,
    creation_errors: Count,
    evaluation_errors: Count,
}

#[derive(Debug)]
enum PrunerState {
    /// The predicate has not been looked at.
    New,
    /// The predicate as it was last, or `None` if it cannot prune anything.
    Built(Option<Arc<PruningPredicate>>),
}

impl RowGroupPruner {
    /// A pruner for the row groups of a file, or `None` if `predicate` can no longer change: what
    /// it is worth then, pruning at opening has got out of it.
    ///
    /// `arrow_schema` is the physical schema of the file, in terms of which `predicate` is.
    /// `creation_errors` counts versions of the predicate that could not be analysed,
    /// `evaluation_errors` row groups that could not be judged. `max_in_list_size` is the number of
    /// values from which on an `IN` list does not prune.
    pub(crate) fn try_new(
        predicate: &Arc<dyn PhysicalExpr>,
        arrow_schema: &SchemaRef,
        metadata: &Arc<ParquetMetaData>,
        max_in_list_size: usize,
        creation_errors: Count,
        evaluation_errors: Count,
    ) -> Option<Self> {
        let tracking = DynamicFilterTracking::classify(predicate);
        if !matches!(tracking, DynamicFilterTracking::Watching(_)) {
            return None;
        }
        Some(Self {
            predicate: Arc::clone(predicate),
            tracking,
            arrow_schema: Arc::clone(arrow_schema),
            metadata: Arc::clone(metadata),
            max_in_list_size,
            state: PrunerState::New,
            creation_errors,
            evaluation_errors,
        })
    }

    /// Takes note of changes to the filters. `true` if row groups that were to be read may now be
    /// left out: the first time, and after each change.
    ///
    /// [`Self::prune`] takes note of them as well, so what it was not asked about must be asked for
    /// before the next call of this.
    pub(crate) fn changed(&mut self) -> bool {
        let changed = self
            .tracking
            .watcher()
            .is_some_and(|tracker| tracker.changed());
        if !changed && matches!(self.state, PrunerState::Built(_)) {
            return false;
        }
        let predicate = PruningPredicateBuilder::new()
            .with_file_schema(Arc::clone(&self.arrow_schema))
            .with_max_in_list_size(self.max_in_list_size)
            .with_error_counter(&self.creation_errors)
            .build(Arc::clone(&self.predicate));
        self.state = PrunerState::Built(predicate);
        true
    }

    /// Whether each of `row_groups` can be left out under the present state of the filters.
    ///
    /// A row group that cannot be judged is read.
    ///
    /// # Panics
    ///
    /// If the file has no such row group.
    pub(crate) fn prune(&mut self, row_groups: &[usize]) -> Vec<bool> {
        self.changed();
        let keep_all = || vec![false; row_groups.len()];
        let PrunerState::Built(Some(predicate)) = &self.state else {
            return keep_all();
        };
        if row_groups.is_empty() {
            return Vec::new();
        }
        let statistics = RowGroupStatistics::new(&self.metadata, &self.arrow_schema, row_groups);
        match predicate.prune(&statistics) {
            Ok(keep) => keep.into_iter().map(|keep| !keep).collect(),
            Err(e) => {
                debug!(
                    "Reading {} row groups that could not be judged: {e}",
                    row_groups.len()
                );
                self.evaluation_errors.add(row_groups.len());
                keep_all()
            }
        }
    }
}

/// Ends the stream of a file as soon as its statistics rule it out.
///
/// The pruner is asked before each batch is passed on; the batch that finds the file ruled out is
/// dropped, and so is `stream` with all that it holds. The file, which `files_ranges` has as
/// matched, is then counted as pruned instead. Without a pruner, or with one whose filters cannot
/// change any more, `stream` is returned as it is.
pub(crate) fn stop_early(
    stream: BoxStream<'static, Result<RecordBatch>>,
    pruner: Option<FilePruner>,
    files_ranges: PruningMetrics,
) -> BoxStream<'static, Result<RecordBatch>> {
    let Some(pruner) = pruner.filter(FilePruner::is_watching) else {
        return stream;
    };
    stream::unfold((stream, pruner), move |(mut stream, mut pruner)| {
        let files_ranges = files_ranges.clone();
        async move {
            let mut item = stream.next().await?;
            if item.is_ok() {
                match pruner.should_prune() {
                    Ok(false) => {}
                    Ok(true) => {
                        files_ranges.add_pruned(1);
                        files_ranges.subtract_matched(1);
                        return None;
                    }
                    Err(e) => item = Err(e),
                }
            }
            Some((item, (stream, pruner)))
        }
    })
    .fuse()
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field};
    use bytes::Bytes;
    use datafusion::common::stats::Precision;
    use datafusion::common::{ColumnStatistics, DataFusionError, Statistics};
    use datafusion::datasource::listing::PartitionedFile;
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{
        BinaryExpr, DynamicFilterPhysicalExpr, binary, col, lit,
    };
    use futures::executor::block_on;
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
    use proptest::prelude::*;

    fn schema() -> SchemaRef {
        Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, true)]))
    }

    fn batch(values: &[Option<i64>]) -> RecordBatch {
        let column = Arc::new(Int64Array::from(values.to_vec()));
        RecordBatch::try_new(schema(), vec![column]).unwrap()
    }

    fn metadata(row_groups: &[Vec<Option<i64>>]) -> Arc<ParquetMetaData> {
        let mut bytes = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut bytes, schema(), None).unwrap();
        for values in row_groups {
            writer.write(&batch(values)).unwrap();
            writer.flush().unwrap();
        }
        writer.close().unwrap();
        let bytes = Bytes::from(bytes);
        let metadata = ArrowReaderMetadata::load(&bytes, ArrowReaderOptions::new()).unwrap();
        Arc::clone(metadata.metadata())
    }

    fn a() -> Arc<dyn PhysicalExpr> {
        col("a", &schema()).unwrap()
    }

    fn less_than(bound: i64) -> Arc<dyn PhysicalExpr> {
        binary(a(), Operator::Lt, lit(bound), &schema()).unwrap()
    }

    /// A filter that lets everything through until it is updated.
    fn open_filter() -> Arc<DynamicFilterPhysicalExpr> {
        Arc::new(DynamicFilterPhysicalExpr::new(vec![a()], lit(true)))
    }

    struct Pruner {
        pruner: RowGroupPruner,
        creation_errors: Count,
        evaluation_errors: Count,
    }

    fn try_pruner(
        predicate: Arc<dyn PhysicalExpr>,
        row_groups: &[Vec<Option<i64>>],
    ) -> Option<Pruner> {
        let (creation_errors, evaluation_errors) = (Count::new(), Count::new());
        let pruner = RowGroupPruner::try_new(
            &predicate,
            &schema(),
            &metadata(row_groups),
            20,
            creation_errors.clone(),
            evaluation_errors.clone(),
        )?;
        Some(Pruner {
            pruner,
            creation_errors,
            evaluation_errors,
        })
    }

    fn pruner(filter: &Arc<DynamicFilterPhysicalExpr>, row_groups: &[Vec<Option<i64>>]) -> Pruner {
        try_pruner(Arc::clone(filter) as _, row_groups).unwrap()
    }

    /// Row groups with the values 0-9, 10-19 and so on.
    fn tens(count: i64) -> Vec<Vec<Option<i64>>> {
        (0..count)
            .map(|i| (i * 10..i * 10 + 10).map(Some).collect())
            .collect()
    }

    #[test]
    fn a_predicate_that_cannot_change_has_no_pruner() {
        assert!(try_pruner(less_than(0), &tens(2)).is_none());
        let complete = open_filter();
        complete.update(less_than(0)).unwrap();
        complete.mark_complete();
        assert!(try_pruner(complete, &tens(2)).is_none());
        assert!(try_pruner(open_filter(), &tens(2)).is_some());
    }

    #[test]
    fn the_pruner_follows_its_filter() {
        let filter = open_filter();
        let Pruner {
            mut pruner,
            creation_errors,
            evaluation_errors,
        } = pruner(&filter, &tens(4));
        assert_eq!(pruner.prune(&[0, 1, 2, 3]), [false; 4]);
        filter.update(less_than(25)).unwrap();
        assert_eq!(pruner.prune(&[0, 1, 2, 3]), [false, false, false, true]);
        // Any row groups in any order: those that are pending, as they will be read.
        assert_eq!(pruner.prune(&[3, 0]), [true, false]);
        assert_eq!(pruner.prune(&[3, 2]), [true, false]);
        filter.update(less_than(10)).unwrap();
        assert_eq!(pruner.prune(&[1, 0, 2]), [true, false, true]);
        assert_eq!(pruner.prune(&[]), [false; 0]);
        assert_eq!((creation_errors.value(), evaluation_errors.value()), (0, 0));
    }

    #[test]
    fn a_change_is_reported_once() {
        let filter = open_filter();
        let Pruner { mut pruner, .. } = pruner(&filter, &tens(2));
        assert!(pruner.changed());
        assert!(!pruner.changed());
        filter.update(less_than(5)).unwrap();
        assert!(pruner.changed());
        assert_eq!(pruner.prune(&[0, 1]), [false, true]);
        assert!(!pruner.changed());
        // The last update counts, even if the filter is complete with it.
        filter.update(less_than(0)).unwrap();
        filter.mark_complete();
        assert!(pruner.changed());
        assert_eq!(pruner.prune(&[0, 1]), [true, true]);
        assert!(!pruner.changed());
    }

    #[test]
    fn an_update_before_the_first_look_counts() {
        let filter = open_filter();
        let Pruner { mut pruner, .. } = pruner(&filter, &tens(2));
        filter.update(less_than(10)).unwrap();
        assert_eq!(pruner.prune(&[1]), [true]);
    }

    #[test]
    fn what_cannot_be_judged_is_read_and_counted() {
        let filter = open_filter();
        let Pruner {
            mut pruner,
            creation_errors,
            evaluation_errors,
        } = pruner(&filter, &tens(3));
        // Planning would have put a cast in; without it the comparison fails.
        filter
            .update(Arc::new(BinaryExpr::new(a(), Operator::Lt, lit("x"))))
            .unwrap();
        assert_eq!(pruner.prune(&[0, 1, 2]), [false; 3]);
        assert_eq!(pruner.prune(&[0]), [false]);
        assert_eq!((creation_errors.value(), evaluation_errors.value()), (0, 4));
        // A later state of the filter prunes again.
        filter.update(less_than(0)).unwrap();
        assert_eq!(pruner.prune(&[0, 1, 2]), [true; 3]);
    }

    #[test]
    fn statistics_are_those_of_the_chosen_row_groups() {
        let metadata = metadata(&[vec![Some(3), None], vec![None], vec![Some(7), Some(5)]]);
        let schema = schema();
        let statistics = RowGroupStatistics::new(&metadata, &schema, &[2, 1, 0]);
        let column = Column::from_name("a");
        let ints =
            |values: [Option<i64>; 3]| -> ArrayRef { Arc::new(Int64Array::from_iter(values)) };
        let counts =
            |values: [u64; 3]| -> ArrayRef { Arc::new(UInt64Array::from_iter_values(values)) };
        assert_eq!(statistics.num_containers(), 3);
        assert_eq!(
            statistics.min_values(&column),
            Some(ints([Some(5), None, Some(3)]))
        );
        assert_eq!(
            statistics.max_values(&column),
            Some(ints([Some(7), None, Some(3)]))
        );
        assert_eq!(statistics.null_counts(&column), Some(counts([0, 1, 1])));
        assert_eq!(statistics.row_counts(), Some(counts([2, 1, 2])));
        assert_eq!(statistics.min_values(&Column::from_name("absent")), None);
    }

    proptest! {
        /// Asking for all row groups at once gives what asking for each gives, and no row group
        /// that has a matching row is left out.
        #[test]
        fn pruning_is_sound(
            row_groups in prop::collection::vec(
                prop::collection::vec(prop::option::of(0_i64..20), 1..6),
                1..8,
            ),
            bounds in prop::collection::vec(-1_i64..21, 1..4),
        ) {
            let filter = open_filter();
            let mut pruner = pruner(&filter, &row_groups).pruner;
            let all: Vec<usize> = (0..row_groups.len()).collect();
            for bound in bounds {
                filter.update(less_than(bound)).unwrap();
                let pruned = pruner.prune(&all);
                let one_by_one: Vec<bool> = all.iter().flat_map(|&i| pruner.prune(&[i])).collect();
                prop_assert_eq!(&pruned, &one_by_one);
                for (values, pruned) in row_groups.iter().zip(pruned) {
                    let matches = values.iter().flatten().any(|value| *value < bound);
                    prop_assert_eq!(pruned, !matches, "{:?} < {}", values, bound);
                }
            }
        }
    }

    /// A file whose values are 0 to 9.
    fn file_pruner(predicate: Arc<dyn PhysicalExpr>) -> FilePruner {
        let mut column = ColumnStatistics::new_unknown();
        column.min_value = Precision::Exact(ScalarValue::Int64(Some(0)));
        column.max_value = Precision::Exact(ScalarValue::Int64(Some(9)));
        column.null_count = Precision::Exact(0);
        let mut file = PartitionedFile::new("f.parquet", 1);
        file.statistics = Some(Arc::new(Statistics {
            num_rows: Precision::Exact(10),
            total_byte_size: Precision::Absent,
            column_statistics: vec![column],
        }));
        FilePruner::try_new(predicate, &schema(), &file, Count::new()).unwrap()
    }

    /// A stream of three batches and an error, and what is alive as long as it is.
    fn source() -> (BoxStream<'static, Result<RecordBatch>>, std::sync::Weak<()>) {
        let alive = Arc::new(());
        let watch = Arc::downgrade(&alive);
        let items = (0..4).map(|i| match i {
            3 => Err(DataFusionError::Execution("broken".to_owned())),
            _ => Ok(batch(&[Some(i)])),
        });
        let items: Vec<_> = items.collect();
        let stream = stream::iter(items).map(move |item| {
            let _alive = &alive;
            item
        });
        (stream.boxed(), watch)
    }

    fn matched() -> PruningMetrics {
        let metrics = PruningMetrics::new();
        metrics.add_matched(1);
        metrics
    }

    #[test]
    fn a_file_that_is_ruled_out_ends() {
        let filter = open_filter();
        let metrics = matched();
        let (source, alive) = source();
        let pruner = file_pruner(Arc::clone(&filter) as _);
        let mut stream = stop_early(source, Some(pruner), metrics.clone());

        assert_eq!(block_on(stream.next()).unwrap().unwrap(), batch(&[Some(0)]));
        filter.update(less_than(5)).unwrap();
        assert_eq!(block_on(stream.next()).unwrap().unwrap(), batch(&[Some(1)]));
        assert_eq!((metrics.matched(), metrics.pruned()), (1, 0));
        filter.update(less_than(0)).unwrap();
        assert!(block_on(stream.next()).is_none());
        assert_eq!((metrics.matched(), metrics.pruned()), (0, 1));
        assert!(alive.upgrade().is_none());
        assert!(block_on(stream.next()).is_none());
        assert_eq!((metrics.matched(), metrics.pruned()), (0, 1));
    }

    #[test]
    fn a_file_that_is_not_ruled_out_is_read_to_its_end() {
        let filter = open_filter();
        let metrics = matched();
        let (source, alive) = source();
        let pruner = file_pruner(Arc::clone(&filter) as _);
        let mut stream = stop_early(source, Some(pruner), metrics.clone());
        for i in 0..3 {
            assert_eq!(block_on(stream.next()).unwrap().unwrap(), batch(&[Some(i)]));
        }
        // An error gets through even if the file is ruled out by now.
        filter.update(less_than(0)).unwrap();
        assert!(block_on(stream.next()).unwrap().is_err());
        assert!(block_on(stream.next()).is_none());
        assert!(alive.upgrade().is_none());
        assert_eq!((metrics.matched(), metrics.pruned()), (1, 0));
    }

    #[test]
    fn filters_that_cannot_change_stop_nothing() {
        // Opening the file has asked this pruner, and decided to read the file.
        for pruner in [None, Some(file_pruner(less_than(0)))] {
            let metrics = matched();
            let stream = stop_early(source().0, pruner, metrics.clone());
            assert_eq!(block_on(stream.collect::<Vec<_>>()).len(), 4);
            assert_eq!((metrics.matched(), metrics.pruned()), (1, 0));
        }
    }
}
