//! What can go wrong between asking an object store for bytes and decoding them.

use std::ops::Range;

/// An answer of an object store that cannot be used.
///
/// Reaches the caller as the source of a [`DataFusionError`](datafusion::error::DataFusionError): walk
/// [`std::error::Error::source`] and downcast to tell these cases from errors of the store itself.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The object was replaced after this scan began to read it.
    ///
    /// A scan reads one generation of an object: the one the listing named, or else the one that answered first. Running
    /// the query again reads the new generation.
    #[error(
        "object {path} was replaced while it was being read: expected {expected}, found {found}"
    )]
    Replaced {
        /// Path of the object in its store.
        path: String,
        /// The generation the scan began with: ETag, version, or size and time of last modification.
        expected: String,
        /// The generation that answered.
        found: String,
    },
    /// The store answered with another number of bytes than it was asked for.
    #[error(
        "object {path}: asked for the {} bytes {}..{}, got {actual} bytes",
        range.end.saturating_sub(range.start), range.start, range.end
    )]
    WrongLength {
        /// Path of the object in its store.
        path: String,
        /// The byte range asked for, from the start of the object.
        range: Range<u64>,
        /// Number of bytes in the answer.
        actual: u64,
    },
    /// The store answered another range than the one it was asked for.
    #[error(
        "object {path}: asked for bytes {}..{}, got bytes {}..{}",
        range.start, range.end, actual.start, actual.end
    )]
    WrongRange {
        /// Path of the object in its store.
        path: String,
        /// The byte range asked for, from the start of the object.
        range: Range<u64>,
        /// The byte range of the answer.
        actual: Range<u64>,
    },
    /// A reader answered a request for several ranges with another number of buffers.
    #[error("object {path}: asked for {expected} byte ranges, got {actual}")]
    WrongCount {
        /// Path of the object in its store.
        path: String,
        /// Number of ranges asked for.
        expected: usize,
        /// Number of buffers in the answer.
        actual: usize,
    },
}
