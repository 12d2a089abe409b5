//! Scans that somebody else planned: what a stock source carries, the rule carries over.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{Result, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::datasource::file_format::FileFormat;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::{
    DefaultParquetFileReaderFactory, ParquetAccessPlan, ParquetFileReaderFactory,
    ParquetRowSelection, RowGroupAccess,
};
use datafusion::datasource::physical_plan::{
    FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource,
};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::physical_expr_adapter::{
    DefaultPhysicalExprAdapterFactory, PhysicalExprAdapter, PhysicalExprAdapterFactory,
};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{
    ExecutionPlan, Partitioning, StatisticsArgs, StatisticsContext, displayable,
};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_parquet_prefetch::{
    PrefetchOptions, PrefetchRule, PrefetchingParquetFormat, PrefetchingParquetSource,
};
use object_store::ObjectStore;
use parking_lot::Mutex;
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use parquet::arrow::async_reader::AsyncFileReader;
use rstest::rstest;

use crate::support::compare::{Answer, Same, assert_same, execute, plan};
use crate::support::files::{Layout, cut, numbers, store_of, upcast, write};
use crate::support::session::{BUCKET, Registration, Scan, Table, one_partition, runtime, session};

const FILE: &str = "t.parquet";

/// Ten row groups of 100 rows, in pages of 10.
fn file() -> Bytes {
    write(&cut(&numbers(1000, 40), 100), &Layout::paged(10))
}

fn file_schema() -> SchemaRef {
    numbers(1, 1).schema()
}

async fn store() -> Arc<dyn ObjectStore> {
    upcast(&store_of([(FILE, file())]).await)
}

fn partitioned_file() -> PartitionedFile {
    PartitionedFile::new(FILE, file().len() as u64)
}

fn scan_of(source: ParquetSource, file: PartitionedFile) -> FileScanConfigBuilder {
    FileScanConfigBuilder::new(ObjectStoreUrl::parse(BUCKET).unwrap(), Arc::new(source))
        .with_file_groups(vec![FileGroup::new(vec![file])])
}

fn options(prefetch_size: u64) -> ConfigOptions {
    let options = PrefetchOptions::new().with_prefetch_size_bytes(prefetch_size);
    SessionConfig::new()
        .with_option_extension(options)
        .options()
        .as_ref()
        .clone()
}

fn converted(ctx: &SessionContext, plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    PrefetchRule::new(ctx.runtime_env())
        .optimize(Arc::clone(plan), &options(1 << 20))
        .unwrap()
}

fn is_ours(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<DataSourceExec>().is_some_and(|exec| {
        exec.downcast_to_file_source::<PrefetchingParquetSource>()
            .is_some()
    })
}

/// Runs a hand-made scan as it is, and once the rule has been over it.
async fn both(scan: FileScanConfig) -> (Result<Answer, String>, Result<Answer, String>) {
    let ctx = SessionContext::new_with_config_rt(one_partition(), runtime(store().await));
    let stock: Arc<dyn ExecutionPlan> = DataSourceExec::from_data_source(scan);
    let ours = converted(&ctx, &stock);
    assert!(is_ours(&ours), "the rule left the scan alone");
    (execute(&ctx, stock).await, execute(&ctx, ours).await)
}

fn rows(answer: &Result<Answer, String>) -> usize {
    answer.as_ref().unwrap().rows()
}

fn every_other_row(rows: usize) -> RowSelection {
    (0..rows)
        .map(|row| RowSelector {
            row_count: 1,
            skip: row % 2 == 0,
        })
        .collect()
}

#[tokio::test]
async fn an_access_plan_is_followed() {
    let mut access = ParquetAccessPlan::new_none(10);
    access.scan(1);
    access.set(4, RowGroupAccess::Selection(every_other_row(100)));
    access.scan(9);
    let file = partitioned_file().with_extension(access);
    let (stock, ours) = both(scan_of(ParquetSource::new(file_schema()), file).build()).await;
    assert_eq!(rows(&ours), 250);
    assert_same(&stock, &ours, Same::Batches, "an access plan");
}

#[tokio::test]
async fn a_row_selection_is_followed() {
    let file = partitioned_file().with_extension(ParquetRowSelection::new(every_other_row(1000)));
    let (stock, ours) = both(scan_of(ParquetSource::new(file_schema()), file).build()).await;
    assert_eq!(rows(&ours), 500);
    assert_same(&stock, &ours, Same::Batches, "a row selection");
}

#[rstest]
#[case::too_few_row_groups(partitioned_file().with_extension(ParquetAccessPlan::new_all(9)))]
#[case::too_few_rows(partitioned_file().with_extension(ParquetRowSelection::new(every_other_row(999))))]
#[case::both(
    partitioned_file()
        .with_extension(ParquetAccessPlan::new_all(10))
        .with_extension(ParquetRowSelection::new(every_other_row(1000)))
)]
#[case::short_selection({
    let mut access = ParquetAccessPlan::new_all(10);
    access.set(3, RowGroupAccess::Selection(every_other_row(99)));
    partitioned_file().with_extension(access)
})]
#[tokio::test]
async fn access_that_does_not_fit_the_file_is_stock_s_error(#[case] file: PartitionedFile) {
    let (stock, ours) = both(scan_of(ParquetSource::new(file_schema()), file).build()).await;
    assert_eq!(ours.unwrap_err(), stock.unwrap_err());
}

#[tokio::test]
async fn a_schema_given_with_the_file_is_the_one_it_is_read_with() {
    // As a catalog would: the reader is to make 64-bit numbers of what the file says are 64-bit numbers, but nullable.
    let given: Vec<Field> = file_schema()
        .fields()
        .iter()
        .map(|field| {
            field
                .as_ref()
                .clone()
                .with_metadata([("from".to_owned(), "catalog".to_owned())].into())
        })
        .collect();
    let mut file = partitioned_file();
    file.arrow_schema = Some(Arc::new(Schema::new(given)));
    let (stock, ours) = both(scan_of(ParquetSource::new(file_schema()), file).build()).await;
    assert_eq!(rows(&ours), 1000);
    assert_same(&stock, &ours, Same::Batches, "a given schema");
}

#[tokio::test]
async fn partition_values_and_byte_ranges_are_kept() {
    let table = TableSchema::builder(file_schema())
        .with_table_partition_cols(vec![Arc::new(Field::new("region", DataType::Utf8, false))])
        .build();
    let len = i64::try_from(file().len()).unwrap();
    let mut total = 0;
    for (start, end) in [(0, len / 3), (len / 3, len)] {
        let mut file = partitioned_file().with_range(start, end);
        file.partition_values = vec![ScalarValue::from("north")];
        let (stock, ours) = both(scan_of(ParquetSource::new(table.clone()), file).build()).await;
        assert_same(&stock, &ours, Same::Batches, "a byte range");
        total += rows(&ours);
    }
    assert_eq!(total, 1000);
}

/// Counts the readers it makes and remembers what it was told.
#[derive(Debug)]
struct OwnFactory {
    inner: DefaultParquetFileReaderFactory,
    readers: AtomicUsize,
    hints: Mutex<BTreeSet<Option<usize>>>,
}

impl ParquetFileReaderFactory for OwnFactory {
    fn create_reader(
        &self,
        partition_index: usize,
        partitioned_file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        self.readers.fetch_add(1, Ordering::SeqCst);
        self.hints.lock().insert(metadata_size_hint);
        self.inner.create_reader(
            partition_index,
            partitioned_file,
            metadata_size_hint,
            metrics,
        )
    }
}

#[rstest]
#[case::none(None)]
#[case::of_the_scan(Some(777))]
#[tokio::test]
async fn a_reader_factory_and_its_size_hint_stay(#[case] hint: Option<usize>) {
    let own = Arc::new(OwnFactory {
        inner: DefaultParquetFileReaderFactory::new(store().await),
        readers: AtomicUsize::new(0),
        hints: Mutex::default(),
    });
    let mut source =
        ParquetSource::new(file_schema()).with_parquet_file_reader_factory(Arc::clone(&own) as _);
    if let Some(hint) = hint {
        source = source.with_metadata_size_hint(hint);
    }
    let ctx = SessionContext::new_with_config_rt(one_partition(), runtime(store().await));
    let stock: Arc<dyn ExecutionPlan> =
        DataSourceExec::from_data_source(scan_of(source, partitioned_file()).build());
    let ours = converted(&ctx, &stock);
    assert!(is_ours(&ours));
    let answer = execute(&ctx, ours).await.unwrap();
    assert_eq!(answer.rows(), 1000);
    assert!(
        own.readers.load(Ordering::SeqCst) >= 1,
        "another factory was used"
    );
    assert_eq!(*own.hints.lock(), BTreeSet::from([hint]));
}

/// Counts the adapters it makes.
#[derive(Debug, Default)]
struct OwnAdapterFactory {
    adapters: AtomicUsize,
}

impl PhysicalExprAdapterFactory for OwnAdapterFactory {
    fn create(
        &self,
        logical_file_schema: SchemaRef,
        physical_file_schema: SchemaRef,
    ) -> Result<Arc<dyn PhysicalExprAdapter>> {
        self.adapters.fetch_add(1, Ordering::SeqCst);
        DefaultPhysicalExprAdapterFactory.create(logical_file_schema, physical_file_schema)
    }
}

#[tokio::test]
async fn an_expression_adapter_stays() {
    let own = Arc::new(OwnAdapterFactory::default());
    let missing = Field::new("missing", DataType::Int64, true);
    let fields = file_schema()
        .fields()
        .iter()
        .cloned()
        .chain([Arc::new(missing)])
        .collect::<Vec<_>>();
    let scan = scan_of(
        ParquetSource::new(Arc::new(Schema::new(fields))),
        partitioned_file(),
    )
    .with_expr_adapter(Some(Arc::clone(&own) as _))
    .build();
    let (stock, ours) = both(scan).await;
    assert_same(&stock, &ours, Same::Batches, "an expression adapter");
    assert_eq!(
        own.adapters.load(Ordering::SeqCst),
        2,
        "once for stock, once for ours"
    );
}

#[tokio::test]
async fn what_is_known_of_a_scan_stays_known() {
    let ctx = session(Scan::Stock, one_partition(), runtime(store().await));
    let table = Table::new("t", FILE).with_order(&["a"]);
    table
        .register(&ctx, Registration::RegisterParquet)
        .await
        .unwrap();
    for sql in [
        "SELECT * FROM t",
        "SELECT a, s FROM t WHERE b = 3",
        "SELECT a + 1 FROM t LIMIT 5",
    ] {
        let stock = plan(&ctx, sql).await.unwrap();
        let ours = converted(&ctx, &stock);
        assert_eq!(stock.schema(), ours.schema());
        let statistics = |plan: &Arc<dyn ExecutionPlan>| {
            StatisticsContext::new()
                .compute(plan.as_ref(), &StatisticsArgs::new())
                .unwrap()
        };
        assert_eq!(statistics(&stock), statistics(&ours));
        assert_eq!(
            stock.properties().output_ordering(),
            ours.properties().output_ordering()
        );
        let text =
            |plan: &Arc<dyn ExecutionPlan>| displayable(plan.as_ref()).indent(true).to_string();
        assert_eq!(
            text(&stock).replace('\n', ""),
            text(&ours)
                .replace(", prefetch_size=1048576", "")
                .replace('\n', ""),
            "nothing but the option is added to EXPLAIN"
        );
        assert!(
            text(&ours).contains("prefetch_size=1048576"),
            "{}",
            text(&ours)
        );
    }
}

#[tokio::test]
async fn the_rule_changes_nothing_twice_and_nothing_when_off() {
    let ctx = session(Scan::Stock, one_partition(), runtime(store().await));
    Table::new("t", FILE)
        .register(&ctx, Registration::RegisterParquet)
        .await
        .unwrap();
    let stock = plan(&ctx, "SELECT a FROM t WHERE b > 1").await.unwrap();
    let rule = PrefetchRule::new(ctx.runtime_env());
    let off = rule.optimize(Arc::clone(&stock), &options(0)).unwrap();
    assert!(Arc::ptr_eq(&off, &stock));
    let once = rule.optimize(stock, &options(1 << 20)).unwrap();
    let twice = rule.optimize(Arc::clone(&once), &options(5)).unwrap();
    assert!(
        Arc::ptr_eq(&once, &twice),
        "settled by the first application"
    );
}

/// What a sort pushdown left in a stock source cannot be carried over.
#[tokio::test]
async fn a_scan_whose_order_was_pushed_down_is_left_alone() {
    let ctx = session(Scan::Stock, one_partition(), runtime(store().await));
    Table::new("t", FILE)
        .register(&ctx, Registration::RegisterParquet)
        .await
        .unwrap();
    let stock = plan(&ctx, "SELECT a FROM t ORDER BY a DESC LIMIT 3")
        .await
        .unwrap();
    let text = displayable(stock.as_ref()).indent(true).to_string();
    assert!(text.contains("reverse_row_groups=true"), "{text}");
    let ours = converted(&ctx, &stock);
    assert!(Arc::ptr_eq(&stock, &ours), "{text}");
}

/// A source by itself: what delegates to stock's delegates all of it.
#[test]
fn planning_methods_are_stock_s() {
    let stock = ParquetSource::new(file_schema());
    let ours = PrefetchingParquetSource::try_new(
        stock.clone(),
        datafusion_parquet_prefetch::PrefetchSettings::default().with_prefetch_size_bytes(1),
    )
    .unwrap();
    assert_eq!(ours.file_type(), stock.file_type());
    assert_eq!(
        ours.table_schema().table_schema(),
        stock.table_schema().table_schema()
    );
    assert_eq!(ours.projection(), stock.projection());
    assert_eq!(
        ours.supports_repartitioning(),
        stock.supports_repartitioning()
    );
    assert!(ours.filter().is_none());
    assert!(ours.with_batch_size(7).is::<PrefetchingParquetSource>());
}

/// A provider that asks the format for its source and plans the scan itself.
#[tokio::test]
async fn a_scan_made_of_the_format_s_source_is_settled_by_the_rule() {
    let ctx = SessionContext::new_with_config_rt(one_partition(), runtime(store().await));
    let format = PrefetchingParquetFormat::default();
    let source = format.file_source(TableSchema::from(file_schema()));
    let url = ObjectStoreUrl::parse(BUCKET).unwrap();
    let scan = FileScanConfigBuilder::new(url, source)
        .with_file_groups(vec![FileGroup::new(vec![partitioned_file()])])
        .build();
    let plan: Arc<dyn ExecutionPlan> = DataSourceExec::from_data_source(scan);
    let ours = converted(&ctx, &plan);
    let text = displayable(ours.as_ref()).indent(true).to_string();
    assert!(text.contains("prefetch_size=1048576"), "{text}");
    assert_eq!(execute(&ctx, ours).await.unwrap().rows(), 1000);
}

#[tokio::test]
async fn a_scan_with_properties_of_its_own_is_left_alone() {
    let ctx = SessionContext::new_with_config_rt(one_partition(), runtime(store().await));
    let scan = scan_of(ParquetSource::new(file_schema()), partitioned_file()).build();
    let exec = DataSourceExec::new(Arc::new(scan));
    let exec = exec.with_partitioning(Partitioning::RoundRobinBatch(1));
    let plan: Arc<dyn ExecutionPlan> = Arc::new(exec);
    assert!(Arc::ptr_eq(&converted(&ctx, &plan), &plan));
}

/// Planning leaves no trace in the metrics of the scan.
#[tokio::test]
async fn the_rule_registers_no_metrics() {
    let ctx = SessionContext::new_with_config_rt(one_partition(), runtime(store().await));
    let scan = scan_of(ParquetSource::new(file_schema()), partitioned_file()).build();
    let plan: Arc<dyn ExecutionPlan> = DataSourceExec::from_data_source(scan);
    let ours = converted(&ctx, &plan);
    assert_eq!(ours.metrics().unwrap().iter().count(), 0);
}
