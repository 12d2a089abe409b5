//! Page index and bloom filters, read together: each on its own is a round trip of few bytes.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use log::debug;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::{AsyncFileReader, MetadataFetch};
use parquet::errors::Result;
use parquet::file::metadata::ParquetMetaData;

use super::prune::PrunedFile;
use crate::fetch::{FileReader, len, slice_of};

/// Bytes that are read together at most: what is beyond is read one by one, as its turn comes.
const MAX_BYTES: u64 = 32 << 20;

/// Ranges of a file and their bytes, by start, without overlap.
pub(super) type Chunks = Arc<Vec<(Range<u64>, Bytes)>>;

impl PrunedFile {
    /// Reads what the next two steps want of the file, in one round. Where that fails, they read it themselves.
    pub(crate) async fn read_indexes(mut self) -> Self {
        let mut wanted: Vec<Range<u64>> = self.page_index_range().into_iter().collect();
        wanted.extend(self.bloom_filter_ranges());
        let mut left = MAX_BYTES;
        wanted.retain(|range| {
            let fits = !range.is_empty() && len(range) <= left;
            left -= if fits { len(range) } else { 0 };
            fits
        });
        wanted.sort_unstable_by_key(|range| range.start);
        let is_disjoint = wanted.windows(2).all(|pair| pair[0].end <= pair[1].start);
        // What is alone is read as well by whoever wants it.
        if wanted.len() < 2 || !is_disjoint {
            return self;
        }
        let opening = &mut self.adapted.opening;
        match opening.reader.get_byte_ranges(wanted.clone()).await {
            Ok(bytes) if bytes.len() == wanted.len() => {
                self.indexes = Arc::new(wanted.into_iter().zip(bytes).collect());
            }
            Ok(bytes) => debug!(
                "{}: asked for {} ranges of indexes, got {}",
                opening.file_name,
                wanted.len(),
                bytes.len()
            ),
            Err(error) => debug!(
                "{}: indexes are read one by one, together they cannot be: {error}",
                opening.file_name
            ),
        }
        self
    }

    /// All of the page index, which is read as a whole, where it is going to be read.
    fn page_index_range(&self) -> Option<Range<u64>> {
        if !self.wants_page_index() {
            return None;
        }
        let metadata = self.adapted.metadata.metadata();
        let columns = metadata
            .row_groups()
            .iter()
            .flat_map(|row_group| row_group.columns());
        columns
            .flat_map(|column| {
                [
                    range(column.column_index_offset(), column.column_index_length()),
                    range(column.offset_index_offset(), column.offset_index_length()),
                ]
            })
            .flatten()
            .reduce(|all, part| all.start.min(part.start)..all.end.max(part.end))
    }

    /// Those of all row groups that are left, as far as the metadata knows their lengths.
    fn bloom_filter_ranges(&self) -> Vec<Range<u64>> {
        let metadata = self.adapted.metadata.metadata();
        let columns = self.bloom_filter_columns();
        self.row_groups
            .row_group_indexes()
            .flat_map(|idx| columns.iter().map(move |(_, leaf)| (idx, *leaf)))
            .filter_map(|(idx, leaf)| {
                let column = metadata.row_group(idx).column(leaf);
                range(column.bloom_filter_offset(), column.bloom_filter_length())
            })
            .collect()
    }
}

fn range(offset: Option<i64>, length: Option<i32>) -> Option<Range<u64>> {
    let start = u64::try_from(offset?).ok()?;
    Some(start..start.checked_add(u64::try_from(length?).ok()?)?)
}

/// A reader for which some ranges have been read before.
pub(super) struct Foresighted<R> {
    pub(super) chunks: Chunks,
    pub(super) reader: R,
}

impl MetadataFetch for Foresighted<&mut FileReader> {
    fn fetch(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        match slice_of(&self.chunks, &range) {
            Some(bytes) => ready(Ok(bytes)).boxed(),
            None => self.reader.get_bytes(range),
        }
    }
}

impl AsyncFileReader for Foresighted<FileReader> {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        match slice_of(&self.chunks, &range) {
            Some(bytes) => ready(Ok(bytes)).boxed(),
            None => self.reader.get_bytes(range),
        }
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        self.reader.get_metadata(options)
    }
}
