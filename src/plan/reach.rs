//! How far ahead a scan reads that may turn out to need less.

/// Row groups that are read ahead at first where a dynamic filter may still rule them out.
///
/// Enough to decode for about a round trip, and little enough to be thrown away by a filter that becomes known meanwhile.
const UNDER_A_DYNAMIC_FILTER: usize = 8;

/// A limit on how many row groups, or files, after the current one are read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reach {
    first: usize,
    max: usize,
}

impl Reach {
    /// As far as the budget goes.
    pub(crate) const UNLIMITED: Self = Self {
        first: usize::MAX,
        max: usize::MAX,
    };

    /// 1, 2, 4, ...: a limit on rows may end the scan at any time.
    pub(crate) const UNDER_A_LIMIT: Self = Self {
        first: 1,
        max: usize::MAX,
    };

    /// Up to the `max` row groups that a dynamic filter is held against at once.
    pub(crate) fn under_a_dynamic_filter(max: usize) -> Self {
        Self {
            first: UNDER_A_DYNAMIC_FILTER.min(max),
            max,
        }
    }

    /// How many are read ahead after `consumed` have been: twice as many after each.
    pub(crate) fn after(&self, consumed: usize) -> usize {
        let doubled = u32::try_from(consumed)
            .ok()
            .and_then(|shift| 1usize.checked_shl(shift))
            .and_then(|factor| self.first.checked_mul(factor));
        doubled.map_or(self.max, |reach| reach.min(self.max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reach_doubles_with_what_is_consumed() {
        let reach = Reach::UNDER_A_LIMIT;
        assert_eq!([0, 1, 2, 3].map(|n| reach.after(n)), [1, 2, 4, 8]);
        assert_eq!(reach.after(1000), usize::MAX);
        let reach = Reach::under_a_dynamic_filter(32);
        assert_eq!([0, 1, 2, 3].map(|n| reach.after(n)), [8, 16, 32, 32]);
        assert_eq!(Reach::UNLIMITED.after(0), usize::MAX);
        assert_eq!(Reach::UNLIMITED.after(5), usize::MAX);
    }
}
