//! Where the decoder's bytes come from: what is staged, or a fetch that is widened on the way.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use log::debug;
use object_store::path::Path;

use crate::error::FetchError;
use crate::fetch::{FileReader, Requests, Staging, len};
use crate::metrics::{ScanMetrics, add_bytes};
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

/// A memory pool, and this scan's account with it.
pub(crate) struct SpeculativeMemory {
    pool: Arc<dyn MemoryPool>,
    account: MemoryReservation,
}

impl SpeculativeMemory {
    /// `name` is what the pool knows the account by.
    pub(crate) fn new(pool: &Arc<dyn MemoryPool>, name: String) -> Self {
        Self {
            pool: Arc::clone(pool),
            account: MemoryConsumer::new(name).register(pool),
        }
    }

    /// Adds `bytes` to `reservation` unless the pool refuses, or would be more than half full: operators cannot take back
    /// what was prefetched, and a query that fits without it is to fit with it.
    fn try_grow(&self, reservation: &MemoryReservation, bytes: u64) -> bool {
        let Ok(bytes) = usize::try_from(bytes) else {
            return false;
        };
        if let MemoryLimit::Finite(limit) = self.pool.memory_limit()
            && self.pool.reserved().saturating_add(bytes) > limit / 2
        {
            return false;
        }
        reservation.try_grow(bytes).is_ok()
    }
}

/// Answers the decoder's requests.
pub(crate) struct ByteSource {
    location: Path,
    reader: FileReader,
    staging: Staging,
    prefetch: Prefetch,
    metrics: ScanMetrics,
    /// Under a row filter: what the decoder has been given for the row group at this place.
    handed_out: HandedOut,
}

impl ByteSource {
    pub(crate) fn new(
        location: Path,
        reader: FileReader,
        prefetch: Prefetch,
        metrics: ScanMetrics,
    ) -> Self {
        let staging = Staging::new(metrics.prefetch_unused_bytes.clone());
        Self {
            location,
            reader,
            staging,
            prefetch,
            metrics,
            handed_out: HandedOut::default(),
        }
    }

    /// Bytes for `ranges`, which the decoder requires for the current row group of `order`.
    ///
    /// What is not staged is fetched, together with complete later row groups while the budget and the memory pool allow
    /// it. A fetch that fails is made once more for the required ranges alone, so that prefetching never fails a query.
    ///
    /// # Errors
    /// What the reader says of the required ranges, or an answer that does not fit them.
    pub(crate) async fn bytes_for(
        &mut self,
        order: &ScanOrder,
        ranges: &[Range<u64>],
        buffered_bytes: u64,
    ) -> Result<Vec<Bytes>> {
        let place = order.current().map_or(usize::MAX, |read| read.place);
        // The decoder may have passed row groups in silence since the last boundary.
        self.staging.drop_before(place);
        let mut answers: Vec<Option<Bytes>> = ranges
            .iter()
            .map(|range| match range.start == range.end {
                true => Some(Bytes::new()),
                false => self.staging.take(place, range),
            })
            .collect();
        let missing: Vec<Range<u64>> = ranges
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| answer.is_none())
            .map(|(range, _)| range.clone())
            .collect();
        if self.prefetch.ranges.has_row_filter() {
            self.handed_out.add(place, ranges);
        }
        if !missing.is_empty() {
            let fetched = self.fetch(order, missing, buffered_bytes).await?;
            let mut fetched = fetched.into_iter();
            for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
                *answer = fetched.next();
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    /// Drops what is staged for the row group at `place`, which will not be decoded.
    pub(crate) fn drop_staged(&mut self, place: usize) {
        self.staging.remove(place);
    }

    /// Drops what is staged for row groups that the decoder has finished: all before the first pending one of `order`.
    pub(crate) fn drop_passed(&mut self, order: &ScanOrder) {
        let first = order
            .pending()
            .front()
            .map_or(usize::MAX, |read| read.place);
        self.staging.drop_before(first);
    }

    async fn fetch(
        &mut self,
        order: &ScanOrder,
        required: Vec<Range<u64>>,
        buffered_bytes: u64,
    ) -> Result<Vec<Bytes>> {
        if let Some(range) = required.iter().find(|range| range.start > range.end) {
            return Err(self.unusable(FetchError::InvalidRange {
                path: self.location.to_string(),
                range: range.clone(),
            }));
        }
        let planned = self.plan(order, &required, buffered_bytes);
        let (planned, reservation) = self.reserve(&required, planned);
        if planned.is_empty() {
            return self.request_required(required).await;
        }
        let ranges = asked(&required, &planned);
        let bytes: u64 = planned.iter().map(|group| group.bytes).sum();
        let later = planned
            .iter()
            .filter(|group| order.current().is_none_or(|read| read.place != group.place));
        self.metrics.prefetched_row_group_count.add(later.count());
        add_bytes(&self.metrics.prefetched_bytes, bytes);
        let mut answers = match self.request(ranges, required.len()).await {
            Ok(answers) => answers.into_iter(),
            Err(error) => {
                debug!(
                    "{}: a fetch failed that prefetched {bytes} bytes, trying without: {error}",
                    self.location
                );
                add_bytes(&self.metrics.prefetch_unused_bytes, bytes);
                self.metrics.prefetch_retry_count.add(1);
                drop(reservation);
                return self.request_required(required).await;
            }
        };
        let needed = answers.by_ref().take(required.len()).collect();
        for group in planned {
            let chunks = group.ranges.into_iter().zip(answers.by_ref()).collect();
            self.staging
                .insert(group.place, chunks, reservation.clone());
        }
        Ok(needed)
    }

    /// What to take along.
    fn plan(
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
            |place| self.staging.contains(place),
            |read, limit| self.ranges_of(read, limit),
        );
        if let Some(current) = order.current()
            && self.prefetch.ranges.has_row_filter()
            && self.reader.reads_in_passing()
        {
            self.take_along_what_is_read_in_passing(current, required, room_bytes, &mut planned);
        }
        planned
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
        rest.retain(|range| !self.staging.holds(place, range) && !self.handed_out.touches(range));
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
    fn reserve(
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
        let reservation = memory.account.new_empty();
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

    async fn request_required(&mut self, required: Vec<Range<u64>>) -> Result<Vec<Bytes>> {
        let count = required.len();
        self.request(required, count).await
    }

    async fn request(
        &mut self,
        ranges: Vec<Range<u64>>,
        required_count: usize,
    ) -> Result<Vec<Bytes>> {
        let answers = self.reader.fetch(ranges.clone(), required_count).await?;
        if answers.len() != ranges.len() {
            return Err(self.unusable(FetchError::WrongCount {
                path: self.location.to_string(),
                expected: ranges.len(),
                actual: answers.len(),
            }));
        }
        for (range, bytes) in ranges.iter().zip(&answers) {
            let actual = bytes.len() as u64;
            if actual != len(range) {
                return Err(self.unusable(FetchError::WrongLength {
                    path: self.location.to_string(),
                    range: range.clone(),
                    actual,
                }));
            }
        }
        Ok(answers)
    }

    fn unusable(&self, error: FetchError) -> DataFusionError {
        DataFusionError::External(Box::new(error))
    }
}

fn total_bytes(ranges: &[Range<u64>]) -> u64 {
    ranges
        .iter()
        .fold(0, |bytes, range| bytes.saturating_add(len(range)))
}

/// Everything that one fetch asks for, what is required first.
fn asked(required: &[Range<u64>], planned: &[PlannedRowGroup]) -> Vec<Range<u64>> {
    let planned = planned.iter().flat_map(|group| &group.ranges);
    required.iter().chain(planned).cloned().collect()
}

/// Ranges of one row group that the decoder has, which it will not ask for again.
#[derive(Debug, Default)]
struct HandedOut {
    place: usize,
    /// By start, without overlap.
    ranges: Vec<Range<u64>>,
}

impl HandedOut {
    fn add(&mut self, place: usize, ranges: &[Range<u64>]) {
        if self.place != place {
            self.place = place;
            self.ranges.clear();
        }
        self.ranges.extend_from_slice(ranges);
        self.ranges.sort_unstable_by_key(|range| range.start);
    }

    fn touches(&self, range: &Range<u64>) -> bool {
        let before = self.ranges.partition_point(|used| used.start < range.end);
        before
            .checked_sub(1)
            .is_some_and(|last| self.ranges[last].end > range.start)
    }
}
