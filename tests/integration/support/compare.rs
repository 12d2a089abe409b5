//! What a query answers, and whether two answers are the same.

use std::fmt::Write;
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, UInt32Array};
use datafusion::arrow::compute::{concat_batches, take_record_batch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::row::{OwnedRow, RowConverter, SortField};
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::common::runtime::SpawnedTask;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::SessionContext;

/// What two answers have to have in common besides schema and rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Same {
    /// Nothing: no order is promised.
    Rows,
    /// The order of the rows.
    Order,
    /// The order of the rows and where the batches end.
    Batches,
}

/// The answer of a query.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// As planned.
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Vec<RecordBatch>,
}

impl Answer {
    pub(crate) fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    fn concatenated(&self) -> RecordBatch {
        // The batches' own schema: a plan's may differ from it in metadata, and that is compared
        // on its own.
        let schema = self
            .batches
            .first()
            .map_or(Arc::clone(&self.schema), RecordBatch::schema);
        concat_batches(&schema, &self.batches).unwrap()
    }
}

/// The physical plan of one query.
pub(crate) async fn plan(
    ctx: &SessionContext,
    sql: &str,
) -> Result<Arc<dyn ExecutionPlan>, String> {
    let (ctx, sql) = (ctx.clone(), sql.to_owned());
    caught(async move { ctx.sql(&sql).await?.create_physical_plan().await }).await
}

/// Runs a plan to its end.
pub(crate) async fn execute(
    ctx: &SessionContext,
    plan: Arc<dyn ExecutionPlan>,
) -> Result<Answer, String> {
    let task = ctx.task_ctx();
    let schema = plan.schema();
    let batches = caught(collect(plan, task)).await?;
    Ok(Answer { schema, batches })
}

/// Plans and runs a query. Errors are text, so that they can be compared; a panic is an error.
pub(crate) async fn answer(ctx: &SessionContext, sql: &str) -> Result<Answer, String> {
    let plan = plan(ctx, sql).await?;
    execute(ctx, plan).await
}

/// Awaits in a task of its own, so that a panic ends that and not the test. Dropped, it ends the
/// task.
async fn caught<T: Send + 'static>(
    future: impl Future<Output = datafusion::error::Result<T>> + Send + 'static,
) -> Result<T, String> {
    match SpawnedTask::spawn(future).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(error) => {
            let panic = error.into_panic();
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
                .unwrap_or_default();
            Err(format!("panic: {text}"))
        }
    }
}

/// Fails with a readable difference unless both answers are the same, or both are errors.
pub(crate) fn assert_same(
    stock: &Result<Answer, String>,
    ours: &Result<Answer, String>,
    same: Same,
    what: &str,
) {
    if let Some(difference) = difference(stock, ours, same) {
        panic!("{what}\n{difference}");
    }
}

/// How `ours` differs from `stock`; `None` if it does not.
pub(crate) fn difference(
    stock: &Result<Answer, String>,
    ours: &Result<Answer, String>,
    same: Same,
) -> Option<String> {
    let (stock, ours) = match (stock, ours) {
        (Ok(stock), Ok(ours)) => (stock, ours),
        (Err(_), Err(_)) => return None,
        (Ok(stock), Err(ours)) => {
            return Some(format!(
                "stock answers {} rows, ours fails: {ours}",
                stock.rows()
            ));
        }
        (Err(stock), Ok(ours)) => {
            return Some(format!(
                "stock fails: {stock}\nours answers {} rows",
                ours.rows()
            ));
        }
    };
    if stock.schema != ours.schema {
        return Some(format!(
            "schema\nstock: {:#?}\nours: {:#?}",
            stock.schema, ours.schema
        ));
    }
    // Stock does not promise that the batches' schema is the plan's, but ours is to be stock's.
    let schemas = |answer: &Answer| answer.batches.first().map(RecordBatch::schema);
    if let (Some(stock), Some(ours)) = (schemas(stock), schemas(ours))
        && stock != ours
    {
        return Some(format!("batch schema\nstock: {stock:#?}\nours: {ours:#?}"));
    }
    if stock.rows() != ours.rows() {
        return Some(format!(
            "stock answers {} rows, ours {}\nstock:\n{}\nours:\n{}",
            stock.rows(),
            ours.rows(),
            excerpt(&stock.concatenated()),
            excerpt(&ours.concatenated())
        ));
    }
    let lengths = |answer: &Answer| -> Vec<usize> {
        answer
            .batches
            .iter()
            .map(RecordBatch::num_rows)
            .filter(|&rows| rows > 0)
            .collect()
    };
    if same == Same::Batches && lengths(stock) != lengths(ours) {
        return Some(format!(
            "batches\nstock: {:?}\nours: {:?}",
            lengths(stock),
            lengths(ours)
        ));
    }
    if stock.rows() == 0 || stock.schema.fields().is_empty() {
        return None;
    }
    rows_difference(
        &stock.concatenated(),
        &ours.concatenated(),
        same != Same::Rows,
    )
}

fn rows_difference(stock: &RecordBatch, ours: &RecordBatch, ordered: bool) -> Option<String> {
    let fields = stock.schema();
    let fields = fields
        .fields()
        .iter()
        .map(|field| SortField::new(field.data_type().clone()));
    let converter = RowConverter::new(fields.collect()).unwrap();
    let mut stock_rows = numbered_rows(&converter, stock);
    let mut our_rows = numbered_rows(&converter, ours);
    if !ordered {
        stock_rows.sort();
        our_rows.sort();
    }
    let different: Vec<usize> = (0..stock_rows.len())
        .filter(|&i| stock_rows[i].0 != our_rows[i].0)
        .take(20)
        .collect();
    if different.is_empty() {
        return None;
    }
    let pick = |batch: &RecordBatch, rows: &[(OwnedRow, u32)]| {
        let indices: UInt32Array = different.iter().map(|&i| Some(rows[i].1)).collect();
        excerpt(&take_record_batch(batch, &indices).unwrap())
    };
    let mut text = format!("{} rows, of which these differ", stock_rows.len());
    text += if ordered {
        ", in order:"
    } else {
        ", each side sorted:"
    };
    write!(text, " {different:?}\nstock:\n{}", pick(stock, &stock_rows)).unwrap();
    write!(text, "\nours:\n{}", pick(ours, &our_rows)).unwrap();
    Some(text)
}

fn numbered_rows(converter: &RowConverter, batch: &RecordBatch) -> Vec<(OwnedRow, u32)> {
    let rows = converter.convert_columns(batch.columns()).unwrap();
    rows.iter().map(|row| row.owned()).zip(0..).collect()
}

fn excerpt(batch: &RecordBatch) -> String {
    let rows = batch.slice(0, batch.num_rows().min(20));
    pretty_format_batches(&[rows]).unwrap().to_string()
}
