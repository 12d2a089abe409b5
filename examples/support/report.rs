//! The table of results.

use std::fmt::Write;
use std::time::Duration;

use super::measure::Run;

const MIB: f64 = 1024.0 * 1024.0;

/// A query that was run on both sides.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// What the query is called.
    pub(crate) name: String,
    /// With prefetching off.
    pub(crate) off: Run,
    /// With prefetching on.
    pub(crate) on: Run,
    /// What differs between the answers, if anything.
    pub(crate) difference: Option<String>,
}

/// Figures of one side, of one query or of all.
#[derive(Debug, Default, Clone, Copy)]
struct Figures {
    plan_time: Duration,
    wall_time: Duration,
    rounds: u64,
    requests: u64,
    bytes: u64,
}

impl Figures {
    fn of<'a>(runs: impl IntoIterator<Item = &'a Run>) -> Self {
        runs.into_iter().fold(Self::default(), |sum, run| Self {
            plan_time: sum.plan_time + run.plan_time,
            wall_time: sum.wall_time + run.wall_time,
            rounds: sum.rounds + run.traffic.rounds,
            requests: sum.requests + run.traffic.requests,
            bytes: sum.bytes + run.traffic.bytes,
        })
    }
}

const HEADERS: [&str; 11] = [
    "query",
    "off s",
    "on s",
    "speed-up",
    "rounds off",
    "on",
    "requests off",
    "on",
    "MiB off",
    "on",
    "rows",
];

/// Prints the comparisons as a table with their totals, and the answers that differ below it.
pub(crate) fn table(comparisons: &[Comparison]) -> String {
    let mut lines = vec![HEADERS.map(str::to_owned)];
    for Comparison {
        name,
        off,
        on,
        difference,
    } in comparisons
    {
        let rows = match difference {
            None => off.answer.row_count().to_string(),
            Some(_) => "DIFFER".to_owned(),
        };
        lines.push(line(name, &Figures::of([off]), &Figures::of([on]), rows));
    }
    let off = Figures::of(comparisons.iter().map(|comparison| &comparison.off));
    let on = Figures::of(comparisons.iter().map(|comparison| &comparison.on));
    if comparisons.len() > 1 {
        lines.push(line("total", &off, &on, String::new()));
    }

    let mut text = layout(&lines);
    let _ = writeln!(
        text,
        "\nPlanning (listing, HEAD, schema, statistics), not counted above: off {:.2} s, on {:.2} s.",
        off.plan_time.as_secs_f64(),
        on.plan_time.as_secs_f64(),
    );
    for Comparison {
        name, difference, ..
    } in comparisons
    {
        if let Some(difference) = difference {
            let _ = writeln!(text, "\nThe answers of {name} differ: {difference}");
        }
    }
    text
}

fn line(name: &str, off: &Figures, on: &Figures, rows: String) -> [String; HEADERS.len()] {
    let seconds = |figures: &Figures| format!("{:.2}", figures.wall_time.as_secs_f64());
    #[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
    let mib = |figures: &Figures| format!("{:.1}", figures.bytes as f64 / MIB);
    let speed_up = off.wall_time.as_secs_f64() / on.wall_time.as_secs_f64().max(1e-9);
    [
        name.to_owned(),
        seconds(off),
        seconds(on),
        format!("{speed_up:.2}x"),
        off.rounds.to_string(),
        on.rounds.to_string(),
        off.requests.to_string(),
        on.requests.to_string(),
        mib(off),
        mib(on),
        rows,
    ]
}

pub(crate) fn layout<const N: usize>(lines: &[[String; N]]) -> String {
    let width = |column: usize| {
        lines
            .iter()
            .map(|line| line[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for line in lines {
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            let _ = match column {
                0 => write!(text, "{cell:<width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::Schema;

    use super::*;
    use crate::support::compare::Answer;
    use crate::support::latency_store::Traffic;

    fn run(milliseconds: u64, rounds: u64) -> Run {
        Run {
            plan_time: Duration::from_millis(100),
            wall_time: Duration::from_millis(milliseconds),
            traffic: Traffic {
                requests: rounds * 2,
                bytes: rounds << 20,
                rounds,
            },
            answer: Answer {
                schema: Arc::new(Schema::empty()),
                batches: Vec::new(),
            },
        }
    }

    fn comparison(name: &str, difference: Option<&str>) -> Comparison {
        let difference = difference.map(str::to_owned);
        Comparison {
            name: name.to_owned(),
            off: run(3000, 16),
            on: run(1000, 4),
            difference,
        }
    }

    #[test]
    fn figures_stand_under_their_headers() {
        let expected = "\
query  off s  on s  speed-up  rounds off  on  requests off  on  MiB off   on  rows
q1      3.00  1.00     3.00x          16   4            32   8     16.0  4.0     0
q22     3.00  1.00     3.00x          16   4            32   8     16.0  4.0     0
total   6.00  2.00     3.00x          32   8            64  16     32.0  8.0      

Planning (listing, HEAD, schema, statistics), not counted above: off 0.20 s, on 0.20 s.
";
        assert_eq!(
            table(&[comparison("q1", None), comparison("q22", None)]),
            expected
        );
    }

    #[test]
    fn answers_that_differ_cannot_be_overlooked() {
        let text = table(&[comparison("q1", Some("expected 1 rows, got 2"))]);
        assert!(text.contains("DIFFER"), "{text}");
        assert!(
            text.contains("The answers of q1 differ: expected 1 rows, got 2"),
            "{text}"
        );
    }
}
