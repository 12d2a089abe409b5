//! An object store that records its requests and charges time for them.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    OBJECT_STORE_COALESCE_DEFAULT, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, RenameOptions, Result, coalesce_ranges,
};
use tokio::time::sleep;

use super::log::{End, Kind, RequestGuard, RequestLog};

/// How long a request waits before its answer begins.
#[derive(Debug, Clone)]
pub(crate) enum Latency {
    Fixed(Duration),
    /// The n-th request of the store waits for the n-th duration, round and round.
    RoundRobin(Vec<Duration>),
}

/// What one latency is charged for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charge {
    /// Each request that is left after coalescing, as a remote store would.
    Request,
    /// Each call of `get_ranges`, however many ranges apart it names.
    Call,
}

/// Records every request to `inner` and delays it, in tokio's time.
#[derive(Debug)]
pub(crate) struct RecordingStore {
    inner: Arc<dyn ObjectStore>,
    log: RequestLog,
    latency: Latency,
    charge: Charge,
    bytes_per_second: Option<u64>,
    begun: AtomicUsize,
}

impl RecordingStore {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, latency: Latency) -> Self {
        Self {
            inner,
            log: RequestLog::new(),
            latency,
            charge: Charge::Request,
            bytes_per_second: None,
            begun: AtomicUsize::new(0),
        }
    }

    pub(crate) fn with_charge(mut self, charge: Charge) -> Self {
        self.charge = charge;
        self
    }

    /// Each body takes its length divided by `bytes_per_second` on top of the latency.
    pub(crate) fn with_bytes_per_second(mut self, bytes_per_second: u64) -> Self {
        self.bytes_per_second = Some(bytes_per_second);
        self
    }

    pub(crate) fn log(&self) -> RequestLog {
        self.log.clone()
    }

    fn next_latency(&self) -> Duration {
        let n = self.begun.fetch_add(1, Ordering::Relaxed);
        match &self.latency {
            Latency::Fixed(latency) => *latency,
            Latency::RoundRobin(latencies) => latencies[n % latencies.len()],
        }
    }

    fn transfer_time(bytes: usize, bytes_per_second: Option<u64>) -> Duration {
        match bytes_per_second {
            Some(rate) => Duration::from_secs_f64(bytes as f64 / rate as f64),
            None => Duration::ZERO,
        }
    }

    async fn get(
        &self,
        location: &Path,
        options: GetOptions,
        asked: Vec<Range<u64>>,
    ) -> Result<GetResult> {
        let kind = if options.head { Kind::Head } else { Kind::Get };
        let if_match = options.if_match.clone();
        let mut guard = self
            .log
            .begin(kind, location, options.range.clone(), asked, if_match);
        pause(self.next_latency()).await;
        let result = match self.inner.get_opts(location, options).await {
            Ok(result) => result,
            Err(error) => {
                guard.end(End::Failed);
                return Err(error);
            }
        };
        let length = result.range.end - result.range.start;
        let payload = match result.payload {
            _ if kind == Kind::Head => {
                guard.end(End::Answered);
                result.payload
            }
            GetResultPayload::Stream(body) => {
                let body = observed(body, guard, length, self.bytes_per_second);
                GetResultPayload::Stream(body)
            }
            // A file has no body to observe: the caller reads it by itself.
            file @ GetResultPayload::File(..) => {
                guard.add_bytes(usize::try_from(length).unwrap());
                guard.end(End::Answered);
                file
            }
        };
        Ok(GetResult { payload, ..result })
    }
}

async fn pause(duration: Duration) {
    if !duration.is_zero() {
        sleep(duration).await;
    }
}

/// A body that takes its time and ends its request with its last byte.
fn observed(
    body: BoxStream<'static, Result<Bytes>>,
    guard: RequestGuard,
    length: u64,
    bytes_per_second: Option<u64>,
) -> BoxStream<'static, Result<Bytes>> {
    let state = (body, guard);
    futures::stream::unfold(state, move |(mut body, mut guard)| async move {
        let item = body.next().await;
        match &item {
            Some(Ok(bytes)) => {
                pause(RecordingStore::transfer_time(bytes.len(), bytes_per_second)).await;
                if guard.add_bytes(bytes.len()) >= length {
                    guard.end(End::Answered);
                }
            }
            Some(Err(_)) => guard.end(End::Failed),
            None => guard.end(End::Answered),
        }
        item.map(|item| (item, (body, guard)))
    })
    .boxed()
}

impl fmt::Display for RecordingStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordingStore({})", self.inner)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for RecordingStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let mut guard = self
            .log
            .begin(Kind::Write, location, None, Vec::new(), None);
        pause(self.next_latency()).await;
        let result = self.inner.put_opts(location, payload, opts).await;
        guard.end(if result.is_ok() {
            End::Answered
        } else {
            End::Failed
        });
        result
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let asked = match &options.range {
            Some(GetRange::Bounded(range)) => vec![range.clone()],
            _ => Vec::new(),
        };
        self.get(location, options, asked).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if self.charge == Charge::Call {
            let mut guard = self
                .log
                .begin(Kind::Get, location, None, ranges.to_vec(), None);
            pause(self.next_latency()).await;
            let result = self.inner.get_ranges(location, ranges).await;
            if let Ok(answers) = &result {
                let bytes = answers.iter().map(Bytes::len).sum();
                pause(Self::transfer_time(bytes, self.bytes_per_second)).await;
                guard.add_bytes(bytes);
            }
            guard.end(if result.is_ok() {
                End::Answered
            } else {
                End::Failed
            });
            return result;
        }
        let fetch = |range: Range<u64>| {
            let asked = ranges
                .iter()
                .filter(|asked| range.start <= asked.start && asked.end <= range.end)
                .cloned()
                .collect();
            let options = GetOptions::new().with_range(Some(range));
            async move { self.get(location, options, asked).await?.bytes().await }
        };
        coalesce_ranges(ranges, fetch, OBJECT_STORE_COALESCE_DEFAULT).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let path = prefix.cloned().unwrap_or_default();
        let guard = self.log.begin(Kind::List, &path, None, Vec::new(), None);
        listed(self.inner.list(prefix), guard, self.next_latency())
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let path = prefix.cloned().unwrap_or_default();
        let guard = self.log.begin(Kind::List, &path, None, Vec::new(), None);
        listed(
            self.inner.list_with_offset(prefix, offset),
            guard,
            self.next_latency(),
        )
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let path = prefix.cloned().unwrap_or_default();
        let mut guard = self.log.begin(Kind::List, &path, None, Vec::new(), None);
        pause(self.next_latency()).await;
        let result = self.inner.list_with_delimiter(prefix).await;
        guard.end(if result.is_ok() {
            End::Answered
        } else {
            End::Failed
        });
        result
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}

fn listed(
    items: BoxStream<'static, Result<ObjectMeta>>,
    guard: RequestGuard,
    latency: Duration,
) -> BoxStream<'static, Result<ObjectMeta>> {
    let state = (items, guard, Some(latency));
    futures::stream::unfold(state, |(mut items, mut guard, latency)| async move {
        if let Some(latency) = latency {
            pause(latency).await;
        }
        let item = items.next().await;
        if item.is_none() {
            guard.end(End::Answered);
        }
        item.map(|item| (item, (items, guard, None)))
    })
    .boxed()
}
