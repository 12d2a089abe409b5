//! Streams that are dropped before their end leave nothing behind.

use std::sync::Arc;
use std::time::Duration;

use datafusion::physical_plan::{ExecutionPlanProperties, execute_stream};
use datafusion::prelude::SessionConfig;
use futures::StreamExt;
use object_store::ObjectStore;
use rstest::rstest;
use tokio::task::yield_now;

use crate::support::faulty::{Action, Attempt};
use crate::support::faulty_scan::{FaultyScan, Setting, nothing_is_left};
use crate::support::files::{Layout, cut, numbers, store_of, upcast, write};
use crate::support::session::{Scan, Table, ahead, ahead_by_rule};
use crate::support::store::Latency;

const STEP: Duration = Duration::from_millis(70);

async fn objects() -> Arc<dyn ObjectStore> {
    let file = |layout: Layout| write(&cut(&numbers(800, 100), 100), &layout);
    let objects = [
        ("t/0.parquet", file(Layout::plain())),
        ("t/1.parquet", file(Layout::paged(20))),
    ];
    upcast(&store_of(objects).await)
}

async fn planned(scan: Scan, partitions: usize, push_down: bool, sql: &str) -> FaultyScan {
    let mut config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_repartition_file_min_size(0)
        .with_batch_size(60);
    config.options_mut().execution.parquet.pushdown_filters = push_down;
    let latency = Latency::Fixed(Duration::from_millis(200));
    let setting = Setting {
        scan,
        config,
        metadata_cached: false,
        latency,
    };
    let forward = |_: &Attempt<'_>| Action::Forward;
    FaultyScan::plan(
        &setting,
        objects().await,
        &Table::new("t", "t/"),
        sql,
        forward,
    )
    .await
}

/// Lets time and all tasks go on a little.
async fn step() {
    tokio::time::advance(STEP).await;
    for _ in 0..10 {
        yield_now().await;
    }
}

/// Polls the query's stream `polls` times, drops it, and checks what is left. Whether the stream
/// had ended by then.
async fn drop_after(scan: FaultyScan, polls: usize) -> bool {
    let FaultyScan {
        ctx,
        plan,
        log,
        pool,
        ..
    } = scan;
    let mut stream = execute_stream(plan, ctx.task_ctx()).unwrap();
    let mut ended = false;
    for _ in 0..polls {
        match futures::poll!(stream.next()) {
            std::task::Poll::Ready(Some(batch)) => {
                batch.unwrap();
            }
            std::task::Poll::Ready(None) => {
                ended = true;
                break;
            }
            std::task::Poll::Pending => step().await,
        }
    }
    drop(stream);
    nothing_is_left(&log, pool.as_ref(), &format!("dropped after {polls} polls")).await;
    ended
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn a_stream_dropped_at_any_point_leaves_nothing(
    #[values(
        Scan::Stock,
        Scan::Prefetch { prefetch_size: Some(1) },
        Scan::Prefetch { prefetch_size: Some(30_000) },
        Scan::Prefetch { prefetch_size: Some(1 << 30) },
        Scan::PrefetchByRule { prefetch_size: Some(30_000) },
        ahead(1),
        ahead(30_000),
        ahead(1 << 30),
        ahead_by_rule(30_000, 10_000)
    )]
    scan: Scan,
    #[values(1, 3)] partitions: usize,
    #[values(
        (false, "SELECT a, s FROM t"),
        (true, "SELECT s FROM t WHERE b % 10 = 3"),
        (true, "SELECT s FROM t WHERE b % 10 = 11"),
        (false, "SELECT a, s FROM t ORDER BY b, a, s LIMIT 3")
    )]
    query: (bool, &str),
) {
    let (push_down, sql) = query;
    let mut polls = 0;
    while !drop_after(planned(scan, partitions, push_down, sql).await, polls).await {
        polls += 1;
        assert!(polls < 2_000, "the stream does not end");
    }
    assert!(polls > 3, "{polls} polls are no test");
}

/// One partition of a plan is dropped at each point, while another goes on to its end.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_dropped_partition_does_not_disturb_its_sibling(
    #[values(
        Scan::Stock,
        Scan::Prefetch { prefetch_size: Some(30_000) },
        ahead(30_000),
        ahead(1 << 30)
    )]
    scan: Scan,
) {
    for polls in 0..12 {
        let scan = planned(scan, 2, false, "SELECT a, s FROM t").await;
        let FaultyScan {
            ctx,
            plan,
            log,
            pool,
            ..
        } = scan;
        assert_eq!(plan.output_partitioning().partition_count(), 2);
        let mut dropped = plan.execute(0, ctx.task_ctx()).unwrap();
        let mut sibling = plan.execute(1, ctx.task_ctx()).unwrap();
        for _ in 0..polls {
            if futures::poll!(dropped.next()).is_pending() {
                step().await;
            }
        }
        drop(dropped);
        while let Some(batch) = sibling.next().await {
            batch.unwrap();
        }
        drop(sibling);
        nothing_is_left(&log, pool.as_ref(), &format!("dropped after {polls} polls")).await;
    }
}

/// A plan that is executed and never polled asks for nothing.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_stream_that_is_never_polled_asks_for_nothing(
    #[values(Scan::Stock, Scan::Prefetch { prefetch_size: Some(1 << 30) })] scan: Scan,
) {
    let FaultyScan {
        ctx,
        plan,
        log,
        pool,
        ..
    } = planned(scan, 1, false, "SELECT a, s FROM t").await;
    let stream = execute_stream(plan, ctx.task_ctx()).unwrap();
    step().await;
    drop(stream);
    nothing_is_left(&log, pool.as_ref(), "never polled").await;
    assert_eq!(log.requests(), []);
}
