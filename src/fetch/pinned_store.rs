//! A view of an object store that reads one object in one generation only.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use datafusion::physical_plan::metrics::Count;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult,
    MultipartUpload, OBJECT_STORE_COALESCE_DEFAULT, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, coalesce_ranges,
};
use parking_lot::Mutex;

use super::generation::Generation;
use crate::error::FetchError;

const STORE: &str = "parquet_prefetch";

/// Reads `location` through `inner`, and refuses answers that are of another generation, or of another length than asked.
///
/// Everything that concerns other objects passes through.
pub(crate) struct PinnedStore {
    inner: Arc<dyn ObjectStore>,
    location: Path,
    generation: Mutex<Generation>,
    kind: StoreKind,
    requests: Count,
}

/// How ranges are best read from a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreKind {
    /// Every answer carries the generation it is of: one conditional request per coalesced range.
    Remote,
    /// A local file system: one `get_ranges` opens the file once, and a look at its metadata afterwards is cheap.
    LocalFile,
}

impl StoreKind {
    /// Gaps between ranges that are read in passing, in bytes.
    pub(crate) fn bridged_gap_bytes(self) -> u64 {
        match self {
            Self::Remote => OBJECT_STORE_COALESCE_DEFAULT,
            Self::LocalFile => 0,
        }
    }
}

impl PinnedStore {
    pub(crate) fn new(
        inner: Arc<dyn ObjectStore>,
        meta: &ObjectMeta,
        kind: StoreKind,
        requests: Count,
    ) -> Self {
        Self {
            inner,
            location: meta.location.clone(),
            generation: Mutex::new(Generation::of(meta)),
            kind,
            requests,
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

    /// One request for one bounded range, read to its end here so that no half-read body occupies a connection.
    async fn fetch(&self, range: Range<u64>) -> Result<Bytes> {
        let options = GetOptions::new().with_range(Some(range.clone()));
        let (bytes, _) = self.read(options).await?;
        self.check_length(range, &bytes)?;
        Ok(bytes)
    }

    async fn read(&self, mut options: GetOptions) -> Result<(Bytes, GetResult)> {
        if options.if_match.is_none() {
            options.if_match = self.generation.lock().if_match().map(str::to_owned);
        }
        let asked = match &options.range {
            Some(GetRange::Bounded(range)) => Some(range.clone()),
            _ => None,
        };
        self.requests.add(1);
        let answer = match self.inner.get_opts(&self.location, options).await {
            Err(Error::Precondition { source, .. }) => {
                let expected = self.generation.lock().clone();
                return Err(Error::Precondition {
                    path: self.location.to_string(),
                    source: Box::new(FetchError::Replaced {
                        path: self.location.to_string(),
                        expected: expected.to_string(),
                        found: format!("another ({source})"),
                    }),
                });
            }
            answer => answer?,
        };
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
        let (meta, range, attributes) = (
            answer.meta.clone(),
            answer.range.clone(),
            answer.attributes.clone(),
        );
        let bytes = answer.bytes().await?;
        self.check_length(range.clone(), &bytes)?;
        let whole = bytes.clone();
        let result = GetResult {
            payload: GetResultPayload::Stream(stream::once(async move { Ok(whole) }).boxed()),
            meta,
            range,
            attributes,
        };
        Ok((bytes, result))
    }

    async fn read_local(&self, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.requests.add(1);
        let answers = self.inner.get_ranges(&self.location, ranges).await?;
        // Looked at after the bytes: had the file been replaced before or meanwhile, it shows.
        self.verify(&self.inner.head(&self.location).await?)?;
        Ok(answers)
    }

    fn check_length(&self, range: Range<u64>, bytes: &Bytes) -> Result<()> {
        let actual = bytes.len() as u64;
        if actual == range.end.saturating_sub(range.start) {
            return Ok(());
        }
        Err(unusable(FetchError::WrongLength {
            path: self.location.to_string(),
            range,
            actual,
        }))
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
        Ok(self.read(options).await?.1)
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if *location != self.location {
            return self.inner.get_ranges(location, ranges).await;
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
        let answers = match self.kind {
            StoreKind::Remote => {
                coalesce_ranges(
                    &wanted,
                    |range| self.fetch(range),
                    OBJECT_STORE_COALESCE_DEFAULT,
                )
                .await?
            }
            StoreKind::LocalFile => self.read_local(&wanted).await?,
        };
        if answers.len() != wanted.len() {
            return Err(unusable(FetchError::WrongCount {
                path: self.location.to_string(),
                expected: wanted.len(),
                actual: answers.len(),
            }));
        }
        for (range, bytes) in wanted.iter().zip(&answers) {
            self.check_length(range.clone(), bytes)?;
        }
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
    use object_store::memory::InMemory;

    async fn store_with(content: &'static [u8]) -> (Arc<InMemory>, ObjectMeta) {
        let store = Arc::new(InMemory::new());
        let path = Path::from("a.parquet");
        store.put(&path, content.into()).await.unwrap();
        let meta = store.head(&path).await.unwrap();
        (store, meta)
    }

    fn pinned(store: &Arc<InMemory>, meta: &ObjectMeta, kind: StoreKind) -> PinnedStore {
        PinnedStore::new(Arc::clone(store) as _, meta, kind, Count::new())
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
            assert_eq!(pinned.requests.value(), 1);
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
