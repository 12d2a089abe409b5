//! `STORED AS PARQUET`, `COPY`, `INSERT`: as in stock, read through our source.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_parquet_prefetch::PrefetchingParquetSource;
use rstest::rstest;
use tempfile::TempDir;

use crate::support::compare::{Same, answer, assert_same, plan};
use crate::support::session::{Scan, session};

const ON: Scan = Scan::Prefetch {
    prefetch_size: Some(1 << 20),
};

fn new_session(scan: Scan) -> SessionContext {
    let config = SessionConfig::new()
        .with_target_partitions(2)
        .with_information_schema(true);
    session(scan, config, Arc::new(RuntimeEnv::default()))
}

/// The sources of ours in a plan.
fn ours(plan: &Arc<dyn ExecutionPlan>) -> Vec<PrefetchingParquetSource> {
    let here = plan
        .downcast_ref::<DataSourceExec>()
        .and_then(|exec| exec.downcast_to_file_source::<PrefetchingParquetSource>())
        .map(|(_, source)| source.clone());
    here.into_iter()
        .chain(plan.children().into_iter().flat_map(ours))
        .collect()
}

async fn run(ctx: &SessionContext, sql: &str) {
    ctx.sql(sql).await.unwrap().collect().await.unwrap();
}

fn parquet_files(dir: &Path) -> usize {
    let files = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|ext| ext == "parquet"))
        .count()
}

#[tokio::test]
async fn what_is_written_is_read_as_by_stock() {
    let mut answers = Vec::new();
    for scan in [Scan::Stock, ON] {
        let dir = TempDir::new().unwrap();
        let path = dir.path().display();
        let ctx = new_session(scan);
        run(
            &ctx,
            &format!(
                "COPY (SELECT value AS id, 'text ' || value AS s FROM range(0, 5000)) TO '{path}/a.parquet' \
                 STORED AS PARQUET OPTIONS ('format.max_row_group_size' '500', 'format.compression' 'zstd(3)')"
            ),
        )
        .await;
        run(
            &ctx,
            &format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{path}/'"),
        )
        .await;
        run(
            &ctx,
            "INSERT INTO t SELECT value AS id, 'more' AS s FROM range(5000, 5010)",
        )
        .await;
        assert_eq!(parquet_files(dir.path()), 2, "INSERT appends a file");
        answers.push(answer(&ctx, "SELECT * FROM t WHERE id % 7 = 0 ORDER BY id").await);
        let scans = ours(&plan(&ctx, "SELECT * FROM t").await.unwrap());
        assert_eq!(scans.len(), usize::from(scan == ON));
    }
    assert_eq!(answers[1].as_ref().unwrap().rows(), 716);
    assert_same(
        &answers[0],
        &answers[1],
        Same::Order,
        "written and read back",
    );
}

/// What stock refuses, ours refuses, in stock's words.
#[rstest]
#[case::unknown_option(
    "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'LOC' OPTIONS ('format.nonsense' '1')"
)]
#[case::unknown_copy_option(
    "COPY (SELECT 1) TO 'LOC/b.parquet' STORED AS PARQUET OPTIONS ('format.nonsense' '1')"
)]
#[case::compression(
    "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION 'LOC' OPTIONS ('format.compression' 'rar')"
)]
#[tokio::test]
async fn what_stock_refuses_is_refused(#[case] sql: &str) {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("t")).unwrap();
    let sql = sql.replace("LOC", &dir.path().join("t").display().to_string());
    let mut errors = Vec::new();
    for scan in [Scan::Stock, ON] {
        errors.push(answer(&new_session(scan), &sql).await.unwrap_err());
    }
    assert_eq!(errors[0], errors[1]);
}

#[tokio::test]
async fn a_later_set_applies_to_tables_registered_before() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().display();
    let ctx = new_session(Scan::Prefetch {
        prefetch_size: None,
    });
    run(
        &ctx,
        &format!("COPY (SELECT 1 AS a) TO '{path}/a.parquet' STORED AS PARQUET"),
    )
    .await;
    let ddl = |name: &str, options: &str| {
        format!(
            "CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{path}/a.parquet' {options}"
        )
    };
    run(&ctx, &ddl("by_session", "")).await;
    run(
        &ctx,
        &ddl("by_table", "OPTIONS ('format.prefetch_size' '2 KiB')"),
    )
    .await;
    run(&ctx, &ddl("never", "OPTIONS ('format.prefetch_size' '0')")).await;
    ctx.register_parquet(
        "by_rule",
        format!("{path}/a.parquet"),
        ParquetReadOptions::default(),
    )
    .await
    .unwrap();
    let budget = async |table: &str| {
        let plan = plan(&ctx, &format!("SELECT a + 1 FROM {table}"))
            .await
            .unwrap();
        ours(&plan)
            .first()
            .map(|source| source.settings().prefetch_size_bytes)
    };
    // Where neither table nor session asks for anything, the scan is stock's own.
    for (session, expected, never) in [
        ("0", None, None),
        ("5 KiB", Some(5120), Some(0)),
        ("7", Some(7), Some(0)),
    ] {
        run(
            &ctx,
            &format!("SET parquet_prefetch.prefetch_size = '{session}'"),
        )
        .await;
        assert_eq!(budget("by_session").await, expected);
        assert_eq!(budget("by_table").await, Some(2048));
        assert_eq!(budget("never").await, never);
        assert_eq!(budget("by_rule").await, expected);
        assert_eq!(answer(&ctx, "SELECT a FROM never").await.unwrap().rows(), 1);
    }
}

/// `read_parquet` and a bare file name as a table, which ask no factory of ours.
#[tokio::test]
async fn scans_that_ask_no_factory_are_found_by_the_rule() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.parquet").display().to_string();
    let ctx = new_session(ON).enable_url_table();
    run(
        &ctx,
        &format!("COPY (SELECT value AS a FROM range(0, 100)) TO '{file}' STORED AS PARQUET"),
    )
    .await;
    let frame = ctx
        .read_parquet(&file, ParquetReadOptions::default())
        .await
        .unwrap();
    let frame_plan = frame.create_physical_plan().await.unwrap();
    assert_eq!(ours(&frame_plan).len(), 1);
    let joined = format!("SELECT x.a FROM '{file}' x JOIN '{file}' y ON x.a = y.a + 1");
    assert_eq!(ours(&plan(&ctx, &joined).await.unwrap()).len(), 2);
    assert_eq!(answer(&ctx, &joined).await.unwrap().rows(), 99);
}
