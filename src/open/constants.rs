//! The columns of a file that have one value in all of its rows.
//!
//! Their value is known before anything of the file is read, so they become literals in projection
//! and predicate: they are not decoded, and a predicate on them may prune the whole file.

use std::collections::HashMap;

use arrow::datatypes::{DataType, Schema};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, ScalarValue, Statistics};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::table_schema::TableSchema;

/// The literal columns of `file`, by name: its partition values, and the columns whose statistics
/// prove a single value.
///
/// Where both speak of a column, the statistics win, as in stock.
pub(crate) fn literal_columns(
    table_schema: &TableSchema,
    file: &PartitionedFile,
) -> HashMap<String, ScalarValue> {
    let mut literals: HashMap<String, ScalarValue> = table_schema
        .table_partition_cols()
        .iter()
        .zip(&file.partition_values)
        .map(|(field, value)| (field.name().clone(), value.clone()))
        .collect();
    if let Some(statistics) = &file.statistics {
        literals.extend(constant_columns(statistics, table_schema.file_schema()));
    }
    literals
}

/// The columns of `file_schema` that `statistics` prove to be constant.
///
/// The statistics of a file are in table order: columns of the file first, partition columns after
/// them. The latter have no place in `file_schema` and are left out.
fn constant_columns(
    statistics: &Statistics,
    file_schema: &Schema,
) -> impl Iterator<Item = (String, ScalarValue)> {
    file_schema
        .fields()
        .iter()
        .zip(&statistics.column_statistics)
        .filter_map(|(field, column)| {
            let value = constant_value(column, &statistics.num_rows, field.data_type())?;
            Some((field.name().clone(), value))
        })
}

/// The single value of a column, if exact statistics prove one: minimum and maximum agree and
/// there is no null, or there is nothing but nulls.
///
/// An inexact statistic proves nothing. A value that cannot be cast to `data_type` is no constant:
/// the column is read instead.
fn constant_value(
    column: &ColumnStatistics,
    num_rows: &Precision<usize>,
    data_type: &DataType,
) -> Option<ScalarValue> {
    let Precision::Exact(null_count) = &column.null_count else {
        return None;
    };
    if *null_count == 0
        && let (Precision::Exact(min), Precision::Exact(max)) =
            (&column.min_value, &column.max_value)
        && min == max
        && !min.is_null()
    {
        // File statistics may be in the file's own type, for instance strings where the table has
        // dictionaries.
        return if min.data_type() == *data_type {
            Some(min.clone())
        } else {
            min.cast_to(data_type).ok()
        };
    }
    match num_rows {
        Precision::Exact(num_rows) if num_rows == null_count => {
            ScalarValue::try_new_null(data_type).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::Field;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn int(value: i64) -> ScalarValue {
        ScalarValue::Int64(Some(value))
    }

    fn column(
        min: Precision<ScalarValue>,
        max: Precision<ScalarValue>,
        null_count: Precision<usize>,
    ) -> ColumnStatistics {
        let mut column = ColumnStatistics::new_unknown();
        column.min_value = min;
        column.max_value = max;
        column.null_count = null_count;
        column
    }

    fn exact(min: i64, max: i64, null_count: usize) -> ColumnStatistics {
        column(
            Precision::Exact(int(min)),
            Precision::Exact(int(max)),
            Precision::Exact(null_count),
        )
    }

    fn value(column: &ColumnStatistics, rows: Precision<usize>) -> Option<ScalarValue> {
        constant_value(column, &rows, &DataType::Int64)
    }

    #[test]
    fn one_value_without_nulls_is_constant() {
        assert_eq!(value(&exact(3, 3, 0), Precision::Absent), Some(int(3)));
        assert_eq!(value(&exact(3, 4, 0), Precision::Exact(9)), None);
        assert_eq!(value(&exact(3, 3, 1), Precision::Exact(9)), None);
    }

    #[test]
    fn only_nulls_is_constant() {
        let nulls = column(Precision::Absent, Precision::Absent, Precision::Exact(9));
        assert_eq!(
            value(&nulls, Precision::Exact(9)),
            Some(ScalarValue::Int64(None))
        );
        assert_eq!(value(&nulls, Precision::Exact(10)), None);
        assert_eq!(value(&nulls, Precision::Inexact(9)), None);
        // An empty file: zero nulls in zero rows.
        let empty = column(Precision::Absent, Precision::Absent, Precision::Exact(0));
        assert_eq!(
            value(&empty, Precision::Exact(0)),
            Some(ScalarValue::Int64(None))
        );
    }

    #[test]
    fn null_extremes_are_no_value() {
        let null = Precision::Exact(ScalarValue::Int64(None));
        let nulls = column(null.clone(), null, Precision::Exact(0));
        assert_eq!(value(&nulls, Precision::Exact(9)), None);
    }

    #[test]
    fn a_value_is_cast_to_the_columns_type() {
        let text = ScalarValue::Utf8(Some("x".to_owned()));
        let stats = column(
            Precision::Exact(text.clone()),
            Precision::Exact(text.clone()),
            Precision::Exact(0),
        );
        let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        assert_eq!(
            constant_value(&stats, &Precision::Absent, &dictionary),
            Some(ScalarValue::Dictionary(
                Box::new(DataType::Int32),
                Box::new(text)
            ))
        );
        // "x" is no date: the column must be read.
        assert_eq!(
            constant_value(&stats, &Precision::Absent, &DataType::Date32),
            None
        );
    }

    #[test]
    fn partition_values_and_statistics_meet_by_name() {
        let file_schema = Arc::new(Schema::new(vec![
            Field::new("a", DataType::Int64, true),
            Field::new("b", DataType::Int64, true),
        ]));
        let partition: Vec<_> = ["p", "q"]
            .into_iter()
            .map(|name| Arc::new(Field::new(name, DataType::Int64, false)))
            .collect();
        let table_schema = TableSchema::builder(file_schema)
            .with_table_partition_cols(partition)
            .build();
        let mut file = PartitionedFile::new("p=7/q=8/f.parquet", 1);
        file.partition_values = vec![int(7), int(8)];
        assert_eq!(
            literal_columns(&table_schema, &file),
            HashMap::from([("p".to_owned(), int(7)), ("q".to_owned(), int(8))])
        );

        file.statistics = Some(Arc::new(Statistics {
            num_rows: Precision::Exact(5),
            total_byte_size: Precision::Absent,
            // The statistics of the partition columns are beyond the file's schema.
            column_statistics: vec![
                exact(1, 2, 0),
                exact(4, 4, 0),
                exact(9, 9, 0),
                exact(9, 9, 0),
            ],
        }));
        assert_eq!(
            literal_columns(&table_schema, &file),
            HashMap::from([
                ("b".to_owned(), int(4)),
                ("p".to_owned(), int(7)),
                ("q".to_owned(), int(8)),
            ])
        );
    }

    fn truthful(values: &[Option<i64>]) -> ColumnStatistics {
        let bound = |value: Option<i64>| match value {
            Some(value) => Precision::Exact(int(value)),
            None => Precision::Absent,
        };
        column(
            bound(values.iter().flatten().min().copied()),
            bound(values.iter().flatten().max().copied()),
            Precision::Exact(values.iter().filter(|value| value.is_none()).count()),
        )
    }

    proptest! {
        /// Statistics taken from values give a constant exactly where all values are the same, and
        /// then that value.
        #[test]
        fn constant_means_all_values_equal(
            values in prop::collection::vec(prop::option::of(0_i64..3), 1..5)
        ) {
            let all_equal = values.iter().all(|value| *value == values[0]);
            let found = value(&truthful(&values), Precision::Exact(values.len()));
            prop_assert_eq!(found, all_equal.then(|| ScalarValue::Int64(values[0])));
        }
    }
}
