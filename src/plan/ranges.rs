//! Which bytes the decoder will ask for.

use std::collections::BTreeSet;
use std::ops::Range;

use parquet::DecodeResult;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, RowSelection, RowSelector};
use parquet::arrow::push_decoder::ParquetPushDecoderBuilder;
use parquet::errors::{ParquetError, Result};

use super::RowGroupRead;

/// Works out the byte ranges of a row group by asking a decoder of its own, so that what is prefetched cannot drift apart
/// from what the scan's decoder will request.
#[derive(Debug)]
pub(crate) struct RangePlanner {
    metadata: ArrowReaderMetadata,
    batch_size: usize,
    /// Leaf columns read for the rows of the selection.
    plain: BTreeSet<usize>,
    /// Leaf columns that a row filter reads and the projection reuses: the decoder reads them in whole batches.
    batch_aligned: BTreeSet<usize>,
    /// Those of `plain` that are read only for rows that a row filter keeps.
    conditional: BTreeSet<usize>,
    has_row_filter: bool,
}

/// What a row group takes, by when it is known to be needed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct RowGroupRanges {
    /// Needed in any case.
    pub(crate) certain: Vec<Range<u64>>,
    /// Needed only if a row filter keeps rows.
    pub(crate) conditional: Vec<Range<u64>>,
}

impl RangePlanner {
    /// `output` and `filter` are the leaf columns of the projection and of the row filter. With a predicate cache, the
    /// decoder reads columns of both, unless nested, in whole batches of `batch_size` rows.
    pub(crate) fn new(
        metadata: ArrowReaderMetadata,
        batch_size: usize,
        output: &ProjectionMask,
        filter: Option<&ProjectionMask>,
        has_predicate_cache: bool,
    ) -> Self {
        let schema = metadata.parquet_schema();
        let mut leaves_of_root = vec![0usize; schema.root_schema().get_fields().len()];
        for leaf in 0..schema.num_columns() {
            leaves_of_root[schema.get_column_root_idx(leaf)] += 1;
        }
        let mut plain = BTreeSet::new();
        let mut batch_aligned = BTreeSet::new();
        let mut conditional = BTreeSet::new();
        for leaf in 0..schema.num_columns() {
            let in_output = output.leaf_included(leaf);
            let in_filter = filter.is_some_and(|mask| mask.leaf_included(leaf));
            let is_flat = leaves_of_root[schema.get_column_root_idx(leaf)] == 1;
            if in_output && in_filter && is_flat && has_predicate_cache {
                batch_aligned.insert(leaf);
            } else if in_output || in_filter {
                plain.insert(leaf);
                if filter.is_some() && !in_filter {
                    conditional.insert(leaf);
                }
            }
        }
        Self {
            metadata,
            batch_size,
            plain,
            batch_aligned,
            conditional,
            has_row_filter: filter.is_some(),
        }
    }

    /// Whether a row group may be asked for in more than one step: for its filter, and for the rows that this keeps.
    pub(crate) fn has_row_filter(&self) -> bool {
        self.has_row_filter
    }

    /// File-absolute, half-open ranges that decoding `read` takes, of which at most `limit` rows are returned.
    ///
    /// # Errors
    /// Where the decoder refuses the metadata; the scan's own decoder will report it.
    pub(crate) fn ranges(
        &self,
        read: &RowGroupRead,
        limit: Option<usize>,
    ) -> Result<Vec<Range<u64>>> {
        self.ranges_of(read, limit, &self.plain)
    }

    /// As [`Self::ranges`], with what only a row filter can make necessary apart.
    ///
    /// # Errors
    /// As [`Self::ranges`].
    pub(crate) fn split_ranges(
        &self,
        read: &RowGroupRead,
        limit: Option<usize>,
    ) -> Result<RowGroupRanges> {
        if self.conditional.is_empty() {
            return Ok(RowGroupRanges {
                certain: self.ranges(read, limit)?,
                conditional: Vec::new(),
            });
        }
        let certain = self.plain.difference(&self.conditional).copied().collect();
        Ok(RowGroupRanges {
            certain: self.ranges_of(read, limit, &certain)?,
            conditional: self.ask(
                read.row_group_idx,
                read.selection.clone(),
                self.conditional.iter().copied(),
                limit,
            )?,
        })
    }

    fn ranges_of(
        &self,
        read: &RowGroupRead,
        limit: Option<usize>,
        plain: &BTreeSet<usize>,
    ) -> Result<Vec<Range<u64>>> {
        let Some(selection) = &read.selection else {
            let all = plain.union(&self.batch_aligned).copied();
            return self.ask(read.row_group_idx, None, all, limit);
        };
        let mut ranges = self.ask(
            read.row_group_idx,
            Some(selection.clone()),
            plain.iter().copied(),
            limit,
        )?;
        if !self.batch_aligned.is_empty() {
            ranges.extend(self.ask(
                read.row_group_idx,
                Some(widen_to_batches(selection, self.batch_size)),
                self.batch_aligned.iter().copied(),
                limit,
            )?);
        }
        Ok(ranges)
    }

    fn ask(
        &self,
        row_group_idx: usize,
        selection: Option<RowSelection>,
        leaves: impl Iterator<Item = usize>,
        limit: Option<usize>,
    ) -> Result<Vec<Range<u64>>> {
        let leaves: Vec<usize> = leaves.collect();
        let row_group = self.metadata.metadata().row_group(row_group_idx);
        // The decoder takes sizes and offsets for granted, and panics on negative ones. It may never come to this row group.
        if let Some(leaf) = leaves.iter().find(|&&leaf| {
            let column = row_group.column(leaf);
            column.compressed_size() < 0
                || column.data_page_offset() < 0
                || column.dictionary_page_offset().is_some_and(|at| at < 0)
        }) {
            return Err(ParquetError::General(format!(
                "row group {row_group_idx}, column {leaf}: negative offset or size"
            )));
        }
        let mask = ProjectionMask::leaves(self.metadata.parquet_schema(), leaves);
        let mut builder = ParquetPushDecoderBuilder::new_with_metadata(self.metadata.clone())
            .with_projection(mask)
            .with_batch_size(self.batch_size)
            .with_row_groups(vec![row_group_idx]);
        if let Some(selection) = selection {
            builder = builder.with_row_selection(selection);
        }
        if let Some(limit) = limit {
            builder = builder.with_limit(limit);
        }
        match builder.build()?.try_next_reader()? {
            DecodeResult::NeedsData(ranges) => Ok(ranges
                .into_iter()
                .filter(|range| !range.is_empty())
                .collect()),
            DecodeResult::Data(_) | DecodeResult::Finished => Ok(Vec::new()),
        }
    }
}

/// The batches of `batch_size` rows, counted from the row group's start, that hold a selected row.
fn widen_to_batches(selection: &RowSelection, batch_size: usize) -> RowSelection {
    let total: usize = selection.iter().map(|selector| selector.row_count).sum();
    let mut widened: Vec<Range<usize>> = Vec::new();
    let mut row = 0;
    for selector in selection.iter() {
        let end = row + selector.row_count;
        if !selector.skip && selector.row_count > 0 {
            let from = row / batch_size * batch_size;
            let to = end
                .div_ceil(batch_size)
                .saturating_mul(batch_size)
                .min(total);
            match widened.last_mut() {
                Some(last) if last.end >= from => last.end = to,
                _ => widened.push(from..to),
            }
        }
        row = end;
    }
    let mut selectors = Vec::with_capacity(2 * widened.len() + 1);
    let mut row = 0;
    for range in widened {
        selectors.push(RowSelector::skip(range.start - row));
        selectors.push(RowSelector::select(range.end - range.start));
        row = range.end;
    }
    selectors.push(RowSelector::skip(total - row));
    selectors.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow::array::{Int64Array, RecordBatch};
    use bytes::Bytes;
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::ArrowReaderOptions;
    use parquet::file::metadata::{
        ColumnChunkMetaDataBuilder, PageIndexPolicy, ParquetMetaData, ParquetMetaDataBuilder,
    };
    use parquet::file::properties::WriterProperties;
    use proptest::prelude::*;

    /// Two row groups of 100 rows in pages of 10, columns `a` and `b`.
    fn metadata() -> ArrowReaderMetadata {
        let column = Arc::new(Int64Array::from_iter_values(0..200));
        let batch =
            RecordBatch::try_from_iter([("a", Arc::clone(&column) as _), ("b", column as _)])
                .unwrap();
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(100))
            .set_data_page_row_count_limit(10)
            .set_write_batch_size(10)
            .set_dictionary_enabled(false)
            .build();
        let mut writer =
            ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        let file = Bytes::from(writer.into_inner().unwrap());
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Required);
        ArrowReaderMetadata::load(&file, options).unwrap()
    }

    fn planner(
        metadata: ArrowReaderMetadata,
        filter: Option<&[usize]>,
        batch_size: usize,
    ) -> RangePlanner {
        let mask =
            |leaves: &[usize]| ProjectionMask::leaves(metadata.parquet_schema(), leaves.to_vec());
        let (output, filter) = (mask(&[0]), filter.map(mask));
        RangePlanner::new(metadata.clone(), batch_size, &output, filter.as_ref(), true)
    }

    fn read(row_group_idx: usize, selected: Option<Range<usize>>) -> RowGroupRead {
        let selection =
            selected.map(|rows| RowSelection::from_consecutive_ranges(std::iter::once(rows), 100));
        let selected_rows = selection.as_ref().map_or(100, RowSelection::row_count);
        RowGroupRead {
            place: 0,
            row_group_idx,
            selection,
            selected_rows,
        }
    }

    fn pages(metadata: &ParquetMetaData, leaf: usize, pages: Range<usize>) -> Range<u64> {
        let locations = &metadata.offset_index().unwrap()[1][leaf].page_locations;
        let start = |page: usize| u64::try_from(locations[page].offset).unwrap();
        let last = &locations[pages.end - 1];
        start(pages.start)..start(pages.end - 1) + u64::try_from(last.compressed_page_size).unwrap()
    }

    fn span(ranges: &[Range<u64>]) -> Range<u64> {
        ranges.iter().map(|range| range.start).min().unwrap()
            ..ranges.iter().map(|range| range.end).max().unwrap()
    }

    #[test]
    fn a_whole_row_group_is_its_chunks() {
        let metadata = metadata();
        let group = metadata.metadata().row_group(1);
        let chunk = |leaf: usize| {
            let (start, len) = group.column(leaf).byte_range();
            start..start + len
        };
        let ranges = planner(metadata.clone(), None, 10)
            .ranges(&read(1, None), None)
            .unwrap();
        assert_eq!(ranges, [chunk(0)]);
        let ranges = planner(metadata.clone(), Some(&[1]), 10)
            .ranges(&read(1, None), None)
            .unwrap();
        assert_eq!(ranges, [chunk(0), chunk(1)]);
    }

    #[test]
    fn what_a_filter_decides_on_is_told_apart() {
        let metadata = metadata();
        for filter in [None, Some(&[1][..]), Some(&[0][..])] {
            let planner = planner(metadata.clone(), filter, 10);
            for read in [read(1, None), read(0, Some(35..70))] {
                let RowGroupRanges {
                    certain,
                    conditional,
                } = planner.split_ranges(&read, None).unwrap();
                assert_eq!(conditional.is_empty(), filter != Some(&[1]));
                let mut all = [certain, conditional].concat();
                let mut expected = planner.ranges(&read, None).unwrap();
                all.sort_by_key(|range| range.start);
                expected.sort_by_key(|range| range.start);
                assert_eq!(all, expected);
            }
        }
    }

    #[test]
    fn a_selection_is_its_pages_and_a_limit_ends_them() {
        let metadata = metadata();
        let planner = planner(metadata.clone(), None, 10);
        let ranges = planner.ranges(&read(1, Some(35..70)), None).unwrap();
        assert_eq!(span(&ranges), pages(metadata.metadata(), 0, 3..7));
        let ranges = planner.ranges(&read(1, Some(35..70)), Some(10)).unwrap();
        assert_eq!(span(&ranges), pages(metadata.metadata(), 0, 3..5));
    }

    #[test]
    fn a_column_of_filter_and_projection_is_read_in_batches() {
        let metadata = metadata();
        let planner = planner(metadata.clone(), Some(&[0]), 40);
        // Rows 45 to 50 are in the batch of rows 40 to 80.
        let ranges = planner.ranges(&read(1, Some(45..50)), None).unwrap();
        assert_eq!(span(&ranges), pages(metadata.metadata(), 0, 4..8));
    }

    #[test]
    fn negative_sizes_are_an_error_and_no_panic() {
        let metadata = metadata();
        let damaged = |change: fn(ColumnChunkMetaDataBuilder) -> ColumnChunkMetaDataBuilder| {
            let builder: ParquetMetaDataBuilder =
                metadata.metadata().as_ref().clone().into_builder();
            let groups: Vec<_> = metadata.metadata().row_groups().to_vec();
            let groups = groups.into_iter().map(|group| {
                let columns = group
                    .columns()
                    .iter()
                    .map(|column| change(column.clone().into_builder()).build().unwrap());
                let columns = columns.collect();
                group
                    .into_builder()
                    .set_column_metadata(columns)
                    .build()
                    .unwrap()
            });
            let damaged = builder.set_row_groups(groups.collect()).build();
            ArrowReaderMetadata::try_new(Arc::new(damaged), ArrowReaderOptions::new()).unwrap()
        };
        for change in [
            |column: ColumnChunkMetaDataBuilder| column.set_total_compressed_size(-1),
            |column: ColumnChunkMetaDataBuilder| column.set_data_page_offset(-5),
            |column: ColumnChunkMetaDataBuilder| column.set_dictionary_page_offset(Some(-5)),
        ] {
            let planner = planner(damaged(change), None, 10);
            assert!(planner.ranges(&read(1, None), None).is_err());
        }
    }

    proptest! {
        #[test]
        fn widening_covers_whole_batches_and_no_other(
            rows in proptest::collection::vec(any::<bool>(), 1..200),
            batch_size in 1usize..40,
        ) {
            let selection: RowSelection =
                rows.iter().map(|&skip| RowSelector { row_count: 1, skip }).collect();
            let widened: Vec<bool> = widen_to_batches(&selection, batch_size)
                .iter()
                .flat_map(|selector| std::iter::repeat_n(!selector.skip, selector.row_count))
                .collect();
            prop_assert_eq!(widened.len(), rows.len());
            for (batch, chunk) in rows.chunks(batch_size).enumerate() {
                let wanted = chunk.iter().any(|&skip| !skip);
                let start = batch * batch_size;
                for &got in &widened[start..start + chunk.len()] {
                    prop_assert_eq!(got, wanted);
                }
            }
        }
    }
}
