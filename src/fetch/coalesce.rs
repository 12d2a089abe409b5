//! How the ranges of one fetch become requests, and answers the bytes of ranges.

use std::ops::Range;

use bytes::Bytes;
use object_store::OBJECT_STORE_COALESCE_DEFAULT;

/// The requests of one fetch, those with required bytes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Requests {
    /// Disjoint.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Bytes that are read only because they lie between ranges.
    pub(crate) bridged_bytes: u64,
}

impl Requests {
    /// Coalesces `ranges`, of which the first `required_count` are required and the others speculative.
    ///
    /// Required ranges are joined as object_store joins them: over gaps of up to 1 MiB. A gap next to a speculative range
    /// is bridged only while all such gaps together are no more than the speculative bytes themselves: what is prefetched may at
    /// most double on the way. Empty ranges take no request.
    pub(crate) fn plan(ranges: &[Range<u64>], required_count: usize) -> Self {
        let (required, speculative) = ranges.split_at(required_count.min(ranges.len()));
        let mut pieces: Vec<(Range<u64>, bool)> = required
            .iter()
            .map(|range| (range.clone(), true))
            .chain(speculative.iter().map(|range| (range.clone(), false)))
            .filter(|(range, _)| range.start < range.end)
            .collect();
        pieces.sort_unstable_by_key(|(range, _)| range.start);
        let joined_required = joined(pieces.iter().filter(|(_, required)| *required));
        let mut allowance: u64 = speculative.iter().map(len).sum();

        let mut requests: Vec<(Range<u64>, bool)> = Vec::new();
        let mut spans = joined_required.iter().peekable();
        for (piece, is_required) in pieces {
            // What lies within the span of required ranges is read with them.
            while spans.peek().is_some_and(|span| span.end < piece.end) {
                spans.next();
            }
            let piece = match spans.peek() {
                Some(span) if span.start <= piece.start => (*span).clone(),
                _ => piece,
            };
            let Some((last, last_required)) = requests.last_mut() else {
                requests.push((piece, is_required));
                continue;
            };
            let gap = piece.start.saturating_sub(last.end);
            if gap == 0 {
                last.end = last.end.max(piece.end);
                *last_required |= is_required;
            } else if gap <= OBJECT_STORE_COALESCE_DEFAULT && gap <= allowance {
                allowance -= gap;
                last.end = piece.end;
                *last_required |= is_required;
            } else {
                requests.push((piece, is_required));
            }
        }
        let asked = joined_without_gaps(ranges);
        let read: u64 = requests.iter().map(|(range, _)| len(range)).sum();
        requests.sort_by_key(|(_, required)| !required);
        Self {
            ranges: requests.into_iter().map(|(range, _)| range).collect(),
            bridged_bytes: read - asked,
        }
    }
}

/// Joined over gaps of up to 1 MiB; `pieces` are sorted.
fn joined<'a>(pieces: impl Iterator<Item = &'a (Range<u64>, bool)>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for (piece, _) in pieces {
        match joined.last_mut() {
            Some(last) if piece.start.saturating_sub(last.end) <= OBJECT_STORE_COALESCE_DEFAULT => {
                last.end = last.end.max(piece.end);
            }
            _ => joined.push(piece.clone()),
        }
    }
    joined
}

/// Bytes that are in at least one of `ranges`.
fn joined_without_gaps(ranges: &[Range<u64>]) -> u64 {
    let mut sorted: Vec<&Range<u64>> = ranges.iter().filter(|range| !range.is_empty()).collect();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut end = 0;
    let mut bytes = 0;
    for range in sorted {
        bytes += range.end.saturating_sub(range.start.max(end));
        end = end.max(range.end);
    }
    bytes
}

/// The bytes of `range`, where one of `chunks` has them all. `chunks` are sorted by start and do not overlap.
pub(crate) fn slice_of(chunks: &[(Range<u64>, Bytes)], range: &Range<u64>) -> Option<Bytes> {
    let after = chunks.partition_point(|(chunk, _)| chunk.start <= range.start);
    let (chunk, bytes) = &chunks[after.checked_sub(1)?];
    if range.end > chunk.end {
        return None;
    }
    let from = usize::try_from(range.start - chunk.start).ok()?;
    let to = usize::try_from(range.end - chunk.start).ok()?;
    Some(bytes.slice(from..to))
}

/// Length of a range; 0 where it is reversed.
pub(crate) fn len(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn required_ranges_are_joined_as_object_store_joins_them() {
        let ranges = [
            5 * MIB..6 * MIB,
            0..10,
            20..30,
            MIB..MIB + 5,
            3 * MIB..3 * MIB + 1,
        ];
        let requests = Requests::plan(&ranges, 5);
        assert_eq!(
            requests.ranges,
            [0..MIB + 5, 3 * MIB..3 * MIB + 1, 5 * MIB..6 * MIB]
        );
        assert_eq!(requests.bridged_bytes, MIB + 5 - 25);
    }

    #[test]
    fn what_is_prefetched_at_most_doubles() {
        // Narrow columns in wide row groups: their gaps are as bridgeable as they come, and would add up.
        let ranges: Vec<Range<u64>> = (0..1000).map(|i| i * MIB..i * MIB + 100).collect();
        let requests = Requests::plan(&ranges, 1);
        assert_eq!(requests.ranges.len(), 1000);
        assert_eq!(requests.bridged_bytes, 0);
        // Wide ones are joined.
        let ranges: Vec<Range<u64>> = (0..10).map(|i| i * MIB..(i + 1) * MIB - 100).collect();
        assert_eq!(
            Requests::plan(&ranges, 1).ranges,
            vec![Range {
                start: 0,
                end: 10 * MIB - 100
            }]
        );
    }

    #[test]
    fn requests_with_required_bytes_come_first() {
        let ranges = [50 * MIB..51 * MIB, 10 * MIB..11 * MIB, 0..MIB];
        let requests = Requests::plan(&ranges, 1);
        assert_eq!(
            requests.ranges,
            [50 * MIB..51 * MIB, 0..MIB, 10 * MIB..11 * MIB]
        );
    }

    #[test]
    fn a_speculative_range_between_required_ones_is_read_with_them() {
        let requests = Requests::plan(&[0..10, 500..510, 100..200], 2);
        assert_eq!(requests.ranges, std::iter::once(0..510).collect::<Vec<_>>());
        assert_eq!(requests.bridged_bytes, 510 - 120);
    }

    proptest! {
        #[test]
        fn each_range_is_in_one_request(
            lengths in proptest::collection::vec((0u64..3 * MIB, 0u64..2 * MIB), 0..40),
            required in 0usize..40,
            order in any::<u64>(),
        ) {
            let mut at = 0;
            let mut ranges: Vec<Range<u64>> = lengths
                .iter()
                .map(|(gap, len)| {
                    let start = at + gap;
                    at = start + len;
                    start..at
                })
                .collect();
            let turn = usize::try_from(order).unwrap() % ranges.len().max(1);
            ranges.rotate_left(turn);
            let required = required.min(ranges.len());
            let requests = Requests::plan(&ranges, required);
            let mut sorted = requests.ranges.clone();
            sorted.sort_unstable_by_key(|range| range.start);
            for pair in sorted.windows(2) {
                prop_assert!(pair[0].end < pair[1].start, "{pair:?} overlap or touch");
            }
            let containing = |range: &Range<u64>| {
                requests.ranges.iter().position(|request| request.start <= range.start && range.end <= request.end)
            };
            let mut last_required = None;
            for (i, range) in ranges.iter().enumerate().filter(|(_, range)| !range.is_empty()) {
                let request = containing(range);
                prop_assert!(request.is_some());
                if i < required {
                    last_required = last_required.max(request);
                }
            }
            // No request without required bytes before the last one with them.
            if let Some(last) = last_required {
                for request in &requests.ranges[..=last] {
                    prop_assert!(ranges[..required].iter().any(|range| !range.is_empty() && request.start <= range.start && range.end <= request.end));
                }
            }
            let read: u64 = requests.ranges.iter().map(len).sum();
            let asked: u64 = ranges.iter().map(len).sum();
            prop_assert_eq!(read - asked, requests.bridged_bytes);
            let required_only = Requests::plan(&ranges[..required], required).bridged_bytes;
            let speculative: u64 = ranges[required..].iter().map(len).sum();
            prop_assert!(requests.bridged_bytes <= required_only + speculative);
        }
    }
}
