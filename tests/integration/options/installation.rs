//! Installing options, format and rule in a session.

use std::sync::Arc;

use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;
use datafusion::prelude::SessionContext;
use datafusion_parquet_prefetch::{
    PrefetchOptions, PrefetchSessionContext, PrefetchSessionStateBuilderExt,
};
use tempfile::TempDir;

use super::{KEY, config, settings};

fn rule_names(ctx: &SessionContext) -> Vec<String> {
    let state = ctx.state();
    state
        .physical_optimizers()
        .iter()
        .map(|rule| rule.name().to_owned())
        .collect()
}

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
