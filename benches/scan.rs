//! Isolates what reading costs without latency: one file of 16 row groups, from memory, read whole.
//!
//! `scan/*` is a full scan through a session: stock, then this crate with the option off and with it on; their ratio is
//! the overhead of prefetching where there is nothing to gain. `decode/whole_file` is the Parquet reader alone on the same
//! bytes, the floor of both.

#![expect(
    clippy::unwrap_used,
    reason = "a bench has nobody to report an error to"
)]

use std::hint::black_box;
use std::sync::Arc;

use arrow::array::{Float64Array, Int64Array, RecordBatch, StringViewArray};
use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use datafusion::physical_plan::{ExecutionPlan, execute_stream_partitioned};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_parquet_prefetch::PrefetchSessionContext;
use futures::StreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::file::properties::WriterProperties;
use tokio::runtime::{Builder, Runtime};
use url::Url;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const ROW_GROUPS: i64 = 16;
const ROWS_PER_GROUP: i64 = 64 * 1024;
const STORE_URL: &str = "memory://bench";

/// 16 row groups of about 1.5 MiB: a key, a measure that does not compress, and a text from a dictionary.
///
/// The text is a view, as DataFusion reads it: otherwise the bare reader would do more work than the scans.
fn file() -> Result<Bytes> {
    let batch = |group: i64| {
        let keys = group * ROWS_PER_GROUP..(group + 1) * ROWS_PER_GROUP;
        // A multiplicative hash: no two rows of it look alike to the encoder.
        let hash = |key: i64| key.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64.cast_signed());
        RecordBatch::try_from_iter([
            (
                "key",
                Arc::new(Int64Array::from_iter_values(keys.clone())) as _,
            ),
            (
                "measure",
                Arc::new(Float64Array::from_iter_values(
                    keys.clone()
                        .map(|key| f64::from_bits(hash(key).cast_unsigned() >> 2)),
                )) as _,
            ),
            (
                "text",
                Arc::new(StringViewArray::from_iter_values(
                    keys.map(|key| format!("text {}", hash(key).rem_euclid(1000))),
                )) as _,
            ),
        ])
    };
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(usize::try_from(ROWS_PER_GROUP)?))
        .build();
    let first = batch(0)?;
    let mut writer = ArrowWriter::try_new(Vec::new(), first.schema(), Some(properties))?;
    writer.write(&first)?;
    for group in 1..ROW_GROUPS {
        writer.write(&batch(group)?)?;
    }
    Ok(writer.into_inner()?.into())
}

fn stock(config: SessionConfig) -> SessionContext {
    SessionContext::new_with_config(config)
}

async fn ours(config: SessionConfig, prefetch_size: &str) -> Result<SessionContext> {
    let session = PrefetchSessionContext::new_with_config(config);
    let sql = format!("SET datafusion.execution.parquet.prefetch_size = '{prefetch_size}'");
    session.sql(&sql).await?;
    Ok(session.into_inner())
}

async fn plan(session: &SessionContext, data: &Bytes) -> Result<Arc<dyn ExecutionPlan>> {
    let store = InMemory::new();
    store
        .put(&Path::from("file.parquet"), data.clone().into())
        .await?;
    session.register_object_store(
        &Url::parse(STORE_URL)?,
        Arc::new(store) as Arc<dyn ObjectStore>,
    );
    let location = format!("{STORE_URL}/file.parquet");
    session
        .register_parquet("t", &location, ParquetReadOptions::default())
        .await?;
    Ok(session
        .sql("SELECT * FROM t")
        .await?
        .create_physical_plan()
        .await?)
}

/// Reads every partition to its end, and drops the batches as they come.
async fn drain(session: &SessionContext, plan: Arc<dyn ExecutionPlan>) -> Result<usize> {
    let mut rows = 0;
    for mut stream in execute_stream_partitioned(plan, session.task_ctx())? {
        while let Some(batch) = stream.next().await {
            rows += batch?.num_rows();
        }
    }
    Ok(rows)
}

fn scan(criterion: &mut Criterion, runtime: &Runtime, data: &Bytes) -> Result<()> {
    let config = || SessionConfig::new().with_target_partitions(1);
    let sessions = [
        ("stock", stock(config())),
        ("off", runtime.block_on(ours(config(), "0"))?),
        ("on", runtime.block_on(ours(config(), "20 MiB"))?),
    ];
    let mut group = criterion.benchmark_group("scan");
    group.throughput(Throughput::Bytes(data.len() as u64));
    for (name, session) in &sessions {
        let plan = runtime.block_on(plan(session, data))?;
        group.bench_function(*name, |bencher| {
            bencher.to_async(runtime).iter(|| async {
                // A plan is good for one execution: streams of one scan share their work through it.
                let plan = Arc::clone(&plan).reset_state().unwrap();
                drain(session, plan).await.unwrap()
            });
        });
    }
    group.finish();
    Ok(())
}

fn decode(criterion: &mut Criterion, data: &Bytes) {
    let mut group = criterion.benchmark_group("decode");
    group.throughput(Throughput::Bytes(data.len() as u64));
    group.bench_function("whole_file", |bencher| {
        bencher.iter(|| {
            let builder = ParquetRecordBatchReaderBuilder::try_new(data.clone()).unwrap();
            let reader = builder.with_batch_size(8192).build().unwrap();
            for batch in reader {
                black_box(batch.unwrap());
            }
        });
    });
    group.finish();
}

fn benches(criterion: &mut Criterion) {
    let data = file().unwrap();
    let runtime = Builder::new_multi_thread().enable_all().build().unwrap();
    scan(criterion, &runtime, &data).unwrap();
    decode(criterion, &data);
}

criterion_group!(scan_benches, benches);
criterion_main!(scan_benches);
