//! How many speculative bytes a scan may hold, and the memory pool that they are accounted for in.

use std::sync::Arc;

use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};
use datafusion::physical_plan::metrics::Gauge;
use parking_lot::Mutex;

/// A memory pool, and this scan's account with it.
#[derive(Debug)]
pub(crate) struct SpeculativeMemory {
    pool: Arc<dyn MemoryPool>,
    account: MemoryReservation,
}

impl SpeculativeMemory {
    /// `name` is what the pool knows the account by.
    pub(crate) fn new(pool: &Arc<dyn MemoryPool>, name: String) -> Self {
        Self {
            pool: Arc::clone(pool),
            account: MemoryConsumer::new(name).register(pool),
        }
    }

    /// A reservation of nothing, to be grown by [`Self::try_grow`].
    pub(crate) fn new_empty(&self) -> MemoryReservation {
        self.account.new_empty()
    }

    /// Adds `bytes` to `reservation` unless the pool refuses, or would be more than half full: operators cannot take back
    /// what was read ahead, and a query that fits without it is to fit with it.
    pub(crate) fn try_grow(&self, reservation: &MemoryReservation, bytes: u64) -> bool {
        let Ok(bytes) = usize::try_from(bytes) else {
            return false;
        };
        if let MemoryLimit::Finite(limit) = self.pool.memory_limit()
            && self.pool.reserved().saturating_add(bytes) > limit / 2
        {
            return false;
        }
        reservation.try_grow(bytes).is_ok()
    }
}

/// Bytes that may be asked for and held before the decoder requires them.
///
/// A budget can be divided: a [share](Self::share) has a limit of its own, and takes from the whole as well.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    limit_bytes: u64,
    used_bytes: Mutex<u64>,
    of: Of,
}

#[derive(Debug)]
enum Of {
    Pool {
        memory: Option<SpeculativeMemory>,
        peak_bytes: Gauge,
    },
    Budget(Arc<ByteBudget>),
}

/// Why there is no permit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The budget is spent.
    Budget,
    /// The memory pool has no room.
    Pool,
}

impl ByteBudget {
    /// `limit_bytes` that are reserved in `memory`, where there is a session to take a pool from. `peak_bytes` follows the
    /// most that was ever taken.
    pub(crate) fn new(
        limit_bytes: u64,
        memory: Option<SpeculativeMemory>,
        peak_bytes: Gauge,
    ) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes,
            used_bytes: Mutex::new(0),
            of: Of::Pool { memory, peak_bytes },
        })
    }

    /// A part of this budget that may take `limit_bytes` of it at most.
    pub(crate) fn share(self: &Arc<Self>, limit_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            limit_bytes,
            used_bytes: Mutex::new(0),
            of: Of::Budget(Arc::clone(self)),
        })
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Bytes for which there are permits.
    pub(crate) fn used_bytes(&self) -> u64 {
        *self.used_bytes.lock()
    }

    /// A permit for `bytes`.
    ///
    /// # Errors
    /// Where they do not fit. Nothing is taken then.
    pub(crate) fn try_take(self: &Arc<Self>, bytes: u64) -> Result<Permit, Refusal> {
        let taken = Piece::try_take(self, bytes)?;
        let (of, reservation) = match &self.of {
            Of::Budget(whole) => (Some(Box::new(whole.try_take(bytes)?)), None),
            Of::Pool { memory, peak_bytes } => {
                let reservation = match memory {
                    None => None,
                    Some(memory) => {
                        let reservation = memory.new_empty();
                        if !memory.try_grow(&reservation, bytes) {
                            return Err(Refusal::Pool);
                        }
                        Some(reservation)
                    }
                };
                let used = *self.used_bytes.lock();
                peak_bytes.set_max(usize::try_from(used).unwrap_or(usize::MAX));
                (None, reservation)
            }
        };
        Ok(Permit {
            taken,
            _of: of,
            _reservation: reservation,
        })
    }
}

/// Bytes of a budget and of the memory pool, given back when it is dropped.
///
/// It belongs to an allocation, not to the slices of it.
#[derive(Debug)]
pub(crate) struct Permit {
    taken: Piece,
    _of: Option<Box<Permit>>,
    _reservation: Option<MemoryReservation>,
}

impl Permit {
    pub(crate) fn bytes(&self) -> u64 {
        self.taken.bytes
    }
}

#[derive(Debug)]
struct Piece {
    budget: Arc<ByteBudget>,
    bytes: u64,
}

impl Piece {
    fn try_take(budget: &Arc<ByteBudget>, bytes: u64) -> Result<Self, Refusal> {
        let mut used = budget.used_bytes.lock();
        match used.checked_add(bytes) {
            Some(total) if total <= budget.limit_bytes => *used = total,
            _ => return Err(Refusal::Budget),
        }
        Ok(Self {
            budget: Arc::clone(budget),
            bytes,
        })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        *self.budget.used_bytes.lock() -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::execution::memory_pool::GreedyMemoryPool;

    fn budget(limit: u64, pool: Option<&Arc<dyn MemoryPool>>) -> (Arc<ByteBudget>, Gauge) {
        let peak = Gauge::new();
        let memory = pool.map(|pool| SpeculativeMemory::new(pool, "test".to_owned()));
        (ByteBudget::new(limit, memory, peak.clone()), peak)
    }

    #[test]
    fn a_share_takes_from_the_whole_and_gives_back_to_it() {
        let (whole, peak) = budget(10, None);
        let (a, b) = (whole.share(8), whole.share(8));
        let taken = a.try_take(7).unwrap();
        assert_eq!(a.try_take(2).unwrap_err(), Refusal::Budget);
        assert_eq!(b.try_take(4).unwrap_err(), Refusal::Budget);
        assert_eq!((b.used_bytes(), whole.used_bytes()), (0, 7));
        let rest = b.try_take(3).unwrap();
        drop(taken);
        assert_eq!((a.used_bytes(), whole.used_bytes()), (0, 3));
        drop(rest);
        assert_eq!((whole.used_bytes(), peak.value()), (0, 10));
    }

    #[test]
    fn a_pool_is_filled_to_half_and_gets_everything_back() {
        let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(100));
        let (budget, _) = budget(1000, Some(&pool));
        let share = budget.share(1000);
        let taken = share.try_take(50).unwrap();
        assert_eq!(share.try_take(1).unwrap_err(), Refusal::Pool);
        assert_eq!((share.used_bytes(), budget.used_bytes()), (50, 50));
        assert_eq!(pool.reserved(), 50);
        drop(taken);
        assert_eq!((budget.used_bytes(), pool.reserved()), (0, 0));
    }

    #[test]
    fn a_budget_is_not_overdrawn_by_overflow() {
        let (budget, _) = budget(u64::MAX, None);
        let _taken = budget.try_take(2).unwrap();
        assert_eq!(budget.try_take(u64::MAX).unwrap_err(), Refusal::Budget);
    }
}
