//! Defects that DataFusion's own scan had, by their numbers, so that none comes in by another door.
//!
//! Those that have a file in `tests/data/cases` are tested there too: F02 is #24355, F14 is #5995.

use bytes::Bytes;
use datafusion::prelude::SessionConfig;
use rstest::rstest;

use crate::support::compare::{Same, answer, assert_same};
use crate::support::files::{Layout, cut, numbers, reversed, store_of, upcast, write};
use crate::support::session::{Scan, Table, one_partition, runtime, session};

const FILE: &str = "t.parquet";

fn config(push_down: bool) -> SessionConfig {
    let mut config = one_partition();
    config.options_mut().execution.parquet.pushdown_filters = push_down;
    config
}

async fn same_as_stock(file: &Bytes, push_down: bool, prefetch_size: u64, sql: &str, rows: usize) {
    let mut answers = Vec::new();
    let prefetch_size = Some(prefetch_size);
    for scan in [
        Scan::Stock,
        Scan::Prefetch { prefetch_size },
        Scan::PrefetchByRule { prefetch_size },
    ] {
        let store = upcast(&store_of([(FILE, file.clone())]).await);
        let ctx = session(scan, config(push_down), runtime(store));
        Table::new("t", FILE)
            .register(&ctx, scan.registration())
            .await
            .unwrap();
        answers.push(answer(&ctx, sql).await);
    }
    assert_eq!(answers[0].as_ref().unwrap().rows(), rows, "{sql}");
    for ours in &answers[1..] {
        assert_same(&answers[0], ours, Same::Order, sql);
    }
}

/// #24352: the decoder finishes row groups in silence where the row filter keeps nothing; a list of row groups that does
/// not follow reads some of them twice once a dynamic filter prunes.
#[rstest]
#[tokio::test]
async fn datafusion_24352_row_groups_finished_in_silence(
    #[values(1, 6 << 10, 64 << 10, 1 << 30)] prefetch_size: u64,
    #[values("ASC", "DESC")] direction: &str,
) {
    // No row group of the first half passes the filter, and no statistics can tell.
    let layout = Layout::plain();
    for batch in [numbers(4000, 8), reversed(&numbers(4000, 8))] {
        let file = write(&cut(&batch, 100), &layout);
        let sql = format!(
            "SELECT a, s FROM t WHERE a * 2 >= 4000 AND b % 7 <> 3 ORDER BY a {direction} LIMIT 25"
        );
        same_as_stock(&file, true, prefetch_size, &sql, 25).await;
    }
}

/// #24355: a decoder that is rebuilt with fewer row groups while a row selection is live decodes rows that were not
/// selected.
#[rstest]
#[tokio::test]
async fn datafusion_24355_pruning_under_a_row_selection(
    #[values(1, 6 << 10, 64 << 10, 1 << 30)] prefetch_size: u64,
    #[values(false, true)] push_down: bool,
    #[values("ASC", "DESC")] direction: &str,
) {
    for batch in [numbers(4000, 8), reversed(&numbers(4000, 8))] {
        let file = write(&cut(&batch, 100), &Layout::paged(10));
        // Pages are ruled out within row groups, and the threshold of the top rules out row groups.
        let sql = format!(
            "SELECT a, s FROM t WHERE (a BETWEEN 130 AND 3870) AND (a < 155 OR a > 1444) \
             ORDER BY a {direction} LIMIT 30"
        );
        same_as_stock(&file, push_down, prefetch_size, &sql, 30).await;
    }
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
