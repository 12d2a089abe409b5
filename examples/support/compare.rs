//! Whether two answers are the same.

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, Float64Type, SchemaRef};
use arrow::row::{RowConverter, Rows, SortField};
use arrow::util::pretty::pretty_format_batches;

use super::Result;

/// Two sums of floats that were added in another order differ by less than this part of themselves.
const FLOAT_TOLERANCE: f64 = 1e-9;

/// The result of a query.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// The schema, known even when there is no batch.
    pub(crate) schema: SchemaRef,
    /// The rows.
    pub(crate) batches: Vec<RecordBatch>,
}

impl Answer {
    /// The number of rows.
    pub(crate) fn row_count(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }
}

/// Compares two answers as sets of rows that may repeat: a query without `ORDER BY` promises no order.
///
/// Columns of floating-point numbers may differ by [`FLOAT_TOLERANCE`], since partial sums are added in the order in
/// which partitions finish; everything else must be equal.
///
/// # Errors
///
/// Says what differs: the schemas, the numbers of rows, or the first row.
pub(crate) fn check_equal(expected: &Answer, actual: &Answer) -> Result<()> {
    if expected.schema != actual.schema {
        return Err(format!(
            "the schemas differ: expected {}, got {}",
            expected.schema, actual.schema
        )
        .into());
    }
    let (expected, actual) = (Sorted::try_new(expected)?, Sorted::try_new(actual)?);
    let (expected_count, actual_count) = (expected.order.len(), actual.order.len());
    if expected_count != actual_count {
        return Err(format!("expected {expected_count} rows, got {actual_count}").into());
    }
    for row in 0..expected_count {
        if !expected.row_equals(&actual, row) {
            return Err(format!(
                "sorted row {row} differs: expected\n{}\ngot\n{}",
                expected.print(row)?,
                actual.print(row)?
            )
            .into());
        }
    }
    Ok(())
}

/// An answer with its rows in an order that depends on nothing but their values.
struct Sorted {
    batch: RecordBatch,
    /// All columns but those of floats, encoded so that they compare as bytes.
    exact: Rows,
    floats: Vec<Vec<Option<f64>>>,
    order: Vec<usize>,
}

impl Sorted {
    fn try_new(answer: &Answer) -> Result<Self> {
        let batch = concat_batches(&answer.schema, &answer.batches)?;
        let (floats, exact): (Vec<ArrayRef>, Vec<ArrayRef>) = batch
            .columns()
            .iter()
            .cloned()
            .partition(|column| column.data_type().is_floating());
        let fields = exact
            .iter()
            .map(|column| SortField::new(column.data_type().clone()));
        let converter = RowConverter::new(fields.collect())?;
        let exact = if exact.is_empty() {
            // Without columns the number of rows is unknown to the converter.
            let mut rows = converter.empty_rows(0, 0);
            let parser = converter.parser();
            (0..batch.num_rows()).for_each(|_| rows.push(parser.parse(&[])));
            rows
        } else {
            converter.convert_columns(&exact)?
        };
        let floats = floats
            .iter()
            .map(|column| {
                let column = cast(column, &DataType::Float64)?;
                Ok(column.as_primitive::<Float64Type>().iter().collect())
            })
            .collect::<Result<Vec<Vec<_>>>>()?;
        let mut order: Vec<usize> = (0..batch.num_rows()).collect();
        order.sort_by(|&a, &b| {
            let by_floats = floats
                .iter()
                .map(|column| total_order(column[a], column[b]));
            exact.row(a).cmp(&exact.row(b)).then_with(|| {
                by_floats.fold(std::cmp::Ordering::Equal, |so_far, next| so_far.then(next))
            })
        });
        Ok(Self {
            batch,
            exact,
            floats,
            order,
        })
    }

    fn row_equals(&self, other: &Self, row: usize) -> bool {
        let (mine, theirs) = (self.order[row], other.order[row]);
        self.exact.row(mine).as_ref() == other.exact.row(theirs).as_ref()
            && self
                .floats
                .iter()
                .zip(&other.floats)
                .all(|(a, b)| nearly_equal(a[mine], b[theirs]))
    }

    fn print(&self, row: usize) -> Result<String> {
        Ok(pretty_format_batches(&[self.batch.slice(self.order[row], 1)])?.to_string())
    }
}

fn total_order(a: Option<f64>, b: Option<f64>) -> std::cmp::Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (a, b) => a.is_some().cmp(&b.is_some()),
    }
}

fn nearly_equal(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => {
            a == b
                || (a.is_nan() && b.is_nan())
                || (a - b).abs() <= FLOAT_TOLERANCE * a.abs().max(b.abs())
        }
        (a, b) => a.is_none() && b.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Float64Array, Int64Array, StringArray};

    use super::*;

    fn answer(columns: Vec<(&str, ArrayRef)>) -> Answer {
        let batch = RecordBatch::try_from_iter_with_nullable(
            columns
                .into_iter()
                .map(|(name, column)| (name, column, true)),
        )
        .unwrap();
        Answer {
            schema: batch.schema(),
            batches: vec![batch],
        }
    }

    fn named(names: &[&str], values: &[Option<f64>]) -> Answer {
        answer(vec![
            ("name", Arc::new(StringArray::from(names.to_vec()))),
            ("value", Arc::new(Float64Array::from(values.to_vec()))),
        ])
    }

    #[test]
    fn order_and_batch_boundaries_do_not_matter() {
        let one = named(&["a", "b", "b"], &[Some(1.0), None, Some(2.0)]);
        let mut other = named(&["b", "b", "a"], &[Some(2.0), None, Some(1.0)]);
        check_equal(&one, &other).unwrap();
        let batch = other.batches.remove(0);
        other.batches = vec![batch.slice(0, 1), batch.slice(1, 0), batch.slice(1, 2)];
        check_equal(&one, &other).unwrap();
        assert_eq!(other.row_count(), 3);
    }

    #[test]
    fn only_floats_may_differ_and_only_a_little() {
        let one = named(&["a"], &[Some(1e12)]);
        check_equal(&one, &named(&["a"], &[Some(1e12 + 1.0)])).unwrap();
        check_equal(&one, &named(&["a"], &[Some(1e12 + 1e5)])).unwrap_err();
        check_equal(&one, &named(&["a"], &[None])).unwrap_err();
        check_equal(&one, &named(&["b"], &[Some(1e12)])).unwrap_err();
        let nan = named(&["a"], &[Some(f64::NAN)]);
        check_equal(&nan, &nan.clone()).unwrap();
        check_equal(&nan, &one).unwrap_err();

        let integers = |value| {
            answer(vec![(
                "n",
                Arc::new(Int64Array::from(vec![value])) as ArrayRef,
            )])
        };
        check_equal(&integers(1_000_000_000_000), &integers(1_000_000_000_001)).unwrap_err();
    }

    #[test]
    fn repeated_rows_count() {
        let one = named(&["a", "a", "b"], &[Some(1.0); 3]);
        check_equal(&one, &named(&["a", "b", "b"], &[Some(1.0); 3])).unwrap_err();
        check_equal(&one, &named(&["a", "b"], &[Some(1.0); 2])).unwrap_err();
    }

    #[test]
    fn answers_of_floats_alone_are_compared() {
        let floats = |values: &[f64]| {
            answer(vec![(
                "f",
                Arc::new(Float64Array::from(values.to_vec())) as _,
            )])
        };
        check_equal(&floats(&[1.0, 2.0]), &floats(&[2.0, 1.0])).unwrap();
        check_equal(&floats(&[1.0, 2.0]), &floats(&[2.0, 2.0])).unwrap_err();
    }

    #[test]
    fn the_difference_is_shown() {
        let error = check_equal(
            &named(&["a", "left"], &[Some(1.0); 2]),
            &named(&["a", "right"], &[Some(1.0); 2]),
        )
        .unwrap_err()
        .to_string();
        assert!(error.contains("left") && error.contains("right"), "{error}");
        let renamed = answer(vec![(
            "other",
            Arc::new(Int64Array::from(vec![1])) as ArrayRef,
        )]);
        assert!(check_equal(&named(&["a"], &[None]), &renamed).is_err());
    }

    #[test]
    fn no_rows_are_equal_to_no_rows() {
        let mut none = named(&["a"], &[None]);
        none.batches.clear();
        check_equal(&none, &none.clone()).unwrap();
        check_equal(&none, &named(&["a"], &[None])).unwrap_err();
    }
}
