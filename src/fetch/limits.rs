//! How requests are made: how many at the same time, how long, and what counts them.

use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use datafusion::physical_plan::metrics::Count;
use futures::future::{Either, pending, select};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::times::RequestTimes;

/// Requests of this process that are in flight at the same time, over all scans of all sessions.
///
/// HTTP clients keep about as many connections to a host, and file descriptors are commonly limited to 1,024 or 4,096. What
/// a decoder waits for does not queue, and may exceed it.
const MAX_PROCESS_REQUESTS: usize = 1024;

static PROCESS: LazyLock<Arc<Semaphore>> =
    LazyLock::new(|| Arc::new(Semaphore::new(MAX_PROCESS_REQUESTS)));

/// The limits that the requests of one scan are under.
#[derive(Debug, Clone)]
pub(crate) struct RequestLimits {
    scan: Arc<Semaphore>,
    process: Arc<Semaphore>,
    ahead: Arc<AtomicUsize>,
}

/// A request that nobody waited for when it was made, until its answer has been read.
#[derive(Debug)]
pub(crate) struct AheadRequest(Arc<AtomicUsize>);

impl Drop for AheadRequest {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One request in flight.
#[derive(Debug)]
pub(crate) struct Slot {
    _scan: OwnedSemaphorePermit,
    _process: OwnedSemaphorePermit,
}

/// Who waits for a request.
#[derive(Debug, Clone)]
pub(crate) enum Urgency {
    /// The scan does.
    Required,
    /// Nobody, while the value is `false`.
    Speculative(watch::Receiver<bool>),
}

impl RequestLimits {
    /// At most `max_requests` of one scan.
    pub(crate) fn new(max_requests: NonZeroUsize) -> Self {
        Self {
            scan: Arc::new(Semaphore::new(
                max_requests.get().min(Semaphore::MAX_PERMITS),
            )),
            process: Arc::clone(&PROCESS),
            ahead: Arc::default(),
        }
    }

    /// Counts a request that is made ahead, until it is dropped.
    pub(crate) fn begin_ahead(&self) -> AheadRequest {
        self.ahead.fetch_add(1, Ordering::Relaxed);
        AheadRequest(Arc::clone(&self.ahead))
    }

    /// Whether any request that was made ahead is under way in the scan.
    pub(crate) fn has_requests_ahead(&self) -> bool {
        self.ahead.load(Ordering::Relaxed) > 0
    }

    /// Waits until one more request may be made. Whoever is waited for goes at once, with a slot or without.
    ///
    /// Hold the slot until the answer is read to its end, in a task that depends on nobody else.
    pub(crate) async fn enter(&self, urgency: &Urgency) -> Option<Slot> {
        match urgency {
            Urgency::Required => self.try_enter(),
            Urgency::Speculative(required) => {
                let slot = pin!(self.queue());
                let mut required = required.clone();
                let required = pin!(async move {
                    if required.wait_for(|is_required| *is_required).await.is_err() {
                        // Nobody is left who could require it.
                        pending::<()>().await;
                    }
                });
                match select(slot, required).await {
                    Either::Left((slot, _)) => slot,
                    Either::Right(_) => self.try_enter(),
                }
            }
        }
    }

    fn try_enter(&self) -> Option<Slot> {
        Some(Slot {
            _scan: Arc::clone(&self.scan).try_acquire_owned().ok()?,
            _process: Arc::clone(&self.process).try_acquire_owned().ok()?,
        })
    }

    async fn queue(&self) -> Option<Slot> {
        // In this order, so that a scan at its own limit occupies nothing of the process's.
        Some(Slot {
            _scan: Arc::clone(&self.scan).acquire_owned().await.ok()?,
            _process: Arc::clone(&self.process).acquire_owned().await.ok()?,
        })
    }
}

/// How requests are made and counted.
#[derive(Debug, Clone)]
pub(crate) struct RequestRules {
    pub(crate) limits: RequestLimits,
    /// Longer ones are split, and their parts read at the same time; 0 for never.
    pub(crate) max_request_bytes: u64,
    /// Whether the first answer that ends where the object ends is kept: what is read to find the metadata.
    pub(crate) keeps_tail: bool,
    pub(crate) requests: Count,
    pub(crate) required_requests: Count,
    pub(crate) times: Arc<RequestTimes>,
}

impl RequestRules {
    pub(crate) fn max_bytes(&self) -> u64 {
        match self.max_request_bytes {
            0 => u64::MAX,
            bytes => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn what_is_required_does_not_queue() {
        let limits = RequestLimits::new(NonZeroUsize::MIN);
        let (required, receiver) = watch::channel(false);
        let speculative = Urgency::Speculative(receiver);
        let first = limits.enter(&speculative).now_or_never().unwrap();
        assert!(first.is_some());
        assert!(
            limits
                .enter(&Urgency::Required)
                .now_or_never()
                .unwrap()
                .is_none()
        );
        let mut waiting = Box::pin(limits.enter(&speculative));
        assert!((&mut waiting).now_or_never().is_none());
        required.send_replace(true);
        assert!(waiting.now_or_never().unwrap().is_none());
        drop(first);
        assert!(limits.enter(&speculative).now_or_never().unwrap().is_some());
    }
}
