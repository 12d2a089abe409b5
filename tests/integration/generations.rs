//! An object that is replaced while it is read: all of one generation or an error, no mixture.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_parquet_prefetch::{PrefetchOptions, PrefetchRule};
use futures::FutureExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt};
use rstest::rstest;

use crate::support::behaviour::{Behaving, Behaviour, Untagged};
use crate::support::cases::{folder, rows};
use crate::support::compare::{answer, execute};
use crate::support::faulty::{Action, Attempt};
use crate::support::faulty_scan::{Ending, FaultyScan, Setting};
use crate::support::files::{store_of, upcast};
use crate::support::observe::LATENCY;
use crate::support::session::{
    BUCKET, Scan, Table, ahead, ahead_by_rule, one_partition, runtime, session,
};
use crate::support::store::Latency;

const KEY: &str = "overwritten.parquet";
const SQL: &str = "SELECT count(*), sum(id), sum(v) FROM t";

/// What `SQL` answers for each generation, as `EXPECTED.json` says under F19.
const ANSWERS: [(&str, [&str; 3]); 4] = [
    ("v1", ["2000", "1999000", "1999000"]),
    ("v2_same_size", ["2000", "1999000", "5997000"]),
    ("v2_shorter", ["1900", "1804050", "5412150"]),
    ("v2_longer", ["2600", "3378700", "10136100"]),
];

fn generation(name: &str) -> Bytes {
    std::fs::read(folder().join(format!("F19_overwrite/{name}.parquet")))
        .unwrap()
        .into()
}

fn answers_of(name: &str) -> Vec<Vec<Option<String>>> {
    let (_, row) = ANSWERS
        .iter()
        .find(|(generation, _)| *generation == name)
        .unwrap();
    vec![row.iter().map(|cell| Some((*cell).to_owned())).collect()]
}

fn setting(scan: Scan, metadata_cached: bool) -> Setting {
    let latency = Latency::Fixed(LATENCY);
    Setting {
        scan,
        config: one_partition(),
        metadata_cached,
        latency,
    }
}

/// A store whose object becomes `second` just before the n-th read of the execution.
async fn overwritten(setting: &Setting, second: &str, n: usize, tagged: bool) -> FaultyScan {
    let store: Arc<InMemory> = store_of([(KEY, generation("v1"))]).await;
    let next = generation(second);
    let script = {
        let store = Arc::clone(&store);
        move |attempt: &Attempt<'_>| {
            if attempt.n == n {
                let key = Path::from(KEY);
                let put = store.put(&key, next.clone().into());
                put.now_or_never().unwrap().unwrap();
            }
            Action::Forward
        }
    };
    let objects: Arc<dyn ObjectStore> = if tagged {
        upcast(&store)
    } else {
        Arc::new(Behaving::new(upcast(&store), Untagged))
    };
    FaultyScan::plan(setting, objects, &Table::new("t", KEY), SQL, script).await
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn a_query_sees_one_generation_or_fails(
    #[values(1, 8 << 10, 64 << 10, 1 << 30)] bytes: u64,
    #[values("v2_same_size", "v2_shorter", "v2_longer")] second: &str,
    #[values(false, true)] tagged: bool,
    #[values(false, true)] metadata_cached: bool,
    #[values(false, true)] by_rule: bool,
    #[values(false, true)] reads_ahead: bool,
) {
    let prefetch_size = Some(bytes);
    let scan = match (by_rule, reads_ahead) {
        (false, false) => Scan::Prefetch { prefetch_size },
        (true, false) => Scan::PrefetchByRule { prefetch_size },
        (false, true) => ahead(bytes),
        (true, true) => ahead_by_rule(bytes, bytes / 2),
    };
    let setting = setting(scan, metadata_cached);
    // Never overwritten: how many reads there are, and that the answer is the first generation's.
    let reads = overwritten(&setting, second, usize::MAX, tagged)
        .await
        .count_reads()
        .await;
    assert!(reads >= 1);
    for n in 1..=reads {
        match overwritten(&setting, second, n, tagged).await.run().await {
            Ending::Answered(answer) => {
                let got = rows(&answer);
                let one = [answers_of("v1"), answers_of(second)].contains(&got);
                assert!(
                    one,
                    "overwritten before read {n} of {reads}: a mixture, {got:?}"
                );
            }
            Ending::Failed(error) => {
                assert!(!error.contains("panic"), "read {n} of {reads}: {error}");
                assert!(error.contains(KEY), "the object is not named: {error}");
            }
            Ending::Never => panic!("read {n} of {reads}: no end"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_generation_alone_answers_as_it_was_made() {
    for (name, _) in ANSWERS {
        let store = store_of([(KEY, generation(name))]).await;
        let setting = setting(
            Scan::Prefetch {
                prefetch_size: Some(8 << 10),
            },
            true,
        );
        let forward = |_: &Attempt<'_>| Action::Forward;
        let table = Table::new("t", KEY);
        let scan = FaultyScan::plan(&setting, upcast(&store), &table, SQL, forward).await;
        match scan.run().await {
            Ending::Answered(answer) => assert_eq!(rows(&answer), answers_of(name), "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}

/// A catalog lists files with a clock of its own and without ETags, as Delta's log does. That is no other generation.
#[rstest]
#[tokio::test]
async fn a_catalog_s_time_of_last_modification_is_not_the_store_s(
    #[values(1, 1 << 30)] prefetch_size: u64,
) {
    let file = generation("v1");
    let store = upcast(&store_of([(KEY, file.clone())]).await);
    let mut listed = PartitionedFile::new(KEY, file.len() as u64);
    listed.object_meta.last_modified = "2001-02-03T04:05:06.789Z".parse().unwrap();
    let schema = {
        let ctx = SessionContext::new_with_config_rt(one_partition(), runtime(Arc::clone(&store)));
        let options = ParquetReadOptions::default();
        let frame = ctx
            .read_parquet(format!("{BUCKET}/{KEY}"), options)
            .await
            .unwrap();
        frame.schema().inner().as_ref().clone()
    };
    let ctx = session(Scan::Stock, one_partition(), runtime(store));
    let url = ObjectStoreUrl::parse(BUCKET).unwrap();
    let source = ParquetSource::new(Arc::new(schema));
    let scan = FileScanConfigBuilder::new(url, Arc::new(source))
        .with_file_groups(vec![FileGroup::new(vec![listed])])
        .build();
    let options = PrefetchOptions::new().with_prefetch_size_bytes(prefetch_size);
    let config = SessionConfig::new().with_option_extension(options);
    let plan = PrefetchRule::new(ctx.runtime_env())
        .optimize(DataSourceExec::from_data_source(scan), config.options())
        .unwrap();
    assert!(execute(&ctx, plan).await.unwrap().rows() > 0);
}

/// A store that takes no conditions is read without, and one that does not know the listing's form of its tag as well.
#[rstest]
#[tokio::test]
async fn conditions_that_a_store_does_not_take_are_left_out(
    #[values(Condition::NotImplemented, Condition::OtherForm)] condition: Condition,
    #[values(1, 1 << 30)] prefetch_size: u64,
) {
    let store = store_of([(KEY, generation("v1"))]).await;
    let store = Arc::new(Behaving::new(upcast(&store), condition));
    let scan = Scan::Prefetch {
        prefetch_size: Some(prefetch_size),
    };
    let ctx = session(scan, one_partition(), runtime(store));
    Table::new("t", KEY)
        .register(&ctx, scan.registration())
        .await
        .unwrap();
    assert_eq!(rows(&answer(&ctx, SQL).await.unwrap()), answers_of("v1"));
}

/// How a store fails to take the ETag that its listing gave.
#[derive(Debug, Clone, Copy)]
enum Condition {
    NotImplemented,
    /// It gives the tag in quotes and compares it letter by letter with one that has none.
    OtherForm,
}

#[async_trait]
impl Behaviour for Condition {
    async fn get_opts(
        &self,
        inner: &Arc<dyn ObjectStore>,
        location: &Path,
        options: GetOptions,
    ) -> object_store::Result<GetResult> {
        if options.if_match.is_some() {
            return Err(match self {
                Self::NotImplemented => object_store::Error::NotImplemented {
                    operation: "if_match".to_owned(),
                    implementer: "a store".to_owned(),
                },
                Self::OtherForm => object_store::Error::Precondition {
                    path: location.to_string(),
                    source: "letter by letter".into(),
                },
            });
        }
        inner.get_opts(location, options).await
    }

    fn meta(&self, mut meta: ObjectMeta) -> ObjectMeta {
        meta.e_tag = meta.e_tag.map(|tag| format!("\"{tag}\""));
        meta
    }
}
