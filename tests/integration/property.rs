//! Random files and random queries: ours answers what stock answers.
//!
//! A failure prints the seed of its run; `PREFETCH_TEST_SEED` repeats it, and
//! `PREFETCH_TEST_CASES` asks for more cases.

use std::collections::BTreeMap;
use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::execution::memory_pool::{MemoryPool, UnboundedMemoryPool};
use datafusion_parquet_prefetch::ConditionalReadAhead;
use object_store::memory::InMemory;
use parking_lot::Mutex;
use parquet::file::properties::EnabledStatistics;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use crate::support::compare::{Answer, Same, answer, difference};
use crate::support::files::{Layout, cut, int96, put, store_of, upcast, write};
use crate::support::random::{Column, Promise, batch, columns, query};
use crate::support::session::{
    Ahead, Registration, Scan, Table, config, runtime, runtime_with_pool, session,
};
use crate::support::store::{Latency, RecordingStore};

const CASES: u32 = 300;

#[derive(Debug, Clone)]
struct File {
    rows: usize,
    row_group_rows: usize,
    layout: Layout,
    /// Bits of the columns that this file lacks.
    missing: u32,
    narrow: bool,
    shuffled: bool,
    partition: u8,
}

/// One case: files, a session, and queries.
#[derive(Debug, Clone)]
struct World {
    files: Vec<File>,
    /// Bits of the columns that the table has.
    present: u32,
    partitioned: bool,
    scan: Scan,
    settings: BTreeMap<&'static str, String>,
    data_seed: u64,
    query_seeds: Vec<u64>,
}

fn layouts() -> impl Strategy<Value = Layout> {
    let statistics = prop_oneof![
        Just(EnabledStatistics::None),
        Just(EnabledStatistics::Chunk),
        Just(EnabledStatistics::Page),
    ];
    let page_rows = proptest::option::of(1usize..60);
    (
        page_rows,
        statistics,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(page_rows, statistics, offset_index, bloom_filter, dictionary)| Layout {
                page_rows,
                statistics,
                offset_index,
                bloom_filter,
                dictionary,
            },
        )
}

fn files() -> impl Strategy<Value = Vec<File>> {
    let missing = prop_oneof![Just(0u32), any::<u32>()];
    let file = (
        0usize..400,
        1usize..160,
        layouts(),
        missing,
        any::<bool>(),
        any::<bool>(),
        0u8..3,
    )
        .prop_map(
            |(rows, row_group_rows, layout, missing, narrow, shuffled, partition)| File {
                rows,
                row_group_rows,
                layout,
                missing,
                narrow,
                shuffled,
                partition,
            },
        );
    vec(file, 1..4)
}

fn settings() -> impl Strategy<Value = BTreeMap<&'static str, String>> {
    let flag = any::<bool>().prop_map(|flag| flag.to_string());
    let flags = proptest::sample::select(vec![
        "datafusion.execution.parquet.pushdown_filters",
        "datafusion.execution.parquet.reorder_filters",
        "datafusion.execution.parquet.enable_page_index",
        "datafusion.execution.parquet.bloom_filter_on_read",
        "datafusion.execution.parquet.schema_force_view_types",
        "datafusion.execution.parquet.force_filter_selections",
        "datafusion.execution.parquet.pruning",
        "datafusion.execution.parquet.skip_metadata",
        "datafusion.execution.collect_statistics",
        "datafusion.execution.split_file_groups_by_statistics",
        "datafusion.optimizer.enable_dynamic_filter_pushdown",
        "datafusion.execution.enable_file_stream_work_stealing",
    ]);
    let partitions = 1usize..=8;
    let batch_size = prop_oneof![Just(8192usize), 1usize..200];
    let predicate_cache = proptest::option::of(0usize..5000);
    (
        btree_map(flags, flag, 0..12),
        partitions,
        batch_size,
        predicate_cache,
    )
        .prop_map(|(mut settings, partitions, batch_size, predicate_cache)| {
            settings.insert(
                "datafusion.execution.target_partitions",
                partitions.to_string(),
            );
            settings.insert("datafusion.execution.batch_size", batch_size.to_string());
            settings.insert(
                "datafusion.optimizer.repartition_file_min_size",
                "0".to_owned(),
            );
            if let Some(bytes) = predicate_cache {
                let key = "datafusion.execution.parquet.max_predicate_cache_size";
                settings.insert(key, bytes.to_string());
            }
            settings
        })
}

/// Nothing, a byte, everything, and any power of two between.
fn prefetch_sizes() -> impl Strategy<Value = Option<u64>> + Clone {
    proptest::option::weighted(
        0.8,
        prop_oneof![(0u32..20).prop_map(|n| 1 << n), Just(1 << 40)],
    )
}

/// Every way to read that is ours.
fn scans() -> impl Strategy<Value = Scan> {
    let size = |bytes: Option<u64>| bytes.unwrap_or(0);
    let conditional = proptest::sample::select(vec![
        ConditionalReadAhead::Always,
        ConditionalReadAhead::Never,
        ConditionalReadAhead::Adaptive,
    ]);
    let all = (
        any::<bool>(),
        prefetch_sizes(),
        prefetch_sizes(),
        conditional,
    );
    all.prop_map(move |(by_rule, prefetch_size, bytes, conditional)| {
        let ahead = Ahead {
            bytes: size(bytes),
            prefetch_size: size(prefetch_size),
            conditional,
        };
        match (by_rule, bytes) {
            (false, None) => Scan::Prefetch { prefetch_size },
            (true, None) => Scan::PrefetchByRule { prefetch_size },
            (false, Some(_)) => Scan::ReadAhead(ahead),
            (true, Some(_)) => Scan::ReadAheadByRule(ahead),
        }
    })
}

fn worlds() -> impl Strategy<Value = World> {
    let seed = any::<u64>().no_shrink();
    let tuple = (
        files(),
        any::<u32>(),
        any::<bool>(),
        scans(),
        settings(),
        seed,
        vec(any::<u64>().no_shrink(), 1..6),
    );
    tuple.prop_map(
        |(files, present, partitioned, scan, settings, data_seed, seeds)| World {
            files,
            present,
            partitioned,
            scan,
            settings,
            data_seed,
            query_seeds: seeds,
        },
    )
}

fn bit(bits: u32, n: usize) -> bool {
    bits & (1 << n) != 0
}

impl World {
    fn is_by_rule(&self) -> bool {
        self.scan.registration() == Registration::RegisterParquet
    }

    /// The columns that at least one file of rows has.
    fn columns(&self) -> Vec<Column> {
        let has = |n: usize| self.files.iter().any(|file| !bit(file.missing, n));
        let columns = columns().into_iter().enumerate();
        let columns = columns.filter(|&(n, _)| bit(self.present, n) && has(n));
        columns.map(|(_, column)| column).collect()
    }

    fn file(&self, i: usize, first_id: i64, rng: &mut StdRng) -> RecordBatch {
        let file = &self.files[i];
        let all = columns();
        let kept = all
            .iter()
            .enumerate()
            .filter(|&(n, _)| bit(self.present, n) && !bit(file.missing, n));
        let typed: Vec<(&str, DataType)> = kept
            .map(|(_, column)| match &column.narrow {
                // Inferred schemas of several files cannot be merged if their types differ.
                Some(narrow) if file.narrow && self.is_by_rule() => (column.name, narrow.clone()),
                _ => (column.name, column.data_type.clone()),
            })
            .collect();
        batch(first_id, file.rows, &typed, file.shuffled, rng)
    }

    async fn store(&self) -> Arc<InMemory> {
        let store = Arc::new(InMemory::new());
        let mut rng = StdRng::seed_from_u64(self.data_seed);
        let mut first_id = 0;
        for (i, file) in self.files.iter().enumerate() {
            let rows = self.file(i, first_id, &mut rng);
            first_id += i64::try_from(file.rows).unwrap();
            let folder = if self.partitioned {
                format!("t/p={}", file.partition)
            } else {
                "t".to_owned()
            };
            let parquet = write(&cut(&rows, file.row_group_rows), &file.layout);
            put(&store, &format!("{folder}/{i}.parquet"), parquet).await;
        }
        store
    }

    fn table(&self) -> Table {
        let mut table = Table::new("t", "t/");
        if self.partitioned {
            table = table.partitioned_by("p", DataType::Utf8View);
        }
        if self.is_by_rule() {
            let columns = self.columns();
            let fields = columns
                .iter()
                .map(|c| Field::new(c.name, c.data_type.clone(), true));
            let id = Field::new("id", DataType::Int64, false);
            table = table.with_schema(Schema::new(
                [id].into_iter().chain(fields).collect::<Vec<_>>(),
            ));
        }
        table
    }

    async fn ask(
        &self,
        scan: Scan,
        registration: Registration,
        store: &Arc<InMemory>,
        sql: &[String],
    ) -> Vec<Result<Answer, String>> {
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let recording = RecordingStore::new(upcast(store), Latency::Fixed(Duration::ZERO));
        let log = recording.log();
        let runtime = runtime_with_pool(Arc::new(recording), Arc::clone(&pool));
        let ctx = session(scan, config(&self.settings), runtime);
        if let Err(error) = self.table().register(&ctx, registration).await {
            return vec![Err(error.to_string())];
        }
        let mut answers = Vec::new();
        for sql in sql {
            answers.push(answer(&ctx, sql).await);
            // What an operator above has stopped listening to is aborted, and ends soon.
            let settled = async {
                while log.outstanding() > 0 || pool.reserved() > 0 {
                    tokio::task::yield_now().await;
                }
            };
            let minute = Duration::from_secs(60);
            let left = || {
                format!(
                    "{sql} left {} bytes, {:#?}",
                    pool.reserved(),
                    log.requests()
                )
            };
            timeout(minute, settled)
                .await
                .unwrap_or_else(|_| panic!("{}", left()));
        }
        answers
    }

    /// How ours differs from stock, and what stock itself refused.
    async fn check(&self) -> (Option<String>, Vec<String>) {
        let scan = self.scan;
        let rows: usize = self.files.iter().map(|file| file.rows).sum();
        let columns = self.columns();
        let queries: Vec<(String, Promise)> = self
            .query_seeds
            .iter()
            .map(|&seed| {
                let mut rng = StdRng::seed_from_u64(seed);
                query(
                    i64::try_from(rows).unwrap(),
                    &columns,
                    self.partitioned,
                    &mut rng,
                )
            })
            .collect();
        let sql: Vec<String> = queries.iter().map(|(sql, _)| sql.clone()).collect();
        let store = self.store().await;
        let stock = self
            .ask(Scan::Stock, scan.registration(), &store, &sql)
            .await;
        let ours = self.ask(scan, scan.registration(), &store, &sql).await;
        let refused = stock.iter().zip(&sql).filter_map(|(answer, sql)| {
            let error = answer.as_ref().err()?;
            Some(format!("{sql}: {error}"))
        });
        let refused = refused.collect();
        if stock.len() != ours.len() {
            return (
                Some("only one of the two took the table".to_owned()),
                refused,
            );
        }
        let one_partition = self.settings["datafusion.execution.target_partitions"] == "1";
        for ((stock, ours), (sql, promise)) in stock.iter().zip(&ours).zip(&queries) {
            let same = match promise {
                _ if one_partition => Same::Batches,
                Promise::Order => Same::Order,
                Promise::Rows => Same::Rows,
            };
            if let Some(difference) = difference(stock, ours, same) {
                return (Some(format!("{sql}\n{difference}")), refused);
            }
        }
        (None, refused)
    }
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok().map(|value| value.parse().unwrap())
}

/// Runs `check` over cases of `strategy`, and prints the seed if one fails.
fn run<S: Strategy>(strategy: &S, check: impl Fn(S::Value) -> Result<(), String>) {
    let seed = number("PREFETCH_TEST_SEED").unwrap_or_else(rand::random);
    let cases = number("PREFETCH_TEST_CASES").map_or(CASES, |cases| u32::try_from(cases).unwrap());
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, rng);
    let result = runner.run(strategy, |case| check(case).map_err(TestCaseError::fail));
    if let Err(error) = result {
        panic!("PREFETCH_TEST_SEED={seed} PREFETCH_TEST_CASES={cases}\n{error}");
    }
}

#[test]
fn random_queries_over_random_files() {
    let runtime = Runtime::new().unwrap();
    let asked = AtomicUsize::new(0);
    let refused = Mutex::new(Vec::new());
    run(&worlds(), |world| {
        let (difference, refusals) = runtime.block_on(Box::pin(world.check()));
        asked.fetch_add(world.query_seeds.len(), Ordering::Relaxed);
        refused.lock().extend(refusals);
        difference.map_or(Ok(()), Err)
    });
    // Two errors are equal: a generator of queries that stock refuses would test nothing.
    let (asked, refused) = (asked.into_inner(), refused.into_inner());
    assert!(
        refused.len() * 20 <= asked,
        "of {asked} queries stock refused {refused:#?}"
    );
}

#[test]
fn random_int96_timestamps() {
    let runtime = Runtime::new().unwrap();
    let moment = proptest::option::of((0u32..20_000, 0u64..86_400_000_000_000));
    let units = proptest::sample::select(vec!["ns", "us", "ms", "s", ""]);
    let case = (
        vec(moment, 1..200),
        1usize..60,
        units,
        scans(),
        any::<bool>(),
    );
    run(&case, |(moments, row_group_rows, unit, ours, push_down)| {
        runtime.block_on(async {
            let file = int96(&moments, row_group_rows);
            let store = store_of([("t.parquet", file)]).await;
            let mut settings = BTreeMap::from([
                (
                    "datafusion.execution.parquet.pushdown_filters",
                    push_down.to_string(),
                ),
                ("datafusion.execution.target_partitions", "1".to_owned()),
            ]);
            if !unit.is_empty() {
                settings.insert("datafusion.execution.parquet.coerce_int96", unit.to_owned());
            }
            for sql in [
                "SELECT * FROM t",
                "SELECT id FROM t WHERE ts > TIMESTAMP '1990-01-01T00:00:00'",
                "SELECT ts, id FROM t WHERE id % 3 = 1 ORDER BY ts, id LIMIT 20",
            ] {
                let mut answers = Vec::new();
                for scan in [Scan::Stock, ours] {
                    let ctx = session(scan, config(&settings), runtime_of(&store));
                    Table::new("t", "t.parquet")
                        .register(&ctx, scan.registration())
                        .await
                        .map_err(|error| error.to_string())?;
                    answers.push(answer(&ctx, sql).await);
                }
                if let Some(difference) = difference(&answers[0], &answers[1], Same::Batches) {
                    return Err(format!("{sql}\n{difference}"));
                }
                assert!(answers[0].is_ok(), "{answers:?}");
            }
            Ok(())
        })
    });
}

fn runtime_of(store: &Arc<InMemory>) -> Arc<datafusion::execution::runtime_env::RuntimeEnv> {
    runtime(upcast(store))
}
