//! The document, held against the options in the code.

use datafusion_parquet_prefetch::PrefetchOptions;
use tempfile::TempDir;

use super::Session;

const DOCUMENT: &str = include_str!("../../../docs/configuration.md");

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

/// Every option has its section: a limit's says what it really takes, a choice's what there is to
/// choose from.
#[test]
fn the_document_explains_every_option() {
    for option in PrefetchOptions::definitions() {
        let heading = format!("\n### `{}`\n", option.name());
        let section = DOCUMENT.split(&heading).nth(1).unwrap_or_default();
        let section = section.split("\n##").next().unwrap_or_default();
        let parts = match option.kind() {
            "choice" => ["**`always`**", "**`never`**", "**`adaptive`**"],
            _ => ["**Unit**", "**Exception**", "**Peak**"],
        };
        for part in parts {
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
