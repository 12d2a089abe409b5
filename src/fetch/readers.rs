//! Who reads a file: readers of our own that pin the generation, or a user's as they are.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::Result;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::{
    CachedParquetFileReaderFactory, CachedParquetMetaData, DefaultParquetFileReaderFactory,
    ParquetFileReaderFactory,
};
use datafusion::execution::cache::cache_manager::{CachedFileMetadataEntry, FileMetadataCache};
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet};
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::ObjectStore;
use parking_lot::Mutex;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;

use super::generation::Generation;
use super::limits::RequestRules;
use super::limits::Urgency;
use super::pinned_store::{PinnedStore, StoreKind};
use super::reader_choice::ReaderChoice;
use super::tail::Tail;
use crate::metrics::ScanMetrics;
use crate::plan::RequestCost;

/// How the readers of a scan are made.
#[derive(Debug, Clone)]
pub(crate) struct ReaderFactory {
    maker: Maker,
    rules: RequestRules,
}

#[derive(Debug, Clone)]
enum Maker {
    /// Stock's readers over a store that pins the generation.
    Pinned {
        store: Arc<dyn ObjectStore>,
        metadata_cache: Option<Arc<FileMetadataCache>>,
        kind: StoreKind,
    },
    /// The factory that was set on the scan, used as it is.
    AsSet(Arc<dyn ParquetFileReaderFactory>),
}

impl ReaderFactory {
    /// `configured` is the factory that was set on the scan, `metadata_cache` the session's.
    pub(crate) fn new(
        choice: ReaderChoice,
        store: Arc<dyn ObjectStore>,
        is_local_file: bool,
        configured: Option<&Arc<dyn ParquetFileReaderFactory>>,
        metadata_cache: Option<Arc<FileMetadataCache>>,
        rules: RequestRules,
    ) -> Self {
        let kind = if is_local_file {
            StoreKind::LocalFile
        } else {
            StoreKind::Remote
        };
        let maker = match (choice, configured) {
            (ReaderChoice::AsSet, Some(factory)) => Maker::AsSet(Arc::clone(factory)),
            (ReaderChoice::Cached, _) => Maker::Pinned {
                store,
                metadata_cache,
                kind,
            },
            (ReaderChoice::Default | ReaderChoice::AsSet, _) => Maker::Pinned {
                store,
                metadata_cache: None,
                kind,
            },
        };
        Self { maker, rules }
    }

    fn metadata_cache(&self) -> Option<Arc<FileMetadataCache>> {
        match &self.maker {
            Maker::AsSet(_) => None,
            Maker::Pinned { metadata_cache, .. } => metadata_cache.clone(),
        }
    }

    /// Whether the metadata of `file` are at hand without a request.
    pub(crate) fn has_metadata_of(&self, file: &PartitionedFile) -> bool {
        let entry = self
            .metadata_cache()
            .and_then(|cache| cache.get(&file.object_meta.location));
        entry.is_some_and(|entry| entry.is_valid_for(&file.object_meta))
    }

    /// The readers of one file, which all read the same generation of it.
    pub(crate) fn readers_of(
        &self,
        partition: usize,
        file: &PartitionedFile,
        metadata_size_hint: Option<usize>,
        metrics_set: &ExecutionPlanMetricsSet,
        metrics: &ScanMetrics,
    ) -> FileReaders {
        let (factory, pinned): (Arc<dyn ParquetFileReaderFactory>, _) = match &self.maker {
            Maker::AsSet(factory) => (Arc::clone(factory), None),
            Maker::Pinned {
                store,
                metadata_cache,
                kind,
            } => {
                let rules = RequestRules {
                    keeps_tail: self.rules.keeps_tail && *kind == StoreKind::Remote,
                    ..self.rules.clone()
                };
                let store = PinnedStore::new(Arc::clone(store), &file.object_meta, *kind, rules);
                let pinned = Arc::new(store);
                let store = Arc::clone(&pinned);
                let factory: Arc<dyn ParquetFileReaderFactory> = match metadata_cache {
                    None => Arc::new(DefaultParquetFileReaderFactory::new(store)),
                    Some(cache) => {
                        drop_other_generation(cache, file);
                        Arc::new(CachedParquetFileReaderFactory::new(
                            store,
                            Arc::clone(cache),
                        ))
                    }
                };
                (factory, Some(pinned))
            }
        };
        FileReaders {
            factory,
            partition,
            file: file.clone(),
            metadata_size_hint,
            metrics_set: metrics_set.clone(),
            metrics: metrics.clone(),
            rules: self.rules.clone(),
            metadata_cache: self.metadata_cache(),
            pinned,
            spare: Arc::default(),
        }
    }
}

/// Stock's cache knows a file's generation by size and time of last modification only; the footer of one and the data of
/// another of the same second would be a mixture.
fn drop_other_generation(cache: &Arc<FileMetadataCache>, file: &PartitionedFile) {
    let location = &file.object_meta.location;
    if let Some(entry) = cache.get(location)
        && Generation::of(&entry.meta).has_other_e_tag(&Generation::of(&file.object_meta))
    {
        cache.remove(location);
    }
}

/// Makes readers of one file.
pub(crate) struct FileReaders {
    factory: Arc<dyn ParquetFileReaderFactory>,
    partition: usize,
    file: PartitionedFile,
    metadata_size_hint: Option<usize>,
    metrics_set: ExecutionPlanMetricsSet,
    metrics: ScanMetrics,
    rules: RequestRules,
    metadata_cache: Option<Arc<FileMetadataCache>>,
    pinned: Option<Arc<PinnedStore>>,
    /// A user's readers that have done their request: making one may cost more than a request.
    spare: Arc<Mutex<Vec<Box<dyn AsyncFileReader + Send>>>>,
}

impl FileReaders {
    /// A reader of its own: an [`AsyncFileReader`] does one thing at a time.
    ///
    /// # Errors
    /// What the factory says.
    pub(crate) fn reader(&self) -> Result<FileReader> {
        Ok(FileReader {
            inner: self.make()?,
            metrics: self.metrics.clone(),
            pinned: self.pinned.clone(),
        })
    }

    fn make(&self) -> Result<Box<dyn AsyncFileReader + Send>> {
        self.factory.create_reader(
            self.partition,
            self.file.clone(),
            self.metadata_size_hint,
            &self.metrics_set,
        )
    }

    /// Lets other readers of the file have `metadata`, where there is a cache for that.
    pub(crate) fn share_metadata(&self, metadata: &Arc<ParquetMetaData>) {
        if let Some(cache) = &self.metadata_cache {
            let location = &self.file.object_meta.location;
            let metadata = Arc::new(CachedParquetMetaData::new(Arc::clone(metadata)));
            let entry = CachedFileMetadataEntry::new(self.file.object_meta.clone(), metadata);
            cache.put(location, entry);
        }
    }

    /// Longest request that is not split.
    pub(crate) fn max_request_bytes(&self) -> u64 {
        self.rules.max_bytes()
    }

    /// Whether any request that was made ahead, for any file of the scan, is under way.
    pub(crate) fn has_requests_ahead(&self) -> bool {
        self.rules.limits.has_requests_ahead()
    }

    /// What a request has cost so far, where that is known.
    pub(crate) fn request_cost(&self) -> Option<RequestCost> {
        self.rules.times.cost()
    }

    /// Whether what is read ahead has to be added to stock's metrics: a user's readers do it themselves.
    pub(crate) fn are_pinned(&self) -> bool {
        self.pinned.is_some()
    }

    /// What was read of the file's end, where it was kept.
    pub(crate) fn take_tail(&self) -> Option<Tail> {
        self.pinned.as_ref()?.take_tail()
    }

    /// Reads `range` beside whatever else is being read of the file. Counts its requests in `requests`.
    pub(crate) fn read_ahead(
        &self,
        range: Range<u64>,
        requests: Count,
        urgency: Urgency,
    ) -> BoxFuture<'static, parquet::errors::Result<Bytes>> {
        let under_way = self.rules.limits.begin_ahead();
        if let Some(store) = &self.pinned {
            let store = Arc::clone(store);
            return async move {
                let _under_way = under_way;
                store
                    .read_ahead(range, urgency, requests)
                    .await
                    .map_err(|error| ParquetError::External(Box::new(error)))
            }
            .boxed();
        }
        let spare = Arc::clone(&self.spare);
        let reader = match spare.lock().pop() {
            Some(reader) => Ok(reader),
            None => self.make(),
        };
        let rules = self.rules.clone();
        async move {
            let _under_way = under_way;
            let mut reader = reader.map_err(|error| ParquetError::External(Box::new(error)))?;
            let _slot = rules.limits.enter(&urgency).await;
            rules.requests.add(1);
            requests.add(1);
            let bytes = reader.get_bytes(range).await?;
            spare.lock().push(reader);
            Ok(bytes)
        }
        .boxed()
    }
}

/// Measures what a scan waits for.
pub(crate) struct FileReader {
    inner: Box<dyn AsyncFileReader + Send>,
    metrics: ScanMetrics,
    /// The store that `inner` reads from, where it is ours: it adds its requests to the metrics. A call of any other reader
    /// counts as one request.
    pinned: Option<Arc<PinnedStore>>,
}

impl FileReader {
    /// Adds what is waited for to `metrics` from now on.
    pub(crate) fn count_in(&mut self, metrics: &ScanMetrics) {
        self.metrics = metrics.clone();
    }

    /// Whether requests read what lies between neighbouring ranges. A user's reader is taken to go through object_store's
    /// coalescing, as stock's does.
    pub(crate) fn reads_in_passing(&self) -> bool {
        self.pinned
            .as_ref()
            .is_none_or(|store| store.kind() == StoreKind::Remote)
    }

    /// Reads `ranges`, of which the first `required_count` are required and the others speculative.
    pub(crate) async fn fetch(
        &mut self,
        ranges: Vec<Range<u64>>,
        required_count: usize,
    ) -> parquet::errors::Result<Vec<Bytes>> {
        if let Some(store) = &self.pinned {
            store.announce(required_count);
        }
        self.get_byte_ranges(ranges).await
    }

    /// Counts a wait for `future`. Requests made while fetching metadata follow one another, all others go out together.
    async fn measured<T>(
        metrics: &ScanMetrics,
        pinned: Option<&PinnedStore>,
        one_after_another: bool,
        future: BoxFuture<'_, parquet::errors::Result<T>>,
    ) -> parquet::errors::Result<T> {
        let before = pinned.map_or(0, PinnedStore::awaited_requests);
        let timer = metrics.fetch_wait_time.timer();
        let result = future.await;
        timer.done();
        let rounds = match pinned {
            Some(pinned) => {
                let made = pinned.awaited_requests().saturating_sub(before);
                if one_after_another { made } else { made.min(1) }
            }
            None => {
                metrics.fetch_request_count.add(1);
                metrics.required_request_count.add(1);
                1
            }
        };
        metrics.fetch_round_count.add(rounds);
        result
    }
}

impl AsyncFileReader for FileReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, parquet::errors::Result<Bytes>> {
        let Self {
            inner,
            metrics,
            pinned,
        } = self;
        Self::measured(metrics, pinned.as_deref(), false, inner.get_bytes(range)).boxed()
    }

    fn get_byte_ranges(
        &mut self,
        ranges: Vec<Range<u64>>,
    ) -> BoxFuture<'_, parquet::errors::Result<Vec<Bytes>>> {
        let Self {
            inner,
            metrics,
            pinned,
        } = self;
        Self::measured(
            metrics,
            pinned.as_deref(),
            false,
            inner.get_byte_ranges(ranges),
        )
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, parquet::errors::Result<Arc<ParquetMetaData>>> {
        let Self {
            inner,
            metrics,
            pinned,
        } = self;
        Self::measured(
            metrics,
            pinned.as_deref(),
            true,
            inner.get_metadata(options),
        )
        .boxed()
    }
}
