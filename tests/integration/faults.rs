//! Stores that fail: the query fails as well, or answers as if nothing had been, and nothing is
//! left behind.

use std::sync::Arc;

use bytes::Bytes;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool};
use datafusion::prelude::SessionConfig;
use object_store::limit::LimitStore;
use object_store::{GetRange, ObjectStore};
use rstest::rstest;

use crate::support::behaviour::{Behaving, OnlyGetOpts, TooFewAnswers};
use crate::support::compare::{Answer, Same, answer, difference};
use crate::support::faulty::{Action, Attempt, INJECTED};
use crate::support::faulty_scan::{Ending, FaultyScan, Setting};
use crate::support::files::{Layout, cut, numbers, store_of, upcast, write};
use crate::support::observe::LATENCY;
use crate::support::session::{
    Scan, Table, ahead, ahead_by_rule, one_partition, runtime, runtime_with_pool, session,
};
use crate::support::store::{Latency, RecordingStore};

/// Reads every byte of both columns, whatever the filter keeps.
const SCAN: &str = "SELECT a, b, s FROM t";
const FILTER: &str = "SELECT s FROM t WHERE b % 10 = 3 AND a > 150";

fn prefetch(prefetch_size: u64) -> Scan {
    Scan::Prefetch {
        prefetch_size: Some(prefetch_size),
    }
}

/// Two objects of five row groups, of some 20 KiB each.
async fn objects() -> Arc<dyn ObjectStore> {
    let file = |layout: Layout| write(&cut(&numbers(1000, 100), 200), &layout);
    let objects: [(&str, Bytes); 2] = [
        ("t/0.parquet", file(Layout::plain())),
        ("t/1.parquet", file(Layout::paged(50))),
    ];
    upcast(&store_of(objects).await)
}

fn table() -> Table {
    Table::new("t", "t/")
}

fn setting(scan: Scan, push_down: bool, metadata_cached: bool) -> Setting {
    let mut config = one_partition();
    config.options_mut().execution.parquet.pushdown_filters = push_down;
    Setting {
        scan,
        config,
        metadata_cached,
        latency: Latency::Fixed(LATENCY),
    }
}

async fn expected(config: &SessionConfig, sql: &str) -> Answer {
    let ctx = session(Scan::Stock, config.clone(), runtime(objects().await));
    table()
        .register(&ctx, Scan::Stock.registration())
        .await
        .unwrap();
    answer(&ctx, sql).await.unwrap()
}

/// Fails unless the ending is the whole right answer or an error that says what was injected.
fn answered_or_failed(ending: &Ending, expected: &Answer, what: &str) {
    match ending {
        Ending::Answered(answer) => {
            let answers = (Ok(expected.clone()), Ok(answer.clone()));
            let difference = difference(&answers.0, &answers.1, Same::Batches);
            assert!(
                difference.is_none(),
                "{what}: {}",
                difference.unwrap_or_default()
            );
        }
        Ending::Failed(error) => assert!(error.contains(INJECTED), "{what}: {error}"),
        Ending::Never => panic!("{what}: no end"),
    }
}

async fn ending(
    setting: &Setting,
    sql: &str,
    script: impl Fn(&Attempt<'_>) -> Action + Send + Sync + 'static,
) -> Ending {
    FaultyScan::plan(setting, objects().await, &table(), sql, script)
        .await
        .run()
        .await
}

/// How many reads the execution takes when nothing goes wrong.
async fn reads(setting: &Setting, sql: &str) -> usize {
    let script = |_: &Attempt<'_>| Action::Forward;
    let scan = FaultyScan::plan(setting, objects().await, &table(), sql, script).await;
    scan.count_reads().await
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn a_store_that_begins_to_fail_fails_the_query(
    #[values(
        Scan::Stock, Scan::Prefetch { prefetch_size: None }, prefetch(1), prefetch(50_000),
        prefetch(1 << 30), ahead(10_000), ahead(1 << 30), ahead_by_rule(50_000, 50_000)
    )]
    scan: Scan,
    #[values(Action::Fail, Action::FailInBody)] action: Action,
    #[values(false, true)] metadata_cached: bool,
) {
    let setting = setting(scan, false, metadata_cached);
    let reads = reads(&setting, SCAN).await;
    assert!(reads > 1, "{reads} reads");
    for n in 1..=reads {
        let script = move |attempt: &Attempt<'_>| {
            if attempt.n >= n {
                action
            } else {
                Action::Forward
            }
        };
        // Every read of this scan is needed, so none of them may be missed.
        match ending(&setting, SCAN, script).await {
            Ending::Failed(error) => {
                assert!(error.contains(INJECTED), "read {n}: {error}");
                assert!(
                    error.contains("t/"),
                    "read {n} does not name its object: {error}"
                );
            }
            other => panic!("read {n} of {reads}: {other:?}"),
        }
    }
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn one_failed_read_never_makes_the_answer_shorter(
    #[values(
        Scan::Stock, Scan::Prefetch { prefetch_size: None }, prefetch(1), prefetch(50_000),
        prefetch(1 << 30), ahead(10_000), ahead(1 << 30), ahead_by_rule(50_000, 50_000)
    )]
    scan: Scan,
    #[values(Action::Fail, Action::FailInBody, Action::Panic)] action: Action,
    #[values(false, true)] push_down: bool,
    #[values(SCAN, FILTER)] sql: &str,
) {
    let setting = setting(scan, push_down, false);
    let expected = expected(&setting.config, sql).await;
    for n in 1..=reads(&setting, sql).await {
        let script = move |attempt: &Attempt<'_>| {
            if attempt.n == n {
                action
            } else {
                Action::Forward
            }
        };
        let ending = ending(&setting, sql, script).await;
        answered_or_failed(&ending, &expected, &format!("read {n}, {action:?}"));
    }
}

/// The first reads of each range are refused: what was speculative is read again when it is
/// required, what was required fails the query as it does in stock.
#[rstest]
#[case::for_a_while(2)]
#[case::for_ever(usize::MAX)]
#[tokio::test(start_paused = true)]
async fn a_throttled_store_is_not_asked_in_vain(
    #[case] refusals: usize,
    #[values(Scan::Stock, prefetch(1), prefetch(50_000), prefetch(1 << 30))] scan: Scan,
    #[values(false, true)] push_down: bool,
) {
    let setting = setting(scan, push_down, true);
    let expected = expected(&setting.config, FILTER).await;
    let script = move |attempt: &Attempt<'_>| {
        if attempt.repeat <= refusals {
            Action::Fail
        } else {
            Action::Forward
        }
    };
    let ending = ending(&setting, FILTER, script).await;
    answered_or_failed(&ending, &expected, "throttled");
    if refusals == usize::MAX {
        assert!(matches!(ending, Ending::Failed(_)), "{ending:?}");
    }
}

/// Speculative reads alone are refused. The first read of the execution is always required.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_speculative_read_that_fails_is_read_again_when_required(
    #[values(prefetch(50_000), prefetch(1 << 30))] scan: Scan,
) {
    let mut setting = setting(scan, false, true);
    let expected = expected(&setting.config, SCAN).await;
    // Large ranges are those that were widened: a row group of one of the objects has 20 KiB.
    setting.latency = Latency::Fixed(LATENCY);
    let script = |attempt: &Attempt<'_>| match attempt.range {
        Some(GetRange::Bounded(range)) if range.end - range.start > 30_000 => Action::Fail,
        _ => Action::Forward,
    };
    let ending = ending(&setting, SCAN, script).await;
    answered_or_failed(&ending, &expected, "only widened reads fail");
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn a_read_that_never_ends_holds_nothing_once_the_query_is_dropped(
    #[values(
        Scan::Stock, Scan::Prefetch { prefetch_size: None }, prefetch(1), prefetch(50_000),
        prefetch(1 << 30), ahead(10_000), ahead(1 << 30), ahead_by_rule(50_000, 50_000)
    )]
    scan: Scan,
    #[values(false, true)] metadata_cached: bool,
) {
    let setting = setting(scan, false, metadata_cached);
    for n in 1..=reads(&setting, SCAN).await {
        let script = move |attempt: &Attempt<'_>| {
            if attempt.n == n {
                Action::Hang
            } else {
                Action::Forward
            }
        };
        let ending = ending(&setting, SCAN, script).await;
        assert!(matches!(ending, Ending::Never), "read {n}: {ending:?}");
    }
}

/// An answer of the wrong length names its object in an error; it is never decoded, and never
/// a panic.
#[rstest]
#[tokio::test(start_paused = true)]
async fn an_answer_of_the_wrong_length_is_an_error(
    #[values(prefetch(1), prefetch(50_000), prefetch(1 << 30))] scan: Scan,
    #[values(Action::OneByteShort, Action::Empty, Action::OneByteLong)] action: Action,
    #[values(false, true)] push_down: bool,
    #[values(SCAN, FILTER)] sql: &str,
    #[values(false, true)] for_ever: bool,
) {
    let setting = setting(scan, push_down, true);
    let expected = expected(&setting.config, sql).await;
    for n in 1..=reads(&setting, sql).await {
        let script = move |attempt: &Attempt<'_>| match attempt.n.cmp(&n) {
            std::cmp::Ordering::Less => Action::Forward,
            std::cmp::Ordering::Equal => action,
            std::cmp::Ordering::Greater if for_ever => action,
            std::cmp::Ordering::Greater => Action::Forward,
        };
        let what = format!("read {n}, {action:?}");
        match ending(&setting, sql, script).await {
            Ending::Failed(error) => {
                assert!(!error.contains("panic"), "{what}: {error}");
                assert!(
                    error.contains(".parquet"),
                    "{what} does not name its object: {error}"
                );
            }
            Ending::Answered(_) if for_ever && sql == SCAN => {
                panic!("{what}: answered from bytes that never came");
            }
            answered => answered_or_failed(&answered, &expected, &what),
        }
    }
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn too_few_answers_are_an_error_and_no_panic(
    #[values(prefetch(1), prefetch(50_000), prefetch(1 << 30))] scan: Scan,
) {
    let setting = setting(scan, false, true);
    let expected = expected(&setting.config, SCAN).await;
    let forward = |_: &Attempt<'_>| Action::Forward;
    let too_few = TooFewAnswers::default();
    let behaviour = too_few.clone();
    let wrap = |store| Arc::new(Behaving::new(store, behaviour)) as Arc<dyn ObjectStore>;
    let objects = objects().await;
    let scan = FaultyScan::plan_through(&setting, objects, &table(), SCAN, forward, wrap).await;
    too_few.arm();
    match scan.run().await {
        Ending::Failed(error) => {
            assert!(!error.contains("panic"), "{error}");
            assert!(
                error.contains(".parquet"),
                "the object is not named: {error}"
            );
        }
        // A scan that does not read through `get_ranges` does not notice.
        other => answered_or_failed(&other, &expected, "too few answers"),
    }
}

/// Azure has no suffix ranges, some stores refuse a range past the end, and none likes an empty
/// one.
#[rstest]
#[tokio::test(start_paused = true)]
async fn ranges_that_some_stores_refuse_are_not_asked_for(
    #[values(Scan::Stock, prefetch(1), prefetch(1 << 30))] scan: Scan,
    #[values(false, true)] push_down: bool,
    #[values(SCAN, FILTER)] sql: &str,
) {
    let setting = setting(scan, push_down, false);
    let expected = expected(&setting.config, sql).await;
    let objects = objects().await;
    let sizes: Vec<(String, u64)> = {
        use futures::TryStreamExt;
        let metas: Vec<_> = objects.list(None).try_collect().await.unwrap();
        metas
            .into_iter()
            .map(|meta| (meta.location.to_string(), meta.size))
            .collect()
    };
    let script = move |attempt: &Attempt<'_>| {
        let (_, size) = sizes
            .iter()
            .find(|(path, _)| path == attempt.path.as_ref())
            .unwrap();
        match attempt.range {
            Some(GetRange::Bounded(range)) if range.start < range.end && range.end <= *size => {
                Action::Forward
            }
            None => Action::Forward,
            _ => Action::Refuse,
        }
    };
    let scan = FaultyScan::plan(&setting, objects, &table(), sql, script).await;
    match scan.run().await {
        Ending::Answered(answer) => {
            let answers = (Ok(expected), Ok(answer));
            assert_eq!(difference(&answers.0, &answers.1, Same::Batches), None);
        }
        other => panic!("{other:?}"),
    }
}

/// A permit of the limit is held as long as a body lives: whoever opens more bodies than it
/// reads waits for ever.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_store_that_serves_few_bodies_at_once_suffices(
    #[values(1, 2)] limit: usize,
    #[values(
        Scan::Stock, prefetch(1), prefetch(50_000), prefetch(1 << 30), ahead(10_000), ahead(1 << 30)
    )]
    scan: Scan,
    #[values(1, 4)] partitions: usize,
    #[values(false, true)] push_down: bool,
    #[values(SCAN, FILTER)] sql: &str,
) {
    let mut setting = setting(scan, push_down, false);
    setting.config = setting.config.with_target_partitions(partitions);
    setting.config = setting.config.with_repartition_file_min_size(0);
    let expected = expected(&setting.config, sql).await;
    let forward = |_: &Attempt<'_>| Action::Forward;
    let wrap = |store| Arc::new(LimitStore::new(store, limit)) as Arc<dyn ObjectStore>;
    let objects = objects().await;
    let scan = FaultyScan::plan_through(&setting, objects, &table(), sql, forward, wrap).await;
    let log = scan.log.clone();
    match scan.run().await {
        Ending::Answered(answer) => {
            let answers = (Ok(expected), Ok(answer));
            assert_eq!(difference(&answers.0, &answers.1, Same::Rows), None);
        }
        other => panic!("{other:?}"),
    }
    // The limit counts calls of `get_ranges`, of which one may be several requests.
    assert!(log.peak() >= 1);
}

/// Many wrappers in the field forward only `get_opts`.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_store_without_get_ranges_gets_no_more_requests_than_stock_s(
    #[values(Scan::Stock, prefetch(1), prefetch(50_000), prefetch(1 << 30))] scan: Scan,
    #[values(SCAN, FILTER)] sql: &str,
) {
    let forward = |_: &Attempt<'_>| Action::Forward;
    let mut gets = Vec::new();
    for scan in [Scan::Stock, scan] {
        let setting = setting(scan, false, true);
        let wrap = |store| Arc::new(Behaving::new(store, OnlyGetOpts)) as Arc<dyn ObjectStore>;
        let objects = objects().await;
        let scan = FaultyScan::plan_through(&setting, objects, &table(), sql, forward, wrap).await;
        let log = scan.log.clone();
        match scan.run().await {
            Ending::Answered(answer) => gets.push((log.gets().len(), answer)),
            other => panic!("{other:?}"),
        }
    }
    let answers = (Ok(gets[0].1.clone()), Ok(gets[1].1.clone()));
    assert_eq!(difference(&answers.0, &answers.1, Same::Batches), None);
    assert!(
        gets[1].0 <= gets[0].0,
        "{} requests instead of {}",
        gets[1].0,
        gets[0].0
    );
}

/// A pool that has little for speculation gives what stock gives, and fails where stock fails.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_small_memory_pool_is_no_reason_to_fail(
    #[values(prefetch(1), prefetch(50_000), prefetch(1 << 30))] scan: Scan,
    #[values(0, 1 << 10, 64 << 10)] pool_bytes: usize,
    #[values(1, 4)] partitions: usize,
    #[values(
        SCAN,
        FILTER,
        "SELECT count(*), max(s) FROM t",
        "SELECT s FROM t ORDER BY b, a, s LIMIT 5"
    )]
    sql: &str,
) {
    let config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_repartition_file_min_size(0);
    let mut answers = Vec::new();
    for scan in [Scan::Stock, scan] {
        let store = RecordingStore::new(objects().await, Latency::Fixed(LATENCY));
        let log = store.log();
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(pool_bytes));
        let runtime = runtime_with_pool(Arc::new(store), Arc::clone(&pool));
        let ctx = session(scan, config.clone(), runtime);
        table().register(&ctx, scan.registration()).await.unwrap();
        answers.push(answer(&ctx, sql).await);
        assert_eq!(pool.reserved(), 0);
        assert_eq!(log.outstanding(), 0);
    }
    assert_eq!(difference(&answers[0], &answers[1], Same::Rows), None);
}
