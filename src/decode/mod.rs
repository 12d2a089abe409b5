//! The push decoder of one file: what it asks for is handed to it, what it makes of it is projected.

mod driver;
mod source;

pub(crate) use driver::{FileScan, PRUNING_WINDOW};
pub(crate) use source::{ByteSource, Prefetch};
