//! Installing the options, the format and the rule in a session.

use std::sync::Arc;

use datafusion::common::GetExt;
use datafusion::datasource::file_format::FileFormatFactory;
use datafusion::datasource::file_format::parquet::ParquetFormatFactory;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::prelude::SessionConfig;

use crate::{PrefetchOptions, PrefetchRule, PrefetchingParquetFormatFactory};

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;
type Factory = Arc<dyn FileFormatFactory>;

/// The stock rules that ask a scan to take over a filter, a sort, a limit or a projection, or that
/// split it. What they push into a scan, a later replacement of the scan would have to carry over.
const PUSHING_RULES: &[&str] = &[
    "FilterPushdown",
    "EnsureRequirements",
    "ProjectionPushdown",
    "LimitPushdown",
    "PushdownSort",
    "FilterPushdown(Post)",
];

/// Installs prefetching in a session that is being built.
pub trait PrefetchSessionStateBuilderExt {
    /// Installs the options, the Parquet format and the optimizer rule.
    ///
    /// - [`PrefetchOptions`] become an extension of the session's config; options that are there
    ///   already are kept.
    /// - [`PrefetchingParquetFormatFactory`] takes the place of stock's `parquet` factory, with the
    ///   options stock's had. A `parquet` factory of another kind is kept: the rule sees to its scans.
    /// - [`PrefetchRule`] is put in front of the first physical optimizer rule that pushes something
    ///   into a scan; other rules keep their order. It works with the builder's runtime environment.
    ///
    /// Call it last, at least after `with_config`, `with_runtime_env`, `with_file_formats` and
    /// `with_physical_optimizer_rules`, each of which replaces what this puts in. It may stand before
    /// or after `with_default_features`. Calling it again is harmless, and renews the rule.
    ///
    /// ```
    /// use datafusion::execution::session_state::SessionStateBuilder;
    /// use datafusion::prelude::SessionContext;
    /// use datafusion_parquet_prefetch::PrefetchSessionStateBuilderExt;
    ///
    /// let state = SessionStateBuilder::new_with_default_features()
    ///     .with_parquet_prefetch()
    ///     .build();
    /// let ctx = SessionContext::new_with_state(state);
    /// ```
    ///
    /// In the plain `SessionContext` of this example the options go by their keys in
    /// `parquet_prefetch`. Its rule keeps the runtime environment it was built with, and so does not
    /// notice `SET datafusion.runtime.*`. [`PrefetchSessionContext`](crate::PrefetchSessionContext) has
    /// neither restriction.
    fn with_parquet_prefetch(self) -> Self;
}

impl PrefetchSessionStateBuilderExt for SessionStateBuilder {
    fn with_parquet_prefetch(mut self) -> Self {
        let runtime_env = Arc::clone(self.runtime_env().get_or_insert_default());
        install_options(self.config().get_or_insert_default());
        install_factory(self.file_formats().get_or_insert_default());
        let rule: Rule = Arc::new(PrefetchRule::new(runtime_env));
        // Rules given one by one run after all others, which is too late for ours.
        if let Some(rules) = self.physical_optimizer_rules() {
            rules.retain(|other| other.name() != rule.name());
        }
        let optimizer = self
            .physical_optimizers()
            .get_or_insert_with(PhysicalOptimizer::new);
        install_rule(&mut optimizer.rules, rule);
        self
    }
}

/// Installs in a state that is built already whatever is missing.
pub(super) fn install(state: &mut SessionState) {
    install_options(state.config_mut());
    let factory = state.get_file_format_factory(&parquet_extension());
    if let Some(factory) = prefetching_factory(factory.as_ref())
        && let Err(error) = state.register_file_format(factory, true)
    {
        // Overwriting cannot be refused; should that change, the rule still does its work.
        log::warn!("Could not register the prefetching Parquet format: {error}");
    }
    let name = PrefetchRule::new(Arc::clone(state.runtime_env()))
        .name()
        .to_owned();
    if !state
        .physical_optimizers()
        .iter()
        .any(|rule| rule.name() == name)
    {
        renew_rule(state);
    }
}

/// Gives a state a rule that works with the runtime environment the state has now.
///
/// A state does not let go of its rules, so it is built anew from its parts. The builder keeps all of
/// them but the session id, which is put back, and prepared statements, which are lost.
pub(super) fn renew_rule(state: &mut SessionState) {
    let mut parts = state.clone();
    // The catalogs are there; the builder is not to make a default one that the user removed.
    let create_default = parts.config().create_default_catalog_and_schema();
    set_create_default(parts.config_mut(), false);
    let mut renewed = SessionStateBuilder::new_from_existing(parts)
        .with_session_id(state.session_id().to_owned())
        .with_parquet_prefetch()
        .build();
    set_create_default(renewed.config_mut(), create_default);
    *state = renewed;
}

fn set_create_default(config: &mut SessionConfig, create: bool) {
    config
        .options_mut()
        .catalog
        .create_default_catalog_and_schema = create;
}

fn install_options(config: &mut SessionConfig) {
    if config
        .options()
        .extensions
        .get::<PrefetchOptions>()
        .is_none()
    {
        config
            .options_mut()
            .extensions
            .insert(PrefetchOptions::new());
    }
}

/// Of several factories for one extension the first one counts, so ours has to take stock's place
/// rather than be added.
fn install_factory(factories: &mut Vec<Factory>) {
    let parquet = parquet_extension();
    let current = factories
        .iter_mut()
        .find(|factory| factory.get_ext().eq_ignore_ascii_case(&parquet));
    if let Some(ours) = prefetching_factory(current.as_deref()) {
        match current {
            Some(current) => *current = ours,
            None => factories.push(ours),
        }
    }
}

/// Our factory, to replace the current one with; `None` if the current one is to stay.
fn prefetching_factory(current: Option<&Factory>) -> Option<Factory> {
    let ours = match current {
        None => PrefetchingParquetFormatFactory::new(),
        Some(current) => match &current.downcast_ref::<ParquetFormatFactory>()?.options {
            None => PrefetchingParquetFormatFactory::new(),
            Some(options) => PrefetchingParquetFormatFactory::new_with_options(options.clone()),
        },
    };
    Some(Arc::new(ours))
}

fn parquet_extension() -> String {
    ParquetFormatFactory::new().get_ext()
}

/// Puts our rule where it already is, else in front of the first rule that pushes something into a
/// scan, else in front of all.
fn install_rule(rules: &mut Vec<Rule>, ours: Rule) {
    let is_ours = |rule: &Rule| rule.name() == ours.name();
    if let Some(current) = rules.iter().position(is_ours) {
        rules[current] = ours;
        return;
    }
    let first_pushing = rules
        .iter()
        .position(|rule| PUSHING_RULES.contains(&rule.name()));
    rules.insert(first_pushing.unwrap_or(0), ours);
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::config::TableParquetOptions;
    use datafusion::execution::runtime_env::RuntimeEnv;
    use datafusion::physical_optimizer::aggregate_statistics::AggregateStatistics;
    use datafusion::physical_optimizer::sanity_checker::SanityCheckPlan;

    fn ours() -> Rule {
        Arc::new(PrefetchRule::new(Arc::new(RuntimeEnv::default())))
    }

    fn names(rules: &[Rule]) -> Vec<&str> {
        rules.iter().map(|rule| rule.name()).collect()
    }

    fn stock_rules() -> Vec<Rule> {
        PhysicalOptimizer::new().rules
    }

    /// Should stock rename a rule, ours would silently move to the front.
    #[test]
    fn stock_has_every_pushing_rule() {
        let stock = stock_rules();
        for name in PUSHING_RULES {
            assert!(
                names(&stock).contains(name),
                "{name} is not in {:?}",
                names(&stock)
            );
        }
    }

    #[test]
    fn the_rule_goes_before_the_first_that_pushes() {
        let mut rules = stock_rules();
        install_rule(&mut rules, ours());
        install_rule(&mut rules, ours());
        let at = rules
            .iter()
            .position(|rule| rule.name() == ours().name())
            .unwrap();
        assert_eq!(rules[at + 1].name(), "FilterPushdown");
        rules.remove(at);
        assert_eq!(names(&rules), names(&stock_rules()));
    }

    #[test]
    fn other_rule_lists_are_kept() {
        let mut rules: Vec<Rule> = vec![
            Arc::new(AggregateStatistics::new()),
            Arc::new(SanityCheckPlan::new()),
        ];
        install_rule(&mut rules, ours());
        assert_eq!(
            names(&rules),
            [ours().name(), "aggregate_statistics", "SanityCheckPlan"]
        );
    }

    #[test]
    fn a_rule_added_one_by_one_is_moved() {
        let mut builder = SessionStateBuilder::new()
            .with_physical_optimizer_rule(ours())
            .with_physical_optimizer_rule(Arc::new(SanityCheckPlan::new()))
            .with_parquet_prefetch();
        assert_eq!(
            names(builder.physical_optimizer_rules().as_ref().unwrap()),
            ["SanityCheckPlan"]
        );
    }

    #[test]
    fn only_stocks_factory_is_replaced() {
        let mut options = TableParquetOptions::default();
        options.global.pushdown_filters = true;
        let mut factories: Vec<Factory> =
            vec![Arc::new(ParquetFormatFactory::new_with_options(options))];
        install_factory(&mut factories);
        assert!(factories[0].is::<PrefetchingParquetFormatFactory>());
        let installed = Arc::clone(&factories[0]);
        install_factory(&mut factories);
        assert_eq!(factories.len(), 1);
        assert!(Arc::ptr_eq(&factories[0], &installed));
        assert!(
            format!("{installed:?}").contains("pushdown_filters: true"),
            "{installed:?}"
        );
    }
}
