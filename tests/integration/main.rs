//! Integration tests: one binary, so that DataFusion is linked once.

mod support;
