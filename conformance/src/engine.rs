//! DataFusion as the test runner sees it, with its last outcome kept.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use datafusion_sqllogictest::{DFColumnType, DFOutput, DFSqlLogicTestError, DataFusion};
use parking_lot::Mutex;
use sqllogictest::{AsyncDB, DBOutput};

use crate::normalize::{Rule, normalize};

/// What a record came to, after normalisation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Rows {
        types: Vec<DFColumnType>,
        rows: Vec<Vec<String>>,
    },
    Complete(u64),
    Error(String),
}

/// The outcome of the last statement, and the rules that changed it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen {
    pub(crate) outcome: Option<Outcome>,
    pub(crate) rules: Vec<Rule>,
}

/// [`DataFusion`], whose output is normalised if it is ours.
pub(crate) struct Engine {
    inner: DataFusion,
    is_ours: bool,
    /// The folder that stands for the source tree, as a path of the local object store.
    root: String,
    seen: Arc<Mutex<Seen>>,
}

impl Engine {
    pub(crate) fn new(
        inner: DataFusion,
        is_ours: bool,
        root: String,
        seen: Arc<Mutex<Seen>>,
    ) -> Self {
        Self {
            inner,
            is_ours,
            root,
            seen,
        }
    }
}

/// The runner replaces the folder of the source tree by this name. It knows that folder from where it was compiled, which is
/// not where the files run here. Of stock's output too.
fn name_root(rows: &mut [Vec<String>], root: &str) {
    for cell in rows.iter_mut().flatten() {
        if cell.contains(root) {
            *cell = cell.replace(root, "WORKSPACE_ROOT");
        }
    }
}

#[async_trait]
impl AsyncDB for Engine {
    type Error = DFSqlLogicTestError;
    type ColumnType = DFColumnType;

    async fn run(&mut self, sql: &str) -> Result<DFOutput, DFSqlLogicTestError> {
        let mut result = self.inner.run(sql).await;
        let mut rules = Vec::new();
        if let Ok(DBOutput::Rows { rows, .. }) = &mut result {
            name_root(rows, &self.root);
        }
        if self.is_ours
            && let Ok(DBOutput::Rows { rows, .. }) = &mut result
        {
            rules = normalize(rows);
        }
        let outcome = match &result {
            Ok(DBOutput::Rows { types, rows }) => Outcome::Rows {
                types: types.clone(),
                rows: rows.clone(),
            },
            Ok(DBOutput::StatementComplete(count)) => Outcome::Complete(*count),
            Ok(_) => Outcome::Error("an output of a kind that this suite does not know".to_owned()),
            Err(error) => Outcome::Error(error.to_string()),
        };
        *self.seen.lock() = Seen {
            outcome: Some(outcome),
            rules,
        };
        result
    }

    fn engine_name(&self) -> &str {
        self.inner.engine_name()
    }

    async fn sleep(dur: Duration) {
        tokio::time::sleep(dur).await;
    }

    async fn shutdown(&mut self) {
        self.inner.shutdown().await;
    }
}
