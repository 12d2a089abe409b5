//! Bytes that are on their way, or have arrived, before the decoder asked for them.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use datafusion::common::runtime::SpawnedTask;
use datafusion::physical_plan::metrics::Count;
use futures::FutureExt;
use parquet::errors::{ParquetError, Result};
use tokio::sync::watch;
use tokio::task::JoinError;

use super::budget::Permit;
use super::coalesce::len;
use super::limits::Urgency;
use crate::metrics::add_bytes;
use crate::plan::Piece;

/// Names a request of this scan.
pub(crate) type FlightId = u64;

/// The requests of one file's read-ahead, each in a task of its own, and what is wanted of their answers.
///
/// What is wanted is keyed by the place of its row group in the scan order. A request that nobody wants anything of any
/// more is cancelled, or its answer dropped; only then is its permit given back, since all that is handed out are slices of
/// the one allocation.
#[derive(Debug)]
pub(crate) struct Flights {
    wanted: BTreeMap<usize, BTreeMap<u64, Wanted>>,
    flights: BTreeMap<FlightId, Flight>,
    next_id: FlightId,
    unused_bytes: Count,
}

/// A range of one row group that the decoder will ask for, as a whole or in parts.
#[derive(Debug)]
struct Wanted {
    end: u64,
    used_bytes: u64,
    flight: FlightId,
}

#[derive(Debug)]
struct Flight {
    range: Range<u64>,
    state: State,
    wanted: usize,
    _permit: Option<Arc<Permit>>,
}

#[derive(Debug)]
enum State {
    Flying(Task),
    Landed(Bytes),
    Failed(ParquetError),
    /// Its task is being awaited.
    Landing,
}

#[derive(Debug)]
struct Task {
    answer: SpawnedTask<Result<Bytes>>,
    is_required: watch::Sender<bool>,
}

impl Flights {
    /// Bytes that are dropped without having been handed out are added to `unused_bytes`.
    pub(crate) fn new(unused_bytes: Count) -> Self {
        Self {
            wanted: BTreeMap::new(),
            flights: BTreeMap::new(),
            next_id: 0,
            unused_bytes,
        }
    }

    /// Requests `range` in the background. `pieces` are what is wanted of it.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub(crate) fn launch<F>(
        &mut self,
        range: Range<u64>,
        pieces: &[Piece],
        permit: Permit,
        request: impl FnOnce(Urgency) -> F,
    ) where
        F: Future<Output = Result<Bytes>> + Send + 'static,
    {
        let (is_required, urgency) = watch::channel(false);
        let answer = SpawnedTask::spawn(request(Urgency::Speculative(urgency)));
        let state = State::Flying(Task {
            answer,
            is_required,
        });
        self.add(range, pieces, state, Some(Arc::new(permit)));
    }

    /// Keeps `bytes` of `range`, which are there already.
    pub(crate) fn keep(
        &mut self,
        range: Range<u64>,
        pieces: &[Piece],
        permit: Option<Arc<Permit>>,
        bytes: Bytes,
    ) {
        self.add(range, pieces, State::Landed(bytes), permit);
    }

    fn add(
        &mut self,
        range: Range<u64>,
        pieces: &[Piece],
        state: State,
        permit: Option<Arc<Permit>>,
    ) {
        let id = self.next_id;
        self.next_id += 1;
        let mut wanted = 0;
        for Piece { place, range, .. } in pieces {
            let former = self.wanted.entry(*place).or_default().insert(
                range.start,
                Wanted {
                    end: range.end,
                    used_bytes: 0,
                    flight: id,
                },
            );
            wanted += 1;
            if let Some(former) = former {
                self.leave(former.flight);
            }
        }
        if wanted > 0 {
            self.flights.insert(
                id,
                Flight {
                    range,
                    state,
                    wanted,
                    _permit: permit,
                },
            );
        }
    }

    /// Whether anything is wanted of the row group at `place`.
    #[cfg(test)]
    fn contains(&self, place: usize) -> bool {
        self.wanted.contains_key(&place)
    }

    /// The request that all of `range` is expected from, for the row group at `place`.
    pub(crate) fn flight_of(&self, place: usize, range: &Range<u64>) -> Option<FlightId> {
        let (_, wanted) = self.wanted.get(&place)?.range(..=range.start).next_back()?;
        (range.end <= wanted.end).then_some(wanted.flight)
    }

    /// Whether the answer to `flight` is there. One that has come but was not yet looked at is taken in here.
    pub(crate) fn has_landed(&mut self, flight: FlightId) -> bool {
        let Some(found) = self.flights.get_mut(&flight) else {
            return false;
        };
        if let State::Flying(task) = &mut found.state
            && let Some(answer) = (&mut task.answer).now_or_never()
        {
            found.state = match checked(flatten(answer), &found.range) {
                Ok(bytes) => State::Landed(bytes),
                Err(error) => State::Failed(error),
            };
        }
        matches!(found.state, State::Landed(_))
    }

    /// What it takes to wait for `flight`: from now on its request is a required one.
    ///
    /// Give what comes of it to [`Self::land`], or else the flight is lost. `None` where there is nothing to wait for.
    pub(crate) fn wait_for(
        &mut self,
        flight: FlightId,
    ) -> Option<impl Future<Output = (FlightId, Result<Bytes>)> + use<>> {
        let found = self.flights.get_mut(&flight)?;
        let task = match std::mem::replace(&mut found.state, State::Landing) {
            State::Flying(task) => Ok(task),
            State::Failed(error) => Err(error),
            State::Landed(bytes) => {
                found.state = State::Landed(bytes);
                return None;
            }
            State::Landing => return None,
        };
        Some(async move {
            let answer = match task {
                Err(error) => Err(error),
                Ok(task) => {
                    task.is_required.send_replace(true);
                    flatten(task.answer.await)
                }
            };
            (flight, answer)
        })
    }

    /// Takes in the answer to `flight`.
    ///
    /// # Errors
    /// The answer's error, or one of another length. All that was wanted of it is forgotten then, for every row group.
    pub(crate) fn land(&mut self, flight: FlightId, answer: Result<Bytes>) -> Result<()> {
        let Some(found) = self.flights.get_mut(&flight) else {
            return Ok(());
        };
        match checked(answer, &found.range) {
            Ok(bytes) => {
                found.state = State::Landed(bytes);
                Ok(())
            }
            Err(error) => {
                let mut unused = 0;
                self.wanted.retain(|_, pieces| {
                    pieces.retain(|start, wanted| {
                        if wanted.flight == flight {
                            unused += wanted.end - start - wanted.used_bytes;
                        }
                        wanted.flight != flight
                    });
                    !pieces.is_empty()
                });
                add_bytes(&self.unused_bytes, unused);
                self.flights.remove(&flight);
                Err(error)
            }
        }
    }

    /// The bytes of `range`, where they have landed and are wanted for the row group at `place`.
    pub(crate) fn take(&mut self, place: usize, range: &Range<u64>) -> Option<Bytes> {
        let pieces = self.wanted.get_mut(&place)?;
        let (&start, wanted) = pieces.range_mut(..=range.start).next_back()?;
        if range.end > wanted.end {
            return None;
        }
        let flight = self.flights.get(&wanted.flight)?;
        let State::Landed(bytes) = &flight.state else {
            return None;
        };
        let from = usize::try_from(range.start - flight.range.start).ok()?;
        let to = usize::try_from(range.end - flight.range.start).ok()?;
        let slice = bytes.slice(from..to);
        wanted.used_bytes += len(range);
        if wanted.used_bytes >= wanted.end - start {
            let id = wanted.flight;
            pieces.remove(&start);
            if pieces.is_empty() {
                self.wanted.remove(&place);
            }
            self.leave(id);
        }
        Some(slice)
    }

    /// Gives up what is wanted of the row group at `place`.
    pub(crate) fn remove(&mut self, place: usize) {
        if let Some(pieces) = self.wanted.remove(&place) {
            self.drop_pieces(pieces);
        }
    }

    /// Gives up what is wanted of the row groups before `place`: the decoder has passed them.
    pub(crate) fn drop_before(&mut self, place: usize) {
        while let Some(entry) = self.wanted.first_entry() {
            if *entry.key() >= place {
                break;
            }
            let pieces = entry.remove();
            self.drop_pieces(pieces);
        }
    }

    fn drop_pieces(&mut self, pieces: BTreeMap<u64, Wanted>) {
        for (start, wanted) in pieces {
            let unused = (wanted.end - start).saturating_sub(wanted.used_bytes);
            add_bytes(&self.unused_bytes, unused);
            self.leave(wanted.flight);
        }
    }

    fn leave(&mut self, flight: FlightId) {
        if let Some(found) = self.flights.get_mut(&flight) {
            found.wanted -= 1;
            if found.wanted == 0 {
                self.flights.remove(&flight);
            }
        }
    }
}

impl Drop for Flights {
    fn drop(&mut self) {
        self.drop_before(usize::MAX);
    }
}

/// A task that panicked or was aborted with its runtime failed like a request.
fn flatten(answer: std::result::Result<Result<Bytes>, JoinError>) -> Result<Bytes> {
    answer.unwrap_or_else(|error| Err(ParquetError::External(Box::new(error))))
}

fn checked(answer: Result<Bytes>, range: &Range<u64>) -> Result<Bytes> {
    answer.and_then(|bytes| match bytes.len() as u64 == len(range) {
        true => Ok(bytes),
        false => Err(ParquetError::EOF(format!(
            "expected bytes {}..{}, got {} bytes",
            range.start,
            range.end,
            bytes.len()
        ))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::budget::ByteBudget;
    use datafusion::physical_plan::metrics::Gauge;
    use std::time::Duration;

    fn budget() -> Arc<ByteBudget> {
        ByteBudget::new(1000, None, Gauge::new())
    }

    fn content(range: Range<u64>) -> Bytes {
        range.map(|b| (b % 251) as u8).collect::<Vec<u8>>().into()
    }

    fn pieces_of(pieces: &[(usize, Range<u64>)]) -> Vec<Piece> {
        let piece = |(place, range): &(usize, Range<u64>)| Piece {
            place: *place,
            range: range.clone(),
            is_conditional: false,
        };
        pieces.iter().map(piece).collect()
    }

    fn launch(flights: &mut Flights, budget: &Arc<ByteBudget>, pieces: &[(usize, Range<u64>)]) {
        let range = pieces[0].1.start..pieces[pieces.len() - 1].1.end;
        let pieces = pieces_of(pieces);
        let permit = budget.try_take(len(&range)).unwrap();
        let answer = content(range.clone());
        flights.launch(range, &pieces, permit, |_| async move {
            tokio::time::sleep(Duration::from_millis(10)).await;
            Ok(answer)
        });
    }

    async fn land(flights: &mut Flights, id: FlightId) -> Result<()> {
        let (id, answer) = flights.wait_for(id).unwrap().await;
        flights.land(id, answer)
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_lives_as_long_as_anything_is_wanted_of_the_answer() {
        let (budget, unused) = (budget(), Count::new());
        let mut flights = Flights::new(unused.clone());
        launch(
            &mut flights,
            &budget,
            &[(0, 10..20), (0, 20..30), (1, 40..50)],
        );
        let id = flights.flight_of(0, &(12..18)).unwrap();
        assert!(!flights.has_landed(id));
        assert_eq!(flights.take(0, &(12..18)), None);
        assert_eq!(flights.flight_of(0, &(12..22)), None, "spans two");
        assert_eq!(flights.flight_of(2, &(12..18)), None);
        land(&mut flights, id).await.unwrap();
        assert!(flights.has_landed(id));
        assert_eq!(flights.take(0, &(10..20)), Some(content(10..20)));
        assert_eq!(flights.take(0, &(10..20)), None, "handed out");
        assert_eq!(flights.take(1, &(42..44)), Some(content(42..44)));
        assert_eq!(flights.take(1, &(44..50)), Some(content(44..50)));
        assert_eq!(flights.take(1, &(40..42)), Some(content(40..42)));
        assert!(!flights.contains(1) && flights.contains(0));
        assert_eq!((budget.used_bytes(), unused.value()), (40, 0));
        flights.drop_before(1);
        assert_eq!((budget.used_bytes(), unused.value()), (0, 10));
    }

    #[tokio::test(start_paused = true)]
    async fn what_nobody_wants_is_cancelled() {
        let (budget, unused) = (budget(), Count::new());
        let mut flights = Flights::new(unused.clone());
        launch(&mut flights, &budget, &[(3, 0..10)]);
        launch(&mut flights, &budget, &[(4, 10..20)]);
        flights.remove(3);
        assert_eq!((budget.used_bytes(), unused.value()), (10, 10));
        drop(flights);
        assert_eq!((budget.used_bytes(), unused.value()), (0, 20));
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_told_once_and_forgotten() {
        let (budget, unused) = (budget(), Count::new());
        let mut flights = Flights::new(unused.clone());
        let pieces = pieces_of(&[(0, 0..5), (1, 5..10)]);
        for answer in [Ok(Bytes::from_static(b"short")), Err("broken")] {
            let permit = budget.try_take(10).unwrap();
            flights.launch(0..10, &pieces, permit, |_| async move {
                answer.map_err(|e| ParquetError::General(e.to_owned()))
            });
            let id = flights.flight_of(1, &(5..10)).unwrap();
            land(&mut flights, id).await.unwrap_err();
            assert!(!flights.contains(0) && !flights.contains(1));
            assert_eq!(budget.used_bytes(), 0);
        }
        assert_eq!(unused.value(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_a_failure() {
        let budget = budget();
        let mut flights = Flights::new(Count::new());
        let permit = budget.try_take(1).unwrap();
        flights.launch(0..1, &pieces_of(&[(0, 0..1)]), permit, |_| async {
            tokio::task::yield_now().await;
            panic!("as if a reader did")
        });
        let error = land(&mut flights, 0).await.unwrap_err().to_string();
        assert!(error.contains("panic"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_waited_for_becomes_required() {
        let budget = budget();
        let mut flights = Flights::new(Count::new());
        let permit = budget.try_take(1).unwrap();
        flights.launch(
            0..1,
            &pieces_of(&[(0, 0..1)]),
            permit,
            |urgency| async move {
                let Urgency::Speculative(mut required) = urgency else {
                    panic!("not speculative");
                };
                required.wait_for(|required| *required).await.unwrap();
                Ok(Bytes::from_static(b"a"))
            },
        );
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!flights.has_landed(0));
        land(&mut flights, 0).await.unwrap();
    }
}
