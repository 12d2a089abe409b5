//! The sixth step: bloom filters of the columns that are compared with literals.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::datasource::physical_plan::parquet::BloomFilterStatistics;
use datafusion::physical_optimizer::pruning::PruningPredicate;
use log::debug;
use parquet::arrow::{ParquetRecordBatchStreamBuilder, parquet_column};

use super::indexes::Foresighted;
use super::prune::PrunedFile;

impl PrunedFile {
    /// Drops the row groups whose bloom filters rule them out. A filter that cannot be read keeps its row group, and is
    /// counted.
    pub(crate) async fn prune_with_bloom_filters(mut self) -> Result<Self> {
        let Some(predicate) = self.bloom_filter_predicate() else {
            return Ok(self);
        };
        let columns = self.bloom_filter_columns();
        // Field by field: the file as a whole holds a reader, which only one thread at a time may see.
        let adapted_metadata = self.adapted.metadata.clone();
        let file_name = &self.adapted.opening.file_name;
        let metrics = self.adapted.opening.file_metrics.clone();
        let metadata = adapted_metadata.metadata();
        let schema = metadata.file_metadata().schema_descr();
        // The builder keeps the reader it is given; the one that decoding will use stays where it is.
        let reader = Foresighted {
            chunks: Arc::clone(&self.indexes),
            reader: self.adapted.opening.readers.reader()?,
        };
        let mut builder =
            ParquetRecordBatchStreamBuilder::new_with_metadata(reader, adapted_metadata.clone());
        let mut filters = vec![BloomFilterStatistics::new(); metadata.num_row_groups()];
        for row_group_idx in self.row_groups.row_group_indexes() {
            let mut statistics = BloomFilterStatistics::with_capacity(columns.len());
            for (name, leaf) in &columns {
                match builder
                    .get_row_group_column_bloom_filter(row_group_idx, *leaf)
                    .await
                {
                    Ok(Some(filter)) => {
                        let column = schema.column(*leaf);
                        statistics.insert(
                            name,
                            filter,
                            column.physical_type(),
                            column.type_length(),
                        );
                    }
                    Ok(None) => {}
                    Err(error) => {
                        debug!(
                            "{file_name}: row group {row_group_idx} is kept, the bloom filter of {name} cannot be read: {error}"
                        );
                        metrics.predicate_evaluation_errors.add(1);
                    }
                }
            }
            filters[row_group_idx] = statistics;
        }
        self.row_groups
            .prune_by_bloom_filters(&predicate, &metrics, &filters);
        Ok(self)
    }

    /// The predicate that bloom filters are held against, where they are.
    fn bloom_filter_predicate(&self) -> Option<Arc<PruningPredicate>> {
        let switch = self.adapted.opening.scan.pruning.bloom_filters;
        let predicate = self.adapted.pruning_predicate.clone();
        predicate.filter(|_| switch && !self.row_groups.is_empty())
    }

    /// Names and leaves of the columns whose bloom filters are asked.
    pub(super) fn bloom_filter_columns(&self) -> Vec<(String, usize)> {
        let metadata = self.adapted.metadata.metadata();
        let schema = metadata.file_metadata().schema_descr();
        let names = self
            .bloom_filter_predicate()
            .map(|predicate| predicate.literal_columns())
            .unwrap_or_default();
        names
            .into_iter()
            .filter_map(|name| {
                let (leaf, _) = parquet_column(schema, &self.adapted.physical_schema, &name)?;
                Some((name, leaf))
            })
            .collect()
    }
}
