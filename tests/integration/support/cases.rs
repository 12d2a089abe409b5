//! The inputs of `tests/data/cases` that broke other readers, with their right answers.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use object_store::memory::InMemory;
use serde_json::Value;

use super::compare::Answer;
use super::files::put;
use super::session::Table;

/// One row as text; `None` is null.
pub(crate) type Row = Vec<Option<String>>;

/// One input.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) id: String,
    location: String,
    columns: Option<String>,
    partitioned_by: Option<String>,
    pub(crate) checks: Vec<Check>,
}

/// One query over a case, and what it answers.
#[derive(Debug, Clone)]
pub(crate) struct Check {
    pub(crate) sql: String,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) expected: Vec<Row>,
    pub(crate) ordered: bool,
    /// Stock itself is wrong or refuses: `expected` is the truth, and stock's answer the floor.
    pub(crate) stock_differs: bool,
}

/// Where the cases are.
pub(crate) fn folder() -> PathBuf {
    data().join("cases")
}

/// Where test data is. Asked for at run time: Cargo may take a build of the same sources in another folder for one of these.
pub(crate) fn data() -> PathBuf {
    let package = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| ".".into());
    let package = std::path::absolute(PathBuf::from(package)).unwrap();
    package.join("tests/data")
}

/// All cases, in the order of `EXPECTED.json`.
pub(crate) fn all() -> Vec<Case> {
    let text = fs::read_to_string(folder().join("EXPECTED.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    cases.iter().map(Case::parse).collect()
}

/// The case with this id.
pub(crate) fn case(id: &str) -> Case {
    all().into_iter().find(|case| case.id == id).unwrap()
}

impl Case {
    fn parse(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str().map(str::to_owned);
        // Nothing here reads these: a case that declares one must not silently lose it.
        assert!(value["with_order"].is_null(), "{}: with_order", value["id"]);
        assert_eq!(
            value["options"],
            serde_json::json!({}),
            "{}: options",
            value["id"]
        );
        Self {
            id: text("id").unwrap(),
            location: text("location").unwrap(),
            columns: text("schema"),
            partitioned_by: text("partitioned_by"),
            checks: value["checks"]
                .as_array()
                .unwrap()
                .iter()
                .map(Check::parse)
                .collect(),
        }
    }

    /// The table `t` of this case, at its location in the tests' bucket.
    pub(crate) fn table(&self) -> Table {
        self.declared(Table::new("t", &self.location))
    }

    /// The table `t` of this case, in the local file system.
    pub(crate) fn local_table(&self) -> Table {
        let path = folder().join(&self.location);
        // A folder's URL has to say that it is one.
        let slash = if self.location.ends_with('/') && !path.ends_with("/") {
            "/"
        } else {
            ""
        };
        let path = path.to_str().unwrap().trim_end_matches('/');
        self.declared(Table::at("t", &format!("file://{path}{slash}")))
    }

    fn declared(&self, mut table: Table) -> Table {
        if let Some(columns) = &self.columns {
            table = table.with_columns(columns);
        }
        if let Some(column) = &self.partitioned_by {
            table = table.partitioned_by(column, DataType::Utf8View);
        }
        table
    }

    /// A store with the files of this case.
    pub(crate) async fn store(&self) -> Arc<InMemory> {
        let store = Arc::new(InMemory::new());
        let mut pending = vec![folder().join(&self.location)];
        while let Some(path) = pending.pop() {
            if path.is_dir() {
                pending.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
            } else {
                let key = path.strip_prefix(folder()).unwrap().to_str().unwrap();
                put(&store, key, fs::read(&path).unwrap().into()).await;
            }
        }
        store
    }
}

impl Check {
    fn parse(value: &Value) -> Self {
        let row = |row: &Value| row.as_array().unwrap().iter().map(cell).collect();
        let settings = value["settings"].as_object().unwrap().iter();
        Self {
            sql: value["sql"].as_str().unwrap().to_owned(),
            settings: settings
                .map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned()))
                .collect(),
            expected: value["expected"]
                .as_array()
                .unwrap()
                .iter()
                .map(row)
                .collect(),
            ordered: value["ordered"].as_bool().unwrap(),
            stock_differs: value["stock_differs"].as_bool().unwrap(),
        }
    }

    /// Why these rows are not the expected ones, if they are not.
    pub(crate) fn refuted_by(&self, answer: &Result<Answer, String>) -> Option<String> {
        let mut rows = match answer {
            Ok(answer) => rows(answer),
            Err(error) => return Some(error.clone()),
        };
        let mut expected = self.expected.clone();
        if !self.ordered {
            rows.sort();
            expected.sort();
        }
        (rows != expected).then(|| format!("expected {expected:?}\ngot {rows:?}"))
    }
}

fn cell(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// An answer as rows of text.
pub(crate) fn rows(answer: &Answer) -> Vec<Row> {
    let options = FormatOptions::default();
    let mut rows = Vec::new();
    for batch in &answer.batches {
        let formatters: Vec<ArrayFormatter<'_>> = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column, &options).unwrap())
            .collect();
        for i in 0..batch.num_rows() {
            let cells = batch
                .columns()
                .iter()
                .zip(&formatters)
                .map(|(column, formatter)| {
                    (!column.is_null(i)).then(|| formatter.value(i).to_string())
                });
            rows.push(cells.collect());
        }
    }
    rows
}
