//! Parquet scans for Apache DataFusion that never wait for a round trip that could have been started earlier.
