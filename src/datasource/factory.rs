//! Makes the format for `STORED AS PARQUET`.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::catalog::Session;
use datafusion::common::{GetExt, Result, internal_datafusion_err};
use datafusion::config::TableParquetOptions;
use datafusion::datasource::file_format::parquet::{ParquetFormat, ParquetFormatFactory};
use datafusion::datasource::file_format::{FileFormat, FileFormatFactory};

use super::format::PrefetchingParquetFormat;
use crate::config::PrefetchTableOptions;

/// A [`FileFormatFactory`] for the extension `parquet`, to be registered in the place of stock's.
///
/// Takes the prefetching options out of a table's `OPTIONS` and leaves the others to [`ParquetFormatFactory`], which
/// accepts and refuses what it always does.
#[derive(Debug)]
pub struct PrefetchingParquetFormatFactory {
    inner: ParquetFormatFactory,
}

impl PrefetchingParquetFormatFactory {
    /// A factory whose formats begin with the session's Parquet options.
    pub fn new() -> Self {
        Self {
            inner: ParquetFormatFactory::new(),
        }
    }

    /// A factory whose formats begin with `options` instead of the session's.
    pub fn new_with_options(options: TableParquetOptions) -> Self {
        Self {
            inner: ParquetFormatFactory::new_with_options(options),
        }
    }
}

impl Default for PrefetchingParquetFormatFactory {
    fn default() -> Self {
        Self::new()
    }
}

impl FileFormatFactory for PrefetchingParquetFormatFactory {
    fn create(
        &self,
        state: &dyn Session,
        format_options: &HashMap<String, String>,
    ) -> Result<Arc<dyn FileFormat>> {
        let (table_options, rest) = PrefetchTableOptions::split(format_options)?;
        let format = self.inner.create(state, &rest)?;
        let options = format
            .downcast_ref::<ParquetFormat>()
            .ok_or_else(|| {
                internal_datafusion_err!("the Parquet factory made a format of another kind")
            })?
            .options()
            .clone();
        let inner = ParquetFormat::default().with_options(options);
        Ok(Arc::new(
            PrefetchingParquetFormat::new(inner).with_table_options(table_options),
        ))
    }

    fn default(&self) -> Arc<dyn FileFormat> {
        Arc::new(PrefetchingParquetFormat::default())
    }
}

impl GetExt for PrefetchingParquetFormatFactory {
    fn get_ext(&self) -> String {
        self.inner.get_ext()
    }
}
