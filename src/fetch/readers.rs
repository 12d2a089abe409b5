//! Who reads a file: readers of our own that pin the generation, or a user's as they are.

use std::fmt::{self, Write};
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::Result;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::{
    CachedParquetFileReaderFactory, DefaultParquetFileReaderFactory, ParquetFileReaderFactory,
};
use datafusion::execution::cache::cache_manager::FileMetadataCache;
use datafusion::physical_plan::metrics::{Count, ExecutionPlanMetricsSet};
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::ObjectStore;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::file::metadata::ParquetMetaData;
use std::ops::Range;

use super::generation::Generation;
use super::pinned_store::{PinnedStore, StoreKind};
use crate::metrics::ScanMetrics;

/// How the readers of a scan are made.
#[derive(Debug, Clone)]
pub(crate) enum ReaderFactory {
    /// Stock's readers over a store that pins the generation.
    Pinned {
        store: Arc<dyn ObjectStore>,
        metadata_cache: Option<Arc<FileMetadataCache>>,
        kind: StoreKind,
    },
    /// The factory that was set on the scan, used as it is.
    AsSet(Arc<dyn ParquetFileReaderFactory>),
}

/// Whose readers a scan uses. Decided when it is planned, once for all of its partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReaderChoice {
    /// Ours, in the place of stock's that cache nothing.
    Default,
    /// Ours, in the place of stock's that share the session's cache of file metadata.
    Cached,
    /// Those of the factory that was set on the scan.
    AsSet,
}

impl ReaderChoice {
    /// For a source that carries `factory`, to be read from `store`.
    ///
    /// Stock's own factories can be told from a user's only by what they print, so the store they hold must print like the
    /// session's too: a factory over any other store is the user's.
    pub(crate) fn of(
        factory: Option<&Arc<dyn ParquetFileReaderFactory>>,
        store: Option<&Arc<dyn ObjectStore>>,
    ) -> Self {
        let Some(factory) = factory else {
            return Self::Default;
        };
        let Some(store) = store else {
            return Self::AsSet;
        };
        let printed = Prefix::of(factory.as_ref());
        let expected = Prefix::of(store.as_ref());
        let is_of = |head: &str, tail: &str| {
            printed.strip_prefix(head).is_some_and(|rest| {
                // What was cut off cannot be compared, and with it not the end of it either.
                match rest.strip_prefix(expected.as_str()) {
                    Some(end) => end.is_empty() || end.starts_with(tail),
                    None => expected.len() >= Prefix::MAX_BYTES && expected.starts_with(rest),
                }
            })
        };
        if is_of("DefaultParquetFileReaderFactory { store: ", " }") {
            Self::Default
        } else if is_of(
            "CachedParquetFileReaderFactory { store: ",
            ", metadata_cache: ",
        ) {
            Self::Cached
        } else {
            Self::AsSet
        }
    }
}

impl ReaderFactory {
    /// `configured` is the factory that was set on the scan, `metadata_cache` the session's.
    pub(crate) fn new(
        choice: ReaderChoice,
        store: Arc<dyn ObjectStore>,
        is_local_file: bool,
        configured: Option<&Arc<dyn ParquetFileReaderFactory>>,
        metadata_cache: Option<Arc<FileMetadataCache>>,
    ) -> Self {
        let kind = if is_local_file {
            StoreKind::LocalFile
        } else {
            StoreKind::Remote
        };
        match (choice, configured) {
            (ReaderChoice::AsSet, Some(factory)) => Self::AsSet(Arc::clone(factory)),
            (ReaderChoice::Cached, _) => Self::Pinned {
                store,
                metadata_cache,
                kind,
            },
            (ReaderChoice::Default | ReaderChoice::AsSet, _) => Self::Pinned {
                store,
                metadata_cache: None,
                kind,
            },
        }
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
        let (factory, pinned): (Arc<dyn ParquetFileReaderFactory>, _) = match self {
            Self::AsSet(factory) => (Arc::clone(factory), None),
            Self::Pinned {
                store,
                metadata_cache,
                kind,
            } => {
                let requests = metrics.fetch_request_count.clone();
                let store = PinnedStore::new(Arc::clone(store), &file.object_meta, *kind, requests);
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
            pinned,
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

/// The beginning of what a value prints: a store in memory prints its content.
struct Prefix(String);

impl Prefix {
    const MAX_BYTES: usize = 4096;

    fn of(value: &(impl fmt::Debug + ?Sized)) -> String {
        let mut prefix = Self(String::new());
        // Ends with an error once it has enough, which is the point.
        let _ = write!(prefix, "{value:?}");
        prefix.0
    }
}

impl Write for Prefix {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        if self.0.len() >= Self::MAX_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(s);
        Ok(())
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
    pinned: Option<Arc<PinnedStore>>,
}

impl FileReaders {
    /// A reader of its own: an [`AsyncFileReader`] does one thing at a time.
    ///
    /// # Errors
    /// What the factory says.
    pub(crate) fn reader(&self) -> Result<FileReader> {
        let inner = self.factory.create_reader(
            self.partition,
            self.file.clone(),
            self.metadata_size_hint,
            &self.metrics_set,
        )?;
        Ok(FileReader {
            inner,
            metrics: self.metrics.clone(),
            pinned: self.pinned.clone(),
        })
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
        counts_requests: bool,
        one_after_another: bool,
        future: BoxFuture<'_, parquet::errors::Result<T>>,
    ) -> parquet::errors::Result<T> {
        let before = metrics.fetch_request_count.value();
        let timer = metrics.fetch_wait_time.timer();
        let result = future.await;
        timer.done();
        let rounds = if counts_requests {
            let made = requests_since(&metrics.fetch_request_count, before);
            if one_after_another { made } else { made.min(1) }
        } else {
            metrics.fetch_request_count.add(1);
            1
        };
        metrics.fetch_round_count.add(rounds);
        result
    }
}

/// The counter belongs to one partition's scan, which does one thing at a time.
fn requests_since(count: &Count, before: usize) -> usize {
    count.value().saturating_sub(before)
}

impl AsyncFileReader for FileReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, parquet::errors::Result<Bytes>> {
        let Self {
            inner,
            metrics,
            pinned,
        } = self;
        Self::measured(metrics, pinned.is_some(), false, inner.get_bytes(range)).boxed()
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
            pinned.is_some(),
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
        Self::measured(metrics, pinned.is_some(), true, inner.get_metadata(options)).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use object_store::prefix::PrefixStore;

    fn default_over(store: &Arc<dyn ObjectStore>) -> Arc<dyn ParquetFileReaderFactory> {
        Arc::new(DefaultParquetFileReaderFactory::new(Arc::clone(store)))
    }

    fn prefixed(prefix: &str) -> Arc<dyn ObjectStore> {
        Arc::new(PrefixStore::new(InMemory::new(), Path::from(prefix)))
    }

    #[test]
    fn stock_s_factories_are_known_by_their_store() {
        let store = prefixed("a");
        let cache = datafusion::execution::runtime_env::RuntimeEnv::default()
            .cache_manager
            .get_file_metadata_cache();
        let cached: Arc<dyn ParquetFileReaderFactory> = Arc::new(
            CachedParquetFileReaderFactory::new(Arc::clone(&store), cache),
        );
        let of = |factory: &Arc<dyn ParquetFileReaderFactory>, store: &Arc<dyn ObjectStore>| {
            ReaderChoice::of(Some(factory), Some(store))
        };
        assert_eq!(ReaderChoice::of(None, Some(&store)), ReaderChoice::Default);
        assert_eq!(of(&default_over(&store), &store), ReaderChoice::Default);
        assert_eq!(of(&cached, &store), ReaderChoice::Cached);
        assert_eq!(of(&cached, &prefixed("b")), ReaderChoice::AsSet);
        assert_eq!(ReaderChoice::of(Some(&cached), None), ReaderChoice::AsSet);
    }

    #[test]
    fn a_store_whose_print_goes_on_is_another() {
        let (short, long) = (prefixed("bucket"), prefixed("bucket/eu"));
        let of = |factory: &Arc<dyn ParquetFileReaderFactory>, store: &Arc<dyn ObjectStore>| {
            ReaderChoice::of(Some(factory), Some(store))
        };
        assert_eq!(of(&default_over(&long), &short), ReaderChoice::AsSet);
        assert_eq!(of(&default_over(&short), &long), ReaderChoice::AsSet);
    }

    #[tokio::test]
    async fn a_store_that_prints_its_objects_is_known_by_their_beginning() {
        let store = InMemory::new();
        let object = vec![b'x'; 100_000];
        object_store::ObjectStoreExt::put(&store, &Path::from("a"), object.into())
            .await
            .unwrap();
        let store: Arc<dyn ObjectStore> = Arc::new(store);
        let factory = default_over(&store);
        assert_eq!(
            ReaderChoice::of(Some(&factory), Some(&store)),
            ReaderChoice::Default
        );
        let empty: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        assert_eq!(
            ReaderChoice::of(Some(&factory), Some(&empty)),
            ReaderChoice::AsSet
        );
    }

    #[test]
    fn printing_ends_where_there_is_enough() {
        let large = vec![0u8; 10_000_000];
        assert!(Prefix::of(&large).len() < 2 * Prefix::MAX_BYTES);
    }
}
