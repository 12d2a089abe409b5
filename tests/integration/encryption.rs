//! Modular encryption: decrypted by our scan as by stock's, prefetched, and never left in a cache
//! where a session without the keys could find it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::common::config::{
    ConfigFileDecryptionProperties, ConfigOptions, EncryptionFactoryOptions,
};
use datafusion::config::TableParquetOptions;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{
    ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl, PartitionedFile,
};
use datafusion::datasource::physical_plan::{FileScanConfigBuilder, FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::execution::parquet_encryption::EncryptionFactory;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_parquet_prefetch::{
    PrefetchOptions, PrefetchRule, PrefetchSettings, PrefetchingParquetFormat,
    PrefetchingParquetSource, metrics,
};
use object_store::memory::InMemory;
use object_store::path::Path;
use parquet::arrow::ArrowWriter;
use parquet::encryption::decrypt::FileDecryptionProperties;
use parquet::encryption::encrypt::FileEncryptionProperties;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use rstest::rstest;
use tempfile::TempDir;

use crate::support::compare::{Answer, Same, answer, assert_same, execute, plan};
use crate::support::files::{cut, numbers, put, store_of, upcast};
use crate::support::session::{BUCKET, Scan, one_partition, runtime, session};
use crate::support::store::{Latency, RecordingStore};

const ROWS: usize = 4000;
const ROW_GROUP_ROWS: usize = 500;
const FILE: &str = "t/t.parquet";
const FOOTER_KEY: &[u8; 16] = b"0123456789012345";
const KEY_A: &[u8; 16] = b"1234567890123450";
const KEY_S: &[u8; 16] = b"1234567890123451";
const FORMAT: Scan = Scan::Prefetch {
    prefetch_size: Some(1 << 20),
};
const RULE: Scan = Scan::PrefetchByRule {
    prefetch_size: Some(1 << 20),
};

/// Which columns have keys of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// The footer's key for all of them.
    Uniform,
    /// `a` and `s`; `b` is not encrypted.
    PerColumn,
}

/// A file of eight row groups with pages of 50 rows, page index and bloom filters.
fn encrypted(keys: Keys, plaintext_footer: bool) -> Bytes {
    let mut encryption = FileEncryptionProperties::builder(FOOTER_KEY.to_vec())
        .with_plaintext_footer(plaintext_footer);
    if keys == Keys::PerColumn {
        encryption = encryption
            .with_column_key("a", KEY_A.to_vec())
            .with_column_key("s", KEY_S.to_vec());
    }
    written(Some(encryption.build().unwrap()))
}

fn written(encryption: Option<Arc<FileEncryptionProperties>>) -> Bytes {
    let mut properties = WriterProperties::builder()
        .set_max_row_group_row_count(None)
        .set_data_page_row_count_limit(50)
        .set_write_batch_size(50)
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_bloom_filter_enabled(true)
        .set_bloom_filter_max_ndv(500);
    if let Some(encryption) = encryption {
        properties = properties.with_file_encryption_properties(encryption);
    }
    let batch = numbers(ROWS, 20);
    let mut file = Vec::new();
    let mut writer =
        ArrowWriter::try_new(&mut file, batch.schema(), Some(properties.build())).unwrap();
    for row_group in cut(&batch, ROW_GROUP_ROWS) {
        writer.write(&row_group).unwrap();
        writer.flush().unwrap();
    }
    writer.close().unwrap();
    file.into()
}

fn decryption(footer_key: &[u8], column_keys: &[(&str, &[u8])]) -> Arc<FileDecryptionProperties> {
    let mut properties = FileDecryptionProperties::builder(footer_key.to_vec());
    for (column, key) in column_keys {
        properties = properties.with_column_key(column, key.to_vec());
    }
    properties.build().unwrap()
}

fn keys_of(keys: Keys) -> Arc<FileDecryptionProperties> {
    match keys {
        Keys::Uniform => decryption(FOOTER_KEY, &[]),
        Keys::PerColumn => decryption(FOOTER_KEY, &[("a", KEY_A), ("s", KEY_S)]),
    }
}

/// Table options with decryption properties.
fn with_properties(properties: &Arc<FileDecryptionProperties>) -> TableParquetOptions {
    let mut options = TableParquetOptions::default();
    options.crypto.file_decryption =
        Some(ConfigFileDecryptionProperties::try_from(properties).unwrap());
    options
}

/// Table options that name a factory.
fn with_factory() -> TableParquetOptions {
    let mut options = TableParquetOptions::default();
    options.crypto.factory_id = Some("vault".to_owned());
    let factory_options = &mut options.crypto.factory_options.options;
    factory_options.insert("tenant".to_owned(), "blue".to_owned());
    options
}

/// Has keys for the tenant `blue`, says of files named so that they are not encrypted, and counts
/// the questions.
#[derive(Debug)]
struct Vault {
    /// To be told from others by what it prints.
    #[expect(dead_code, reason = "printed")]
    name: &'static str,
    properties: Arc<FileDecryptionProperties>,
    asked: Arc<AtomicUsize>,
}

impl Vault {
    fn new(name: &'static str, properties: Arc<FileDecryptionProperties>) -> Self {
        Self {
            name,
            properties,
            asked: Arc::default(),
        }
    }
}

#[async_trait]
impl EncryptionFactory for Vault {
    async fn get_file_encryption_properties(
        &self,
        _config: &EncryptionFactoryOptions,
        _schema: &SchemaRef,
        _file_path: &Path,
    ) -> Result<Option<Arc<FileEncryptionProperties>>> {
        Ok(None)
    }

    async fn get_file_decryption_properties(
        &self,
        config: &EncryptionFactoryOptions,
        file_path: &Path,
    ) -> Result<Option<Arc<FileDecryptionProperties>>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if config
            .options
            .get("tenant")
            .is_none_or(|tenant| tenant != "blue")
        {
            return Err(DataFusionError::External(
                format!("no keys for {file_path}").into(),
            ));
        }
        let is_encrypted = !file_path.as_ref().contains("plaintext");
        Ok(is_encrypted.then(|| Arc::clone(&self.properties)))
    }
}

/// A session for `scan` with the table `t`, which nothing is read for yet.
fn session_with_table(
    scan: Scan,
    config: SessionConfig,
    runtime: Arc<RuntimeEnv>,
    options: &TableParquetOptions,
) -> SessionContext {
    let ctx = session(scan, config, runtime);
    let mut options = options.clone();
    options.global = ctx.copied_table_options().parquet.global;
    let stock = ParquetFormat::default().with_options(options);
    let format: Arc<dyn FileFormat> = match scan {
        Scan::Prefetch { .. } | Scan::ReadAhead(_) => {
            Arc::new(PrefetchingParquetFormat::new(stock))
        }
        Scan::Stock | Scan::PrefetchByRule { .. } | Scan::ReadAheadByRule(_) => Arc::new(stock),
    };
    let url = ListingTableUrl::parse(format!("{BUCKET}/t/")).unwrap();
    let table = ListingTableConfig::new(url)
        .with_listing_options(ListingOptions::new(format).with_file_extension(".parquet"))
        .with_schema(numbers(1, 20).schema());
    let statistics = ctx.runtime_env().cache_manager.get_file_statistic_cache();
    let table = ListingTable::try_new(table).unwrap().with_cache(statistics);
    ctx.register_table("t", Arc::new(table)).unwrap();
    ctx
}

fn metric(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let here = plan
        .metrics()
        .and_then(|metrics| metrics.sum_by_name(name))
        .map_or(0, |value| value.as_usize());
    let below = plan.children().into_iter().map(|child| metric(child, name));
    here + below.sum::<usize>()
}

fn is_ours(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let here = plan.downcast_ref::<DataSourceExec>().is_some_and(|exec| {
        exec.downcast_to_file_source::<PrefetchingParquetSource>()
            .is_some()
    });
    here || plan.children().into_iter().any(is_ours)
}

async fn store_with(files: &[(&str, Bytes)]) -> Arc<InMemory> {
    store_of(files.iter().map(|(path, file)| (*path, file.clone()))).await
}

const QUERIES: [&str; 7] = [
    "SELECT * FROM t",
    "SELECT b FROM t",
    // A filter on an encrypted column, by statistics and page index.
    "SELECT a, s FROM t WHERE a BETWEEN 1230 AND 1790",
    // In disorder: all row groups, few rows.
    "SELECT s FROM t WHERE b % 97 = 3 AND a > 700",
    // By the bloom filter.
    "SELECT a FROM t WHERE s = '00000000000000002222'",
    "SELECT a FROM t WHERE b IN (1, 999) AND a <> 2",
    "SELECT s, a FROM t ORDER BY a DESC LIMIT 7",
];

#[rstest]
#[tokio::test]
async fn answers_are_stock_s(
    #[values(Keys::Uniform, Keys::PerColumn)] keys: Keys,
    #[values(false, true)] plaintext_footer: bool,
    #[values(false, true)] push_down: bool,
    #[values(1, 3)] partitions: usize,
    #[values(false, true)] by_factory: bool,
) {
    let store = store_with(&[(FILE, encrypted(keys, plaintext_footer))]).await;
    let runtime = runtime(upcast(&store));
    let vault = Arc::new(Vault::new("the vault", keys_of(keys)));
    let options = if by_factory {
        runtime.register_parquet_encryption_factory("vault", Arc::clone(&vault) as _);
        with_factory()
    } else {
        with_properties(&keys_of(keys))
    };
    let mut config = SessionConfig::new().with_target_partitions(partitions);
    config = config.with_batch_size(64);
    let settings = config.options_mut();
    settings.execution.parquet.pushdown_filters = push_down;
    settings.execution.parquet.reorder_filters = push_down;
    settings.optimizer.repartition_file_min_size = 1;
    let stock = session_with_table(Scan::Stock, config.clone(), Arc::clone(&runtime), &options);
    for scan in [FORMAT, RULE] {
        let ours = session_with_table(scan, config.clone(), Arc::clone(&runtime), &options);
        for sql in QUERIES {
            let expected = answer(&stock, sql).await;
            assert!(expected.as_ref().unwrap().rows() > 0, "{sql}");
            let before = vault.asked.load(Ordering::SeqCst);
            let planned = plan(&ours, sql).await.unwrap();
            assert!(is_ours(&planned), "{scan:?}: {sql}");
            let got = execute(&ours, Arc::clone(&planned)).await;
            let same = if partitions == 1 || sql.contains("ORDER") {
                Same::Order
            } else {
                Same::Rows
            };
            assert_same(&expected, &got, same, &format!("{scan:?}: {sql}"));
            if by_factory {
                assert!(vault.asked.load(Ordering::SeqCst) > before);
            }
            if partitions == 1 && sql == "SELECT * FROM t" {
                let prefetched = metric(&planned, metrics::PREFETCHED_ROW_GROUP_COUNT);
                assert_eq!(prefetched, ROWS / ROW_GROUP_ROWS - 1);
            }
        }
    }
}

/// Pruning sees what it sees in stock: statistics, page index and bloom filters are decrypted too.
#[rstest]
#[tokio::test]
async fn pruning_is_stock_s(
    #[values(Keys::Uniform, Keys::PerColumn)] keys: Keys,
    #[values(false, true)] plaintext_footer: bool,
) {
    let store = store_with(&[(FILE, encrypted(keys, plaintext_footer))]).await;
    let options = with_properties(&keys_of(keys));
    for sql in QUERIES {
        let mut counts = Vec::new();
        for scan in [Scan::Stock, FORMAT, RULE] {
            let mut config = one_partition();
            config.options_mut().execution.parquet.pushdown_filters = true;
            let ctx = session_with_table(scan, config, runtime(upcast(&store)), &options);
            let planned = plan(&ctx, sql).await.unwrap();
            execute(&ctx, Arc::clone(&planned)).await.unwrap();
            let scanned = planned_scan(&planned);
            let metrics = scanned.metrics().unwrap();
            let count = |name: &str| {
                metrics
                    .sum(|metric| metric.value().name() == name)
                    .map(|value| value.to_string())
            };
            counts.push([
                count("row_groups_pruned_statistics"),
                count("row_groups_pruned_bloom_filter"),
                count("page_index_rows_pruned"),
                count("predicate_evaluation_errors"),
                count("pushdown_rows_matched"),
            ]);
        }
        assert_eq!(counts[0], counts[1], "{sql}");
        assert_eq!(counts[0], counts[2], "{sql}");
    }
}

fn planned_scan(plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    if plan.is::<DataSourceExec>() {
        return Arc::clone(plan);
    }
    planned_scan(plan.children()[0])
}

#[tokio::test(start_paused = true)]
async fn prefetching_saves_rounds() {
    let store = store_with(&[(FILE, encrypted(Keys::PerColumn, false))]).await;
    let mut rounds = Vec::new();
    for scan in [Scan::Stock, FORMAT, RULE] {
        let latency = Latency::Fixed(std::time::Duration::from_millis(100));
        let store = RecordingStore::new(upcast(&store), latency);
        let log = store.log();
        let options = with_properties(&keys_of(Keys::PerColumn));
        let mut config = one_partition();
        // The usual one is larger than the file.
        config.options_mut().execution.parquet.metadata_size_hint = None;
        let ctx = session_with_table(scan, config, runtime(Arc::new(store)), &options);
        let planned = plan(&ctx, "SELECT a, s FROM t").await.unwrap();
        log.clear();
        assert_eq!(execute(&ctx, planned).await.unwrap().rows(), ROWS);
        assert_eq!(log.asked_twice(), Vec::new());
        rounds.push(log.rounds());
    }
    // The footer is never cached: two rounds, and the data.
    assert_eq!(rounds, [2 + ROWS / ROW_GROUP_ROWS, 3, 3]);
}

/// What a session with other keys, or none, is told.
#[rstest]
#[tokio::test]
async fn errors_are_stock_s(
    #[values(false, true)] plaintext_footer: bool,
    #[values(
        "SELECT * FROM t",
        "SELECT b FROM t",
        "SELECT a FROM t WHERE b > 3",
        "SELECT b FROM t WHERE a > 3"
    )]
    sql: &str,
    #[values(FORMAT, RULE)] scan: Scan,
) {
    let store = store_with(&[(FILE, encrypted(Keys::PerColumn, plaintext_footer))]).await;
    let mut bad_hex = with_properties(&keys_of(Keys::PerColumn));
    if let Some(properties) = &mut bad_hex.crypto.file_decryption {
        properties.footer_key_as_hex = "not hexadecimal".to_owned();
    }
    let other_tenant = {
        let mut options = with_factory();
        options.crypto.factory_options.options.clear();
        options
    };
    let wrong: &[u8] = b"9999999999999999";
    let cases = [
        ("no keys", TableParquetOptions::default()),
        ("wrong footer key", {
            with_properties(&decryption(wrong, &[("a", KEY_A), ("s", KEY_S)]))
        }),
        ("wrong column key", {
            with_properties(&decryption(FOOTER_KEY, &[("a", wrong), ("s", KEY_S)]))
        }),
        ("no column key", {
            with_properties(&decryption(FOOTER_KEY, &[("s", KEY_S)]))
        }),
        ("not hexadecimal", bad_hex),
        ("the factory refuses", other_tenant),
    ];
    let mut failed = 0;
    for (what, options) in cases {
        let mut answers = Vec::new();
        for scan in [Scan::Stock, scan] {
            let mut config = one_partition();
            // Else planning fails already, and the scan is not seen.
            config = config.with_collect_statistics(false);
            let runtime = runtime(upcast(&store));
            let vault = Vault::new("the vault", keys_of(Keys::PerColumn));
            runtime.register_parquet_encryption_factory("vault", Arc::new(vault));
            let ctx = session_with_table(scan, config, runtime, &options);
            let planned = plan(&ctx, sql).await.unwrap();
            assert_eq!(is_ours(&planned), scan != Scan::Stock, "{what}");
            answers.push(execute(&ctx, planned).await);
        }
        assert_same(&answers[0], &answers[1], Same::Order, what);
        if let [Err(stock), Err(ours)] = &answers[..] {
            // Without its key a column's place is unknown, and stock asks the store for no bytes. Those
            // that answer that with an error do so before the decoder can tell what is wrong.
            if stock.ends_with("Invalid range: Range started at 0 and ended at 0") {
                let missing = "No column decryption key set for encrypted column 'a'";
                assert!(ours.ends_with(missing), "{what}: {ours}");
            } else {
                assert_eq!(stock, ours, "{what}");
            }
            failed += 1;
        }
    }
    assert!(failed >= 3, "{failed}");
}

/// A factory that nobody registered fails when the scan is planned.
#[rstest]
#[tokio::test]
async fn an_unknown_factory_is_stock_s_error(#[values(FORMAT, RULE)] scan: Scan) {
    let store = store_with(&[(FILE, encrypted(Keys::Uniform, false))]).await;
    let mut errors = Vec::new();
    for scan in [Scan::Stock, scan] {
        let runtime = runtime(upcast(&store));
        let ctx = session_with_table(scan, one_partition(), runtime, &with_factory());
        errors.push(answer(&ctx, "SELECT * FROM t").await.unwrap_err());
    }
    assert_eq!(errors[0], errors[1]);
}

async fn outcome(
    scan: Scan,
    runtime: &Arc<RuntimeEnv>,
    options: &TableParquetOptions,
    sql: &str,
) -> std::result::Result<Answer, String> {
    // Statistics that planning collects are kept by stock under the table's name.
    let config = one_partition().with_collect_statistics(false);
    let ctx = session_with_table(scan, config, Arc::clone(runtime), options);
    answer(&ctx, sql).await
}

/// The caches of a runtime environment are shared by its sessions, and not all of them have keys.
#[rstest]
#[tokio::test]
async fn nothing_decrypted_is_cached(
    #[values(false, true)] plaintext_footer: bool,
    #[values(false, true)] by_factory: bool,
    #[values(FORMAT, RULE)] scan: Scan,
) {
    // Reads footer, page index, bloom filters and data.
    let sql = "SELECT a, s FROM t WHERE a > 1234 AND s <> 'x' AND b IN (3, 4)";
    let store = store_with(&[(FILE, encrypted(Keys::PerColumn, plaintext_footer))]).await;
    let vault: Arc<dyn EncryptionFactory> =
        Arc::new(Vault::new("the vault", keys_of(Keys::PerColumn)));
    let shared = runtime(upcast(&store));
    shared.register_parquet_encryption_factory("vault", vault);
    let with_keys = if by_factory {
        with_factory()
    } else {
        with_properties(&keys_of(Keys::PerColumn))
    };
    let without = TableParquetOptions::default();
    let wrong: &[u8] = b"9999999999999999";
    let others = with_properties(&decryption(wrong, &[("a", wrong), ("s", wrong)]));

    outcome(scan, &shared, &with_keys, sql).await.unwrap();
    let cache = shared.cache_manager.get_file_metadata_cache();
    assert!(cache.get(&Path::from(FILE)).is_none());
    for options in [&without, &others] {
        let fresh = runtime(upcast(&store));
        let expected = outcome(Scan::Stock, &fresh, options, sql)
            .await
            .unwrap_err();
        for reader in [Scan::Stock, FORMAT, RULE] {
            let got = outcome(reader, &shared, options, sql).await.unwrap_err();
            assert_eq!(got, expected, "{reader:?}");
        }
    }

    // Nor does what a session without keys leaves there spoil it for one that has them: of a footer
    // in plaintext, it may cache what it could read.
    let after = outcome(scan, &shared, &with_keys, sql).await;
    let expected = outcome(
        Scan::Stock,
        &runtime_with_vault(&store),
        &with_factory(),
        sql,
    )
    .await;
    assert_same(&expected, &after, Same::Order, "after the others");
}

fn runtime_with_vault(store: &Arc<InMemory>) -> Arc<RuntimeEnv> {
    let runtime = runtime(upcast(store));
    let vault = Vault::new("the vault", keys_of(Keys::PerColumn));
    runtime.register_parquet_encryption_factory("vault", Arc::new(vault));
    runtime
}

/// A factory may know that a file is not encrypted; its metadata is cached as any other.
#[rstest]
#[tokio::test]
async fn a_factory_may_have_no_keys(#[values(FORMAT, RULE)] scan: Scan) {
    let store = store_with(&[(FILE, encrypted(Keys::PerColumn, false))]).await;
    put(&store, "t/plaintext.parquet", written(None)).await;
    let shared = runtime_with_vault(&store);
    let sql = "SELECT a, s FROM t WHERE a % 3 = 0";
    let got = outcome(scan, &shared, &with_factory(), sql).await;
    let expected = outcome(
        Scan::Stock,
        &runtime_with_vault(&store),
        &with_factory(),
        sql,
    )
    .await;
    assert_same(&expected, &got, Same::Rows, "a mixture");
    let cache = shared.cache_manager.get_file_metadata_cache();
    assert!(cache.get(&Path::from(FILE)).is_none());
    assert!(cache.get(&Path::from("t/plaintext.parquet")).is_some());
}

fn settings() -> PrefetchSettings {
    PrefetchOptions::new()
        .with_prefetch_size_bytes(1 << 20)
        .settings()
}

/// A scan that was put together by hand, for the rule to look at.
fn by_hand(source: Arc<dyn FileSource>, file: &Bytes) -> Arc<dyn ExecutionPlan> {
    let url = ObjectStoreUrl::parse(BUCKET).unwrap();
    let config = FileScanConfigBuilder::new(url, source)
        .with_file(PartitionedFile::new(FILE, file.len() as u64))
        .build();
    DataSourceExec::from_data_source(config)
}

/// A stock source does not give its factory away. Where it is not the session's, the scan stays
/// stock's from the beginning.
#[rstest]
#[case::the_session_s("the vault", true, true)]
#[case::of_another_print("another vault", true, false)]
#[case::without_an_id("the vault", false, false)]
#[tokio::test]
async fn the_factory_of_a_source_made_by_hand(
    #[case] name: &'static str,
    #[case] has_id: bool,
    #[case] is_converted: bool,
) {
    let file = encrypted(Keys::PerColumn, false);
    let store = store_with(&[(FILE, file.clone())]).await;
    let runtime = runtime_with_vault(&store);
    let mut options = with_factory();
    if !has_id {
        options.crypto.factory_id = None;
    }
    let of_the_session = runtime.parquet_encryption_factory("vault").unwrap();
    let factory: Arc<dyn EncryptionFactory> = if name == "the vault" {
        of_the_session
    } else {
        Arc::new(Vault::new(name, keys_of(Keys::PerColumn)))
    };
    let bare = ParquetSource::new(numbers(1, 20).schema()).with_table_parquet_options(options);
    let source = bare.clone().with_encryption_factory(Arc::clone(&factory));
    let stock = by_hand(Arc::new(source.clone()), &file);
    let ctx = session(FORMAT, one_partition(), Arc::clone(&runtime));
    let expected = execute(&ctx, Arc::clone(&stock)).await;
    assert_eq!(expected.as_ref().unwrap().rows(), ROWS);

    let mut config = ConfigOptions::new();
    let prefetch = PrefetchOptions::new().with_prefetch_size_bytes(1 << 20);
    config.extensions.insert(prefetch);
    let ruled = PrefetchRule::new(runtime)
        .optimize(Arc::clone(&stock), &config)
        .unwrap();
    assert_eq!(is_ours(&ruled), is_converted);
    // A node's files are taken once, so stock's is planned again.
    let ruled = if is_converted {
        ruled
    } else {
        by_hand(Arc::new(source.clone()), &file)
    };
    assert_same(
        &expected,
        &execute(&ctx, ruled).await,
        Same::Order,
        "by the rule",
    );

    let settings = settings();
    let error = PrefetchingParquetSource::try_new(source, settings).unwrap_err();
    assert!(error.to_string().contains("encryption factory"), "{error}");
    let ours = PrefetchingParquetSource::try_new(bare, settings)
        .unwrap()
        .with_encryption_factory(factory);
    let ours = by_hand(Arc::new(ours), &file);
    let got = execute(&ctx, Arc::clone(&ours)).await;
    assert_same(&expected, &got, Same::Order, "told the factory");
    assert!(metric(&ours, metrics::PREFETCHED_ROW_GROUP_COUNT) > 0);
}

/// Decryption properties go before a factory, which is then not asked.
#[tokio::test]
async fn properties_go_before_a_factory() {
    let file = encrypted(Keys::PerColumn, false);
    let store = store_with(&[(FILE, file.clone())]).await;
    let ctx = session(FORMAT, one_partition(), runtime(upcast(&store)));
    let factory = Arc::new(Vault::new("useless", decryption(&[0; 16], &[])));
    let source = ParquetSource::new(numbers(1, 20).schema())
        .with_table_parquet_options(with_properties(&keys_of(Keys::PerColumn)))
        .with_encryption_factory(Arc::clone(&factory) as _);
    let stock = by_hand(Arc::new(source.clone()), &file);
    let settings = settings();
    let ours = PrefetchingParquetSource::try_new(source, settings).unwrap();
    let ours = by_hand(Arc::new(ours), &file);
    let expected = execute(&ctx, stock).await;
    assert_same(&expected, &execute(&ctx, ours).await, Same::Order, "both");
    assert_eq!(expected.unwrap().rows(), ROWS);
    assert_eq!(factory.asked.load(Ordering::SeqCst), 0);
}

const SQL_KEYS: &str = "'format.crypto.file_encryption.encrypt_footer' 'FOOTER', \
    'format.crypto.file_encryption.footer_key_as_hex' '30313233343536373839303132333435', \
    'format.crypto.file_encryption.column_key_as_hex::a' '31323334353637383930313233343530', \
    'format.crypto.file_encryption.column_key_as_hex::s' '31323334353637383930313233343531', \
    'format.crypto.file_decryption.footer_key_as_hex' '30313233343536373839303132333435', \
    'format.crypto.file_decryption.column_key_as_hex::a' '31323334353637383930313233343530', \
    'format.crypto.file_decryption.column_key_as_hex::s' '31323334353637383930313233343531'";

/// Written and read by statements alone.
#[rstest]
#[tokio::test]
async fn keys_in_table_options(#[values(false, true)] encrypt_footer: bool) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().display();
    let keys = SQL_KEYS.replace("FOOTER", &encrypt_footer.to_string());
    let mut answers = Vec::new();
    let off = Scan::Prefetch {
        prefetch_size: None,
    };
    for scan in [Scan::Stock, off, FORMAT] {
        let ctx = session(scan, one_partition(), Arc::new(RuntimeEnv::default()));
        let ddl = format!(
            "CREATE EXTERNAL TABLE t (a BIGINT, s VARCHAR) STORED AS PARQUET LOCATION '{path}/t/' OPTIONS ({keys})"
        );
        ctx.sql(&ddl).await.unwrap();
        if scan == Scan::Stock {
            let insert =
                "INSERT INTO t SELECT value AS a, 'text ' || value AS s FROM range(0, 1000)";
            assert_eq!(answer(&ctx, insert).await.unwrap().rows(), 1);
        }
        answers.push(answer(&ctx, "SELECT a, s FROM t WHERE a % 3 = 0 ORDER BY a").await);
    }
    assert_eq!(answers[0].as_ref().unwrap().rows(), 334);
    for ours in &answers[1..] {
        assert_same(&answers[0], ours, Same::Order, "encrypted");
    }
}

/// Stock keeps the statistics that planning collects for all sessions of the environment, those of
/// encrypted columns too. Our format infers none, so that there is nothing to be found; by the rule,
/// planning is that of stock's own format.
#[rstest]
#[case("SELECT min(a), count(*) FROM t", true)]
#[case("SELECT a FROM t", false)]
#[tokio::test]
async fn a_session_without_keys_finds_no_statistics(
    #[case] sql: &str,
    #[case] is_answered_by_stock_s_statistics: bool,
    #[values(FORMAT, RULE)] scan: Scan,
) {
    let store = store_with(&[(FILE, encrypted(Keys::PerColumn, false))]).await;
    let without = TableParquetOptions::default();
    let with_keys = with_properties(&keys_of(Keys::PerColumn));
    let mut answers = Vec::new();
    for scan in [Scan::Stock, scan] {
        let shared = runtime(upcast(&store));
        for options in [&with_keys, &without] {
            let ctx = session_with_table(scan, one_partition(), Arc::clone(&shared), options);
            answers.push(answer(&ctx, sql).await);
        }
    }
    let [stock_with, stock_without, ours_with, ours_without] = &answers[..] else {
        unreachable!("two sessions, twice");
    };
    // An aggregate that statistics answer is planned as not nullable, so only the rows are compared.
    assert_eq!(printed(stock_with), printed(ours_with));
    assert_eq!(stock_without.is_ok(), is_answered_by_stock_s_statistics);
    if scan == RULE {
        assert_same(stock_without, ours_without, Same::Order, sql);
        return;
    }
    let error = ours_without.as_ref().unwrap_err();
    assert!(
        error.contains("decryption properties were not provided"),
        "{error}"
    );
}

fn printed(answer: &std::result::Result<Answer, String>) -> String {
    pretty_format_batches(&answer.as_ref().unwrap().batches)
        .unwrap()
        .to_string()
}
