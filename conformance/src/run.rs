//! Running the test files.

use std::path::Path;
use std::sync::{Arc, Mutex as StdMutex};

use datafusion_sqllogictest::{
    DataFusion, TestContext, df_value_validator, setup_scratch_dir, value_normalizer,
};
use futures::StreamExt;
use futures::stream;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use sqllogictest::{Record, Runner, parse_file, strict_column_validator};

use crate::engine::{Engine, Outcome, Seen};
use crate::mode::Mode;
use crate::normalize::Rule;
use crate::sandbox::TestFile;

/// All records of one file, run in one way.
#[derive(Debug)]
pub(crate) struct FileRun {
    pub(crate) name: String,
    pub(crate) records: Vec<RecordRun>,
}

/// One record that was run.
#[derive(Debug)]
pub(crate) struct RecordRun {
    /// The record's file and line, and that of the line which includes the file.
    pub(crate) location: String,
    pub(crate) sql: String,
    /// What the runner found fault with; `None` where the record came to what its file expects.
    pub(crate) fault: Option<String>,
    /// `None` where nothing was executed.
    pub(crate) outcome: Option<Outcome>,
    pub(crate) rules: Vec<Rule>,
}

/// Runs `files`, `jobs` at a time, in order of `files`: with stock, or in a mode of ours.
pub(crate) async fn run_files(files: &[TestFile], mode: Option<Mode>, jobs: usize) -> Vec<FileRun> {
    let runs = files.iter().cloned().map(|file| async move {
        let name = file.name();
        // A task of its own, so that a panic is the fault of one file.
        let records = match tokio::spawn(async move { run_file(&file, mode).await }).await {
            Ok(Ok(records)) => records,
            Ok(Err(error)) => vec![broken(&name, error)],
            Err(panic) => vec![broken(&name, panic.to_string())],
        };
        FileRun { name, records }
    });
    stream::iter(runs).buffered(jobs).collect().await
}

/// Stands for a file that could not be run to its end.
fn broken(name: &str, error: String) -> RecordRun {
    RecordRun {
        location: name.to_owned(),
        sql: "(the whole file)".to_owned(),
        fault: Some(error.clone()),
        outcome: Some(Outcome::Error(error)),
        rules: Vec::new(),
    }
}

async fn run_file(file: &TestFile, mode: Option<Mode>) -> Result<Vec<RecordRun>, String> {
    let Some(test_context) = TestContext::try_new_for_test_file(&file.relative_path).await else {
        return Err("the runner has no context for this file".to_owned());
    };
    setup_scratch_dir(&file.relative_path).map_err(|error| error.to_string())?;
    if let Some(mode) = mode {
        mode.install(test_context.session_ctx());
    }
    let seen = Arc::new(Mutex::new(Seen::default()));
    let config_faults = Arc::new(StdMutex::new(Vec::new()));
    let mut runner = Runner::new(|| async {
        let engine = DataFusion::new(
            test_context.session_ctx().clone(),
            file.relative_path.clone(),
            ProgressBar::hidden(),
        )
        .with_config_change_errors(Arc::clone(&config_faults));
        let root = file.root.clone();
        Ok(Engine::new(engine, mode.is_some(), root, Arc::clone(&seen)))
    });
    runner.add_label("Datafusion");
    runner.with_column_validator(strict_column_validator);
    runner.with_normalizer(value_normalizer);
    runner.with_validator(df_value_validator);

    let mut runs = Vec::new();
    for record in parse(&file.path)? {
        if let Record::Halt { .. } = record {
            break;
        }
        let described = describe(&record);
        *seen.lock() = Seen::default();
        let result = runner.run_async(record).await;
        let Seen { outcome, rules } = seen.lock().clone();
        if let Some((location, sql)) = described {
            runs.push(RecordRun {
                location,
                sql,
                fault: result.err().map(|error| error.to_string()),
                outcome,
                rules,
            });
        }
    }
    runner.shutdown_async().await;
    drop(runner);
    // The runner holds every file to leaving the configuration as it found it.
    let faults = config_faults
        .lock()
        .map_err(|error| error.to_string())?
        .join("\n");
    runs.push(RecordRun {
        location: file.name(),
        sql: "(the configuration is left as it was)".to_owned(),
        outcome: Some(Outcome::Error(faults.clone())),
        fault: Some(faults).filter(|faults| !faults.is_empty()),
        rules: Vec::new(),
    });
    Ok(runs)
}

fn parse(
    path: &Path,
) -> Result<Vec<Record<<Engine as sqllogictest::AsyncDB>::ColumnType>>, String> {
    let path = path.canonicalize().map_err(|error| error.to_string())?;
    parse_file(&path).map_err(|error| error.to_string())
}

/// Where a record stands and what it runs; `None` for what runs nothing.
fn describe<T: sqllogictest::ColumnType>(record: &Record<T>) -> Option<(String, String)> {
    match record {
        Record::Statement { loc, sql, .. } | Record::Query { loc, sql, .. } => {
            Some((short(&loc.to_string()), sql.clone()))
        }
        Record::System { loc, command, .. } => Some((short(&loc.to_string()), command.clone())),
        _ => None,
    }
}

/// A location without the folder that all of them share.
fn short(location: &str) -> String {
    location
        .lines()
        .map(|line| match line.rsplit_once("test_files/") {
            Some((_, rest)) => rest.to_owned(),
            None => line.to_owned(),
        })
        .collect::<Vec<_>>()
        .join(", included at ")
}
