//! Where our output says more than stock's by intention, and how it is brought into stock's form.

use std::fmt;
use std::sync::{Arc, LazyLock};

use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion_parquet_prefetch::{PrefetchOptions, PrefetchRule, metrics};
use regex::Regex;

/// A reason for our output to differ from stock's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// `EXPLAIN` shows the settings of a scan that prefetches, after what stock shows: whoever reads a plan has to see
    /// that the scan is not stock's.
    SettingsInExplain,
    /// `EXPLAIN ANALYZE` shows our metrics among stock's.
    OwnMetrics,
    /// `EXPLAIN VERBOSE` names every optimizer rule, and so ours.
    OwnOptimizer,
    /// `SHOW ALL` and `information_schema.df_settings` list our options, as they list those of every extension.
    OwnOptions,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SettingsInExplain => "settings in EXPLAIN",
            Self::OwnMetrics => "own metrics",
            Self::OwnOptimizer => "own optimizer rule",
            Self::OwnOptions => "own options",
        })
    }
}

/// `, prefetch_size=1048576`, as it follows the rest of a scan's line.
static SETTINGS: LazyLock<Regex> = LazyLock::new(|| {
    let names: Vec<String> = PrefetchOptions::definitions()
        .iter()
        .map(|option| regex::escape(option.name()))
        .collect();
    pattern(&format!(r", (?:{})=[^,\]\s]+", names.join("|")))
});

/// One metric of ours, with the comma after it, or before it at the end of the list.
static METRICS: LazyLock<(Regex, Regex)> = LazyLock::new(|| {
    let names: Vec<String> = metrics::NAMES
        .iter()
        .map(|name| regex::escape(name))
        .collect();
    let metric = format!(r"\b(?:{})=[^,\]]*", names.join("|"));
    (
        pattern(&format!("{metric}, ")),
        pattern(&format!("(?:, )?{metric}")),
    )
});

/// What `EXPLAIN VERBOSE` says of the plan after our rule, where that changed nothing.
static OPTIMIZER_RULE: LazyLock<String> = LazyLock::new(|| {
    let rule = PrefetchRule::new(Arc::new(RuntimeEnv::default()));
    format!("physical_plan after {}", rule.name())
});

#[expect(clippy::expect_used, reason = "all patterns are made of escaped names")]
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a valid pattern")
}

/// Brings `rows` into the form that stock gives them, and says by which rules. In order, without repetition.
pub(crate) fn normalize(rows: &mut Vec<Vec<String>>) -> Vec<Rule> {
    let mut rules = Vec::new();
    let count = rows.len();
    rows.retain(|row| !row.first().is_some_and(|name| is_own_option(name)));
    if rows.len() < count {
        rules.push(Rule::OwnOptions);
    }
    let count = rows.len();
    rows.retain(|row| {
        !row.first()
            .is_some_and(|name| *name == *OPTIMIZER_RULE && row.len() == 2)
    });
    if rows.len() < count {
        rules.push(Rule::OwnOptimizer);
    }
    for cell in rows.iter_mut().flatten() {
        if !cell.contains("DataSourceExec") {
            continue;
        }
        let without = METRICS.0.replace_all(cell, "");
        let without = METRICS.1.replace_all(&without, "").into_owned();
        if without != *cell {
            *cell = without;
            rules.push(Rule::OwnMetrics);
        }
        let without = SETTINGS.replace_all(cell, "").into_owned();
        if without != *cell {
            *cell = without;
            rules.push(Rule::SettingsInExplain);
        }
    }
    rules.sort_unstable();
    rules.dedup();
    rules
}

fn is_own_option(name: &str) -> bool {
    PrefetchOptions::definitions()
        .iter()
        .any(|option| option.extension_key() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalized(cells: &[&str]) -> (Vec<String>, Vec<Rule>) {
        let mut rows = vec![cells.iter().map(|&cell| cell.to_owned()).collect()];
        let rules = normalize(&mut rows);
        (rows.pop().unwrap_or_default(), rules)
    }

    #[test]
    fn settings_of_a_scan_are_taken_out() {
        let (cells, rules) = normalized(&[
            "03)DataSourceExec: file_groups={1 group: [[a]]}, file_type=parquet, prefetch_size=1048576",
        ]);
        assert_eq!(
            cells,
            ["03)DataSourceExec: file_groups={1 group: [[a]]}, file_type=parquet"]
        );
        assert_eq!(rules, [Rule::SettingsInExplain]);
    }

    #[test]
    fn metrics_are_taken_out_wherever_they_stand() {
        let own = metrics::NAMES;
        for (list, left) in [
            (format!("{}=0, a=1", own[0]), "a=1"),
            (format!("a=1, {}=2, b=3", own[1]), "a=1, b=3"),
            (format!("a=1, {}=12.5 KB", own[2]), "a=1"),
            (format!("{}=0, {}=1", own[0], own[1]), ""),
        ] {
            let (cells, rules) = normalized(&[&format!("DataSourceExec: x, metrics=[{list}]")]);
            assert_eq!(cells, [format!("DataSourceExec: x, metrics=[{left}]")]);
            assert_eq!(rules, [Rule::OwnMetrics]);
        }
    }

    #[test]
    fn own_options_are_not_listed_and_others_are() {
        let mut rows = vec![
            vec!["parquet_prefetch.prefetch_size".to_owned(), "0".to_owned()],
            vec!["parquet_prefetch.other".to_owned(), "0".to_owned()],
        ];
        assert_eq!(normalize(&mut rows), [Rule::OwnOptions]);
        assert_eq!(rows.len(), 1);
    }

    #[test]
    fn our_optimizer_rule_is_taken_out_where_it_changed_nothing() {
        let row = |name: &str, plan: &str| vec![name.to_owned(), plan.to_owned()];
        let mut rows = vec![
            row("physical_plan after join_selection", "SAME TEXT AS ABOVE"),
            row(OPTIMIZER_RULE.as_str(), "SAME TEXT AS ABOVE"),
        ];
        assert_eq!(normalize(&mut rows), [Rule::OwnOptimizer]);
        assert_eq!(rows.len(), 1);
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        for cell in [
            "prefetch_size=1",
            "FilterExec: prefetch_size=1",
            "DataSourceExec: x, fetch=3",
        ] {
            let (cells, rules) = normalized(&[cell]);
            assert_eq!(
                (cells.as_slice(), rules.len()),
                ([cell.to_owned()].as_slice(), 0)
            );
        }
    }
}
