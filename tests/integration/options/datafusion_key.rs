//! The key next to DataFusion's own, in a [`PrefetchSessionContext`].

use datafusion::config::ConfigOptions;
use datafusion::execution::context::SQLOptions;
use datafusion::prelude::SessionContext;
use datafusion_parquet_prefetch::{PrefetchSessionContext, PrefetchSettings};
use rstest::rstest;

use super::{EXTENSION_KEY, KEY, SAMPLES, STOCK_KEY, Session, config, settings};

/// Statements that set a key to a word, or that stock refuses for its own keys. `{key}` is the key,
/// `{KEY}` the same in capitals, `{"key"}` with each part quoted, `{"KEY"}` both; `{word}` is the word.
const SETTING: &[&str] = &[
    "SET {key} = {word}",
    "SET {key} = {word};",
    "SET {key} TO {word}",
    "set {key} to '{word}'",
    "SET {KEY} = {word}",
    "SET {\"key\"} = {word}",
    "SET {\"KEY\"} = {word}",
    "SET \"{key}\" = {word}",
    "SET \"{KEY}\" = '{word}'",
    "SET {key} = +{word}",
    "SET {key} = + {word}",
    "SET {key} = \"{word}\"",
    "SET {key} = $${word}$$",
    "SET {key} = E'{word}'",
    "SET {key} = U&'{word}'",
    "SET {key} = ({word})",
    "SET {key} = {word} + 0",
    "SET {key} = {word}, {word}",
    "SET {key} = {word}x",
    "SET {key} {word}",
    "SET {key}",
    "SET ({key}) = ({word})",
    "SET '{key}' = {word}",
    "SET {key} = -{word}",
    "SET {key} = - {word}",
    "SET {key} = {word}.5",
    "SET {key} = true",
    "SET {key} = false",
    "SET {key} = off",
    "SET {key} = 'x'",
    "SET {key} = $1",
    "SET {key} = ?",
    "SET {key} = {word}; SET {key} = {word}",
    "SET SESSION {key} = {word}",
    "SET LOCAL {key} = {word}",
    "SET GLOBAL {key} = {word}",
    "SET catalog.{key} = {word}",
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
    for sample in &SAMPLES {
        let (stock_key, stock_word) = sample.stock;
        let mut accepted = 0;
        for template in SETTING {
            let (stock, ours) = (Session::stock(), Session::prefetch());
            for session in [&stock, &ours] {
                session
                    .rows(&format!("SET datafusion.sql_parser.dialect = '{dialect}'"))
                    .await;
            }
            let expected = spell(template, stock_key).replace("{word}", stock_word);
            let actual = spell(template, &sample.key()).replace("{word}", sample.word);
            let expected = stock.run(&expected).await;
            let is_set = match ours.run(&actual).await {
                Ok(_) => sample.word,
                Err(_) => sample.default,
            };
            assert_eq!(
                is_set == sample.word,
                expected.is_ok(),
                "{actual}: {expected:?}"
            );
            assert_eq!(ours.value(sample), is_set, "{actual}");
            accepted += usize::from(expected.is_ok());
        }
        // A sign goes with numbers only.
        let enough = if sample.word == "7" { 12 } else { 10 };
        assert!(accepted >= enough, "only {accepted} spellings are accepted");
    }
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
    for sample in &SAMPLES {
        let key = sample.key();
        let (stock, ours) = (Session::stock(), Session::prefetch());
        ours.rows(&format!("SET {key} = {}", sample.word)).await;
        let expected = stock.run(&spell(template, STOCK_KEY)).await;
        let actual = ours.run(&spell(template, &key)).await;
        assert_eq!(actual.is_ok(), expected.is_ok(), "{actual:?}, {expected:?}");
        let is_set = if actual.is_ok() {
            sample.default
        } else {
            sample.word
        };
        assert_eq!(ours.value(sample), is_set, "{key}");
    }
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
    for sample in &SAMPLES {
        let key = sample.key();
        let (stock, ours) = (Session::stock(), Session::prefetch());
        stock.rows(&format!("SET {STOCK_KEY} = 7")).await;
        ours.rows(&format!("SET {key} = {}", sample.word)).await;
        for session in [&stock, &ours] {
            session
                .rows(&format!("SET datafusion.sql_parser.dialect = '{dialect}'"))
                .await;
        }
        let expected = stock.run(&spell(template, STOCK_KEY)).await;
        let actual = ours.run(&spell(template, &key)).await;
        match (expected, actual) {
            (Ok((expected_schema, expected)), Ok((schema, actual))) => {
                assert_eq!(schema, expected_schema);
                assert_eq!((expected.len(), actual.len()), (1, 1));
                assert_eq!(expected[0][..2], [STOCK_KEY, "7"]);
                assert_eq!(actual[0][..2], [key.as_str(), sample.word]);
            }
            (Err(expected), Err(actual)) => {
                let expected = expected.to_string().replace(STOCK_KEY, &key);
                let stock_key = STOCK_KEY.to_uppercase();
                assert_eq!(
                    actual.to_string(),
                    expected.replace(&stock_key, &key.to_uppercase())
                );
            }
            (expected, actual) => panic!("{actual:?}, but stock has {expected:?}"),
        }
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

/// `NULL`, which stock refuses for every key, is a value like the text.
#[tokio::test]
async fn null_zero_and_default_mean_what_they_mean_for_the_option() {
    let session = Session::prefetch();
    for sample in &SAMPLES {
        let key = sample.key();
        let set = format!("SET {key} = {}", sample.word);
        let nulls: &[_] = if sample.is_size() {
            &["NULL", "null"]
        } else {
            &[]
        };
        let zeros = sample.zeros.iter().chain(nulls).map(|zero| (*zero, "0"));
        let defaults = ["DEFAULT", "default", "' Default '"].map(|text| (text, sample.default));
        for (literal, expected) in zeros.chain(defaults) {
            session.rows(&set).await;
            session.rows(&format!("SET {key} = {literal}")).await;
            assert_eq!(session.value(sample), expected, "{key}: {literal}");
            assert_eq!(
                session.rows(&format!("SHOW {key}")).await,
                [[key.as_str(), expected]]
            );
        }
        if !sample.is_size() {
            session.rows(&set).await;
            let error = session.error(&format!("SET {key} = NULL")).await;
            sample.check_error(&error, &key, "NULL");
            assert_eq!(session.value(sample), sample.word);
        }
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
