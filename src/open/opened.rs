//! A file that is open: what will be read of it is settled, and may be on its way.

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::physical_optimizer::pruning::FilePruner;
use datafusion::physical_plan::metrics::PruningMetrics;
use futures::stream::BoxStream;

use super::dynamic::stop_early;
use super::narrow::Narrowing;
use crate::decode::{FileScan, LaterFiles, Progress};
use crate::metrics::ScanMetrics;

/// An opened file of which nothing has been decoded.
pub(crate) struct OpenedFile {
    pub(super) scan: FileScan,
    pub(super) selected_rows: usize,
    /// Where a dynamic filter may say more by the time the file is read.
    pub(super) narrowing: Option<Narrowing>,
    pub(super) pruner: Option<FilePruner>,
    pub(super) files_pruned: PruningMetrics,
}

impl OpenedFile {
    /// Reads ahead as far as the budget allows.
    pub(crate) fn pump(&mut self) -> Progress {
        self.scan.pump()
    }

    /// As [`Self::pump`], and lets whoever follows go on.
    pub(crate) fn pump_beyond(&mut self) {
        self.scan.pump_beyond();
    }

    /// Rows that are read of it, before a row filter or a limit.
    pub(crate) fn selected_rows(&self) -> usize {
        self.selected_rows
    }

    /// Whether a dynamic filter has ruled the whole file out since it was opened. Nothing of it may be decoded then.
    pub(crate) fn is_ruled_out(&mut self) -> bool {
        let Some(pruner) = self.pruner.as_mut().filter(|pruner| pruner.is_watching()) else {
            return false;
        };
        // An error is told again, and then to the query, once the file is read.
        let is_ruled_out = pruner.should_prune().unwrap_or(false);
        if is_ruled_out {
            self.files_pruned.add_pruned(1);
            self.files_pruned.subtract_matched(1);
        }
        is_ruled_out
    }

    /// Leaves out what dynamic filters have ruled out since it was opened; `false` where nothing is left. To be called
    /// before anything of it is decoded.
    ///
    /// # Errors
    /// What pruning at opening would report.
    pub(crate) fn narrow(&mut self) -> Result<bool> {
        if let Some(narrowing) = self.narrowing.take() {
            narrowing.narrow(&mut self.scan)?;
            self.selected_rows = self.scan.selected_rows();
            return Ok(self.scan.has_row_groups());
        }
        Ok(true)
    }

    /// Lets `later` follow how far this file's read-ahead has come.
    pub(crate) fn followed_by(&mut self, later: Box<dyn LaterFiles>) {
        self.scan.bytes.followed_by(later);
    }

    /// Adds what is waited for to `metrics` from now on.
    pub(crate) fn count_in(&mut self, metrics: &ScanMetrics) {
        self.scan.bytes.count_in(metrics);
    }

    /// The file's batches. What has not been read ahead is read as they are polled.
    pub(crate) fn into_stream(self) -> BoxStream<'static, Result<RecordBatch>> {
        stop_early(self.scan.into_stream(), self.pruner, self.files_pruned)
    }
}
