//! The second and third step: the footer, and the scan's expressions in the file's own schema.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::datasource::physical_plan::parquet::{
    Int96Coercer, PagePruningAccessPlanFilter, apply_file_schema_type_coercions,
};
use datafusion::physical_expr::DynamicFilterTracking;
use datafusion::physical_expr::simplifier::PhysicalExprSimplifier;
use datafusion::physical_optimizer::pruning::{PruningPredicate, PruningPredicateBuilder};
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::file::metadata::PageIndexPolicy;

use super::file::OpeningFile;

/// A file whose footer is known.
pub(crate) struct LoadedFile {
    opening: OpeningFile,
    metadata: ArrowReaderMetadata,
    options: ArrowReaderOptions,
}

/// A file whose schema the scan's expressions are written in.
pub(crate) struct AdaptedFile {
    /// Its projection and predicate are over `physical_schema`, followed by the virtual columns.
    pub(super) opening: OpeningFile,
    pub(super) metadata: ArrowReaderMetadata,
    pub(super) options: ArrowReaderOptions,
    /// What the reader makes of the file's columns, without the virtual ones.
    pub(super) physical_schema: SchemaRef,
    pub(super) pruning_predicate: Option<Arc<PruningPredicate>>,
    pub(super) page_pruning: Option<PagePruningAccessPlanFilter>,
    /// Where it is opened before its turn: tells whether the filters have changed since the predicates above were built.
    pub(super) late_filters: Option<DynamicFilterTracking>,
}

impl OpeningFile {
    /// Reads the footer, but not the page index: whether that can help is known only after row groups are pruned.
    pub(crate) async fn load_metadata(mut self) -> Result<LoadedFile> {
        let mut options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Skip);
        if let Some(schema) = &self.file.arrow_schema {
            options = options.with_schema(Arc::clone(schema));
        }
        // Stock's readers neither put what is read with keys into the shared cache of metadata, nor look there for it. The
        // metadata keeps the keys for whatever is read later.
        if let Some(properties) = &self.decryption {
            options = options.with_file_decryption_properties(Arc::clone(properties));
        }
        let timer = self.file_metrics.metadata_load_time.timer();
        let read = self.reader.get_metadata(Some(&options));
        let metadata = match &self.background {
            // Keys are a file's own, and so is what is read with them. What a user's readers give is theirs.
            Some(background) if self.decryption.is_none() && self.readers.are_pinned() => {
                background.metadata.read(&self.file.object_meta, read).await
            }
            _ => read.await,
        }?;
        let metadata = ArrowReaderMetadata::try_new(metadata, options.clone())?;
        timer.done();
        Ok(LoadedFile {
            opening: self,
            metadata,
            options,
        })
    }
}

impl LoadedFile {
    /// Settles the types the reader produces, and rewrites projection and predicate from the table's schema to them.
    pub(crate) fn adapt(self) -> Result<AdaptedFile> {
        let Self {
            mut opening,
            mut metadata,
            mut options,
        } = self;
        let scan = Arc::clone(&opening.scan);
        let logical_schema = scan.table_schema.file_schema();
        let mut physical_schema = Arc::clone(metadata.schema());
        let mut is_changed = false;

        if let Some(coerced) = apply_file_schema_type_coercions(logical_schema, &physical_schema) {
            physical_schema = Arc::new(coerced);
            is_changed = true;
        }
        if let Some(unit) = &scan.coercion.int96_unit
            && let Some(coerced) =
                Int96Coercer::new(metadata.parquet_schema(), &physical_schema, unit)
                    .with_timezone(scan.coercion.int96_time_zone.clone())
                    .coerce()
        {
            physical_schema = Arc::new(coerced);
            is_changed = true;
        }
        if is_changed {
            options = options.with_schema(Arc::clone(&physical_schema));
        }
        if let Some(columns) = &scan.virtual_columns {
            // After `with_schema`, which speaks of the file's own columns only.
            options = options.with_virtual_columns(columns.fields().to_vec())?;
            is_changed = true;
        }
        if is_changed {
            metadata =
                ArrowReaderMetadata::try_new(Arc::clone(metadata.metadata()), options.clone())?;
        }

        // With equal schemas and no predicate there is nothing to rewrite.
        if opening.predicate.is_some() || *logical_schema != physical_schema {
            let (logical, physical) = match &scan.virtual_columns {
                Some(columns) => (
                    Arc::clone(columns.logical_schema()),
                    columns.append_to(&physical_schema),
                ),
                None => (Arc::clone(logical_schema), Arc::clone(&physical_schema)),
            };
            let adapter = scan
                .expr_adapter_factory
                .create(logical, Arc::clone(&physical))?;
            let simplifier = PhysicalExprSimplifier::new(&physical);
            opening.predicate = opening
                .predicate
                .map(|expr| simplifier.simplify(adapter.rewrite(expr)?))
                .transpose()?;
            opening.projection = opening
                .projection
                .try_map_exprs(|expr| simplifier.simplify(adapter.rewrite(expr)?))?;
        }

        let late_filters = opening
            .predicate
            .as_ref()
            .filter(|_| opening.background.is_some())
            .map(DynamicFilterTracking::classify)
            .filter(|tracking| matches!(tracking, DynamicFilterTracking::Watching(_)));
        let pruning_predicate = opening.predicate.as_ref().and_then(|predicate| {
            PruningPredicateBuilder::new()
                .with_file_schema(Arc::clone(&physical_schema))
                .with_error_counter(&opening.predicate_creation_errors)
                .with_max_in_list_size(scan.pruning.max_in_list_size)
                .build(Arc::clone(predicate))
        });
        let page_pruning = opening
            .predicate
            .as_ref()
            .filter(|_| scan.pruning.page_index)
            .map(|predicate| {
                PagePruningAccessPlanFilter::new(predicate, Arc::clone(&physical_schema))
            })
            .filter(|filter| filter.filter_number() > 0);
        Ok(AdaptedFile {
            opening,
            metadata,
            options,
            physical_schema,
            pruning_predicate,
            page_pruning,
            late_filters,
        })
    }
}
