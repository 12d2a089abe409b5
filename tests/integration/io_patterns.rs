//! Which bytes a scan asks its store for, when, and together with which others.
//!
//! One partition, metadata cached, and each request takes 100 ms of paused time.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool, TrackConsumersPool};
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::SessionConfig;
use futures::StreamExt;
use parquet::file::properties::EnabledStatistics;
use rstest::rstest;

use crate::support::compare::{Same, assert_same, plan};
use crate::support::files::{
    Layout, cut, metadata, numbers, reversed, sixteen_mebibytes, sized, store_of, upcast, write,
};
use crate::support::log::Kind;
use crate::support::observe::{
    LATENCY, Observation, Warm, covered, observe, row_groups_by_round, warm,
};
use crate::support::session::{Scan, Table, config, one_partition, runtime_with_pool, session};
use crate::support::store::{Latency, RecordingStore};

const MIB: usize = 1 << 20;
const FILE: &str = "t.parquet";
/// The column index of `payload` in a file made by [`sized`].
const PAYLOAD: usize = 1;

fn prefetch(mebibytes: usize) -> Scan {
    Scan::Prefetch {
        prefetch_size: Some((mebibytes * MIB) as u64),
    }
}

fn table() -> Table {
    Table::new("t", FILE)
}

fn pushdown() -> SessionConfig {
    config([("datafusion.execution.parquet.pushdown_filters", "true")]).with_target_partitions(1)
}

async fn observed(scan: Scan, config: SessionConfig, file: &Bytes, sql: &str) -> Observation {
    observe(scan, config, &[(FILE, file.clone())], &table(), sql).await
}

/// Stock's observation and ours, of which the rows are the same, batch by batch.
async fn both(
    scan: Scan,
    config: SessionConfig,
    file: &Bytes,
    sql: &str,
) -> (Observation, Observation) {
    let stock = observed(Scan::Stock, config.clone(), file, sql).await;
    let ours = observed(scan, config, file, sql).await;
    let answers = (Ok(stock.answer.clone()), Ok(ours.answer.clone()));
    assert_same(&answers.0, &answers.1, Same::Batches, sql);
    (stock, ours)
}

#[rstest]
#[case::stock(Scan::Stock)]
#[case::off(Scan::Prefetch { prefetch_size: None })]
#[case::off_by_rule(Scan::PrefetchByRule { prefetch_size: None })]
#[tokio::test(start_paused = true)]
async fn without_prefetching_each_row_group_is_a_round(#[case] scan: Scan) {
    let file = sixteen_mebibytes();
    let seen = observed(scan, one_partition(), &file, "SELECT payload FROM t").await;
    assert_eq!(seen.answer.rows(), 256);
    assert_eq!(seen.rounds, 16, "{:#?}", seen.requests);
    assert_eq!(seen.elapsed, Duration::from_millis(1600));
    assert_eq!(seen.bytes, 16 << 20);
}

#[rstest]
#[case(4, 4)]
#[case(16, 1)]
#[case(3, 6)]
#[case(1, 16)]
#[tokio::test(start_paused = true)]
async fn a_round_holds_as_many_row_groups_as_the_budget(
    #[case] mebibytes: usize,
    #[case] rounds: u32,
    #[values(false, true)] by_rule: bool,
) {
    let file = sixteen_mebibytes();
    let prefetch_size = Some((mebibytes * MIB) as u64);
    let scan = match by_rule {
        false => Scan::Prefetch { prefetch_size },
        true => Scan::PrefetchByRule { prefetch_size },
    };
    let (_, seen) = both(scan, one_partition(), &file, "SELECT payload FROM t").await;
    assert_eq!(seen.rounds, rounds as usize, "{:#?}", seen.requests);
    assert_eq!(seen.elapsed, rounds * LATENCY);
    // Between the chunks lie those of `id`, a hundred and some bytes each, which coalescing reads.
    assert!(
        (16 << 20..=file.len() as u64).contains(&seen.bytes),
        "{} bytes",
        seen.bytes
    );
}

#[rstest]
#[case::all_fit(&[1, 1, 1, 1], 4, vec![vec![0, 1, 2, 3]])]
#[case::uneven(&[1, 2, 3, 1, 1, 4, 2, 2], 4, vec![vec![0, 1], vec![2, 3], vec![4], vec![5], vec![6, 7]])]
#[case::larger_than_the_budget(&[1, 1, 6, 1, 1], 4, vec![vec![0, 1], vec![2], vec![3, 4]])]
#[case::larger_comes_first(&[6, 1, 1, 2], 4, vec![vec![0], vec![1, 2, 3]])]
#[case::all_larger(&[3, 3, 3], 2, vec![vec![0], vec![1], vec![2]])]
#[case::no_row_group_is_passed_over(&[1, 4, 1], 4, vec![vec![0], vec![1], vec![2]])]
#[tokio::test(start_paused = true)]
async fn the_budget_is_packed_in_scan_order(
    #[case] mebibytes: &[usize],
    #[case] budget: usize,
    #[case] rounds: Vec<Vec<usize>>,
) {
    let file = sized(&mebibytes.iter().map(|size| size * MIB).collect::<Vec<_>>());
    let sql = "SELECT payload FROM t";
    let (_, seen) = both(prefetch(budget), one_partition(), &file, sql).await;
    let asked = row_groups_by_round(&seen.requests, &metadata(&file), PAYLOAD);
    assert_eq!(asked, rounds);
}

#[rstest]
#[case::scan("SELECT payload FROM t")]
#[case::count("SELECT count(*) FROM t")]
#[case::filter("SELECT id FROM t WHERE id % 3 = 0 AND payload > '3'::bytea")]
#[case::pruned("SELECT payload FROM t WHERE id BETWEEN 30 AND 70")]
#[case::limit("SELECT payload FROM t LIMIT 20")]
#[case::top("SELECT payload FROM t ORDER BY id DESC LIMIT 20")]
#[tokio::test(start_paused = true)]
async fn switched_off_the_log_is_stock_s_request_for_request(
    #[case] sql: &str,
    #[values(
        Scan::Prefetch { prefetch_size: None },
        Scan::PrefetchByRule { prefetch_size: None }
    )]
    scan: Scan,
    #[values(false, true)] push_down: bool,
    #[values(1, 3)] partitions: usize,
) {
    let file = sized(&[MIB / 4; 8]);
    let settings = if push_down {
        pushdown()
    } else {
        one_partition()
    };
    let settings = settings.with_target_partitions(partitions);
    let (stock, ours) = (
        observed(Scan::Stock, settings.clone(), &file, sql).await,
        observed(scan, settings, &file, sql).await,
    );
    assert!(!stock.requests.is_empty() || sql.contains("count"));
    assert_eq!(stock.requests, ours.requests);
    assert_eq!(stock.elapsed, ours.elapsed);
}

/// With index, bloom filter and dictionary, and nothing cached: all that opening a file reads.
#[tokio::test(start_paused = true)]
async fn switched_off_a_cold_session_asks_for_what_stock_asks_for() {
    let layout = Layout {
        bloom_filter: true,
        dictionary: true,
        ..Layout::paged(100)
    };
    let file = write(&cut(&numbers(3000, 20), 1000), &layout);
    let sql = "SELECT s FROM t WHERE b = 77 AND a > 500";
    let mut logs = Vec::new();
    for scan in [
        Scan::Stock,
        Scan::Prefetch {
            prefetch_size: None,
        },
    ] {
        let Warm { log, .. } = warm(scan, pushdown(), &[(FILE, file.clone())], &table(), sql).await;
        logs.push((log.requests(), log.rounds(), log.elapsed()));
    }
    assert!(
        logs[0]
            .0
            .iter()
            .filter(|request| request.kind == Kind::Get)
            .count()
            > 3
    );
    assert_eq!(logs[0], logs[1]);
}

/// Pages of more than 1 MiB, so that a page between two others is never read for its place.
fn large_pages() -> Bytes {
    write(&cut(&numbers(960, 20 << 10), 320), &Layout::paged(64))
}

#[tokio::test(start_paused = true)]
async fn of_a_row_selection_only_its_pages_are_fetched() {
    let file = large_pages();
    let sql = "SELECT s FROM t WHERE a < 10 OR a BETWEEN 200 AND 210 \
               OR a BETWEEN 330 AND 340 OR a BETWEEN 900 AND 905";
    let (stock, ours) = both(prefetch(1024), one_partition(), &file, sql).await;
    assert_eq!(stock.rounds, 3);
    assert_eq!(ours.rounds, 1, "{:#?}", ours.requests);
    assert_eq!(covered(&ours.requests), covered(&stock.requests));
    assert_eq!(ours.bytes, stock.bytes);
}

#[rstest]
#[case::whole_chunks(Layout { statistics: EnabledStatistics::None, ..Layout::plain() })]
#[case::pages(Layout::paged(50))]
#[tokio::test(start_paused = true)]
async fn with_pushdown_both_kinds_of_columns_of_later_row_groups_are_prefetched(
    #[case] layout: Layout,
) {
    let file = write(&cut(&numbers(1600, 500), 200), &layout);
    // Keeps some rows of each row group, and no statistics can tell which.
    let sql = "SELECT s FROM t WHERE b % 10 = 3";
    let (stock, ours) = both(prefetch(1024), pushdown(), &file, sql).await;
    assert_eq!(
        stock.rounds, 16,
        "a round for the predicate and one for the rest"
    );
    assert!(
        ours.rounds <= 2,
        "{} rounds: {:#?}",
        ours.rounds,
        ours.requests
    );
}

#[tokio::test(start_paused = true)]
async fn a_filter_that_keeps_nothing_leaves_the_budget_free() {
    let layout = Layout {
        statistics: EnabledStatistics::None,
        ..Layout::plain()
    };
    let file = write(&cut(&numbers(1600, 8192), 200), &layout);
    let sql = "SELECT s FROM t WHERE b < 0";
    // Room for two row groups: what is staged of a row group that the filter emptied would
    // otherwise keep the third out.
    let (stock, ours) = both(prefetch(4), pushdown(), &file, sql).await;
    assert_eq!(stock.answer.rows(), 0);
    assert_eq!(stock.rounds, 8);
    assert!(
        ours.rounds <= 4,
        "{} rounds: {:#?}",
        ours.rounds,
        ours.requests
    );
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn what_is_ahead_of_the_decoder_never_exceeds_the_budget(
    #[values(1, 2, 3, 4, 7, 20)] budget: usize,
    #[values(false, true)] push_down: bool,
) {
    let file = sized(&[
        2 * MIB,
        MIB,
        MIB,
        3 * MIB,
        MIB / 2,
        MIB / 2,
        MIB / 2,
        2 * MIB,
        MIB,
    ]);
    let metadata = metadata(&file);
    let settings = if push_down {
        pushdown()
    } else {
        one_partition()
    };
    // Above a scan without pushdown, a filter would gather several row groups into one batch.
    let (sql, rows) = match push_down {
        true => ("SELECT payload FROM t WHERE id % 2 = 0", 8),
        false => ("SELECT payload FROM t", 16),
    };
    let Warm { ctx, log, pool } =
        warm(prefetch(budget), settings, &[(FILE, file)], &table(), sql).await;
    let planned = plan(&ctx, sql).await.unwrap();
    log.clear();
    let mut stream = execute_stream(planned, ctx.task_ctx()).unwrap();
    let (mut row_group, mut decoded) = (0, 0);
    while let Some(batch) = stream.next().await {
        assert_eq!(
            batch.unwrap().num_rows(),
            rows,
            "each row group is one batch"
        );
        // The whole row group, `id` included, which is also what coalescing reads in passing.
        decoded += u64::try_from(metadata.row_group(row_group).compressed_size()).unwrap();
        row_group += 1;
        let ids = 1 << 13;
        let ahead = log.bytes().saturating_sub(decoded);
        assert!(
            ahead <= (budget * MIB) as u64 + ids,
            "{ahead} bytes ahead after row group {row_group}: {:#?}",
            log.requests()
        );
    }
    assert_eq!(row_group, 9);
    drop(stream);
    assert_eq!(pool.reserved(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_reversed_scan_prefetches_backwards_and_stops_when_the_top_is_known() {
    let file = sixteen_mebibytes();
    let table = table().with_order(&["id"]);
    // Three row groups of 16 rows hold the answer. Their statistics rule out the rest.
    let sql = "SELECT id, payload FROM t ORDER BY id DESC LIMIT 40";
    let files = [(FILE, file.clone())];
    let stock = observe(Scan::Stock, one_partition(), &files, &table, sql).await;
    let ours = observe(prefetch(4), one_partition(), &files, &table, sql).await;
    let answers = (Ok(stock.answer), Ok(ours.answer));
    assert_same(&answers.0, &answers.1, Same::Order, sql);
    let metadata = metadata(&file);
    assert_eq!(
        row_groups_by_round(&stock.requests, &metadata, PAYLOAD),
        [[15], [14], [13]]
    );
    let asked = row_groups_by_round(&ours.requests, &metadata, PAYLOAD);
    assert_eq!(asked, [[13, 14, 15]]);
}

/// As above, but with no declared order: the threshold of the top comes from the data.
#[tokio::test(start_paused = true)]
async fn row_groups_that_a_dynamic_filter_rules_out_are_not_fetched_later() {
    // Falling numbers: the first row groups hold the largest.
    let file = write(&cut(&reversed(&numbers(3200, 2048)), 200), &Layout::plain());
    let sql = "SELECT a, s FROM t ORDER BY a DESC LIMIT 10";
    let (stock, ours) = both(prefetch(1), one_partition(), &file, sql).await;
    assert_eq!(stock.rounds, 1, "{:#?}", stock.requests);
    assert_eq!(ours.rounds, 1, "{:#?}", ours.requests);
    assert!(
        ours.bytes < 3 << 20,
        "at most the budget more than stock: {}",
        ours.bytes
    );
}

#[tokio::test(start_paused = true)]
async fn a_limit_reads_only_the_row_groups_that_it_needs() {
    let file = sixteen_mebibytes();
    let sql = "SELECT payload FROM t LIMIT 20";
    let (stock, ours) = both(prefetch(16), one_partition(), &file, sql).await;
    // What lies between the two chunks of `payload`, those of `id`, is read in passing.
    assert!(
        (stock.bytes..stock.bytes + 1024).contains(&ours.bytes),
        "{} bytes, stock {}: {:#?}",
        ours.bytes,
        stock.bytes,
        ours.requests
    );
}

#[tokio::test(start_paused = true)]
async fn a_limit_over_two_row_groups_is_one_round() {
    let file = sixteen_mebibytes();
    let sql = "SELECT payload FROM t LIMIT 20";
    let seen = observed(prefetch(16), one_partition(), &file, sql).await;
    assert_eq!(seen.rounds, 1, "{:#?}", seen.requests);
    assert_eq!(
        row_groups_by_round(&seen.requests, &metadata(&file), PAYLOAD),
        [[0, 1]]
    );
}

/// Requests as far apart as columns are: none is coalesced, and all of a round run at once.
#[tokio::test(start_paused = true)]
async fn the_requests_of_a_round_run_at_the_same_time() {
    let file = sized(&[2 * MIB; 6]);
    // `id` alone: between its chunks lie 2 MiB of payload.
    let (stock, ours) = both(prefetch(1), one_partition(), &file, "SELECT id FROM t").await;
    assert_eq!((stock.requests.len(), stock.rounds), (6, 6));
    assert_eq!(
        (ours.requests.len(), ours.rounds),
        (6, 1),
        "{:#?}",
        ours.requests
    );
    assert_eq!(ours.bytes, stock.bytes);
    assert_eq!(ours.elapsed, LATENCY);
}

#[tokio::test(start_paused = true)]
async fn a_table_s_own_option_comes_before_the_session_s() {
    let file = sixteen_mebibytes();
    let table = table().with_option("format.prefetch_size", "4194304");
    for session in [None, Some(16 << 20)] {
        let scan = Scan::Prefetch {
            prefetch_size: session,
        };
        let files = [(FILE, file.clone())];
        let seen = observe(
            scan,
            one_partition(),
            &files,
            &table,
            "SELECT payload FROM t",
        )
        .await;
        assert_eq!(seen.rounds, 4, "{:#?}", seen.requests);
    }
}

/// Far apart, so that none is coalesced, and more of them than object_store's own helper has under way at once.
#[tokio::test(start_paused = true)]
async fn forty_requests_of_a_round_run_at_the_same_time() {
    let file = sized(&[2 * MIB; 40]);
    let (stock, ours) = both(prefetch(1), one_partition(), &file, "SELECT id FROM t").await;
    assert_eq!((stock.requests.len(), stock.rounds), (40, 40));
    assert_eq!((ours.requests.len(), ours.rounds), (40, 1));
    assert_eq!(ours.elapsed, LATENCY);
    assert_eq!(ours.bytes, stock.bytes);
}

/// A narrow column of wide row groups: each gap is short enough to be bridged, and all of them would be the whole file.
#[tokio::test(start_paused = true)]
async fn what_is_read_in_passing_is_bounded() {
    let file = sized(&[MIB - 1000; 40]);
    let (stock, ours) = both(prefetch(1), one_partition(), &file, "SELECT id FROM t").await;
    assert_eq!(ours.elapsed, LATENCY);
    assert!(
        ours.bytes <= 2 * stock.bytes,
        "{} bytes, stock {}",
        ours.bytes,
        stock.bytes
    );
}

/// In a reversed scan the required row group is the last of the file, and asked for first all the same.
#[tokio::test(start_paused = true)]
async fn required_bytes_are_asked_for_first() {
    let file = sized(&[2 * MIB; 16]);
    let table = table().with_order(&["id"]);
    let sql = "SELECT id FROM t ORDER BY id DESC LIMIT 250";
    let files = [(FILE, file.clone())];
    let ours = observe(prefetch(1), one_partition(), &files, &table, sql).await;
    let metadata = metadata(&file);
    let last = metadata.row_group(15).column(0).byte_range().0;
    let first_asked = ours.requests[0].bounded().unwrap();
    assert!(first_asked.contains(&last), "{:#?}", ours.requests);
    assert_eq!(ours.rounds, 1);
}
/// The pool is told of what is prefetched, all of it and no more than the budget allows.
#[rstest]
#[tokio::test(start_paused = true)]
async fn prefetched_bytes_are_reserved_in_the_memory_pool(
    #[values(2, 4, 16)] budget: usize,
    #[values(None, Some(3))] pool_mebibytes: Option<usize>,
) {
    let file = sixteen_mebibytes();
    let pool_bytes = pool_mebibytes.unwrap_or(1024) * MIB;
    let pool = TrackConsumersPool::new(GreedyMemoryPool::new(pool_bytes), NonZeroUsize::MIN);
    let pool = Arc::new(pool);
    let store = store_of([(FILE, file)]).await;
    let store = RecordingStore::new(upcast(&store), Latency::Fixed(LATENCY));
    let log = store.log();
    let tracked = Arc::clone(&pool) as Arc<dyn MemoryPool>;
    let scan = prefetch(budget);
    let ctx = session(
        scan,
        one_partition(),
        runtime_with_pool(Arc::new(store), tracked),
    );
    table().register(&ctx, scan.registration()).await.unwrap();
    let planned = plan(&ctx, "SELECT payload FROM t").await.unwrap();
    log.clear();
    let mut stream = execute_stream(planned, ctx.task_ctx()).unwrap();
    let (mut batches, mut most) = (0, 0);
    while let Some(batch) = stream.next().await {
        batch.unwrap();
        batches += 1;
        most = most.max(pool.reserved());
        // At least what was read and is not decoded yet.
        let ahead = log.bytes().saturating_sub(batches << 20);
        let gaps = 1 << 14;
        assert!(
            pool.reserved() as u64 + gaps >= ahead,
            "{} < {ahead}",
            pool.reserved()
        );
    }
    drop(stream);
    assert_eq!(batches, 16);
    assert_eq!(pool.reserved(), 0);
    // Half of a pool is left to those who cannot do without. What is read between row groups comes on top of a budget.
    let allowed = (budget * MIB + (1 << 14)).min(pool_bytes / 2);
    assert!(
        (MIB - 1..=allowed).contains(&most),
        "{most} bytes of {allowed} reserved"
    );
}

/// A column that is both filtered on and projected is read in whole batches, which are not the pages of the selection.
#[rstest]
#[tokio::test(start_paused = true)]
async fn under_a_selection_and_a_filter_no_page_is_missing(
    #[values(16, 50, 8192)] batch_size: usize,
) {
    let file = write(&cut(&numbers(1600, 500), 200), &Layout::paged(10));
    let sql = "SELECT a, b, s FROM t WHERE (a % 200 BETWEEN 0 AND 199) AND b % 3 <> 1 AND \
               (a < 14 OR a BETWEEN 205 AND 222 OR a BETWEEN 431 AND 433 OR a BETWEEN 1000 AND 1111 OR a > 1597)";
    let config = pushdown().with_batch_size(batch_size);
    let (stock, ours) = both(prefetch(1024), config, &file, sql).await;
    assert!(stock.answer.rows() > 0);
    // The filters of the first row group, then what they keep of it; all else comes with the first fetch.
    assert!(
        ours.rounds <= 3 && ours.rounds < stock.rounds,
        "{} rounds, stock {}: {:#?}",
        ours.rounds,
        stock.rounds,
        ours.requests
    );
}
