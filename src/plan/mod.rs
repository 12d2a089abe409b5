//! Pure decisions: which row groups are still to be read, which bytes each of them will take, and how far a fetch is
//! widened. No clock, no socket: neither tokio nor an object store is imported here.

mod ranges;
mod row_groups;
mod widen;

pub(crate) use ranges::RangePlanner;
pub(crate) use row_groups::{RowGroupRead, ScanOrder, SelectionCursor};
pub(crate) use widen::{PlannedRowGroup, read_in_passing, widen};
