//! The extension's key, in any context.

use rstest::rstest;

use super::{KEY, SAMPLES, Session};

#[rstest]
#[case::stock(Session::stock())]
#[case::prefetch(Session::prefetch())]
#[tokio::test]
async fn it_is_set_and_shown(#[case] session: Session) {
    assert!(session.settings().is_off());
    for sample in &SAMPLES {
        let key = sample.extension_key();
        let show = format!("SHOW {key}");
        assert_eq!(session.rows(&show).await, [[key.as_str(), sample.default]]);

        session
            .rows(&format!("SET {key} = {}", sample.literal))
            .await;
        let row = [key.as_str(), sample.shown];
        assert_eq!(session.value(sample), sample.shown);
        assert_eq!(session.rows(&show).await, [row]);
        let verbose = session.rows(&format!("{show} VERBOSE")).await;
        assert_eq!(verbose[0][..2], row);
        assert!(verbose[0][2].len() > 40, "{verbose:?}");

        let settings = "SELECT value FROM information_schema.df_settings WHERE name = ";
        assert_eq!(
            session.rows(&format!("{settings}'{key}'")).await,
            [[sample.shown]]
        );
        let all = session.rows("SHOW ALL").await;
        let ours: Vec<_> = all
            .iter()
            .filter(|row| row[0].ends_with(sample.name))
            .collect();
        assert_eq!(ours, [&row], "once, and under this key");
    }
}

#[tokio::test]
async fn setting_one_leaves_the_others() {
    for sample in &SAMPLES {
        let session = Session::stock();
        session
            .rows(&format!("SET {} = {}", sample.extension_key(), sample.word))
            .await;
        for other in &SAMPLES {
            let expected = if other.name == sample.name {
                sample.word
            } else {
                other.default
            };
            assert_eq!(session.value(other), expected, "after {}", sample.name);
        }
    }
}

/// What `docs/configuration.md` says about going back by the extension's key.
#[rstest]
#[case::stock(Session::stock())]
#[case::prefetch(Session::prefetch())]
#[tokio::test]
async fn it_is_cleared_as_far_as_stock_allows(#[case] session: Session) {
    for sample in &SAMPLES {
        let key = sample.extension_key();
        let set = format!("SET {key} = {}", sample.word);
        let zeros = sample.zeros.iter().map(|zero| (*zero, "0"));
        let defaults = ["DEFAULT", "'default'"].map(|text| (text, sample.default));
        for (literal, expected) in zeros.chain(defaults) {
            session.rows(&set).await;
            session.rows(&format!("SET {key} TO {literal}")).await;
            assert_eq!(session.value(sample), expected, "{key}: {literal}");
        }

        session.rows(&set).await;
        let error = session.error(&format!("SET {key} = NULL")).await;
        assert!(error.contains("Unsupported value Null"), "{error}");
        let error = session.error(&format!("RESET {key}")).await;
        assert!(
            error.contains("Could not find config namespace \"parquet_prefetch\""),
            "{error}"
        );
        assert_eq!(session.value(sample), sample.word);
    }
}

#[rstest]
#[case::stock(Session::stock(), "parquet_prefetch")]
#[case::prefetch(Session::prefetch(), "parquet_prefetch")]
#[case::datafusion_key(Session::prefetch(), "datafusion.execution.parquet")]
#[tokio::test]
async fn a_bad_value_fails_at_set(#[case] session: Session, #[case] namespace: &str) {
    for sample in &SAMPLES {
        let key = format!("{namespace}.{}", sample.name);
        session.rows(&format!("SET {key} = {}", sample.word)).await;
        for value in sample.bad() {
            let set = format!("SET {key} = '{value}'");
            sample.check_error(&session.error(&set).await, &key, value);
            // Refused when the statement is given, not when something is collected from it.
            assert!(session.sql(&set).await.is_err(), "{set}");
        }
        assert_eq!(session.value(sample), sample.word);
    }
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
