//! From a decoded batch to the scan's output: which leaves to decode, and what to make of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, FieldRef, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::common::nested_struct::requires_nested_struct_cast;
use datafusion::functions::core::getfield::GetFieldFunc;
use datafusion::physical_expr::expressions::{CastExpr, Column, Literal};
use datafusion::physical_expr::projection::{ProjectionExprs, Projector};
use datafusion::physical_expr::utils::reassign_expr_columns;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_expr_adapter::replace_columns_with_literals;
use parquet::arrow::ProjectionMask;
use parquet::schema::types::SchemaDescriptor;

use super::nested::{LeafWalk, Need, contains_struct, leaf_count};
use super::virtual_columns::VirtualColumns;

/// The projection of one file: the mask for its decoder, and the way from a decoded batch to a
/// batch of the scan.
#[derive(Debug)]
pub(crate) struct DecoderProjection {
    mask: ProjectionMask,
    projector: Projector,
    output_schema: SchemaRef,
    /// Whether nullability or metadata of what the projector makes differ from what was planned.
    relabel: bool,
}

impl DecoderProjection {
    /// Plans the projection of a file.
    ///
    /// `projection` is in terms of `physical_file_schema`, the schema that the reader has for the
    /// whole file, followed by the virtual columns. `output_schema` is that of the scan.
    ///
    /// # Errors
    ///
    /// When an expression uses a column that neither the file nor `virtual_columns` has.
    pub(crate) fn try_new(
        projection: &ProjectionExprs,
        physical_file_schema: &SchemaRef,
        parquet_schema: &SchemaDescriptor,
        output_schema: &SchemaRef,
        virtual_columns: Option<&VirtualColumns>,
    ) -> Result<Self> {
        let mut needs = RootNeeds::new(physical_file_schema);
        for expr in projection.expr_iter() {
            needs.add(&match virtual_columns {
                // A virtual column may have the name of a column of the file.
                Some(columns) => replace_columns_with_literals(expr, columns.null_replacements())?,
                None => expr,
            });
        }
        let (mask, file_columns) = needs.into_mask_and_schema(parquet_schema);
        let decoded_schema = match virtual_columns {
            Some(columns) => columns.append_to(&file_columns),
            None => file_columns,
        };

        let projector = projection
            .clone()
            .try_map_exprs(|expr| reassign_expr_columns(expr, &decoded_schema))?
            .make_projector(&decoded_schema)?;
        let relabel = projector.output_schema() != output_schema;
        Ok(Self {
            mask,
            projector,
            output_schema: Arc::clone(output_schema),
            relabel,
        })
    }

    /// The leaves that every decoder of this file has to decode.
    pub(crate) fn mask(&self) -> &ProjectionMask {
        &self.mask
    }

    /// Makes a batch of the scan from a decoded one.
    ///
    /// # Errors
    ///
    /// When an expression fails, or when its result cannot stand for the planned column: another
    /// type, or nulls where none were planned.
    pub(crate) fn map(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let projected = self.projector.project_batch(batch)?;
        if !self.relabel {
            return Ok(projected);
        }
        let (_, columns, row_count) = projected.into_parts();
        let options = RecordBatchOptions::new().with_row_count(Some(row_count));
        let schema = Arc::clone(&self.output_schema);
        Ok(RecordBatch::try_new_with_options(
            schema, columns, &options,
        )?)
    }
}

/// The leaves that evaluating `exprs`, which are over `physical_file_schema`, takes.
pub(crate) fn leaf_mask<'a>(
    exprs: impl IntoIterator<Item = &'a Arc<dyn PhysicalExpr>>,
    physical_file_schema: &Schema,
    parquet_schema: &SchemaDescriptor,
) -> ProjectionMask {
    let mut needs = RootNeeds::new(physical_file_schema);
    exprs.into_iter().for_each(|expr| needs.add(expr));
    needs.into_mask_and_schema(parquet_schema).0
}

/// What a projection needs of each root column of a file, by index.
///
/// A column is read in part where all uses of it are fields, or all are the same cast. Any other mixture reads it whole, as
/// in stock: the bytes of a scan are compared too.
struct RootNeeds<'a> {
    file_schema: &'a Schema,
    needs: BTreeMap<usize, RootNeed>,
}

/// What is needed of one root column.
#[derive(Debug, PartialEq)]
enum RootNeed {
    Whole,
    /// What fields of it take.
    Fields(Need),
    /// What casting it to this type takes.
    Cast(DataType, Need),
}

impl RootNeed {
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Fields(mut need), Self::Fields(other)) => {
                need.merge(other);
                Self::Fields(need)
            }
            (Self::Cast(target, need), Self::Cast(other, _)) if target == other => {
                Self::Cast(target, need)
            }
            _ => Self::Whole,
        }
    }

    fn into_need(self) -> Need {
        match self {
            Self::Whole => Need::Whole,
            Self::Fields(need) | Self::Cast(_, need) => need,
        }
    }
}

impl<'a> RootNeeds<'a> {
    fn new(file_schema: &'a Schema) -> Self {
        Self {
            file_schema,
            needs: BTreeMap::new(),
        }
    }

    /// Adds what `expr` needs. A column that the file does not have is left out.
    fn add(&mut self, expr: &Arc<dyn PhysicalExpr>) {
        if let Some(column) = expr.downcast_ref::<Column>() {
            self.need(column, |_| RootNeed::Whole);
        } else if let Some(cast) = expr.downcast_ref::<CastExpr>()
            && let Some(column) = cast.expr().downcast_ref::<Column>()
        {
            self.need(column, |field| {
                if !requires_nested_struct_cast(field.data_type(), cast.cast_type()) {
                    return RootNeed::Whole;
                }
                match Need::cast(field.data_type(), cast.cast_type()) {
                    Some(need) => RootNeed::Cast(cast.cast_type().clone(), need),
                    None => RootNeed::Whole,
                }
            });
        } else if let Some(get_field) =
            ScalarFunctionExpr::try_downcast_func::<GetFieldFunc>(expr.as_ref())
            && let [base, names @ ..] = get_field.args()
            && let Some(column) = base.downcast_ref::<Column>()
        {
            names.iter().for_each(|name| self.add(name));
            let is_leaf = is_leaf_or_list(get_field.return_type());
            let path: Option<Vec<String>> = names.iter().map(literal_name).collect();
            self.need(column, |field| match path {
                // The keys of a map are values, not fields.
                Some(path) if is_leaf && !matches!(field.data_type(), DataType::Map(..)) => {
                    RootNeed::Fields(Need::path(path))
                }
                _ => RootNeed::Whole,
            });
        } else {
            expr.children()
                .into_iter()
                .for_each(|child| self.add(child));
        }
    }

    fn need(&mut self, column: &Column, need: impl FnOnce(&FieldRef) -> RootNeed) {
        let fields = self.file_schema.fields();
        let index = match fields.get(column.index()) {
            Some(field) if field.name() == column.name() => column.index(),
            // Rewrites may leave an index behind that is of another schema.
            _ => match fields.find(column.name()) {
                Some((index, _)) => index,
                None => return,
            },
        };
        let need = need(&fields[index]);
        let need = match self.needs.remove(&index) {
            Some(before) => before.and(need),
            None => need,
        };
        self.needs.insert(index, need);
    }

    /// The mask for the needed leaves, and the file columns of the batches decoded under it.
    fn into_mask_and_schema(
        self,
        parquet_schema: &SchemaDescriptor,
    ) -> (ProjectionMask, SchemaRef) {
        let leaves_by_root = leaves_by_root(parquet_schema);
        let mut leaves = Vec::new();
        let mut fields = Vec::with_capacity(self.needs.len());
        for (root, need) in self.needs {
            let need = need.into_need();
            let field = &self.file_schema.fields()[root];
            // The reader emits nothing for a root without leaves.
            let Some(root_leaves) = leaves_by_root.get(root) else {
                continue;
            };
            let data_type = field.data_type();
            // Leaves are told apart by counting them along the Arrow type. Where the type in the
            // file's embedded Arrow schema counts differently, nothing may be left out.
            if contains_struct(data_type) && leaf_count(data_type) == root_leaves.len() {
                fields.push(LeafWalk::new(root_leaves.start, &mut leaves).keep(field, &need));
            } else {
                leaves.extend(root_leaves.clone());
                fields.push(Arc::clone(field));
            }
        }
        let schema = Schema::new_with_metadata(fields, self.file_schema.metadata().clone());
        (
            ProjectionMask::leaves(parquet_schema, leaves),
            Arc::new(schema),
        )
    }
}

/// Whether a field of this type is read by itself: a struct or a map in a struct is not, the column is then read whole.
fn is_leaf_or_list(data_type: &DataType) -> bool {
    !data_type.is_nested()
        || matches!(
            data_type,
            DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..)
        )
}

/// The name that an argument of `get_field` stands for, if it is a fixed string.
fn literal_name(arg: &Arc<dyn PhysicalExpr>) -> Option<String> {
    let literal = arg.downcast_ref::<Literal>()?;
    literal.value().try_as_str().flatten().map(str::to_owned)
}

/// The leaves of each root column; those of one root follow each other.
fn leaves_by_root(parquet_schema: &SchemaDescriptor) -> Vec<Range<usize>> {
    let mut roots = vec![0..0; parquet_schema.root_schema().get_fields().len()];
    for leaf in 0..parquet_schema.num_columns() {
        let range = &mut roots[parquet_schema.get_column_root_idx(leaf)];
        if range.end == 0 {
            range.start = leaf;
        }
        range.end = leaf + 1;
    }
    roots
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use arrow::array::{
        Array, ArrayRef, FixedSizeListArray, Int64Array, LargeListArray, ListArray, MapArray,
        StringArray, StructArray,
    };
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    use arrow::datatypes::{Field, Fields};
    use bytes::Bytes;
    use datafusion::common::ScalarValue;
    use datafusion::common::config::ConfigOptions;
    use datafusion::functions::core::get_field;
    use datafusion::physical_expr::expressions::lit;
    use datafusion::physical_expr::projection::ProjectionExpr;
    use parquet::arrow::arrow_reader::{
        ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
    };
    use parquet::arrow::{ArrowWriter, RowNumber};
    use proptest::prelude::*;
    use proptest::sample::Index;

    fn int(name: &str) -> Field {
        Field::new(name, DataType::Int64, true)
    }

    fn group(name: &str, children: Vec<Field>) -> Field {
        Field::new(name, DataType::Struct(Fields::from(children)), true)
    }

    fn list(name: &str, item: Field) -> Field {
        Field::new(name, DataType::List(Arc::new(item)), true)
    }

    fn map(name: &str, value: Field) -> Field {
        let key = Field::new("key", DataType::Utf8, false);
        Field::new_map(name, "entries", key, value, false, true)
    }

    /// `len` values of `field`, different from row to row, with nulls where they are allowed.
    fn values(field: &Field, len: usize, salt: usize) -> ArrayRef {
        let valid = |i: usize| !field.is_nullable() || !(i + salt).is_multiple_of(4);
        let nulls = || Some(NullBuffer::from_iter((0..len).map(valid)));
        let lengths = || (0..len).map(|i| (i + salt) % 3);
        match field.data_type() {
            DataType::Int64 => {
                Arc::new(Int64Array::from_iter((0..len).map(|i| {
                    valid(i).then(|| i64::try_from(i * 1000 + salt).unwrap())
                })))
            }
            DataType::Utf8 => Arc::new(StringArray::from_iter(
                (0..len).map(|i| valid(i).then(|| format!("{salt}-{i}"))),
            )),
            DataType::Struct(children) => {
                let columns = children
                    .iter()
                    .enumerate()
                    .map(|(i, child)| values(child, len, salt * 7 + i + 1))
                    .collect();
                Arc::new(StructArray::new(children.clone(), columns, nulls()))
            }
            DataType::List(item) => {
                let offsets = OffsetBuffer::from_lengths(lengths());
                let items = values(item, lengths().sum(), salt + 11);
                Arc::new(ListArray::new(Arc::clone(item), offsets, items, nulls()))
            }
            DataType::LargeList(item) => {
                let offsets = OffsetBuffer::from_lengths(lengths());
                let items = values(item, lengths().sum(), salt + 13);
                Arc::new(LargeListArray::new(
                    Arc::clone(item),
                    offsets,
                    items,
                    nulls(),
                ))
            }
            DataType::FixedSizeList(item, size) => {
                let items = values(item, len * usize::try_from(*size).unwrap(), salt + 17);
                Arc::new(FixedSizeListArray::new(
                    Arc::clone(item),
                    *size,
                    items,
                    nulls(),
                ))
            }
            DataType::Map(entries, sorted) => {
                let offsets = OffsetBuffer::from_lengths(lengths());
                let items = values(entries, lengths().sum(), salt + 19);
                let items = items
                    .as_any()
                    .downcast_ref::<StructArray>()
                    .unwrap()
                    .clone();
                Arc::new(MapArray::new(
                    Arc::clone(entries),
                    offsets,
                    items,
                    nulls(),
                    *sorted,
                ))
            }
            other => unreachable!("no values of {other}"),
        }
    }

    struct File {
        bytes: Bytes,
        metadata: ArrowReaderMetadata,
    }

    impl File {
        fn new(fields: Vec<Field>) -> Self {
            Self::with_options(fields, ArrowReaderOptions::new())
        }

        fn with_options(fields: Vec<Field>, options: ArrowReaderOptions) -> Self {
            let columns = fields
                .iter()
                .enumerate()
                .map(|(i, field)| values(field, 10, i))
                .collect();
            let metadata = HashMap::from([("schema".to_owned(), "metadata".to_owned())]);
            let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
            let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
            let mut bytes = Vec::new();
            let mut writer = ArrowWriter::try_new(&mut bytes, schema, None).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
            let bytes = Bytes::from(bytes);
            let metadata = ArrowReaderMetadata::load(&bytes, options).unwrap();
            Self { bytes, metadata }
        }

        fn decode(&self, mask: ProjectionMask) -> RecordBatch {
            let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(
                self.bytes.clone(),
                self.metadata.clone(),
            );
            let mut reader = builder.with_projection(mask).build().unwrap();
            reader.next().unwrap().unwrap()
        }

        fn schema(&self) -> &SchemaRef {
            self.metadata.schema()
        }

        fn column(&self, name: &str) -> Arc<dyn PhysicalExpr> {
            Arc::new(Column::new(name, self.schema().index_of(name).unwrap()))
        }

        fn field_of(&self, base: Arc<dyn PhysicalExpr>, path: &[&str]) -> Arc<dyn PhysicalExpr> {
            let names = path.iter().map(|name| lit(*name));
            let args = std::iter::once(base).chain(names).collect();
            let options = Arc::new(ConfigOptions::default());
            Arc::new(
                ScalarFunctionExpr::try_new(get_field(), args, self.schema(), options).unwrap(),
            )
        }

        fn cast(&self, name: &str, target: &DataType) -> Arc<dyn PhysicalExpr> {
            Arc::new(CastExpr::new(self.column(name), target.clone(), None))
        }

        fn project(&self, exprs: &[Arc<dyn PhysicalExpr>]) -> DecoderProjection {
            let projection = projection(exprs);
            let output = Arc::new(projection.project_schema(self.schema()).unwrap());
            let parquet_schema = self.metadata.parquet_schema();
            DecoderProjection::try_new(&projection, self.schema(), parquet_schema, &output, None)
                .unwrap()
        }

        /// Checks the projection against what the reader emits under its mask, and against the
        /// same expressions on the complete batch. Returns the leaves that it reads.
        fn check(&self, exprs: &[Arc<dyn PhysicalExpr>]) -> Vec<usize> {
            let mut needs = RootNeeds::new(self.schema());
            exprs.iter().for_each(|expr| needs.add(expr));
            let (mask, predicted) = needs.into_mask_and_schema(self.metadata.parquet_schema());
            let decoded = self.decode(mask.clone());
            assert_eq!(decoded.schema().fields(), predicted.fields());
            assert_eq!(predicted.metadata(), self.schema().metadata());

            let projected = self.project(exprs);
            assert_eq!(projected.mask(), &mask);
            let full = self.decode(ProjectionMask::all());
            let projector = projection(exprs).make_projector(self.schema()).unwrap();
            // Casts of some nested nulls panic, on the complete batch too: these have no answer to be compared with.
            let on_all = AssertUnwindSafe(|| projector.project_batch(&full).unwrap());
            if let Ok(expected) = catch_unwind(on_all) {
                assert_eq!(projected.map(&decoded).unwrap(), expected);
            }
            let leaves = 0..self.metadata.parquet_schema().num_columns();
            leaves.filter(|leaf| mask.leaf_included(*leaf)).collect()
        }
    }

    fn projection(exprs: &[Arc<dyn PhysicalExpr>]) -> ProjectionExprs {
        ProjectionExprs::new(
            exprs
                .iter()
                .enumerate()
                .map(|(i, expr)| ProjectionExpr::new(Arc::clone(expr), format!("c{i}"))),
        )
    }

    /// Leaves: id 0, s.a 1, s.t.x 2, s.t.y 3, s.m 4-5, l.item.x 6, l.item.y 7, z 8.
    fn nested_file() -> File {
        let t = group("t", vec![int("x"), int("y")]);
        let item = group("item", vec![int("x"), int("y").with_nullable(false)]);
        File::new(vec![
            int("id"),
            group("s", vec![int("a"), t, map("m", int("value"))]),
            list("l", item),
            int("z"),
        ])
    }

    #[test]
    fn columns_are_read_whole_and_in_file_order() {
        let file = nested_file();
        assert_eq!(
            file.check(&[file.column("z"), file.column("s"), file.column("z")]),
            [1, 2, 3, 4, 5, 8]
        );
    }

    #[test]
    fn nothing_is_read_for_literals() {
        let file = nested_file();
        assert_eq!(file.check(&[lit(1_i64)]), [0_usize; 0]);
        assert_eq!(file.check(&[]), [0_usize; 0]);
    }

    #[test]
    fn fields_of_structs() {
        let file = nested_file();
        let s = || file.column("s");
        assert_eq!(file.check(&[file.field_of(s(), &["a"])]), [1]);
        assert_eq!(file.check(&[file.field_of(s(), &["t", "y"])]), [3]);
        assert_eq!(
            file.check(&[file.field_of(s(), &["t", "x"]), file.field_of(s(), &["a"])]),
            [1, 2]
        );
        // A field that is a struct itself takes the whole column, as in stock.
        let whole = [1, 2, 3, 4, 5];
        assert_eq!(file.check(&[file.field_of(s(), &["t"])]), whole);
        assert_eq!(file.check(&[file.field_of(s(), &["t", "y"]), s()]), whole);
        // One access on top of another.
        let t = file.field_of(s(), &["t"]);
        assert_eq!(file.check(&[file.field_of(t, &["x"])]), whole);
    }

    #[test]
    fn a_key_of_a_map_needs_the_map() {
        let file = nested_file();
        assert_eq!(
            file.check(&[file.field_of(file.column("s"), &["m", "3-1"])]),
            [4, 5]
        );
        let file = File::new(vec![
            int("id"),
            map("m", group("v", vec![int("x"), int("y")])),
        ]);
        assert_eq!(
            file.check(&[file.field_of(file.column("m"), &["19-0"])]),
            [1, 2, 3]
        );
    }

    #[test]
    fn casts_to_narrower_types() {
        let file = nested_file();
        let item = group("item", vec![int("x")]);
        let list_of_x = list("l", item).data_type().clone();
        assert_eq!(file.check(&[file.cast("l", &list_of_x)]), [6]);
        assert_eq!(
            file.check(&[file.cast("l", &list_of_x), file.column("l")]),
            [6, 7]
        );

        let wider = group(
            "s",
            vec![group("t", vec![int("y"), int("new")]), int("other")],
        );
        assert_eq!(file.check(&[file.cast("s", wider.data_type())]), [3]);

        // Two casts, and a cast and an access, take the whole column, as in stock. The same cast twice does not.
        let whole = [1, 2, 3, 4, 5];
        let only_a = group("s", vec![int("a")]);
        let casts = [
            file.cast("s", only_a.data_type()),
            file.cast("s", wider.data_type()),
        ];
        assert_eq!(file.check(&casts), whole);
        let access = file.field_of(file.column("s"), &["t", "x"]);
        let cast = || file.cast("s", only_a.data_type());
        assert_eq!(file.check(&[cast(), access]), whole);
        assert_eq!(file.check(&[cast(), cast()]), [1]);
        // A cast that is no nested one.
        assert_eq!(file.check(&[file.cast("id", &DataType::Utf8)]), [0]);
    }

    #[test]
    fn a_column_that_only_the_file_index_misses_is_found_by_name() {
        let file = nested_file();
        let stale: Arc<dyn PhysicalExpr> = Arc::new(Column::new("z", 1));
        let mut needs = RootNeeds::new(file.schema());
        needs.add(&stale);
        let (mask, schema) = needs.into_mask_and_schema(file.metadata.parquet_schema());
        assert_eq!(schema.field(0).name(), "z");
        assert_eq!(file.decode(mask).schema().fields(), schema.fields());
    }

    #[test]
    fn an_unknown_column_is_an_error() {
        let file = nested_file();
        let exprs = projection(&[Arc::new(Column::new("absent", 0))]);
        let error = DecoderProjection::try_new(
            &exprs,
            file.schema(),
            file.metadata.parquet_schema(),
            file.schema(),
            None,
        );
        assert!(error.unwrap_err().to_string().contains("absent"));
    }

    #[test]
    fn the_root_is_read_whole_where_arrow_counts_other_leaves() {
        let file = nested_file();
        let t = group("t", vec![int("x")]);
        let short = Schema::new(vec![int("id"), group("s", vec![int("a"), t])]);
        let access = file.field_of(file.column("s"), &["t", "y"]);
        let mut needs = RootNeeds::new(&short);
        needs.add(&access);
        let (mask, schema) = needs.into_mask_and_schema(file.metadata.parquet_schema());
        assert_eq!(
            mask,
            ProjectionMask::roots(file.metadata.parquet_schema(), [1])
        );
        assert_eq!(schema.field(0), short.field(1));
    }

    #[test]
    fn planned_nullability_and_metadata_are_put_on() {
        let file = File::new(vec![int("a"), int("b").with_nullable(false)]);
        let exprs = projection(&[file.column("b"), file.column("a")]);
        let metadata = HashMap::from([("planned".to_owned(), "yes".to_owned())]);
        let output = Arc::new(Schema::new_with_metadata(
            vec![int("c0").with_metadata(metadata.clone()), int("c1")],
            metadata,
        ));
        let parquet_schema = file.metadata.parquet_schema();
        let projection =
            DecoderProjection::try_new(&exprs, file.schema(), parquet_schema, &output, None)
                .unwrap();
        let batch = projection
            .map(&file.decode(projection.mask().clone()))
            .unwrap();
        assert_eq!(batch.schema(), output);

        // A null where none was planned must not get through.
        let output = Arc::new(Schema::new(vec![int("c0"), int("c1").with_nullable(false)]));
        let projection =
            DecoderProjection::try_new(&exprs, file.schema(), parquet_schema, &output, None)
                .unwrap();
        projection
            .map(&file.decode(projection.mask().clone()))
            .unwrap_err();
    }

    #[test]
    fn a_batch_without_columns_keeps_its_rows() {
        let file = nested_file();
        let metadata = HashMap::from([("planned".to_owned(), "yes".to_owned())]);
        let output = Arc::new(Schema::empty().with_metadata(metadata));
        let parquet_schema = file.metadata.parquet_schema();
        let projection = DecoderProjection::try_new(
            &projection(&[]),
            file.schema(),
            parquet_schema,
            &output,
            None,
        )
        .unwrap();
        let batch = projection
            .map(&file.decode(projection.mask().clone()))
            .unwrap();
        assert_eq!((batch.num_rows(), batch.schema()), (10, output));
    }

    #[test]
    fn virtual_columns_follow_the_columns_of_the_file() {
        let row_number =
            Arc::new(Field::new("rn", DataType::Int64, false).with_extension_type(RowNumber));
        let options = ArrowReaderOptions::new()
            .with_virtual_columns(vec![Arc::clone(&row_number)])
            .unwrap();
        let fields = vec![int("id"), group("s", vec![int("a"), int("b")])];
        let file = File::with_options(fields.clone(), options);
        let physical = Arc::new(Schema::new(fields));
        let columns = VirtualColumns::try_new(&[row_number], &physical, None, false)
            .unwrap()
            .unwrap();
        let exprs = projection(&[
            Arc::new(Column::new("rn", 2)),
            file.field_of(Arc::new(Column::new("s", 1)), &["b"]),
            Arc::new(Column::new("rn", 2)),
        ]);
        let output = Arc::new(exprs.project_schema(columns.logical_schema()).unwrap());
        let projection = DecoderProjection::try_new(
            &exprs,
            &physical,
            file.metadata.parquet_schema(),
            &output,
            Some(&columns),
        )
        .unwrap();
        assert!(!projection.mask().leaf_included(0) && !projection.mask().leaf_included(1));
        let batch = projection
            .map(&file.decode(projection.mask().clone()))
            .unwrap();
        let expected: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10));
        assert_eq!(batch.column(0), &expected);
        assert_eq!(batch.column(2), &expected);
        assert_eq!(batch.schema(), output);
    }

    fn any_type() -> impl Strategy<Value = DataType> {
        let leaf = prop_oneof![Just(DataType::Int64), Just(DataType::Utf8)];
        leaf.prop_recursive(4, 24, 4, |inner| {
            let structs = prop::collection::vec((inner.clone(), any::<bool>()), 1..4);
            let structs = structs.prop_map(|types| {
                let children = types.into_iter().enumerate();
                let children =
                    children.map(|(i, (of, nullable))| Field::new(format!("f{i}"), of, nullable));
                DataType::Struct(children.collect())
            });
            let item = (inner, any::<bool>())
                .prop_map(|(of, nullable)| Arc::new(Field::new("item", of, nullable)));
            prop_oneof![
                3 => structs,
                1 => item.clone().prop_map(DataType::List),
                1 => item.clone().prop_map(DataType::LargeList),
                // Items that cannot be null do not survive a cast below a null struct.
                1 => item.clone().prop_map(|item| {
                    let item = Field::clone(&item).with_nullable(true);
                    DataType::FixedSizeList(Arc::new(item), 2)
                }),
                1 => item.prop_map(|item| map("", Field::clone(&item)).data_type().clone()),
            ]
        })
    }

    /// The paths of all fields below `data_type` that `get_field` can reach.
    fn paths(data_type: &DataType) -> Vec<Vec<String>> {
        let DataType::Struct(children) = data_type else {
            return Vec::new();
        };
        let below = children.iter().flat_map(|child| {
            let name = || child.name().clone();
            let deeper = paths(child.data_type()).into_iter();
            std::iter::once(vec![name()])
                .chain(deeper.map(move |path| [vec![name()], path].concat()))
        });
        below.collect()
    }

    /// `data_type` with some fields of its structs left out, and others put in.
    fn narrower(data_type: &DataType, bits: &mut u64) -> DataType {
        let mut bit = || {
            *bits = bits.rotate_left(1);
            *bits & 1 == 1
        };
        match data_type {
            DataType::Struct(children) => {
                let mut kept: Vec<FieldRef> = children.iter().filter(|_| bit()).cloned().collect();
                if kept.is_empty() {
                    kept.push(Arc::clone(&children[0]));
                }
                let added = bit().then(|| Arc::new(int("added")));
                let kept = kept.into_iter().map(|child| {
                    let of = narrower(child.data_type(), bits);
                    Arc::new(Field::clone(&child).with_data_type(of))
                });
                let mut kept: Vec<FieldRef> = kept.collect();
                kept.extend(added);
                DataType::Struct(kept.into())
            }
            DataType::List(item) => {
                let of = narrower(item.data_type(), bits);
                DataType::List(Arc::new(Field::clone(item).with_data_type(of)))
            }
            DataType::LargeList(item) => {
                let of = narrower(item.data_type(), bits);
                DataType::LargeList(Arc::new(Field::clone(item).with_data_type(of)))
            }
            DataType::FixedSizeList(item, size) => {
                let of = narrower(item.data_type(), bits);
                DataType::FixedSizeList(Arc::new(Field::clone(item).with_data_type(of)), *size)
            }
            other => other.clone(),
        }
    }

    #[derive(Debug, Clone)]
    enum Use {
        Column,
        Field(Index),
        Cast(u64),
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Whatever is left out is not missed: the reader emits the predicted schema, and the
        /// expressions give what they give on the complete batch.
        #[test]
        fn nothing_needed_is_left_out(
            types in prop::collection::vec(any_type(), 1..4),
            uses in prop::collection::vec(
                (
                    any::<Index>(),
                    prop_oneof![
                        1 => Just(Use::Column),
                        3 => any::<Index>().prop_map(Use::Field),
                        3 => any::<u64>().prop_map(Use::Cast),
                    ],
                ),
                0..4,
            ),
        ) {
            let fields: Vec<_> = types
                .into_iter()
                .enumerate()
                .map(|(i, of)| Field::new(format!("r{i}"), of, true))
                .collect();
            let file = File::new(fields.clone());
            let exprs: Vec<_> = uses
                .into_iter()
                .map(|(root, used)| {
                    let root = root.get(&fields);
                    let column = file.column(root.name());
                    match used {
                        Use::Column => column,
                        Use::Cast(mut bits) => {
                            file.cast(root.name(), &narrower(root.data_type(), &mut bits))
                        }
                        Use::Field(index) => match paths(root.data_type()).as_slice() {
                            [] => column,
                            paths => {
                                let path: Vec<_> =
                                    index.get(paths).iter().map(String::as_str).collect();
                                file.field_of(column, &path)
                            }
                        },
                    }
                })
                .collect();
            file.check(&exprs);
        }
    }

    #[test]
    fn a_name_that_is_not_fixed_needs_the_whole_column() {
        let fields = [
            int("id"),
            group("s", vec![int("a"), map("m", int("value"))]),
        ];
        let schema = Schema::new(fields.to_vec());
        let column = |name: &str| -> Arc<dyn PhysicalExpr> {
            Arc::new(Column::new_with_schema(name, &schema).unwrap())
        };
        // Made by hand: planning accepts literals only.
        let args = vec![
            column("s"),
            lit("m"),
            column("id"),
            lit(ScalarValue::Int64(Some(1))),
        ];
        let expr: Arc<dyn PhysicalExpr> = Arc::new(ScalarFunctionExpr::new(
            "get_field",
            get_field(),
            args,
            Arc::new(int("value")),
            Arc::new(ConfigOptions::default()),
        ));
        let mut needs = RootNeeds::new(&schema);
        needs.add(&expr);
        let expected = BTreeMap::from([(0, RootNeed::Whole), (1, RootNeed::Whole)]);
        assert_eq!(needs.needs, expected);
    }
}
