//! The first step: what is known of a file before anything of it is read.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::common::encryption::FileDecryptionProperties;
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::ParquetFileMetrics;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::projection::ProjectionExprs;
use datafusion::physical_expr_adapter::replace_columns_with_literals;
use datafusion::physical_expr_adapter::rewrite::rewrite_input_file_name_in_projection;
use datafusion::physical_optimizer::pruning::FilePruner;
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, MetricBuilder, MetricCategory};

use super::ScanContext;
use super::constants::literal_columns;
use super::metadata_flights::MetadataFlights;
use crate::fetch::{FileReader, FileReaders, Permit};
use crate::metrics::ScanMetrics;

/// How a file is opened before its turn.
pub(crate) struct InBackground {
    /// For the bytes that are read to find its metadata.
    pub(crate) permit: Permit,
    pub(crate) metadata: Arc<MetadataFlights>,
}

/// A file that is being opened, with the scan's expressions made specific to it.
pub(crate) struct OpeningFile {
    pub(super) scan: Arc<ScanContext>,
    pub(super) file: PartitionedFile,
    pub(super) file_name: String,
    pub(super) readers: Arc<FileReaders>,
    pub(super) reader: FileReader,
    /// Where it is opened before its turn.
    pub(super) background: Option<InBackground>,
    pub(super) metrics: ScanMetrics,
    /// What its keys are; `None` before they are asked for, and where there are none.
    pub(super) decryption: Option<Arc<FileDecryptionProperties>>,
    /// Schema of the scan's batches.
    pub(super) output_schema: SchemaRef,
    /// Over the logical file schema, partition columns and constants replaced by their values.
    pub(super) projection: ProjectionExprs,
    pub(super) predicate: Option<Arc<dyn PhysicalExpr>>,
    pub(super) pruner: Option<FilePruner>,
    pub(super) file_metrics: ParquetFileMetrics,
    pub(super) baseline_metrics: BaselineMetrics,
    pub(super) predicate_creation_errors: Count,
}

impl OpeningFile {
    pub(crate) fn try_new(
        scan: Arc<ScanContext>,
        file: PartitionedFile,
        background: Option<InBackground>,
    ) -> Result<Self> {
        let metrics = match &background {
            Some(_) => scan.metrics.in_background(),
            None => scan.metrics.clone(),
        };
        let file_name = file.object_meta.location.to_string();
        let file_metrics = ParquetFileMetrics::new(scan.partition, &file_name, &scan.metrics_set);
        let baseline_metrics = BaselineMetrics::new(&scan.metrics_set, scan.partition);
        let readers = scan.readers.readers_of(
            scan.partition,
            &file,
            file.metadata_size_hint.or(scan.metadata_size_hint),
            &scan.metrics_set,
            &metrics,
        );
        let readers = Arc::new(readers);
        let reader = readers.reader()?;

        // Before anything is replaced, while columns still have their names.
        let output_schema = Arc::new(
            scan.projection
                .project_schema(scan.table_schema.table_schema())?,
        );
        let literals = literal_columns(&scan.table_schema, &file);
        let mut projection = scan.projection.clone();
        let mut predicate = scan.predicate.clone();
        if !literals.is_empty() {
            projection =
                projection.try_map_exprs(|expr| replace_columns_with_literals(expr, &literals))?;
            predicate = predicate
                .map(|expr| replace_columns_with_literals(expr, &literals))
                .transpose()?;
        }
        projection = rewrite_input_file_name_in_projection(projection, &file_name)?;

        let predicate_creation_errors = MetricBuilder::new(&scan.metrics_set)
            .with_category(MetricCategory::Rows)
            .global_counter("num_predicate_creation_errors");
        let pruner = predicate.as_ref().and_then(|predicate| {
            FilePruner::try_new(
                Arc::clone(predicate),
                scan.table_schema.file_schema(),
                &file,
                predicate_creation_errors.clone(),
            )
        });
        Ok(Self {
            scan,
            file,
            file_name,
            readers,
            reader,
            background,
            metrics,
            decryption: None,
            output_schema,
            projection,
            predicate,
            pruner,
            file_metrics,
            baseline_metrics,
            predicate_creation_errors,
        })
    }

    /// Asks for the file's keys: before anything else, so that a factory sees each file of the scan and its errors come
    /// first, as in stock.
    pub(crate) async fn load_keys(mut self) -> Result<Self> {
        let location = &self.file.object_meta.location;
        self.decryption = self.scan.decryption.properties_of(location).await?;
        Ok(self)
    }

    /// Ends here, with `None`, where statistics and partition values rule the whole file out.
    pub(crate) fn prune_file(mut self) -> Result<Option<Self>> {
        let metric = &self.file_metrics.files_ranges_pruned_statistics;
        if let Some(pruner) = &mut self.pruner
            && pruner.should_prune()?
        {
            metric.add_pruned(1);
            return Ok(None);
        }
        metric.add_matched(1);
        Ok(Some(self))
    }
}
