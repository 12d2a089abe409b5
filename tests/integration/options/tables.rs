//! What a table says, and what its scans go by, which is what `EXPLAIN` shows.

use datafusion::prelude::ParquetReadOptions;
use tempfile::TempDir;

use super::samples::Sample;
use super::{SAMPLES, Session};

/// A session with a file of two rows.
struct Fixture {
    session: Session,
    file: String,
    _dir: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let session = Session::prefetch();
        let file = dir.path().join("t.parquet").display().to_string();
        session
            .rows(&format!(
                "COPY (VALUES (1), (2)) TO '{file}' STORED AS PARQUET"
            ))
            .await;
        Self {
            session,
            file,
            _dir: dir,
        }
    }

    /// A statement that makes a table of the file.
    fn creation(&self, table: &str, options: &str) -> String {
        format!(
            "CREATE EXTERNAL TABLE {table} STORED AS PARQUET LOCATION '{}' OPTIONS ({options})",
            self.file
        )
    }

    async fn explain(&self, table: &str) -> String {
        let plan = self
            .session
            .rows(&format!("EXPLAIN FORMAT INDENT SELECT * FROM {table}"))
            .await;
        plan.concat().concat()
    }

    /// What the scan of a table shows of an option.
    async fn shown(&self, table: &str, sample: &Sample) -> Option<String> {
        let plan = self.explain(table).await;
        assert!(plan.contains("file_type=parquet"), "{plan}");
        let (_, rest) = plan.split_once(&format!(", {}=", sample.name))?;
        let value = rest.split(|c: char| c == ',' || c.is_whitespace()).next()?;
        Some(value.to_owned())
    }
}

/// `EXPLAIN` shows what differs from the default.
fn unless_default(sample: &Sample, value: &str) -> Option<String> {
    (value != sample.default).then(|| value.to_owned())
}

/// Options of a table that set those of `samples`.
fn options_of(samples: impl Iterator<Item = &'static Sample>) -> String {
    let options: Vec<_> = samples
        .map(|sample| format!("'format.{}' '{}'", sample.name, sample.word))
        .collect();
    options.join(", ")
}

/// What turns reading by us on, where the option itself does not.
fn turning_on(sample: &Sample) -> &'static str {
    match sample.name {
        "prefetch_size" | "read_ahead_bytes" => "",
        _ => ", 'format.prefetch_size' '1'",
    }
}

#[tokio::test]
async fn a_table_takes_its_options_in_sql() {
    let fixture = Fixture::new().await;
    for sample in &SAMPLES {
        let &Sample {
            name,
            word,
            literal,
            shown,
            ..
        } = sample;
        let mut accepted = vec![
            (format!("'format.{name}' '{word}'"), word),
            (format!("'format.{name}' {literal}"), shown),
            (format!("'FORMAT.{}' '{word}'", name.to_uppercase()), word),
            (
                format!("format.{name} '{word}', 'format.pruning' 'true'"),
                word,
            ),
            (format!("{name} {literal}"), shown),
        ];
        if word == "7" {
            accepted.push((format!("{name} {word}"), word));
        }
        if sample.is_size() {
            let zeros = ["''", "'NULL'", "NULL", "'0'", "0"];
            accepted.extend(zeros.map(|zero| (format!("'{name}' {zero}"), "0")));
        }
        for (options, value) in accepted {
            let options = options + turning_on(sample);
            fixture.session.rows(&fixture.creation("t", &options)).await;
            assert_eq!(
                fixture.shown("t", sample).await,
                unless_default(sample, value),
                "{options}"
            );
            let count = fixture.session.rows("SELECT count(*) FROM t").await;
            assert_eq!(count, [["2"]]);
            fixture.session.rows("DROP TABLE t").await;
        }

        let key = format!("format.{name}");
        for value in sample.bad().into_iter().chain(["default"]) {
            let create = fixture.creation("bad", &format!("{name} '{value}'"));
            sample.check_error(&fixture.session.error(&create).await, &key, value);
        }
        if !sample.is_size() {
            let create = fixture.creation("bad", &format!("{name} NULL"));
            sample.check_error(&fixture.session.error(&create).await, &key, "NULL");
        }
    }
}

#[tokio::test]
async fn a_table_takes_no_other_options() {
    let fixture = Fixture::new().await;
    for (options, part) in [
        ("'format.prefetch_sizes' 1", "prefetch_sizes"),
        ("'parquet_prefetch.prefetch_size' 1", "parquet_prefetch"),
    ] {
        let error = fixture
            .session
            .error(&fixture.creation("bad", options))
            .await;
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

/// Nothing is read by the format that writes, so nothing follows from them.
#[tokio::test]
async fn copy_accepts_the_options() {
    let fixture = Fixture::new().await;
    let copy = format!(
        "COPY (VALUES (1)) TO '{}.copy' STORED AS PARQUET OPTIONS ({})",
        fixture.file,
        options_of(SAMPLES.iter())
    );
    assert_eq!(fixture.session.rows(&copy).await, [["1"]]);
}

/// What counts is the table's word, else the session's at planning.
#[tokio::test]
async fn a_scan_goes_by_the_table_then_the_session() {
    for sample in &SAMPLES {
        let &Sample {
            name,
            default,
            word,
            literal,
            shown,
            ..
        } = sample;
        let fixture = Fixture::new().await;
        for (table, value) in [("own", word), ("at_default", default)] {
            let options = format!("'format.{name}' '{value}'");
            fixture
                .session
                .rows(&fixture.creation(table, &options))
                .await;
        }
        let silent = fixture.creation("silent", "");
        fixture
            .session
            .rows(silent.trim_end_matches(" OPTIONS ()"))
            .await;
        fixture
            .session
            .context()
            .register_parquet("registered", &fixture.file, ParquetReadOptions::default())
            .await
            .unwrap();
        if !turning_on(sample).is_empty() {
            fixture
                .session
                .rows("SET parquet_prefetch.prefetch_size = 1")
                .await;
        }

        let key = sample.key();
        for (set, of_session) in [
            (format!("RESET {key}"), default),
            (format!("SET {key} = {literal}"), shown),
            (format!("SET {key} = {word}"), word),
            (format!("SET {key} = '{default}'"), default),
        ] {
            fixture.session.rows(&set).await;
            for (table, expected) in [
                ("silent", of_session),
                ("own", word),
                ("at_default", default),
                ("registered", of_session),
            ] {
                assert_eq!(
                    fixture.shown(table, sample).await,
                    unless_default(sample, expected),
                    "{set}: {table}"
                );
            }
        }
    }
}

#[tokio::test]
async fn explain_shows_what_is_set_in_the_order_of_the_document() {
    let fixture = Fixture::new().await;
    let create = fixture.creation("t", &options_of(SAMPLES.iter().rev()));
    fixture.session.rows(&create).await;
    let plan = fixture.explain("t").await;
    let expected = ", prefetch_size=7, read_ahead_bytes=7, read_ahead_conditional=never, \
                    read_ahead_files=7, max_request_bytes=7, max_requests=7";
    assert!(plan.contains(expected), "{plan}");
}

/// The other options say how we read, and turn nothing on.
#[tokio::test]
async fn without_a_budget_the_plan_is_stocks() {
    let fixture = Fixture::new().await;
    let others = SAMPLES
        .iter()
        .filter(|sample| !turning_on(sample).is_empty());
    let create = fixture.creation("t", &options_of(others.clone()));
    fixture.session.rows(&create).await;
    for sample in others {
        let set = format!("SET {} = {}", sample.key(), sample.literal);
        fixture.session.rows(&set).await;
    }

    let stock = Session::stock();
    let create = format!(
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}'",
        fixture.file
    );
    stock.rows(&create).await;
    let expected = stock
        .rows("EXPLAIN FORMAT INDENT SELECT * FROM t")
        .await
        .concat()
        .concat();
    assert_eq!(fixture.explain("t").await, expected);
}
