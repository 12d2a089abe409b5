//! What the quick start is made of. `latency_store` depends on nothing else here, so that a bench can include it alone.

pub(crate) mod args;
pub(crate) mod compare;
pub(crate) mod latency_store;
pub(crate) mod measure;
pub(crate) mod modes;
pub(crate) mod own_data;
pub(crate) mod peak_pool;
pub(crate) mod progress;
pub(crate) mod report;
pub(crate) mod tpch;

/// Any error, with a message made for the person at the terminal.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;
