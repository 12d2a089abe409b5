//! The options from the outside: SQL in stock's context and in ours, environment, tables, document.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as tests may"
)]

use std::process::Command;
use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::config::ConfigOptions;
use datafusion::error::Result;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::prelude::{DataFrame, ParquetReadOptions, SessionConfig, SessionContext};
use datafusion_parquet_prefetch::{
    PrefetchOptions, PrefetchSessionContext, PrefetchSessionStateBuilderExt, PrefetchSettings,
};
use rstest::rstest;
use tempfile::TempDir;

const KEY: &str = "datafusion.execution.parquet.prefetch_size";
const EXTENSION_KEY: &str = "parquet_prefetch.prefetch_size";

/// One of stock's own keys that takes a number of bytes: whatever it allows, ours has to allow.
const STOCK_KEY: &str = "datafusion.execution.parquet.data_pagesize_limit";

const DOCUMENT: &str = include_str!("../../docs/configuration.md");

fn config() -> SessionConfig {
    SessionConfig::new().with_information_schema(true)
}

/// Stock's context with the extension, and ours: statements about the extension's keys behave alike.
enum Session {
    Stock(SessionContext),
    Prefetch(PrefetchSessionContext),
}

impl Session {
    fn stock() -> Self {
        let config = config().with_option_extension(PrefetchOptions::new());
        Self::Stock(SessionContext::new_with_config(config))
    }

    fn prefetch() -> Self {
        Self::Prefetch(PrefetchSessionContext::new_with_config(config()))
    }

    async fn sql(&self, sql: &str) -> Result<DataFrame> {
        match self {
            Self::Stock(ctx) => ctx.sql(sql).await,
            Self::Prefetch(ctx) => ctx.sql(sql).await,
        }
    }

    /// Runs a statement to its end, as stock notices some errors only when the plan is executed.
    async fn run(&self, sql: &str) -> Result<(SchemaRef, Vec<Vec<String>>)> {
        let frame = self.sql(sql).await?;
        let schema = Arc::clone(frame.schema().inner());
        let mut rows = vec![];
        for batch in frame.collect().await? {
            assert_eq!(batch.schema().fields(), schema.fields(), "{sql}");
            let options = FormatOptions::default().with_null("NULL");
            let columns: Vec<_> = batch
                .columns()
                .iter()
                .map(|column| ArrayFormatter::try_new(column, &options).unwrap())
                .collect();
            rows.extend((0..batch.num_rows()).map(|row| {
                columns
                    .iter()
                    .map(|column| column.value(row).to_string())
                    .collect::<Vec<_>>()
            }));
        }
        Ok((schema, rows))
    }

    async fn rows(&self, sql: &str) -> Vec<Vec<String>> {
        self.run(sql).await.unwrap().1
    }

    async fn error(&self, sql: &str) -> String {
        match self.run(sql).await {
            Ok(_) => panic!("{sql} should be refused"),
            Err(error) => error.to_string(),
        }
    }

    fn settings(&self) -> PrefetchSettings {
        match self {
            Self::Stock(ctx) => settings(ctx),
            Self::Prefetch(ctx) => settings(ctx),
        }
    }

    fn prefetch_size(&self) -> u64 {
        self.settings().prefetch_size_bytes
    }
}

fn settings(ctx: &SessionContext) -> PrefetchSettings {
    PrefetchSettings::from_config(ctx.state().config_options())
}

fn rule_names(ctx: &SessionContext) -> Vec<String> {
    let state = ctx.state();
    state
        .physical_optimizers()
        .iter()
        .map(|rule| rule.name().to_owned())
        .collect()
}

// The extension's key, in any context

#[rstest]
#[case::stock(Session::stock())]
#[case::prefetch(Session::prefetch())]
#[tokio::test]
async fn the_extension_key_is_set_and_shown(#[case] session: Session) {
    assert!(session.settings().is_off());
    assert_eq!(
        session.rows(&format!("SHOW {EXTENSION_KEY}")).await,
        [[EXTENSION_KEY, "0"]]
    );

    session
        .rows("SET parquet_prefetch.prefetch_size = '20 MiB'")
        .await;
    assert_eq!(session.prefetch_size(), 20 << 20);
    assert_eq!(
        session.rows(&format!("SHOW {EXTENSION_KEY}")).await,
        [[EXTENSION_KEY, "20971520"]]
    );
    let verbose = session.rows(&format!("SHOW {EXTENSION_KEY} VERBOSE")).await;
    assert_eq!(verbose[0][..2], [EXTENSION_KEY, "20971520"]);
    assert!(verbose[0][2].contains("prefetch"), "{verbose:?}");

    let settings = "SELECT value FROM information_schema.df_settings WHERE name = ";
    assert_eq!(
        session.rows(&format!("{settings}'{EXTENSION_KEY}'")).await,
        [["20971520"]]
    );
    let all = session.rows("SHOW ALL").await;
    let ours: Vec<_> = all
        .iter()
        .filter(|row| row[0].contains("prefetch_size"))
        .collect();
    assert_eq!(ours, [&[EXTENSION_KEY, "20971520"]]);
}

/// What `docs/configuration.md` says about turning the option off again by the extension's key.
#[rstest]
#[case::stock(Session::stock())]
#[case::prefetch(Session::prefetch())]
#[tokio::test]
async fn the_extension_key_is_cleared_as_far_as_stock_allows(#[case] session: Session) {
    for value in ["0", "''", "'NULL'", "\"null\"", "DEFAULT", "'default'"] {
        session.rows("SET parquet_prefetch.prefetch_size = 7").await;
        session
            .rows(&format!("SET parquet_prefetch.prefetch_size TO {value}"))
            .await;
        assert!(session.settings().is_off(), "{value}");
    }

    session.rows("SET parquet_prefetch.prefetch_size = 7").await;
    let error = session
        .error("SET parquet_prefetch.prefetch_size = NULL")
        .await;
    assert!(error.contains("Unsupported value Null"), "{error}");
    let error = session.error("RESET parquet_prefetch.prefetch_size").await;
    assert!(
        error.contains("Could not find config namespace \"parquet_prefetch\""),
        "{error}"
    );
    assert_eq!(session.prefetch_size(), 7);
}

#[rstest]
#[case::stock(Session::stock(), EXTENSION_KEY)]
#[case::prefetch(Session::prefetch(), EXTENSION_KEY)]
#[case::datafusion_key(Session::prefetch(), KEY)]
#[tokio::test]
async fn a_bad_value_fails_at_set(#[case] session: Session, #[case] key: &str) {
    session.rows(&format!("SET {key} = 7")).await;
    for value in [
        "lots",
        "-1",
        "1.5",
        "NaN",
        "true",
        "20 XB",
        "18446744073709551616",
        "0.1K",
    ] {
        let error = session.error(&format!("SET {key} = '{value}'")).await;
        for part in [
            format!("'{key}'"),
            format!("'{value}'"),
            "whole number of bytes".to_owned(),
        ] {
            assert!(error.contains(&part), "{part} is not in: {error}");
        }
        // Refused when the statement is given, not when something is collected from it.
        assert!(
            session
                .sql(&format!("SET {key} = '{value}'"))
                .await
                .is_err()
        );
    }
    assert_eq!(session.prefetch_size(), 7);
}

#[rstest]
#[case::stock(Session::stock())]
#[case::prefetch(Session::prefetch())]
#[tokio::test]
async fn an_unknown_option_is_refused(#[case] session: Session) {
    let error = session
        .error("SET parquet_prefetch.prefetch_sizes = 1")
        .await;
    assert!(error.contains("parquet_prefetch.prefetch_sizes"), "{error}");
    assert!(
        error.contains("expected one of: parquet_prefetch.prefetch_size"),
        "{error}"
    );
    for statement in ["SET {} = 1", "RESET {}", "SHOW {}"] {
        let unknown = statement.replace("{}", "datafusion.execution.parquet.prefetch_sizes");
        let stock = Session::stock().error(&unknown).await;
        assert_eq!(session.error(&unknown).await, stock);
    }
}

#[tokio::test]
async fn stock_refuses_the_datafusion_key() {
    let session = Session::stock();
    for statement in ["SET {} = 1", "RESET {}", "SHOW {}"] {
        session.error(&statement.replace("{}", KEY)).await;
    }
}

// The key next to DataFusion's own, in ours

/// Statements that set a key to 7, or that stock refuses for its own keys. `{key}` is the key, `{KEY}`
/// the same in capitals, `{"key"}` with each part quoted, `{"KEY"}` both.
const SETTING: &[&str] = &[
    "SET {key} = 7",
    "SET {key} = 7;",
    "SET {key} TO 7",
    "set {key} to '7'",
    "SET {KEY} = 7",
    "SET {\"key\"} = 7",
    "SET {\"KEY\"} = 7",
    "SET \"{key}\" = 7",
    "SET \"{KEY}\" = '7'",
    "SET {key} = +7",
    "SET {key} = + 7",
    "SET {key} = \"7\"",
    "SET {key} = $$7$$",
    "SET {key} = E'7'",
    "SET {key} = U&'7'",
    "SET {key} = (7)",
    "SET {key} = 7 + 0",
    "SET {key} = 7, 8",
    "SET {key} = 7x",
    "SET {key} 7",
    "SET {key}",
    "SET ({key}) = (7)",
    "SET '{key}' = 7",
    "SET {key} = -7",
    "SET {key} = - 7",
    "SET {key} = 7.5",
    "SET {key} = true",
    "SET {key} = false",
    "SET {key} = off",
    "SET {key} = 'x'",
    "SET {key} = $1",
    "SET {key} = ?",
    "SET {key} = 1; SET {key} = 7",
    "SET SESSION {key} = 7",
    "SET LOCAL {key} = 7",
    "SET GLOBAL {key} = 7",
    "SET catalog.{key} = 7",
];

fn spell(template: &str, key: &str) -> String {
    let quoted = |key: &str| {
        let parts: Vec<_> = key.split('.').map(|part| format!("\"{part}\"")).collect();
        parts.join(".")
    };
    template
        .replace("{\"key\"}", &quoted(key))
        .replace("{\"KEY\"}", &quoted(&key.to_uppercase()))
        .replace("{key}", key)
        .replace("{KEY}", &key.to_uppercase())
}

#[rstest]
#[tokio::test]
async fn set_has_every_spelling_of_stocks_own_keys(
    #[values("generic", "postgresql", "mysql", "duckdb", "snowflake")] dialect: &str,
) {
    let mut accepted = 0;
    for template in SETTING {
        let (stock, ours) = (Session::stock(), Session::prefetch());
        for session in [&stock, &ours] {
            session
                .rows(&format!("SET datafusion.sql_parser.dialect = '{dialect}'"))
                .await;
        }
        let expected = stock.run(&spell(template, STOCK_KEY)).await;
        let actual = ours.run(&spell(template, KEY)).await;
        assert_eq!(
            actual.is_ok(),
            expected.is_ok(),
            "{template}: {actual:?}, {expected:?}"
        );
        assert_eq!(
            ours.prefetch_size(),
            if actual.is_ok() { 7 } else { 0 },
            "{template}"
        );
        accepted += usize::from(actual.is_ok());
    }
    assert!(accepted >= 12, "only {accepted} spellings are accepted");
}

#[rstest]
#[case::once("RESET {key}")]
#[case::semicolon("RESET {key};")]
#[case::capitals("reset {KEY}")]
#[case::quoted_parts("RESET {\"key\"}")]
#[case::quoted_capitals("RESET {\"KEY\"}")]
#[case::quoted("RESET \"{key}\"")]
#[case::text("RESET '{KEY}'")]
#[case::nothing("RESET")]
#[case::equals("RESET {key} = 1")]
#[case::more("RESET {key}.more")]
#[case::prepared("PREPARE p AS RESET {key}")]
#[tokio::test]
async fn reset_has_every_spelling_of_stocks_own_keys(#[case] template: &str) {
    let (stock, ours) = (Session::stock(), Session::prefetch());
    ours.rows(&format!("SET {KEY} = 7")).await;
    let expected = stock.run(&spell(template, STOCK_KEY)).await;
    let actual = ours.run(&spell(template, KEY)).await;
    assert_eq!(actual.is_ok(), expected.is_ok(), "{actual:?}, {expected:?}");
    assert_eq!(ours.prefetch_size(), if actual.is_ok() { 0 } else { 7 });
}

#[rstest]
#[case::once("SHOW {key}")]
#[case::semicolon("SHOW {key};")]
#[case::capitals("show {KEY}")]
#[case::quoted_parts("SHOW {\"key\"}")]
#[case::quoted("SHOW \"{key}\"")]
#[case::quoted_capitals("SHOW {\"KEY\"}")]
#[case::verbose("SHOW {key} VERBOSE")]
#[case::verbose_quoted("SHOW \"{key}\" verbose")]
#[case::verbose_quoted_capitals("SHOW {key} \"VERBOSE\"")]
#[case::text("SHOW '{key}'")]
#[case::more("SHOW {key}.more")]
#[case::two("SHOW {key} {key}")]
#[case::session("SHOW SESSION {key}")]
#[case::describe("DESCRIBE {key}")]
#[tokio::test]
async fn show_has_every_spelling_of_stocks_own_keys(
    #[case] template: &str,
    #[values("generic", "mysql", "postgresql")] dialect: &str,
) {
    let (stock, ours) = (Session::stock(), Session::prefetch());
    stock.rows(&format!("SET {STOCK_KEY} = 7")).await;
    ours.rows(&format!("SET {KEY} = 7")).await;
    for session in [&stock, &ours] {
        session
            .rows(&format!("SET datafusion.sql_parser.dialect = '{dialect}'"))
            .await;
    }
    let expected = stock.run(&spell(template, STOCK_KEY)).await;
    let actual = ours.run(&spell(template, KEY)).await;
    match (expected, actual) {
        (Ok((expected_schema, expected)), Ok((schema, actual))) => {
            assert_eq!(schema, expected_schema);
            assert_eq!((expected.len(), actual.len()), (1, 1));
            assert_eq!(expected[0][..2], [STOCK_KEY, "7"]);
            assert_eq!(actual[0][..2], [KEY, "7"]);
        }
        (Err(expected), Err(actual)) => {
            let expected = expected.to_string().replace(STOCK_KEY, KEY);
            let stock_key = STOCK_KEY.to_uppercase();
            assert_eq!(
                actual.to_string(),
                expected.replace(&stock_key, &KEY.to_uppercase())
            );
        }
        (expected, actual) => panic!("{actual:?}, but stock has {expected:?}"),
    }
}

#[tokio::test]
async fn show_needs_the_information_schema_as_in_stock() {
    let ours = Session::Prefetch(PrefetchSessionContext::new());
    let stock = Session::Stock(SessionContext::new());
    assert_eq!(
        ours.error(&format!("SHOW {KEY}")).await,
        stock.error(&format!("SHOW {STOCK_KEY}")).await
    );
}

#[tokio::test]
async fn null_empty_zero_and_default_turn_it_off() {
    let session = Session::prefetch();
    for value in [
        "NULL", "null", "'NULL'", "''", "0", "'0 MiB'", "DEFAULT", "default",
    ] {
        session.rows(&format!("SET {KEY} = 7")).await;
        session.rows(&format!("SET {KEY} = {value}")).await;
        assert!(session.settings().is_off(), "{value}");
        assert_eq!(
            session.rows(&format!("SHOW {KEY}")).await,
            [[KEY, "0"]],
            "{value}"
        );
    }
}

#[tokio::test]
async fn prepared_statements_work() {
    let session = Session::prefetch();
    session
        .rows(&format!("PREPARE turn_on AS SET {KEY} = '20 MiB'"))
        .await;
    session
        .rows(&format!("PREPARE turn_off AS SET {KEY} = NULL"))
        .await;
    session.rows(&format!("PREPARE look AS SHOW {KEY}")).await;
    session
        .rows(&format!("PREPARE look_closely AS SHOW {KEY} VERBOSE"))
        .await;
    session
        .rows(&format!("PREPARE bad AS SET {KEY} = 'lots'"))
        .await;
    assert!(session.settings().is_off(), "preparing sets nothing");

    for _ in 0..2 {
        session.rows("EXECUTE turn_on").await;
        assert_eq!(session.rows("EXECUTE look").await, [[KEY, "20971520"]]);
        session.rows("EXECUTE turn_off()").await;
        assert_eq!(session.rows("EXECUTE look").await, [[KEY, "0"]]);
    }
    assert_eq!(session.rows("EXECUTE look_closely").await[0].len(), 3);
    let error = session.error("EXECUTE bad").await;
    assert!(error.contains(KEY) && error.contains("'lots'"), "{error}");

    session.rows("DEALLOCATE turn_on").await;
    let error = session.error("EXECUTE turn_on").await;
    assert!(
        error.contains("Prepared statement 'turn_on' does not exist"),
        "{error}"
    );
    session.rows("PREPARE one(INT) AS SELECT $1 + 1").await;
    assert_eq!(session.rows("EXECUTE one(41)").await, [["42"]]);
}

#[tokio::test]
async fn explain_sees_through() {
    let session = Session::prefetch();
    for statement in [
        "EXPLAIN SHOW {}",
        "EXPLAIN ANALYZE SHOW {}",
        "PREPARE e AS EXPLAIN SHOW {}",
    ] {
        let rows = session.rows(&statement.replace("{}", KEY)).await;
        assert_eq!(
            rows.is_empty(),
            statement.starts_with("PREPARE"),
            "{statement}"
        );
    }
    assert!(!session.rows("EXECUTE e").await.is_empty());
}

#[tokio::test]
async fn sql_options_count_as_for_stocks_own_keys() {
    let ours = PrefetchSessionContext::new_with_config(config());
    let stock = SessionContext::new_with_config(config());
    let options = || SQLOptions::new().with_allow_statements(false);
    for template in [
        "SET {key} = 7",
        "RESET {key}",
        "PREPARE p AS SET {key} = 7",
        "EXECUTE p",
    ] {
        let actual = ours
            .sql_with_options(&spell(template, KEY), options())
            .await;
        let expected = stock
            .sql_with_options(&spell(template, STOCK_KEY), options())
            .await;
        assert_eq!(
            actual.unwrap_err().to_string(),
            expected.unwrap_err().to_string()
        );
    }
    assert!(settings(&ours).is_off());
    let show = ours
        .sql_with_options(&format!("SHOW {KEY}"), options())
        .await
        .unwrap();
    assert_eq!(show.count().await.unwrap(), 1);
    let allowed = SQLOptions::new()
        .with_allow_ddl(false)
        .with_allow_dml(false);
    ours.sql_with_options(&format!("SET {KEY} = 7"), allowed)
        .await
        .unwrap();
    assert_eq!(settings(&ours).prefetch_size_bytes, 7);
}

#[tokio::test]
async fn a_plan_made_elsewhere_is_understood() {
    let ctx = PrefetchSessionContext::new();
    for (sql, bytes) in [
        (format!("SET {KEY} = '1.5G'"), 3 << 29),
        (format!("RESET {KEY}"), 0),
        (format!("SET {EXTENSION_KEY} = 5"), 5),
    ] {
        let plan = ctx.state().create_logical_plan(&sql).await.unwrap();
        ctx.execute_logical_plan(plan).await.unwrap();
        assert_eq!(settings(&ctx).prefetch_size_bytes, bytes, "{sql}");
    }
}

#[tokio::test]
async fn everything_else_is_untouched() {
    let session = Session::prefetch();
    session
        .rows("SET datafusion.execution.batch_size = 17")
        .await;
    assert_eq!(
        session.rows("SHOW datafusion.execution.batch_size").await,
        [["datafusion.execution.batch_size", "17"]]
    );
    session.rows("RESET datafusion.execution.batch_size").await;
    session.rows("CREATE TABLE t AS VALUES (1), (2)").await;
    assert_eq!(session.rows("SELECT count(*) FROM t").await, [["2"]]);
    // The text of a query is not a statement about our key.
    assert_eq!(
        session.rows(&format!("SELECT 'SHOW {KEY}' AS x")).await[0].len(),
        1
    );
}

#[tokio::test]
async fn a_later_set_counts_for_every_handle() {
    let ctx = PrefetchSessionContext::new();
    let planned_before = ctx.state();
    let clone = ctx.clone();
    clone.sql(&format!("SET {KEY} = 7")).await.unwrap();
    let plain: SessionContext = ctx.clone().into();
    assert_eq!(settings(&plain).prefetch_size_bytes, 7);
    plain
        .sql("SET parquet_prefetch.prefetch_size = 8")
        .await
        .unwrap();
    assert_eq!(settings(&ctx).prefetch_size_bytes, 8);
    assert!(PrefetchSettings::from_config(planned_before.config_options()).is_off());
}

#[test]
fn a_config_without_the_extension_has_the_defaults() {
    assert!(PrefetchSettings::from_config(&ConfigOptions::new()).is_off());
}

// Environment

/// Runs `environment_child` in a process with these variables, as a process can't change its own
/// safely, and returns what it prints.
fn in_environment(variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "options::environment_child",
            "--ignored",
            "--nocapture",
        ])
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && stdout.contains("1 passed"),
        "{stdout}"
    );
    stdout
}

#[test]
#[ignore = "run by the tests of the environment, in a process of its own"]
fn environment_child() {
    let show = |session: Result<PrefetchSessionContext>| match session {
        Ok(ctx) => format!(
            "[{}] and batch_size {}",
            settings(&ctx),
            ctx.state().config_options().execution.batch_size
        ),
        Err(error) => error.to_string(),
    };
    println!("from_env: {}", show(PrefetchSessionContext::from_env()));
    println!("new: {}", show(Ok(PrefetchSessionContext::new())));
}

#[test]
fn the_environment_is_read_where_stock_reads_its_own() {
    let out = in_environment(&[
        ("DATAFUSION_EXECUTION_PARQUET_PREFETCH_SIZE", "20 MiB"),
        ("DATAFUSION_EXECUTION_BATCH_SIZE", "17"),
    ]);
    assert!(
        out.contains("from_env: [prefetch_size=20971520] and batch_size 17"),
        "{out}"
    );
    assert!(out.contains("new: [] and batch_size 8192"), "{out}");
    let out = in_environment(&[]);
    assert!(out.contains("from_env: [] and batch_size 8192"), "{out}");
}

/// Stock's own behaviour, in spite of its documentation: an error, not a warning.
#[rstest]
#[case("DATAFUSION_EXECUTION_PARQUET_PREFETCH_SIZE")]
#[case("DATAFUSION_EXECUTION_BATCH_SIZE")]
fn a_bad_environment_variable_is_an_error(#[case] variable: &str) {
    let out = in_environment(&[(variable, "lots")]);
    let line = out
        .lines()
        .find(|line| line.contains("from_env: "))
        .unwrap();
    assert!(
        !line.contains("and batch_size") && out.contains("'lots'"),
        "{out}"
    );
    if variable.contains("PREFETCH") {
        assert!(line.contains(variable), "{out}");
    }
}

// Installation

#[tokio::test]
async fn the_builder_installs_before_or_after_the_default_features() {
    let dir = TempDir::new().unwrap();
    let builders = [
        SessionStateBuilder::new()
            .with_parquet_prefetch()
            .with_default_features(),
        SessionStateBuilder::new()
            .with_default_features()
            .with_parquet_prefetch(),
        SessionStateBuilder::new_with_default_features()
            .with_parquet_prefetch()
            .with_parquet_prefetch(),
    ];
    for (i, builder) in builders.into_iter().enumerate() {
        let ctx = SessionContext::new_with_state(builder.build());
        ctx.sql("SET parquet_prefetch.prefetch_size = 7")
            .await
            .unwrap();
        assert_eq!(settings(&ctx).prefetch_size_bytes, 7);

        let names = rule_names(&ctx);
        let ours: Vec<_> = (0..names.len())
            .filter(|&i| names[i] == "parquet_prefetch")
            .collect();
        let pushdown = names
            .iter()
            .position(|name| name == "FilterPushdown")
            .unwrap();
        assert_eq!(ours, [pushdown - 1], "{names:?}");

        // Stock's factory refuses the option.
        let path = dir.path().join(format!("{i}.parquet"));
        let copy = format!(
            "COPY (VALUES (1)) TO '{}' STORED AS PARQUET OPTIONS ('format.prefetch_size' '7')",
            path.display()
        );
        ctx.sql(&copy).await.unwrap().collect().await.unwrap();
        assert!(path.exists());
    }
}

#[tokio::test]
async fn the_builder_keeps_what_is_there() {
    let config = config().with_option_extension(PrefetchOptions::new().with_prefetch_size_bytes(9));
    let state = SessionStateBuilder::new_with_default_features()
        .with_config(config)
        .with_physical_optimizer_rule(Arc::new(SanityCheckPlan::new()))
        .with_parquet_prefetch()
        .build();
    let ctx = SessionContext::new_with_state(state);
    assert_eq!(settings(&ctx).prefetch_size_bytes, 9);
    let mut names = rule_names(&ctx);
    names.retain(|name| name != "parquet_prefetch");
    let mut expected = rule_names(&SessionContext::new());
    expected.push("SanityCheckPlan".to_owned());
    assert_eq!(names, expected);
}

#[tokio::test]
async fn a_context_that_exists_can_be_wrapped() {
    let stock = SessionContext::new_with_config(config());
    stock.sql("CREATE TABLE t AS VALUES (1)").await.unwrap();
    let before = (
        stock.session_id(),
        stock.state().session_id().to_owned(),
        rule_names(&stock),
    );
    let catalogs = stock.catalog_names();

    let ctx = PrefetchSessionContext::from(stock.clone());
    ctx.sql(&format!("SET {KEY} = 7")).await.unwrap();
    assert_eq!(
        settings(&stock).prefetch_size_bytes,
        7,
        "the session is shared"
    );
    let mut names = rule_names(&stock);
    names.retain(|name| name != "parquet_prefetch");
    assert_eq!(
        (ctx.session_id(), ctx.state().session_id().to_owned(), names),
        before
    );
    assert_eq!(ctx.catalog_names(), catalogs);
    assert!(ctx.state().config().create_default_catalog_and_schema());
    assert_eq!(ctx.table("t").await.unwrap().count().await.unwrap(), 1);
}

#[tokio::test]
async fn wrapping_does_not_make_a_catalog() {
    let stock = SessionContext::new();
    stock
        .sql("SET datafusion.catalog.default_catalog = 'elsewhere'")
        .await
        .unwrap();
    let ctx = PrefetchSessionContext::from(stock);
    assert!(ctx.catalog("elsewhere").is_none());
}

#[tokio::test]
async fn wrapping_again_changes_nothing() {
    let ctx = PrefetchSessionContext::new();
    ctx.sql("PREPARE p AS SELECT 1").await.unwrap();
    ctx.sql(&format!("SET {KEY} = 7")).await.unwrap();
    let names = rule_names(&ctx);
    let again = PrefetchSessionContext::from(SessionContext::from(ctx));
    assert_eq!(rule_names(&again), names);
    assert_eq!(settings(&again).prefetch_size_bytes, 7);
    again.sql("EXECUTE p").await.unwrap();
    let again = PrefetchSessionContext::from(again.state());
    assert_eq!(settings(&again).prefetch_size_bytes, 7);
    again.sql("EXECUTE p").await.unwrap();
}

/// Stock gives the session another runtime environment; nobody may go on with the one before.
#[tokio::test]
async fn the_runtime_environment_can_be_replaced() {
    let ctx = PrefetchSessionContext::new_with_config(config());
    ctx.sql(&format!("SET {KEY} = 7")).await.unwrap();
    let names = rule_names(&ctx);
    for statement in ["SET {} = '100M'", "RESET {}"] {
        let before = Arc::downgrade(&ctx.runtime_env());
        assert!(before.upgrade().is_some());
        ctx.sql(&statement.replace("{}", "datafusion.runtime.memory_limit"))
            .await
            .unwrap();
        assert!(before.upgrade().is_none(), "{statement}");
        assert_eq!(rule_names(&ctx), names);
        assert_eq!(settings(&ctx).prefetch_size_bytes, 7);
    }
}

// Tables

#[tokio::test]
async fn a_table_takes_its_options_in_sql() {
    let dir = TempDir::new().unwrap();
    let session = Session::prefetch();
    let file = dir.path().join("t.parquet").display().to_string();
    session
        .rows(&format!(
            "COPY (VALUES (1), (2)) TO '{file}' STORED AS PARQUET"
        ))
        .await;
    let options = [
        "'format.prefetch_size' '20971520'",
        "'format.prefetch_size' 20971520",
        "'FORMAT.Prefetch_Size' '20 MiB'",
        "format.prefetch_size '20 MiB', 'format.pruning' 'true'",
        "prefetch_size '20 MiB'",
        "'prefetch_size' ''",
        "'prefetch_size' 'NULL'",
        "'prefetch_size' NULL",
        "'prefetch_size' '0'",
    ];
    for (i, options) in options.iter().enumerate() {
        session
            .rows(&format!(
                "CREATE EXTERNAL TABLE t{i} STORED AS PARQUET LOCATION '{file}' OPTIONS ({options})"
            ))
            .await;
        assert_eq!(
            session.rows(&format!("SELECT count(*) FROM t{i}")).await,
            [["2"]]
        );
    }
    let refused = [
        ("'format.prefetch_size' 'lots'", "'format.prefetch_size'"),
        ("prefetch_size '-1'", "'format.prefetch_size'"),
        ("prefetch_size 'default'", "'format.prefetch_size'"),
        ("'format.prefetch_sizes' 1", "prefetch_sizes"),
        ("'parquet_prefetch.prefetch_size' 1", "parquet_prefetch"),
    ];
    for (options, part) in refused {
        let error = session
            .error(&format!(
                "CREATE EXTERNAL TABLE bad STORED AS PARQUET LOCATION '{file}' OPTIONS ({options})"
            ))
            .await;
        assert!(error.contains(part), "{part} is not in: {error}");
    }
}

/// What a scan goes by is what `EXPLAIN` shows: the table's word, else the session's at planning.
#[tokio::test]
async fn a_scan_goes_by_the_table_then_the_session() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("t.parquet").display().to_string();
    let ctx = PrefetchSessionContext::new_with_config(config());
    let session = Session::Prefetch(ctx.clone());
    session
        .rows(&format!(
            "COPY (VALUES (1), (2)) TO '{file}' STORED AS PARQUET"
        ))
        .await;
    for (name, options) in [
        ("silent", ""),
        ("own", "OPTIONS ('format.prefetch_size' '11')"),
        ("off", "OPTIONS ('format.prefetch_size' '0')"),
    ] {
        let location = format!("STORED AS PARQUET LOCATION '{file}'");
        session
            .rows(&format!(
                "CREATE EXTERNAL TABLE {name} {location} {options}"
            ))
            .await;
    }
    ctx.register_parquet("registered", &file, ParquetReadOptions::default())
        .await
        .unwrap();

    for (set, expected) in [
        (format!("RESET {KEY}"), [None, Some(11), None, None]),
        (format!("SET {KEY} = 7"), [Some(7), Some(11), None, Some(7)]),
        (format!("SET {KEY} = 8"), [Some(8), Some(11), None, Some(8)]),
        (format!("SET {KEY} = 0"), [None, Some(11), None, None]),
    ] {
        session.rows(&set).await;
        for (name, expected) in ["silent", "own", "off", "registered"].iter().zip(expected) {
            let plan = session
                .rows(&format!("EXPLAIN FORMAT INDENT SELECT * FROM {name}"))
                .await;
            let plan = plan.concat().concat();
            let shown = expected.map(|bytes| format!("prefetch_size={bytes}"));
            let shown = shown.as_deref().unwrap_or("file_type=parquet");
            assert!(plan.contains(shown), "{set}: {plan}");
            assert_eq!(
                plan.contains("prefetch_size"),
                expected.is_some(),
                "{set}: {plan}"
            );
        }
    }
}

// The document

/// The cells of the table of options: every row whose first cell is a name in code type.
fn documented() -> Vec<Vec<&'static str>> {
    DOCUMENT
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|row| row.split(" | ").map(str::trim).collect::<Vec<_>>())
        .filter(|cells| cells.len() == 7)
        .skip_while(|cells| cells[0] != "Option")
        .skip(2)
        .collect()
}

#[test]
fn the_document_lists_the_options() {
    let expected: Vec<_> = PrefetchOptions::definitions()
        .iter()
        .map(|option| {
            [
                format!("`{}`", option.name()),
                format!(
                    "`{}`, `{}`",
                    option.datafusion_key(),
                    option.extension_key()
                ),
                format!("`{}`", option.table_key()),
                format!("`{}`", option.environment_variable()),
                option.kind().to_owned(),
                format!("`{}`", option.default_value()),
                option.description().to_owned(),
            ]
        })
        .collect();
    assert_eq!(documented(), expected);
}

/// Every option has its section, which says what it really takes.
#[test]
fn the_document_states_every_peak() {
    for option in PrefetchOptions::definitions() {
        let heading = format!("\n### `{}`\n", option.name());
        let section = DOCUMENT.split(&heading).nth(1).unwrap_or_default();
        let section = section.split("\n## ").next().unwrap_or_default();
        for part in ["**Unit**", "**Exception**", "**Peak**"] {
            assert!(section.contains(part), "{} lacks {part}", option.name());
        }
    }
}

/// Runs the SQL of the document, in order, on local files.
#[tokio::test]
async fn the_sql_of_the_document_works() {
    let dir = TempDir::new().unwrap();
    let session = Session::prefetch();
    let hits = dir.path().join("hits").display().to_string();
    session
        .rows(&format!(
            "COPY (VALUES (1), (2)) TO '{hits}/' STORED AS PARQUET"
        ))
        .await;
    let blocks: Vec<_> = DOCUMENT
        .split("```sql\n")
        .skip(1)
        .map(|block| block.split("```").next().unwrap())
        .collect();
    assert!(
        blocks.len() >= 3,
        "the document has {} blocks of SQL",
        blocks.len()
    );
    for statement in blocks.iter().flat_map(|block| block.split_inclusive(";\n")) {
        session
            .rows(&statement.replace("s3://bucket/hits", &hits))
            .await;
    }
    assert_eq!(session.rows("SELECT count(*) FROM hits").await, [["2"]]);
}
