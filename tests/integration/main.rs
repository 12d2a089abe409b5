//! Integration tests: one binary, so that DataFusion is linked once.

mod io_patterns;
mod options;
mod simulation;
mod support;
