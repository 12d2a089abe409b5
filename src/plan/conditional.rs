//! Whether bytes that only a row filter can make necessary are read ahead.

/// Decides per row group by what this scan has seen: what its filter kept, and what a request costs.
///
/// Reading a conditional range ahead saves a round trip if it is needed, and takes transfer time from other requests if
/// it is not. So it is worth it where `P(needed) x time to first byte >= unneeded bytes x time per byte`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ConditionalPolicy {
    row_groups: u32,
    needed: u32,
    /// Share of the conditional bytes that was asked for, summed over the row groups seen.
    asked: f64,
}

/// What a request costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct RequestCost {
    pub(crate) first_byte_seconds: f64,
    pub(crate) seconds_per_byte: f64,
}

impl ConditionalPolicy {
    /// Before anything is seen, everything is taken to be needed.
    pub(crate) fn new() -> Self {
        Self {
            row_groups: 0,
            needed: 0,
            asked: 0.0,
        }
    }

    /// The decoder is done with a row group, and has asked for `asked_bytes` of its `conditional_bytes`.
    pub(crate) fn observe(&mut self, asked_bytes: u64, conditional_bytes: u64) {
        if conditional_bytes == 0 {
            return;
        }
        self.row_groups = self.row_groups.saturating_add(1);
        if asked_bytes > 0 {
            self.needed = self.needed.saturating_add(1);
        }
        self.asked += (asked_bytes as f64 / conditional_bytes as f64).min(1.0);
    }

    /// Whether to read `conditional_bytes` of a row group ahead. Without a `cost`, nothing speaks against it.
    pub(crate) fn wants(&self, conditional_bytes: u64, cost: Option<RequestCost>) -> bool {
        let Some(cost) = cost else {
            return true;
        };
        // One row group more than were seen, of which everything was needed: a few that kept nothing decide nothing yet.
        let seen = f64::from(self.row_groups) + 1.0;
        let needed = (f64::from(self.needed) + 1.0) / seen;
        let unneeded_bytes = (1.0 - (self.asked + 1.0) / seen) * conditional_bytes as f64;
        needed * cost.first_byte_seconds >= unneeded_bytes * cost.seconds_per_byte
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 50 ms to the first byte, 100 MB/s.
    const S3: RequestCost = RequestCost {
        first_byte_seconds: 0.05,
        seconds_per_byte: 1e-8,
    };
    const MB: u64 = 1_000_000;

    fn after(asked: &[u64]) -> ConditionalPolicy {
        let mut policy = ConditionalPolicy::new();
        asked.iter().for_each(|bytes| policy.observe(*bytes, MB));
        policy
    }

    #[test]
    fn begins_with_everything() {
        assert!(after(&[]).wants(1000 * MB, Some(S3)));
        assert!(after(&[0; 9]).wants(1000 * MB, None));
    }

    #[test]
    fn small_ranges_are_worth_it_even_where_few_are_needed() {
        assert!(after(&[0; 9]).wants(MB / 10, Some(S3)));
        assert!(!after(&[0; 9]).wants(4 * MB, Some(S3)));
    }

    #[test]
    fn what_is_always_needed_in_part_is_weighed_against_the_rest() {
        assert!(after(&[MB / 2; 20]).wants(8 * MB, Some(S3)));
        assert!(!after(&[MB / 10; 20]).wants(80 * MB, Some(S3)));
    }

    #[test]
    fn recovers_when_the_filter_begins_to_keep_rows() {
        let mut policy = after(&[0; 9]);
        assert!(!policy.wants(4 * MB, Some(S3)));
        (0..9).for_each(|_| policy.observe(MB, MB));
        assert!(policy.wants(4 * MB, Some(S3)));
    }

    #[test]
    fn row_groups_without_conditional_bytes_say_nothing() {
        let mut policy = after(&[0]);
        policy.observe(0, 0);
        assert_eq!(policy, after(&[0]));
    }
}
