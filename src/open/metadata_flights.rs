//! The metadata of a file is read once by those who open parts of it at the same time.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;

use object_store::ObjectMeta;
use object_store::path::Path;
use parking_lot::Mutex;
use parquet::errors::Result;
use parquet::file::metadata::ParquetMetaData;
use tokio::sync::OnceCell;

/// Reads of metadata that are under way.
///
/// Only for tasks that run by themselves: whoever waits here depends on another to go on.
#[derive(Debug, Default)]
pub(crate) struct MetadataFlights(Mutex<HashMap<Path, Flight>>);

#[derive(Debug, Clone)]
struct Flight {
    of: ObjectMeta,
    metadata: Arc<OnceCell<Arc<ParquetMetaData>>>,
}

impl MetadataFlights {
    /// What `read` gives, or what another's is about to give for the same object.
    ///
    /// # Errors
    /// Those of `read`. Nobody else's: where another's failed or was given up, this one's is made.
    pub(crate) async fn read<F>(&self, of: &ObjectMeta, read: F) -> Result<Arc<ParquetMetaData>>
    where
        F: Future<Output = Result<Arc<ParquetMetaData>>>,
    {
        let flight = {
            let mut flights = self.0.lock();
            let flight = flights
                .entry(of.location.clone())
                .or_insert_with(|| Flight {
                    of: of.clone(),
                    metadata: Arc::default(),
                });
            flight.clone()
        };
        if flight.of != *of {
            return read.await;
        }
        let metadata = flight.metadata.get_or_try_init(|| read).await?;
        // From now on the session's cache has it, where there is one.
        let mut flights = self.0.lock();
        let found = flights.get(&of.location);
        if found.is_some_and(|found| Arc::ptr_eq(&found.metadata, &flight.metadata)) {
            flights.remove(&of.location);
        }
        Ok(Arc::clone(metadata))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use futures::future::{join, pending};
    use parquet::errors::ParquetError;
    use parquet::file::metadata::{FileMetaData, ParquetMetaData};
    use parquet::schema::types::{SchemaDescriptor, Type};

    fn object(size: u64) -> ObjectMeta {
        ObjectMeta {
            location: Path::from("a"),
            last_modified: Default::default(),
            size,
            e_tag: None,
            version: None,
        }
    }

    fn metadata() -> Arc<ParquetMetaData> {
        let schema = Type::group_type_builder("schema").build().unwrap();
        let schema = Arc::new(SchemaDescriptor::new(Arc::new(schema)));
        let file = FileMetaData::new(1, 0, None, None, schema, None);
        Arc::new(ParquetMetaData::new(file, Vec::new()))
    }

    #[tokio::test]
    async fn one_read_serves_all_who_wait() {
        let (flights, a) = (MetadataFlights::default(), object(1));
        let first = flights.read(&a, async {
            tokio::task::yield_now().await;
            Ok(metadata())
        });
        let second = flights.read(&a, async { panic!("read twice") });
        let (first, second) = join(first, second).await;
        assert!(Arc::ptr_eq(&first.unwrap(), &second.unwrap()));
        assert!(flights.0.lock().is_empty());
    }

    #[tokio::test]
    async fn another_object_is_another_read() {
        let (flights, a) = (MetadataFlights::default(), object(1));
        let mut waiting = Box::pin(flights.read(&a, pending()));
        assert!((&mut waiting).now_or_never().is_none());
        flights
            .read(&object(2), async { Ok(metadata()) })
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn failures_and_those_who_give_up_are_their_own() {
        let (flights, a) = (MetadataFlights::default(), object(1));
        let failing = async { Err(ParquetError::General("injected".to_owned())) };
        flights.read(&a, failing).await.unwrap_err();
        let mut given_up = Box::pin(flights.read(&a, pending()));
        assert!((&mut given_up).now_or_never().is_none());
        drop(given_up);
        flights.read(&a, async { Ok(metadata()) }).await.unwrap();
    }
}
