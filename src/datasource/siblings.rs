//! What the partitions of one execution have in common.

use std::sync::{Arc, Weak};

use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::FileScanConfig;
use parking_lot::Mutex;

use crate::open::LookAhead;

/// Finds the look-ahead that the partitions of a scan share where they share their files.
///
/// DataFusion makes the queue that partitions take files from once for each node, just before the first of them is
/// executed, and passes its files through [`reorder_files`] in the order in which they will be taken. Nothing else connects
/// the queue with the source. So the order is kept from that call on, and the partitions that are executed after it
/// belong to it.
///
/// A clone knows nothing of the executions of its original: it becomes part of another plan.
///
/// [`reorder_files`]: datafusion::datasource::physical_plan::FileSource::reorder_files
#[derive(Debug, Default)]
pub(super) struct Siblings(Mutex<Queue>);

#[derive(Debug, Default)]
enum Queue {
    /// Each partition has files of its own.
    #[default]
    None,
    /// The files of a queue that no partition has been executed on.
    New(Vec<PartitionedFile>),
    Shared {
        look_ahead: Weak<LookAhead>,
        config: ConfigId,
    },
}

/// Tells one scan of a source from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ConfigId {
    address: usize,
    limit: Option<usize>,
}

impl ConfigId {
    fn of(config: &FileScanConfig) -> Self {
        Self {
            address: std::ptr::from_ref(config) as usize,
            limit: config.limit,
        }
    }
}

/// The files that a partition will take.
pub(super) enum FilesOf {
    /// Those of its own group.
    Group,
    /// Those of a queue, of which it is the first to be executed.
    Queue(Vec<PartitionedFile>),
    /// What others have left of a queue, which only the queue knows.
    Rest,
}

impl Siblings {
    /// From now on partitions take `files`, one after another.
    pub(super) fn begin(&self, files: &[PartitionedFile]) {
        *self.0.lock() = Queue::New(files.to_vec());
    }

    /// The look-ahead of a partition of `config`, which is about to be executed: that of the partitions it shares a queue
    /// with, or else what `look_ahead` makes for it.
    pub(super) fn join(
        &self,
        config: &FileScanConfig,
        look_ahead: impl FnOnce(FilesOf) -> Arc<LookAhead>,
    ) -> Arc<LookAhead> {
        let mut queue = self.0.lock();
        let id = ConfigId::of(config);
        match std::mem::take(&mut *queue) {
            Queue::None => look_ahead(FilesOf::Group),
            Queue::New(files) => {
                let look_ahead = look_ahead(FilesOf::Queue(files));
                *queue = Queue::Shared {
                    look_ahead: Arc::downgrade(&look_ahead),
                    config: id,
                };
                look_ahead
            }
            Queue::Shared {
                look_ahead: shared,
                config,
            } => {
                let found = shared.upgrade().filter(|_| config == id);
                *queue = Queue::Shared {
                    look_ahead: shared,
                    config,
                };
                found.unwrap_or_else(|| look_ahead(FilesOf::Rest))
            }
        }
    }
}

impl Clone for Siblings {
    fn clone(&self) -> Self {
        Self::default()
    }
}
