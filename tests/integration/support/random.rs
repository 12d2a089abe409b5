//! Random arrays of any of the types that the property test uses, random files of them, and
//! random queries over those.

use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int64Array,
    ListArray, MapArray, NullArray, RecordBatch, StringArray, StructArray,
};
use datafusion::arrow::buffer::{NullBuffer, OffsetBuffer};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, TimeUnit};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, RngCore};

/// A column that a file may have besides `id`.
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) data_type: DataType,
    /// What some files hold instead, where the table's schema is declared.
    pub(crate) narrow: Option<DataType>,
    /// What queries may select of it.
    expressions: &'static [&'static str],
    /// What queries may filter by.
    predicates: &'static [&'static str],
}

fn nullable(name: &str, data_type: DataType) -> FieldRef {
    Arc::new(Field::new(name, data_type, true))
}

fn point() -> DataType {
    let inner = Fields::from(vec![nullable("w", DataType::Int64)]);
    DataType::Struct(Fields::from(vec![
        nullable("x", DataType::Int32),
        nullable("y", DataType::Utf8),
        nullable("z", DataType::Struct(inner)),
    ]))
}

fn list(item: DataType) -> DataType {
    DataType::List(nullable("item", item))
}

fn map() -> DataType {
    let entries = DataType::Struct(Fields::from(vec![
        Arc::new(Field::new("key", DataType::Utf8, false)),
        nullable("value", DataType::Int32),
    ]));
    DataType::Map(Arc::new(Field::new("entries", entries, false)), false)
}

/// Every column that there is besides `id`.
pub(crate) fn columns() -> Vec<Column> {
    let column = |name, data_type, expressions, predicates| Column {
        name,
        data_type,
        narrow: None,
        expressions,
        predicates,
    };
    let narrowed = |narrow, column| Column {
        narrow: Some(narrow),
        ..column
    };
    let microseconds = DataType::Timestamp(TimeUnit::Microsecond, None);
    let zoned = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    vec![
        narrowed(
            DataType::Int32,
            column(
                "l",
                DataType::Int64,
                &["l", "l + 1", "abs(l)"],
                &[
                    "l > 30",
                    "l BETWEEN 3 AND 9",
                    "l IN (1, 5, 40)",
                    "l IS NULL",
                    "l <> 7",
                ],
            ),
        ),
        narrowed(
            DataType::Float32,
            column(
                "f",
                DataType::Float64,
                &["f", "f * 2"],
                &["f > 20.5", "f IS NOT NULL"],
            ),
        ),
        column(
            "i",
            DataType::Int32,
            &["i", "i % 4"],
            &["i = 11", "i < 0", "i % 3 = 1"],
        ),
        column(
            "s",
            DataType::Utf8,
            &["s", "s || '!'", "length(s)"],
            &[
                "s = 'v3'",
                "s LIKE 'v1%'",
                "s IN ('v2', 'v9')",
                "s IS NULL",
                "s > 'v5'",
            ],
        ),
        column("large", DataType::LargeUtf8, &["large"], &["large < 'v2'"]),
        column(
            "bin",
            DataType::Binary,
            &["bin"],
            &["bin IS NOT NULL", "bin > 'v5'::bytea"],
        ),
        column(
            "flag",
            DataType::Boolean,
            &["flag"],
            &["flag", "NOT flag", "flag IS NULL"],
        ),
        column(
            "d",
            DataType::Decimal128(12, 2),
            &["d", "d * 2"],
            &["d < 10.5", "d BETWEEN 1.25 AND 30", "d = 20"],
        ),
        column("big", DataType::Decimal128(30, 4), &["big"], &["big > 12"]),
        column(
            "day",
            DataType::Date32,
            &["day"],
            &["day >= DATE '1970-01-20'"],
        ),
        column(
            "ts",
            microseconds,
            &["ts", "date_trunc('day', ts)"],
            &["ts < TIMESTAMP '1970-01-15T00:00:00'", "ts IS NULL"],
        ),
        column(
            "zoned",
            zoned,
            &["zoned"],
            &["zoned > TIMESTAMP '1970-01-10T00:00:00Z'"],
        ),
        column(
            "dict",
            dictionary,
            &["dict"],
            &["dict = 'v4'", "dict IS NOT NULL", "dict > 'v6'"],
        ),
        column(
            "st",
            point(),
            &["st", "st['x']", "st['z']['w']", "st['y']"],
            &[
                "st['x'] > 20",
                "st IS NULL",
                "st['y'] = 'v1'",
                "st['z']['w'] < 5",
            ],
        ),
        column(
            "li",
            list(DataType::Int32),
            &["li", "li[1]", "array_length(li)"],
            &["array_length(li) > 1", "li IS NULL", "array_has(li, 7)"],
        ),
        column("lp", list(point()), &["lp"], &["lp IS NOT NULL"]),
        column("mp", map(), &["mp", "mp['k1']"], &["mp IS NOT NULL"]),
    ]
}

/// An array of this type, of which values are few and nulls some.
pub(crate) fn array(data_type: &DataType, rows: usize, rng: &mut StdRng) -> ArrayRef {
    let mut some = |present: bool| (present, rng.random_range(-5i64..50));
    let numbers: Int64Array = match data_type {
        DataType::Struct(_) | DataType::List(_) | DataType::Map(..) => Int64Array::from(vec![0]),
        _ => (0..rows)
            .map(|i| some(i % 7 != 3))
            .map(|(some, n)| some.then_some(n))
            .collect(),
    };
    let texts = || {
        numbers
            .iter()
            .map(|n| n.map(|n| format!("v{}", n.rem_euclid(12))))
    };
    match data_type {
        DataType::Int32 | DataType::Int64 => cast(&numbers, data_type).unwrap(),
        DataType::Float32 | DataType::Float64 => {
            let halves = numbers.iter().map(|n| n.map(|n| n as f64 * 0.5));
            cast(&halves.collect::<Float64Array>(), data_type).unwrap()
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Dictionary(..) => {
            cast(&texts().collect::<StringArray>(), data_type).unwrap()
        }
        DataType::Binary => {
            let texts: Vec<Option<String>> = texts().collect();
            let bytes = texts
                .iter()
                .map(|text| text.as_ref().map(|text| text.as_bytes()));
            Arc::new(bytes.collect::<BinaryArray>())
        }
        DataType::Boolean => {
            let flags = numbers.iter().map(|n| n.map(|n| n % 2 == 0));
            Arc::new(flags.collect::<BooleanArray>())
        }
        DataType::Decimal128(precision, scale) => {
            let values = numbers.iter().map(|n| n.map(|n| i128::from(n) * 1_25));
            let values: Decimal128Array = values.collect();
            Arc::new(values.with_precision_and_scale(*precision, *scale).unwrap())
        }
        DataType::Date32 => {
            let days = numbers.iter().map(|n| n.map(|n| i32::try_from(n).unwrap()));
            Arc::new(days.collect::<Date32Array>())
        }
        DataType::Timestamp(unit, _) => {
            let second = match unit {
                TimeUnit::Millisecond => 1_000,
                TimeUnit::Microsecond => 1_000_000,
                other => unreachable!("no column is of {other:?}"),
            };
            let moments = numbers.iter().map(|n| n.map(|n| n * 43_211 * second));
            cast(&moments.collect::<Int64Array>(), data_type).unwrap()
        }
        DataType::Struct(fields) => {
            let columns = fields
                .iter()
                .map(|field| array(field.data_type(), rows, rng))
                .collect();
            Arc::new(StructArray::new(
                fields.clone(),
                columns,
                Some(nulls(rows, rng)),
            ))
        }
        DataType::List(item) => {
            let offsets = offsets(rows, rng);
            let values = array(item.data_type(), *offsets.last().unwrap() as usize, rng);
            Arc::new(ListArray::new(
                Arc::clone(item),
                offsets,
                values,
                Some(nulls(rows, rng)),
            ))
        }
        DataType::Map(entries, _) => {
            let offsets = offsets(rows, rng);
            let count = *offsets.last().unwrap() as usize;
            let DataType::Struct(fields) = entries.data_type() else {
                unreachable!("entries are structs")
            };
            // Keys differ within a row, which holds fewer than four.
            let keys = StringArray::from_iter_values((0..count).map(|i| format!("k{}", i % 4)));
            let values = array(fields[1].data_type(), count, rng);
            let pairs = StructArray::new(fields.clone(), vec![Arc::new(keys), values], None);
            let nulls = Some(nulls(rows, rng));
            Arc::new(MapArray::new(
                Arc::clone(entries),
                offsets,
                pairs,
                nulls,
                false,
            ))
        }
        DataType::Null => Arc::new(NullArray::new(rows)),
        other => unreachable!("no column is of {other}"),
    }
}

fn nulls(rows: usize, rng: &mut StdRng) -> NullBuffer {
    (0..rows)
        .map(|_| rng.random_ratio(5, 6))
        .collect::<Vec<bool>>()
        .into()
}

fn offsets(rows: usize, rng: &mut StdRng) -> OffsetBuffer<i32> {
    OffsetBuffer::from_lengths((0..rows).map(|_| rng.random_range(0..4usize)))
}

/// A batch with ids from `first_id` and these columns, in an order of its own if `shuffled`.
pub(crate) fn batch(
    first_id: i64,
    rows: usize,
    columns: &[(&str, DataType)],
    shuffled: bool,
    rng: &mut StdRng,
) -> RecordBatch {
    let last_id = first_id + i64::try_from(rows).unwrap();
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first_id..last_id));
    let mut fields = vec![(Field::new("id", DataType::Int64, false), ids)];
    for (name, data_type) in columns {
        let array = array(data_type, rows, rng);
        fields.push((Field::new(*name, data_type.clone(), true), array));
    }
    if shuffled {
        fields.shuffle(rng);
    }
    let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) = fields.into_iter().unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

/// What a query promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Promise {
    /// Rows in no order, except that a single partition has its own.
    Rows,
    /// Rows in the order of an `ORDER BY` that leaves no ties.
    Order,
}

/// A query over `t` with `id` and some columns, and perhaps a partition column `p`.
pub(crate) fn query(
    rows: i64,
    columns: &[Column],
    partitioned: bool,
    rng: &mut StdRng,
) -> (String, Promise) {
    let condition = condition_of(rows, columns, partitioned, rng);
    let filter = if rng.random_ratio(3, 4) {
        format!(" WHERE {condition}")
    } else {
        String::new()
    };
    let direction = *["", " DESC"].choose(rng).unwrap();
    let limit = match rng.random_range(0..3) {
        0 => format!(" LIMIT {}", rng.random_range(0..60)),
        1 => format!(
            " LIMIT {} OFFSET {}",
            rng.random_range(1..60),
            rng.random_range(0..60)
        ),
        _ => String::new(),
    };
    let selected = selection(columns, partitioned, rng);
    let with_id = if selected == "*" {
        selected.clone()
    } else {
        format!("id, {selected}")
    };
    match rng.random_range(0..10) {
        0 | 1 => (format!("SELECT {selected} FROM t{filter}"), Promise::Rows),
        2 | 3 => {
            let sql = format!("SELECT {with_id} FROM t{filter} ORDER BY id{direction}{limit}");
            (sql, Promise::Order)
        }
        4 => {
            let by = expression(columns, partitioned, rng, orderable);
            let order = format!("ORDER BY {by}{direction}, id");
            (
                format!("SELECT {with_id} FROM t{filter} {order}{limit}"),
                Promise::Order,
            )
        }
        5 => {
            let inner = format!("SELECT id FROM t{filter}{limit}");
            (
                format!("SELECT count(*) FROM ({inner}) AS q"),
                Promise::Rows,
            )
        }
        6 => {
            let by = expression(columns, partitioned, rng, orderable);
            let over = expression(columns, partitioned, rng, orderable);
            let aggregates = format!("count(*), count({over}), min({over}), max({over}), sum(id)");
            let sql = format!("SELECT {by} AS g, {aggregates} FROM t{filter} GROUP BY {by}");
            (sql, Promise::Rows)
        }
        // A small build side, whose values become a filter of the other.
        7 => {
            let build = format!("SELECT id AS k FROM t{filter}");
            let sql = format!(
                "SELECT {with_id} FROM t JOIN ({build} ORDER BY id{direction}{limit}) AS build \
                 ON id = k ORDER BY id"
            );
            (sql, Promise::Order)
        }
        8 => {
            let other = condition_of(rows, columns, partitioned, rng);
            let sql = format!(
                "SELECT count(*), sum(l.id), max(r.id) FROM (SELECT id FROM t{filter}) AS l \
                 JOIN (SELECT id FROM t WHERE {other}) AS r ON l.id = r.id"
            );
            (sql, Promise::Rows)
        }
        _ => {
            let over = expression(columns, partitioned, rng, orderable);
            let sql = format!("SELECT count(*), count({over}), max(id) FROM t{filter}");
            (sql, Promise::Rows)
        }
    }
}

/// Whether values of the column's own type can be sorted and grouped by.
fn orderable(column: &Column) -> bool {
    !column.data_type.is_nested()
}

fn expression(
    columns: &[Column],
    partitioned: bool,
    rng: &mut StdRng,
    accept: fn(&Column) -> bool,
) -> &'static str {
    let mut choice = vec!["id", "id % 10", "input_file_name()"];
    choice.extend(partitioned.then_some("p"));
    for column in columns.iter().filter(|column| accept(column)) {
        choice.extend(column.expressions);
    }
    choice.choose(rng).unwrap()
}

fn selection(columns: &[Column], partitioned: bool, rng: &mut StdRng) -> String {
    if rng.random_ratio(1, 8) {
        return "*".to_owned();
    }
    let count = rng.random_range(1..5);
    let expressions = (0..count).map(|i| {
        // Names of their own, for the same expression may be chosen twice.
        format!(
            "{} AS c{i}",
            expression(columns, partitioned, rng, |_| true)
        )
    });
    expressions.collect::<Vec<_>>().join(", ")
}

fn condition_of(rows: i64, columns: &[Column], partitioned: bool, rng: &mut StdRng) -> String {
    let mut atoms: Vec<String> = Vec::new();
    for _ in 0..rng.random_range(1..4) {
        let mut choice: Vec<String> = vec![
            "id % 7 = 2".to_owned(),
            format!(
                "id BETWEEN {} AND {}",
                rng.random_range(0..=rows),
                rng.random_range(0..=rows)
            ),
            format!("id >= {}", rng.random_range(0..=rows)),
            format!("id = {}", rng.random_range(0..=rows)),
        ];
        if partitioned {
            choice.extend(["p = '1'".to_owned(), "p <> '0'".to_owned()]);
        }
        for column in columns {
            choice.extend(
                column
                    .predicates
                    .iter()
                    .map(|&predicate| predicate.to_owned()),
            );
        }
        let atom = choice.choose(rng).unwrap();
        atoms.push(if rng.random_ratio(1, 6) {
            format!("NOT ({atom})")
        } else {
            atom.clone()
        });
    }
    let joint = if rng.next_u32().is_multiple_of(3) {
        " OR "
    } else {
        " AND "
    };
    atoms.join(joint)
}
