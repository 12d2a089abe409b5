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
use object_store::{OBJECT_STORE_COALESCE_DEFAULT, ObjectStore};
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

impl ReaderFactory {
    /// Chooses for a scan on `store`, whose stock source carries `configured`.
    ///
    /// Stock's own factories are exchanged for ours, which read the same store in one generation. They can be told from a
    /// user's only by what they print, so the store they hold must print like the session's too: a factory over any
    /// other store is the user's.
    pub(crate) fn choose(
        store: Arc<dyn ObjectStore>,
        is_local_file: bool,
        configured: Option<&Arc<dyn ParquetFileReaderFactory>>,
        metadata_cache: Option<&Arc<FileMetadataCache>>,
    ) -> Self {
        let kind = if is_local_file {
            StoreKind::LocalFile
        } else {
            StoreKind::Remote
        };
        match configured {
            None => Self::Pinned {
                store,
                metadata_cache: None,
                kind,
            },
            Some(factory) => match (StockFactory::recognise(factory, &store), metadata_cache) {
                (Some(StockFactory::Default), _) => Self::Pinned {
                    store,
                    metadata_cache: None,
                    kind,
                },
                (Some(StockFactory::Cached), Some(cache)) => Self::Pinned {
                    store,
                    metadata_cache: Some(Arc::clone(cache)),
                    kind,
                },
                _ => Self::AsSet(Arc::clone(factory)),
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
        let (factory, counts_requests, bridged_gap_bytes) = match self {
            Self::AsSet(factory) => (Arc::clone(factory), false, OBJECT_STORE_COALESCE_DEFAULT),
            Self::Pinned {
                store,
                metadata_cache,
                kind,
            } => {
                let requests = metrics.fetch_request_count.clone();
                let store = PinnedStore::new(Arc::clone(store), &file.object_meta, *kind, requests);
                let store = Arc::new(store);
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
                (factory, true, kind.bridged_gap_bytes())
            }
        };
        FileReaders {
            factory,
            partition,
            file: file.clone(),
            metadata_size_hint,
            metrics_set: metrics_set.clone(),
            metrics: metrics.clone(),
            counts_requests,
            bridged_gap_bytes,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StockFactory {
    Default,
    Cached,
}

impl StockFactory {
    fn recognise(
        factory: &Arc<dyn ParquetFileReaderFactory>,
        store: &Arc<dyn ObjectStore>,
    ) -> Option<Self> {
        let printed = Prefix::of(factory.as_ref());
        let expected = Prefix::of(store.as_ref());
        [
            ("DefaultParquetFileReaderFactory { store: ", Self::Default),
            ("CachedParquetFileReaderFactory { store: ", Self::Cached),
        ]
        .into_iter()
        .find_map(|(head, kind)| {
            let rest = printed.strip_prefix(head)?;
            let common = rest.len().min(expected.len());
            (common > 0 && rest.as_bytes()[..common] == expected.as_bytes()[..common])
                .then_some(kind)
        })
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
    counts_requests: bool,
    bridged_gap_bytes: u64,
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
            counts_requests: self.counts_requests,
            bridged_gap_bytes: self.bridged_gap_bytes,
        })
    }
}

/// Measures what a scan waits for.
pub(crate) struct FileReader {
    inner: Box<dyn AsyncFileReader + Send>,
    metrics: ScanMetrics,
    /// Whether the reader adds its requests to the metrics itself; else each call counts as one.
    counts_requests: bool,
    bridged_gap_bytes: u64,
}

impl FileReader {
    /// Gaps between ranges that a request reads rather than splits, in bytes. A user's reader is taken to go through
    /// object_store's coalescing, as stock's does.
    pub(crate) fn bridged_gap_bytes(&self) -> u64 {
        self.bridged_gap_bytes
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
            counts_requests,
            ..
        } = self;
        Self::measured(metrics, *counts_requests, false, inner.get_bytes(range)).boxed()
    }

    fn get_byte_ranges(
        &mut self,
        ranges: Vec<Range<u64>>,
    ) -> BoxFuture<'_, parquet::errors::Result<Vec<Bytes>>> {
        let Self {
            inner,
            metrics,
            counts_requests,
            ..
        } = self;
        Self::measured(
            metrics,
            *counts_requests,
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
            counts_requests,
            ..
        } = self;
        Self::measured(metrics, *counts_requests, true, inner.get_metadata(options)).boxed()
    }
}
