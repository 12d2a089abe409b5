//! How long requests take.

use std::time::Duration;

use parking_lot::Mutex;

use crate::plan::RequestCost;

/// Weight of the newest request in the running means.
const WEIGHT: f64 = 0.2;

/// Running means over the requests of a partition's scan.
#[derive(Debug, Default)]
pub(crate) struct RequestTimes(Mutex<Option<RequestCost>>);

impl RequestTimes {
    /// A request whose answer began after `first_byte`, and whose `bytes` took `body` to arrive.
    pub(crate) fn observe(&self, first_byte: Duration, body: Duration, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let seen = RequestCost {
            first_byte_seconds: first_byte.as_secs_f64(),
            seconds_per_byte: body.as_secs_f64() / bytes as f64,
        };
        let mut cost = self.0.lock();
        *cost = Some(match *cost {
            None => seen,
            Some(mean) => RequestCost {
                first_byte_seconds: mix(mean.first_byte_seconds, seen.first_byte_seconds),
                seconds_per_byte: mix(mean.seconds_per_byte, seen.seconds_per_byte),
            },
        });
    }

    /// What a request costs; `None` before the first answer.
    pub(crate) fn cost(&self) -> Option<RequestCost> {
        *self.0.lock()
    }
}

fn mix(mean: f64, seen: f64) -> f64 {
    mean + WEIGHT * (seen - mean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_follow_what_is_seen() {
        let times = RequestTimes::default();
        assert_eq!(times.cost(), None);
        times.observe(Duration::from_millis(100), Duration::ZERO, 0);
        assert_eq!(
            times.cost(),
            None,
            "an empty answer tells nothing of throughput"
        );
        times.observe(
            Duration::from_millis(100),
            Duration::from_millis(10),
            1_000_000,
        );
        let cost = times.cost().unwrap();
        assert!((cost.first_byte_seconds - 0.1).abs() < 1e-9);
        assert!((cost.seconds_per_byte - 1e-8).abs() < 1e-12);
        for _ in 0..50 {
            times.observe(
                Duration::from_millis(20),
                Duration::from_millis(10),
                1_000_000,
            );
        }
        assert!((times.cost().unwrap().first_byte_seconds - 0.02).abs() < 1e-3);
    }
}
