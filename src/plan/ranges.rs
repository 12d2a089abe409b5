//! Which bytes the decoder will ask for.

use std::collections::BTreeSet;
use std::ops::Range;

use parquet::DecodeResult;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, RowSelection, RowSelector};
use parquet::arrow::push_decoder::ParquetPushDecoderBuilder;
use parquet::errors::Result;

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
    has_row_filter: bool,
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
        for leaf in 0..schema.num_columns() {
            let in_output = output.leaf_included(leaf);
            let in_filter = filter.is_some_and(|mask| mask.leaf_included(leaf));
            let is_flat = leaves_of_root[schema.get_column_root_idx(leaf)] == 1;
            if in_output && in_filter && is_flat && has_predicate_cache {
                batch_aligned.insert(leaf);
            } else if in_output || in_filter {
                plain.insert(leaf);
            }
        }
        Self {
            metadata,
            batch_size,
            plain,
            batch_aligned,
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
        let Some(selection) = &read.selection else {
            let all = self.plain.union(&self.batch_aligned).copied();
            return self.ask(read.row_group_idx, None, all, limit);
        };
        let mut ranges = self.ask(
            read.row_group_idx,
            Some(selection.clone()),
            self.plain.iter().copied(),
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
            DecodeResult::NeedsData(ranges) => Ok(ranges),
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
    use proptest::prelude::*;

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
