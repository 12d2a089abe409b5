//! `SET`, `RESET` and `SHOW` of our options under `datafusion.execution.parquet`, turned into what
//! stock understands: the same statement about the extension's key.
//!
//! `SET` and `RESET` are turned as plans, so that a plan made elsewhere is understood too. What stock
//! refuses while planning has to be turned before: `SHOW` of a key it does not know, and `NULL`.

use datafusion::common::internal_datafusion_err;
use datafusion::error::Result;
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{LogicalPlan, ResetVariable, SetVariable, Statement};
use datafusion::sql::parser::{DFParser, Statement as DFStatement};
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectName, Set, Statement as SqlStatement, Value,
};

use crate::{OptionDefinition, PrefetchOptions};

/// Turns `SET` and `RESET` of one of our options; `None` for every other plan.
///
/// # Errors
///
/// A value that is not valid; the error names the key as the statement did.
pub(super) fn translate_plan(
    plan: &LogicalPlan,
    state: &SessionState,
) -> Result<Option<LogicalPlan>> {
    let (option, value) = match plan {
        LogicalPlan::Statement(Statement::SetVariable(SetVariable { variable, value })) => {
            let Some(option) = OptionDefinition::with_datafusion_key(variable) else {
                return Ok(None);
            };
            let mut options = PrefetchOptions::from_config(state.config_options());
            options.set_option(option, variable, value)?;
            (option, value.clone())
        }
        LogicalPlan::Statement(Statement::ResetVariable(ResetVariable { variable })) => {
            let Some(option) = OptionDefinition::with_datafusion_key(variable) else {
                return Ok(None);
            };
            (option, option.default_value())
        }
        _ => return Ok(None),
    };
    Ok(Some(LogicalPlan::Statement(Statement::SetVariable(
        SetVariable {
            variable: option.extension_key(),
            value,
        },
    ))))
}

/// Turns what stock's planner would refuse of our options, also inside `EXPLAIN` and `PREPARE`.
pub(super) fn rewrite_statement(
    mut statement: &mut DFStatement,
    state: &SessionState,
) -> Result<()> {
    while let DFStatement::Explain(explain) = statement {
        statement = explain.statement.as_mut();
    }
    let DFStatement::Statement(statement) = statement else {
        return Ok(());
    };
    let mut statement = statement.as_mut();
    while let SqlStatement::Explain {
        statement: inner, ..
    }
    | SqlStatement::Prepare {
        statement: inner, ..
    } = statement
    {
        statement = inner.as_mut();
    }
    match statement {
        SqlStatement::Set(Set::SingleAssignment {
            scope: None,
            hivevar: false,
            variable,
            values,
        }) if is_option(variable) => {
            if let [Expr::Value(value)] = values.as_mut_slice()
                && value.value == Value::Null
            {
                value.value = Value::SingleQuotedString("NULL".to_owned());
            }
        }
        // Without the information schema, stock has its own error to raise.
        SqlStatement::ShowVariable { variable } if state.config().information_schema() => {
            if let Some((option, verbose)) = shown_option(variable) {
                *statement = show_query(option, verbose)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Whether a statement sets one of our options: like stock, in any case, quoted or not.
fn is_option(variable: &ObjectName) -> bool {
    let parts: Option<Vec<_>> = variable
        .0
        .iter()
        .map(|part| part.as_ident().map(|ident| ident.value.to_lowercase()))
        .collect();
    parts.is_some_and(|parts| OptionDefinition::with_datafusion_key(&parts.join(".")).is_some())
}

/// The option a `SHOW` names, and whether it ends in `VERBOSE`: like stock, with the case of quoted
/// parts.
fn shown_option(variable: &[Ident]) -> Option<(&'static OptionDefinition, bool)> {
    let mut parts: Vec<_> = variable
        .iter()
        .map(|ident| match ident.quote_style {
            Some(_) => ident.value.clone(),
            None => ident.value.to_lowercase(),
        })
        .collect();
    let verbose = parts.pop_if(|last| last == "verbose").is_some();
    OptionDefinition::with_datafusion_key(&parts.join(".")).map(|option| (option, verbose))
}

/// The row of the extension's key, under the name that was asked for.
fn show_query(option: &OptionDefinition, verbose: bool) -> Result<SqlStatement> {
    let description = if verbose { ", description" } else { "" };
    let sql = format!(
        "SELECT '{}' AS name, value{description} FROM information_schema.df_settings \
         WHERE name = '{}'",
        option.datafusion_key(),
        option.extension_key()
    );
    match DFParser::parse_sql(&sql)?.pop_front() {
        Some(DFStatement::Statement(query)) => Ok(*query),
        other => Err(internal_datafusion_err!("Expected a query, got {other:?}")),
    }
}
