//! The queries of TPC-H, on stock and on ours.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::compute::concat_batches;
use datafusion::arrow::error::ArrowError;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use rstest::rstest;
use tokio::sync::OnceCell;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use crate::support::cases::data;
use crate::support::compare::{Answer, Same, answer, assert_same};
use crate::support::files::{Layout, cut, put, upcast};
use crate::support::session::{Scan, Table, ahead, ahead_by_rule, config, runtime, session};

const SCALE_FACTOR: f64 = 0.01;

const TABLES: [&str; 8] = [
    "customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier",
];

async fn tables() -> Arc<dyn ObjectStore> {
    static STORE: OnceCell<Arc<InMemory>> = OnceCell::const_new();
    let store = STORE.get_or_init(async || {
        let store = Arc::new(InMemory::new());
        for table in TABLES {
            write_table(&store, table).await;
        }
        store
    });
    upcast(store.await)
}

fn generated(table: &str) -> RecordBatch {
    let scale = SCALE_FACTOR;
    match table {
        "customer" => whole(CustomerArrow::new(CustomerGenerator::new(scale, 1, 1))),
        "lineitem" => whole(LineItemArrow::new(LineItemGenerator::new(scale, 1, 1))),
        "nation" => whole(NationArrow::new(NationGenerator::new(scale, 1, 1))),
        "orders" => whole(OrderArrow::new(OrderGenerator::new(scale, 1, 1))),
        "part" => whole(PartArrow::new(PartGenerator::new(scale, 1, 1))),
        "partsupp" => whole(PartSuppArrow::new(PartSuppGenerator::new(scale, 1, 1))),
        "region" => whole(RegionArrow::new(RegionGenerator::new(scale, 1, 1))),
        "supplier" => whole(SupplierArrow::new(SupplierGenerator::new(scale, 1, 1))),
        other => unreachable!("TPC-H has no table {other}"),
    }
}

fn whole(batches: impl Iterator<Item = Result<RecordBatch, ArrowError>>) -> RecordBatch {
    let batches: Vec<RecordBatch> = batches.map(Result::unwrap).collect();
    concat_batches(&batches[0].schema(), &batches).unwrap()
}

/// Three files of small row groups; the tiniest tables are one of each.
async fn write_table(store: &InMemory, table: &str) {
    let rows = generated(table);
    let files = cut(&rows, rows.num_rows().div_ceil(3).max(100));
    for (i, file) in files.iter().enumerate() {
        let layout = Layout {
            dictionary: true,
            ..Layout::paged(500)
        };
        let file = crate::support::files::write(&cut(file, 2_000), &layout);
        put(store, &format!("{table}/{i}.parquet"), file).await;
    }
}

async fn ask(scan: Scan, settings: [(&str, &str); 3], sql: &str) -> Result<Answer, String> {
    let ctx = session(scan, config(settings), runtime(tables().await));
    for name in TABLES {
        let table = Table::new(name, &format!("{name}/"));
        table.register(&ctx, scan.registration()).await.unwrap();
    }
    answer(&ctx, sql).await
}

#[rstest]
#[tokio::test]
async fn tpch(
    #[values(
        1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22
    )]
    query: usize,
    #[values("false", "true")] push_down: &str,
) {
    let folder = data().join("tpch");
    let sql = std::fs::read_to_string(folder.join(format!("q{query}.sql"))).unwrap();
    for partitions in ["1", "4"] {
        let settings = [
            ("datafusion.execution.target_partitions", partitions),
            ("datafusion.execution.parquet.pushdown_filters", push_down),
            ("datafusion.optimizer.repartition_file_min_size", "0"),
        ];
        let stock = ask(Scan::Stock, settings, &sql).await;
        assert!(stock.is_ok(), "{stock:?}");
        // By turns, so that each budget is tried by either way with some query.
        let by_turns =
            |prefetch_size: Option<u64>| match (query + usize::from(prefetch_size.is_some())) % 2 {
                0 => Scan::Prefetch { prefetch_size },
                _ => Scan::PrefetchByRule { prefetch_size },
            };
        let scans = [None, Some(1), Some(64 << 10), Some(1 << 30)].map(by_turns);
        let read_ahead = [
            ahead(64 << 10),
            ahead(1 << 30),
            ahead_by_rule(256 << 10, 16 << 10),
        ];
        for scan in scans.into_iter().chain(read_ahead) {
            let ours = ask(scan, settings, &sql).await;
            let what = format!("query {query}, {scan:?}, {settings:?}");
            assert_same(&stock, &ours, Same::Rows, &what);
        }
    }
}

/// The comparison above says nothing if the tables are empty or the wrong ones.
#[tokio::test]
async fn the_tables_are_those_of_the_scale_factor() {
    let expected = [1_500, 60_175, 25, 15_000, 2_000, 8_000, 5, 100];
    for (table, rows) in TABLES.into_iter().zip(expected) {
        let sql = format!("SELECT * FROM {table}");
        let settings = [
            ("datafusion.execution.target_partitions", "1"),
            ("datafusion.execution.parquet.pushdown_filters", "false"),
            ("datafusion.optimizer.repartition_file_min_size", "0"),
        ];
        let scan = Scan::Prefetch {
            prefetch_size: Some(100 << 10),
        };
        let stock = ask(Scan::Stock, settings, &sql).await;
        let ours = ask(scan, settings, &sql).await;
        assert_same(&stock, &ours, Same::Batches, &sql);
        assert_eq!(ours.unwrap().rows(), rows, "{table}");
    }
}
