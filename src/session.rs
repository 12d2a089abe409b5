//! The session: where the options are set, and where format and rule are installed.

mod builder;
mod statement;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use datafusion::dataframe::DataFrame;
use datafusion::error::Result;
use datafusion::execution::SessionState;
use datafusion::execution::context::SQLOptions;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::{LogicalPlan, ResetVariable, SetVariable, Statement};
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::PrefetchOptions;

pub use builder::PrefetchSessionStateBuilderExt;

/// A [`SessionContext`] with prefetching installed, in which the options also go by the names next to
/// DataFusion's own: `datafusion.execution.parquet.prefetch_size`.
///
/// It derefs to the context it wraps. Its own [`sql`](Self::sql),
/// [`sql_with_options`](Self::sql_with_options) and
/// [`execute_logical_plan`](Self::execute_logical_plan) understand `SET`, `RESET` and `SHOW` of those
/// names, and leave everything else to the context. Stock refuses the names, so a function that takes a
/// `&SessionContext` knows the options only as `parquet_prefetch.*`, which work everywhere.
///
/// A clone shares the session, as a clone of a `SessionContext` does.
///
/// ```
/// use datafusion_parquet_prefetch::{PrefetchSessionContext, PrefetchSettings};
///
/// # #[tokio::main]
/// # async fn main() -> datafusion::error::Result<()> {
/// let ctx = PrefetchSessionContext::new();
/// ctx.sql("SET datafusion.execution.parquet.prefetch_size = '20 MiB'").await?;
/// let settings = PrefetchSettings::from_config(ctx.state().config_options());
/// assert_eq!(settings.to_string(), "prefetch_size=20971520");
/// ctx.sql("RESET datafusion.execution.parquet.prefetch_size").await?;
/// assert!(PrefetchSettings::from_config(ctx.state().config_options()).is_off());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PrefetchSessionContext {
    inner: SessionContext,
}

impl PrefetchSessionContext {
    /// A context with the default config and a runtime environment of its own.
    ///
    /// Environment variables are not read; see [`Self::from_env`].
    pub fn new() -> Self {
        Self::new_with_config(SessionConfig::new())
    }

    /// A context with this config and a runtime environment of its own.
    ///
    /// [`PrefetchOptions`] in the config are kept, others get the defaults.
    pub fn new_with_config(config: SessionConfig) -> Self {
        Self::new_with_config_rt(config, Arc::new(RuntimeEnv::default()))
    }

    /// A context with this config and this runtime environment.
    pub fn new_with_config_rt(config: SessionConfig, runtime_env: Arc<RuntimeEnv>) -> Self {
        let state = SessionStateBuilder::new()
            .with_config(config)
            .with_runtime_env(runtime_env)
            .with_default_features()
            .with_parquet_prefetch()
            .build();
        Self {
            inner: SessionContext::new_with_state(state),
        }
    }

    /// A context with this state, in which whatever is missing of options, format and rule is
    /// installed.
    ///
    /// If the rule is missing, the state is built anew from its parts, and statements prepared in it are
    /// lost.
    pub fn new_with_state(mut state: SessionState) -> Self {
        builder::install(&mut state);
        Self {
            inner: SessionContext::new_with_state(state),
        }
    }

    /// A context with the config from the environment: DataFusion's options, and ours.
    ///
    /// # Errors
    ///
    /// Those of [`PrefetchOptions::session_config_from_env`].
    pub fn from_env() -> Result<Self> {
        Ok(Self::new_with_config(
            PrefetchOptions::session_config_from_env()?,
        ))
    }

    /// The wrapped context, which shares the session.
    pub fn into_inner(self) -> SessionContext {
        self.inner
    }

    /// [`SessionContext::sql`], which also knows our options under `datafusion.execution.parquet`.
    ///
    /// # Errors
    ///
    /// Stock's, and a configuration error naming key and value if an option is set to something that
    /// it does not accept.
    pub async fn sql(&self, sql: &str) -> Result<DataFrame> {
        self.sql_with_options(sql, SQLOptions::new()).await
    }

    /// [`SessionContext::sql_with_options`], which also knows our options under
    /// `datafusion.execution.parquet`. Setting one is a statement, as it is for stock's own.
    ///
    /// # Errors
    ///
    /// Those of [`Self::sql`], and stock's for a plan that `options` do not allow.
    pub async fn sql_with_options(&self, sql: &str, options: SQLOptions) -> Result<DataFrame> {
        let state = self.inner.state();
        let dialect = state.config().options().sql_parser.dialect;
        let mut statement = state.sql_to_statement(sql, &dialect)?;
        statement::rewrite_statement(&mut statement, &state)?;
        let plan = Box::pin(state.statement_to_plan(statement)).await?;
        options.verify_plan(&plan)?;
        Box::pin(self.execute_logical_plan(plan)).await
    }

    /// [`SessionContext::execute_logical_plan`], which also knows `SET` and `RESET` of our options under
    /// `datafusion.execution.parquet`, directly or as a prepared statement that is executed.
    ///
    /// `SHOW` is a query by the time it is a plan: of those names only [`Self::sql`] can plan one.
    ///
    /// # Errors
    ///
    /// Those of [`Self::sql`].
    pub async fn execute_logical_plan(&self, plan: LogicalPlan) -> Result<DataFrame> {
        let effect = Effect::of(&plan);
        let plan = self.translate(&plan)?.unwrap_or(plan);
        let frame = Box::pin(self.inner.execute_logical_plan(plan)).await?;
        match effect {
            Effect::ReplacesRuntimeEnv => {
                builder::renew_rule(&mut self.inner.state_ref().write());
                Ok(frame)
            }
            Effect::NamesAnotherPlan => match self.translate(frame.logical_plan())? {
                Some(plan) => Box::pin(self.inner.execute_logical_plan(plan)).await,
                None => Ok(frame),
            },
            Effect::Other => Ok(frame),
        }
    }

    fn translate(&self, plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
        statement::translate_plan(plan, &self.inner.state_ref().read())
    }
}

/// What has to be seen to after stock has executed a plan.
enum Effect {
    /// `SET datafusion.runtime.*` gives the session another runtime environment, and the rule would go
    /// on with the one before.
    ReplacesRuntimeEnv,
    /// `EXECUTE` comes back with the prepared plan, which may be a statement for us.
    NamesAnotherPlan,
    Other,
}

impl Effect {
    fn of(plan: &LogicalPlan) -> Self {
        match plan {
            LogicalPlan::Statement(
                Statement::SetVariable(SetVariable { variable, .. })
                | Statement::ResetVariable(ResetVariable { variable }),
            ) if variable.starts_with("datafusion.runtime.") => Self::ReplacesRuntimeEnv,
            LogicalPlan::Statement(Statement::Execute(_)) => Self::NamesAnotherPlan,
            _ => Self::Other,
        }
    }
}

impl fmt::Debug for PrefetchSessionContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefetchSessionContext")
            .field("session_id", &self.inner.session_id())
            .finish_non_exhaustive()
    }
}

impl Default for PrefetchSessionContext {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for PrefetchSessionContext {
    type Target = SessionContext;

    fn deref(&self) -> &SessionContext {
        &self.inner
    }
}

/// Installs in the session, which other clones of `inner` share, whatever is missing of options, format
/// and rule; see [`PrefetchSessionContext::new_with_state`].
impl From<SessionContext> for PrefetchSessionContext {
    fn from(inner: SessionContext) -> Self {
        builder::install(&mut inner.state_ref().write());
        Self { inner }
    }
}

impl From<SessionState> for PrefetchSessionContext {
    fn from(state: SessionState) -> Self {
        Self::new_with_state(state)
    }
}

impl From<PrefetchSessionContext> for SessionContext {
    fn from(ctx: PrefetchSessionContext) -> Self {
        ctx.into_inner()
    }
}
