//! The metrics a scan adds to stock's, as `EXPLAIN ANALYZE` shows them.

use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, MetricBuilder, MetricCategory, MetricType, Time,
};

/// Row groups whose bytes were asked for before the decoder needed them.
pub const PREFETCHED_ROW_GROUP_COUNT: &str = "prefetched_row_group_count";
/// Bytes asked for before the decoder needed them. They are part of stock's `bytes_scanned` too.
pub const PREFETCHED_BYTES: &str = "prefetched_bytes";
/// Prefetched bytes that were dropped without having been decoded: the row group was pruned meanwhile, a filter kept
/// nothing, a limit was reached, or the stream was dropped.
pub const PREFETCH_UNUSED_BYTES: &str = "prefetch_unused_bytes";
/// Times the memory pool refused bytes that the budget would have allowed; the scan went on without them.
pub const PREFETCH_REFUSED_COUNT: &str = "prefetch_refused_count";
/// Fetches that failed together with what they prefetched, and were made again for the required bytes alone.
pub const PREFETCH_RETRY_COUNT: &str = "prefetch_retry_count";
/// Disjoint periods in which the scan waited for I/O, opening files included.
pub const FETCH_ROUND_COUNT: &str = "fetch_round_count";
/// Requests made of the object store after coalescing. With a user's own reader factory: calls of its readers.
pub const FETCH_REQUEST_COUNT: &str = "fetch_request_count";
/// Time the scan waited for I/O, opening files included.
pub const FETCH_WAIT_TIME: &str = "fetch_wait_time";

/// Every metric above, for whoever has to tell them from stock's.
pub const NAMES: &[&str] = &[
    PREFETCHED_ROW_GROUP_COUNT,
    PREFETCHED_BYTES,
    PREFETCH_UNUSED_BYTES,
    PREFETCH_REFUSED_COUNT,
    PREFETCH_RETRY_COUNT,
    FETCH_ROUND_COUNT,
    FETCH_REQUEST_COUNT,
    FETCH_WAIT_TIME,
];

/// Handles of one partition's metrics.
#[derive(Debug, Clone)]
pub(crate) struct ScanMetrics {
    pub(crate) prefetched_row_group_count: Count,
    pub(crate) prefetched_bytes: Count,
    pub(crate) prefetch_unused_bytes: Count,
    pub(crate) prefetch_refused_count: Count,
    pub(crate) prefetch_retry_count: Count,
    pub(crate) fetch_round_count: Count,
    pub(crate) fetch_request_count: Count,
    pub(crate) fetch_wait_time: Time,
}

impl ScanMetrics {
    pub(crate) fn new(metrics: &ExecutionPlanMetricsSet, partition: usize) -> Self {
        let count = |name, category: Option<MetricCategory>| {
            let builder = MetricBuilder::new(metrics).with_type(MetricType::Summary);
            match category {
                Some(category) => builder.with_category(category),
                None => builder,
            }
            .counter(name, partition)
        };
        Self {
            prefetched_row_group_count: count(PREFETCHED_ROW_GROUP_COUNT, None),
            prefetched_bytes: count(PREFETCHED_BYTES, Some(MetricCategory::Bytes)),
            prefetch_unused_bytes: count(PREFETCH_UNUSED_BYTES, Some(MetricCategory::Bytes)),
            prefetch_refused_count: count(PREFETCH_REFUSED_COUNT, None),
            prefetch_retry_count: count(PREFETCH_RETRY_COUNT, None),
            fetch_round_count: count(FETCH_ROUND_COUNT, None),
            fetch_request_count: count(FETCH_REQUEST_COUNT, None),
            fetch_wait_time: MetricBuilder::new(metrics)
                .with_type(MetricType::Summary)
                .subset_time(FETCH_WAIT_TIME, partition),
        }
    }
}

/// Adds a number of bytes to a metric, which counts in `usize`.
pub(crate) fn add_bytes(count: &Count, bytes: u64) {
    count.add(usize::try_from(bytes).unwrap_or(usize::MAX));
}
