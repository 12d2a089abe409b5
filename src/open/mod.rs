//! From a file to what will be read of it: the steps between the footer and the decoder.
//!
//! Nothing here does I/O. Each module takes what is known of one file (its schema, its metadata, its
//! statistics) and answers one question about the scan of that file.

pub(crate) mod constants;
pub(crate) mod dynamic;
pub(crate) mod nested;
pub(crate) mod order;
pub(crate) mod projection;
pub(crate) mod virtual_columns;
