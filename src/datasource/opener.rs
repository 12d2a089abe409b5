//! Opens the files of one partition.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener};
use datafusion_datasource::morsel::{Morsel, MorselPlan, MorselPlanner, Morselizer};
use futures::FutureExt;
use futures::stream::BoxStream;

use crate::open::{self, ScanContext};

/// A [`FileOpener`] that reads Parquet files with a push decoder and prefetches their row groups.
///
/// Made by [`PrefetchingParquetSource`](crate::PrefetchingParquetSource) for each partition that is executed. Nothing is
/// read before the future it returns is polled, and nothing is left running when that, or the stream it gives, is dropped.
pub struct PrefetchingParquetOpener {
    scan: Arc<ScanContext>,
}

impl PrefetchingParquetOpener {
    pub(crate) fn new(scan: ScanContext) -> Self {
        Self {
            scan: Arc::new(scan),
        }
    }
}

impl fmt::Debug for PrefetchingParquetOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefetchingParquetOpener")
            .field("partition", &self.scan.partition)
            .field("settings", &self.scan.settings)
            .finish_non_exhaustive()
    }
}

impl FileOpener for PrefetchingParquetOpener {
    fn open(&self, file: PartitionedFile) -> Result<FileOpenFuture> {
        Ok(open::open(Arc::clone(&self.scan), file).boxed())
    }
}

/// Lets DataFusion's file stream drive a [`FileOpener`].
pub(super) struct OpenerMorselizer {
    opener: Arc<dyn FileOpener>,
}

impl OpenerMorselizer {
    pub(super) fn new(opener: Arc<dyn FileOpener>) -> Self {
        Self { opener }
    }
}

impl fmt::Debug for OpenerMorselizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenerMorselizer").finish_non_exhaustive()
    }
}

impl Morselizer for OpenerMorselizer {
    fn plan_file(&self, file: PartitionedFile) -> Result<Box<dyn MorselPlanner>> {
        Ok(Box::new(OpenPlanner(self.opener.open(file)?)))
    }
}

/// Waits for a file to be opened.
struct OpenPlanner(FileOpenFuture);

impl fmt::Debug for OpenPlanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenPlanner")
    }
}

impl MorselPlanner for OpenPlanner {
    fn plan(self: Box<Self>) -> Result<Option<MorselPlan>> {
        Ok(Some(MorselPlan::new().with_pending_planner(async move {
            Ok(Box::new(OpenedFile(self.0.await?)) as Box<dyn MorselPlanner>)
        })))
    }
}

/// The batches of an opened file, as the one morsel that it is.
struct OpenedFile(BoxStream<'static, Result<RecordBatch>>);

impl fmt::Debug for OpenedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OpenedFile")
    }
}

impl MorselPlanner for OpenedFile {
    fn plan(self: Box<Self>) -> Result<Option<MorselPlan>> {
        Ok(Some(MorselPlan::new().with_morsels(vec![self])))
    }
}

impl Morsel for OpenedFile {
    fn into_stream(self: Box<Self>) -> BoxStream<'static, Result<RecordBatch>> {
        self.0
    }
}
