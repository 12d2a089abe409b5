//! The environment, which a process reads when it is asked to.

use std::process::Command;

use datafusion::error::Result;
use datafusion_parquet_prefetch::PrefetchSessionContext;
use rstest::rstest;

use super::settings;

/// Runs `environment_child` in a process with these variables, as a process can't change its own
/// safely, and returns what it prints.
fn in_environment(variables: &[(&str, &str)]) -> String {
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "options::environment::environment_child",
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
        ("DATAFUSION_EXECUTION_PARQUET_READ_AHEAD_BYTES", "1G"),
        (
            "DATAFUSION_EXECUTION_PARQUET_READ_AHEAD_CONDITIONAL",
            "NEVER",
        ),
        ("DATAFUSION_EXECUTION_PARQUET_READ_AHEAD_FILES", "0"),
        ("DATAFUSION_EXECUTION_PARQUET_MAX_REQUEST_BYTES", "NULL"),
        ("DATAFUSION_EXECUTION_PARQUET_MAX_REQUESTS", "12"),
        ("DATAFUSION_EXECUTION_BATCH_SIZE", "17"),
    ]);
    let expected = "from_env: [prefetch_size=20971520, read_ahead_bytes=1073741824, \
                    read_ahead_conditional=never, read_ahead_files=0, max_request_bytes=0, \
                    max_requests=12] and batch_size 17";
    assert!(out.contains(expected), "{out}");
    assert!(out.contains("new: [] and batch_size 8192"), "{out}");
    let out = in_environment(&[]);
    assert!(out.contains("from_env: [] and batch_size 8192"), "{out}");
}

/// Stock's own behaviour, in spite of its documentation: an error, not a warning.
#[rstest]
#[case("DATAFUSION_EXECUTION_PARQUET_PREFETCH_SIZE", "lots")]
#[case("DATAFUSION_EXECUTION_PARQUET_READ_AHEAD_BYTES", "-1")]
#[case("DATAFUSION_EXECUTION_PARQUET_READ_AHEAD_CONDITIONAL", "")]
#[case("DATAFUSION_EXECUTION_PARQUET_READ_AHEAD_FILES", "many")]
#[case("DATAFUSION_EXECUTION_PARQUET_MAX_REQUEST_BYTES", "0.5")]
#[case("DATAFUSION_EXECUTION_PARQUET_MAX_REQUESTS", "0")]
#[case("DATAFUSION_EXECUTION_BATCH_SIZE", "lots")]
fn a_bad_environment_variable_is_an_error(#[case] variable: &str, #[case] value: &str) {
    let out = in_environment(&[(variable, value)]);
    let line = out
        .lines()
        .find(|line| line.contains("from_env: "))
        .unwrap();
    assert!(
        !line.contains("and batch_size") && out.contains(&format!("'{value}'")),
        "{out}"
    );
    if variable.contains("PARQUET") {
        assert!(line.contains(variable), "{out}");
    }
}
