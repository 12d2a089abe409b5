//! The order of a scan: which files and row groups come first when the query asks for sorted rows.
//!
//! None of this sorts rows. It brings what is likely to hold the first rows of the requested order
//! to the front, so that a `LIMIT` or the dynamic filter of a top-k query takes effect early. The
//! plan keeps its sort.
//!
//! Files and row groups are ordered by the minimum of the requested columns, in the same way, so
//! that the order among files agrees with the order within them.

use std::cmp::Ordering;
use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::compute::{SortColumn, SortOptions, lexsort_to_indices};
use arrow::datatypes::Schema;
use datafusion::common::{Result, ScalarValue, internal_datafusion_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetAccessPlan;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::{
    EquivalenceProperties, LexOrdering, PhysicalExpr, PhysicalSortExpr,
};
use log::debug;
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

use crate::plan::SelectionCursor;

/// What a scan knows of the order that its rows are wanted in.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct SortPushdown {
    /// The requested order. `None` when the scan was not asked for one, or already has it.
    pub(crate) sort_order: Option<LexOrdering>,
    /// Whether row groups are read from last to first, after they were ordered by statistics.
    pub(crate) reverse_row_groups: bool,
}

impl SortPushdown {
    /// Whether rows are wanted in some order, as a top-k sort wants them.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.sort_order.is_some() || self.reverse_row_groups
    }

    /// The row groups of `access_plan` in the order in which they are read.
    ///
    /// # Errors
    ///
    /// When a selection of the plan has another number of rows than its row group.
    pub(crate) fn prepare(
        &self,
        access_plan: ParquetAccessPlan,
        metadata: &ParquetMetaData,
        arrow_schema: &Schema,
    ) -> Result<PreparedPlan> {
        let mut plan = PreparedPlan::try_new(access_plan, metadata.row_groups())?;
        if let Some(sort_order) = &self.sort_order {
            plan = plan.reorder_by_statistics(sort_order, metadata, arrow_schema);
        }
        if self.reverse_row_groups {
            plan = plan.reverse(metadata)?;
        }
        Ok(plan)
    }
}

/// What a scan can do for a requested order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SortPushdownOutcome {
    /// Nothing.
    Unsupported,
    /// Its rows are in that order anyway.
    Exact,
    /// It can begin with the rows that are likely to come first.
    Inexact(SortPushdown),
}

/// Works out what a scan can do for `order`, given the orders that it is declared to have.
///
/// This is the rule that `ParquetSource::try_pushdown_sort` documents; that method keeps its result
/// to itself.
///
/// # Errors
///
/// When the equivalence properties cannot tell whether they satisfy an order.
pub(crate) fn sort_pushdown(
    order: &[PhysicalSortExpr],
    equivalences: &EquivalenceProperties,
    file_schema: &Schema,
) -> Result<SortPushdownOutcome> {
    let Some(sort_order) = LexOrdering::new(order.iter().cloned()) else {
        return Ok(SortPushdownOutcome::Unsupported);
    };
    if equivalences.ordering_satisfy(order.iter().cloned())? {
        return Ok(SortPushdownOutcome::Exact);
    }
    // A declared order that is a prefix of the requested one lets the sort stop early. Reading row
    // groups in another order would take that away.
    for prefix_len in 1..order.len() {
        if equivalences.ordering_satisfy(order[..prefix_len].iter().cloned())? {
            return Ok(SortPushdownOutcome::Unsupported);
        }
    }

    let leading = sort_order.first();
    let leading_in_file =
        column_name(&leading.expr).is_some_and(|name| file_schema.field_with_name(name).is_ok());
    let reverse_row_groups = if leading_in_file {
        // Statistics bring the row groups into ascending order first.
        leading.options.descending
    } else if reversed(equivalences).ordering_satisfy(order.iter().cloned())? {
        // There are no statistics to order by, but the declared order is the requested one backwards.
        true
    } else {
        return Ok(SortPushdownOutcome::Unsupported);
    };
    Ok(SortPushdownOutcome::Inexact(SortPushdown {
        sort_order: Some(sort_order),
        reverse_row_groups,
    }))
}

/// The same equivalences, of rows that are read backwards.
fn reversed(equivalences: &EquivalenceProperties) -> EquivalenceProperties {
    let orderings: Vec<Vec<PhysicalSortExpr>> = equivalences
        .oeq_class()
        .iter()
        .map(|ordering| ordering.iter().map(PhysicalSortExpr::reverse).collect())
        .collect();
    let mut reversed = equivalences.clone();
    reversed.clear_orderings();
    reversed.add_orderings(orderings);
    reversed
}

fn column_name(expr: &Arc<dyn PhysicalExpr>) -> Option<&str> {
    Some(expr.downcast_ref::<Column>()?.name())
}

/// A leading run of plain columns of an order, each with whether its direction differs from that of
/// the first.
fn leading_columns(order: &LexOrdering) -> impl Iterator<Item = (&str, &PhysicalSortExpr, bool)> {
    let descending = order.first().options.descending;
    order.iter().map_while(move |sort| {
        Some((
            column_name(&sort.expr)?,
            sort,
            sort.options.descending != descending,
        ))
    })
}

/// Brings the files that are likely to hold the first rows of the requested order to the front.
///
/// Files are compared by the minimum of the leading columns of the order, in ascending order unless
/// row groups are reversed. Files without that statistic come last either way, and files that
/// compare equal keep their order. Columns behind the first that is missing from `table_schema` do
/// not count.
pub(crate) fn reorder_files(
    files: Vec<PartitionedFile>,
    pushdown: &SortPushdown,
    table_schema: &Schema,
) -> Vec<PartitionedFile> {
    let Some(order) = &pushdown.sort_order else {
        return files;
    };
    let keys: Vec<(usize, bool)> = leading_columns(order)
        .map_while(|(name, _, differs)| {
            let index = table_schema.index_of(name).ok()?;
            Some((index, pushdown.reverse_row_groups != differs))
        })
        .take_while(|(index, _)| has_total_order(&files, *index))
        .collect();
    if keys.is_empty() {
        return files;
    }
    let mut files = files;
    files.sort_by(|left, right| {
        keys.iter()
            .map(|&(index, descending)| {
                compare_minima(file_min(left, index), file_min(right, index), descending)
            })
            .find(|ordering| ordering.is_ne())
            .unwrap_or(Ordering::Equal)
    });
    debug!("Ordered {} files by the minima of [{order}]", files.len());
    files
}

fn compare_minima(
    left: Option<&ScalarValue>,
    right: Option<&ScalarValue>,
    descending: bool,
) -> Ordering {
    match (left, right) {
        (Some(left), Some(right)) => {
            let ordering = left.partial_cmp(right).unwrap_or(Ordering::Equal);
            if descending {
                ordering.reverse()
            } else {
                ordering
            }
        }
        (left, right) => left.is_none().cmp(&right.is_none()),
    }
}

fn file_min(file: &PartitionedFile, column: usize) -> Option<&ScalarValue> {
    file.statistics
        .as_ref()?
        .column_statistics
        .get(column)?
        .min_value
        .get_value()
}

/// Whether the minima of a column can all be compared with each other. A file may come with
/// statistics of any origin, and sorting with a comparison that contradicts itself may panic.
fn has_total_order(files: &[PartitionedFile], column: usize) -> bool {
    let mut minima = files.iter().filter_map(|file| file_min(file, column));
    minima.next().is_none_or(|first| {
        !first.data_type().is_nested() && minima.all(|other| first.partial_cmp(other).is_some())
    })
}

/// The row groups of a file in the order in which they will be read, and the rows to read of them.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PreparedPlan {
    /// Row groups in scan order.
    pub(crate) row_group_indexes: Vec<usize>,
    /// The rows to read out of all rows of `row_group_indexes`, in that order. `None` is all.
    pub(crate) row_selection: Option<RowSelection>,
}

impl PreparedPlan {
    /// Lists the row groups of `plan` in file order.
    ///
    /// # Errors
    ///
    /// When a selection of the plan has another number of rows than its row group.
    pub(crate) fn try_new(
        plan: ParquetAccessPlan,
        row_groups: &[RowGroupMetaData],
    ) -> Result<Self> {
        let row_group_indexes = plan.row_group_indexes();
        let row_selection = plan.into_overall_row_selection(row_groups)?;
        Ok(Self {
            row_group_indexes,
            row_selection,
        })
    }

    /// Orders the row groups by the minimum of the leading columns of `sort_order`.
    ///
    /// The result is always ascending in the first column, because [`Self::reverse`] follows where
    /// the request is descending; for the same reason the later columns, and the place of row groups
    /// without statistics, are set against the direction of the first.
    ///
    /// Nothing changes under a row selection, which is in terms of the present order, or when the
    /// first column is no plain column of `arrow_schema` or has no readable statistics.
    pub(crate) fn reorder_by_statistics(
        mut self,
        sort_order: &LexOrdering,
        metadata: &ParquetMetaData,
        arrow_schema: &Schema,
    ) -> Self {
        if self.row_selection.is_some() || self.row_group_indexes.len() < 2 {
            return self;
        }
        let reversed_later = sort_order.first().options.descending;
        let columns: Vec<SortColumn> = leading_columns(sort_order)
            .map_while(|(name, sort, differs)| {
                let values = self.minima(name, metadata, arrow_schema)?;
                let nulls_first = sort.options.nulls_first != reversed_later;
                let options = Some(SortOptions {
                    descending: differs,
                    nulls_first,
                });
                Some(SortColumn { values, options })
            })
            .collect();
        if columns.is_empty() {
            return self;
        }
        match lexsort_to_indices(&columns, None) {
            Ok(order) => {
                let reordered = order
                    .values()
                    .iter()
                    .map(|&i| self.row_group_indexes[i as usize])
                    .collect();
                self.row_group_indexes = reordered;
            }
            Err(e) => debug!("Row groups stay in file order, their minima do not sort: {e}"),
        }
        self
    }

    /// The minima of a column, one for each row group, or `None` if they cannot be read.
    fn minima(
        &self,
        column: &str,
        metadata: &ParquetMetaData,
        arrow_schema: &Schema,
    ) -> Option<ArrayRef> {
        // A partition column may be asked for, which no file has.
        arrow_schema.field_with_name(column).ok()?;
        let parquet_schema = metadata.file_metadata().schema_descr();
        let row_groups = self
            .row_group_indexes
            .iter()
            .map(|&i| metadata.row_group(i));
        StatisticsConverter::try_new(column, arrow_schema, parquet_schema)
            .and_then(|converter| converter.row_group_mins(row_groups))
            .inspect_err(|e| debug!("Row groups are not ordered by '{column}': {e}"))
            .ok()
    }

    /// Reads the row groups from last to first. The rows of each keep their order.
    ///
    /// # Errors
    ///
    /// When `metadata` gives a row group a negative number of rows.
    pub(crate) fn reverse(mut self, metadata: &ParquetMetaData) -> Result<Self> {
        if let Some(selection) = self.row_selection.take() {
            let row_counts = self
                .row_group_indexes
                .iter()
                .map(|&i| row_count(i, metadata.row_group(i)))
                .collect::<Result<Vec<_>>>()?;
            self.row_selection = Some(reverse_selection(selection, &row_counts));
        }
        self.row_group_indexes.reverse();
        Ok(self)
    }
}

fn row_count(index: usize, row_group: &RowGroupMetaData) -> Result<usize> {
    let rows = row_group.num_rows();
    usize::try_from(rows).map_err(|_| {
        internal_datafusion_err!("Row group {index} has {rows} rows, expected zero or more")
    })
}

/// Takes a selection over blocks of rows apart at the block boundaries, and puts the parts together
/// from the last block to the first. Rows that the selection says nothing about are selected.
fn reverse_selection(selection: RowSelection, block_lens: &[usize]) -> RowSelection {
    let mut cursor = SelectionCursor::new(selection);
    let blocks: Vec<Vec<RowSelector>> = block_lens
        .iter()
        .map(|&block_len| {
            let mut block = cursor.take(block_len);
            let covered: usize = block.iter().map(|selector| selector.row_count).sum();
            block.push(RowSelector::select(block_len - covered));
            block
        })
        .collect();
    blocks.into_iter().rev().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;

    use arrow::array::{Int64Array, RecordBatch};
    use arrow::datatypes::{DataType, Field, SchemaRef};
    use bytes::Bytes;
    use datafusion::common::stats::Precision;
    use datafusion::common::{ColumnStatistics, Statistics};
    use datafusion::datasource::physical_plan::parquet::RowGroupAccess;
    use datafusion::datasource::physical_plan::{FileSource, ParquetSource};
    use datafusion::datasource::table_schema::TableSchema;
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{binary, col, lit, negative};
    use datafusion::physical_plan::{DisplayFormatType, SortOrderPushdownResult};
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::{
        ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
    };
    use parquet::file::properties::{EnabledStatistics, WriterProperties};
    use proptest::prelude::*;

    /// Columns `a`, `b` and `c` of the file, and the partition column `p`.
    fn table_schema() -> TableSchema {
        let column = |name: &str| Field::new(name, DataType::Int64, true);
        let file_schema = Schema::new(vec![column("a"), column("b"), column("c")]);
        TableSchema::builder(Arc::new(file_schema))
            .with_table_partition_cols(vec![Arc::new(column("p"))])
            .build()
    }

    fn sort_expr(
        expr: Arc<dyn PhysicalExpr>,
        descending: bool,
        nulls_first: bool,
    ) -> PhysicalSortExpr {
        PhysicalSortExpr {
            expr,
            options: SortOptions {
                descending,
                nulls_first,
            },
        }
    }

    fn column(name: &str) -> Arc<dyn PhysicalExpr> {
        col(name, table_schema().table_schema()).unwrap()
    }

    fn asc(name: &str) -> PhysicalSortExpr {
        sort_expr(column(name), false, false)
    }

    fn desc(name: &str) -> PhysicalSortExpr {
        sort_expr(column(name), true, true)
    }

    fn lex(order: &[PhysicalSortExpr]) -> LexOrdering {
        LexOrdering::new(order.iter().cloned()).unwrap()
    }

    /// The text that a source adds to its line in a plan.
    struct Extra<'a>(&'a dyn FileSource);

    impl fmt::Display for Extra<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt_extra(DisplayFormatType::Default, f)
        }
    }

    fn extra(pushdown: &SortPushdown) -> String {
        let order = pushdown.sort_order.as_ref();
        let order = order.map(|order| format!(", sort_order_for_reorder=[{order}]"));
        let reverse = if pushdown.reverse_row_groups {
            ", reverse_row_groups=true"
        } else {
            ""
        };
        order.unwrap_or_default() + reverse
    }

    fn file(name: usize, minima: &[Precision<ScalarValue>]) -> PartitionedFile {
        let columns = minima.iter().map(|min| {
            let mut column = ColumnStatistics::new_unknown();
            column.min_value = min.clone();
            column
        });
        let mut file = PartitionedFile::new(format!("{name}.parquet"), 1);
        file.statistics = Some(Arc::new(Statistics {
            num_rows: Precision::Absent,
            total_byte_size: Precision::Absent,
            column_statistics: columns.collect(),
        }));
        file
    }

    fn names(files: &[PartitionedFile]) -> Vec<String> {
        files
            .iter()
            .map(|file| file.object_meta.location.to_string())
            .collect()
    }

    fn exact(value: i64) -> Precision<ScalarValue> {
        Precision::Exact(ScalarValue::Int64(Some(value)))
    }

    fn any_sort_expr() -> impl Strategy<Value = PhysicalSortExpr> {
        let schema = table_schema();
        let schema = schema.table_schema();
        let minus_a = negative(column("a"), schema).unwrap();
        let plus = |left, right| binary(left, Operator::Plus, right, schema).unwrap();
        let exprs = prop_oneof![
            8 => prop::sample::select(vec![column("a"), column("b"), column("c"), column("p")]),
            2 => prop::sample::select(vec![
                minus_a,
                plus(column("a"), lit(1_i64)),
                plus(column("a"), column("b")),
            ]),
        ];
        (exprs, any::<bool>(), any::<bool>())
            .prop_map(|(expr, descending, nulls_first)| sort_expr(expr, descending, nulls_first))
    }

    fn any_equivalences() -> impl Strategy<Value = EquivalenceProperties> {
        let orderings = prop::collection::vec(prop::collection::vec(any_sort_expr(), 1..4), 0..3);
        (orderings, any::<bool>()).prop_map(|(orderings, equal)| {
            let schema = Arc::clone(table_schema().table_schema());
            let mut equivalences = EquivalenceProperties::new_with_orderings(schema, orderings);
            if equal {
                equivalences
                    .add_equal_conditions(column("b"), column("p"))
                    .unwrap();
            }
            equivalences
        })
    }

    /// Requests that often have to do with a declared order: the order itself, or backwards, cut or
    /// continued.
    fn any_request() -> impl Strategy<Value = (EquivalenceProperties, Vec<PhysicalSortExpr>)> {
        let tail = || prop::collection::vec(any_sort_expr(), 0..3);
        let related = (any_equivalences(), any::<bool>(), 0_usize..4, tail()).prop_map(
            |(equivalences, backwards, len, tail)| {
                let declared = equivalences
                    .oeq_class()
                    .iter()
                    .next()
                    .map(|order| order.to_vec());
                let mut order = declared.unwrap_or_default();
                order.truncate(len);
                if backwards {
                    order = order.iter().map(PhysicalSortExpr::reverse).collect();
                }
                order.extend(tail);
                (equivalences, order)
            },
        );
        prop_oneof![related, (any_equivalences(), tail())]
    }

    fn any_min() -> impl Strategy<Value = Precision<ScalarValue>> {
        let value = prop::option::of(0_i64..4).prop_map(ScalarValue::Int64);
        prop_oneof![
            1 => Just(Precision::Absent),
            3 => value.clone().prop_map(Precision::Exact),
            1 => value.prop_map(Precision::Inexact),
        ]
    }

    fn any_files() -> impl Strategy<Value = Vec<PartitionedFile>> {
        let minima = prop::option::of(prop::collection::vec(any_min(), 0..5));
        prop::collection::vec(minima, 0..12).prop_map(|files| {
            let files = files.into_iter().enumerate();
            let files = files.map(|(i, minima)| match minima {
                Some(minima) => file(i, &minima),
                None => PartitionedFile::new(format!("{i}.parquet"), 1),
            });
            files.collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Outcome, the text in the plan, and the order of files are those of a stock source.
        #[test]
        fn pushdown_is_that_of_a_stock_source(
            (equivalences, order) in any_request(),
            files in any_files(),
        ) {
            let table_schema = table_schema();
            let source = ParquetSource::new(table_schema.clone());
            let stock = source.try_pushdown_sort(&order, &equivalences).unwrap();
            let ours = sort_pushdown(&order, &equivalences, table_schema.file_schema()).unwrap();
            match (stock, ours) {
                (SortOrderPushdownResult::Unsupported, SortPushdownOutcome::Unsupported) => {}
                (SortOrderPushdownResult::Exact { inner }, SortPushdownOutcome::Exact) => {
                    prop_assert_eq!(Extra(inner.as_ref()).to_string(), "");
                }
                (
                    SortOrderPushdownResult::Inexact { inner },
                    SortPushdownOutcome::Inexact(pushdown),
                ) => {
                    prop_assert_eq!(Extra(inner.as_ref()).to_string(), extra(&pushdown));
                    let stock = inner.reorder_files(files.clone());
                    let ours = reorder_files(files, &pushdown, table_schema.table_schema());
                    prop_assert_eq!(names(&ours), names(&stock));
                }
                (_, ours) => prop_assert!(false, "stock has another outcome than {ours:?}"),
            }
        }
    }

    #[test]
    fn every_outcome_is_reached() {
        let schema = Arc::clone(table_schema().table_schema());
        let declared = [desc("p"), asc("b")];
        let equivalences = EquivalenceProperties::new_with_orderings(schema, [declared.clone()]);
        let outcome = |order: &[PhysicalSortExpr]| {
            sort_pushdown(order, &equivalences, table_schema().file_schema()).unwrap()
        };
        let inexact = |order: &[PhysicalSortExpr], reverse_row_groups| {
            let sort_order = Some(lex(order));
            SortPushdownOutcome::Inexact(SortPushdown {
                sort_order,
                reverse_row_groups,
            })
        };
        assert_eq!(outcome(&[]), SortPushdownOutcome::Unsupported);
        assert_eq!(outcome(&declared), SortPushdownOutcome::Exact);
        assert_eq!(outcome(&declared[..1]), SortPushdownOutcome::Exact);
        // A declared prefix is worth more than reordering.
        assert_eq!(
            outcome(&[desc("p"), asc("a")]),
            SortPushdownOutcome::Unsupported
        );
        assert_eq!(
            outcome(&[asc("a"), desc("p")]),
            inexact(&[asc("a"), desc("p")], false)
        );
        assert_eq!(outcome(&[desc("a")]), inexact(&[desc("a")], true));
        // No statistics for a partition column; but the declared order can be reversed.
        let backwards = declared.each_ref().map(PhysicalSortExpr::reverse);
        assert_eq!(outcome(&backwards), inexact(&backwards, true));
        assert_eq!(
            outcome(&[sort_expr(column("p"), false, true)]),
            SortPushdownOutcome::Unsupported
        );
    }

    #[test]
    fn files_without_pushdown_keep_their_order() {
        let files = vec![file(0, &[exact(2)]), file(1, &[exact(1)])];
        let table_schema = table_schema();
        let ours = reorder_files(files, &SortPushdown::default(), table_schema.table_schema());
        assert_eq!(names(&ours), ["0.parquet", "1.parquet"]);
    }

    #[test]
    fn minima_of_several_types_are_not_compared() {
        let text = Precision::Exact(ScalarValue::Utf8(Some("1".to_owned())));
        let files: Vec<_> = (0..40)
            .map(|i| {
                if i % 3 == 0 {
                    file(i, std::slice::from_ref(&text))
                } else {
                    file(i, &[exact(40 - i as i64)])
                }
            })
            .collect();
        let pushdown = SortPushdown {
            sort_order: Some(lex(&[asc("a")])),
            reverse_row_groups: false,
        };
        let before = names(&files);
        let ours = reorder_files(files, &pushdown, table_schema().table_schema());
        assert_eq!(names(&ours), before);
    }

    fn selectors(rows: &[bool]) -> RowSelection {
        let one_by_one = rows.iter().map(|&selected| RowSelector {
            row_count: 1,
            skip: !selected,
        });
        one_by_one.collect()
    }

    /// A file of `Int64` columns; each row group has the given `(a, b)` rows.
    fn write(row_groups: &[Vec<(Option<i64>, Option<i64>)>], statistics: bool) -> Bytes {
        let field = |name: &str| Field::new(name, DataType::Int64, true);
        let schema: SchemaRef = Arc::new(Schema::new(vec![field("a"), field("b")]));
        let level = if statistics {
            EnabledStatistics::Chunk
        } else {
            EnabledStatistics::None
        };
        let properties = WriterProperties::builder()
            .set_statistics_enabled(level)
            .build();
        let mut bytes = Vec::new();
        let mut writer =
            ArrowWriter::try_new(&mut bytes, Arc::clone(&schema), Some(properties)).unwrap();
        for rows in row_groups {
            let a: Int64Array = rows.iter().map(|row| row.0).collect();
            let b: Int64Array = rows.iter().map(|row| row.1).collect();
            let batch =
                RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(a), Arc::new(b)]).unwrap();
            writer.write(&batch).unwrap();
            writer.flush().unwrap();
        }
        writer.close().unwrap();
        Bytes::from(bytes)
    }

    fn load(bytes: &Bytes) -> ArrowReaderMetadata {
        ArrowReaderMetadata::load(bytes, ArrowReaderOptions::new()).unwrap()
    }

    /// The scan order of the row groups whose minima of `a` and `b` are given.
    fn scan_order(minima: &[(Option<i64>, Option<i64>)], order: &[PhysicalSortExpr]) -> Vec<usize> {
        let row_groups: Vec<_> = minima.iter().map(|min| vec![*min]).collect();
        let metadata = load(&write(&row_groups, true));
        let metadata = metadata.metadata();
        let plan = ParquetAccessPlan::new_all(minima.len());
        let plan = PreparedPlan::try_new(plan, metadata.row_groups()).unwrap();
        let order = lex(order);
        let plan = plan.reorder_by_statistics(&order, metadata, table_schema().file_schema());
        if order.first().options.descending {
            plan.reverse(metadata).unwrap().row_group_indexes
        } else {
            plan.row_group_indexes
        }
    }

    #[test]
    fn row_groups_follow_the_request() {
        let minima = [
            (Some(2), Some(5)),
            (Some(1), Some(7)),
            (Some(2), Some(4)),
            (Some(1), Some(8)),
        ];
        assert_eq!(scan_order(&minima, &[asc("a"), asc("b")]), [1, 3, 2, 0]);
        assert_eq!(scan_order(&minima, &[asc("a"), desc("b")]), [3, 1, 0, 2]);
        assert_eq!(scan_order(&minima, &[desc("a"), asc("b")]), [2, 0, 1, 3]);
        assert_eq!(scan_order(&minima, &[desc("a"), desc("b")]), [0, 2, 3, 1]);
        // What comes behind the first column without statistics does not count.
        let sum = binary(
            column("a"),
            Operator::Plus,
            lit(1_i64),
            table_schema().table_schema(),
        );
        let sum = sort_expr(sum.unwrap(), false, false);
        assert_eq!(scan_order(&minima, &[sum.clone(), asc("b")]), [0, 1, 2, 3]);
        assert_eq!(
            scan_order(&minima, &[asc("b"), sum, asc("a")]),
            [2, 0, 1, 3]
        );
        assert_eq!(scan_order(&minima, &[asc("p"), asc("b")]), [0, 1, 2, 3]);
    }

    #[test]
    fn row_groups_without_minima_go_where_nulls_go() {
        let minima = [(None, None), (Some(2), None), (Some(1), None)];
        for (descending, nulls_first, expected) in [
            (false, false, [2, 1, 0]),
            (false, true, [0, 2, 1]),
            (true, false, [1, 2, 0]),
            (true, true, [0, 1, 2]),
        ] {
            let order = [sort_expr(column("a"), descending, nulls_first)];
            assert_eq!(scan_order(&minima, &order), expected, "{order:?}");
        }
    }

    #[test]
    fn row_groups_stay_where_nothing_is_known() {
        let rows: Vec<_> = [3, 1, 2].map(|a| vec![(Some(a), None)]).into();
        let metadata = load(&write(&rows, false));
        let metadata = metadata.metadata();
        let plan = || {
            let plan = ParquetAccessPlan::new_all(3);
            PreparedPlan::try_new(plan, metadata.row_groups()).unwrap()
        };
        let order = lex(&[asc("a")]);
        let table_schema = table_schema();
        let reordered = plan().reorder_by_statistics(&order, metadata, table_schema.file_schema());
        assert_eq!(reordered, plan());
    }

    #[test]
    fn a_row_selection_forbids_reordering() {
        let rows: Vec<_> = [3, 1]
            .map(|a| vec![(Some(a), None), (Some(a), None)])
            .into();
        let metadata = load(&write(&rows, true));
        let metadata = metadata.metadata();
        let mut plan = ParquetAccessPlan::new_all(2);
        plan.scan_selection(0, selectors(&[true, false]));
        let plan = PreparedPlan::try_new(plan, metadata.row_groups()).unwrap();
        let reordered = plan.clone().reorder_by_statistics(
            &lex(&[asc("a")]),
            metadata,
            table_schema().file_schema(),
        );
        assert_eq!(reordered, plan);
    }

    #[test]
    fn a_selection_of_another_size_than_its_row_group_is_an_error() {
        let metadata = load(&write(&[vec![(Some(1), None)]], true));
        let mut plan = ParquetAccessPlan::new_all(1);
        plan.scan_selection(0, selectors(&[true, false]));
        PreparedPlan::try_new(plan, metadata.metadata().row_groups()).unwrap_err();
    }

    #[test]
    fn unmentioned_rows_are_selected() {
        let selection = selectors(&[false, true]);
        let expected = selectors(&[true, true, true, false, true]);
        assert_eq!(reverse_selection(selection, &[2, 3]), expected);
    }

    fn read(bytes: &Bytes, plan: PreparedPlan) -> Vec<i64> {
        let mut builder = ParquetRecordBatchReaderBuilder::try_new(bytes.clone())
            .unwrap()
            .with_row_groups(plan.row_group_indexes);
        if let Some(selection) = plan.row_selection {
            builder = builder.with_row_selection(selection);
        }
        let batches = builder.build().unwrap().map(Result::unwrap);
        let values = batches.flat_map(|batch| {
            let column = batch
                .column(0)
                .as_any()
                .downcast_ref::<Int64Array>()
                .unwrap()
                .clone();
            column.values().to_vec()
        });
        values.collect()
    }

    /// The rows of a row group to read, or nothing of it.
    fn any_access() -> impl Strategy<Value = Option<Vec<bool>>> {
        prop::option::weighted(
            0.8,
            prop_oneof![
                prop::collection::vec(any::<bool>(), 1..6),
                (1_usize..6).prop_map(|len| vec![true; len]),
            ],
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// A reversed plan reads the same rows, row group by row group from the last to the first.
        #[test]
        fn reversing_keeps_the_rows(accesses in prop::collection::vec(any_access(), 1..8)) {
            let mut next = 0..;
            let row_groups: Vec<Vec<_>> = accesses
                .iter()
                .map(|access| {
                    let len = access.as_ref().map_or(2, Vec::len);
                    next.by_ref().take(len).map(|value| (Some(value), None)).collect()
                })
                .collect();
            let bytes = write(&row_groups, true);
            let metadata = load(&bytes);
            let metadata = metadata.metadata();
            let plan = ParquetAccessPlan::new(
                accesses
                    .iter()
                    .map(|access| match access {
                        None => RowGroupAccess::Skip,
                        Some(rows) if rows.iter().all(|row| *row) => RowGroupAccess::Scan,
                        Some(rows) => RowGroupAccess::Selection(selectors(rows)),
                    })
                    .collect(),
            );
            let plan = PreparedPlan::try_new(plan, metadata.row_groups()).unwrap();
            let selected = accesses.iter().zip(&row_groups).map(|(access, rows)| {
                let selected = access.iter().flatten().zip(rows).filter(|(selected, _)| **selected);
                selected.map(|(_, row)| row.0.unwrap()).collect::<Vec<_>>()
            });
            let selected: Vec<_> = selected.collect();
            prop_assert_eq!(read(&bytes, plan.clone()), selected.concat());

            let reversed = plan.clone().reverse(metadata).unwrap();
            let backwards: Vec<_> = selected.into_iter().rev().collect();
            prop_assert_eq!(read(&bytes, reversed.clone()), backwards.concat());
            prop_assert_eq!(reversed.reverse(metadata).unwrap(), plan);
        }
    }
}
