//! An object store with the latency of a remote one, which counts what it is asked for.
//!
//! Every request is charged on its own, after ranges were coalesced as a remote store's client coalesces them: a store
//! that charges one latency for a whole `get_ranges` call would flatter whoever asks for many ranges at once.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    OBJECT_STORE_COALESCE_DEFAULT, ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, Result, coalesce_ranges,
};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Milliseconds until the answer of one GET request after another, as S3 gives them: mostly around 30, with a tail.
pub(crate) const S3_LATENCIES_MS: [u64; 14] =
    [30, 150, 28, 100, 35, 200, 30, 85, 120, 25, 110, 32, 180, 70];

/// What a store was asked for since the last [`LatencyStore::reset`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Requests begun: ranged and whole GETs after coalescing, HEADs and listings.
    pub(crate) requests: u64,
    /// Bytes of the bodies that arrived.
    pub(crate) bytes: u64,
    /// Round trips one after the other: the longest chain of requests each of which began when the one before it had
    /// ended. For a reader that does one thing at a time this is the number of periods it waited; of several readers
    /// that do not wait for each other it is about that of the slowest, however their requests overlap.
    pub(crate) rounds: u64,
}

#[derive(Debug, Default)]
struct Counters {
    traffic: Traffic,
    /// When the last request of the longest chain ended.
    chain_end: Option<Instant>,
    /// Requests charged so far; chooses the next latency.
    charged: usize,
}

#[derive(Debug)]
struct Meter {
    /// Given out in turn; none means no latency at all.
    latencies: Vec<Duration>,
    counters: Mutex<Counters>,
}

impl Meter {
    /// Counts a request and waits for its latency; the request is outstanding until the answer is dropped.
    async fn begin(self: &Arc<Self>) -> Outstanding {
        let latency = {
            let mut counters = self.counters.lock();
            counters.traffic.requests += 1;
            let turn = counters.charged;
            counters.charged += 1;
            turn.checked_rem(self.latencies.len())
                .map(|i| self.latencies[i])
        };
        // Before the wait: a request that is given up while it waits is no longer outstanding.
        let outstanding = Outstanding {
            meter: Arc::clone(self),
            begin: Instant::now(),
        };
        if let Some(latency) = latency.filter(|latency| !latency.is_zero()) {
            tokio::time::sleep(latency).await;
        }
        outstanding
    }

    fn count_bytes(&self, bytes: u64) {
        self.counters.lock().traffic.bytes += bytes;
    }
}

/// A request under way; it ends when this is dropped.
struct Outstanding {
    meter: Arc<Meter>,
    begin: Instant,
}

impl Drop for Outstanding {
    fn drop(&mut self) {
        let mut counters = self.meter.counters.lock();
        // Taking whatever ends first and does not overlap what was taken before makes the longest chain.
        if counters.chain_end.is_none_or(|end| end <= self.begin) {
            counters.chain_end = Some(Instant::now());
            counters.traffic.rounds += 1;
        }
    }
}

/// Adds a latency to every reading request of another store, and counts requests, bytes and rounds.
///
/// Writing passes through, neither charged nor counted: nothing here writes while it measures. The body of a GET is read
/// whole before the answer is given, so that a request is outstanding for exactly as long as its bytes are on their way.
#[derive(Debug)]
pub(crate) struct LatencyStore {
    inner: Arc<dyn ObjectStore>,
    meter: Arc<Meter>,
    /// Whether `get_ranges` is the inner store's own affair, as a local file system reads many ranges in one go.
    delegate_ranges: bool,
}

impl LatencyStore {
    /// Wraps a store, the requests of which take the given latencies in turn, or none if there are none.
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, latencies: Vec<Duration>) -> Self {
        let meter = Arc::new(Meter {
            latencies,
            counters: Mutex::default(),
        });
        Self {
            inner,
            meter,
            delegate_ranges: false,
        }
    }

    /// Leaves `get_ranges` to the inner store, counting each call as one request.
    ///
    /// Without latency this measures a local file system as it is; with one it would charge batches too little.
    pub(crate) fn with_delegated_ranges(self) -> Self {
        Self {
            delegate_ranges: true,
            ..self
        }
    }

    /// What was asked for since the last reset.
    pub(crate) fn traffic(&self) -> Traffic {
        self.meter.counters.lock().traffic
    }

    /// Starts counting at zero, and the latencies at the first.
    ///
    /// Meant for when nothing is outstanding: a request that began before would still count as a round.
    pub(crate) fn reset(&self) {
        let mut counters = self.meter.counters.lock();
        *counters = Counters::default();
    }
}

impl fmt::Display for LatencyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LatencyStore({})", self.inner)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for LatencyStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let head = options.head;
        let _outstanding = self.meter.begin().await;
        let answer = self.inner.get_opts(location, options).await?;
        if head {
            return Ok(answer);
        }
        let (meta, range, attributes) = (
            answer.meta.clone(),
            answer.range.clone(),
            answer.attributes.clone(),
        );
        let body = answer.bytes().await?;
        self.meter.count_bytes(body.len() as u64);
        let payload = GetResultPayload::Stream(stream::once(async { Ok(body) }).boxed());
        Ok(GetResult {
            payload,
            meta,
            range,
            attributes,
        })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if self.delegate_ranges {
            let _outstanding = self.meter.begin().await;
            let bodies = self.inner.get_ranges(location, ranges).await?;
            self.meter
                .count_bytes(bodies.iter().map(|body| body.len() as u64).sum());
            return Ok(bodies);
        }
        coalesce_ranges(
            ranges,
            |range| self.get_range(location, range),
            OBJECT_STORE_COALESCE_DEFAULT,
        )
        .await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        charge_listing(&self.meter, self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        charge_listing(&self.meter, self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let _outstanding = self.meter.begin().await;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}

/// A listing is one request however many pages it has: the folders here have a handful of files.
fn charge_listing(
    meter: &Arc<Meter>,
    listing: BoxStream<'static, Result<ObjectMeta>>,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let meter = Arc::clone(meter);
    stream::once(async move {
        let outstanding = meter.begin().await;
        listing.inspect(move |_| {
            let _until_the_listing_is_dropped = &outstanding;
        })
    })
    .flatten()
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;

    const MIB: u64 = 1024 * 1024;

    async fn store(latencies_ms: &[u64]) -> (LatencyStore, Path) {
        let path = Path::from("data/object");
        let inner = InMemory::new();
        inner
            .put(&path, vec![7; 8 * 1024 * 1024].into())
            .await
            .unwrap();
        let latencies = latencies_ms
            .iter()
            .copied()
            .map(Duration::from_millis)
            .collect();
        (LatencyStore::new(Arc::new(inner), latencies), path)
    }

    #[tokio::test(start_paused = true)]
    async fn every_request_is_charged_after_coalescing() {
        let (store, path) = store(&[100]).await;
        let begin = Instant::now();
        // The first two are closer than the gap and become one request; the third is too far away.
        let ranges = [0..10, 1000..1010, 4 * MIB..4 * MIB + 10];
        let bodies = store.get_ranges(&path, &ranges).await.unwrap();
        assert_eq!(
            bodies.iter().map(Bytes::len).collect::<Vec<_>>(),
            [10, 10, 10]
        );
        assert_eq!(begin.elapsed(), Duration::from_millis(100));
        assert_eq!(
            store.traffic(),
            Traffic {
                requests: 2,
                bytes: 1010 + 10,
                rounds: 1
            }
        );
    }

    #[tokio::test(start_paused = true)]
    async fn latencies_are_given_out_in_turn_and_start_again() {
        let (store, path) = store(&[10, 200]).await;
        for (turn, expected_ms) in [(0, 10), (1, 200), (2, 10)] {
            let begin = Instant::now();
            store.get_range(&path, 0..1).await.unwrap();
            assert_eq!(
                begin.elapsed(),
                Duration::from_millis(expected_ms),
                "request {turn}"
            );
        }
        assert_eq!(
            store.traffic(),
            Traffic {
                requests: 3,
                bytes: 3,
                rounds: 3
            }
        );
        store.reset();
        assert_eq!(store.traffic(), Traffic::default());
        let begin = Instant::now();
        store.head(&path).await.unwrap();
        assert_eq!(begin.elapsed(), Duration::from_millis(10));
        assert_eq!(
            store.traffic(),
            Traffic {
                requests: 1,
                bytes: 0,
                rounds: 1
            }
        );
    }

    #[tokio::test(start_paused = true)]
    async fn rounds_of_readers_that_overlap_are_not_added_up() {
        let (store, path) = store(&[30, 50]).await;
        let reader = async || {
            for _ in 0..10 {
                store.get_range(&path, 0..1).await.unwrap();
            }
        };
        // The two begin at once and are out of step ever after; each waits for ten round trips.
        tokio::join!(reader(), reader());
        assert_eq!(store.traffic().requests, 20);
        let rounds = store.traffic().rounds;
        assert!((10..=13).contains(&rounds), "{rounds}");
    }

    #[tokio::test(start_paused = true)]
    async fn overlapping_requests_are_one_round() {
        let (store, path) = store(&[50, 20, 50]).await;
        let (first, second) =
            tokio::join!(store.get_range(&path, 0..1), store.get_range(&path, 5..7));
        assert_eq!(first.unwrap().len() + second.unwrap().len(), 3);
        assert_eq!(store.traffic().rounds, 1);
        store.get_range(&path, 0..1).await.unwrap();
        assert_eq!(
            store.traffic(),
            Traffic {
                requests: 3,
                bytes: 4,
                rounds: 2
            }
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_given_up_is_no_longer_outstanding() {
        let (store, path) = store(&[50]).await;
        let given_up =
            tokio::time::timeout(Duration::from_millis(10), store.get_range(&path, 0..1)).await;
        assert!(given_up.is_err());
        store.get_range(&path, 0..1).await.unwrap();
        assert_eq!(
            store.traffic(),
            Traffic {
                requests: 2,
                bytes: 1,
                rounds: 2
            }
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_listing_is_a_request_until_it_ends() {
        let (store, path) = store(&[40]).await;
        let begin = Instant::now();
        let mut listing = store.list(None);
        assert_eq!(listing.next().await.unwrap().unwrap().location, path);
        assert_eq!(begin.elapsed(), Duration::from_millis(40));
        store.get_range(&path, 0..1).await.unwrap();
        drop(listing);
        // The first request came while the listing went on, the second comes after both.
        assert_eq!(store.traffic().rounds, 1);
        store.get_range(&path, 0..1).await.unwrap();
        assert_eq!(
            store.traffic(),
            Traffic {
                requests: 3,
                bytes: 2,
                rounds: 2
            }
        );
    }

    #[tokio::test]
    async fn delegated_ranges_are_one_request() {
        let (store, path) = store(&[]).await;
        let store = store.with_delegated_ranges();
        let bodies = store
            .get_ranges(&path, &[0..10, 4 * MIB..4 * MIB + 10])
            .await
            .unwrap();
        assert_eq!(bodies.len(), 2);
        assert_eq!(
            store.traffic(),
            Traffic {
                requests: 1,
                bytes: 20,
                rounds: 1
            }
        );
    }
}
