//! Requests that opening a file takes beside the footer: page index and bloom filters.
//!
//! Each request takes 100 ms of paused time.

use std::sync::Arc;

use rstest::rstest;

use crate::support::compare::{Same, assert_same, execute, plan};
use crate::support::files::{Layout, cut, numbers, store_of, upcast, write};
use crate::support::observe::LATENCY;
use crate::support::session::{Scan, Table, ahead, config, runtime, session};
use crate::support::store::{Latency, RecordingStore};

const FILE: &str = "t.parquet";
const PREFETCH: Scan = Scan::Prefetch {
    prefetch_size: Some(1 << 30),
};

/// Executes `sql` over a file of 20 row groups, of which only the footer is known, and returns answer and rounds.
async fn executed(
    scan: Scan,
    layout: &Layout,
    sql: &str,
) -> (crate::support::compare::Answer, usize) {
    let file = write(&cut(&numbers(2000, 20), 100), layout);
    let store = store_of([(FILE, file)]).await;
    let store = RecordingStore::new(upcast(&store), Latency::Fixed(LATENCY));
    let log = store.log();
    let settings = [
        ("datafusion.execution.target_partitions", "1"),
        // Neither footer nor hint brings the indexes along.
        ("datafusion.execution.parquet.metadata_size_hint", "16"),
        ("datafusion.execution.parquet.pushdown_filters", "true"),
    ];
    let ctx = session(scan, config(settings), runtime(Arc::new(store)));
    let table = Table::new("t", FILE);
    table.register(&ctx, scan.registration()).await.unwrap();
    let planned = plan(&ctx, sql).await.unwrap();
    log.clear();
    let answer = execute(&ctx, planned).await.unwrap();
    assert_eq!(log.asked_twice(), [], "{:#?}", log.requests());
    (answer, log.rounds())
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn all_bloom_filters_are_one_round(
    #[values(PREFETCH, ahead(1 << 30))] scan: Scan,
    #[values(false, true)] has_page_index: bool,
) {
    let layout = Layout {
        bloom_filter: true,
        ..if has_page_index {
            Layout::paged(10)
        } else {
            Layout::plain()
        }
    };
    // Within the bounds of all row groups, and in none of them.
    let sql = "SELECT s FROM t WHERE b = 77777 OR b = 77778 AND s = 'nowhere' AND a = 3";
    let (expected, stock) = executed(Scan::Stock, &layout, sql).await;
    let (answer, rounds) = executed(scan, &layout, sql).await;
    assert_same(&Ok(expected), &Ok(answer), Same::Batches, sql);
    assert!(rounds <= 2, "{rounds} rounds, stock {stock}");
}
