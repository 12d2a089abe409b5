//! How far a fetch that is needed anyway is widened.

use std::ops::Range;

use super::RowGroupRead;

/// A later row group that a fetch takes along.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PlannedRowGroup {
    pub(crate) place: usize,
    pub(crate) ranges: Vec<Range<u64>>,
    pub(crate) bytes: u64,
}

/// Complete row groups, in scan order, whose bytes fit what is left of a budget.
///
/// `room_bytes` is the budget less the bytes that are buffered, staged, and required by this fetch. The first row group
/// that does not fit ends the widening, also where a later and smaller one would fit: the decoder needs them in order.
/// `rows_left` ends it once the row groups taken hold that many rows. `ranges_of` is given a row group and how many rows
/// of it can be returned at most; where it says `None`, the
/// widening ends.
///
/// Row groups without bytes (nothing is projected, or no rows) are passed over; those that `is_staged` names are counted by
/// the caller in `room_bytes` already.
pub(crate) fn widen<'a>(
    pending: impl Iterator<Item = &'a RowGroupRead>,
    mut room_bytes: u64,
    mut rows_left: Option<usize>,
    is_staged: impl Fn(usize) -> bool,
    mut ranges_of: impl FnMut(&RowGroupRead, Option<usize>) -> Option<Vec<Range<u64>>>,
) -> Vec<PlannedRowGroup> {
    let mut planned = Vec::new();
    for read in pending {
        if rows_left == Some(0) || room_bytes == 0 {
            break;
        }
        if read.selected_rows == 0 {
            continue;
        }
        if !is_staged(read.place) {
            let Some(ranges) = ranges_of(read, rows_left) else {
                break;
            };
            let bytes = ranges.iter().fold(0, |bytes: u64, range| {
                bytes.saturating_add(range.end.saturating_sub(range.start))
            });
            if bytes > room_bytes {
                break;
            }
            if bytes > 0 {
                room_bytes -= bytes;
                planned.push(PlannedRowGroup {
                    place: read.place,
                    ranges,
                    bytes,
                });
            }
        }
        rows_left = rows_left.map(|left| left.saturating_sub(read.selected_rows));
    }
    planned
}

/// Those of `candidates` that `requests`, disjoint ranges that cover `asked`, read only in passing.
pub(crate) fn read_in_passing(
    requests: &[Range<u64>],
    asked: &[Range<u64>],
    candidates: &[Range<u64>],
) -> Vec<Range<u64>> {
    let sorted = |ranges: &[Range<u64>]| {
        let mut sorted = ranges.to_vec();
        sorted.sort_unstable_by_key(|range| range.start);
        sorted
    };
    let (requests, asked) = (sorted(requests), sorted(asked));
    // The last of `ranges` that begins before `end`.
    let last_before = |ranges: &[Range<u64>], end: u64| {
        let after = ranges.partition_point(|range| range.start < end);
        after.checked_sub(1).map(|last| ranges[last].clone())
    };
    candidates
        .iter()
        .filter(|candidate| {
            candidate.start < candidate.end
                && last_before(&requests, candidate.end).is_some_and(|request| {
                    request.start <= candidate.start && candidate.end <= request.end
                })
                && last_before(&asked, candidate.end).is_none_or(|used| used.end <= candidate.start)
        })
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(range: Range<u64>) -> Vec<Range<u64>> {
        std::iter::once(range).collect()
    }

    fn reads(rows: &[usize]) -> Vec<RowGroupRead> {
        rows.iter()
            .enumerate()
            .map(|(place, &selected_rows)| RowGroupRead {
                place,
                row_group_idx: place,
                selection: None,
                selected_rows,
            })
            .collect()
    }

    fn places(room: u64, rows_left: Option<usize>, sizes: &[u64], staged: &[usize]) -> Vec<usize> {
        let reads = reads(&vec![10; sizes.len()]);
        let planned = widen(
            reads.iter(),
            room,
            rows_left,
            |place| staged.contains(&place),
            |read, _| {
                let start = 1000 * read.place as u64;
                Some(one(start..start + sizes[read.place]))
            },
        );
        planned.iter().map(|group| group.place).collect()
    }

    #[test]
    fn packs_in_order_until_one_does_not_fit() {
        assert_eq!(places(100, None, &[40, 60, 1], &[]), [0, 1]);
        assert_eq!(places(99, None, &[40, 60, 1], &[]), [0]);
        assert_eq!(places(39, None, &[40, 1, 1], &[]), [] as [usize; 0]);
        assert_eq!(places(0, None, &[1], &[]), [] as [usize; 0]);
    }

    #[test]
    fn a_staged_row_group_is_passed_over() {
        assert_eq!(places(50, None, &[40, 40, 10], &[0]), [1, 2]);
    }

    #[test]
    fn rows_left_end_the_widening() {
        assert_eq!(places(1000, Some(15), &[1, 1, 1], &[]), [0, 1]);
        assert_eq!(places(1000, Some(0), &[1, 1, 1], &[]), [] as [usize; 0]);
    }

    #[test]
    fn row_groups_without_rows_or_bytes_are_passed_over() {
        let mut reads = reads(&[10, 0, 10]);
        reads[1].selected_rows = 0;
        let planned = widen(
            reads.iter(),
            100,
            None,
            |_| false,
            |read, _| {
                assert_ne!(read.place, 1);
                Some(if read.place == 0 { vec![] } else { one(0..5) })
            },
        );
        assert_eq!(
            planned.iter().map(|group| group.place).collect::<Vec<_>>(),
            [2]
        );
    }

    #[test]
    fn what_requests_cover_and_nobody_asked_for_is_read_in_passing() {
        let requests = [1000..1100, 0..400];
        let asked = [300..400, 0..100, 150..200, 1000..1100];
        let candidates = [
            100..150, // fills a gap
            200..250, // lies in a gap
            250..301, // overlaps what is asked for
            400..500, // in no request
            1050..1150,
            220..220,
        ];
        assert_eq!(
            read_in_passing(&requests, &asked, &candidates),
            [100..150, 200..250]
        );
        assert_eq!(read_in_passing(&[], &[], &one(0..1)), [] as [Range<u64>; 0]);
    }
}
