//! Scans that others plan: with access plans and row selections, with readers of their own, with
//! columns that no file has. They build a stock `ParquetSource`, which our rule converts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::{
    DefaultParquetFileReaderFactory, ParquetAccessPlan, ParquetFileReaderFactory,
    ParquetRowSelection, RowGroupAccess,
};
use datafusion::datasource::physical_plan::{FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::datasource::table_schema::TableSchema;
use datafusion::error::Result;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::arrow::{RowNumber, parquet_to_arrow_schema};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rstest::rstest;

use crate::support::compare::{Answer, Same, answer, assert_same, difference};
use crate::support::files::{Layout, cut, metadata, numbers, store_of, upcast, write};
use crate::support::session::{BUCKET, Scan, one_partition, runtime, session};

const KEY: &str = "t.parquet";
const ROW_GROUPS: usize = 6;
const ROW_GROUP_ROWS: usize = 100;
const SIZES: [Option<u64>; 4] = [None, Some(1), Some(20_000), Some(1 << 30)];
const QUERIES: [&str; 5] = [
    "SELECT a, s FROM t",
    "SELECT s FROM t WHERE b % 10 = 3",
    "SELECT a FROM t WHERE a BETWEEN 130 AND 410",
    "SELECT a, b FROM t ORDER BY a DESC LIMIT 15",
    "SELECT s FROM t LIMIT 120",
];

/// A provider that plans its scans without asking any format.
#[derive(Debug, Clone)]
struct Provider {
    schema: TableSchema,
    file: PartitionedFile,
    push_down: bool,
    reader_factory: Option<Arc<dyn ParquetFileReaderFactory>>,
}

#[async_trait]
impl TableProvider for Provider {
    fn schema(&self) -> SchemaRef {
        Arc::clone(self.schema.table_schema())
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(
        &self,
        filters: &[&Expr],
    ) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        _state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut source =
            ParquetSource::new(self.schema.clone()).with_pushdown_filters(self.push_down);
        if let Some(factory) = &self.reader_factory {
            source = source.with_parquet_file_reader_factory(Arc::clone(factory));
        }
        let config = FileScanConfigBuilder::new(ObjectStoreUrl::parse(BUCKET)?, Arc::new(source))
            .with_file(self.file.clone())
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .build();
        Ok(DataSourceExec::from_data_source(config))
    }
}

struct Fixture {
    store: Arc<InMemory>,
    provider: Provider,
}

async fn fixture(push_down: bool) -> Fixture {
    let rows = cut(&numbers(ROW_GROUPS * ROW_GROUP_ROWS, 50), ROW_GROUP_ROWS);
    let file = write(&rows, &Layout::paged(20));
    let metadata = metadata(&file);
    let schema = parquet_to_arrow_schema(metadata.file_metadata().schema_descr(), None).unwrap();
    let provider = Provider {
        schema: TableSchema::from(Arc::new(schema)),
        file: PartitionedFile::new(KEY, file.len() as u64),
        push_down,
        reader_factory: None,
    };
    Fixture {
        store: store_of([(KEY, file)]).await,
        provider,
    }
}

async fn ask(
    scan: Scan,
    store: Arc<dyn ObjectStore>,
    provider: &Provider,
    sql: &str,
) -> std::result::Result<Answer, String> {
    let ctx = session(scan, one_partition(), runtime(store));
    ctx.register_table("t", Arc::new(provider.clone())).unwrap();
    answer(&ctx, sql).await
}

/// A random selection of exactly `rows` rows.
fn selection(rows: usize, rng: &mut StdRng) -> RowSelection {
    let mut selectors = Vec::new();
    let mut left = rows;
    let mut skip = rng.random();
    while left > 0 {
        let count = rng.random_range(1..=left.min(70));
        let selector = if skip {
            RowSelector::skip(count)
        } else {
            RowSelector::select(count)
        };
        selectors.push(selector);
        left -= count;
        skip = !skip;
    }
    selectors.into()
}

fn access_plan(rng: &mut StdRng) -> ParquetAccessPlan {
    let access = |rng: &mut StdRng| match rng.random_range(0..4) {
        0 => RowGroupAccess::Skip,
        1 => RowGroupAccess::Scan,
        _ => RowGroupAccess::Selection(selection(ROW_GROUP_ROWS, rng)),
    };
    ParquetAccessPlan::new((0..ROW_GROUPS).map(|_| access(rng)).collect())
}

#[rstest]
#[tokio::test]
async fn access_plans_and_row_selections_choose_the_same_rows(
    #[values(false, true)] push_down: bool,
    #[values(false, true)] whole_file: bool,
) {
    let fixture = fixture(push_down).await;
    for seed in 0..25 {
        let mut rng = StdRng::seed_from_u64(seed);
        let file = fixture.provider.file.clone();
        let file = match whole_file {
            true => {
                let rows = selection(ROW_GROUPS * ROW_GROUP_ROWS, &mut rng);
                file.with_extension(ParquetRowSelection::new(rows))
            }
            false => file.with_extension(access_plan(&mut rng)),
        };
        let provider = Provider {
            file,
            ..fixture.provider.clone()
        };
        for sql in QUERIES {
            let stock = ask(Scan::Stock, upcast(&fixture.store), &provider, sql).await;
            assert!(stock.is_ok(), "{stock:?}");
            for prefetch_size in SIZES {
                let scan = Scan::PrefetchByRule { prefetch_size };
                let ours = ask(scan, upcast(&fixture.store), &provider, sql).await;
                assert_same(
                    &stock,
                    &ours,
                    Same::Batches,
                    &format!("seed {seed}, {scan:?}, {sql}"),
                );
            }
        }
    }
}

#[rstest]
#[case::too_few_row_groups(|file: PartitionedFile| file.with_extension(
    ParquetAccessPlan::new_all(ROW_GROUPS - 1)
))]
#[case::too_many_row_groups(|file: PartitionedFile| file.with_extension(
    ParquetAccessPlan::new_all(ROW_GROUPS + 1)
))]
#[case::too_few_rows_of_a_row_group(|file: PartitionedFile| {
    let mut plan = ParquetAccessPlan::new_all(ROW_GROUPS);
    plan.scan_selection(1, vec![RowSelector::select(ROW_GROUP_ROWS - 1)].into());
    file.with_extension(plan)
})]
#[case::too_many_rows_of_the_file(|file: PartitionedFile| file.with_extension(
    ParquetRowSelection::new(vec![RowSelector::select(ROW_GROUPS * ROW_GROUP_ROWS + 1)].into())
))]
#[case::both_kinds(|file: PartitionedFile| {
    let rows = vec![RowSelector::select(ROW_GROUPS * ROW_GROUP_ROWS)].into();
    file.with_extension(ParquetAccessPlan::new_all(ROW_GROUPS))
        .with_extension(ParquetRowSelection::new(rows))
})]
#[tokio::test]
async fn an_access_plan_that_does_not_fit_is_refused_in_stock_s_words(
    #[case] attach: fn(PartitionedFile) -> PartitionedFile,
) {
    let Fixture {
        store,
        mut provider,
    } = fixture(false).await;
    provider.file = attach(provider.file);
    let stock = ask(Scan::Stock, upcast(&store), &provider, QUERIES[0]).await;
    let stock = stock.expect_err("stock takes it");
    for prefetch_size in SIZES {
        let scan = Scan::PrefetchByRule { prefetch_size };
        let ours = ask(scan, upcast(&store), &provider, QUERIES[0]).await;
        assert_eq!(ours.expect_err("ours takes it"), stock);
    }
}

/// A user's factory, over a store that the session does not know.
#[derive(Debug)]
struct UsersFactory {
    inner: DefaultParquetFileReaderFactory,
    readers: AtomicUsize,
}

impl ParquetFileReaderFactory for UsersFactory {
    fn create_reader(
        &self,
        partition_index: usize,
        file: PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        self.readers.fetch_add(1, Ordering::SeqCst);
        self.inner
            .create_reader(partition_index, file, metadata_size_hint, metrics)
    }
}

#[rstest]
#[tokio::test]
async fn a_reader_factory_of_the_user_reads_everything(#[values(false, true)] push_down: bool) {
    let Fixture { store, provider } = fixture(push_down).await;
    let elsewhere = upcast(&Arc::new(InMemory::new()));
    for sql in QUERIES {
        let stock = ask(Scan::Stock, upcast(&store), &provider, sql).await;
        for prefetch_size in SIZES {
            let factory = Arc::new(UsersFactory {
                inner: DefaultParquetFileReaderFactory::new(upcast(&store)),
                readers: AtomicUsize::new(0),
            });
            let reader_factory = Some(Arc::clone(&factory) as Arc<dyn ParquetFileReaderFactory>);
            let provider = Provider {
                reader_factory,
                ..provider.clone()
            };
            let scan = Scan::PrefetchByRule { prefetch_size };
            let ours = ask(scan, Arc::clone(&elsewhere), &provider, sql).await;
            assert_same(&stock, &ours, Same::Batches, &format!("{scan:?}, {sql}"));
            assert!(
                factory.readers.load(Ordering::SeqCst) > 0,
                "{scan:?}, {sql}"
            );
        }
    }
}

#[rstest]
#[tokio::test]
async fn rows_are_numbered_as_stock_numbers_them(
    #[values(false, true)] push_down: bool,
    #[values(
        "SELECT n, a FROM t WHERE b % 10 = 3",
        "SELECT n FROM t WHERE a BETWEEN 130 AND 410",
        "SELECT a, n FROM t WHERE n % 7 = 1",
        "SELECT n FROM t ORDER BY a DESC LIMIT 15",
        "SELECT n, a FROM t LIMIT 120",
        "SELECT input_file_name(), a FROM t WHERE a > 550"
    )]
    sql: &str,
) {
    let Fixture {
        store,
        mut provider,
    } = fixture(push_down).await;
    let number: FieldRef =
        Arc::new(Field::new("n", DataType::Int64, false).with_extension_type(RowNumber));
    provider.schema = TableSchema::builder(Arc::clone(provider.schema.file_schema()))
        .with_virtual_columns(vec![number])
        .build();
    let stock = ask(Scan::Stock, upcast(&store), &provider, sql).await;
    assert!(stock.is_ok(), "{stock:?}");
    for prefetch_size in SIZES {
        let scan = Scan::PrefetchByRule { prefetch_size };
        let ours = ask(scan, upcast(&store), &provider, sql).await;
        assert_eq!(difference(&stock, &ours, Same::Batches), None, "{scan:?}");
    }
}
