//! The same queries in several ways, side by side: how near each comes to a store without latency.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use datafusion::physical_plan::{ExecutionPlan, collect};

use super::Result;
use super::args::{Args, Latency};
use super::compare::{self, Answer};
use super::latency_store::Traffic;
use super::measure::{Figures, Side};
use super::progress::Progress;
use super::report::layout;

/// A way to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// Stock's scan on the store without latency: what no way of reading can be faster than.
    Floor,
    /// Stock's scan.
    Stock,
    /// Fetches are widened (`prefetch_size`).
    Prefetch,
    /// Reads ahead inside the file that is being decoded, from its first poll on.
    WithinFile,
    /// Reads ahead over files, from the execution on.
    ReadAhead,
    /// As `read-ahead`, on the store without latency: what it costs where there is nothing to gain.
    ReadAheadFloor,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Stock => "stock",
            Self::Prefetch => "prefetch",
            Self::WithinFile => "within-file",
            Self::ReadAhead => "read-ahead",
            Self::ReadAheadFloor => "read-ahead-floor",
        }
    }

    pub(crate) fn latency(self, latency: Latency) -> Latency {
        match self {
            Self::Floor | Self::ReadAheadFloor => Latency::None,
            _ => latency,
        }
    }

    /// The options that are set for it.
    pub(crate) fn settings(self, args: &Args) -> Vec<(&'static str, String)> {
        match self {
            Self::Floor | Self::Stock => Vec::new(),
            Self::Prefetch => vec![("prefetch_size", args.prefetch_size.clone())],
            Self::WithinFile => vec![
                ("read_ahead_bytes", args.read_ahead.clone()),
                ("read_ahead_files", "0".to_owned()),
                ("read_ahead_conditional", "always".to_owned()),
            ],
            Self::ReadAhead | Self::ReadAheadFloor => {
                vec![("read_ahead_bytes", args.read_ahead.clone())]
            }
        }
    }
}

/// One query in one mode: the fastest of its runs.
struct Run {
    plan: Duration,
    execute: Duration,
    traffic: Traffic,
    unused_bytes: usize,
    peak_bytes: usize,
    answer: Answer,
}

/// Figures of one mode over all queries.
#[derive(Default, Clone, Copy)]
struct Total {
    plan: Duration,
    execute: Duration,
    requests: u64,
    bytes: u64,
    unused_bytes: usize,
    peak_bytes: usize,
}

/// Runs `queries` in every mode, by turns, and returns whether all answers are equal.
///
/// # Errors
/// What a query says in a mode.
pub(crate) async fn compare_modes<'a>(
    args: &Args,
    sides: &[(Mode, Side)],
    queries: impl IntoIterator<Item = (String, &'a str)>,
    progress: &Progress,
) -> Result<(String, bool)> {
    let mut lines = vec![HEADERS.map(str::to_owned)];
    let mut totals = vec![Total::default(); sides.len()];
    let mut worst: Vec<(f64, String)> = vec![(f64::MIN, String::new()); sides.len()];
    let mut differences = String::new();
    for (name, sql) in queries {
        let mut runs: Vec<Option<Run>> = sides.iter().map(|_| None).collect();
        for _ in 0..args.repeat.get() {
            for ((mode, side), kept) in sides.iter().zip(&mut runs) {
                let label = format!("Running {name}, {}", mode.name());
                let fresh = progress.during(&label, run(side, sql)).await;
                let fresh = fresh.map_err(|e| format!("{name}, {}: {e}", mode.name()))?;
                if kept
                    .as_ref()
                    .is_none_or(|kept| fresh.execute < kept.execute)
                {
                    *kept = Some(fresh);
                }
            }
        }
        let runs: Vec<Run> = runs.into_iter().flatten().collect();
        let floor = sides.iter().position(|(mode, _)| *mode == Mode::Floor);
        let floor = floor.map(|at| runs[at].execute.as_secs_f64());
        for (i, ((mode, _), run)) in sides.iter().zip(&runs).enumerate() {
            if let Err(error) = compare::check_equal(&runs[0].answer, &run.answer) {
                let _ = writeln!(differences, "{name}, {}: {error}", mode.name());
            }
            let total = &mut totals[i];
            total.plan += run.plan;
            total.execute += run.execute;
            total.requests += run.traffic.requests;
            total.bytes += run.traffic.bytes;
            total.unused_bytes += run.unused_bytes;
            total.peak_bytes = total.peak_bytes.max(run.peak_bytes);
            let above = floor.map(|floor| run.execute.as_secs_f64() - floor);
            if let Some(above) = above.filter(|above| *above > worst[i].0) {
                worst[i] = (above, name.clone());
            }
            let rounds = run.traffic.rounds.to_string();
            let one = Total {
                plan: run.plan,
                execute: run.execute,
                requests: run.traffic.requests,
                bytes: run.traffic.bytes,
                unused_bytes: run.unused_bytes,
                peak_bytes: run.peak_bytes,
            };
            lines.push(line(&name, mode.name(), &one, above, &rounds));
        }
    }
    let by_mode = |wanted: Mode| {
        let at = sides.iter().position(|(mode, _)| *mode == wanted)?;
        Some(totals[at].execute.as_secs_f64())
    };
    for ((mode, _), total) in sides.iter().zip(&totals) {
        let above = by_mode(Mode::Floor).map(|floor| total.execute.as_secs_f64() - floor);
        lines.push(line("total", mode.name(), total, above, ""));
    }
    let mut text = layout(&lines);
    if let (Some(floor), Some(stock)) = (by_mode(Mode::Floor), by_mode(Mode::Stock)) {
        for (i, (mode, _)) in sides.iter().enumerate() {
            let left = (totals[i].execute.as_secs_f64() - floor) / (stock - floor).max(1e-9);
            let (above, query) = &worst[i];
            let _ = writeln!(
                text,
                "{:<16} leaves {:6.2} % of stock's latency penalty; the most above the floor: {above:.2} s, {query}",
                mode.name(),
                left * 100.0,
            );
        }
    }
    let all_equal = differences.is_empty();
    text.push_str(&differences);
    Ok((text, all_equal))
}

const HEADERS: [&str; 10] = [
    "query",
    "mode",
    "plan s",
    "exec s",
    "above",
    "requests",
    "rounds",
    "MiB",
    "unused MiB",
    "peak MiB",
];

fn line(
    query: &str,
    mode: &str,
    figures: &Total,
    above: Option<f64>,
    rounds: &str,
) -> [String; HEADERS.len()] {
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    [
        query.to_owned(),
        mode.to_owned(),
        format!("{:.2}", figures.plan.as_secs_f64()),
        format!("{:.2}", figures.execute.as_secs_f64()),
        above.map_or(String::new(), |above| format!("{above:.2}")),
        figures.requests.to_string(),
        rounds.to_owned(),
        mib(figures.bytes),
        mib(figures.unused_bytes as u64),
        mib(figures.peak_bytes as u64),
    ]
}

async fn run(side: &Side, sql: &str) -> Result<Run> {
    side.reset();
    let begin = Instant::now();
    let plan = side
        .session()
        .sql(sql)
        .await?
        .create_physical_plan()
        .await?;
    let plan_time = begin.elapsed();
    side.reset();
    let schema = plan.schema();
    let begin = Instant::now();
    let batches = collect(Arc::clone(&plan), side.session().task_ctx()).await?;
    let execute = begin.elapsed();
    let Figures {
        traffic,
        peak_bytes,
    } = side.figures();
    Ok(Run {
        plan: plan_time,
        execute,
        traffic,
        unused_bytes: unused_bytes(plan.as_ref()),
        peak_bytes,
        answer: Answer { schema, batches },
    })
}

/// What the scans of `plan` read in vain.
fn unused_bytes(plan: &dyn ExecutionPlan) -> usize {
    use datafusion_parquet_prefetch::metrics::{PREFETCH_UNUSED_BYTES, READ_AHEAD_UNUSED_BYTES};
    let own = plan.metrics().map_or(0, |metrics| {
        [PREFETCH_UNUSED_BYTES, READ_AHEAD_UNUSED_BYTES]
            .iter()
            .filter_map(|name| metrics.sum_by_name(name))
            .map(|value| value.as_usize())
            .sum()
    });
    let children = plan.children().into_iter();
    own + children
        .map(|child| unused_bytes(child.as_ref()))
        .sum::<usize>()
}
