//! Modular encryption: read by stock's scan, with the same rows, and counted.

use std::sync::Arc;

use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionConfig;
use datafusion_parquet_prefetch::metrics;
use rstest::rstest;
use tempfile::TempDir;

use crate::support::compare::{Same, answer, assert_same, execute, plan};
use crate::support::session::{Scan, session};

const KEYS: &str = "'format.crypto.file_encryption.encrypt_footer' 'FOOTER', \
    'format.crypto.file_encryption.footer_key_as_hex' '30313233343536373839303132333435', \
    'format.crypto.file_encryption.column_key_as_hex::a' '31323334353637383930313233343530', \
    'format.crypto.file_encryption.column_key_as_hex::s' '31323334353637383930313233343531', \
    'format.crypto.file_decryption.footer_key_as_hex' '30313233343536373839303132333435', \
    'format.crypto.file_decryption.column_key_as_hex::a' '31323334353637383930313233343530', \
    'format.crypto.file_decryption.column_key_as_hex::s' '31323334353637383930313233343531'";

fn fallbacks(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let here = plan
        .metrics()
        .and_then(|metrics| metrics.sum_by_name(metrics::ENCRYPTION_FALLBACK_COUNT))
        .map_or(0, |value| value.as_usize());
    here + plan.children().into_iter().map(fallbacks).sum::<usize>()
}

#[rstest]
#[tokio::test]
async fn encrypted_files_are_read_by_stock_s_scan(#[values(false, true)] encrypt_footer: bool) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().display();
    let keys = KEYS.replace("FOOTER", &encrypt_footer.to_string());
    let mut answers = Vec::new();
    for scan in [
        Scan::Stock,
        Scan::Prefetch {
            prefetch_size: None,
        },
        Scan::Prefetch {
            prefetch_size: Some(1 << 20),
        },
    ] {
        let config = SessionConfig::new().with_target_partitions(1);
        let ctx = session(scan, config, Arc::new(RuntimeEnv::default()));
        let ddl = format!(
            "CREATE EXTERNAL TABLE t (a BIGINT, s VARCHAR) STORED AS PARQUET LOCATION '{path}/t/' OPTIONS ({keys})"
        );
        ctx.sql(&ddl).await.unwrap();
        if scan == Scan::Stock {
            let insert =
                "INSERT INTO t SELECT value AS a, 'text ' || value AS s FROM range(0, 1000)";
            assert_eq!(answer(&ctx, insert).await.unwrap().rows(), 1);
        }
        let planned = plan(&ctx, "SELECT a, s FROM t WHERE a % 3 = 0 ORDER BY a")
            .await
            .unwrap();
        answers.push(execute(&ctx, Arc::clone(&planned)).await);
        let expected = usize::from(matches!(
            scan,
            Scan::Prefetch {
                prefetch_size: Some(_)
            }
        ));
        assert_eq!(fallbacks(&planned), expected, "{scan:?}");
    }
    assert_eq!(answers[0].as_ref().unwrap().rows(), 334);
    for ours in &answers[1..] {
        assert_same(&answers[0], ours, Same::Order, "encrypted");
    }
}

/// Without the keys there is nothing to fall back to: the error is stock's.
#[tokio::test]
async fn without_keys_the_error_is_stock_s() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().display();
    let keys = KEYS.replace("FOOTER", "true");
    let writer = session(
        Scan::Stock,
        SessionConfig::new(),
        Arc::new(RuntimeEnv::default()),
    );
    let columns = "(a BIGINT, s VARCHAR) STORED AS PARQUET";
    writer
        .sql(&format!(
            "CREATE EXTERNAL TABLE t {columns} LOCATION '{path}/t/' OPTIONS ({keys})"
        ))
        .await
        .unwrap();
    answer(&writer, "INSERT INTO t VALUES (1, 'x')")
        .await
        .unwrap();
    let mut errors = Vec::new();
    for scan in [
        Scan::Stock,
        Scan::Prefetch {
            prefetch_size: Some(1 << 20),
        },
    ] {
        let ctx = session(scan, SessionConfig::new(), Arc::new(RuntimeEnv::default()));
        ctx.sql(&format!(
            "CREATE EXTERNAL TABLE t {columns} LOCATION '{path}/t/'"
        ))
        .await
        .unwrap();
        errors.push(answer(&ctx, "SELECT * FROM t").await.unwrap_err());
    }
    assert_eq!(errors[0], errors[1]);
}
