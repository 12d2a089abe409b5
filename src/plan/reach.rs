//! How far ahead a scan reads that may turn out to need less.

/// A limit on how many row groups, or files, after the current one are read ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reach {
    first: usize,
    max: usize,
}

impl Reach {
    /// As far as the budget goes, under a dynamic filter too: what a join's build side rules out is mostly known before
    /// anything is decoded, and it is worth more to have asked for the rest.
    pub(crate) const UNLIMITED: Self = Self {
        first: usize::MAX,
        max: usize::MAX,
    };

    /// 1, 2, 4, ...: a limit on rows may end the scan at any time.
    pub(crate) const UNDER_A_LIMIT: Self = Self {
        first: 1,
        max: usize::MAX,
    };

    /// 2, 4, 8, ... up to the `max` row groups that a dynamic filter is held against at once: a top-k sort's threshold rules
    /// out most of a file that is read in its order once the first row groups are decoded.
    pub(crate) const fn under_a_threshold(max: usize) -> Self {
        Self { first: 2, max }
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
        let reach = Reach::under_a_threshold(7);
        assert_eq!([0, 1, 2, 3].map(|n| reach.after(n)), [2, 4, 7, 7]);
        assert_eq!(Reach::UNLIMITED.after(0), usize::MAX);
        assert_eq!(Reach::UNLIMITED.after(5), usize::MAX);
    }
}
