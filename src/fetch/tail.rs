//! What was read of an object's end to find its metadata.

use std::ops::Range;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use object_store::{GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta};

/// The last bytes of an object.
#[derive(Debug, Clone)]
pub(crate) struct Tail {
    range: Range<u64>,
    bytes: Bytes,
    meta: ObjectMeta,
}

impl Tail {
    /// `bytes` are those of `range`, and came with `meta`.
    pub(crate) fn new(range: Range<u64>, bytes: Bytes, meta: ObjectMeta) -> Self {
        Self { range, bytes, meta }
    }

    pub(crate) fn range(&self) -> &Range<u64> {
        &self.range
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// The bytes of `range`, where it lies within.
    pub(crate) fn slice(&self, range: &Range<u64>) -> Option<Bytes> {
        if range.start < self.range.start || range.end > self.range.end || range.start > range.end {
            return None;
        }
        let from = usize::try_from(range.start - self.range.start).ok()?;
        let to = usize::try_from(range.end - self.range.start).ok()?;
        Some(self.bytes.slice(from..to))
    }

    /// The answer to a request without conditions, where its range lies within; the body apart.
    pub(crate) fn answer(&self, options: &GetOptions) -> Option<(Bytes, GetResult)> {
        let Some(GetRange::Bounded(range)) = &options.range else {
            return None;
        };
        if options.if_match.is_some()
            || options.if_none_match.is_some()
            || options.if_modified_since.is_some()
            || options.if_unmodified_since.is_some()
            || options.version.is_some()
        {
            return None;
        }
        let bytes = self.slice(range)?;
        let answer = GetResult {
            payload: GetResultPayload::Stream(stream::empty().boxed()),
            meta: self.meta.clone(),
            range: range.clone(),
            attributes: Default::default(),
        };
        Some((bytes, answer))
    }
}
