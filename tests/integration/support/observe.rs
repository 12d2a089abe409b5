//! One query on a store that records, with everything about it but the data in the cache.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use datafusion::execution::memory_pool::{MemoryPool, UnboundedMemoryPool};
use datafusion::prelude::{SessionConfig, SessionContext};
use parquet::file::metadata::ParquetMetaData;

use super::compare::{Answer, execute, plan};
use super::files::{store_of, upcast};
use super::log::{Request, RequestLog};
use super::session::{Scan, Table, runtime_with_pool, session};
use super::store::{Latency, RecordingStore};

/// What each request waits for its answer.
pub(crate) const LATENCY: Duration = Duration::from_millis(100);

/// A session over a recording store, in which a query has run before.
pub(crate) struct Warm {
    pub(crate) ctx: SessionContext,
    pub(crate) log: RequestLog,
    pub(crate) pool: Arc<dyn MemoryPool>,
}

/// A query that ran once more after its metadata was cached.
#[derive(Debug)]
pub(crate) struct Observation {
    pub(crate) answer: Answer,
    pub(crate) requests: Vec<Request>,
    pub(crate) rounds: usize,
    pub(crate) elapsed: Duration,
    pub(crate) bytes: u64,
}

/// A session for `scan` in which `sql` has run once.
pub(crate) async fn warm(
    scan: Scan,
    config: SessionConfig,
    files: &[(&str, Bytes)],
    table: &Table,
    sql: &str,
) -> Warm {
    let store = store_of(files.iter().map(|(path, file)| (*path, file.clone()))).await;
    let store = Arc::new(RecordingStore::new(upcast(&store), Latency::Fixed(LATENCY)));
    let log = store.log();
    let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
    let ctx = session(scan, config, runtime_with_pool(store, Arc::clone(&pool)));
    table.register(&ctx, scan.registration()).await.unwrap();
    let planned = plan(&ctx, sql).await.unwrap();
    execute(&ctx, planned).await.unwrap();
    Warm { ctx, log, pool }
}

/// Runs `sql` twice and observes how the second plan executes. No range may be asked for twice,
/// and nothing may be left running or reserved.
pub(crate) async fn observe(
    scan: Scan,
    config: SessionConfig,
    files: &[(&str, Bytes)],
    table: &Table,
    sql: &str,
) -> Observation {
    let Warm { ctx, log, pool } = warm(scan, config, files, table, sql).await;
    let planned = plan(&ctx, sql).await.unwrap();
    log.clear();
    let answer = execute(&ctx, planned).await.unwrap();
    let elapsed = log.elapsed();
    assert_eq!(
        log.asked_twice(),
        Vec::new(),
        "asked for twice: {:#?}",
        log.requests()
    );
    assert_eq!(log.outstanding(), 0, "still running: {:#?}", log.requests());
    assert_eq!(pool.reserved(), 0, "bytes still reserved");
    Observation {
        answer,
        requests: log.requests(),
        rounds: log.rounds(),
        elapsed,
        bytes: log.bytes(),
    }
}

/// The bytes that the requests name, as disjoint ascending ranges of each object.
pub(crate) fn covered(requests: &[Request]) -> BTreeMap<String, Vec<Range<u64>>> {
    let mut covered: BTreeMap<String, Vec<Range<u64>>> = BTreeMap::new();
    for request in requests {
        covered
            .entry(request.path.clone())
            .or_default()
            .extend(request.bounded());
    }
    for ranges in covered.values_mut() {
        ranges.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in ranges.drain(..) {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        *ranges = merged;
    }
    covered
}

/// For each moment at which requests were begun, the row groups of which they name the whole
/// chunk of `column`.
pub(crate) fn row_groups_by_round(
    requests: &[Request],
    metadata: &ParquetMetaData,
    column: usize,
) -> Vec<Vec<usize>> {
    let mut rounds: BTreeMap<Duration, Vec<Request>> = BTreeMap::new();
    for request in requests {
        rounds
            .entry(request.start)
            .or_default()
            .push(request.clone());
    }
    let in_round = |requests: Vec<Request>| {
        let ranges: Vec<Range<u64>> = covered(&requests).into_values().flatten().collect();
        let whole = |row_group: &usize| {
            let (start, length) = metadata.row_group(*row_group).column(column).byte_range();
            ranges
                .iter()
                .any(|range| range.start <= start && start + length <= range.end)
        };
        (0..metadata.num_row_groups()).filter(whole).collect()
    };
    rounds.into_values().map(in_round).collect()
}
