//! What a stock source knows and does not tell.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, not_impl_err, plan_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetFileReaderFactory;
use datafusion::datasource::physical_plan::{FileSource, ParquetSource};
use datafusion::execution::parquet_encryption::EncryptionFactory;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_expr::expressions::lit;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_plan::DisplayFormatType;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use parquet::arrow::async_reader::AsyncFileReader;

/// Private fields of a [`ParquetSource`] that reading depends on, as far as they can be seen from outside: in what it
/// prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SourceFacts {
    pub(super) metadata_size_hint: Option<usize>,
    pub(super) has_encryption_factory: bool,
}

impl SourceFacts {
    /// # Errors
    /// A plan error where the source has been through a sort pushdown: what that left in it cannot be seen whole. A
    /// not-implemented error where a version of the source prints something else.
    pub(super) fn of(source: &ParquetSource) -> Result<Self> {
        // A predicate that spells the same words errs to the safe side.
        let extra = Extra(source).to_string();
        if extra.contains("sort_order_for_reorder=") || extra.contains("reverse_row_groups=") {
            return plan_err!("the order of this Parquet scan has been pushed down already");
        }
        let printed = bare(source)?;
        let Some((_, rest)) = printed.rsplit_once("metadata_size_hint: ") else {
            return not_impl_err!("the metadata size hint of this Parquet scan cannot be seen");
        };
        let metadata_size_hint = match rest.strip_prefix("Some(") {
            Some(rest) => match rest.split(')').next().map(str::parse) {
                Some(Ok(hint)) => Some(hint),
                _ => {
                    return not_impl_err!(
                        "the metadata size hint of this Parquet scan cannot be read"
                    );
                }
            },
            None => None,
        };
        Ok(Self {
            metadata_size_hint,
            has_encryption_factory: printed.contains("encryption_factory: Some("),
        })
    }
}

/// The encryption factory that `source` has, where `runtime` knows it under the id in its options. A source does not give
/// its factory away, so it is the same one if it prints the same.
pub(super) fn encryption_factory_of(
    source: &ParquetSource,
    runtime: &RuntimeEnv,
) -> Option<Arc<dyn EncryptionFactory>> {
    let id = source.table_parquet_options().crypto.factory_id.as_ref()?;
    let factory = runtime.parquet_encryption_factory(id).ok()?;
    let with_factory = source.clone().with_encryption_factory(Arc::clone(&factory));
    match (bare(source), bare(&with_factory)) {
        (Ok(own), Ok(expected)) if own == expected => Some(factory),
        _ => None,
    }
}

/// What `source` prints without what may be long (a predicate), or without end (a reader factory prints its store, and a
/// store in memory all of its objects), or may spell the names of fields (a projection).
fn bare(source: &ParquetSource) -> Result<String> {
    let bare = source
        .with_predicate(lit(true))
        .with_parquet_file_reader_factory(Arc::new(NoReaders))
        .try_pushdown_projection(&ProjectionExprs::new([]))?;
    match bare
        .as_ref()
        .and_then(|bare| bare.downcast_ref::<ParquetSource>())
    {
        Some(bare) => Ok(format!("{bare:?}")),
        None => not_impl_err!("this Parquet scan takes no projection"),
    }
}

/// What a file source adds to `EXPLAIN`.
struct Extra<'a>(&'a ParquetSource);

impl fmt::Display for Extra<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_extra(DisplayFormatType::Default, f)
    }
}

#[derive(Debug)]
struct NoReaders;

impl ParquetFileReaderFactory for NoReaders {
    fn create_reader(
        &self,
        _partition_index: usize,
        _partitioned_file: PartitionedFile,
        _metadata_size_hint: Option<usize>,
        _metrics: &ExecutionPlanMetricsSet,
    ) -> Result<Box<dyn AsyncFileReader + Send>> {
        not_impl_err!("this factory makes no readers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::{DataType, Field, Schema};
    use datafusion::config::TableParquetOptions;

    fn source() -> ParquetSource {
        let names = ["metadata_size_hint: Some(7)", "encryption_factory: None"];
        let fields = names.map(|name| Field::new(name, DataType::Int32, true));
        // The options have a field of the same name.
        let mut options = TableParquetOptions::default();
        options.global.metadata_size_hint = Some(5);
        ParquetSource::new(Arc::new(Schema::new(fields.to_vec())))
            .with_table_parquet_options(options)
    }

    #[test]
    fn the_hint_of_the_source_is_found() {
        assert_eq!(SourceFacts::of(&source()).unwrap().metadata_size_hint, None);
        let hinted = source().with_metadata_size_hint(123_456);
        let facts = SourceFacts::of(&hinted).unwrap();
        assert_eq!(facts.metadata_size_hint, Some(123_456));
        assert!(!facts.has_encryption_factory);
    }
}
