//! The log of the requests that reached a store.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use object_store::GetRange;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio::time::Instant;

/// What a request was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Get,
    Head,
    List,
    Write,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Running,
    Answered,
    Failed,
    Dropped,
}

/// One request as the store got it, after coalescing.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) kind: Kind,
    pub(crate) path: String,
    /// The range sent to the store; `None` is the whole object.
    pub(crate) range: Option<GetRange>,
    /// The ranges of the caller that this request answers.
    pub(crate) asked: Vec<Range<u64>>,
    pub(crate) if_match: Option<String>,
    /// Bytes of the body that were handed out.
    pub(crate) bytes: u64,
    /// Since the log was last cleared.
    pub(crate) start: Duration,
    pub(crate) stop: Option<Duration>,
    pub(crate) end: End,
}

impl Request {
    /// The bytes of the object that the request named.
    pub(crate) fn bounded(&self) -> Option<Range<u64>> {
        match &self.range {
            Some(GetRange::Bounded(range)) => Some(range.clone()),
            _ => None,
        }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kind, self.path)?;
        match &self.range {
            Some(range) => write!(f, " {range}")?,
            None => write!(f, " whole")?,
        }
        write!(f, " asked {:?}", self.asked)?;
        if let Some(tag) = &self.if_match {
            write!(f, " if-match {tag}")?;
        }
        write!(
            f,
            ": {} B, {:?} to {:?}, {:?}",
            self.bytes, self.start, self.stop, self.end
        )
    }
}

#[derive(Debug)]
struct State {
    origin: Instant,
    requests: Vec<Request>,
    outstanding: usize,
    peak: usize,
    rounds: usize,
}

/// A shared, growing list of requests. Clones see the same list.
#[derive(Debug, Clone)]
pub(crate) struct RequestLog {
    state: Arc<Mutex<State>>,
}

impl RequestLog {
    pub(crate) fn new() -> Self {
        let state = State {
            origin: Instant::now(),
            requests: Vec::new(),
            outstanding: 0,
            peak: 0,
            rounds: 0,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Forgets the past and starts the clock again. Panics while a request is outstanding, for
    /// its end would be written into another request's entry.
    pub(crate) fn clear(&self) {
        let mut state = self.state.lock();
        assert_eq!(
            state.outstanding, 0,
            "requests are outstanding: {:#?}",
            state.requests
        );
        state.origin = Instant::now();
        state.requests.clear();
        state.peak = 0;
        state.rounds = 0;
    }

    /// Every request since the last [`clear`](Self::clear), in the order they were begun.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.state.lock().requests.clone()
    }

    /// The requests that read bytes of objects.
    pub(crate) fn gets(&self) -> Vec<Request> {
        let mut requests = self.requests();
        requests.retain(|request| request.kind == Kind::Get);
        requests
    }

    /// The bytes named by all reads, counting a byte as often as it was named.
    pub(crate) fn bytes(&self) -> u64 {
        self.gets().iter().map(|get| get.bytes).sum()
    }

    /// Disjoint periods in which at least one request was outstanding.
    pub(crate) fn rounds(&self) -> usize {
        self.state.lock().rounds
    }

    /// The most requests that were outstanding at once.
    pub(crate) fn peak(&self) -> usize {
        self.state.lock().peak
    }

    /// Requests begun and not ended.
    pub(crate) fn outstanding(&self) -> usize {
        self.state.lock().outstanding
    }

    /// Time since the last [`clear`](Self::clear).
    pub(crate) fn elapsed(&self) -> Duration {
        self.state.lock().origin.elapsed()
    }

    /// The ranges that callers asked for and that overlap one asked for before, per path: empty
    /// when no byte was asked for twice.
    pub(crate) fn asked_twice(&self) -> Vec<(String, Range<u64>)> {
        let mut asked: Vec<(String, Range<u64>)> = self
            .gets()
            .into_iter()
            .flat_map(|get| {
                get.asked
                    .into_iter()
                    .map(move |range| (get.path.clone(), range))
            })
            .collect();
        asked.sort_by(|a, b| (&a.0, a.1.start, a.1.end).cmp(&(&b.0, b.1.start, b.1.end)));
        let mut twice = Vec::new();
        let mut reach: Option<(String, u64)> = None;
        for (path, range) in asked {
            let end = match &reach {
                Some((last, end)) if *last == path => *end,
                _ => 0,
            };
            if range.start < end {
                twice.push((path.clone(), range.clone()));
            }
            reach = Some((path, end.max(range.end)));
        }
        twice
    }

    /// Enters a request; the guard writes its end.
    pub(crate) fn begin(
        &self,
        kind: Kind,
        path: &Path,
        range: Option<GetRange>,
        asked: Vec<Range<u64>>,
        if_match: Option<String>,
    ) -> RequestGuard {
        let mut state = self.state.lock();
        if state.outstanding == 0 {
            state.rounds += 1;
        }
        state.outstanding += 1;
        state.peak = state.peak.max(state.outstanding);
        let start = state.origin.elapsed();
        state.requests.push(Request {
            kind,
            path: path.to_string(),
            range,
            asked,
            if_match,
            bytes: 0,
            start,
            stop: None,
            end: End::Running,
        });
        RequestGuard {
            log: self.clone(),
            index: state.requests.len() - 1,
            ended: false,
        }
    }
}

/// A request on its way. Dropped before it [ended](Self::end), it was cancelled.
#[derive(Debug)]
pub(crate) struct RequestGuard {
    log: RequestLog,
    index: usize,
    ended: bool,
}

impl RequestGuard {
    /// Counts bytes handed out; the total so far.
    pub(crate) fn add_bytes(&mut self, bytes: usize) -> u64 {
        let mut state = self.log.state.lock();
        let request = &mut state.requests[self.index];
        request.bytes += bytes as u64;
        request.bytes
    }

    /// Writes the end; the first one counts.
    pub(crate) fn end(&mut self, end: End) {
        if self.ended {
            return;
        }
        self.ended = true;
        let mut state = self.log.state.lock();
        state.outstanding -= 1;
        let now = state.origin.elapsed();
        let request = &mut state.requests[self.index];
        request.stop = Some(now);
        request.end = end;
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.end(End::Dropped);
    }
}
