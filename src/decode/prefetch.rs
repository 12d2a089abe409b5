//! What a fetch that is needed anyway takes along.

use std::ops::Range;
use std::sync::Arc;

use datafusion::execution::memory_pool::MemoryReservation;
use log::debug;
use object_store::path::Path;

use super::read_ahead::ReadAhead;
use crate::fetch::{Requests, SpeculativeMemory, Staging, len};
use crate::metrics::ScanMetrics;
use crate::plan::{PlannedRowGroup, RangePlanner, RowGroupRead, ScanOrder, read_in_passing, widen};

/// How far ahead fetches reach, and what that may hold.
pub(crate) struct Prefetch {
    /// Bytes that may be buffered, staged and asked for at once. What the decoder requires is asked for in any case, so the
    /// peak is this and the required bytes of one row group.
    pub(crate) budget_bytes: u64,
    pub(crate) ranges: RangePlanner,
    /// Row groups after the current one that a fetch considers at most.
    pub(crate) max_row_groups: usize,
    /// Where speculative bytes are accounted for; `None` where the scan has no session to take a pool from.
    pub(crate) memory: Option<SpeculativeMemory>,
}

/// A fetch that may take more along, and what there is already.
pub(super) struct Widening<'a> {
    pub(super) location: &'a Path,
    pub(super) prefetch: &'a Prefetch,
    pub(super) staging: &'a Staging,
    pub(super) ahead: Option<&'a ReadAhead>,
    pub(super) handed_out: &'a HandedOut,
    pub(super) reads_in_passing: bool,
    pub(super) metrics: &'a ScanMetrics,
}

impl Widening<'_> {
    /// What to take along.
    pub(super) fn plan(
        &self,
        order: &ScanOrder,
        required: &[Range<u64>],
        buffered_bytes: u64,
    ) -> Vec<PlannedRowGroup> {
        let held_bytes = buffered_bytes
            .saturating_add(self.staging.bytes())
            .saturating_add(total_bytes(required));
        let room_bytes = self.prefetch.budget_bytes.saturating_sub(held_bytes);
        let mut planned = widen(
            order.pending().iter().take(self.prefetch.max_row_groups),
            room_bytes,
            order.rows_left_after_current(),
            |place| self.staging.contains(place) || self.is_read_ahead(place),
            |read, limit| self.ranges_of(read, limit),
        );
        if let Some(current) = order.current()
            && self.prefetch.ranges.has_row_filter()
            && self.reads_in_passing
        {
            self.take_along_what_is_read_in_passing(current, required, room_bytes, &mut planned);
        }
        planned
    }

    fn is_read_ahead(&self, place: usize) -> bool {
        self.ahead.is_some_and(|ahead| ahead.has_planned(place))
    }

    /// An error is no reason to fail: where it matters, the decoder will come upon it.
    fn ranges_of(&self, read: &RowGroupRead, limit: Option<usize>) -> Option<Vec<Range<u64>>> {
        let ranges = self.prefetch.ranges.ranges(read, limit);
        ranges
            .inspect_err(|error| debug!("{}: not prefetched: {error}", self.location))
            .ok()
    }

    /// Adds what the filter of the current row group may leave to be read of it, as far as it lies in gaps that the
    /// requests read in passing: else it would be thrown away now and asked for again. Later row groups give way to it.
    fn take_along_what_is_read_in_passing(
        &self,
        current: &RowGroupRead,
        required: &[Range<u64>],
        room_bytes: u64,
        planned: &mut Vec<PlannedRowGroup>,
    ) {
        let place = current.place;
        let mut rest = self.ranges_of(current, None).unwrap_or_default();
        rest.retain(|range| {
            !self.staging.holds(place, range)
                && !self.handed_out.touches(range)
                && self.ahead.is_none_or(|ahead| !ahead.holds(place, range))
        });
        let in_passing = |planned: &[PlannedRowGroup], rest: &[Range<u64>]| {
            let asked = asked(required, planned);
            let requests = Requests::plan(&asked, required.len());
            read_in_passing(&requests.ranges, &asked, rest)
        };
        let rest = in_passing(planned, &rest);
        let extra_bytes = total_bytes(&rest);
        let mut planned_bytes: u64 = planned.iter().map(|group| group.bytes).sum();
        while planned_bytes.saturating_add(extra_bytes) > room_bytes {
            let Some(last) = planned.pop() else { break };
            planned_bytes -= last.bytes;
        }
        // With fewer row groups there may be fewer gaps.
        let ranges = in_passing(planned, &rest);
        let bytes = total_bytes(&ranges);
        if bytes > 0 && planned_bytes.saturating_add(bytes) <= room_bytes {
            planned.insert(
                0,
                PlannedRowGroup {
                    place,
                    ranges,
                    bytes,
                },
            );
        }
    }

    /// Keeps as many of `planned` as the memory pool has room for, with what is read between them.
    pub(super) fn reserve(
        &self,
        required: &[Range<u64>],
        mut planned: Vec<PlannedRowGroup>,
    ) -> (Vec<PlannedRowGroup>, Option<Arc<MemoryReservation>>) {
        let Some(memory) = self
            .prefetch
            .memory
            .as_ref()
            .filter(|_| !planned.is_empty())
        else {
            return (planned, None);
        };
        let reservation = memory.new_empty();
        let granted = planned
            .iter()
            .take_while(|group| memory.try_grow(&reservation, group.bytes))
            .count();
        let mut is_refused = granted < planned.len();
        planned.truncate(granted);
        while !planned.is_empty() {
            let bridged_bytes =
                Requests::plan(&asked(required, &planned), required.len()).bridged_bytes;
            if memory.try_grow(&reservation, bridged_bytes) {
                break;
            }
            is_refused = true;
            planned.truncate(planned.len() / 2);
            let kept: u64 = planned.iter().map(|group| group.bytes).sum();
            reservation.resize(usize::try_from(kept).unwrap_or(usize::MAX));
        }
        if is_refused {
            self.metrics.prefetch_refused_count.add(1);
        }
        (planned, Some(Arc::new(reservation)))
    }
}

pub(super) fn total_bytes(ranges: &[Range<u64>]) -> u64 {
    ranges
        .iter()
        .fold(0, |bytes, range| bytes.saturating_add(len(range)))
}

/// Everything that one fetch asks for, what is required first.
pub(super) fn asked(required: &[Range<u64>], planned: &[PlannedRowGroup]) -> Vec<Range<u64>> {
    let planned = planned.iter().flat_map(|group| &group.ranges);
    required.iter().chain(planned).cloned().collect()
}

/// Ranges of one row group that the decoder has, which it will not ask for again.
#[derive(Debug, Default)]
pub(super) struct HandedOut {
    place: usize,
    /// By start, without overlap.
    ranges: Vec<Range<u64>>,
}

impl HandedOut {
    pub(super) fn add(&mut self, place: usize, ranges: &[Range<u64>]) {
        if self.place != place {
            self.place = place;
            self.ranges.clear();
        }
        self.ranges.extend_from_slice(ranges);
        self.ranges.sort_unstable_by_key(|range| range.start);
    }

    pub(super) fn touches(&self, range: &Range<u64>) -> bool {
        let before = self.ranges.partition_point(|used| used.start < range.end);
        before
            .checked_sub(1)
            .is_some_and(|last| self.ranges[last].end > range.start)
    }
}
