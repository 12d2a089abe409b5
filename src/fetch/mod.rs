//! Requests and bytes: which generation of an object is read, by which reader, and where bytes wait that came before the
//! decoder asked. Nothing here knows Parquet's layout.

mod coalesce;
mod generation;
mod pinned_store;
mod readers;
mod staging;

pub(crate) use coalesce::{Requests, len};
pub(crate) use readers::{FileReader, FileReaders, ReaderChoice, ReaderFactory};
pub(crate) use staging::Staging;
