//! Integration tests: one binary, so that DataFusion is linked once.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cancellation;
mod cases;
mod equivalence;
mod faults;
mod generations;
mod io_patterns;
mod options;
mod property;
mod providers;
mod simulation;
mod support;
