//! Pure decisions: which row groups are still to be read, which bytes each of them will take, and how far a scan reads
//! ahead. No clock, no socket: neither tokio nor an object store is imported here.

mod conditional;
mod flights;
mod ranges;
mod reach;
mod row_groups;
mod widen;

pub(crate) use conditional::{ConditionalPolicy, RequestCost};
pub(crate) use flights::{Piece, PlannedFlight, plan_flights, split};
pub(crate) use ranges::{RangePlanner, RowGroupRanges};
pub(crate) use reach::Reach;
pub(crate) use row_groups::{RowGroupRead, ScanOrder, SelectionCursor};
pub(crate) use widen::{PlannedRowGroup, read_in_passing, widen};
