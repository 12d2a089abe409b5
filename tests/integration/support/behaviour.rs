//! One complete `ObjectStore` wrapper, and the places where a behaviour may step in.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, OBJECT_STORE_COALESCE_DEFAULT,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    Result, coalesce_ranges,
};

/// How a store's reads differ from those of the store that it wraps.
#[async_trait]
pub(crate) trait Behaviour: fmt::Debug + Send + Sync + 'static {
    async fn get_opts(
        &self,
        inner: &Arc<dyn ObjectStore>,
        location: &Path,
        options: GetOptions,
    ) -> Result<GetResult> {
        inner.get_opts(location, options).await
    }

    /// As `object_store` does it for a store that has only `get_opts`.
    async fn get_ranges(
        &self,
        inner: &Arc<dyn ObjectStore>,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>> {
        let fetch = |range: Range<u64>| {
            let options = GetOptions::new().with_range(Some(range));
            async move { self.get_opts(inner, location, options).await?.bytes().await }
        };
        coalesce_ranges(ranges, fetch, OBJECT_STORE_COALESCE_DEFAULT).await
    }

    /// What is known of an object, in listings and with answers.
    fn meta(&self, meta: ObjectMeta) -> ObjectMeta {
        meta
    }
}

/// A store that forwards only `get_opts`, as many wrappers in the field do.
#[derive(Debug)]
pub(crate) struct OnlyGetOpts;

#[async_trait]
impl Behaviour for OnlyGetOpts {}

/// A store without ETags and versions.
#[derive(Debug)]
pub(crate) struct Untagged;

#[async_trait]
impl Behaviour for Untagged {
    async fn get_opts(
        &self,
        inner: &Arc<dyn ObjectStore>,
        location: &Path,
        options: GetOptions,
    ) -> Result<GetResult> {
        if options.if_match.is_some() || options.version.is_some() {
            return Err(object_store::Error::NotSupported {
                source: "this store knows neither ETags nor versions".into(),
            });
        }
        inner.get_opts(location, options).await
    }

    fn meta(&self, meta: ObjectMeta) -> ObjectMeta {
        ObjectMeta {
            e_tag: None,
            version: None,
            ..meta
        }
    }
}

/// A store whose `get_ranges` leaves out the last answer, once it is armed: stock's own planning panics on it.
#[derive(Debug, Clone, Default)]
pub(crate) struct TooFewAnswers {
    armed: Arc<AtomicBool>,
}

impl TooFewAnswers {
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }
}

#[async_trait]
impl Behaviour for TooFewAnswers {
    async fn get_ranges(
        &self,
        inner: &Arc<dyn ObjectStore>,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>> {
        let mut answers = inner.get_ranges(location, ranges).await?;
        if self.armed.load(Ordering::SeqCst) {
            answers.pop();
        }
        Ok(answers)
    }
}

/// A store with a [`Behaviour`].
#[derive(Debug)]
pub(crate) struct Behaving<B> {
    inner: Arc<dyn ObjectStore>,
    behaviour: Arc<B>,
}

impl<B: Behaviour> Behaving<B> {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, behaviour: B) -> Self {
        Self {
            inner,
            behaviour: Arc::new(behaviour),
        }
    }
}

impl<B: Behaviour> fmt::Display for Behaving<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({})", self.behaviour, self.inner)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<B: Behaviour> ObjectStore for Behaving<B> {
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
        let result = self
            .behaviour
            .get_opts(&self.inner, location, options)
            .await?;
        let meta = self.behaviour.meta(result.meta);
        Ok(GetResult { meta, ..result })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.behaviour
            .get_ranges(&self.inner, location, ranges)
            .await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let behaviour = Arc::clone(&self.behaviour);
        self.inner
            .list(prefix)
            .map(move |meta| Ok(behaviour.meta(meta?)))
            .boxed()
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let behaviour = Arc::clone(&self.behaviour);
        let items = self.inner.list_with_offset(prefix, offset);
        items.map(move |meta| Ok(behaviour.meta(meta?))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let list = self.inner.list_with_delimiter(prefix).await?;
        let objects = list
            .objects
            .into_iter()
            .map(|meta| self.behaviour.meta(meta))
            .collect();
        Ok(ListResult { objects, ..list })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}
