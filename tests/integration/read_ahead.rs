//! What is asked for, and when, while earlier bytes are decoded: rounds, budgets and what is thrown away.
//!
//! Each request takes 100 ms of paused time.

use std::time::Duration;

use bytes::Bytes;
use datafusion::prelude::SessionConfig;
use rstest::rstest;

use crate::support::compare::{Same, assert_same};
use crate::support::files::{Layout, cut, numbers, sixteen_mebibytes, write};
use crate::support::observe::{LATENCY, Observation, observe};
use crate::support::session::{Scan, Table, ahead, ahead_by_rule, config, one_partition};

const FILE: &str = "t.parquet";
const MIB: u64 = 1 << 20;

fn pushdown() -> SessionConfig {
    config([("datafusion.execution.parquet.pushdown_filters", "true")]).with_target_partitions(1)
}

/// Stock's observation and ours, of which the rows are the same, batch by batch.
async fn both(
    scan: Scan,
    config: SessionConfig,
    files: &[(&str, Bytes)],
    table: &Table,
    sql: &str,
) -> (Observation, Observation) {
    let stock = observe(Scan::Stock, config.clone(), files, table, sql).await;
    let ours = observe(scan, config, files, table, sql).await;
    let answers = (Ok(stock.answer.clone()), Ok(ours.answer.clone()));
    assert_same(&answers.0, &answers.1, Same::Batches, sql);
    (stock, ours)
}

/// What the pieces of `requests` that are under way at the same time add up to.
fn peak_bytes(seen: &Observation) -> u64 {
    let under_way = |at: Duration| -> u64 {
        let requests = seen
            .requests
            .iter()
            .filter(|request| request.start <= at && request.stop.is_none_or(|stop| at < stop));
        requests.map(|request| request.bytes).sum()
    };
    let starts = seen.requests.iter().map(|request| request.start);
    starts.map(under_way).max().unwrap_or(0)
}

#[rstest]
#[case::format(ahead(1 << 30))]
#[case::rule_and_prefetch(ahead_by_rule(1 << 30, 2 << 20))]
#[tokio::test(start_paused = true)]
async fn a_file_that_fits_is_one_round(#[case] scan: Scan) {
    let files = [(FILE, sixteen_mebibytes())];
    let table = Table::new("t", FILE);
    let (stock, ours) = both(
        scan,
        one_partition(),
        &files,
        &table,
        "SELECT payload FROM t",
    )
    .await;
    assert_eq!(stock.rounds, 16);
    assert_eq!(ours.rounds, 1, "{:#?}", ours.requests);
    assert_eq!(ours.elapsed, LATENCY);
    assert!(ours.bytes <= stock.bytes * 11 / 10, "{} bytes", ours.bytes);
}

/// Decoding is free here, so each row group that is decoded makes room for the next.
#[tokio::test(start_paused = true)]
async fn a_budget_of_four_row_groups_is_kept_and_used() {
    let files = [(FILE, sixteen_mebibytes())];
    let table = Table::new("t", FILE);
    let budget = 4 * MIB + 4096;
    let (_, ours) = both(
        ahead(budget),
        one_partition(),
        &files,
        &table,
        "SELECT payload FROM t",
    )
    .await;
    assert_eq!(ours.rounds, 4, "{:#?}", ours.requests);
    assert_eq!(ours.elapsed, 4 * LATENCY);
    assert!(peak_bytes(&ours) <= budget, "{} bytes", peak_bytes(&ours));
}

#[rstest]
#[case::many_files(32)]
#[tokio::test(start_paused = true)]
async fn small_files_are_read_together(#[case] count: usize) {
    let file = write(&cut(&numbers(1000, 20), 1000), &Layout::plain());
    let names: Vec<String> = (0..count).map(|n| format!("t/{n:03}.parquet")).collect();
    let files: Vec<(&str, Bytes)> = names
        .iter()
        .map(|name| (name.as_str(), file.clone()))
        .collect();
    let table = Table::new("t", "t/");
    let sql = "SELECT a, s FROM t";
    let (stock, ours) = both(ahead(64 * MIB), one_partition(), &files, &table, sql).await;
    assert!(stock.rounds >= count, "{}", stock.rounds);
    assert!(ours.rounds <= 2, "{:#?}", ours.requests);
}

/// The filter keeps some rows of each row group.
#[tokio::test(start_paused = true)]
async fn what_a_filter_may_need_is_read_ahead() {
    let file = write(&cut(&numbers(16_000, 100), 1000), &Layout::plain());
    let files = [(FILE, file)];
    let table = Table::new("t", FILE);
    let sql = "SELECT s FROM t WHERE b % 10 = 3";
    let (stock, ours) = both(ahead(64 * MIB), pushdown(), &files, &table, sql).await;
    assert!(stock.rounds >= 32, "{}", stock.rounds);
    assert_eq!(ours.rounds, 1, "{:#?}", ours.requests);
}
