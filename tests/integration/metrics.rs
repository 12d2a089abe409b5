//! Every metric of stock's is there under its name and with its value, and ours beside it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::MetricValue;
use datafusion_parquet_prefetch::metrics;
use rstest::rstest;

use crate::support::compare::{answer, execute, plan};
use crate::support::files::{Layout, cut, numbers, sixteen_mebibytes, write};
use crate::support::observe::{LATENCY, Warm, warm};
use crate::support::session::{Scan, Table, ahead, one_partition};

const FILE: &str = "t.parquet";

/// The metrics of each scan by name, those of all its files and partitions together.
fn of_scans(plan: &Arc<dyn ExecutionPlan>) -> Vec<BTreeMap<String, MetricValue>> {
    if plan.is::<DataSourceExec>() {
        let metrics = plan.metrics().unwrap().aggregate_by_name();
        let metrics = metrics
            .iter()
            .map(|metric| (metric.value().name().to_owned(), metric.value().clone()));
        return vec![metrics.collect()];
    }
    plan.children().into_iter().flat_map(of_scans).collect()
}

async fn metrics_of_scans(
    scan: Scan,
    push_down: bool,
    file: &Bytes,
    sql: &str,
) -> Vec<BTreeMap<String, MetricValue>> {
    let mut config = one_partition();
    config.options_mut().execution.parquet.pushdown_filters = push_down;
    config.options_mut().execution.parquet.reorder_filters = push_down;
    let files = [(FILE, file.clone())];
    let Warm { ctx, .. } = warm(scan, config, &files, &Table::new("t", FILE), sql).await;
    let planned = plan(&ctx, sql).await.unwrap();
    execute(&ctx, Arc::clone(&planned)).await.unwrap();
    of_scans(&planned)
}

async fn metrics_of(
    scan: Scan,
    push_down: bool,
    file: &Bytes,
    sql: &str,
) -> BTreeMap<String, MetricValue> {
    let scans = metrics_of_scans(scan, push_down, file, sql).await;
    scans.into_iter().flatten().collect()
}

fn is_time(value: &MetricValue) -> bool {
    matches!(
        value,
        MetricValue::Time { .. }
            | MetricValue::ElapsedCompute(_)
            | MetricValue::StartTimestamp(_)
            | MetricValue::EndTimestamp(_)
    )
}

fn count(metrics: &BTreeMap<String, MetricValue>, name: &str) -> usize {
    metrics
        .get(name)
        .unwrap_or_else(|| panic!("no metric {name}"))
        .as_usize()
}

#[rstest]
#[case::everything("SELECT a, s FROM t")]
#[case::statistics("SELECT s FROM t WHERE a BETWEEN 350 AND 720")]
#[case::pages_and_fully_matched("SELECT s FROM t WHERE a > 455")]
#[case::row_filter("SELECT s FROM t WHERE b % 10 = 3 AND a > 50")]
#[case::bloom("SELECT s FROM t WHERE b = 77")]
#[case::none("SELECT s FROM t WHERE a > 100000")]
#[case::limit_on_fully_matched("SELECT s FROM t WHERE a >= 0 LIMIT 150")]
#[case::count("SELECT count(*) FROM t WHERE a + 1 > 5")]
#[tokio::test(start_paused = true)]
async fn stock_s_metrics_have_stock_s_values(
    #[case] sql: &str,
    #[values(false, true)] push_down: bool,
) {
    let layout = Layout {
        bloom_filter: true,
        ..Layout::paged(10)
    };
    let file = write(&cut(&numbers(1000, 40), 100), &layout);
    let stock = metrics_of(Scan::Stock, push_down, &file, sql).await;
    // Room for nothing ahead: what is prefetched beyond a limit counts as scanned too.
    let one_byte = Scan::Prefetch {
        prefetch_size: Some(1),
    };
    let one_mebibyte = Scan::Prefetch {
        prefetch_size: Some(1 << 20),
    };
    for scan in [one_byte, one_mebibyte, ahead(1), ahead(1 << 20)] {
        let ours = metrics_of(scan, push_down, &file, sql).await;
        for (name, value) in &stock {
            let found = ours
                .get(name)
                .unwrap_or_else(|| panic!("{name} is missing"));
            let follows_prefetching =
                ["bytes_scanned", "scan_efficiency_ratio"].contains(&name.as_str());
            let is_equal = [one_byte, ahead(1)].contains(&scan) || !follows_prefetching;
            if is_equal && !is_time(value) {
                assert_eq!(found.to_string(), value.to_string(), "{name} at {scan:?}");
            }
        }
        let own: Vec<&str> = ours
            .keys()
            .filter(|name| !stock.contains_key(*name))
            .map(String::as_str)
            .collect();
        let mut names = metrics::NAMES.to_vec();
        names.sort_unstable();
        assert_eq!(own, names);
    }
}

fn pruned(metrics: &BTreeMap<String, MetricValue>, name: &str) -> (usize, usize) {
    match metrics.get(name) {
        Some(MetricValue::PruningMetrics {
            pruning_metrics, ..
        }) => (pruning_metrics.pruned(), pruning_metrics.matched()),
        other => panic!("{name} is {other:?}"),
    }
}

/// With read-ahead, the filtered side is open before the other one has been read.
#[rstest]
#[case::pages_of_the_only_row_group(1000, "t.s LIKE '%045_'")]
#[case::row_groups_and_pages(100, "t.s LIKE '%045_'")]
#[case::row_groups_as_a_whole(100, "t.s LIKE '%04__'")]
#[case::beside_a_filter_of_the_query(100, "t.s LIKE '%045_' AND u.a > 200")]
#[tokio::test(start_paused = true)]
async fn a_join_s_filter_prunes_as_much_as_in_stock(
    #[case] row_group_rows: usize,
    #[case] filter: &str,
    #[values(false, true)] push_down: bool,
) {
    let file = write(&cut(&numbers(1000, 40), row_group_rows), &Layout::paged(10));
    let sql = format!("SELECT u.s FROM t JOIN t u ON t.a = u.a WHERE {filter}");
    let stock = metrics_of_scans(Scan::Stock, push_down, &file, &sql).await;
    let ours = metrics_of_scans(ahead(64 << 20), push_down, &file, &sql).await;
    assert_eq!(stock.len(), 2);
    let mut late = 0;
    for (stock, ours) in stock.iter().zip(&ours) {
        for name in ["page_index_pages_pruned", "page_index_rows_pruned"] {
            assert_eq!(pruned(ours, name), pruned(stock, name), "{name}");
        }
        let (by_statistics, _) = pruned(stock, "row_groups_pruned_statistics");
        let (early, _) = pruned(ours, "row_groups_pruned_statistics");
        let dynamic = count(ours, "row_groups_pruned_dynamic_filter");
        assert_eq!(early + dynamic, by_statistics);
        assert_eq!(count(ours, "output_rows"), count(stock, "output_rows"));
        late += dynamic + pruned(ours, "page_index_pages_pruned").0;
    }
    assert!(late > 0, "nothing is pruned");
}

#[rstest]
#[case::split_at_eight_mebibytes(16, 1, 3, 15)]
#[case(4, 4, 4, 12)]
#[case(0, 16, 16, 0)]
#[tokio::test(start_paused = true)]
async fn ours_say_what_was_prefetched_and_waited_for(
    #[case] mebibytes: u64,
    #[case] rounds: usize,
    #[case] requests: usize,
    #[case] row_groups: usize,
) {
    // A budget of a byte is on, but has room for nothing.
    let scan = Scan::Prefetch {
        prefetch_size: Some((mebibytes << 20).max(1)),
    };
    let metrics = metrics_of(scan, false, &sixteen_mebibytes(), "SELECT payload FROM t").await;
    assert_eq!(count(&metrics, metrics::FETCH_ROUND_COUNT), rounds);
    assert_eq!(count(&metrics, metrics::FETCH_REQUEST_COUNT), requests);
    assert_eq!(
        count(&metrics, metrics::PREFETCHED_ROW_GROUP_COUNT),
        row_groups
    );
    assert_eq!(count(&metrics, metrics::PREFETCHED_BYTES), row_groups << 20);
    assert_eq!(count(&metrics, metrics::PREFETCH_UNUSED_BYTES), 0);
    assert_eq!(count(&metrics, "bytes_scanned"), 16 << 20);
    // Paused time does not move the clock the metric reads, so only that it is there.
    assert!(metrics.contains_key(metrics::FETCH_WAIT_TIME));
    assert!(LATENCY > Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn what_a_filter_leaves_unread_is_unused() {
    let layout = Layout {
        statistics: parquet::file::properties::EnabledStatistics::None,
        ..Layout::plain()
    };
    let file = write(&cut(&numbers(1600, 8192), 200), &layout);
    let scan = Scan::Prefetch {
        prefetch_size: Some(4 << 20),
    };
    let metrics = metrics_of(scan, true, &file, "SELECT s FROM t WHERE b < 0").await;
    let unused = count(&metrics, metrics::PREFETCH_UNUSED_BYTES);
    let prefetched = count(&metrics, metrics::PREFETCHED_BYTES);
    assert!(
        unused > 0 && unused < prefetched,
        "{unused} of {prefetched}"
    );
}

#[tokio::test(start_paused = true)]
async fn explain_analyze_shows_them() {
    let files = [(FILE, sixteen_mebibytes())];
    let scan = Scan::Prefetch {
        prefetch_size: Some(4 << 20),
    };
    let sql = "EXPLAIN ANALYZE SELECT payload FROM t";
    let Warm { ctx, .. } = warm(scan, one_partition(), &files, &Table::new("t", FILE), sql).await;
    let text = format!("{:?}", answer(&ctx, sql).await.unwrap().batches);
    for expected in [
        "prefetch_size=4194304",
        "fetch_round_count=4",
        "prefetched_row_group_count=12",
        "fetch_wait_time",
    ] {
        assert!(text.contains(expected), "no {expected} in {text}");
    }
}
