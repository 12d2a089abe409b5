//! Requests and bytes: which generation of an object is read, by which reader, how many requests and bytes may be under way,
//! and where bytes wait that came before the decoder asked. Nothing here knows Parquet's layout.

mod budget;
mod coalesce;
mod flights;
mod generation;
mod limits;
mod pinned_store;
mod reader_choice;
mod readers;
mod staging;
mod tail;
mod times;

pub(crate) use budget::{ByteBudget, Permit, Refusal, SpeculativeMemory};
pub(crate) use coalesce::{Requests, len, slice_of};
pub(crate) use flights::{FlightId, Flights};
pub(crate) use limits::{RequestLimits, RequestRules};
pub(crate) use reader_choice::ReaderChoice;
pub(crate) use readers::{FileReader, FileReaders, ReaderFactory};
pub(crate) use staging::Staging;
pub(crate) use tail::Tail;
