//! Where the decoder's bytes come from: what was read ahead, what is staged, or a fetch that is widened on the way.

use std::ops::Range;

use bytes::Bytes;
use datafusion::common::{DataFusionError, Result};
use futures::future::{join, join_all};
use futures::pin_mut;
use log::debug;
use object_store::path::Path;

use super::prefetch::{HandedOut, Prefetch, Widening, asked, total_bytes};
use super::read_ahead::{Progress, ReadAhead};
use crate::error::FetchError;
use crate::fetch::{FileReader, FlightId, Staging, len};
use crate::metrics::{ScanMetrics, add_bytes};
use crate::plan::ScanOrder;

/// The files that are read after the one that is being decoded.
pub(crate) trait LaterFiles: Send + Sync {
    /// Told of each step how far the read-ahead of this file has come: once it is complete, it is the turn of later ones.
    fn follow(&mut self, progress: Progress);
}

/// Answers the decoder's requests.
pub(crate) struct ByteSource {
    location: Path,
    reader: FileReader,
    staging: Staging,
    prefetch: Prefetch,
    /// Where the scan reads ahead.
    ahead: Option<ReadAhead>,
    later: Option<Box<dyn LaterFiles>>,
    metrics: ScanMetrics,
    /// Under a row filter: what the decoder has been given for the row group at this place.
    handed_out: HandedOut,
}

impl ByteSource {
    pub(crate) fn new(
        location: Path,
        reader: FileReader,
        prefetch: Prefetch,
        ahead: Option<ReadAhead>,
        metrics: ScanMetrics,
    ) -> Self {
        let staging = Staging::new(metrics.prefetch_unused_bytes.clone());
        Self {
            location,
            reader,
            staging,
            prefetch,
            ahead,
            later: None,
            metrics,
            handed_out: HandedOut::default(),
        }
    }

    /// Lets `later` follow how far this file's read-ahead has come.
    pub(crate) fn followed_by(&mut self, later: Box<dyn LaterFiles>) {
        self.later = Some(later);
    }

    /// Adds what is waited for to `metrics` from now on.
    pub(crate) fn count_in(&mut self, metrics: &ScanMetrics) {
        self.reader.count_in(metrics);
        self.metrics = metrics.clone();
    }

    /// Reads ahead as far as the budget allows. Costs next to nothing where it does not.
    pub(crate) fn pump(&mut self, order: &ScanOrder) -> Progress {
        match &mut self.ahead {
            Some(ahead) => ahead.pump(order, &self.prefetch.ranges),
            None => Progress::Complete,
        }
    }

    /// As [`Self::pump`], and goes on to later files where nothing is left to be asked for of this one.
    pub(crate) fn pump_beyond(&mut self, order: &ScanOrder) {
        let progress = self.pump(order);
        if let Some(later) = &mut self.later {
            later.follow(progress);
        }
    }

    /// Bytes for `ranges`, which the decoder requires for the current row group of `order`.
    ///
    /// What is on its way is waited for. What nobody has asked for is fetched, together with complete later row groups while
    /// the budget and the memory pool allow it. A fetch that fails is made once more for the required ranges alone, so that
    /// neither prefetching nor reading ahead ever fails a query.
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
        if let (Some(ahead), Some(current)) = (&mut self.ahead, order.current()) {
            ahead.require(current, ranges, &self.prefetch.ranges);
        }
        let mut answers: Vec<Option<Bytes>> = ranges
            .iter()
            .map(|range| match range.start == range.end {
                true => Some(Bytes::new()),
                false => self.take(place, range),
            })
            .collect();
        let (flights, missing) = self.expected_and_missing(place, ranges, &answers);
        if self.prefetch.ranges.has_row_filter() {
            self.handed_out.add(place, ranges);
        }
        let mut fetched = self
            .fetch_beside(order, missing, flights, buffered_bytes)
            .await?;
        for (range, answer) in ranges.iter().zip(&mut answers) {
            if answer.is_none() {
                *answer = self.take(place, range);
            }
        }
        // What is still missing is what was fetched, in order, and what failed to come by itself.
        let mut failed = Vec::new();
        for (range, answer) in ranges.iter().zip(&mut answers) {
            if answer.is_none() {
                match fetched.next_if(|(fetched, _)| fetched == range) {
                    Some((_, bytes)) => *answer = Some(bytes),
                    None => failed.push(range.clone()),
                }
            }
        }
        if !failed.is_empty() {
            let mut again = self.request_required(failed).await?.into_iter();
            for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
                *answer = again.next();
            }
        }
        self.pump_beyond(order);
        self.make_way().await;
        Ok(answers.into_iter().flatten().collect())
    }

    /// Lets the tasks of requests have the worker for a moment, where there are any.
    ///
    /// Where all workers decode, the runtime looks for what the outside has woken only after many polls, and each of these
    /// may be a batch: requests would be sent late, and answers taken in late.
    pub(crate) async fn make_way(&mut self) {
        if self
            .ahead
            .as_ref()
            .is_some_and(ReadAhead::has_requests_ahead)
        {
            tokio::task::yield_now().await;
        }
    }

    fn take(&mut self, place: usize, range: &Range<u64>) -> Option<Bytes> {
        let staged = self.staging.take(place, range);
        staged.or_else(|| self.ahead.as_mut()?.take(place, range))
    }

    /// Of the ranges without an answer: the requests that will bring them, and those that nobody has asked for.
    fn expected_and_missing(
        &mut self,
        place: usize,
        ranges: &[Range<u64>],
        answers: &[Option<Bytes>],
    ) -> (Vec<FlightId>, Vec<Range<u64>>) {
        let mut flights = Vec::new();
        let mut missing = Vec::new();
        let unanswered = ranges
            .iter()
            .zip(answers)
            .filter(|(_, answer)| answer.is_none());
        for (range, _) in unanswered {
            let ahead = self.ahead.as_ref();
            match ahead.and_then(|ahead| ahead.flight_of(place, range)) {
                Some(flight) => flights.push(flight),
                None => missing.push(range.clone()),
            }
        }
        flights.sort_unstable();
        flights.dedup();
        if let Some(ahead) = self.ahead.as_mut().filter(|_| place != usize::MAX) {
            ahead.forget(place, &missing);
        }
        (flights, missing)
    }

    /// Fetches `missing` while it waits for `flights`, and returns what was fetched.
    async fn fetch_beside(
        &mut self,
        order: &ScanOrder,
        missing: Vec<Range<u64>>,
        flights: Vec<FlightId>,
        buffered_bytes: u64,
    ) -> Result<Fetched> {
        let ahead = self.ahead.as_mut();
        let waits: Vec<_> = ahead
            .map(|ahead| {
                flights
                    .iter()
                    .filter_map(|id| ahead.wait_for(*id))
                    .collect()
            })
            .unwrap_or_default();
        let is_waiting = !waits.is_empty();
        let metrics = self.metrics.clone();
        let landing = async move {
            let _timer = is_waiting.then(|| metrics.read_ahead_wait_time.timer());
            join_all(waits).await
        };
        let (fetched, landed) = if missing.is_empty() {
            self.pump_beyond(order);
            let _timer = is_waiting.then(|| self.metrics.fetch_wait_time.timer());
            (Ok(Vec::new()), landing.await)
        } else {
            // In this order: what nobody has asked for yet goes out first.
            join(self.fetch(order, missing.clone(), buffered_bytes), landing).await
        };
        if is_waiting {
            self.metrics.read_ahead_wait_count.add(1);
            if missing.is_empty() {
                self.metrics.fetch_round_count.add(1);
            }
        }
        if let Some(ahead) = &mut self.ahead {
            for (flight, answer) in landed {
                ahead.land(flight, answer);
            }
        }
        Ok(missing
            .into_iter()
            .zip(fetched?)
            .collect::<Vec<_>>()
            .into_iter()
            .peekable())
    }

    /// Drops what was read ahead for the row group at `place`, which will not be decoded.
    pub(crate) fn drop_staged(&mut self, place: usize) {
        self.staging.remove(place);
        if let Some(ahead) = &mut self.ahead {
            ahead.remove(place);
        }
    }

    /// Drops what was read ahead for row groups that the decoder has finished: all before the first pending one of `order`.
    pub(crate) fn drop_passed(&mut self, order: &ScanOrder) {
        let first = order
            .pending()
            .front()
            .map_or(usize::MAX, |read| read.place);
        self.staging.drop_before(first);
        if let Some(ahead) = &mut self.ahead {
            ahead.drop_before(first);
        }
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
        let widening = Widening {
            location: &self.location,
            prefetch: &self.prefetch,
            staging: &self.staging,
            ahead: self.ahead.as_ref(),
            handed_out: &self.handed_out,
            reads_in_passing: self.reader.reads_in_passing(),
            metrics: &self.metrics,
        };
        let planned = widening.plan(order, &required, buffered_bytes);
        let (planned, reservation) = widening.reserve(&required, planned);
        add_bytes(&self.metrics.required_bytes, total_bytes(&required));
        if let Some(ahead) = &mut self.ahead {
            planned
                .iter()
                .for_each(|group| ahead.forget(group.place, &group.ranges));
        }
        if planned.is_empty() {
            return self.request(order, required.clone(), required.len()).await;
        }
        let ranges = asked(&required, &planned);
        let bytes: u64 = planned.iter().map(|group| group.bytes).sum();
        let later = planned
            .iter()
            .filter(|group| order.current().is_none_or(|read| read.place != group.place));
        self.metrics.prefetched_row_group_count.add(later.count());
        add_bytes(&self.metrics.prefetched_bytes, bytes);
        let mut answers = match self.request(order, ranges, required.len()).await {
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

    async fn request_required(&mut self, required: Vec<Range<u64>>) -> Result<Vec<Bytes>> {
        let answers = self.reader.fetch(required.clone(), required.len()).await?;
        self.check(&required, answers)
    }

    /// As soon as the request is on its way, reads ahead beside it.
    async fn request(
        &mut self,
        order: &ScanOrder,
        ranges: Vec<Range<u64>>,
        required_count: usize,
    ) -> Result<Vec<Bytes>> {
        let Self {
            reader,
            ahead,
            prefetch,
            ..
        } = self;
        let answers = {
            let answers = reader.fetch(ranges.clone(), required_count);
            pin_mut!(answers);
            match futures::poll!(&mut answers) {
                std::task::Poll::Ready(answers) => answers,
                std::task::Poll::Pending => {
                    if let Some(ahead) = ahead {
                        ahead.pump(order, &prefetch.ranges);
                    }
                    answers.await
                }
            }
        }?;
        self.check(&ranges, answers)
    }

    fn check(&self, ranges: &[Range<u64>], answers: Vec<Bytes>) -> Result<Vec<Bytes>> {
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

/// Ranges and their bytes, in the order in which they were asked for.
type Fetched = std::iter::Peekable<std::vec::IntoIter<(Range<u64>, Bytes)>>;
