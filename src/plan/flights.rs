//! How what is read ahead is cut into requests.

use std::ops::Range;

/// A range of the row group at a place of the scan order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) place: usize,
    pub(crate) range: Range<u64>,
    /// Needed only if a row filter keeps rows.
    pub(crate) is_conditional: bool,
}

impl Piece {
    pub(crate) fn bytes(&self) -> u64 {
        len(&self.range)
    }
}

/// One request of a read-ahead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PlannedFlight {
    pub(crate) range: Range<u64>,
    /// By start, without overlap.
    pub(crate) pieces: Vec<Piece>,
}

impl PlannedFlight {
    /// The last row group that this serves.
    pub(crate) fn last_place(&self) -> usize {
        let places = self.pieces.iter().map(|piece| piece.place);
        places.max().unwrap_or(0)
    }
}

/// The requests that read `pieces`, in the order of the places they serve first.
///
/// `requests` are disjoint ranges that together cover the pieces: what coalescing made of them. They are cut between pieces
/// so that none is longer than `max_bytes`, unless a single piece is.
pub(crate) fn plan_flights(
    mut pieces: Vec<Piece>,
    mut requests: Vec<Range<u64>>,
    max_bytes: u64,
) -> Vec<PlannedFlight> {
    pieces.retain(|piece| piece.bytes() > 0);
    pieces.sort_unstable_by_key(|piece| piece.range.start);
    requests.sort_unstable_by_key(|range| range.start);
    let mut requests = requests.into_iter().peekable();
    let mut flights: Vec<PlannedFlight> = Vec::new();
    let mut is_new_request = true;
    for piece in pieces {
        let Range { start, end } = piece.range;
        while requests.peek().is_some_and(|request| request.end <= start) {
            requests.next();
            is_new_request = true;
        }
        match flights.last_mut() {
            Some(last) if !is_new_request && end.saturating_sub(last.range.start) <= max_bytes => {
                last.range.end = last.range.end.max(end);
                last.pieces.push(piece);
            }
            _ => flights.push(PlannedFlight {
                range: start..end,
                pieces: vec![piece],
            }),
        }
        is_new_request = false;
    }
    flights.sort_by_key(|flight| flight.pieces.iter().map(|piece| piece.place).min());
    flights
}

/// Cuts `range` into about equal parts of at most `max_bytes`, which may be read at the same time.
pub(crate) fn split(range: &Range<u64>, max_bytes: u64) -> Vec<Range<u64>> {
    let bytes = len(range);
    if bytes <= max_bytes || max_bytes == 0 {
        return vec![range.clone()];
    }
    let parts = bytes.div_ceil(max_bytes);
    let part_bytes = bytes.div_ceil(parts);
    (0..parts)
        .map(|part| {
            let start = range.start + part * part_bytes;
            start..range.end.min(start.saturating_add(part_bytes))
        })
        .collect()
}

fn len(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(place: usize, range: Range<u64>) -> Piece {
        Piece {
            place,
            range,
            is_conditional: false,
        }
    }

    fn ranges(flights: &[PlannedFlight]) -> Vec<Range<u64>> {
        flights.iter().map(|flight| flight.range.clone()).collect()
    }

    #[test]
    fn requests_are_cut_between_pieces() {
        let pieces = [
            (1, 30..40),
            (0, 0..10),
            (0, 10..20),
            (0, 90..95),
            (1, 40..65),
        ];
        let pieces = pieces.map(|(place, range)| piece(place, range));
        let flights = plan_flights(pieces.to_vec(), vec![90..95, 0..65], 20);
        assert_eq!(ranges(&flights), [0..20, 90..95, 30..40, 40..65]);
        assert_eq!(flights[0].pieces, [piece(0, 0..10), piece(0, 10..20)]);
        assert_eq!(flights[3].last_place(), 1);
    }

    #[test]
    fn gaps_are_read_only_where_coalescing_said_so() {
        let pieces = vec![piece(0, 0..10), piece(0, 15..20), piece(0, 30..40)];
        let flights = plan_flights(pieces, vec![0..20, 30..40], 1000);
        assert_eq!(ranges(&flights), [0..20, 30..40]);
    }

    proptest! {
        #[test]
        fn parts_are_the_whole(start in 0u64..1000, bytes in 0u64..10_000, max in 0u64..500) {
            let range = start..start + bytes;
            let parts = split(&range, max);
            prop_assert_eq!(parts[0].start, range.start);
            prop_assert_eq!(parts[parts.len() - 1].end, range.end);
            for pair in parts.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
            }
            for part in &parts {
                prop_assert!(max == 0 || len(part) <= max);
                prop_assert!(!part.is_empty() || bytes == 0);
            }
        }
    }
}
