//! Requests and bytes: which generation of an object is read, by which reader, and where bytes wait that came before the
//! decoder asked. Nothing here knows Parquet's layout.

mod generation;
mod pinned_store;
mod readers;
mod staging;

pub(crate) use readers::{FileReader, FileReaders, ReaderFactory};
pub(crate) use staging::Staging;
