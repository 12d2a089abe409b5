//! Parquet scans for Apache DataFusion that never wait for a round trip that could have been started earlier.

#[cfg_attr(not(test), expect(dead_code, reason = "wired in with the opener"))]
mod open;
