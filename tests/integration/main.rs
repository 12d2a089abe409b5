//! Integration tests: one binary, so that DataFusion is linked once.
