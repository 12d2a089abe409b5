//! What is asked for, and when, while earlier bytes are decoded: rounds, budgets and what is thrown away.
//!
//! Each request takes 100 ms of paused time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::memory_pool::{
    FairSpillPool, GreedyMemoryPool, MemoryConsumer, MemoryPool,
};
use datafusion::physical_plan::{ExecutionPlanProperties, execute_stream};
use datafusion::prelude::SessionConfig;
use futures::StreamExt;
use rstest::rstest;
use tokio::time::timeout;

use crate::support::compare::{Same, assert_same, plan};
use crate::support::faulty::{Action, Attempt};
use crate::support::faulty_scan::{Ending, FaultyScan, Setting, nothing_is_left};
use crate::support::files::{Layout, cut, numbers, sixteen_mebibytes, store_of, upcast, write};
use crate::support::observe::{LATENCY, Observation, observe};
use crate::support::session::{
    Scan, Table, ahead, ahead_by_rule, config, one_partition, runtime_with_pool, session,
};
use crate::support::store::{Latency, RecordingStore};

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

fn metadata_is_not_cached(scan: Scan, config: SessionConfig) -> Setting {
    Setting {
        scan,
        config,
        metadata_cached: false,
        latency: Latency::Fixed(LATENCY),
    }
}

async fn scripted(
    setting: &Setting,
    files: &[(&str, Bytes)],
    table: &Table,
    sql: &str,
) -> FaultyScan {
    let store = store_of(files.iter().map(|(path, file)| (*path, file.clone()))).await;
    let forward = |_: &Attempt<'_>| Action::Forward;
    FaultyScan::plan(setting, upcast(&store), table, sql, forward).await
}

fn small_files(count: usize, rows: usize) -> Vec<(String, Bytes)> {
    let file = write(&cut(&numbers(rows, 20), rows), &Layout::plain());
    let name = |n| format!("t/{n:03}.parquet");
    (0..count).map(|n| (name(n), file.clone())).collect()
}

fn borrowed(files: &[(String, Bytes)]) -> Vec<(&str, Bytes)> {
    let files = files.iter();
    files
        .map(|(name, file)| (name.as_str(), file.clone()))
        .collect()
}

/// Of a small file the first request, which looks for the footer, brings all there is.
#[rstest]
#[tokio::test(start_paused = true)]
async fn small_files_are_read_in_as_many_rounds_as_one(#[values(1, 3)] partitions: usize) {
    let files = small_files(32, 1000);
    let config = SessionConfig::new().with_target_partitions(partitions);
    let setting = metadata_is_not_cached(ahead(64 * MIB), config);
    let scan = scripted(
        &setting,
        &borrowed(&files),
        &Table::new("t", "t/"),
        "SELECT a, s FROM t",
    )
    .await;
    let log = scan.log.clone();
    let Ending::Answered(answer) = scan.run().await else {
        panic!("no answer");
    };
    assert_eq!(answer.rows(), 32_000);
    assert_eq!(log.requests().len(), 32, "{:#?}", log.requests());
    assert_eq!(log.rounds(), 1);
}

/// All of them are asked for before the first has its build side.
#[tokio::test(start_paused = true)]
async fn the_sides_of_joins_are_read_at_the_same_time() {
    let file = write(&cut(&numbers(1000, 20), 250), &Layout::plain());
    let files = [(FILE, file)];
    let sql =
        "SELECT count(*) FROM t JOIN t u ON t.a = u.b JOIN t v ON u.a = v.b JOIN t w ON v.a = w.b";
    let mut seen = Vec::new();
    for scan in [Scan::Stock, ahead(64 * MIB)] {
        let setting = Setting {
            metadata_cached: true,
            ..metadata_is_not_cached(scan, one_partition())
        };
        let scan = scripted(&setting, &files, &Table::new("t", FILE), sql).await;
        let log = scan.log.clone();
        let Ending::Answered(answer) = scan.run().await else {
            panic!("no answer");
        };
        seen.push((Ok(answer), log.rounds()));
    }
    let ((expected, stock), (answer, ours)) = (&seen[0], &seen[1]);
    assert_same(expected, answer, Same::Batches, sql);
    assert!(*stock > 8, "{stock}");
    assert_eq!(*ours, 1);
}

/// What the build side rules out is not read once it is known: only what the budget held until then was.
#[tokio::test(start_paused = true)]
async fn a_join_s_filter_stops_reading() {
    let file = write(&cut(&numbers(1000, 2000), 100), &Layout::paged(10));
    let size = file.len() as u64;
    let sql = "SELECT u.s FROM t JOIN t u ON t.a = u.a WHERE t.b = 555";
    let setting = Setting {
        metadata_cached: true,
        ..metadata_is_not_cached(ahead(size / 4), one_partition())
    };
    let scan = scripted(&setting, &[(FILE, file)], &Table::new("t", FILE), sql).await;
    let log = scan.log.clone();
    let Ending::Answered(answer) = scan.run().await else {
        panic!("no answer");
    };
    assert_eq!(answer.rows(), 1);
    let bytes: u64 = log.requests().iter().map(|request| request.bytes).sum();
    // A quarter for each side, of which the one that is read whole has no text, and the row group with the row.
    assert!(bytes <= size / 2, "{bytes} of {size} bytes");
}

#[rstest]
#[case::rows_of_one_file(false, "SELECT a FROM t LIMIT 3", 60, 1)]
#[case::rows_of_two_files(false, "SELECT a FROM t LIMIT 150", 60, 2)]
// The first file has enough; the second is begun beside it.
#[case::row_filter(true, "SELECT a FROM t WHERE b >= 0 LIMIT 3", 60, 2)]
#[tokio::test(start_paused = true)]
async fn a_limit_is_not_read_beyond(
    #[case] push_down: bool,
    #[case] sql: &str,
    #[case] count: usize,
    #[case] at_most: usize,
) {
    let files = small_files(count, 100);
    let config = if push_down {
        pushdown()
    } else {
        one_partition()
    };
    let (_, ours) = both(
        ahead(64 * MIB),
        config,
        &borrowed(&files),
        &Table::new("t", "t/"),
        sql,
    )
    .await;
    let read: std::collections::BTreeSet<_> = ours.requests.iter().map(|r| &r.path).collect();
    assert!(read.len() <= at_most, "{read:?}");
}

#[rstest]
#[case(false, "SELECT s FROM t LIMIT 1", 1)]
#[case(true, "SELECT s FROM t WHERE b >= 0 LIMIT 1", 3)]
#[tokio::test(start_paused = true)]
async fn a_limit_in_the_first_of_ten_row_groups(
    #[case] push_down: bool,
    #[case] sql: &str,
    #[case] row_groups: u64,
) {
    let file = write(&cut(&numbers(1000, 2000), 100), &Layout::plain());
    let config = if push_down {
        pushdown()
    } else {
        one_partition()
    };
    let table = Table::new("t", FILE);
    let bytes_of_one = file.len() as u64 / 10;
    let (_, ours) = both(ahead(64 * MIB), config, &[(FILE, file)], &table, sql).await;
    assert!(
        ours.bytes <= row_groups * bytes_of_one + 4096,
        "{} bytes",
        ours.bytes
    );
}

/// The first row group has the answer, and its threshold rules out all others.
#[tokio::test(start_paused = true)]
async fn a_threshold_stops_reading() {
    let file = write(&cut(&numbers(10_000, 200), 100), &Layout::plain());
    let bytes_of_one = file.len() as u64 / 100;
    let sql = "SELECT a, s FROM t ORDER BY a LIMIT 5";
    let table = Table::new("t", FILE);
    let (_, ours) = both(
        ahead(64 * MIB),
        one_partition(),
        &[(FILE, file)],
        &table,
        sql,
    )
    .await;
    assert!(
        ours.bytes <= 8 * bytes_of_one,
        "{} bytes of {bytes_of_one} each",
        ours.bytes
    );
}

/// Half of 64 KiB holds nothing of these row groups, and the other half is the query's.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_pool_without_room_is_no_reason_to_fail(
    #[values(false, true)] fair: bool,
    #[values(64 << 10, 1 << 20, 64 << 20)] pool_bytes: usize,
) {
    let files = [(FILE, sixteen_mebibytes())];
    let pool: Arc<dyn MemoryPool> = match fair {
        true => Arc::new(FairSpillPool::new(pool_bytes)),
        false => Arc::new(GreedyMemoryPool::new(pool_bytes)),
    };
    let store = store_of(files.iter().map(|(path, file)| (*path, file.clone()))).await;
    let store = Arc::new(RecordingStore::new(upcast(&store), Latency::Fixed(LATENCY)));
    let log = store.log();
    let runtime = runtime_with_pool(store, Arc::clone(&pool));
    let scan = ahead(1 << 30);
    let ctx = session(scan, one_partition(), runtime);
    let table = Table::new("t", FILE);
    table.register(&ctx, scan.registration()).await.unwrap();
    let planned = plan(&ctx, "SELECT payload FROM t").await.unwrap();
    log.clear();
    // Somebody else fills the pool at first.
    let other = MemoryConsumer::new("other").register(&pool);
    other.grow(pool_bytes);
    let mut stream = execute_stream(planned, ctx.task_ctx()).unwrap();
    let mut rows = stream.next().await.unwrap().unwrap().num_rows();
    assert_eq!(log.requests().len(), 1, "{:#?}", log.requests());
    other.free();
    while let Some(batch) = stream.next().await {
        rows += batch.unwrap().num_rows();
        assert!(pool.reserved() <= pool_bytes / 2);
    }
    drop(stream);
    assert_eq!(rows, 256);
    // Whatever fits half of the pool is read ahead from then on.
    let rounds = match pool_bytes {
        0..0x10_0000 => 16,
        0x10_0000..0x200_0000 => 16,
        _ => 2,
    };
    assert_eq!(log.rounds(), rounds, "{:#?}", log.requests());
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(pool.reserved(), 0);
}

/// Fifteen of sixteen partitions are executed and left alone.
#[tokio::test(start_paused = true)]
async fn a_partition_does_not_wait_for_its_siblings() {
    let files = small_files(64, 100);
    let config = SessionConfig::new().with_target_partitions(16);
    let setting = metadata_is_not_cached(ahead(64 << 10), config);
    let scan = scripted(
        &setting,
        &borrowed(&files),
        &Table::new("t", "t/"),
        "SELECT a, s FROM t",
    )
    .await;
    let FaultyScan {
        ctx,
        plan,
        log,
        pool,
        ..
    } = scan;
    let partitions = plan.output_partitioning().partition_count();
    let mut streams: Vec<_> = (0..partitions)
        .map(|partition| plan.execute(partition, ctx.task_ctx()).unwrap())
        .collect();
    let mut polled = streams.remove(0);
    let rows = timeout(Duration::from_secs(3600), async {
        let mut rows = 0;
        while let Some(batch) = polled.next().await {
            rows += batch.unwrap().num_rows();
        }
        rows
    });
    // It takes the whole queue, as the others take nothing.
    assert_eq!(rows.await.unwrap(), 6_400);
    drop((polled, streams));
    nothing_is_left(&log, pool.as_ref(), "16 partitions").await;
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn reading_begins_with_the_execution(#[values(1, 3)] partitions: usize) {
    let files = small_files(6, 1000);
    let config = SessionConfig::new().with_target_partitions(partitions);
    let setting = metadata_is_not_cached(ahead(64 * MIB), config);
    let scan = scripted(
        &setting,
        &borrowed(&files),
        &Table::new("t", "t/"),
        "SELECT a, s FROM t",
    )
    .await;
    let FaultyScan {
        ctx,
        plan,
        log,
        pool,
        ..
    } = scan;
    let mut stream = execute_stream(plan, ctx.task_ctx()).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(log.requests().len(), 6, "{:#?}", log.requests());
    let begin = tokio::time::Instant::now();
    let mut rows = 0;
    while let Some(batch) = stream.next().await {
        rows += batch.unwrap().num_rows();
    }
    assert_eq!((rows, begin.elapsed()), (6_000, Duration::ZERO));
    drop(stream);
    nothing_is_left(&log, pool.as_ref(), "polled late").await;
}

/// A second execution of a node finds the queue drained, as in stock, unless its state is reset.
#[rstest]
#[tokio::test(start_paused = true)]
async fn executions_at_the_same_time_are_what_they_are_in_stock(
    #[values(false, true)] reset: bool,
    #[values(1, 3)] partitions: usize,
) {
    let files = small_files(7, 100);
    let mut rows = Vec::new();
    for scan in [Scan::Stock, ahead(64 * MIB)] {
        let config = SessionConfig::new().with_target_partitions(partitions);
        let setting = metadata_is_not_cached(scan, config);
        let scan = scripted(
            &setting,
            &borrowed(&files),
            &Table::new("t", "t/"),
            "SELECT a FROM t",
        )
        .await;
        let again = match reset {
            true => Arc::clone(&scan.plan).reset_state().unwrap(),
            false => Arc::clone(&scan.plan),
        };
        let first = execute_stream(Arc::clone(&scan.plan), scan.ctx.task_ctx()).unwrap();
        let second = execute_stream(again, scan.ctx.task_ctx()).unwrap();
        let count = async |mut stream: SendableRecordBatchStream| {
            let mut rows = 0;
            while let Some(batch) = stream.next().await {
                rows += batch.unwrap().num_rows();
            }
            rows
        };
        let (first, second) = futures::future::join(count(first), count(second)).await;
        rows.push(if reset {
            vec![first, second]
        } else {
            vec![first + second]
        });
        nothing_is_left(&scan.log, scan.pool.as_ref(), "two executions").await;
    }
    assert_eq!(rows[0], rows[1]);
}
