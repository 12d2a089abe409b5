//! Columns that the Parquet reader makes up while decoding, such as the row number.
//!
//! They are in no file, so they must be kept away from everything that addresses the leaves of a
//! file: projection masks, row filters, page and row-group pruning.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::datasource::physical_plan::parquet::ParquetVirtualColumn;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;

/// The virtual columns of one scan, checked once and shared by all of its files.
#[derive(Debug)]
pub(crate) struct VirtualColumns {
    fields: Vec<FieldRef>,
    null_replacements: HashMap<String, ScalarValue>,
    logical_schema: SchemaRef,
}

impl VirtualColumns {
    /// Checks `fields`, or returns `None` where the scan has no virtual column.
    ///
    /// # Errors
    ///
    /// An internal error when `pushdown_filters` is on and `predicate` uses a virtual column: a row
    /// filter runs before the reader makes these columns, so the filter would be lost. A
    /// not-implemented error when a field's Arrow extension type is none that
    /// [`ParquetVirtualColumn`] knows.
    pub(crate) fn try_new(
        fields: &[FieldRef],
        logical_file_schema: &SchemaRef,
        predicate: Option<&Arc<dyn PhysicalExpr>>,
        pushdown_filters: bool,
    ) -> Result<Option<Arc<Self>>> {
        if fields.is_empty() {
            return Ok(None);
        }
        if pushdown_filters && let Some(predicate) = predicate {
            reject_virtual_columns(predicate, fields)?;
        }
        let mut null_replacements = HashMap::with_capacity(fields.len());
        for field in fields {
            ParquetVirtualColumn::try_from(field)?;
            null_replacements.insert(
                field.name().clone(),
                ScalarValue::try_new_null(field.data_type())?,
            );
        }
        Ok(Some(Arc::new(Self {
            fields: fields.to_vec(),
            null_replacements,
            logical_schema: append_fields(logical_file_schema, fields),
        })))
    }

    /// The fields in the order in which the reader appends them to its batches.
    pub(crate) fn fields(&self) -> &[FieldRef] {
        &self.fields
    }

    /// A typed null for every virtual column, by name. Put in the place of the columns, it leaves
    /// an expression that only uses columns of the file.
    pub(crate) fn null_replacements(&self) -> &HashMap<String, ScalarValue> {
        &self.null_replacements
    }

    /// The logical file schema followed by the virtual columns. An expression adapter that knows
    /// this schema leaves references to virtual columns alone instead of nulling them.
    pub(crate) fn logical_schema(&self) -> &SchemaRef {
        &self.logical_schema
    }

    /// `schema` followed by the virtual columns: the shape of a decoded batch.
    pub(crate) fn append_to(&self, schema: &SchemaRef) -> SchemaRef {
        append_fields(schema, &self.fields)
    }
}

/// `base` followed by `extra`. The schema-level metadata of `base` is kept only where `extra` is
/// empty, as in stock.
pub(crate) fn append_fields(base: &SchemaRef, extra: &[FieldRef]) -> SchemaRef {
    if extra.is_empty() {
        return Arc::clone(base);
    }
    let fields: Vec<FieldRef> = base.fields().iter().chain(extra).map(Arc::clone).collect();
    Arc::new(Schema::new(fields))
}

fn reject_virtual_columns(predicate: &Arc<dyn PhysicalExpr>, fields: &[FieldRef]) -> Result<()> {
    let names: HashSet<&str> = fields.iter().map(|field| field.name().as_str()).collect();
    let mut used = None;
    predicate.apply(|expr| match expr.downcast_ref::<Column>() {
        Some(column) if names.contains(column.name()) => {
            used = Some(column.name().to_owned());
            Ok(TreeNodeRecursion::Stop)
        }
        _ => Ok(TreeNodeRecursion::Continue),
    })?;
    match used {
        None => Ok(()),
        Some(name) => internal_err!(
            "The pushed-down predicate uses virtual column '{name}', which does not exist yet when \
             row filters run; offer filters through FileSource::try_pushdown_filters, which refuses \
             such a filter"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::{DataType, Field};
    use datafusion::common::DataFusionError;
    use datafusion::logical_expr::Operator;
    use datafusion::physical_expr::expressions::{binary, col, lit};
    use parquet::arrow::{RowGroupIndex, RowNumber};

    fn row_number(name: &str) -> FieldRef {
        Arc::new(Field::new(name, DataType::Int64, false).with_extension_type(RowNumber))
    }

    fn file_schema() -> SchemaRef {
        let schema = Schema::new(vec![Field::new("a", DataType::Int64, true)]);
        Arc::new(schema.with_metadata(HashMap::from([("k".to_owned(), "v".to_owned())])))
    }

    fn greater_than_one(column: &str, schema: &Schema) -> Arc<dyn PhysicalExpr> {
        binary(
            col(column, schema).unwrap(),
            Operator::Gt,
            lit(1_i64),
            schema,
        )
        .unwrap()
    }

    #[test]
    fn no_virtual_column_is_none() {
        assert!(
            VirtualColumns::try_new(&[], &file_schema(), None, true)
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn derived_values() {
        let columns =
            VirtualColumns::try_new(&[row_number("rn")], &file_schema(), None, true).unwrap();
        let columns = columns.unwrap();
        assert_eq!(columns.fields(), &[row_number("rn")]);
        assert_eq!(columns.null_replacements()["rn"], ScalarValue::Int64(None));
        let names: Vec<_> = columns
            .logical_schema()
            .fields()
            .iter()
            .map(|f| f.name())
            .collect();
        assert_eq!(names, ["a", "rn"]);
        let other = Arc::new(Schema::new(vec![Field::new("z", DataType::Utf8, true)]));
        assert_eq!(
            columns.append_to(&other).field(1),
            row_number("rn").as_ref()
        );
    }

    #[test]
    fn appending_nothing_keeps_the_schema() {
        let base = file_schema();
        assert!(Arc::ptr_eq(&append_fields(&base, &[]), &base));
    }

    #[test]
    fn predicate_on_a_virtual_column_is_refused_only_under_pushdown() {
        let fields = [row_number("rn")];
        let schema = append_fields(&file_schema(), &fields);
        let on_virtual = greater_than_one("rn", &schema);
        let on_file = greater_than_one("a", &schema);

        let error = VirtualColumns::try_new(&fields, &file_schema(), Some(&on_virtual), true);
        let error = error.unwrap_err();
        assert!(matches!(error, DataFusionError::Internal(_)), "{error}");
        assert!(error.to_string().contains("virtual column 'rn'"), "{error}");

        VirtualColumns::try_new(&fields, &file_schema(), Some(&on_virtual), false).unwrap();
        VirtualColumns::try_new(&fields, &file_schema(), Some(&on_file), true).unwrap();
    }

    #[test]
    fn unknown_extension_types_are_refused() {
        let plain: FieldRef = Arc::new(Field::new("p", DataType::Int64, false));
        let unsupported: FieldRef =
            Arc::new(Field::new("g", DataType::Int64, false).with_extension_type(RowGroupIndex));
        for field in [plain, unsupported] {
            let error = VirtualColumns::try_new(&[field], &file_schema(), None, false).unwrap_err();
            assert!(
                matches!(error, DataFusionError::NotImplemented(_)),
                "{error}"
            );
        }
    }
}
