//! Why stock itself does not pass a record here.

use std::collections::HashSet;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use crate::run::RecordRun;

/// Finds the reasons of one file, whose records it has to be shown in order.
///
/// The test files name data of DataFusion's source tree that the crate does not carry. Tables over it cannot be made, or
/// are empty, and so is all that is made of them.
#[derive(Debug, Default)]
pub(crate) struct StockFailures {
    /// Tables and views without their data, in lower case.
    without_data: HashSet<String>,
}

/// A path in quotes that leads out of the crate, or to data that its tests would have to generate first.
static OUTSIDE: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"'((?:file://)?(?:\.\./|test_files/tpch/data|[^']*/\.\./)[^']*)'"));

/// What a statement makes or fills.
static MADE: LazyLock<Regex> = LazyLock::new(|| {
    pattern(concat!(
        r"(?is)^\s*(?:create\s+(?:or\s+replace\s+)?(?:unbounded\s+)?(?:external\s+)?(?:table|view)",
        r"(?:\s+if\s+not\s+exists)?|insert\s+into)\s+([\w.]+)",
    ))
});

static WORD: LazyLock<Regex> = LazyLock::new(|| pattern(r"\w+"));

#[expect(clippy::expect_used, reason = "all patterns are fixed")]
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a valid pattern")
}

impl StockFailures {
    /// Why stock fails `record`; `None` where it passes.
    pub(crate) fn reason(&mut self, record: &RecordRun) -> Option<String> {
        let outside = OUTSIDE
            .captures_iter(&record.sql)
            .filter_map(|found| found.get(1))
            .map(|path| path.as_str())
            .find(|path| !Path::new(path.trim_start_matches("file://")).exists());
        let is_about_one = WORD
            .find_iter(&record.sql)
            .any(|word| self.without_data.contains(&word.as_str().to_lowercase()));
        if (outside.is_some() || is_about_one)
            && let Some(made) = MADE.captures(&record.sql).and_then(|found| found.get(1))
        {
            let name = made.as_str().rsplit('.').next().unwrap_or_default();
            self.without_data.insert(name.to_lowercase());
        }
        let fault = record.fault.as_deref()?;
        Some(match outside {
            Some(path) => format!("{} is not in the crate", folder_of(path)),
            None if is_about_one => "is about a table whose data is not in the crate".to_owned(),
            None => fault.lines().take(12).collect::<Vec<_>>().join(" | "),
        })
    }
}

/// The part of an outside path that says which data it is of.
fn folder_of(path: &str) -> String {
    let parts: Vec<&str> = path
        .trim_start_matches("file://")
        .split('/')
        .filter(|part| *part != "..")
        .take(2)
        .collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sql: &str, fails: bool) -> RecordRun {
        RecordRun {
            location: "t.slt:1".to_owned(),
            sql: sql.to_owned(),
            fault: fails.then(|| "query result mismatch".to_owned()),
            outcome: None,
            rules: Vec::new(),
        }
    }

    #[test]
    fn what_is_made_of_missing_data_is_without_data_too() {
        let mut failures = StockFailures::default();
        for sql in [
            "CREATE EXTERNAL TABLE t (a INT) STORED AS CSV LOCATION '../../testing/data/absent.csv'",
            "create view v as select * from T",
            "INSERT INTO u SELECT * FROM v",
        ] {
            assert_eq!(failures.reason(&record(sql, false)), None);
        }
        for sql in [
            "SELECT a FROM t",
            "select count(*) from V",
            "EXPLAIN SELECT * FROM u",
        ] {
            assert_eq!(
                failures.reason(&record(sql, true)).unwrap(),
                "is about a table whose data is not in the crate"
            );
        }
        assert_eq!(failures.reason(&record("SELECT a FROM t", false)), None);
    }

    #[test]
    fn a_path_that_leads_out_is_named() {
        let mut failures = StockFailures::default();
        let sql = "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '../../parquet-testing/data/x.parquet'";
        assert_eq!(
            failures.reason(&record(sql, true)).unwrap(),
            "parquet-testing/data is not in the crate"
        );
    }

    #[test]
    fn anything_else_is_told_as_it_is() {
        let mut failures = StockFailures::default();
        assert_eq!(
            failures.reason(&record("SELECT 1", true)).unwrap(),
            "query result mismatch"
        );
    }
}
