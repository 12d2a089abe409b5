//! Inputs that broke other readers: every check of every case, however the scan is set.

use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::{ExecutionPlanProperties, collect, execute_stream};
use datafusion::prelude::SessionConfig;
use futures::TryStreamExt;
use futures::future::try_join_all;
use rstest::rstest;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::support::cases::{Case, Check, Row, all, case, rows};
use crate::support::compare::{Answer, Same, answer, assert_same, execute, plan};
use crate::support::files::upcast;
use crate::support::observe::LATENCY;
use crate::support::session::{Scan, Table, ahead, ahead_by_rule, config, runtime, session};
use crate::support::store::{Latency, RecordingStore};

const SIZES: [Option<u64>; 4] = [None, Some(1), Some(64 << 10), Some(1 << 30)];

/// Every kind of scan that a check has to pass with.
fn scans() -> Vec<Scan> {
    let by_format = SIZES.map(|prefetch_size| Scan::Prefetch { prefetch_size });
    let by_rule = SIZES.map(|prefetch_size| Scan::PrefetchByRule { prefetch_size });
    let read_ahead = [
        ahead(1),
        ahead(10 << 10),
        ahead(1 << 30),
        ahead_by_rule(64 << 10, 1),
        ahead_by_rule(1 << 30, 16 << 10),
    ];
    [&by_format[..], &by_rule, &read_ahead].concat()
}

/// The settings of a check, changed as asked. Small files are split as large ones are.
fn settings(check: &Check, partitions: Option<usize>, push_down: Option<bool>) -> SessionConfig {
    let mut settings = config(check.settings.iter().map(|(key, value)| (key, value)));
    if let Some(partitions) = partitions {
        settings = settings.with_target_partitions(partitions);
    }
    if let Some(push_down) = push_down {
        settings.options_mut().execution.parquet.pushdown_filters = push_down;
    }
    settings.with_repartition_file_min_size(0)
}

async fn check_all(
    case: &Case,
    table: &Table,
    store: &Arc<dyn object_store::ObjectStore>,
    partitions: Option<usize>,
    push_down: Option<bool>,
) {
    for check in &case.checks {
        let settings = settings(check, partitions, push_down);
        let ask = async |scan: Scan| {
            let ctx = session(scan, settings.clone(), runtime(Arc::clone(store)));
            match table.register(&ctx, scan.registration()).await {
                Ok(()) => answer(&ctx, &check.sql).await,
                Err(error) => Err(error.to_string()),
            }
        };
        let stock = ask(Scan::Stock).await;
        let refuted = check.refuted_by(&stock);
        let what = format!("{}: {} ({partitions:?} partitions)", case.id, check.sql);
        assert!(
            refuted.is_none() || check.stock_differs,
            "stock, {what}\n{refuted:?}"
        );
        for scan in scans() {
            let ours = ask(scan).await;
            let what = format!("{scan:?}, {what}, pushdown {push_down:?}");
            match check.refuted_by(&ours) {
                None => {}
                Some(_) if check.stock_differs => {
                    assert_same(&stock, &ours, Same::Rows, &what);
                }
                Some(difference) => panic!("{what}\n{difference}"),
            }
        }
    }
}

#[rstest]
#[tokio::test]
async fn answers_are_right(
    #[values(
        "F02",
        "F04",
        "F06",
        "F08",
        "F09",
        "F10",
        "F12_full",
        "F12_none",
        "F12_offset_only",
        "F12_one_column_missing",
        "F12_one_group_missing",
        "F12_filter_column_index_missing",
        "F12_column_index_without_offset",
        "F14",
        "F18",
        "F19",
        "F20_minus1",
        "F20_exact",
        "F20_plus1",
        "F23",
        "F25",
        "F28"
    )]
    id: &str,
    #[values(Some(1), Some(2), Some(3), Some(8))] partitions: Option<usize>,
    #[values(false, true)] push_down: bool,
) {
    let case = case(id);
    let store = upcast(&case.store().await);
    Box::pin(check_all(
        &case,
        &case.table(),
        &store,
        partitions,
        Some(push_down),
    ))
    .await;
}

/// With the settings that each check names, from the local file system.
#[tokio::test]
async fn answers_are_right_on_local_files() {
    for case in all() {
        // The runtime's own store serves `file://`; this one is not asked.
        let unused = upcast(&case.store().await);
        Box::pin(check_all(&case, &case.local_table(), &unused, None, None)).await;
    }
}

#[test]
fn every_case_is_named_above() {
    let source = include_str!("cases.rs");
    for case in all() {
        assert!(
            source.contains(&format!("\"{}\"", case.id)),
            "{} is not tested",
            case.id
        );
    }
}

/// Stock splits a file only below an operator that gains by it.
const SPLIT: &str = "SELECT id FROM t WHERE id >= 0";

/// The rows of one partition, of a plan of its own in a session of its own.
async fn alone(
    case: &Case,
    scan: Scan,
    settings: &SessionConfig,
    sql: &str,
    partition: Option<usize>,
) -> (usize, Vec<Row>) {
    let store = upcast(&case.store().await);
    let ctx = session(scan, settings.clone(), runtime(store));
    case.table()
        .register(&ctx, scan.registration())
        .await
        .unwrap();
    let plan = plan(&ctx, sql).await.unwrap();
    let partitions = plan.output_partitioning().partition_count();
    let batches = match partition {
        Some(partition) => {
            let stream = plan.execute(partition, ctx.task_ctx()).unwrap();
            stream.try_collect().await.unwrap()
        }
        None => collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap(),
    };
    (
        partitions,
        rows(&Answer {
            schema: plan.schema(),
            batches,
        }),
    )
}

#[rstest]
#[tokio::test]
async fn each_partition_alone_gives_each_row_once(
    #[values("F09", "F14", "F28")] id: &str,
    #[values(2, 3, 5, 8)] partitions: usize,
    #[values(None, Some(1), Some(64 << 10), Some(1 << 30))] prefetch_size: Option<u64>,
) {
    let case = case(id);
    let settings = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_repartition_file_min_size(0)
        // Partitions that run in processes of their own have no siblings to take work from.
        .set_bool(
            "datafusion.execution.enable_file_stream_work_stealing",
            false,
        );
    let sql = SPLIT;
    let (_, mut expected) = alone(&case, Scan::Stock, &settings, sql, None).await;
    expected.sort();
    let scan = Scan::Prefetch { prefetch_size };
    let (count, _) = alone(&case, scan, &settings, sql, None).await;
    assert!(count > 1, "one partition is no test");
    let mut union = Vec::new();
    for partition in 0..count {
        let stock = alone(&case, Scan::Stock, &settings, sql, Some(partition)).await;
        let ours = alone(&case, scan, &settings, sql, Some(partition)).await;
        assert_eq!(stock, ours, "partition {partition}");
        union.extend(ours.1);
    }
    union.sort();
    assert_eq!(union, expected);
}

/// With work stealing, a partition that runs alone takes all the files, as stock's does.
#[rstest]
#[tokio::test]
async fn a_partition_alone_takes_the_files_of_siblings_that_never_run(
    #[values("F09", "F14", "F28")] id: &str,
    #[values(None, Some(1), Some(1 << 30))] prefetch_size: Option<u64>,
) {
    let case = case(id);
    let settings = SessionConfig::new()
        .with_target_partitions(4)
        .with_repartition_file_min_size(0);
    let sql = SPLIT;
    let stock = alone(&case, Scan::Stock, &settings, sql, Some(1)).await;
    let ours = alone(
        &case,
        Scan::Prefetch { prefetch_size },
        &settings,
        sql,
        Some(1),
    )
    .await;
    assert_eq!(stock, ours);
    assert!(!stock.1.is_empty());
}

/// One of the partitions is dropped after its first batch; the others give what is left of the
/// rows, none of them twice.
#[rstest]
#[tokio::test]
async fn a_partition_that_is_dropped_takes_nothing_from_the_others(
    #[values("F09", "F14", "F28")] id: &str,
    #[values(None, Some(1), Some(1 << 30))] prefetch_size: Option<u64>,
    #[values(false, true)] work_stealing: bool,
) {
    let case = case(id);
    let settings = SessionConfig::new()
        .with_target_partitions(3)
        .with_repartition_file_min_size(0)
        .with_batch_size(16)
        .set_bool(
            "datafusion.execution.enable_file_stream_work_stealing",
            work_stealing,
        );
    let store = upcast(&case.store().await);
    let ctx = session(
        Scan::Prefetch { prefetch_size },
        settings.clone(),
        runtime(store),
    );
    case.table()
        .register(&ctx, Scan::Prefetch { prefetch_size }.registration())
        .await
        .unwrap();
    let plan = plan(&ctx, SPLIT).await.unwrap();
    let schema = plan.schema();
    let mut dropped = plan.execute(0, ctx.task_ctx()).unwrap();
    let first = dropped.try_next().await.unwrap();
    let others = (1..plan.output_partitioning().partition_count())
        .map(|partition| {
            plan.execute(partition, ctx.task_ctx())
                .unwrap()
                .try_collect::<Vec<_>>()
        })
        .collect::<Vec<_>>();
    drop(dropped);
    let others = try_join_all(others).await.unwrap();
    let batches = first
        .into_iter()
        .chain(others.into_iter().flatten())
        .collect();
    let got = rows(&Answer { schema, batches });
    let distinct: BTreeSet<&Row> = got.iter().collect();
    assert_eq!(distinct.len(), got.len(), "a row came twice");

    let whole = reset_plan_states(plan).unwrap();
    let stream = execute_stream(Arc::clone(&whole), ctx.task_ctx()).unwrap();
    let batches = stream.try_collect().await.unwrap();
    let all = rows(&Answer {
        schema: whole.schema(),
        batches,
    });
    assert!(distinct.iter().all(|row| all.contains(row)));
    let (_, mut expected) = alone(&case, Scan::Stock, &settings, SPLIT, None).await;
    let mut all = all;
    all.sort();
    expected.sort();
    assert_eq!(
        all, expected,
        "the plan runs whole after its state was reset"
    );
}

/// Sixty objects, of which a few rows are wanted: no scan opens them all.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_limit_opens_no_more_objects_than_stock_does(
    #[values(None, Some(1), Some(1 << 30))] prefetch_size: Option<u64>,
    #[values(1, 4)] partitions: usize,
) {
    let case = case("F28");
    let mut opened = Vec::new();
    for scan in [Scan::Stock, Scan::Prefetch { prefetch_size }] {
        let store = upcast(&case.store().await);
        let store = RecordingStore::new(store, Latency::Fixed(LATENCY));
        let log = store.log();
        let settings = SessionConfig::new().with_target_partitions(partitions);
        let ctx = session(scan, settings, runtime(Arc::new(store)));
        case.table()
            .register(&ctx, scan.registration())
            .await
            .unwrap();
        let sql = "SELECT id FROM t LIMIT 3";
        let plan = plan(&ctx, sql).await.unwrap();
        log.clear();
        assert_eq!(execute(&ctx, plan).await.unwrap().rows(), 3);
        let paths: BTreeSet<String> = log.gets().into_iter().map(|get| get.path).collect();
        opened.push(paths.len());
    }
    assert!((1..10).contains(&opened[0]), "stock opened {}", opened[0]);
    assert!(
        opened[1] <= opened[0],
        "{} objects instead of {}",
        opened[1],
        opened[0]
    );
}
