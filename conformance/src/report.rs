//! What came of the runs, side by side.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::engine::Outcome;
use crate::mode::Mode;
use crate::normalize::Rule;
use crate::run::{FileRun, RecordRun};
use crate::stock_failures::StockFailures;

/// Stock's run of all files, and ours beside it.
pub(crate) struct Report {
    stock: Vec<FileRun>,
    modes: Vec<(Mode, Vec<Tally>)>,
    failures: Vec<String>,
    rules: BTreeMap<Rule, usize>,
}

/// How the records of one file came out in one mode.
#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    as_stock: usize,
    normalised: usize,
    failed: usize,
}

/// How a record of ours stands to the same one of stock's.
enum Verdict {
    AsStock,
    Normalised,
    Failed(String),
}

impl Report {
    /// `stock` is the run that the others are held against.
    pub(crate) fn new(stock: Vec<FileRun>) -> Self {
        Self {
            stock,
            modes: Vec::new(),
            failures: Vec::new(),
            rules: BTreeMap::new(),
        }
    }

    /// Compares a run of the same files in `mode`.
    pub(crate) fn add(&mut self, mode: Mode, runs: Vec<FileRun>) {
        let mut tallies = Vec::with_capacity(runs.len());
        for (stock, ours) in self.stock.iter().zip(&runs) {
            let mut tally = Tally::default();
            if stock.records.len() != ours.records.len() {
                tally.failed += 1;
                self.failures.push(format!(
                    "[{}] {}: {} records were run, {} with stock",
                    mode.title(),
                    ours.name,
                    ours.records.len(),
                    stock.records.len()
                ));
            }
            for (stock, ours) in stock.records.iter().zip(&ours.records) {
                match compare(stock, ours) {
                    Verdict::AsStock => tally.as_stock += 1,
                    Verdict::Normalised => {
                        tally.normalised += 1;
                        for rule in &ours.rules {
                            *self.rules.entry(*rule).or_default() += 1;
                        }
                    }
                    Verdict::Failed(reason) => {
                        tally.failed += 1;
                        self.failures.push(format!(
                            "[{}] {}\n{}\n{reason}",
                            mode.title(),
                            ours.location,
                            ours.sql
                        ));
                    }
                }
            }
            tallies.push(tally);
        }
        self.modes.push((mode, tallies));
    }

    /// Whether no record of ours failed.
    pub(crate) fn conforms(&self) -> bool {
        self.failures.is_empty()
    }

    /// The failures, the table by file, the rules that were needed, and what stock itself fails.
    pub(crate) fn render(&self, with_stock_failures: bool) -> String {
        let mut text = String::new();
        for failure in &self.failures {
            line(&mut text, &format!("FAILED {failure}\n"));
        }
        self.render_stock_failures(&mut text, with_stock_failures);
        line(&mut text, "\nRecords brought into stock's form, by rule:");
        for (rule, count) in &self.rules {
            line(&mut text, &format!("  {count:>6}  {rule}"));
        }
        self.render_table(&mut text);
        text
    }

    fn render_table(&self, text: &mut String) {
        line(text, "\nPer mode: passed as stock / normalised / failed");
        let mut head = format!("{:<44} {:>7} {:>11}", "file", "records", "stock fails");
        for (mode, _) in &self.modes {
            let _ = write!(head, " {:>16}", mode.title());
        }
        line(text, &head);
        let mut totals = vec![Tally::default(); self.modes.len()];
        let (mut records, mut stock_fails) = (0, 0);
        for (i, stock) in self.stock.iter().enumerate() {
            let fails = stock
                .records
                .iter()
                .filter(|record| record.fault.is_some())
                .count();
            records += stock.records.len();
            stock_fails += fails;
            let tallies: Vec<Tally> = self.modes.iter().map(|(_, tallies)| tallies[i]).collect();
            for (total, tally) in totals.iter_mut().zip(&tallies) {
                total.as_stock += tally.as_stock;
                total.normalised += tally.normalised;
                total.failed += tally.failed;
            }
            line(
                text,
                &row(&stock.name, stock.records.len(), fails, &tallies),
            );
        }
        line(text, &row("all", records, stock_fails, &totals));
    }

    fn render_stock_failures(&self, text: &mut String, one_by_one: bool) {
        let mut reasons: BTreeMap<(String, String), usize> = BTreeMap::new();
        for file in &self.stock {
            let mut reasons_of_file = StockFailures::default();
            for record in &file.records {
                let Some(reason) = reasons_of_file.reason(record) else {
                    continue;
                };
                if one_by_one {
                    let (location, sql) = (&record.location, &record.sql);
                    line(text, &format!("stock fails {location}: {reason}\n{sql}"));
                }
                *reasons.entry((reason, file.name.clone())).or_default() += 1;
            }
        }
        line(
            text,
            "Records that stock itself fails here; ours has to come to the same outcome:",
        );
        for ((reason, file), count) in reasons {
            line(text, &format!("  {count:>6}  {file}: {reason}"));
        }
    }
}

fn row(name: &str, records: usize, stock_fails: usize, tallies: &[Tally]) -> String {
    let mut row = format!("{name:<44} {records:>7} {stock_fails:>11}");
    for tally in tallies {
        let cell = format!(
            "{} / {} / {}",
            tally.as_stock, tally.normalised, tally.failed
        );
        let _ = write!(row, " {cell:>16}");
    }
    row
}

fn line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

fn compare(stock: &RecordRun, ours: &RecordRun) -> Verdict {
    let passed = match (&stock.fault, &ours.fault) {
        (None, None) => true,
        (None, Some(fault)) => return Verdict::Failed(fault.clone()),
        // What the file expects is not to be had here, so stock's outcome is what counts.
        (Some(_), _) => same(stock.outcome.as_ref(), ours.outcome.as_ref()),
    };
    if !passed {
        return Verdict::Failed(format!(
            "stock fails here too, but comes to something else\nstock: {:?}\nours:  {:?}",
            stock.outcome, ours.outcome
        ));
    }
    if ours.rules.is_empty() {
        Verdict::AsStock
    } else {
        Verdict::Normalised
    }
}

/// Whether two outcomes are equal, rows in any order: where a file has no say, the order of rows is nobody's promise.
fn same(stock: Option<&Outcome>, ours: Option<&Outcome>) -> bool {
    match (stock, ours) {
        (
            Some(Outcome::Rows { types, rows }),
            Some(Outcome::Rows {
                types: our_types,
                rows: our_rows,
            }),
        ) => {
            let sorted = |rows: &[Vec<String>]| {
                let mut rows = rows.to_vec();
                rows.sort_unstable();
                rows
            };
            types == our_types && sorted(rows) == sorted(our_rows)
        }
        (stock, ours) => stock == ours,
    }
}
