//! Drives the push decoder of one file.

use std::collections::HashSet;

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, Gauge};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use parquet::DecodeResult;
use parquet::arrow::arrow_reader::metrics::ArrowReaderMetrics;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, RowSelection, RowSelector};
use parquet::arrow::push_decoder::ParquetPushDecoder;
use parquet::file::metadata::ParquetMetaData;

use super::read_ahead::Progress;
use super::source::ByteSource;
use crate::open::dynamic::RowGroupPruner;
use crate::open::projection::DecoderProjection;
use crate::plan::ScanOrder;

/// Row groups that a dynamic filter is held against at one boundary, and so the furthest that is prefetched under one.
///
/// Each boundary looks at a fixed number of row groups, not at all that are left, so that the work stays linear.
pub(crate) const PRUNING_WINDOW: usize = 32;

/// Everything that decoding one file takes.
pub(crate) struct FileScan {
    /// `None` once it failed: a decoder that returned an error cannot go on.
    pub(crate) decoder: Option<ParquetPushDecoder>,
    pub(crate) order: ScanOrder,
    pub(crate) bytes: ByteSource,
    pub(crate) projection: DecoderProjection,
    /// Only where a dynamic filter can still change and no row selection is live: the decoder cannot drop row groups
    /// under a selection without losing step with it.
    pub(crate) pruner: Option<RowGroupPruner>,
    pub(crate) row_groups_pruned_dynamic: Count,
    pub(crate) reader_metrics: ArrowReaderMetrics,
    pub(crate) predicate_cache_inner_records: Gauge,
    pub(crate) predicate_cache_records: Gauge,
    pub(crate) baseline_metrics: BaselineMetrics,
}

/// What came of a row-group boundary.
enum Boundary {
    GoOn,
    /// No row group is left that could hold a matching row.
    NothingLeft,
}

impl FileScan {
    /// The file's batches, projected. Ends after the first error.
    pub(crate) fn into_stream(self) -> BoxStream<'static, Result<RecordBatch>> {
        stream::unfold(Some((self, None)), |state| async move {
            let (mut scan, mut batches) = state?;
            match scan.next_batch(&mut batches).await {
                Ok(Some(batch)) => Some((Ok(batch), Some((scan, batches)))),
                Ok(None) => None,
                Err(error) => Some((Err(error), None)),
            }
        })
        .fuse()
        .boxed()
    }

    /// Reads ahead as far as the budget allows.
    pub(crate) fn pump(&mut self) -> Progress {
        self.bytes.pump(&self.order)
    }

    /// As [`Self::pump`], and goes on to later files where nothing is left to be asked for of this one.
    pub(crate) fn pump_beyond(&mut self) {
        self.bytes.pump_beyond(&self.order);
    }

    /// Rows of the row groups that have not been begun, before a row filter or a limit.
    pub(crate) fn selected_rows(&self) -> usize {
        let pending = self.order.pending().iter();
        pending.fold(0, |rows: usize, read| {
            rows.saturating_add(read.selected_rows)
        })
    }

    /// Whether any row group is left to be begun.
    pub(crate) fn has_row_groups(&self) -> bool {
        !self.order.pending().is_empty()
    }

    /// Has the decoder, which has not begun, read these row groups only, and of them these rows only. `selection` is as for
    /// [`ScanOrder::new`]. Returns `false`, and changes nothing, where they would be read in another order.
    pub(crate) fn narrow(
        &mut self,
        row_group_indexes: Vec<usize>,
        selection: Option<RowSelection>,
        metadata: &ParquetMetaData,
    ) -> Result<bool> {
        let Some(order) = self
            .order
            .narrowed(&row_group_indexes, selection.clone(), metadata)
        else {
            return Ok(false);
        };
        let had_selection = self.order.has_selection();
        let left: HashSet<usize> = order.pending().iter().map(|read| read.place).collect();
        let dropped = self.order.pending().iter().map(|read| read.place);
        for place in dropped.filter(|place| !left.contains(place)) {
            self.bytes.drop_staged(place);
        }
        self.order = order;
        if row_group_indexes.is_empty() {
            self.decoder = None;
            return Ok(true);
        }
        // A decoder keeps its selection unless it is given another one.
        let selection = selection.or_else(|| {
            let rows = row_group_indexes.iter();
            let rows = rows.map(|&idx| metadata.row_group(idx).num_rows());
            let rows = rows.filter_map(|rows| usize::try_from(rows).ok()).sum();
            had_selection.then(|| vec![RowSelector::select(rows)].into())
        });
        if selection.is_some() {
            self.pruner = None;
        }
        let decoder = self.decoder.take().ok_or_else(lost_decoder)?;
        let mut builder = decoder.into_builder()?.with_row_groups(row_group_indexes);
        if let Some(selection) = selection {
            builder = builder.with_row_selection(selection);
        }
        self.decoder = Some(builder.build()?);
        Ok(true)
    }

    /// The next batch, of the row group that `batches` decodes or of a later one.
    async fn next_batch(
        &mut self,
        batches: &mut Option<ParquetRecordBatchReader>,
    ) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(reader) = batches {
                if let Some(batch) = reader.next() {
                    self.bytes.pump(&self.order);
                    self.bytes.make_way().await;
                    return self.project(&batch?).map(Some);
                }
                // Gives back the row group's bytes before more are asked for.
                *batches = None;
            }
            let Some(decoder) = self.decoder.as_ref() else {
                return Ok(None);
            };
            if decoder.is_at_row_group_boundary()
                && let Boundary::NothingLeft = self.at_boundary()?
            {
                return Ok(None);
            }
            match self.step()? {
                DecodeResult::Finished => return Ok(None),
                DecodeResult::Data(reader) => *batches = Some(reader),
                DecodeResult::NeedsData(ranges) => {
                    let buffered_bytes = self
                        .decoder
                        .as_ref()
                        .map_or(0, ParquetPushDecoder::buffered_bytes);
                    let bytes = self
                        .bytes
                        .bytes_for(&self.order, &ranges, buffered_bytes)
                        .await?;
                    self.decoder
                        .as_mut()
                        .ok_or_else(lost_decoder)?
                        .push_ranges(ranges, bytes)?;
                }
            }
        }
    }

    /// Lets the decoder go on as far as its bytes carry it, and follows it.
    fn step(&mut self) -> Result<DecodeResult<ParquetRecordBatchReader>> {
        let mut decoder = self.decoder.take().ok_or_else(lost_decoder)?;
        let result = decoder.try_next_reader()?;
        self.order.advance_to(decoder.row_groups_remaining());
        self.decoder = Some(decoder);
        Ok(result)
    }

    /// Between two row groups: drops what is no longer wanted, bytes and row groups.
    fn at_boundary(&mut self) -> Result<Boundary> {
        self.bytes.drop_passed(&self.order);
        let Some(pruner) = self.pruner.as_mut() else {
            return Ok(Boundary::GoOn);
        };
        let mut pruned = 0;
        loop {
            let window: Vec<usize> = self
                .order
                .pending()
                .iter()
                .take(PRUNING_WINDOW)
                .map(|read| read.row_group_idx)
                .collect();
            let verdicts = pruner.prune(&window);
            let dropped = self.order.drop_pending(&verdicts);
            if dropped.is_empty() {
                break;
            }
            pruned += dropped.len();
            dropped
                .into_iter()
                .for_each(|place| self.bytes.drop_staged(place));
        }
        if pruned == 0 {
            return Ok(Boundary::GoOn);
        }
        self.row_groups_pruned_dynamic.add(pruned);
        if self.order.pending().is_empty() {
            return Ok(Boundary::NothingLeft);
        }
        let left = self
            .order
            .pending()
            .iter()
            .map(|read| read.row_group_idx)
            .collect();
        let decoder = self.decoder.take().ok_or_else(lost_decoder)?;
        self.decoder = Some(decoder.into_builder()?.with_row_groups(left).build()?);
        Ok(Boundary::GoOn)
    }

    fn project(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let _timer = self.baseline_metrics.elapsed_compute().timer();
        if let Some(records) = self.reader_metrics.records_read_from_inner() {
            self.predicate_cache_inner_records.set(records);
        }
        if let Some(records) = self.reader_metrics.records_read_from_cache() {
            self.predicate_cache_records.set(records);
        }
        self.projection.map(batch)
    }
}

fn lost_decoder() -> DataFusionError {
    internal_datafusion_err!("the Parquet decoder was used after it failed")
}
