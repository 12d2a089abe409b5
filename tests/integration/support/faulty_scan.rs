//! A scan whose store goes wrong once the query is planned.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use datafusion::execution::memory_pool::{MemoryPool, UnboundedMemoryPool};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::{SessionConfig, SessionContext};
use object_store::ObjectStore;
use tokio::task::yield_now;
use tokio::time::timeout;
use url::Url;

use super::behaviour::Behaving;
use super::compare::{Answer, execute, plan};
use super::faulty::{Action, Attempt, Faulty};
use super::log::RequestLog;
use super::session::{BUCKET, Scan, Table, session};
use super::store::{Latency, RecordingStore};

/// How a scan is run.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    pub(crate) scan: Scan,
    pub(crate) config: SessionConfig,
    /// Whether the footers are cached when the query is planned, or read again by the scan.
    pub(crate) metadata_cached: bool,
    pub(crate) latency: Latency,
}

/// A planned query over a store with a script that begins with its execution.
pub(crate) struct FaultyScan {
    pub(crate) ctx: SessionContext,
    pub(crate) plan: Arc<dyn ExecutionPlan>,
    pub(crate) log: RequestLog,
    pub(crate) pool: Arc<dyn MemoryPool>,
    reads: Arc<AtomicUsize>,
}

/// How an execution ended.
#[derive(Debug)]
pub(crate) enum Ending {
    Answered(Answer),
    Failed(String),
    /// Not within an hour of paused time.
    Never,
}

impl FaultyScan {
    /// Plans `sql` over `objects`. The script's first read is the first one of the execution.
    pub(crate) async fn plan(
        setting: &Setting,
        objects: Arc<dyn ObjectStore>,
        table: &Table,
        sql: &str,
        script: impl Fn(&Attempt<'_>) -> Action + Send + Sync + 'static,
    ) -> Self {
        Self::plan_through(setting, objects, table, sql, script, |store| store).await
    }

    /// As [`plan`](Self::plan), with one more wrapper between the session and the recording
    /// store.
    pub(crate) async fn plan_through(
        setting: &Setting,
        objects: Arc<dyn ObjectStore>,
        table: &Table,
        sql: &str,
        script: impl Fn(&Attempt<'_>) -> Action + Send + Sync + 'static,
        wrap: impl FnOnce(Arc<dyn ObjectStore>) -> Arc<dyn ObjectStore>,
    ) -> Self {
        let armed = Arc::new(AtomicBool::new(false));
        let reads = Arc::new(AtomicUsize::new(0));
        let faulty = Faulty::new({
            let (armed, reads) = (Arc::clone(&armed), Arc::clone(&reads));
            move |attempt| {
                if !armed.load(Ordering::SeqCst) {
                    return Action::Forward;
                }
                let n = reads.fetch_add(1, Ordering::SeqCst) + 1;
                script(&Attempt { n, ..*attempt })
            }
        });
        let faulty = Arc::new(Behaving::new(objects, faulty));
        let recording = RecordingStore::new(faulty, setting.latency.clone());
        let log = recording.log();
        let pool: Arc<dyn MemoryPool> = Arc::new(UnboundedMemoryPool::default());
        let mut builder = RuntimeEnvBuilder::new().with_memory_pool(Arc::clone(&pool));
        if !setting.metadata_cached {
            builder = builder.with_metadata_cache_limit(0);
        }
        let runtime = builder.build_arc().unwrap();
        runtime.register_object_store(&Url::parse(BUCKET).unwrap(), wrap(Arc::new(recording)));
        let ctx = session(setting.scan, setting.config.clone(), runtime);
        table
            .register(&ctx, setting.scan.registration())
            .await
            .unwrap();
        let plan = plan(&ctx, sql).await.unwrap();
        armed.store(true, Ordering::SeqCst);
        log.clear();
        Self {
            ctx,
            plan,
            log,
            pool,
            reads,
        }
    }

    /// Runs to the end, or for an hour of paused time, and checks that nothing is left behind.
    pub(crate) async fn run(self) -> Ending {
        let Self {
            ctx,
            plan,
            log,
            pool,
            reads: _,
        } = self;
        let ending = match timeout(Duration::from_secs(3600), execute(&ctx, plan)).await {
            Ok(Ok(answer)) => Ending::Answered(answer),
            Ok(Err(error)) => Ending::Failed(error),
            Err(_) => Ending::Never,
        };
        nothing_is_left(&log, pool.as_ref(), &format!("{ending:?}")).await;
        ending
    }

    /// Runs to the end and tells how many reads that took.
    pub(crate) async fn count_reads(self) -> usize {
        let reads = Arc::clone(&self.reads);
        match self.run().await {
            Ending::Answered(_) => reads.load(Ordering::SeqCst),
            other => panic!("without a fault: {other:?}"),
        }
    }
}

/// Fails if requests are outstanding or bytes reserved after all tasks had their turn, or if a
/// request is begun later.
pub(crate) async fn nothing_is_left(log: &RequestLog, pool: &dyn MemoryPool, what: &str) {
    // An aborted task is dropped when the scheduler comes to it.
    for _ in 0..100 {
        yield_now().await;
    }
    assert_eq!(
        log.outstanding(),
        0,
        "{what}: still running: {:#?}",
        log.requests()
    );
    assert_eq!(pool.reserved(), 0, "{what}: bytes still reserved");
    let requests = log.requests().len();
    tokio::time::advance(Duration::from_secs(60)).await;
    for _ in 0..10 {
        yield_now().await;
    }
    assert_eq!(
        log.requests().len(),
        requests,
        "{what}: a request was begun afterwards"
    );
}
