//! Opens the files of one partition.

use std::fmt;
use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::{FileOpenFuture, FileOpener};
use datafusion_datasource::morsel::{Morsel, MorselPlan, MorselPlanner, Morselizer};
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};

use crate::open::{self, LookAhead, ScanContext};

/// A [`FileOpener`] that reads Parquet files with a push decoder, and prefetches their row groups and the files after them.
///
/// Made by [`PrefetchingParquetSource`](crate::PrefetchingParquetSource) for each partition that is executed. Nothing is
/// left running when it and the futures and streams it gave are dropped.
pub struct PrefetchingParquetOpener {
    scan: Arc<ScanContext>,
    /// Where the scan reads ahead.
    look_ahead: Option<Arc<LookAhead>>,
}

impl PrefetchingParquetOpener {
    pub(crate) fn new(scan: ScanContext, look_ahead: Option<Arc<LookAhead>>) -> Self {
        Self {
            scan: Arc::new(scan),
            look_ahead,
        }
    }

    /// Begins to open files before any of them is asked for. Outside a Tokio runtime that begins with the first.
    pub(super) fn start(&self) {
        if let Some(look_ahead) = &self.look_ahead {
            look_ahead.pump(&self.scan);
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
        let scan = Arc::clone(&self.scan);
        let look_ahead = self.look_ahead.clone();
        Ok(async move {
            let opened = match look_ahead {
                Some(look_ahead) => look_ahead.claim(scan, file).await?,
                None => open::open(scan, file, None).await?,
            };
            Ok(match opened {
                Some(file) => file.into_stream(),
                None => stream::empty().boxed(),
            })
        }
        .boxed())
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
