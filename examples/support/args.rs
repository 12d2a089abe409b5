//! The command line.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;

use super::latency_store::S3_LATENCIES_MS;
use super::modes::Mode;
use super::tpch::QUERY_COUNT;

/// Runs SQL over Parquet on an object store with prefetching off and on, checks that the answers agree, and shows what
/// it gained.
///
/// Without an argument it makes TPC-H data once, and serves it through a simulated store in which every request takes
/// as long as on S3. With a path or URL it runs on your own Parquet, registered as table `t`.
#[derive(Debug, Clone, Parser)]
#[command(name = "quickstart", version)]
pub(crate) struct Args {
    /// Your own Parquet: a local file or folder, or a URL (s3://, gs://, az://, https://; credentials from the
    /// environment, as AWS_ACCESS_KEY_ID)
    #[arg(conflicts_with_all = ["scale_factor", "queries", "data_dir"])]
    pub(crate) location: Option<String>,

    /// The query to run on your own Parquet, which is table `t` [default: counts, minima and maxima of all columns]
    #[arg(long, requires = "location")]
    pub(crate) sql: Option<String>,

    /// TPC-H queries: numbers from 1 to 22 separated by commas, or `all`
    #[arg(long, default_value = "1,3,6,12,14,19")]
    pub(crate) queries: Queries,

    /// TPC-H scale factor: 1 is about 365 MB of Parquet
    #[arg(long, default_value_t = 1.0, value_parser = parse_scale_factor)]
    pub(crate) scale_factor: f64,

    /// Folder under which the TPC-H data is kept [default: the user's cache folder]
    #[arg(long)]
    pub(crate) data_dir: Option<PathBuf>,

    /// Partitions each query is run with
    #[arg(long, default_value = "2")]
    pub(crate) partitions: NonZeroUsize,

    /// Bytes each partition may read ahead when prefetching is on
    #[arg(long, default_value = "20 MiB")]
    pub(crate) prefetch_size: String,

    /// Bytes each partition may hold ahead of its decoder when it reads ahead
    #[arg(long, default_value = "64 MiB")]
    pub(crate) read_ahead: String,

    /// Compare these ways to read, separated by commas, with more figures of each
    #[arg(long, value_delimiter = ',', conflicts_with = "location")]
    pub(crate) modes: Vec<Mode>,

    /// Evaluate filters while decoding (datafusion.execution.parquet.pushdown_filters)
    #[arg(long)]
    pub(crate) pushdown: bool,

    /// Let every request take this many milliseconds [default: 25 to 200 as on S3; 0 for a remote URL]
    #[arg(long, value_name = "MS", conflicts_with = "no_latency")]
    pub(crate) latency_ms: Option<u64>,

    /// Simulate no latency: measures the local disk, or the remote store, as it is
    #[arg(long)]
    pub(crate) no_latency: bool,

    /// How often to run each query; the fastest run of each side is reported
    #[arg(long, default_value = "1")]
    pub(crate) repeat: NonZeroUsize,
}

/// What each simulated request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Latency {
    /// Nothing.
    None,
    /// The same time each.
    Fixed(Duration),
    /// [`S3_LATENCIES_MS`] in turn.
    S3,
}

impl Latency {
    /// The latencies a store gives out in turn.
    pub(crate) fn to_list(self) -> Vec<Duration> {
        match self {
            Self::None => Vec::new(),
            Self::Fixed(latency) => vec![latency],
            Self::S3 => S3_LATENCIES_MS
                .iter()
                .copied()
                .map(Duration::from_millis)
                .collect(),
        }
    }
}

impl Args {
    /// What each request waits for; a store that is remote already has its own latency.
    pub(crate) fn latency(&self, remote: bool) -> Latency {
        match self.latency_ms {
            Some(0) => Latency::None,
            Some(ms) => Latency::Fixed(Duration::from_millis(ms)),
            None if self.no_latency || remote => Latency::None,
            None => Latency::S3,
        }
    }
}

/// Numbers of TPC-H queries, in the order they are run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Queries(pub(crate) Vec<usize>);

impl FromStr for Queries {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.trim().eq_ignore_ascii_case("all") {
            return Ok(Self((1..=QUERY_COUNT).collect()));
        }
        let number = |part: &str| match part.trim().parse() {
            Ok(number) if (1..=QUERY_COUNT).contains(&number) => Ok(number),
            _ => Err(format!(
                "`{part}` is no TPC-H query: expected numbers from 1 to 22, or `all`"
            )),
        };
        text.split(',')
            .map(number)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

fn parse_scale_factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(scale_factor) if (0.001..=1000.0).contains(&scale_factor) => Ok(scale_factor),
        _ => Err("expected a number from 0.001 to 1000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_numbers_or_all() {
        assert_eq!("all".parse(), Ok(Queries((1..=22).collect())));
        assert_eq!("3, 1,22".parse(), Ok(Queries(vec![3, 1, 22])));
        for wrong in ["", "0", "23", "1,,2", "q1"] {
            assert!(wrong.parse::<Queries>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_local_data_has_a_simulated_latency_unless_asked_for() {
        let parse = |args: &[&str]| {
            Args::try_parse_from(std::iter::once("quickstart").chain(args.iter().copied())).unwrap()
        };
        assert_eq!(parse(&[]).latency(false), Latency::S3);
        assert_eq!(parse(&["s3://bucket/folder/"]).latency(true), Latency::None);
        assert_eq!(parse(&["--no-latency"]).latency(false), Latency::None);
        let fixed = Latency::Fixed(Duration::from_millis(5));
        assert_eq!(parse(&["--latency-ms", "5"]).latency(true), fixed);
    }

    #[test]
    fn options_that_contradict_each_other_are_refused() {
        for args in [
            &["--latency-ms", "5", "--no-latency"][..],
            &["--sql", "SELECT 1"],
            &["data.parquet", "--queries", "1"],
            &["--scale-factor", "0"],
            &["--partitions", "0"],
        ] {
            let parsed =
                Args::try_parse_from(std::iter::once("quickstart").chain(args.iter().copied()));
            assert!(parsed.is_err(), "{args:?}");
        }
    }
}
