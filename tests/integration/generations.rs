//! An object that is replaced while it is read: all of one generation or an error, no mixture.

use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use rstest::rstest;

use crate::support::behaviour::{Behaving, Untagged};
use crate::support::cases::{folder, rows};
use crate::support::faulty::{Action, Attempt};
use crate::support::faulty_scan::{Ending, FaultyScan, Setting};
use crate::support::files::{store_of, upcast};
use crate::support::observe::LATENCY;
use crate::support::session::{Scan, Table, one_partition};
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
    #[values(1, 8 << 10, 64 << 10, 1 << 30)] prefetch_size: u64,
    #[values("v2_same_size", "v2_shorter", "v2_longer")] second: &str,
    #[values(false, true)] tagged: bool,
    #[values(false, true)] metadata_cached: bool,
    #[values(false, true)] by_rule: bool,
) {
    let prefetch_size = Some(prefetch_size);
    let scan = match by_rule {
        false => Scan::Prefetch { prefetch_size },
        true => Scan::PrefetchByRule { prefetch_size },
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
