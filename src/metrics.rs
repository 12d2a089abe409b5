//! The metrics a scan adds to stock's, as `EXPLAIN ANALYZE` shows them.

use datafusion::datasource::physical_plan::parquet::ParquetFileMetrics;
use datafusion::physical_plan::metrics::{
    Count, ExecutionPlanMetricsSet, Gauge, MetricBuilder, MetricCategory, MetricType, RatioMetrics,
    Time,
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

/// Bytes that the decoder required and that had not been asked for before.
pub const REQUIRED_BYTES: &str = "required_bytes";
/// Requests that the scan waited for from the beginning, those of opening files included.
pub const REQUIRED_REQUEST_COUNT: &str = "required_request_count";
/// Bytes read ahead that the decoder needs unless their row group is pruned or a limit is reached. They are part of stock's
/// `bytes_scanned` too.
pub const SPECULATIVE_BYTES: &str = "speculative_bytes";
/// Requests for such bytes.
pub const SPECULATIVE_REQUEST_COUNT: &str = "speculative_request_count";
/// Bytes read ahead that the decoder needs only if a row filter keeps rows. They are part of stock's `bytes_scanned` too.
pub const CONDITIONAL_BYTES: &str = "conditional_bytes";
/// Requests for such bytes only.
pub const CONDITIONAL_REQUEST_COUNT: &str = "conditional_request_count";
/// Bytes read ahead that were dropped, or their request cancelled, without having been decoded.
pub const READ_AHEAD_UNUSED_BYTES: &str = "read_ahead_unused_bytes";
/// Times the decoder had to wait for bytes that were on their way.
pub const READ_AHEAD_WAIT_COUNT: &str = "read_ahead_wait_count";
/// Time the decoder waited for bytes that were on their way.
pub const READ_AHEAD_WAIT_TIME: &str = "read_ahead_wait_time";
/// Times the memory pool refused to let read-ahead go on; each lasts until it has room again.
pub const READ_AHEAD_REFUSED_COUNT: &str = "read_ahead_refused_count";
/// Requests of a read-ahead that failed, and whose bytes were required afterwards.
pub const READ_AHEAD_RETRY_COUNT: &str = "read_ahead_retry_count";
/// Files that were opened before their turn.
pub const READ_AHEAD_FILE_COUNT: &str = "read_ahead_file_count";
/// Most bytes that read-ahead held or had asked for at one time, all of them reserved in the memory pool.
pub const READ_AHEAD_PEAK_BYTES: &str = "read_ahead_peak_bytes";

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
    REQUIRED_BYTES,
    REQUIRED_REQUEST_COUNT,
    SPECULATIVE_BYTES,
    SPECULATIVE_REQUEST_COUNT,
    CONDITIONAL_BYTES,
    CONDITIONAL_REQUEST_COUNT,
    READ_AHEAD_UNUSED_BYTES,
    READ_AHEAD_WAIT_COUNT,
    READ_AHEAD_WAIT_TIME,
    READ_AHEAD_REFUSED_COUNT,
    READ_AHEAD_RETRY_COUNT,
    READ_AHEAD_FILE_COUNT,
    READ_AHEAD_PEAK_BYTES,
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
    pub(crate) required_bytes: Count,
    pub(crate) required_request_count: Count,
    pub(crate) speculative_bytes: Count,
    pub(crate) speculative_request_count: Count,
    pub(crate) conditional_bytes: Count,
    pub(crate) conditional_request_count: Count,
    pub(crate) read_ahead_unused_bytes: Count,
    pub(crate) read_ahead_wait_count: Count,
    pub(crate) read_ahead_wait_time: Time,
    pub(crate) read_ahead_refused_count: Count,
    pub(crate) read_ahead_retry_count: Count,
    pub(crate) read_ahead_file_count: Count,
    pub(crate) read_ahead_peak_bytes: Gauge,
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
        let bytes = |name| count(name, Some(MetricCategory::Bytes));
        let time = |name| {
            MetricBuilder::new(metrics)
                .with_type(MetricType::Summary)
                .subset_time(name, partition)
        };
        Self {
            prefetched_row_group_count: count(PREFETCHED_ROW_GROUP_COUNT, None),
            prefetched_bytes: bytes(PREFETCHED_BYTES),
            prefetch_unused_bytes: bytes(PREFETCH_UNUSED_BYTES),
            prefetch_refused_count: count(PREFETCH_REFUSED_COUNT, None),
            prefetch_retry_count: count(PREFETCH_RETRY_COUNT, None),
            fetch_round_count: count(FETCH_ROUND_COUNT, None),
            fetch_request_count: count(FETCH_REQUEST_COUNT, None),
            fetch_wait_time: time(FETCH_WAIT_TIME),
            required_bytes: bytes(REQUIRED_BYTES),
            required_request_count: count(REQUIRED_REQUEST_COUNT, None),
            speculative_bytes: bytes(SPECULATIVE_BYTES),
            speculative_request_count: count(SPECULATIVE_REQUEST_COUNT, None),
            conditional_bytes: bytes(CONDITIONAL_BYTES),
            conditional_request_count: count(CONDITIONAL_REQUEST_COUNT, None),
            read_ahead_unused_bytes: bytes(READ_AHEAD_UNUSED_BYTES),
            read_ahead_wait_count: count(READ_AHEAD_WAIT_COUNT, None),
            read_ahead_wait_time: time(READ_AHEAD_WAIT_TIME),
            read_ahead_refused_count: count(READ_AHEAD_REFUSED_COUNT, None),
            read_ahead_retry_count: count(READ_AHEAD_RETRY_COUNT, None),
            read_ahead_file_count: count(READ_AHEAD_FILE_COUNT, None),
            read_ahead_peak_bytes: MetricBuilder::new(metrics)
                .with_type(MetricType::Summary)
                .with_category(MetricCategory::Bytes)
                .gauge(READ_AHEAD_PEAK_BYTES, partition),
        }
    }

    /// For what is done before its turn: it is not waited for.
    pub(crate) fn in_background(&self) -> Self {
        Self {
            fetch_round_count: Count::new(),
            fetch_wait_time: Time::new(),
            ..self.clone()
        }
    }
}

/// Stock's metrics of the bytes that were asked for of a file, which its readers keep.
#[derive(Debug, Clone)]
pub(crate) struct ScannedBytes {
    bytes: Count,
    efficiency: RatioMetrics,
}

impl ScannedBytes {
    pub(crate) fn of(metrics: &ParquetFileMetrics) -> Self {
        Self {
            bytes: metrics.bytes_scanned.clone(),
            efficiency: metrics.scan_efficiency_ratio.clone(),
        }
    }

    pub(crate) fn add(&self, bytes: u64) {
        add_bytes(&self.bytes, bytes);
        // Of the file's size, which the readers set.
        self.efficiency
            .add_part(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
}

/// Adds a number of bytes to a metric, which counts in `usize`.
pub(crate) fn add_bytes(count: &Count, bytes: u64) {
    count.add(usize::try_from(bytes).unwrap_or(usize::MAX));
}
