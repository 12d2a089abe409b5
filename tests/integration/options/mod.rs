//! The options from the outside: SQL in stock's context and in ours, environment, tables, document.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as tests may"
)]

mod datafusion_key;
mod document;
mod environment;
mod extension_key;
mod installation;
mod samples;
mod tables;

use std::sync::Arc;

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::config::ExtensionOptions;
use datafusion::error::Result;
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};
use datafusion_parquet_prefetch::{PrefetchOptions, PrefetchSessionContext, PrefetchSettings};

use samples::{SAMPLES, Sample};

const KEY: &str = "datafusion.execution.parquet.prefetch_size";
const EXTENSION_KEY: &str = "parquet_prefetch.prefetch_size";

/// One of stock's own keys that takes a number of bytes: whatever it allows, ours has to allow.
const STOCK_KEY: &str = "datafusion.execution.parquet.data_pagesize_limit";

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

    fn context(&self) -> &SessionContext {
        match self {
            Self::Stock(ctx) => ctx,
            Self::Prefetch(ctx) => ctx,
        }
    }

    fn settings(&self) -> PrefetchSettings {
        settings(self.context())
    }

    /// The value of an option, as it is shown.
    fn value(&self, sample: &Sample) -> String {
        let options = PrefetchOptions::from_config(self.context().state().config_options());
        let key = sample.extension_key();
        let mut entries = options.entries().into_iter();
        entries
            .find(|entry| entry.key == key)
            .unwrap()
            .value
            .unwrap()
    }
}

fn settings(ctx: &SessionContext) -> PrefetchSettings {
    PrefetchSettings::from_config(ctx.state().config_options())
}
