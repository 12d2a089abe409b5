//! Runs DataFusion's own sqllogictest files with the prefetching Parquet format in place of the stock one.
//!
//! The files are those of the crate `datafusion-sqllogictest`, read from where Cargo keeps its sources. Each runs once with
//! stock DataFusion and once in every [`Mode`] of ours. A record conforms if it passes by the file's own expectation, or,
//! where stock does not pass either, if the outcome is stock's. Output in which ours says more than stock by intention is
//! brought into stock's form by the rules of [`normalize`], each named and with its reason.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool reports on its standard streams"
)]

mod engine;
mod mode;
mod normalize;
mod report;
mod run;
mod sandbox;
mod stock_failures;

use std::error::Error;
use std::process::ExitCode;
use std::thread;

use clap::Parser;

use crate::mode::Mode;
use crate::report::Report;
use crate::sandbox::{Sandbox, TestFile};

/// Runs DataFusion's sqllogictest files that touch Parquet on the prefetching scan, and compares with stock.
#[derive(Parser)]
struct Arguments {
    /// Only files whose path contains one of these; all that touch Parquet if there are none.
    files: Vec<String>,
    /// Run only these modes of ours.
    #[arg(long = "mode", value_enum)]
    modes: Vec<Mode>,
    /// Files that run at the same time; as many as there are cores if not given.
    #[arg(long)]
    jobs: Option<usize>,
    /// Print every record that stock itself fails, not only how many for which reason.
    #[arg(long)]
    stock_failures: bool,
}

fn main() -> ExitCode {
    match conformance(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether everything conforms.
fn conformance(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let jobs = match arguments.jobs {
        Some(jobs) => jobs.max(1),
        None => thread::available_parallelism()?.get(),
    };
    let modes = match arguments.modes.as_slice() {
        [] => Mode::all(),
        chosen => chosen.to_vec(),
    };
    let sandbox = Sandbox::enter()?;
    let files: Vec<TestFile> = sandbox
        .files_that_touch_parquet()?
        .into_iter()
        .filter(|file| {
            let name = file.name();
            arguments.files.is_empty() || arguments.files.iter().any(|part| name.contains(part))
        })
        .collect();
    if files.is_empty() {
        return Err("no test file has such a name".into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut report = Report::new(runtime.block_on(run::run_files(&files, None, jobs)));
    for mode in modes {
        report.add(
            mode,
            runtime.block_on(run::run_files(&files, Some(mode), jobs)),
        );
    }
    print!("{}", report.render(arguments.stock_failures));
    Ok(report.conforms())
}
