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
/// of it can be returned at most.
///
/// Row groups without bytes (nothing is projected, or no rows) are passed over; those that `is_staged` names are counted by
/// the caller in `room_bytes` already.
pub(crate) fn widen<'a, E>(
    pending: impl Iterator<Item = &'a RowGroupRead>,
    mut room_bytes: u64,
    mut rows_left: Option<usize>,
    is_staged: impl Fn(usize) -> bool,
    mut ranges_of: impl FnMut(&RowGroupRead, Option<usize>) -> Result<Vec<Range<u64>>, E>,
) -> Result<Vec<PlannedRowGroup>, E> {
    let mut planned = Vec::new();
    for read in pending {
        if rows_left == Some(0) || room_bytes == 0 {
            break;
        }
        if read.selected_rows == 0 {
            continue;
        }
        if !is_staged(read.place) {
            let ranges = ranges_of(read, rows_left)?;
            let bytes = ranges.iter().map(|range| range.end - range.start).sum();
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
    Ok(planned)
}

/// Those of `candidates` that the requests for `asked` read in passing: coalescing bridges gaps of up to `max_gap_bytes`
/// between ranges, and reads what lies in them.
pub(crate) fn bridged(
    asked: &[Range<u64>],
    candidates: Vec<Range<u64>>,
    max_gap_bytes: u64,
) -> Vec<Range<u64>> {
    let mut sorted = asked.to_vec();
    sorted.sort_unstable_by_key(|range| range.start);
    let mut gaps: Vec<Range<u64>> = Vec::new();
    let mut end = sorted.first().map_or(0, |range| range.start);
    for range in sorted {
        if range.start > end && range.start - end <= max_gap_bytes {
            gaps.push(end..range.start);
        }
        end = end.max(range.end);
    }
    candidates
        .into_iter()
        .filter(|candidate| {
            let after = gaps.partition_point(|gap| gap.start <= candidate.start);
            !candidate.is_empty()
                && after
                    .checked_sub(1)
                    .is_some_and(|index| candidate.end <= gaps[index].end)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

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
                Ok::<_, Infallible>(one(start..start + sizes[read.place]))
            },
        )
        .unwrap();
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
                Ok::<_, Infallible>(if read.place == 0 { vec![] } else { one(0..5) })
            },
        )
        .unwrap();
        assert_eq!(
            planned.iter().map(|group| group.place).collect::<Vec<_>>(),
            [2]
        );
    }

    #[test]
    fn what_lies_in_a_bridged_gap_is_read_in_passing() {
        let asked = [300..400, 0..100, 150..200, 1000..1100];
        let candidates = vec![
            100..150, // fills a gap
            200..250, // lies in a gap
            250..301, // overlaps what is asked for
            400..500, // the gap is too wide
            1100..1200,
            220..220,
        ];
        assert_eq!(bridged(&asked, candidates, 100), [100..150, 200..250]);
        assert_eq!(bridged(&asked, one(100..150), 0), [] as [Range<u64>; 0]);
        assert_eq!(bridged(&[], one(0..1), 100), [] as [Range<u64>; 0]);
    }
}
