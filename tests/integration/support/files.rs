//! Parquet files made to measure.

use std::sync::Arc;

use bytes::Bytes;
use datafusion::arrow::array::{
    ArrayRef, BinaryArray, Int64Array, RecordBatch, StringArray, UInt32Array,
};
use datafusion::arrow::compute::take_record_batch;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::data_type::{Int64Type, Int96, Int96Type};
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

/// How a file is laid out. Row groups are given batch by batch; nothing is compressed.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// Rows of a page; `None` puts a whole column chunk into one.
    pub(crate) page_rows: Option<usize>,
    /// `Page` also writes the column index.
    pub(crate) statistics: EnabledStatistics,
    pub(crate) offset_index: bool,
    pub(crate) bloom_filter: bool,
    pub(crate) dictionary: bool,
}

impl Layout {
    /// One page a column chunk, statistics of row groups, and no index, filter or dictionary.
    pub(crate) fn plain() -> Self {
        Self {
            page_rows: None,
            statistics: EnabledStatistics::Chunk,
            offset_index: false,
            bloom_filter: false,
            dictionary: false,
        }
    }

    /// Pages of so many rows, with a page index.
    pub(crate) fn paged(page_rows: usize) -> Self {
        Self {
            page_rows: Some(page_rows),
            statistics: EnabledStatistics::Page,
            offset_index: true,
            ..Self::plain()
        }
    }

    fn properties(&self) -> WriterProperties {
        let Self {
            page_rows,
            statistics,
            offset_index,
            bloom_filter,
            dictionary,
        } = self;
        // The writer looks at the page's limits after each write batch only.
        let page_rows = page_rows.unwrap_or(1 << 24);
        WriterProperties::builder()
            .set_compression(Compression::UNCOMPRESSED)
            .set_max_row_group_row_count(None)
            .set_data_page_size_limit(1 << 30)
            .set_dictionary_page_size_limit(1 << 30)
            .set_data_page_row_count_limit(page_rows)
            .set_write_batch_size(page_rows)
            .set_statistics_enabled(*statistics)
            .set_offset_index_disabled(!offset_index)
            .set_bloom_filter_enabled(*bloom_filter)
            .set_dictionary_enabled(*dictionary)
            .build()
    }
}

/// A file with one row group for each batch.
pub(crate) fn write(row_groups: &[RecordBatch], layout: &Layout) -> Bytes {
    let schema = row_groups[0].schema();
    let mut file = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut file, schema, Some(layout.properties())).unwrap();
    for row_group in row_groups {
        writer.write(row_group).unwrap();
        writer.flush().unwrap();
    }
    writer.close().unwrap();
    file.into()
}

/// Cuts a batch into row groups of `rows`. An empty batch stays one, and gives a file without row
/// groups.
pub(crate) fn cut(batch: &RecordBatch, rows: usize) -> Vec<RecordBatch> {
    (0..batch.num_rows().max(1))
        .step_by(rows)
        .map(|start| batch.slice(start, rows.min(batch.num_rows() - start)))
        .collect()
}

/// Puts a file into a store.
pub(crate) async fn put(store: &InMemory, path: &str, file: Bytes) {
    store.put(&Path::from(path), file.into()).await.unwrap();
}

/// A fresh store that holds these files.
pub(crate) async fn store_of(files: impl IntoIterator<Item = (&str, Bytes)>) -> Arc<InMemory> {
    let store = Arc::new(InMemory::new());
    for (path, file) in files {
        put(&store, path, file).await;
    }
    store
}

/// Everything of a store, so that two scans can be given equal ones.
pub(crate) fn upcast(store: &Arc<InMemory>) -> Arc<dyn ObjectStore> {
    Arc::clone(store) as Arc<dyn ObjectStore>
}

/// The metadata of a file, with its page index.
pub(crate) fn metadata(file: &Bytes) -> ParquetMetaData {
    ParquetMetaDataReader::new()
        .with_page_index_policy(PageIndexPolicy::Optional)
        .parse_and_finish(file)
        .unwrap()
}

/// A file of the columns `id` (`BIGINT`, ascending from 0 over the whole file) and `payload`
/// (`BYTEA`), 16 rows a row group, in which the `payload` chunk of row group `i` has
/// exactly `chunk_bytes[i]` bytes.
pub(crate) fn sized(chunk_bytes: &[usize]) -> Bytes {
    // What surrounds the values differs by a few bytes with the sizes; measure, and try again.
    let mut value_bytes: Vec<usize> = chunk_bytes.iter().map(|bytes| bytes - 16 * 4).collect();
    for _ in 0..4 {
        let row_groups: Vec<RecordBatch> = value_bytes
            .iter()
            .enumerate()
            .map(|(i, &bytes)| payload(i, bytes))
            .collect();
        let file = write(&row_groups, &Layout::plain());
        let metadata = metadata(&file);
        let mut exact = true;
        for (i, wanted) in chunk_bytes.iter().enumerate() {
            let (_, got) = metadata.row_group(i).column(1).byte_range();
            let got = usize::try_from(got).unwrap();
            exact &= got == *wanted;
            value_bytes[i] = value_bytes[i] + wanted - got;
        }
        if exact {
            return file;
        }
    }
    panic!("no file has payload chunks of exactly {chunk_bytes:?} bytes");
}

fn payload(row_group: usize, bytes: usize) -> RecordBatch {
    const ROWS: usize = 16;
    let fill = |row: usize, length: usize| -> Vec<u8> {
        let mut value = format!("{row_group}/{row}:").into_bytes();
        value.resize(length, b'.');
        value
    };
    let each = bytes / ROWS;
    let values: Vec<Vec<u8>> = (0..ROWS)
        .map(|row| {
            fill(
                row,
                if row == 0 {
                    bytes - each * (ROWS - 1)
                } else {
                    each
                },
            )
        })
        .collect();
    let first = i64::try_from(row_group * ROWS).unwrap();
    let ids = Int64Array::from_iter_values(first..first + 16);
    let schema = Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("payload", DataType::Binary, false),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(ids),
        Arc::new(BinaryArray::from_iter_values(values)),
    ];
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

/// 16 row groups with a `payload` of 1 MiB each, as [`sized`] makes them.
pub(crate) fn sixteen_mebibytes() -> Bytes {
    sized(&[1 << 20; 16])
}

/// `rows` rows of three columns: `a` ascending, `b` the numbers below 1,000 in disorder, and `s`,
/// a text of `text_bytes` bytes that names the row.
pub(crate) fn numbers(rows: usize, text_bytes: usize) -> RecordBatch {
    let rows = i64::try_from(rows).unwrap();
    let texts = (0..rows).map(|row| format!("{row:0>text_bytes$}"));
    let schema = Schema::new(vec![
        Field::new("a", DataType::Int64, false),
        Field::new("b", DataType::Int64, true),
        Field::new("s", DataType::Utf8, true),
    ]);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(0..rows)),
        Arc::new(Int64Array::from_iter_values(
            (0..rows).map(|row| row * 7919 % 1000),
        )),
        Arc::new(StringArray::from_iter_values(texts)),
    ];
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

/// The rows of a batch in reverse.
pub(crate) fn reversed(batch: &RecordBatch) -> RecordBatch {
    let rows = u32::try_from(batch.num_rows()).unwrap();
    take_record_batch(batch, &UInt32Array::from_iter_values((0..rows).rev())).unwrap()
}

/// A file of `id` (`BIGINT`) and `ts`, an Int96 timestamp as old writers made it, in row groups
/// of `row_group_rows`. `None` is a null.
pub(crate) fn int96(timestamps: &[Option<(u32, u64)>], row_group_rows: usize) -> Bytes {
    let schema = "message old { REQUIRED INT64 id; OPTIONAL INT96 ts; }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut file = Vec::new();
    let properties = Arc::new(Layout::plain().properties());
    let mut writer = SerializedFileWriter::new(&mut file, schema, properties).unwrap();
    let mut id = 0;
    for rows in timestamps.chunks(row_group_rows) {
        let mut row_group = writer.next_row_group().unwrap();
        let ids: Vec<i64> = (id..).take(rows.len()).collect();
        id += i64::try_from(rows.len()).unwrap();
        let mut column = row_group.next_column().unwrap().unwrap();
        column
            .typed::<Int64Type>()
            .write_batch(&ids, None, None)
            .unwrap();
        column.close().unwrap();

        let values: Vec<Int96> = rows
            .iter()
            .flatten()
            .map(|&moment| julian(moment))
            .collect();
        let levels: Vec<i16> = rows.iter().map(|row| i16::from(row.is_some())).collect();
        let mut column = row_group.next_column().unwrap().unwrap();
        column
            .typed::<Int96Type>()
            .write_batch(&values, Some(&levels), None)
            .unwrap();
        column.close().unwrap();
        row_group.close().unwrap();
    }
    writer.close().unwrap();
    file.into()
}

/// The Int96 of a day since 1970-01-01 and the nanoseconds within it.
fn julian((day, nanoseconds): (u32, u64)) -> Int96 {
    const JULIAN_DAY_OF_EPOCH: u32 = 2_440_588;
    let low = u32::try_from(nanoseconds & u64::from(u32::MAX)).unwrap();
    let high = u32::try_from(nanoseconds >> 32).unwrap();
    let mut value = Int96::new();
    value.set_data(low, high, day + JULIAN_DAY_OF_EPOCH);
    value
}
