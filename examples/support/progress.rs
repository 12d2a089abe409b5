//! One line on standard error that says what is going on.

use std::future::Future;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use tokio::time::Instant;

/// How often the line is written again while something runs.
pub(crate) const REFRESH_INTERVAL: Duration = Duration::from_millis(250);

/// The progress line: rewritten in place on a terminal; elsewhere (a log) each step once, on a line of its own.
#[derive(Debug)]
pub(crate) struct Progress {
    terminal: bool,
}

impl Progress {
    /// The progress line of this process.
    pub(crate) fn new() -> Self {
        Self {
            terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Says that a step begins.
    pub(crate) fn step(&self, line: &str) {
        if self.terminal {
            self.refresh(line);
        } else {
            eprintln!("{line}");
        }
    }

    /// Rewrites the line of the step that runs; a log is spared this.
    pub(crate) fn refresh(&self, line: &str) {
        if self.terminal {
            eprint!("\r\x1b[2K{line}");
            // A progress line that cannot be written is no reason to fail.
            let _ = std::io::stderr().flush();
        }
    }

    /// Takes the line away, before something else is printed.
    pub(crate) fn clear(&self) {
        self.refresh("");
        if self.terminal {
            eprint!("\r");
        }
    }

    /// Runs a future, with its label and the seconds it took so far on the line.
    pub(crate) async fn during<F: Future>(&self, label: &str, future: F) -> F::Output {
        self.step(label);
        let begin = Instant::now();
        let mut future = std::pin::pin!(future);
        let mut tick = tokio::time::interval_at(begin + REFRESH_INTERVAL, REFRESH_INTERVAL);
        loop {
            tokio::select! {
                output = &mut future => return output,
                _ = tick.tick() => {
                    self.refresh(&format!("{label}: {:.1} s", begin.elapsed().as_secs_f64()));
                }
            }
        }
    }
}
