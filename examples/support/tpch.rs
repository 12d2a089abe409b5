//! TPC-H: the data, made once and kept, and the queries.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use arrow::record_batch::RecordBatchReader;
use parking_lot::Mutex;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow,
    SupplierArrow,
};

use super::Result;
use super::progress::{Progress, REFRESH_INTERVAL};

/// The tables, the largest first.
pub(crate) const TABLES: [&str; 8] = [
    "lineitem", "orders", "partsupp", "customer", "part", "supplier", "nation", "region",
];

/// How many queries there are.
pub(crate) const QUERY_COUNT: usize = QUERIES.len();

/// Encoded bytes of a row group: about what the usual TPC-H generators write.
const ROW_GROUP_BYTES: usize = 4 * 1024 * 1024;

/// Names the layout of the files in the name of their folder: whoever changes the layout changes this.
const LAYOUT: &str = "rg4m";

macro_rules! queries {
    ($($number:literal)*) => {
        [$(include_str!(concat!("../../tests/data/tpch/q", $number, ".sql"))),*]
    };
}

const QUERIES: [&str; 22] = queries!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22);

/// The text of a query, numbered from 1.
///
/// # Panics
///
/// If the number is not from 1 to [`QUERY_COUNT`].
pub(crate) fn query(number: usize) -> &'static str {
    QUERIES[number - 1]
}

/// The folder that caches of this user belong in.
pub(crate) fn cache_dir() -> PathBuf {
    let variable = if cfg!(windows) {
        "LOCALAPPDATA"
    } else {
        "XDG_CACHE_HOME"
    };
    std::env::var_os(variable)
        .map(PathBuf::from)
        .filter(|path| path.is_absolute())
        .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
        .unwrap_or_else(std::env::temp_dir)
        .join("datafusion-parquet-prefetch-data")
}

/// The path of a table's file.
pub(crate) fn table_path(dir: &Path, table: &str) -> PathBuf {
    dir.join(format!("{table}.parquet"))
}

/// Makes what is missing of the data set, and returns its folder.
///
/// A table appears under its name only when it is complete, so an interrupted run is resumed at the table it was at. A
/// second process waits for the first.
pub(crate) fn make(parent: &Path, scale_factor: f64, progress: &Progress) -> Result<PathBuf> {
    let dir = parent.join(format!("tpch-sf{scale_factor}-{LAYOUT}"));
    fs::create_dir_all(&dir).map_err(|e| format!("cannot make folder {}: {e}", dir.display()))?;
    let missing = || {
        TABLES
            .into_iter()
            .filter(|table| !table_path(&dir, table).exists())
    };
    if missing().next().is_none() {
        return Ok(dir);
    }

    // The lock goes with the process that holds it, however it ends.
    let lock_path = dir.join(".lock");
    let lock = File::create(&lock_path)
        .map_err(|e| format!("cannot open {}: {e}", lock_path.display()))?;
    if lock.try_lock().is_err() {
        progress.step(&format!(
            "Waiting for another process that makes {}",
            dir.display()
        ));
        lock.lock()
            .map_err(|e| format!("cannot lock {}: {e}", lock_path.display()))?;
    }

    let tables: Vec<_> = missing().collect();
    make_tables(&dir, tables, scale_factor, progress)?;
    Ok(dir)
}

/// Reads every file once, so that the first query measured does not pay for the disk.
pub(crate) fn warm(dir: &Path) -> Result<u64> {
    let mut bytes = 0;
    for table in TABLES {
        let path = table_path(dir, table);
        bytes += File::open(&path)
            .and_then(|mut file| std::io::copy(&mut file, &mut std::io::sink()))
            .map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    }
    Ok(bytes)
}

fn make_tables(
    dir: &Path,
    tables: Vec<&'static str>,
    scale_factor: f64,
    progress: &Progress,
) -> Result<()> {
    let label = format!(
        "Making TPC-H data of scale factor {scale_factor} in {}",
        dir.display()
    );
    progress.step(&label);
    let rows_expected: u64 = tables
        .iter()
        .map(|table| expected_rows(table, scale_factor))
        .sum();
    let rows_made = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let workers = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(tables.len());
    // Taken largest first: lineitem is most of the work, and the others fit beside it.
    let queue = Mutex::new(VecDeque::from(tables));
    let (results, finished) = mpsc::channel();

    thread::scope(|scope| {
        for _ in 0..workers {
            let results = results.clone();
            let (queue, rows_made, failed) = (&queue, &rows_made, &failed);
            scope.spawn(move || {
                loop {
                    let next = queue.lock().pop_front();
                    let Some(table) = next.filter(|_| !failed.load(Ordering::Relaxed)) else {
                        return;
                    };
                    let result = make_table(dir, table, scale_factor, rows_made);
                    failed.fetch_or(result.is_err(), Ordering::Relaxed);
                    // The receiver outlives the workers.
                    let _ = results.send(result);
                }
            });
        }
        drop(results);
        let mut outcome = Ok(());
        loop {
            match finished.recv_timeout(REFRESH_INTERVAL) {
                Ok(result) => outcome = outcome.and(result),
                Err(RecvTimeoutError::Timeout) => {
                    let rows = rows_made.load(Ordering::Relaxed);
                    // The number of lineitem rows is known only roughly before.
                    let percent = (100 * rows / rows_expected.max(1)).min(99);
                    progress.refresh(&format!("{label}: {percent} %"));
                }
                Err(RecvTimeoutError::Disconnected) => return outcome,
            }
        }
    })
}

fn make_table(dir: &Path, table: &str, scale_factor: f64, rows_made: &AtomicU64) -> Result<()> {
    let path = table_path(dir, table);
    // One fixed name: what an interrupted run left behind is overwritten, not collected. The lock keeps others away.
    let partial = path.with_extension("parquet.partial");
    write_table(&partial, table, scale_factor, rows_made)
        .and_then(|()| Ok(fs::rename(&partial, &path)?))
        .map_err(|e| format!("cannot make {}: {e}", path.display()).into())
}

fn write_table(path: &Path, table: &str, scale_factor: f64, rows_made: &AtomicU64) -> Result<()> {
    let batches = reader(table, scale_factor);
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(None)
        .set_max_row_group_bytes(Some(ROW_GROUP_BYTES))
        .build();
    let mut writer = ArrowWriter::try_new(File::create(path)?, batches.schema(), Some(properties))?;
    for batch in batches {
        let batch = batch?;
        writer.write(&batch)?;
        rows_made.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
    }
    // On disk before it gets its name: a file that looks complete is never made again.
    Ok(writer.into_inner()?.sync_all()?)
}

fn reader(table: &str, scale_factor: f64) -> Box<dyn RecordBatchReader> {
    match table {
        "lineitem" => Box::new(LineItemArrow::new(LineItemGenerator::new(
            scale_factor,
            1,
            1,
        ))),
        "orders" => Box::new(OrderArrow::new(OrderGenerator::new(scale_factor, 1, 1))),
        "partsupp" => Box::new(PartSuppArrow::new(PartSuppGenerator::new(
            scale_factor,
            1,
            1,
        ))),
        "customer" => Box::new(CustomerArrow::new(CustomerGenerator::new(
            scale_factor,
            1,
            1,
        ))),
        "part" => Box::new(PartArrow::new(PartGenerator::new(scale_factor, 1, 1))),
        "supplier" => Box::new(SupplierArrow::new(SupplierGenerator::new(
            scale_factor,
            1,
            1,
        ))),
        "nation" => Box::new(NationArrow::new(NationGenerator::new(scale_factor, 1, 1))),
        "region" => Box::new(RegionArrow::new(RegionGenerator::new(scale_factor, 1, 1))),
        _ => unreachable!("{table} is none of TABLES"),
    }
}

/// Rows of a table, for lineitem on average: an order has one to seven lines.
fn expected_rows(table: &str, scale_factor: f64) -> u64 {
    let rows = match table {
        "lineitem" => 4 * OrderGenerator::calculate_row_count(scale_factor, 1, 1),
        "orders" => OrderGenerator::calculate_row_count(scale_factor, 1, 1),
        "partsupp" => 4 * PartGenerator::calculate_row_count(scale_factor, 1, 1),
        "customer" => CustomerGenerator::calculate_row_count(scale_factor, 1, 1),
        "part" => PartGenerator::calculate_row_count(scale_factor, 1, 1),
        "supplier" => SupplierGenerator::calculate_row_count(scale_factor, 1, 1),
        _ => 25,
    };
    u64::try_from(rows).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use parquet::file::reader::{FileReader, SerializedFileReader};

    use super::*;

    const SCALE_FACTOR: f64 = 0.01;

    fn rows(path: &Path) -> u64 {
        let file = SerializedFileReader::new(File::open(path).unwrap()).unwrap();
        u64::try_from(file.metadata().file_metadata().num_rows()).unwrap()
    }

    fn modified(path: &Path) -> SystemTime {
        path.metadata().unwrap().modified().unwrap()
    }

    #[test]
    fn data_is_made_once_and_resumed_where_it_was_interrupted() {
        let parent = tempfile::tempdir().unwrap();
        let progress = Progress::new();
        let dir = make(parent.path(), SCALE_FACTOR, &progress).unwrap();
        assert_eq!(rows(&table_path(&dir, "lineitem")), 60_175);
        for table in &TABLES[1..] {
            let expected = if *table == "region" {
                5
            } else {
                expected_rows(table, SCALE_FACTOR)
            };
            assert_eq!(rows(&table_path(&dir, table)), expected, "{table}");
        }
        assert!(warm(&dir).unwrap() > 1_000_000);

        // As an interrupted run leaves it: one table missing, and half of it under its temporary name.
        let lineitem = table_path(&dir, "lineitem");
        let orders = table_path(&dir, "orders");
        let lineitem_modified = modified(&lineitem);
        fs::remove_file(&orders).unwrap();
        fs::write(dir.join("orders.parquet.partial"), b"PAR1 and no more").unwrap();
        assert_eq!(make(parent.path(), SCALE_FACTOR, &progress).unwrap(), dir);
        assert_eq!(rows(&orders), 15_000);
        assert!(!dir.join("orders.parquet.partial").exists());
        assert_eq!(modified(&lineitem), lineitem_modified);
    }

    #[test]
    fn row_groups_are_of_the_size_they_are_said_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let path = table_path(dir.path(), "lineitem");
        write_table(&path, "lineitem", 0.1, &AtomicU64::new(0)).unwrap();
        let file = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
        let groups = file.metadata().row_groups();
        let sizes: Vec<_> = groups
            .iter()
            .map(|group| group.compressed_size() >> 10)
            .collect();
        let full = &sizes[..sizes.len() - 1];
        assert!(full.len() >= 4, "{sizes:?} KiB");
        assert!(
            full.iter().all(|kib| (3500..=4500).contains(kib)),
            "{sizes:?} KiB"
        );
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = make(file.path(), SCALE_FACTOR, &Progress::new())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&file.path().display().to_string()),
            "{error}"
        );
    }
}
