//! Parquet scans for [Apache DataFusion](datafusion) that do not wait, row group after row group, for an object store.
//!
//! DataFusion's own scan asks for one row group, waits, decodes it, and asks for the next. On a store where every request
//! takes 25 to 200 ms, that is where the time goes. This crate reads the same files with the same pruning, the same
//! results, errors and metrics, and reads ahead in the background, over row groups and files, as far as a byte budget allows.
//! With the budgets off, which is the default, a scan *is* DataFusion's own.
//!
//! # Use
//!
//! ```
//! use datafusion_parquet_prefetch::PrefetchSessionContext;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> datafusion::error::Result<()> {
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().display();
//! let ctx = PrefetchSessionContext::new();
//! ctx.sql("SET datafusion.execution.parquet.read_ahead_bytes = '64 MiB'").await?;
//! ctx.sql(&format!("COPY (VALUES (1, 'a'), (2, 'b')) TO '{path}/t.parquet'")).await?.collect().await?;
//! ctx.sql(&format!("CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{path}/t.parquet'")).await?;
//! assert_eq!(ctx.sql("SELECT * FROM t WHERE column1 > 1").await?.count().await?, 1);
//! # Ok(())
//! # }
//! ```
//!
//! [`PrefetchSessionContext`] installs all there is; [`PrefetchSessionStateBuilderExt`] does the same on a session that
//! you build yourself, where the option is `SET parquet_prefetch.read_ahead_bytes`. What is installed:
//!
//! - [`PrefetchOptions`]: the session's options. A table can have its own, in `OPTIONS ('format.read_ahead_bytes' '67108864')`.
//! - [`PrefetchingParquetFormatFactory`]: makes `STORED AS PARQUET` read through this crate. Writing is stock's.
//! - [`PrefetchRule`]: does it for scans that never ask a format factory: `register_parquet`, `read_parquet`, and the
//!   table providers of others.
//!
//! # When not to
//!
//! - Files on a local disk or in memory: there is no round trip to save.
//! - Scans with a `LIMIT` *and* a filter that keeps most rows: what was prefetched beyond the limit was for nothing.
//!
//! # What it costs
//!
//! Memory: at most the budgets and the bytes of one row group for each partition that is read, all of it encoded, and what
//! lies in short gaps between ranges, as in stock. What is prefetched is reserved in the session's memory pool, and left
//! out where the pool refuses or would be more than half full. Requests: about as many as stock makes, most of them at the
//! same time; one that fails is made again without what was prefetched.

#![forbid(unsafe_code)]

mod config;
mod datasource;
mod decode;
mod error;
mod fetch;
pub mod metrics;
mod open;
mod plan;
mod session;

pub use config::{
    ConditionalReadAhead, OptionDefinition, PrefetchOptions, PrefetchSettings, PrefetchTableOptions,
};
pub use datasource::{
    PrefetchRule, PrefetchingParquetFormat, PrefetchingParquetFormatFactory,
    PrefetchingParquetOpener, PrefetchingParquetSource,
};
pub use error::FetchError;
pub use session::{PrefetchSessionContext, PrefetchSessionStateBuilderExt};

/// Compiles the README's code.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
