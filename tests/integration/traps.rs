//! Faults that stock's scan had or has, by their numbers. The right answer is worked out here, for
//! stock's need not be.

use bytes::Bytes;
use datafusion::arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::sync::Arc;

use datafusion::prelude::SessionConfig;
use rstest::rstest;

use crate::support::cases::rows;
use crate::support::compare::answer;
use crate::support::files::{Layout, cut, numbers, store_of, upcast, write};
use crate::support::session::{Scan, Table, config, runtime, session};

const ROW_GROUPS: i64 = 12;
const ROW_GROUP_ROWS: i64 = 20;

/// What is asked of a file whose row groups are in no order of `o`, and in some of which the
/// filter keeps nothing though their statistics say that it may.
struct Trap {
    file: Bytes,
    sql: String,
    expected: Vec<i64>,
}

fn trap(layout: &Layout, with_selection: bool, rng: &mut StdRng) -> Trap {
    let rows = ROW_GROUPS * ROW_GROUP_ROWS;
    let mut ranks: Vec<i64> = (0..ROW_GROUPS).collect();
    ranks.shuffle(rng);
    // Ranges of `a`, which ascends, are pages of some row groups and all of others.
    let mut ranges = Vec::new();
    if with_selection {
        for _ in 0..3 {
            let start = rng.random_range(0..rows);
            ranges.push(start..=start + rng.random_range(0..rows / 3));
        }
    }
    let chosen = |a: i64| ranges.is_empty() || ranges.iter().any(|range| range.contains(&a));
    let mut kept = Vec::new();
    let mut row_groups = Vec::new();
    for (row_group, rank) in (0..ROW_GROUPS).zip(ranks) {
        let keeps = rng.random_ratio(2, 3);
        let first = row_group * ROW_GROUP_ROWS;
        let a: Vec<i64> = (first..first + ROW_GROUP_ROWS).collect();
        let o: Vec<i64> = a
            .iter()
            .map(|a| a - first + rank * ROW_GROUP_ROWS)
            .collect();
        // Either way, 0 and 2 are the extremes.
        let c = a.iter().map(|a| match a % 4 {
            0 => 0,
            1 => 2,
            _ if keeps => 1,
            _ => 0,
        });
        let c: Vec<i64> = c.collect();
        let rows = a.iter().zip(&o).zip(&c);
        kept.extend(
            rows.filter(|&((a, _), c)| *c == 1 && chosen(*a))
                .map(|((_, o), _)| *o),
        );
        let s = StringArray::from_iter_values(a.iter().map(|a| format!("text {a:0>60}")));
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("a", Arc::new(Int64Array::from(a))),
            ("o", Arc::new(Int64Array::from(o))),
            ("c", Arc::new(Int64Array::from(c))),
            ("s", Arc::new(s)),
        ];
        row_groups.push(RecordBatch::try_from_iter(columns).unwrap());
    }
    let descending = rng.random();
    kept.sort_unstable();
    if descending {
        kept.reverse();
    }
    let limit = rng.random_range(1..20);
    kept.truncate(limit);
    let direction = if descending { "DESC" } else { "ASC" };
    let ranges: Vec<String> = ranges
        .iter()
        .map(|range| format!("a BETWEEN {} AND {}", range.start(), range.end()))
        .collect();
    let filter = match ranges.is_empty() {
        true => "c = 1".to_owned(),
        false => format!("c = 1 AND ({})", ranges.join(" OR ")),
    };
    let sql = format!("SELECT o, s FROM t WHERE {filter} ORDER BY o {direction} LIMIT {limit}");
    Trap {
        file: write(&row_groups, layout),
        sql,
        expected: kept,
    }
}

async fn spring(trap: &Trap, scan: Scan, batch_size: usize) -> Vec<i64> {
    let settings = [
        (
            "datafusion.execution.parquet.pushdown_filters",
            "true".to_owned(),
        ),
        ("datafusion.execution.target_partitions", "1".to_owned()),
        ("datafusion.execution.batch_size", batch_size.to_string()),
    ];
    let store = upcast(&store_of([("t.parquet", trap.file.clone())]).await);
    let ctx = session(scan, config(settings), runtime(store));
    Table::new("t", "t.parquet")
        .register(&ctx, scan.registration())
        .await
        .unwrap();
    let answer = answer(&ctx, &trap.sql).await.unwrap();
    let number = |row: &Vec<Option<String>>| row[0].as_ref().unwrap().parse().unwrap();
    rows(&answer).iter().map(number).collect()
}

async fn is_avoided(layout: &Layout, with_selection: bool) {
    for seed in 0..60 {
        let mut rng = StdRng::seed_from_u64(seed);
        let trap = trap(layout, with_selection, &mut rng);
        for prefetch_size in [Some(1), Some(3_000), Some(1 << 30)] {
            for scan in [
                Scan::Prefetch { prefetch_size },
                Scan::PrefetchByRule { prefetch_size },
            ] {
                let got = spring(&trap, scan, rng.random_range(3..25)).await;
                assert_eq!(got, trap.expected, "seed {seed}, {scan:?}, {}", trap.sql);
            }
        }
    }
}

/// The decoder passes row groups in silence when a filter keeps nothing of them: a scan that drops
/// row groups by a dynamic filter must not fall behind it, and read one twice.
#[tokio::test]
async fn datafusion_24352_row_groups_passed_in_silence_are_not_read_again() {
    is_avoided(&Layout::plain(), false).await;
}

/// A decoder that is made anew with fewer row groups keeps a row selection that counts the rows of
/// them all.
#[tokio::test]
async fn datafusion_24355_a_live_row_selection_stays_in_step_with_pruning() {
    is_avoided(&Layout::paged(5), true).await;
}

/// #23293: what sibling partitions share is a queue; reading ahead of it must not take files twice.
#[rstest]
#[tokio::test]
async fn datafusion_23293_each_row_once_over_shared_files(
    #[values(1, 4 << 10, 1 << 30)] prefetch_size: u64,
    #[values(1, 3, 8)] partitions: usize,
) {
    let file = write(&cut(&numbers(300, 8), 50), &Layout::plain());
    let names: Vec<String> = (0..7).map(|i| format!("d/{i}.parquet")).collect();
    let prefetch_size = Some(prefetch_size);
    for scan in [
        Scan::Prefetch { prefetch_size },
        Scan::PrefetchByRule { prefetch_size },
    ] {
        let store = store_of(names.iter().map(|name| (name.as_str(), file.clone()))).await;
        let config = SessionConfig::new().with_target_partitions(partitions);
        let ctx = session(scan, config, runtime(upcast(&store)));
        Table::new("t", "d/")
            .register(&ctx, scan.registration())
            .await
            .unwrap();
        let sql = "SELECT a, s FROM t WHERE a + 0 >= 0";
        assert_eq!(answer(&ctx, sql).await.unwrap().rows(), 7 * 300);
    }
}
