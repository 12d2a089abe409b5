//! From a file to what will be read of it.
//!
//! Each step of opening consumes the one before and has a type of its own, which holds what has been earned so far:
//!
//! ```text
//! OpeningFile --load_keys, prune_file--> OpeningFile --load_metadata--> LoadedFile --adapt--> AdaptedFile
//!     --prune_row_groups--> PrunedFile --read_indexes, load_page_index, prune_with_bloom_filters--> PrunedFile --plan--> OpenedFile
//! ```

pub(crate) mod constants;
pub(crate) mod dynamic;
pub(crate) mod nested;
pub(crate) mod order;
pub(crate) mod projection;
pub(crate) mod virtual_columns;

mod bloom;
mod decryption;
mod file;
mod indexes;
mod look_ahead;
mod metadata;
mod metadata_flights;
mod narrow;
mod opened;
mod page_index;
mod plan;
mod prune;
mod scan;

pub(crate) use decryption::Decryption;
pub(crate) use file::InBackground;
pub(crate) use look_ahead::LookAhead;
pub(crate) use opened::OpenedFile;
pub(crate) use scan::{PruningSwitches, RowFilterSettings, ScanContext, int96_coercion};

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::listing::PartitionedFile;

use self::file::OpeningFile;

/// Opens `file`, in the foreground or the background; `None` where it is ruled out before anything of it is read.
///
/// # Errors
/// What stock's scan reports for the same file: a store's error, metadata that does not parse, access plans that do not
/// fit the file, expressions that cannot be adapted to its schema, keys that are missing or wrong.
pub(crate) async fn open(
    scan: Arc<ScanContext>,
    file: PartitionedFile,
    background: Option<InBackground>,
) -> Result<Option<OpenedFile>> {
    let file = OpeningFile::try_new(scan, file, background)?
        .load_keys()
        .await?;
    let Some(file) = file.prune_file()? else {
        return Ok(None);
    };
    file.load_metadata()
        .await?
        .adapt()?
        .prune_row_groups()?
        .read_indexes()
        .await
        .load_page_index()
        .await?
        .prune_with_bloom_filters()
        .await?
        .plan()
        .map(Some)
}
