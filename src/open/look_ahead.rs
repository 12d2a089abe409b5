//! Opens the files of a scan, and begins to read them, before their turn.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::listing::PartitionedFile;
use futures::future::BoxFuture;
use futures::{FutureExt, pin_mut};
use log::debug;
use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::metadata_flights::MetadataFlights;
use super::{InBackground, OpenedFile, ScanContext, open};
use crate::decode::{LaterFiles, Progress};
use crate::fetch::ByteBudget;
use crate::plan::Reach;

/// The files that a scan's partitions will take, in the order in which they will take them.
///
/// It only *peeks* at what the partitions take: [`Self::claim`] is told which file that was. Where partitions share their
/// files, they share this too, and any of them may claim what another has opened.
///
/// Everything it has under way is cancelled when it is dropped.
pub(crate) struct LookAhead {
    state: Mutex<State>,
    budget: Arc<ByteBudget>,
    metadata: Arc<MetadataFlights>,
    max_files: usize,
    /// How many files are read at the same time.
    partitions: usize,
}

struct State {
    /// Neither opened nor claimed.
    upcoming: VecDeque<PartitionedFile>,
    /// Opened, or being opened, and not claimed.
    ahead: VecDeque<Ahead>,
    claimed: usize,
    /// Rows of the claimed files; what they all have is known.
    claimed_rows: usize,
    /// Files that are being opened by whoever claimed them, and what they may hold.
    opening: usize,
    opening_bytes: u64,
    /// Claimed files of which not all is on its way.
    incomplete: usize,
}

/// A file that was opened before its turn.
struct Ahead {
    file: PartitionedFile,
    expected_bytes: u64,
    task: SpawnedTask<Result<()>>,
    slot: Arc<Mutex<Slot>>,
}

/// What has come of opening.
enum Slot {
    Opening,
    /// `None` where nothing is left of the file.
    Opened(Option<Box<OpenedFile>>),
}

impl LookAhead {
    /// Over `files`, of which `max_files` at most are opened ahead, for `partitions` that take them one by one.
    pub(crate) fn new(
        files: impl IntoIterator<Item = PartitionedFile>,
        budget: Arc<ByteBudget>,
        max_files: usize,
        partitions: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                upcoming: files.into_iter().collect(),
                ahead: VecDeque::new(),
                claimed: 0,
                claimed_rows: 0,
                opening: 0,
                opening_bytes: 0,
                incomplete: 0,
            }),
            budget,
            metadata: Arc::default(),
            max_files,
            partitions: partitions.max(1),
        })
    }

    pub(crate) fn budget(&self) -> &Arc<ByteBudget> {
        &self.budget
    }

    /// Opens further files and reads further ahead in opened ones, as far as the limits allow. Does nothing outside a Tokio
    /// runtime.
    ///
    /// The files that are being read come first: nothing is read of later ones while those need what is left of the budget.
    pub(crate) fn pump(self: &Arc<Self>, scan: &Arc<ScanContext>) {
        if Handle::try_current().is_err() {
            return;
        }
        let mut state = self.state.lock();
        let mut held = state.incomplete;
        for ahead in &mut state.ahead {
            if held >= self.partitions {
                return;
            }
            held += usize::from(ahead.pump() == Some(Progress::Held));
        }
        if held < self.partitions {
            while self.open_next(&mut state, scan) {}
        }
    }

    /// Begins to open the next file, where the limits allow it.
    fn open_next(self: &Arc<Self>, state: &mut State, scan: &Arc<ScanContext>) -> bool {
        let Some(file) = state.upcoming.front() else {
            return false;
        };
        let expected_bytes = scan.expected_bytes(file);
        if !self.may_open(state, scan, expected_bytes) {
            return false;
        }
        let Ok(permit) = self.budget.try_take(scan.bytes_to_open(file)) else {
            return false;
        };
        let Some(file) = state.upcoming.pop_front() else {
            return false;
        };
        scan.metrics.read_ahead_file_count.add(1);
        let slot = Arc::new(Mutex::new(Slot::Opening));
        let opening = Self::open_ahead(
            Arc::downgrade(self),
            Arc::clone(scan),
            file.clone(),
            InBackground {
                permit,
                metadata: Arc::clone(&self.metadata),
            },
            Arc::clone(&slot),
        );
        state.ahead.push_back(Ahead {
            file,
            expected_bytes,
            task: SpawnedTask::spawn(opening),
            slot,
        });
        true
    }

    fn may_open(&self, state: &State, scan: &ScanContext, expected_bytes: u64) -> bool {
        if state.ahead.len() >= self.max_files {
            return false;
        }
        let mut opening = state.opening;
        let mut opening_bytes = state.opening_bytes;
        let mut rows = Some(state.claimed_rows);
        for ahead in &state.ahead {
            match &*ahead.slot.lock() {
                Slot::Opening => {
                    opening += 1;
                    opening_bytes = opening_bytes.saturating_add(ahead.expected_bytes);
                    rows = None;
                }
                Slot::Opened(file) => {
                    let selected = file.as_ref().map_or(0, |file| file.selected_rows());
                    rows = rows.map(|rows| rows.saturating_add(selected));
                }
            }
        }
        if let Some(limit) = scan.limit {
            // The first file is needed in any case. With a row filter, nobody knows how many rows the others have.
            let is_needed = if scan.has_row_filter() {
                let consumed = state.claimed.saturating_sub(1);
                state.ahead.len() < Reach::UNDER_A_LIMIT.after(consumed)
            } else {
                opening == 0 && rows.is_some_and(|rows| rows < limit)
            };
            if !is_needed {
                return false;
            }
        }
        // While nothing is known of the files being opened, they are taken to need all that their projection may hold.
        let used_bytes = self.budget.used_bytes().saturating_add(opening_bytes);
        opening < self.partitions
            || used_bytes.saturating_add(expected_bytes) <= self.budget.limit_bytes()
    }

    /// Boxed, as what it does at its end may begin the same for the next file.
    fn open_ahead(
        look_ahead: Weak<Self>,
        scan: Arc<ScanContext>,
        file: PartitionedFile,
        background: InBackground,
        slot: Arc<Mutex<Slot>>,
    ) -> BoxFuture<'static, Result<()>> {
        async move {
            let opened = open(Arc::clone(&scan), file, Some(background)).await?;
            *slot.lock() = Slot::Opened(opened.map(Box::new));
            if let Some(look_ahead) = look_ahead.upgrade() {
                look_ahead.pump(&scan);
            }
            Ok(())
        }
        .boxed()
    }

    /// Opens `file`, which a partition has taken, or finishes what was begun of it; `None` where nothing is left of it.
    ///
    /// # Errors
    /// As [`open`]. What failed before its turn is tried again.
    pub(crate) async fn claim(
        self: Arc<Self>,
        scan: Arc<ScanContext>,
        file: PartitionedFile,
    ) -> Result<Option<OpenedFile>> {
        let ahead = self.state.lock().take(&file);
        let opened = match ahead {
            Some(ahead) => match ahead.wait(&scan).await {
                Ok(mut opened) => {
                    if let Some(file) = &mut opened
                        && (file.is_ruled_out() || !file.narrow()?)
                    {
                        opened = None;
                    }
                    if let Some(opened) = &mut opened {
                        opened.count_in(&scan.metrics);
                    }
                    Ok(opened)
                }
                Err(error) => {
                    debug!(
                        "{}: opening it ahead failed, trying again: {error}",
                        file.object_meta.location
                    );
                    scan.metrics.read_ahead_retry_count.add(1);
                    self.open_now(&scan, file).await
                }
            },
            None => self.open_now(&scan, file).await,
        }?;
        let Some(mut opened) = opened else {
            self.pump(&scan);
            return Ok(None);
        };
        {
            let mut state = self.state.lock();
            state.claimed_rows = state.claimed_rows.saturating_add(opened.selected_rows());
            state.incomplete += 1;
        }
        opened.followed_by(Box::new(Later {
            look_ahead: Arc::downgrade(&self),
            scan,
            is_complete: false,
        }));
        opened.pump_beyond();
        Ok(Some(opened))
    }

    /// Opens a file that nobody has begun to open, and looks ahead beside it.
    async fn open_now(
        self: &Arc<Self>,
        scan: &Arc<ScanContext>,
        file: PartitionedFile,
    ) -> Result<Option<OpenedFile>> {
        let expected_bytes = scan.expected_bytes(&file);
        let _opening = OpeningNow::new(self, expected_bytes);
        let opening = open(Arc::clone(scan), file, None);
        pin_mut!(opening);
        // Its requests go out before those of later files.
        if let std::task::Poll::Ready(opened) = futures::poll!(&mut opening) {
            return opened;
        }
        self.pump(scan);
        opening.await
    }
}

impl State {
    /// Takes `file` out of what is to come.
    fn take(&mut self, file: &PartitionedFile) -> Option<Ahead> {
        self.claimed += 1;
        if let Some(at) = self
            .ahead
            .iter()
            .position(|ahead| is_same(&ahead.file, file))
        {
            return self.ahead.remove(at);
        }
        if let Some(at) = self.upcoming.iter().position(|next| is_same(next, file)) {
            self.upcoming.remove(at);
        }
        None
    }
}

/// Files are taken in order, so of two that are equal in this the first is meant.
fn is_same(a: &PartitionedFile, b: &PartitionedFile) -> bool {
    a.object_meta.location == b.object_meta.location
        && a.range == b.range
        && a.partition_values == b.partition_values
}

impl Ahead {
    /// Reads ahead in it; `None` while it is being opened.
    fn pump(&self) -> Option<Progress> {
        match &mut *self.slot.lock() {
            Slot::Opening => None,
            Slot::Opened(file) => {
                if file.as_mut().is_some_and(|file| file.is_ruled_out()) {
                    *file = None;
                }
                Some(file.as_mut().map_or(Progress::Complete, |file| file.pump()))
            }
        }
    }

    async fn wait(mut self, scan: &ScanContext) -> Result<Option<OpenedFile>> {
        let finished = match (&mut self.task).now_or_never() {
            Some(finished) => finished,
            None => {
                let metrics = &scan.metrics;
                metrics.fetch_round_count.add(1);
                metrics.read_ahead_wait_count.add(1);
                let _wait = metrics.fetch_wait_time.timer();
                let _read_ahead_wait = metrics.read_ahead_wait_time.timer();
                (&mut self.task).await
            }
        };
        finished.map_err(|error| DataFusionError::External(Box::new(error)))??;
        match std::mem::replace(&mut *self.slot.lock(), Slot::Opening) {
            Slot::Opened(file) => Ok(file.map(|file| *file)),
            Slot::Opening => Ok(None),
        }
    }
}

/// A file is being opened by whoever claimed it.
struct OpeningNow<'a> {
    look_ahead: &'a LookAhead,
    expected_bytes: u64,
}

impl<'a> OpeningNow<'a> {
    fn new(look_ahead: &'a LookAhead, expected_bytes: u64) -> Self {
        let mut state = look_ahead.state.lock();
        state.opening += 1;
        state.opening_bytes = state.opening_bytes.saturating_add(expected_bytes);
        Self {
            look_ahead,
            expected_bytes,
        }
    }
}

impl Drop for OpeningNow<'_> {
    fn drop(&mut self) {
        let mut state = self.look_ahead.state.lock();
        state.opening -= 1;
        state.opening_bytes = state.opening_bytes.saturating_sub(self.expected_bytes);
    }
}

/// The files after the one that is being read.
struct Later {
    look_ahead: Weak<LookAhead>,
    scan: Arc<ScanContext>,
    /// All of the file that is being read is on its way.
    is_complete: bool,
}

impl LaterFiles for Later {
    fn follow(&mut self, progress: Progress) {
        let Some(look_ahead) = self.look_ahead.upgrade() else {
            return;
        };
        let is_complete = progress == Progress::Complete;
        if is_complete != self.is_complete {
            self.is_complete = is_complete;
            let mut state = look_ahead.state.lock();
            if is_complete {
                state.incomplete -= 1;
            } else {
                state.incomplete += 1;
            }
        }
        if is_complete {
            look_ahead.pump(&self.scan);
        }
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        if !self.is_complete
            && let Some(look_ahead) = self.look_ahead.upgrade()
        {
            look_ahead.state.lock().incomplete -= 1;
        }
    }
}
