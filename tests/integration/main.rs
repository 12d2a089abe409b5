//! Integration tests: one binary, so that DataFusion is linked once.

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
