//! The push decoder of one file: what it asks for is handed to it, what it makes of it is projected.

mod driver;
mod prefetch;
mod read_ahead;
mod source;

pub(crate) use driver::{FileScan, PRUNING_WINDOW};
pub(crate) use prefetch::Prefetch;
pub(crate) use read_ahead::{Progress, ReadAhead, ReadAheadParts};
pub(crate) use source::{ByteSource, LaterFiles};
