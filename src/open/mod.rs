//! From a file to what will be read of it.
//!
//! Each step of opening consumes the one before and has a type of its own, which holds what has been earned so far:
//!
//! ```text
//! OpeningFile --load_keys, prune_file--> OpeningFile --load_metadata--> LoadedFile --adapt--> AdaptedFile
//!     --prune_row_groups--> PrunedFile --load_page_index, prune_with_bloom_filters--> PrunedFile --plan--> FileScan
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
mod metadata;
mod page_index;
mod plan;
mod prune;
mod scan;

pub(crate) use decryption::Decryption;
pub(crate) use scan::{PruningSwitches, RowFilterSettings, ScanContext, int96_coercion};

use arrow::array::RecordBatch;
use datafusion::common::Result;
use datafusion::datasource::listing::PartitionedFile;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::sync::Arc;

use self::file::OpeningFile;

/// Opens `file` and returns its batches; none where pruning leaves nothing of it.
///
/// # Errors
/// What stock's scan reports for the same file: a store's error, metadata that does not parse, access plans that do not
/// fit the file, expressions that cannot be adapted to its schema, keys that are missing or wrong.
pub(crate) async fn open(
    scan: Arc<ScanContext>,
    file: PartitionedFile,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let file = OpeningFile::try_new(scan, file)?.load_keys().await?;
    let Some(file) = file.prune_file()? else {
        return Ok(stream::empty().boxed());
    };
    file.load_metadata()
        .await?
        .adapt()?
        .prune_row_groups()?
        .load_page_index()
        .await?
        .prune_with_bloom_filters()
        .await?
        .plan()
}
