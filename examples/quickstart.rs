//! SQL over Parquet on an object store with latency: stock DataFusion beside prefetching, with the figures of both.
//!
//! ```text
//! cargo run --release --example quickstart
//! cargo run --release --example quickstart -- --queries all --pushdown
//! cargo run --release --example quickstart -- s3://bucket/folder/ --sql 'SELECT max(price) FROM t'
//! ```

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "an example speaks to its user"
)]

mod support;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use object_store::path::Path;

use support::Result;
use support::args::{Args, Latency};
use support::compare;
use support::latency_store::{LatencyStore, S3_LATENCIES_MS};
use support::measure::{LOCAL_URL, Run, STORE_URL, Side};
use support::modes::{Mode, compare_modes};
use support::own_data;
use support::progress::Progress;
use support::report::{self, Comparison};
use support::tpch;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let progress = Progress::new();
    let outcome = match &args.location {
        Some(location) => run_own(&args, location, &progress).await,
        None => run_tpch(&args, &progress).await,
    };
    match outcome {
        Ok(comparisons) if comparisons.iter().all(|c| c.difference.is_none()) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            progress.clear();
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Compares TPC-H queries on data of our own making.
async fn run_tpch(args: &Args, progress: &Progress) -> Result<Vec<Comparison>> {
    let parent = args.data_dir.clone().unwrap_or_else(tpch::cache_dir);
    let dir = tokio::task::block_in_place(|| tpch::make(&parent, args.scale_factor, progress))?;
    progress.step("Reading the files once");
    let bytes = tokio::task::block_in_place(|| tpch::warm(&dir))?;

    let mut tables = Vec::new();
    for table in tpch::TABLES {
        tables.push((
            table,
            Path::from_absolute_path(tpch::table_path(&dir.canonicalize()?, table))?,
        ));
    }
    let tables: Vec<_> = tables
        .iter()
        .map(|(table, path)| (*table, path.as_ref()))
        .collect();
    let latency = args.latency(false);
    if !args.modes.is_empty() {
        return run_modes(args, latency, &tables, progress).await;
    }
    let sides = Sides::open(args, &local_store(), latency, false, &tables, progress).await?;
    let queries = args
        .queries
        .0
        .iter()
        .map(|&number| (format!("q{number}"), tpch::query(number)));
    let data = format!(
        "TPC-H of scale factor {}, {} files, {} MiB, row groups of about 4 MiB ({})",
        args.scale_factor,
        tables.len(),
        bytes >> 20,
        dir.display()
    );
    sides.compare(args, &data, latency, queries, progress).await
}

/// Compares the TPC-H queries in several modes, and prints their figures.
async fn run_modes(
    args: &Args,
    latency: Latency,
    tables: &[(&str, &str)],
    progress: &Progress,
) -> Result<Vec<Comparison>> {
    let mut sides = Vec::new();
    for mode in &args.modes {
        let store = LatencyStore::new(local_store(), mode.latency(latency).to_list());
        let side = Side::try_new(args, store, STORE_URL, &mode.settings(args)).await?;
        for (table, path) in tables {
            side.create_table(table, path).await?;
        }
        sides.push((*mode, side));
    }
    let queries = args.queries.0.iter();
    let queries = queries.map(|&number| (format!("q{number}"), tpch::query(number)));
    let (text, all_equal) = compare_modes(args, &sides, queries, progress).await?;
    progress.clear();
    println!("{text}");
    match all_equal {
        true => Ok(Vec::new()),
        false => Err("the answers differ".into()),
    }
}

/// Compares one query on the user's own data.
async fn run_own(args: &Args, location: &str, progress: &Progress) -> Result<Vec<Comparison>> {
    let own = own_data::open(location)?;
    let latency = args.latency(own.remote);
    let tables = [("t", own.path.as_str())];
    let sides = Sides::open(args, &own.store, latency, own.remote, &tables, progress)
        .await
        .map_err(|e| format!("cannot read {location}: {e}"))?;
    let sql = match &args.sql {
        Some(sql) => sql.clone(),
        None => {
            let table = sides.off.session().table("t").await?;
            own_data::default_sql("t", table.schema().as_arrow())
        }
    };
    println!("{sql}\n");
    let queries = [("query".to_owned(), sql.as_str())];
    sides
        .compare(args, location, latency, queries, progress)
        .await
}

fn local_store() -> Arc<dyn ObjectStore> {
    Arc::new(LocalFileSystem::new())
}

/// The two sides of the comparison, with the same tables.
struct Sides {
    off: Side,
    on: Side,
    setup_times: [Duration; 2],
}

impl Sides {
    async fn open(
        args: &Args,
        store: &Arc<dyn ObjectStore>,
        latency: Latency,
        remote: bool,
        tables: &[(&str, &str)],
        progress: &Progress,
    ) -> Result<Self> {
        // A local disk without latency is measured as it is, not as a remote store would be asked.
        let as_it_is = !remote && latency == Latency::None;
        let base = if as_it_is { LOCAL_URL } else { STORE_URL };
        let wrapped = || {
            let wrapped = LatencyStore::new(Arc::clone(store), latency.to_list());
            if as_it_is {
                wrapped.with_delegated_ranges()
            } else {
                wrapped
            }
        };
        let off = Side::try_new(args, wrapped(), base, &[]).await?;
        let on = Mode::Prefetch.settings(args);
        let on = Side::try_new(args, wrapped(), base, &on).await?;
        let mut setup_times = [Duration::ZERO; 2];
        for ((side, name), time) in [(&off, "off"), (&on, "on")]
            .into_iter()
            .zip(&mut setup_times)
        {
            for (table, path) in tables {
                let label = format!("Registering table {table}, prefetching {name}");
                *time += progress
                    .during(&label, side.create_table(table, path))
                    .await?;
            }
        }
        Ok(Self {
            off,
            on,
            setup_times,
        })
    }

    /// Runs every query on both sides, and prints the figures.
    async fn compare<'a>(
        &self,
        args: &Args,
        data: &str,
        latency: Latency,
        queries: impl IntoIterator<Item = (String, &'a str)>,
        progress: &Progress,
    ) -> Result<Vec<Comparison>> {
        let mut comparisons = Vec::new();
        for (name, sql) in queries {
            let (mut off, mut on) = (None, None);
            let mut difference = None;
            for _ in 0..args.repeat.get() {
                let fresh_off = run(&self.off, &name, "off", sql, progress).await?;
                let fresh_on = run(&self.on, &name, "on", sql, progress).await?;
                difference = difference.or_else(|| {
                    let result = compare::check_equal(&fresh_off.answer, &fresh_on.answer);
                    result.err().map(|e| e.to_string())
                });
                keep_faster(&mut off, fresh_off);
                keep_faster(&mut on, fresh_on);
            }
            if let (Some(off), Some(on)) = (off, on) {
                comparisons.push(Comparison {
                    name,
                    off,
                    on,
                    difference,
                });
            }
        }
        progress.clear();
        println!("{}", report::table(&comparisons));
        println!("{}", self.describe(args, data, latency, &comparisons));
        Ok(comparisons)
    }

    /// Says what the figures were measured on: without it they mean nothing.
    fn describe(
        &self,
        args: &Args,
        data: &str,
        latency: Latency,
        comparisons: &[Comparison],
    ) -> String {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let pushdown = if args.pushdown { "on" } else { "off" };
        let latency = match latency {
            Latency::None => "none simulated".to_owned(),
            Latency::Fixed(latency) => {
                format!(
                    "{} ms, each request on its own after coalescing",
                    latency.as_millis()
                )
            }
            Latency::S3 => {
                format!("{S3_LATENCIES_MS:?} ms in turn, each request on its own after coalescing")
            }
        };
        let [setup_off, setup_on] = self.setup_times.map(|time| time.as_secs_f64());
        let equal = comparisons
            .iter()
            .filter(|comparison| comparison.difference.is_none())
            .count();
        format!(
            "answers   {equal} of {} equal\n\
             machine   {cores} cores, DataFusion {}\n\
             session   {} partitions, prefetch_size {}, filter pushdown {pushdown}, fastest of {}\n\
             data      {data}\n\
             latency   {latency}\n\
             set-up    registering the tables: off {setup_off:.2} s, on {setup_on:.2} s",
            comparisons.len(),
            datafusion::DATAFUSION_VERSION,
            args.partitions,
            args.prefetch_size,
            args.repeat,
        )
    }
}

async fn run(side: &Side, query: &str, name: &str, sql: &str, progress: &Progress) -> Result<Run> {
    let label = format!("Running {query}, prefetching {name}");
    let run = progress.during(&label, side.run(sql)).await;
    run.map_err(|e| format!("{query} with prefetching {name}: {e}").into())
}

fn keep_faster(kept: &mut Option<Run>, fresh: Run) {
    if kept
        .as_ref()
        .is_none_or(|kept| fresh.wall_time < kept.wall_time)
    {
        *kept = Some(fresh);
    }
}
