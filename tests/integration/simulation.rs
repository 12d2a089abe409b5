//! The recording store itself: what it charges for, and what it counts.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use crate::support::files::{store_of, upcast};
use crate::support::log::{End, Kind};
use crate::support::store::{Charge, Latency, RecordingStore};

const MIB: u64 = 1 << 20;

async fn recording(latency: Latency) -> RecordingStore {
    let object = Bytes::from(vec![7; 8 << 20]);
    RecordingStore::new(upcast(&store_of([("object", object)]).await), latency)
}

fn fixed() -> Latency {
    Latency::Fixed(Duration::from_millis(100))
}

#[tokio::test(start_paused = true)]
async fn each_request_left_after_coalescing_is_charged() {
    let store = recording(fixed()).await;
    let log = store.log();
    let path = Path::from("object");
    // The first two are close enough to be one request; the third is not.
    let ranges = [0..10, MIB..MIB + 10, 4 * MIB..4 * MIB + 10];
    let answers = store.get_ranges(&path, &ranges).await.unwrap();
    assert_eq!(
        answers.iter().map(Bytes::len).collect::<Vec<_>>(),
        [10, 10, 10]
    );

    let gets = log.gets();
    assert_eq!(gets.len(), 2);
    assert_eq!(gets[0].bounded(), Some(0..MIB + 10));
    assert_eq!(gets[0].asked, ranges[..2]);
    assert_eq!(gets[1].asked, ranges[2..]);
    assert_eq!(log.bytes(), MIB + 20);
    assert_eq!(log.rounds(), 1);
    assert_eq!(log.peak(), 2);
    assert_eq!(log.elapsed(), Duration::from_millis(100));

    store.get_range(&path, 0..10).await.unwrap();
    assert_eq!(log.rounds(), 2);
    assert_eq!(log.elapsed(), Duration::from_millis(200));
    assert_eq!(log.asked_twice(), [("object".to_owned(), 0..10)]);
}

#[tokio::test(start_paused = true)]
async fn a_call_can_be_charged_once_for_comparison() {
    let store = recording(fixed()).await.with_charge(Charge::Call);
    let ranges = [0..10, 4 * MIB..4 * MIB + 10];
    store
        .get_ranges(&Path::from("object"), &ranges)
        .await
        .unwrap();
    assert_eq!(store.log().gets().len(), 1);
    assert_eq!(store.log().elapsed(), Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn latencies_go_round_and_bytes_take_time() {
    let [short, long] = [Duration::from_millis(10), Duration::from_millis(30)];
    let store = recording(Latency::RoundRobin(vec![short, long])).await;
    let store = store.with_bytes_per_second(MIB);
    let path = Path::from("object");
    for _ in 0..3 {
        store.get_range(&path, 0..MIB / 2).await.unwrap();
    }
    let half_a_second = Duration::from_millis(500);
    assert_eq!(
        store.log().elapsed(),
        short + long + short + 3 * half_a_second
    );
}

#[tokio::test(start_paused = true)]
async fn a_request_lasts_as_long_as_its_body_and_no_longer_than_its_caller() {
    let store = Arc::new(recording(fixed()).await);
    let log = store.log();
    let path = Path::from("object");
    let answer = store.get(&path).await.unwrap();
    assert_eq!(log.outstanding(), 1, "the body is unread");
    let mut body = answer.into_stream();
    body.next().await.unwrap().unwrap();
    assert_eq!(log.outstanding(), 0, "the last byte has arrived");
    assert_eq!(log.requests()[0].end, End::Answered);

    let abandoned = tokio::spawn({
        let (store, path) = (Arc::clone(&store), path.clone());
        async move { store.get(&path).await.map(|answer| answer.range) }
    });
    tokio::task::yield_now().await;
    assert_eq!(log.outstanding(), 1);
    abandoned.abort();
    assert!(abandoned.await.unwrap_err().is_cancelled());
    assert_eq!(log.outstanding(), 0);
    assert_eq!(log.requests()[1].end, End::Dropped);

    store.head(&path).await.unwrap();
    assert_eq!(log.requests()[2].kind, Kind::Head);
    assert!(store.get(&Path::from("missing")).await.is_err());
    assert_eq!(log.requests()[3].end, End::Failed);
    assert_eq!(store.list(None).count().await, 1);
    assert_eq!(log.requests()[4].kind, Kind::List);
}
