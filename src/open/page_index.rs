//! The fifth step: the page index, where it can help.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_expr::split_conjunction;
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;
use datafusion::physical_plan::metrics::{MetricBuilder, MetricType};
use parquet::arrow::arrow_reader::ArrowReaderMetadata;
use parquet::arrow::parquet_column;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaDataReader};

use super::indexes::Foresighted;
use super::prune::PrunedFile;

impl PrunedFile {
    /// Reads the page index unless it is there already, the statistics have left nothing for it to decide, or the file has
    /// none for a column of the predicate.
    pub(crate) async fn load_page_index(mut self) -> Result<Self> {
        if self.adapted.page_pruning.is_none() {
            return Ok(self);
        }
        if !self.page_index_can_help() {
            if !self.row_groups.is_empty() {
                let opening = &self.adapted.opening;
                MetricBuilder::new(&opening.scan.metrics_set)
                    .with_new_label("filename", opening.file_name.clone())
                    .with_type(MetricType::Summary)
                    .counter("page_index_load_skipped", opening.scan.partition)
                    .add(1);
            }
            return Ok(self);
        }
        if self.has_page_index() {
            return Ok(self);
        }
        let adapted = &mut self.adapted;
        let metadata = adapted.metadata.metadata();
        let mut reader = ParquetMetaDataReader::new_with_metadata(metadata.as_ref().clone())
            .with_page_index_policy(PageIndexPolicy::Optional);
        let fetch = Foresighted {
            chunks: Arc::clone(&self.indexes),
            reader: &mut adapted.opening.reader,
        };
        reader.load_page_index(fetch).await?;
        let metadata = Arc::new(reader.finish()?);
        if adapted.opening.decryption.is_none() {
            adapted.opening.readers.share_metadata(&metadata);
        }
        let options = adapted
            .options
            .clone()
            .with_page_index_policy(PageIndexPolicy::Optional);
        adapted.metadata = ArrowReaderMetadata::try_new(metadata, options)?;
        Ok(self)
    }

    /// Whether the page index will be read.
    pub(super) fn wants_page_index(&self) -> bool {
        self.adapted.page_pruning.is_some() && !self.has_page_index() && self.page_index_can_help()
    }

    /// A cache may have brought it along unasked.
    fn has_page_index(&self) -> bool {
        let metadata = self.adapted.metadata.metadata();
        metadata.column_index().is_some() && metadata.offset_index().is_some()
    }

    fn page_index_can_help(&self) -> bool {
        let fully_matched = self.row_groups.is_fully_matched();
        if self
            .row_groups
            .row_group_indexes()
            .all(|idx| fully_matched[idx])
        {
            return false;
        }
        let metadata = self.adapted.metadata.metadata();
        let parquet_schema = metadata.file_metadata().schema_descr();
        self.page_pruning_columns().iter().any(|name| {
            let Some((leaf, _)) =
                parquet_column(parquet_schema, &self.adapted.physical_schema, name)
            else {
                return false;
            };
            self.row_groups.row_group_indexes().any(|idx| {
                let column = metadata.row_group(idx).column(leaf);
                column.column_index_offset().is_some() && column.offset_index_offset().is_some()
            })
        })
    }

    /// Columns that pages can be pruned by: those of conjuncts that speak of one column only.
    fn page_pruning_columns(&self) -> Vec<String> {
        let Some(predicate) = &self.adapted.opening.predicate else {
            return Vec::new();
        };
        split_conjunction(predicate)
            .into_iter()
            .filter_map(|conjunct| {
                let pruning = PruningPredicateBuilder::new()
                    .with_file_schema(Arc::clone(&self.adapted.physical_schema))
                    .try_build(Arc::clone(conjunct))
                    .ok()
                    .filter(|pruning| !pruning.always_true())?;
                let column = pruning.required_columns().single_column()?;
                Some(column.name().to_owned())
            })
            .collect()
    }
}
