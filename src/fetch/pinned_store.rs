//! A view of an object store that reads one object in one generation only.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::physical_plan::metrics::Count;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, RenameOptions, Result,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::coalesce::{Requests, len, slice_of};
use super::generation::Generation;
use super::limits::{RequestRules, Urgency};
use super::tail::Tail;
use crate::error::FetchError;
use crate::plan::{Piece, plan_flights, split};

const STORE: &str = "parquet_prefetch";

/// Requests of one fetch that are under way at the same time. Those with required bytes are the first to go out, so none of
/// them waits for a speculative one.
const MAX_CONCURRENT_REQUESTS: usize = 64;

/// Reads `location` through `inner`, and refuses answers that are of another generation, or of another length than asked.
///
/// Everything that concerns other objects passes through.
pub(crate) struct PinnedStore {
    inner: Arc<dyn ObjectStore>,
    location: Path,
    generation: Mutex<Generation>,
    kind: StoreKind,
    rules: RequestRules,
    /// Requests that were made for somebody who waited.
    awaited_requests: AtomicUsize,
    tail: Mutex<Option<Tail>>,
    /// Cleared by a store that takes no conditions, or not the listing's form of the ETag.
    sends_conditions: AtomicBool,
    /// How many of the ranges of the next `get_ranges` are required, where it was announced; else all of them are.
    announced: Mutex<Option<usize>>,
}

/// Whom a request is for.
enum RequestKind {
    Awaited,
    /// Nobody who waits yet; counted here.
    Ahead(Count),
}

/// How ranges are best read from a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// Every answer carries the generation it is of: one conditional request per coalesced range.
    Remote,
    /// A local file system: one `get_ranges` opens the file once, and a look at its metadata afterwards is cheap.
    LocalFile,
}

impl PinnedStore {
    pub(crate) fn new(
        inner: Arc<dyn ObjectStore>,
        meta: &ObjectMeta,
        kind: StoreKind,
        rules: RequestRules,
    ) -> Self {
        Self {
            inner,
            location: meta.location.clone(),
            generation: Mutex::new(Generation::of(meta)),
            kind,
            rules,
            awaited_requests: AtomicUsize::new(0),
            tail: Mutex::new(None),
            sends_conditions: AtomicBool::new(true),
            announced: Mutex::new(None),
        }
    }

    pub(crate) fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Says of the next `get_ranges` that its first `required_count` ranges are required and the others speculative. Meant for
    /// the one reader that will make this call next.
    pub(crate) fn announce(&self, required_count: usize) {
        *self.announced.lock() = Some(required_count);
    }

    /// Requests so far that somebody waited for, from the first byte on.
    pub(crate) fn awaited_requests(&self) -> usize {
        self.awaited_requests.load(Ordering::Relaxed)
    }

    /// What was kept of the object's end, which is given up by this.
    pub(crate) fn take_tail(&self) -> Option<Tail> {
        self.tail.lock().take()
    }

    /// Reads `range` for nobody who waits yet. Counts its requests in `requests`, and with those of all kinds.
    pub(crate) async fn read_ahead(
        &self,
        range: Range<u64>,
        urgency: Urgency,
        requests: Count,
    ) -> Result<Bytes> {
        let kind = RequestKind::Ahead(requests);
        match self.kind {
            StoreKind::Remote => self.read_parts(range, &urgency, &kind).await,
            StoreKind::LocalFile => {
                let _slot = self.rules.limits.enter(&urgency).await;
                self.count(&kind);
                let answers = self.read_local(std::slice::from_ref(&range)).await?;
                let found = answers.into_iter().next();
                found.ok_or_else(|| self.wrong_length(&range, 0))
            }
        }
    }

    fn verify(&self, meta: &ObjectMeta) -> Result<()> {
        let found = Generation::of(meta);
        let mut expected = self.generation.lock();
        if !expected.admits(&found) {
            return Err(replaced(&self.location, &expected, &found));
        }
        expected.learn(found);
        Ok(())
    }

    /// One request, read to its end here so that no half-read body occupies a connection. The answer is without its body, and
    /// of the range and length that it says and, where bounds were asked for, of these.
    async fn read(
        &self,
        mut options: GetOptions,
        kind: &RequestKind,
    ) -> Result<(Bytes, GetResult)> {
        let asked = match &options.range {
            Some(GetRange::Bounded(range)) => Some(range.clone()),
            _ => None,
        };
        let begun = Instant::now();
        let mut answer = self.conditional_get(&mut options, kind).await?;
        let first_byte = begun.elapsed();
        self.verify(&answer.meta)?;
        if let Some(asked) = asked
            && answer.range != asked
        {
            return Err(unusable(FetchError::WrongRange {
                path: self.location.to_string(),
                range: asked,
                actual: answer.range,
            }));
        }
        let without_body = GetResult {
            payload: GetResultPayload::Stream(stream::empty().boxed()),
            meta: answer.meta.clone(),
            range: answer.range.clone(),
            attributes: std::mem::take(&mut answer.attributes),
        };
        let bytes = answer.bytes().await?;
        self.check_length(&without_body.range, &bytes)?;
        let body = begun.elapsed().saturating_sub(first_byte);
        self.rules
            .times
            .observe(first_byte, body, bytes.len() as u64);
        if self.rules.keeps_tail && without_body.range.end == self.generation.lock().size() {
            let mut tail = self.tail.lock();
            tail.get_or_insert_with(|| {
                let meta = without_body.meta.clone();
                Tail::new(without_body.range.clone(), bytes.clone(), meta)
            });
        }
        Ok((bytes, without_body))
    }

    /// Several requests at once where `range` is longer than one may be.
    async fn read_parts(
        &self,
        range: Range<u64>,
        urgency: &Urgency,
        kind: &RequestKind,
    ) -> Result<Bytes> {
        let read = |part: Range<u64>| async move {
            let _slot = self.rules.limits.enter(urgency).await;
            let options = GetOptions::new().with_range(Some(part));
            Ok::<_, Error>(self.read(options, kind).await?.0)
        };
        let parts = split(&range, self.rules.max_bytes());
        if parts.len() == 1 {
            return read(range).await;
        }
        let parts: Vec<Bytes> = stream::iter(parts)
            .map(read)
            .buffered(MAX_CONCURRENT_REQUESTS)
            .try_collect()
            .await?;
        Ok(parts.concat().into())
    }

    /// With `If-Match`, as long as the store takes it. Where it does not, or says that the object is another one, the answer to
    /// the same request without a condition decides: it carries what there is to compare.
    async fn conditional_get(
        &self,
        options: &mut GetOptions,
        kind: &RequestKind,
    ) -> Result<GetResult> {
        if options.if_match.is_none() && self.sends_conditions.load(Ordering::Relaxed) {
            options.if_match = self.generation.lock().if_match().map(str::to_owned);
        }
        self.count(kind);
        match self.inner.get_opts(&self.location, options.clone()).await {
            Err(
                Error::Precondition { .. }
                | Error::NotImplemented { .. }
                | Error::NotSupported { .. },
            ) if options.if_match.is_some() => {
                self.sends_conditions.store(false, Ordering::Relaxed);
                options.if_match = None;
                self.count(kind);
                self.inner.get_opts(&self.location, options.clone()).await
            }
            answer => answer,
        }
    }

    fn count(&self, kind: &RequestKind) {
        self.rules.requests.add(1);
        match kind {
            RequestKind::Ahead(requests) => requests.add(1),
            RequestKind::Awaited => {
                self.awaited_requests.fetch_add(1, Ordering::Relaxed);
                self.rules.required_requests.add(1);
            }
        }
    }

    async fn read_remote(
        &self,
        ranges: &[Range<u64>],
        required_count: usize,
    ) -> Result<Vec<Bytes>> {
        let tail = self.tail.lock().clone();
        let kept = |range: &Range<u64>| tail.as_ref().and_then(|tail| tail.slice(range));
        let is_kept: Vec<bool> = ranges.iter().map(|range| kept(range).is_some()).collect();
        let mut missing_required = 0;
        let mut missing = Vec::new();
        for (i, range) in ranges.iter().enumerate().filter(|(i, _)| !is_kept[*i]) {
            missing.push(range.clone());
            missing_required += usize::from(i < required_count);
        }
        let max_bytes = self.rules.max_bytes();
        let mut requests = Vec::new();
        for request in Requests::plan(&missing, missing_required).ranges {
            if len(&request) <= max_bytes {
                requests.push(request);
                continue;
            }
            let within =
                |range: &&Range<u64>| request.start <= range.start && range.end <= request.end;
            let pieces = missing.iter().filter(within).map(|range| Piece {
                place: 0,
                range: range.clone(),
                is_conditional: false,
            });
            let whole = std::iter::once(request.clone()).collect();
            let cut = plan_flights(pieces.collect(), whole, max_bytes);
            requests.extend(cut.into_iter().map(|flight| flight.range));
        }
        let mut answers: Vec<(Range<u64>, Bytes)> = stream::iter(requests)
            .map(|range| async move {
                let bytes =
                    self.read_parts(range.clone(), &Urgency::Required, &RequestKind::Awaited);
                Ok::<_, Error>((range, bytes.await?))
            })
            .buffered(MAX_CONCURRENT_REQUESTS)
            .try_collect()
            .await?;
        answers.sort_unstable_by_key(|(range, _)| range.start);
        ranges
            .iter()
            .map(|range| {
                kept(range)
                    .or_else(|| slice_of(&answers, range))
                    .ok_or_else(|| self.wrong_length(range, 0))
            })
            .collect()
    }

    async fn read_local(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let answers = self.inner.get_ranges(&self.location, ranges).await?;
        // Looked at after the bytes: had the file been replaced before or meanwhile, it shows.
        self.verify(&self.inner.head(&self.location).await?)?;
        if answers.len() != ranges.len() {
            return Err(unusable(FetchError::WrongCount {
                path: self.location.to_string(),
                expected: ranges.len(),
                actual: answers.len(),
            }));
        }
        for (range, bytes) in ranges.iter().zip(&answers) {
            self.check_length(range, bytes)?;
        }
        Ok(answers)
    }

    fn check_length(&self, range: &Range<u64>, bytes: &Bytes) -> Result<()> {
        let actual = bytes.len() as u64;
        match actual == len(range) {
            true => Ok(()),
            false => Err(self.wrong_length(range, actual)),
        }
    }

    fn wrong_length(&self, range: &Range<u64>, actual: u64) -> Error {
        unusable(FetchError::WrongLength {
            path: self.location.to_string(),
            range: range.clone(),
            actual,
        })
    }
}

fn replaced(location: &Path, expected: &Generation, found: &Generation) -> Error {
    Error::Precondition {
        path: location.to_string(),
        source: Box::new(FetchError::Replaced {
            path: location.to_string(),
            expected: expected.to_string(),
            found: found.to_string(),
        }),
    }
}

fn unusable(error: FetchError) -> Error {
    Error::Generic {
        store: STORE,
        source: Box::new(error),
    }
}

impl fmt::Debug for PinnedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedStore")
            .field("inner", &self.inner)
            .field("location", &self.location)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for PinnedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PinnedStore({}, {})", self.inner, self.location)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for PinnedStore {
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
        if *location != self.location || options.head {
            return self.inner.get_opts(location, options).await;
        }
        let kept = self
            .tail
            .lock()
            .as_ref()
            .and_then(|tail| tail.answer(&options));
        let (bytes, answer) = match kept {
            Some(answer) => answer,
            None => self.read(options, &RequestKind::Awaited).await?,
        };
        let body = stream::once(async move { Ok(bytes) }).boxed();
        Ok(GetResult {
            payload: GetResultPayload::Stream(body),
            ..answer
        })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if *location != self.location {
            return self.inner.get_ranges(location, ranges).await;
        }
        let announced = self.announced.lock().take().unwrap_or(ranges.len());
        if let Some(reversed) = ranges.iter().find(|range| range.start > range.end) {
            return Err(unusable(FetchError::InvalidRange {
                path: self.location.to_string(),
                range: reversed.clone(),
            }));
        }
        // An empty column chunk has an empty range, which stores refuse.
        let wanted: Vec<Range<u64>> = ranges
            .iter()
            .filter(|range| !range.is_empty())
            .cloned()
            .collect();
        if wanted.is_empty() {
            return Ok(vec![Bytes::new(); ranges.len()]);
        }
        let required = ranges.iter().take(announced);
        let required_count = required.filter(|range| !range.is_empty()).count();
        let answers = match self.kind {
            StoreKind::Remote => self.read_remote(&wanted, required_count).await?,
            StoreKind::LocalFile => {
                self.count(&RequestKind::Awaited);
                self.read_local(&wanted).await?
            }
        };
        let mut answers = answers.into_iter();
        Ok(ranges
            .iter()
            .map(|range| {
                if range.is_empty() {
                    Bytes::new()
                } else {
                    answers.next().unwrap_or_default()
                }
            })
            .collect())
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::RequestLimits;
    use object_store::memory::InMemory;
    use std::num::NonZeroUsize;

    async fn store_with(content: &'static [u8]) -> (Arc<InMemory>, ObjectMeta) {
        let store = Arc::new(InMemory::new());
        let path = Path::from("a.parquet");
        store.put(&path, content.into()).await.unwrap();
        let meta = store.head(&path).await.unwrap();
        (store, meta)
    }

    fn rules() -> RequestRules {
        RequestRules {
            limits: RequestLimits::new(NonZeroUsize::MIN),
            max_request_bytes: 0,
            keeps_tail: false,
            requests: Count::new(),
            required_requests: Count::new(),
            times: Arc::default(),
        }
    }

    fn pinned(store: &Arc<InMemory>, meta: &ObjectMeta, kind: StoreKind) -> PinnedStore {
        PinnedStore::new(Arc::clone(store) as _, meta, kind, rules())
    }

    fn fetch_error(error: &(dyn std::error::Error + 'static)) -> FetchError {
        let mut error = Some(error);
        while let Some(e) = error {
            if let Some(found) = e.downcast_ref::<FetchError>() {
                return found.clone();
            }
            error = e.source();
        }
        panic!("no FetchError in the chain");
    }

    #[tokio::test]
    async fn reads_what_was_listed() {
        for kind in [StoreKind::Remote, StoreKind::LocalFile] {
            let (store, meta) = store_with(b"0123456789").await;
            let pinned = pinned(&store, &meta, kind);
            let answers = pinned
                .get_ranges(&meta.location, &[2..4, 5..5, 0..10])
                .await
                .unwrap();
            assert_eq!(
                answers,
                [
                    Bytes::from_static(b"23"),
                    Bytes::new(),
                    Bytes::from_static(b"0123456789")
                ]
            );
            assert_eq!(pinned.rules.requests.value(), 1);
        }
    }

    #[tokio::test]
    async fn a_replaced_object_is_an_error_that_names_it() {
        for kind in [StoreKind::Remote, StoreKind::LocalFile] {
            let (store, meta) = store_with(b"0123456789").await;
            let pinned = pinned(&store, &meta, kind);
            store
                .put(&meta.location, Bytes::from_static(b"abcdefghij").into())
                .await
                .unwrap();
            let error = pinned
                .get_ranges(&meta.location, &[2..4, 7..9])
                .await
                .unwrap_err();
            assert!(error.to_string().contains("a.parquet"), "{error}");
            assert!(matches!(fetch_error(&error), FetchError::Replaced { .. }));
        }
    }

    #[tokio::test]
    async fn the_first_answer_pins_where_the_listing_has_no_validator() {
        let (store, mut meta) = store_with(b"0123456789").await;
        meta.e_tag = None;
        meta.last_modified = Default::default();
        let pinned = pinned(&store, &meta, StoreKind::Remote);
        pinned.get_range(&meta.location, 0..4).await.unwrap();
        store
            .put(&meta.location, Bytes::from_static(b"abcdefghij").into())
            .await
            .unwrap();
        let error = pinned.get_range(&meta.location, 4..8).await.unwrap_err();
        assert!(matches!(fetch_error(&error), FetchError::Replaced { .. }));
    }

    #[tokio::test]
    async fn a_clamped_answer_is_refused() {
        let (store, mut meta) = store_with(b"0123456789").await;
        // As if the listing were right and the store served a truncated body.
        meta.size = 10;
        let pinned = pinned(&store, &meta, StoreKind::Remote);
        let error = pinned.get_range(&meta.location, 8..12).await.unwrap_err();
        assert_eq!(
            fetch_error(&error),
            FetchError::WrongRange {
                path: "a.parquet".into(),
                range: 8..12,
                actual: 8..10
            }
        );
    }
}
