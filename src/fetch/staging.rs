//! Bytes that came before the decoder asked for them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::execution::memory_pool::MemoryReservation;
use datafusion::physical_plan::metrics::Count;

use super::coalesce::{len, slice_of};
use crate::metrics::add_bytes;

/// Holds prefetched row groups until the decoder asks for them or passes them.
///
/// Row groups are keyed by their place in the scan order. A range is handed out once and stays within the row group it was
/// staged for, so a look-up never touches another row group.
#[derive(Debug)]
pub(crate) struct Staging {
    row_groups: BTreeMap<usize, StagedRowGroup>,
    bytes: u64,
    unused_bytes: Count,
}

#[derive(Debug, Default)]
struct StagedRowGroup {
    /// By start, without overlap.
    chunks: Vec<(Range<u64>, Bytes)>,
    bytes: u64,
    used_bytes: u64,
    /// One for each fetch. Shared by all row groups of it: their buffers may be slices of one allocation.
    reservations: Vec<Arc<MemoryReservation>>,
}

impl Staging {
    /// Bytes that are dropped without having been handed out are added to `unused_bytes`.
    pub(crate) fn new(unused_bytes: Count) -> Self {
        Self {
            row_groups: BTreeMap::new(),
            bytes: 0,
            unused_bytes,
        }
    }

    /// Bytes held, the handed-out part of a row group included until all of it is dropped.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn contains(&self, place: usize) -> bool {
        self.row_groups.contains_key(&place)
    }

    /// Whether `range` can be taken for the row group at `place`.
    pub(crate) fn holds(&self, place: usize, range: &Range<u64>) -> bool {
        self.row_groups
            .get(&place)
            .is_some_and(|group| slice_of(&group.chunks, range).is_some())
    }

    /// Keeps `chunks` for the row group at `place` of the scan order, next to what is kept for it already.
    pub(crate) fn insert(
        &mut self,
        place: usize,
        chunks: Vec<(Range<u64>, Bytes)>,
        reservation: Option<Arc<MemoryReservation>>,
    ) {
        let bytes: u64 = chunks.iter().map(|(range, _)| len(range)).sum();
        self.bytes += bytes;
        let group = self.row_groups.entry(place).or_default();
        group.bytes += bytes;
        group.chunks.extend(chunks);
        group.chunks.sort_unstable_by_key(|(range, _)| range.start);
        group.reservations.extend(reservation);
    }

    /// The bytes of `range`, where they are staged for the row group at `place`.
    pub(crate) fn take(&mut self, place: usize, range: &Range<u64>) -> Option<Bytes> {
        let group = self.row_groups.get_mut(&place)?;
        let slice = slice_of(&group.chunks, range)?;
        group.used_bytes += len(range);
        if group.used_bytes >= group.bytes {
            self.remove(place);
        }
        Some(slice)
    }

    /// Drops the row group at `place`.
    pub(crate) fn remove(&mut self, place: usize) {
        if let Some(group) = self.row_groups.remove(&place) {
            self.release(&group);
        }
    }

    /// Drops every row group before `place` of the scan order: the decoder has passed them.
    pub(crate) fn drop_before(&mut self, place: usize) {
        while let Some(entry) = self.row_groups.first_entry() {
            if *entry.key() >= place {
                break;
            }
            let group = entry.remove();
            self.release(&group);
        }
    }

    fn release(&mut self, group: &StagedRowGroup) {
        self.bytes -= group.bytes;
        let unused = group.bytes.saturating_sub(group.used_bytes);
        add_bytes(&self.unused_bytes, unused);
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.drop_before(usize::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};

    fn chunk(range: Range<u64>) -> (Range<u64>, Bytes) {
        let content: Vec<u8> = range.clone().map(|b| (b % 251) as u8).collect();
        (range, content.into())
    }

    #[test]
    fn hands_out_exactly_what_is_asked() {
        let mut staging = Staging::new(Count::new());
        staging.insert(0, vec![chunk(100..200), chunk(300..310)], None);
        assert_eq!(staging.bytes(), 110);
        assert_eq!(staging.take(0, &(150..160)), Some(chunk(150..160).1));
        assert_eq!(staging.take(0, &(300..310)), Some(chunk(300..310).1));
        for missing in [50..60, 190..210, 200..300, 305..320] {
            assert_eq!(staging.take(0, &missing), None, "{missing:?}");
        }
        assert_eq!(
            staging.take(1, &(150..160)),
            None,
            "staged for another row group"
        );
    }

    #[test]
    fn a_used_up_row_group_is_gone_and_an_unused_one_is_counted() {
        let unused = Count::new();
        let mut staging = Staging::new(unused.clone());
        staging.insert(0, vec![chunk(0..10), chunk(10..20)], None);
        staging.insert(1, vec![chunk(20..30)], None);
        staging.insert(2, vec![chunk(30..45)], None);
        staging.take(0, &(0..10));
        assert_eq!(staging.bytes(), 45);
        staging.take(0, &(10..20));
        assert_eq!((staging.bytes(), unused.value()), (25, 0));
        staging.drop_before(2);
        assert_eq!((staging.bytes(), unused.value()), (15, 10));
        staging.take(2, &(30..35));
        drop(staging);
        assert_eq!(unused.value(), 20);
    }

    #[test]
    fn a_reservation_lives_until_the_last_row_group_of_its_fetch_is_gone() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1000));
        let reservation = MemoryConsumer::new("test").register(&pool);
        reservation.try_grow(30).unwrap();
        let reservation = Arc::new(reservation);
        let mut staging = Staging::new(Count::new());
        staging.insert(0, vec![chunk(0..10)], Some(Arc::clone(&reservation)));
        staging.insert(1, vec![chunk(10..30)], Some(reservation));
        staging.take(0, &(0..10));
        assert_eq!(pool.reserved(), 30);
        staging.take(1, &(10..30));
        assert_eq!(pool.reserved(), 0);
    }
}
