//! Integration tests: one binary, so that DataFusion is linked once.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cancellation;
mod cases;
mod encryption;
mod equivalence;
mod faults;
mod generations;
mod hand_made;
mod io_patterns;
mod metrics;
mod opening;
mod options;
mod property;
mod providers;
mod read_ahead;
mod registration;
mod simulation;
mod support;
mod traps;
