//! One session over one store, and what a query costs in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::physical_plan::collect;
use datafusion::prelude::SessionConfig;
use datafusion_parquet_prefetch::PrefetchSessionContext;
use object_store::ObjectStore;
use url::Url;

use super::Result;
use super::args::Args;
use super::compare::Answer;
use super::latency_store::{LatencyStore, Traffic};
use super::peak_pool::PeakPool;

async fn set(session: &PrefetchSessionContext, option: &str, value: &str) -> Result<()> {
    let value = value.replace('\'', "''");
    let sql = format!("SET datafusion.execution.parquet.{option} = '{value}'");
    session.sql(&sql).await?;
    Ok(())
}

/// Where the store is registered, whatever kind of store it is: the store knows the rest.
pub(crate) const STORE_URL: &str = "quickstart://data";

/// Where a local file system is registered that is to be taken for one.
pub(crate) const LOCAL_URL: &str = "file:///";

/// One side of the comparison: a session of its own, so that no cache that one side filled serves the other.
pub(crate) struct Side {
    session: PrefetchSessionContext,
    store: Arc<LatencyStore>,
    pool: Arc<PeakPool>,
    base: &'static str,
}

/// What was asked of a side's store, and reserved in its memory pool at most, since they were last reset.
pub(crate) struct Figures {
    pub(crate) traffic: Traffic,
    pub(crate) peak_bytes: usize,
}

/// A query that was run.
#[derive(Debug)]
pub(crate) struct Run {
    /// Time to plan: listing, `HEAD`, schema, statistics, and the optimizer.
    pub(crate) plan_time: Duration,
    /// Time to execute the plan, from its first poll to its last row.
    pub(crate) wall_time: Duration,
    /// What executing asked of the store.
    pub(crate) traffic: Traffic,
    /// The rows.
    pub(crate) answer: Answer,
}

impl Side {
    /// Opens a session on a store, with these of our options set.
    pub(crate) async fn try_new(
        args: &Args,
        store: LatencyStore,
        base: &'static str,
        options: &[(&str, String)],
    ) -> Result<Self> {
        let mut config = SessionConfig::new().with_target_partitions(args.partitions.get());
        config.options_mut().execution.parquet.pushdown_filters = args.pushdown;
        let pool = Arc::new(PeakPool::default());
        let runtime = RuntimeEnvBuilder::new()
            .with_memory_pool(Arc::clone(&pool) as _)
            .build_arc()?;
        let session = PrefetchSessionContext::new_with_config_rt(config, runtime);
        let store = Arc::new(store);
        session.register_object_store(
            &Url::parse(base)?,
            Arc::clone(&store) as Arc<dyn ObjectStore>,
        );
        for (option, value) in options {
            set(&session, option, value).await?;
        }
        Ok(Self {
            session,
            store,
            pool,
            base,
        })
    }

    /// The session.
    pub(crate) fn session(&self) -> &PrefetchSessionContext {
        &self.session
    }

    /// Begins to count anew.
    pub(crate) fn reset(&self) {
        self.store.reset();
        self.pool.reset();
    }

    pub(crate) fn figures(&self) -> Figures {
        Figures {
            traffic: self.store.traffic(),
            peak_bytes: self.pool.peak(),
        }
    }

    /// Registers a Parquet file or, if the path ends with a slash, folder of the store as a table; returns the time it
    /// took, which is that of listing the files and reading their schema.
    pub(crate) async fn create_table(&self, table: &str, path: &str) -> Result<Duration> {
        self.store.reset();
        let location = location(self.base, path)?.replace('\'', "''");
        let begin = Instant::now();
        self.session
            .sql(&format!(
                "CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{location}'"
            ))
            .await?;
        Ok(begin.elapsed())
    }

    /// Plans and executes a query, each timed apart.
    pub(crate) async fn run(&self, sql: &str) -> Result<Run> {
        self.store.reset();
        let begin = Instant::now();
        let plan = self.session.sql(sql).await?.create_physical_plan().await?;
        let plan_time = begin.elapsed();

        self.store.reset();
        let schema = plan.schema();
        let begin = Instant::now();
        let batches = collect(plan, self.session.task_ctx()).await?;
        let wall_time = begin.elapsed();
        let traffic = self.store.traffic();
        Ok(Run {
            plan_time,
            wall_time,
            traffic,
            answer: Answer { schema, batches },
        })
    }
}

/// The URL by which the session knows an object of the store.
fn location(base: &str, path: &str) -> Result<String> {
    let mut url = Url::parse(base)?;
    // A path of the store is literal; a percent sign in it is no escape.
    url.set_path(&path.replace('%', "%25"));
    Ok(url.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_survive_being_a_location() {
        assert_eq!(
            location(STORE_URL, "a/b.parquet").unwrap(),
            "quickstart://data/a/b.parquet"
        );
        assert_eq!(location(STORE_URL, "a/").unwrap(), "quickstart://data/a/");
        for path in ["with space/50%25.parquet", "what?/a#b.parquet", "ü/x=y"] {
            let url = Url::parse(&location(STORE_URL, path).unwrap()).unwrap();
            let read_back = object_store::path::Path::from_url_path(url.path()).unwrap();
            assert_eq!(read_back.as_ref(), path);
        }
    }
}
