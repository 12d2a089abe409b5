//! Reads the later row groups of a file while an earlier one is decoded.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::physical_plan::metrics::Count;
use log::debug;
use object_store::path::Path;
use tokio::runtime::Handle;

use crate::config::ConditionalReadAhead;
use crate::fetch::{
    ByteBudget, FileReaders, FlightId, Flights, Permit, Refusal, Requests, Tail, len,
};
use crate::metrics::{ScanMetrics, ScannedBytes, add_bytes};
use crate::plan::{
    ConditionalPolicy, Piece, PlannedFlight, RangePlanner, Reach, RowGroupRanges, RowGroupRead,
    ScanOrder, plan_flights,
};

/// Row groups are read by one request while that is no longer than this: below it, a request costs more than its bytes.
const JOINED_BYTES: u64 = 1 << 20;

/// Parts of the budget that are asked for apart, so that the first can be decoded and given back while the others are still
/// on their way.
const MIN_FLIGHTS_OF_BUDGET: u64 = 8;

/// Where what is read ahead comes from, and what it may take.
pub(crate) struct ReadAheadParts {
    pub(crate) location: Path,
    pub(crate) readers: Arc<FileReaders>,
    pub(crate) budget: Arc<ByteBudget>,
    pub(crate) reach: Reach,
    pub(crate) conditional: ConditionalReadAhead,
    /// What was read of the file's end to find its metadata, and what it is held by.
    pub(crate) tail: Option<(Tail, Permit)>,
    /// Counts what stock's readers would, unless the readers do.
    pub(crate) scanned: Option<ScannedBytes>,
    pub(crate) metrics: ScanMetrics,
}

/// How far a read-ahead has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// All that will be read of the file is on its way or there.
    Complete,
    /// The rest waits for bytes of the budget, or for the decoder to come nearer.
    Held,
}

/// The read-ahead of one file.
pub(crate) struct ReadAhead {
    parts: ReadAheadParts,
    tail: Option<(Tail, Arc<Permit>)>,
    flights: Flights,
    /// Cut into requests, but not requested yet.
    planned: VecDeque<PlannedFlight>,
    /// The first place whose row group has not been planned.
    next_place: usize,
    current: Option<usize>,
    /// Row groups that the decoder is done with.
    consumed: usize,
    policy: ConditionalPolicy,
    /// Conditional bytes of row groups that have been planned.
    conditional: BTreeMap<usize, Conditional>,
    is_refused: bool,
}

#[derive(Debug, Default)]
struct Conditional {
    /// By start.
    ranges: Vec<Range<u64>>,
    asked_bytes: u64,
}

impl ReadAhead {
    pub(crate) fn new(mut parts: ReadAheadParts) -> Self {
        let tail = parts.tail.take();
        Self {
            flights: Flights::new(parts.metrics.read_ahead_unused_bytes.clone()),
            tail: tail.map(|(tail, permit)| (tail, Arc::new(permit))),
            parts,
            planned: VecDeque::new(),
            next_place: 0,
            current: None,
            consumed: 0,
            policy: ConditionalPolicy::new(),
            conditional: BTreeMap::new(),
            is_refused: false,
        }
    }

    /// Whether there are requests of this scan whose tasks need a worker to go on.
    pub(crate) fn has_requests_ahead(&self) -> bool {
        self.parts.readers.has_requests_ahead()
    }

    /// Asks for as much as the budget allows, in the order in which it will be decoded. Does nothing outside a Tokio runtime.
    pub(crate) fn pump(&mut self, order: &ScanOrder, planner: &RangePlanner) -> Progress {
        if Handle::try_current().is_err() {
            return Progress::Held;
        }
        loop {
            while let Some(flight) = self.planned.pop_front() {
                if let Err(flight) = self.launch(flight) {
                    self.planned.push_front(flight);
                    return Progress::Held;
                }
            }
            match self.plan_more(order, planner) {
                None if self.planned.is_empty() => return Progress::Held,
                Some(Progress::Complete) if self.planned.is_empty() => {
                    self.tail = None;
                    return Progress::Complete;
                }
                _ => {}
            }
        }
    }

    fn launch(&mut self, flight: PlannedFlight) -> Result<(), PlannedFlight> {
        let bytes = len(&flight.range);
        if bytes > self.parts.budget.limit_bytes() {
            // It never fits: the decoder will have to require it.
            return Ok(());
        }
        let permit = match self.parts.budget.try_take(bytes) {
            Ok(permit) => permit,
            Err(refusal) => {
                if refusal == Refusal::Pool && !self.is_refused {
                    self.parts.metrics.read_ahead_refused_count.add(1);
                }
                self.is_refused = refusal == Refusal::Pool;
                return Err(flight);
            }
        };
        self.is_refused = false;
        let requests = self.count(&flight.pieces);
        let range = flight.range.clone();
        let readers = &self.parts.readers;
        self.flights
            .launch(flight.range, &flight.pieces, permit, |urgency| {
                readers.read_ahead(range, requests, urgency)
            });
        Ok(())
    }

    /// Adds `pieces` to the metrics, and says which one counts their request.
    fn count(&self, pieces: &[Piece]) -> Count {
        let metrics = &self.parts.metrics;
        let bytes_of = |is_conditional: bool| -> u64 {
            let pieces = pieces.iter().filter(|p| p.is_conditional == is_conditional);
            pieces.map(Piece::bytes).sum()
        };
        let (certain, conditional) = (bytes_of(false), bytes_of(true));
        add_bytes(&metrics.speculative_bytes, certain);
        add_bytes(&metrics.conditional_bytes, conditional);
        if let Some(scanned) = &self.parts.scanned {
            scanned.add(certain.saturating_add(conditional));
        }
        if certain > 0 {
            metrics.speculative_request_count.clone()
        } else {
            metrics.conditional_request_count.clone()
        }
    }

    /// Plans the next row groups. `None` where the decoder has to come nearer first.
    fn plan_more(&mut self, order: &ScanOrder, planner: &RangePlanner) -> Option<Progress> {
        let pending = order.pending();
        let mut at = pending.partition_point(|read| read.place < self.next_place);
        let reach = self.parts.reach.after(self.consumed);
        let mut rows_left = order.rows_left_after_current().map(|rows| {
            let ahead = pending.iter().take(at).map(|read| read.selected_rows);
            rows.saturating_sub(ahead.sum())
        });
        let mut pieces = Vec::new();
        let mut bytes = 0;
        let joined_bytes = JOINED_BYTES
            .min(self.parts.budget.limit_bytes() / MIN_FLIGHTS_OF_BUDGET)
            .min(self.parts.readers.max_request_bytes());
        let progress = loop {
            let Some(read) = pending.get(at).filter(|_| rows_left != Some(0)) else {
                break Some(Progress::Complete);
            };
            if at >= reach {
                break None;
            }
            at += 1;
            self.next_place = read.place + 1;
            if read.selected_rows > 0 {
                let wanted = self.pieces_of(read, rows_left, planner);
                bytes += wanted.iter().map(Piece::bytes).sum::<u64>();
                pieces.extend(wanted);
                rows_left = rows_left.map(|left| left.saturating_sub(read.selected_rows));
            }
            if bytes >= joined_bytes {
                break Some(Progress::Held);
            }
        };
        self.queue(pieces);
        progress
    }

    /// What to read of a row group. An error is no reason to fail: where it matters, the decoder will come upon it.
    fn pieces_of(
        &mut self,
        read: &RowGroupRead,
        limit: Option<usize>,
        planner: &RangePlanner,
    ) -> Vec<Piece> {
        let RowGroupRanges {
            certain,
            mut conditional,
        } = match planner.split_ranges(read, limit) {
            Ok(ranges) => ranges,
            Err(error) => {
                debug!("{}: not read ahead: {error}", self.parts.location);
                return Vec::new();
            }
        };
        let piece = |is_conditional: bool| {
            move |range: Range<u64>| Piece {
                place: read.place,
                range,
                is_conditional,
            }
        };
        let mut pieces: Vec<Piece> = certain.into_iter().map(piece(false)).collect();
        if !conditional.is_empty() {
            conditional.sort_unstable_by_key(|range| range.start);
            if self.wants_conditional(conditional.iter().map(len).sum()) {
                pieces.extend(conditional.iter().cloned().map(piece(true)));
            }
            let conditional = Conditional {
                ranges: conditional,
                asked_bytes: 0,
            };
            self.conditional.insert(read.place, conditional);
        }
        pieces
    }

    fn wants_conditional(&self, bytes: u64) -> bool {
        match self.parts.conditional {
            ConditionalReadAhead::Always => true,
            ConditionalReadAhead::Never => false,
            ConditionalReadAhead::Adaptive => {
                self.policy.wants(bytes, self.parts.readers.request_cost())
            }
        }
    }

    /// Cuts `pieces` into requests, apart from those that are there already.
    fn queue(&mut self, mut pieces: Vec<Piece>) {
        if let Some((tail, permit)) = &self.tail {
            let (kept, missing): (Vec<_>, Vec<_>) = pieces
                .into_iter()
                .partition(|piece| tail.slice(&piece.range).is_some());
            if !kept.is_empty() {
                self.count(&kept);
                let bytes = tail.clone().into_bytes();
                self.flights
                    .keep(tail.range().clone(), &kept, Some(Arc::clone(permit)), bytes);
            }
            pieces = missing;
        }
        let ranges: Vec<Range<u64>> = pieces.iter().map(|piece| piece.range.clone()).collect();
        let requests = Requests::plan(&ranges, 0).ranges;
        let max_bytes = self
            .parts
            .readers
            .max_request_bytes()
            .min((self.parts.budget.limit_bytes() / MIN_FLIGHTS_OF_BUDGET).max(JOINED_BYTES));
        self.planned
            .extend(plan_flights(pieces, requests, max_bytes));
    }

    /// The decoder requires `ranges` of `read`, and is done with every row group before.
    pub(crate) fn require(
        &mut self,
        read: &RowGroupRead,
        ranges: &[Range<u64>],
        planner: &RangePlanner,
    ) {
        let place = read.place;
        if self.current != Some(place) {
            self.consumed += usize::from(self.current.is_some());
            self.current = Some(place);
            self.drop_before(place);
        }
        if place >= self.next_place {
            self.next_place = place + 1;
            // Only a row filter leaves something that is not required yet.
            if planner.has_row_filter() {
                let mut pieces = self.pieces_of(read, None, planner);
                pieces.retain(|piece| !ranges.iter().any(|range| touches(range, &piece.range)));
                self.queue(pieces);
            }
        }
        if let Some(conditional) = self.conditional.get_mut(&place) {
            for range in ranges {
                let before = conditional
                    .ranges
                    .partition_point(|r| r.start <= range.start);
                let within = before.checked_sub(1).map(|last| &conditional.ranges[last]);
                if within.is_some_and(|within| range.start < within.end) {
                    conditional.asked_bytes += len(range);
                }
            }
        }
    }

    /// `ranges` of the row group at `place` are being read by others.
    pub(crate) fn forget(&mut self, place: usize, ranges: &[Range<u64>]) {
        self.next_place = self.next_place.max(place + 1);
        for flight in &mut self.planned {
            flight.pieces.retain(|piece| {
                piece.place != place || !ranges.iter().any(|range| touches(range, &piece.range))
            });
            if let (Some(first), Some(last)) = (flight.pieces.first(), flight.pieces.last()) {
                flight.range = first.range.start..last.range.end;
            }
        }
        self.planned.retain(|flight| !flight.pieces.is_empty());
    }

    /// The decoder is done with the row groups before `place`.
    pub(crate) fn drop_before(&mut self, place: usize) {
        self.flights.drop_before(place);
        while let Some(first) = self.conditional.first_entry() {
            if *first.key() >= place {
                break;
            }
            let passed = first.remove();
            let bytes = passed.ranges.iter().map(len).sum();
            self.policy.observe(passed.asked_bytes, bytes);
        }
        self.planned.retain(|flight| flight.last_place() >= place);
    }

    /// The row group at `place` will not be decoded.
    pub(crate) fn remove(&mut self, place: usize) {
        self.flights.remove(place);
        self.conditional.remove(&place);
        for flight in &mut self.planned {
            flight.pieces.retain(|piece| piece.place != place);
            if let (Some(first), Some(last)) = (flight.pieces.first(), flight.pieces.last()) {
                flight.range = first.range.start..last.range.end;
            }
        }
        self.planned.retain(|flight| !flight.pieces.is_empty());
    }

    /// Whether the row group at `place` is left to this read-ahead.
    pub(crate) fn has_planned(&self, place: usize) -> bool {
        place < self.next_place
    }

    /// Whether `range` of the row group at `place` is there, on its way, or about to be asked for.
    pub(crate) fn holds(&self, place: usize, range: &Range<u64>) -> bool {
        self.flights.flight_of(place, range).is_some()
            || self.planned.iter().any(|flight| {
                let pieces = flight.pieces.iter().filter(|piece| piece.place == place);
                pieces.into_iter().any(|piece| touches(&piece.range, range))
            })
    }

    /// The bytes of `range` for the row group at `place`, where they are there.
    pub(crate) fn take(&mut self, place: usize, range: &Range<u64>) -> Option<Bytes> {
        let flight = self.flights.flight_of(place, range)?;
        self.flights.has_landed(flight);
        self.flights.take(place, range)
    }

    /// The request that will bring `range`.
    pub(crate) fn flight_of(&self, place: usize, range: &Range<u64>) -> Option<FlightId> {
        self.flights.flight_of(place, range)
    }

    /// Waits for a request, which is a required one from now on; see [`Flights::wait_for`].
    pub(crate) fn wait_for(
        &mut self,
        flight: FlightId,
    ) -> Option<impl Future<Output = (FlightId, parquet::errors::Result<Bytes>)> + use<>> {
        self.flights.wait_for(flight)
    }

    /// Takes in what came of a wait. A failure is told by nobody else: what was expected has to be required then.
    pub(crate) fn land(&mut self, flight: FlightId, answer: parquet::errors::Result<Bytes>) {
        if let Err(error) = self.flights.land(flight, answer) {
            debug!(
                "{}: reading ahead failed, trying again: {error}",
                self.parts.location
            );
            self.parts.metrics.read_ahead_retry_count.add(1);
        }
    }
}

fn touches(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}
