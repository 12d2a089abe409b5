//! Where the decoder's bytes come from: what is staged, or a fetch that is widened on the way.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::MemoryReservation;
use log::debug;
use object_store::path::Path;
use parquet::arrow::async_reader::AsyncFileReader;

use crate::error::FetchError;
use crate::fetch::{FileReader, Staging};
use crate::metrics::ScanMetrics;
use crate::plan::{PlannedRowGroup, RangePlanner, RowGroupRead, ScanOrder, bridged, widen};

/// How far ahead fetches reach, and what that may hold.
pub(crate) struct Prefetch {
    /// Bytes that may be buffered, staged and asked for at once. What the decoder requires is asked for in any case, so the
    /// peak is this or the required bytes of one row group, whichever is more.
    pub(crate) budget_bytes: u64,
    pub(crate) ranges: RangePlanner,
    /// Row groups after the current one that a fetch considers at most.
    pub(crate) max_row_groups: usize,
    /// Where speculative bytes are accounted for; `None` where the scan has no session to take a pool from.
    pub(crate) reservation: Option<MemoryReservation>,
}

/// Answers the decoder's requests.
pub(crate) struct ByteSource {
    location: Path,
    reader: FileReader,
    staging: Staging,
    prefetch: Prefetch,
    metrics: ScanMetrics,
    /// Under a row filter: what the decoder has been given for the current row group, by its place.
    handed_out: Vec<(usize, Range<u64>)>,
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
            handed_out: Vec::new(),
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
        self.handed_out.retain(|(of, _)| *of == place);
        let mut answers: Vec<Option<Bytes>> = ranges
            .iter()
            .map(|range| match range.is_empty() {
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
            self.handed_out
                .extend(ranges.iter().map(|range| (place, range.clone())));
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
        let planned = self.plan(order, &required, buffered_bytes)?;
        let (planned, reservation) = self.reserve(planned);
        if planned.is_empty() {
            return self.request(required).await;
        }
        let ranges = required
            .iter()
            .chain(planned.iter().flat_map(|group| &group.ranges))
            .cloned()
            .collect();
        let bytes: u64 = planned.iter().map(|group| group.bytes).sum();
        let later = planned
            .iter()
            .filter(|group| order.current().is_none_or(|read| read.place != group.place));
        self.metrics.prefetched_row_group_count.add(later.count());
        self.metrics
            .prefetched_bytes
            .add(usize::try_from(bytes).unwrap_or(usize::MAX));
        let mut answers = match self.request(ranges).await {
            Ok(answers) => answers.into_iter(),
            Err(error) => {
                debug!(
                    "{}: a fetch failed that prefetched {bytes} bytes, trying without: {error}",
                    self.location
                );
                self.metrics
                    .prefetch_unused_bytes
                    .add(usize::try_from(bytes).unwrap_or(usize::MAX));
                self.metrics.prefetch_retry_count.add(1);
                drop(reservation);
                return self.request(required).await;
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

    fn plan(
        &self,
        order: &ScanOrder,
        required: &[Range<u64>],
        buffered_bytes: u64,
    ) -> Result<Vec<PlannedRowGroup>> {
        let held_bytes = buffered_bytes
            .saturating_add(self.staging.bytes())
            .saturating_add(total_bytes(required));
        let room_bytes = self.prefetch.budget_bytes.saturating_sub(held_bytes);
        let mut planned = widen(
            order.pending().iter().take(self.prefetch.max_row_groups),
            room_bytes,
            order.rows_left_after_current(),
            |place| self.staging.contains(place),
            |read, limit| self.prefetch.ranges.ranges(read, limit),
        )?;
        if let Some(current) = order.current()
            && self.prefetch.ranges.has_row_filter()
        {
            self.take_along_what_is_read_in_passing(current, required, room_bytes, &mut planned)?;
        }
        Ok(planned)
    }

    /// Adds what the filter of the current row group may leave to be read of it, as far as it lies in gaps that the
    /// requests read in passing: else it would be thrown away now and asked for again. Later row groups give way to it.
    fn take_along_what_is_read_in_passing(
        &self,
        current: &RowGroupRead,
        required: &[Range<u64>],
        room_bytes: u64,
        planned: &mut Vec<PlannedRowGroup>,
    ) -> Result<()> {
        let place = current.place;
        let mut rest = self.prefetch.ranges.ranges(current, None)?;
        rest.retain(|range| {
            !self.staging.holds(place, range)
                && !self
                    .handed_out
                    .iter()
                    .any(|(_, used)| used.start < range.end && range.start < used.end)
        });
        let in_passing = |planned: &[PlannedRowGroup], rest| {
            let later = planned.iter().flat_map(|group| &group.ranges);
            let asked: Vec<Range<u64>> = required.iter().chain(later).cloned().collect();
            bridged(&asked, rest, self.reader.bridged_gap_bytes())
        };
        let rest = in_passing(planned, rest);
        let extra_bytes = total_bytes(&rest);
        let mut planned_bytes: u64 = planned.iter().map(|group| group.bytes).sum();
        while planned_bytes.saturating_add(extra_bytes) > room_bytes {
            let Some(last) = planned.pop() else { break };
            planned_bytes -= last.bytes;
        }
        // With fewer row groups there may be fewer gaps.
        let ranges = in_passing(planned, rest);
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
        Ok(())
    }

    /// Keeps as many of `planned` as the memory pool has room for.
    fn reserve(
        &self,
        mut planned: Vec<PlannedRowGroup>,
    ) -> (Vec<PlannedRowGroup>, Option<Arc<MemoryReservation>>) {
        let Some(pool) = self
            .prefetch
            .reservation
            .as_ref()
            .filter(|_| !planned.is_empty())
        else {
            return (planned, None);
        };
        let reservation = pool.new_empty();
        let granted = planned
            .iter()
            .take_while(|group| {
                usize::try_from(group.bytes).is_ok_and(|bytes| reservation.try_grow(bytes).is_ok())
            })
            .count();
        if granted < planned.len() {
            self.metrics.prefetch_refused_count.add(1);
            planned.truncate(granted);
        }
        (planned, Some(Arc::new(reservation)))
    }

    async fn request(&mut self, ranges: Vec<Range<u64>>) -> Result<Vec<Bytes>> {
        let answers = self.reader.get_byte_ranges(ranges.clone()).await?;
        if answers.len() != ranges.len() {
            return Err(self.unusable(FetchError::WrongCount {
                path: self.location.to_string(),
                expected: ranges.len(),
                actual: answers.len(),
            }));
        }
        for (range, bytes) in ranges.iter().zip(&answers) {
            let actual = bytes.len() as u64;
            if actual != range.end - range.start {
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
    ranges.iter().map(|range| range.end - range.start).sum()
}
