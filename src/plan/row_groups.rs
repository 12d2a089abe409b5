//! The row groups of a file in the order in which they are read.

use std::collections::VecDeque;

use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use parquet::file::metadata::ParquetMetaData;

/// One row group that the decoder will read.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RowGroupRead {
    /// Place in the scan order; unique within a file's scan and never reused, so it also names what is staged.
    pub(crate) place: usize,
    pub(crate) row_group_idx: usize,
    /// `None` where all rows are read.
    pub(crate) selection: Option<RowSelection>,
    /// Rows that are read before a row filter or a limit.
    pub(crate) selected_rows: usize,
}

/// The row groups that the decoder has not begun, in scan order, and the one it is working on.
///
/// The order is the access plan's after pruning, reordering and reversing, not the file's. It is kept in step with the
/// decoder through the number of row groups the decoder has left, so that row groups which the decoder finishes in silence
/// (its filter kept nothing) are passed here too.
#[derive(Debug)]
pub(crate) struct ScanOrder {
    pending: VecDeque<RowGroupRead>,
    current: Option<RowGroupRead>,
    /// Rows the decoder may still return, where that many selected rows end the scan: a limit, and no row filter.
    rows_left: Option<usize>,
    has_selection: bool,
}

impl ScanOrder {
    /// `selection` covers the rows of `row_group_indexes`, in that order.
    pub(crate) fn new(
        row_group_indexes: &[usize],
        selection: Option<RowSelection>,
        metadata: &ParquetMetaData,
        limit: Option<usize>,
    ) -> Self {
        let mut cursor = selection.map(SelectionCursor::new);
        let has_selection = cursor.is_some();
        let pending = row_group_indexes
            .iter()
            .enumerate()
            .map(|(place, &row_group_idx)| {
                let rows =
                    usize::try_from(metadata.row_group(row_group_idx).num_rows()).unwrap_or(0);
                let selection: Option<RowSelection> =
                    cursor.as_mut().map(|cursor| cursor.take(rows).into());
                let selected_rows = selection.as_ref().map_or(rows, RowSelection::row_count);
                RowGroupRead {
                    place,
                    row_group_idx,
                    selection: selection.filter(|_| selected_rows < rows),
                    selected_rows,
                }
            })
            .collect();
        Self {
            pending,
            current: None,
            rows_left: limit,
            has_selection,
        }
    }

    /// The same order with fewer row groups, or fewer rows of them, as for [`Self::new`]; places stay. `None` where it
    /// would be another order.
    pub(crate) fn narrowed(
        &self,
        row_group_indexes: &[usize],
        selection: Option<RowSelection>,
        metadata: &ParquetMetaData,
    ) -> Option<Self> {
        let mut order = Self::new(row_group_indexes, selection, metadata, self.rows_left);
        let mut former = self.pending.iter();
        for read in &mut order.pending {
            let former = former.find(|former| former.row_group_idx == read.row_group_idx)?;
            read.place = former.place;
        }
        Some(order)
    }

    /// Whether it came with a selection of rows.
    pub(crate) fn has_selection(&self) -> bool {
        self.has_selection
    }

    /// Follows the decoder, which has `remaining` row groups it has not begun.
    pub(crate) fn advance_to(&mut self, remaining: usize) {
        while self.pending.len() > remaining {
            if let Some(passed) = self.current.take() {
                self.rows_left = self
                    .rows_left
                    .map(|left| left.saturating_sub(passed.selected_rows));
            }
            self.current = self.pending.pop_front();
        }
    }

    /// The row group the decoder is working on, or has just finished.
    pub(crate) fn current(&self) -> Option<&RowGroupRead> {
        self.current.as_ref()
    }

    /// Row groups that the decoder has not begun, in scan order.
    pub(crate) fn pending(&self) -> &VecDeque<RowGroupRead> {
        &self.pending
    }

    /// Rows that may still be returned by the row groups after the current one.
    pub(crate) fn rows_left_after_current(&self) -> Option<usize> {
        let current = self
            .current
            .as_ref()
            .map_or(0, |current| current.selected_rows);
        self.rows_left.map(|left| left.saturating_sub(current))
    }

    /// Drops those of the first pending row groups that `verdicts` says to drop, and returns their places.
    ///
    /// Takes time in proportion to `verdicts`, however many row groups are pending.
    pub(crate) fn drop_pending(&mut self, verdicts: &[bool]) -> Vec<usize> {
        let count = verdicts.len().min(self.pending.len());
        let (dropped, kept): (Vec<_>, Vec<_>) = self
            .pending
            .drain(..count)
            .zip(verdicts)
            .partition(|(_, drop)| **drop);
        for (read, _) in kept.into_iter().rev() {
            self.pending.push_front(read);
        }
        dropped.into_iter().map(|(read, _)| read.place).collect()
    }
}

/// Cuts a selection over many row groups into one for each, in one pass.
pub(crate) struct SelectionCursor {
    selectors: std::vec::IntoIter<RowSelector>,
    rest: Option<RowSelector>,
}

impl SelectionCursor {
    pub(crate) fn new(selection: RowSelection) -> Self {
        let selectors: Vec<RowSelector> = selection.into();
        let mut selectors = selectors.into_iter();
        let rest = selectors.next();
        Self { selectors, rest }
    }

    /// The selectors of the next `rows` rows; of fewer where the selection ends before.
    pub(crate) fn take(&mut self, mut rows: usize) -> Vec<RowSelector> {
        let mut taken = Vec::new();
        while rows > 0 {
            let Some(selector) = self.rest else { break };
            let row_count = selector.row_count.min(rows);
            rows -= row_count;
            taken.push(RowSelector {
                row_count,
                skip: selector.skip,
            });
            self.rest = if row_count == selector.row_count {
                self.selectors.next()
            } else {
                Some(RowSelector {
                    row_count: selector.row_count - row_count,
                    skip: selector.skip,
                })
            };
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn order(rows: &[usize], limit: Option<usize>) -> ScanOrder {
        let pending = rows
            .iter()
            .enumerate()
            .map(|(place, &selected_rows)| RowGroupRead {
                place,
                row_group_idx: 10 + place,
                selection: None,
                selected_rows,
            })
            .collect();
        ScanOrder {
            pending,
            current: None,
            rows_left: limit,
            has_selection: false,
        }
    }

    #[test]
    fn follows_the_decoder_over_row_groups_it_passes_in_silence() {
        let mut order = order(&[5, 6, 7, 8], Some(20));
        order.advance_to(3);
        assert_eq!(order.current().unwrap().row_group_idx, 10);
        assert_eq!(order.rows_left_after_current(), Some(15));
        order.advance_to(1);
        assert_eq!(order.current().unwrap().row_group_idx, 12);
        assert_eq!(order.rows_left_after_current(), Some(2));
        order.advance_to(1);
        assert_eq!(order.pending().len(), 1);
    }

    #[test]
    fn dropping_keeps_the_order_of_the_rest() {
        let mut order = order(&[1; 6], None);
        assert_eq!(order.drop_pending(&[true, false, true]), [0, 2]);
        assert_eq!(
            order
                .pending()
                .iter()
                .map(|read| read.place)
                .collect::<Vec<_>>(),
            [1, 3, 4, 5]
        );
        assert_eq!(order.drop_pending(&[true; 9]), [1, 3, 4, 5]);
    }

    proptest! {
        #[test]
        fn cutting_a_selection_loses_no_row(
            rows in proptest::collection::vec(1usize..20, 1..12),
            seed in proptest::collection::vec(any::<bool>(), 240),
        ) {
            let total: usize = rows.iter().sum();
            let selection: RowSelection = seed[..total]
                .iter()
                .map(|&skip| RowSelector { row_count: 1, skip })
                .collect();
            let mut cursor = SelectionCursor::new(selection.clone());
            let mut whole = selection;
            for count in rows {
                let expected = whole.split_off(count);
                prop_assert_eq!(RowSelection::from(cursor.take(count)), expected);
            }
        }
    }
}
