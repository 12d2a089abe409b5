//! Whose readers a scan uses.

use std::fmt::{self, Write};
use std::sync::Arc;

use datafusion::datasource::physical_plan::parquet::ParquetFileReaderFactory;
use object_store::ObjectStore;

/// Whose readers a scan uses. Decided when it is planned, once for all of its partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReaderChoice {
    /// Ours, in the place of stock's that cache nothing.
    Default,
    /// Ours, in the place of stock's that share the session's cache of file metadata.
    Cached,
    /// Those of the factory that was set on the scan.
    AsSet,
}

impl ReaderChoice {
    /// For a source that carries `factory`, to be read from `store`.
    ///
    /// Stock's own factories can be told from a user's only by what they print, so the store they hold must print like the
    /// session's too: a factory over any other store is the user's.
    pub(crate) fn of(
        factory: Option<&Arc<dyn ParquetFileReaderFactory>>,
        store: Option<&Arc<dyn ObjectStore>>,
    ) -> Self {
        let Some(factory) = factory else {
            return Self::Default;
        };
        let Some(store) = store else {
            return Self::AsSet;
        };
        let printed = Prefix::of(factory.as_ref());
        let expected = Prefix::of(store.as_ref());
        let is_of = |head: &str, tail: &str| {
            printed.strip_prefix(head).is_some_and(|rest| {
                // What was cut off cannot be compared, and with it not the end of it either.
                match rest.strip_prefix(expected.as_str()) {
                    Some(end) => end.is_empty() || end.starts_with(tail),
                    None => expected.len() >= Prefix::MAX_BYTES && expected.starts_with(rest),
                }
            })
        };
        if is_of("DefaultParquetFileReaderFactory { store: ", " }") {
            Self::Default
        } else if is_of(
            "CachedParquetFileReaderFactory { store: ",
            ", metadata_cache: ",
        ) {
            Self::Cached
        } else {
            Self::AsSet
        }
    }
}

/// The beginning of what a value prints: a store in memory prints its content.
struct Prefix(String);

impl Prefix {
    const MAX_BYTES: usize = 4096;

    fn of(value: &(impl fmt::Debug + ?Sized)) -> String {
        let mut prefix = Self(String::new());
        // Ends with an error once it has enough, which is the point.
        let _ = write!(prefix, "{value:?}");
        prefix.0
    }
}

impl Write for Prefix {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        if self.0.len() >= Self::MAX_BYTES {
            return Err(fmt::Error);
        }
        self.0.push_str(s);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::datasource::physical_plan::parquet::{
        CachedParquetFileReaderFactory, DefaultParquetFileReaderFactory,
    };
    use object_store::memory::InMemory;
    use object_store::path::Path;
    use object_store::prefix::PrefixStore;

    fn default_over(store: &Arc<dyn ObjectStore>) -> Arc<dyn ParquetFileReaderFactory> {
        Arc::new(DefaultParquetFileReaderFactory::new(Arc::clone(store)))
    }

    fn prefixed(prefix: &str) -> Arc<dyn ObjectStore> {
        Arc::new(PrefixStore::new(InMemory::new(), Path::from(prefix)))
    }

    #[test]
    fn stock_s_factories_are_known_by_their_store() {
        let store = prefixed("a");
        let cache = datafusion::execution::runtime_env::RuntimeEnv::default()
            .cache_manager
            .get_file_metadata_cache();
        let cached: Arc<dyn ParquetFileReaderFactory> = Arc::new(
            CachedParquetFileReaderFactory::new(Arc::clone(&store), cache),
        );
        let of = |factory: &Arc<dyn ParquetFileReaderFactory>, store: &Arc<dyn ObjectStore>| {
            ReaderChoice::of(Some(factory), Some(store))
        };
        assert_eq!(ReaderChoice::of(None, Some(&store)), ReaderChoice::Default);
        assert_eq!(of(&default_over(&store), &store), ReaderChoice::Default);
        assert_eq!(of(&cached, &store), ReaderChoice::Cached);
        assert_eq!(of(&cached, &prefixed("b")), ReaderChoice::AsSet);
        assert_eq!(ReaderChoice::of(Some(&cached), None), ReaderChoice::AsSet);
    }

    #[test]
    fn a_store_whose_print_goes_on_is_another() {
        let (short, long) = (prefixed("bucket"), prefixed("bucket/eu"));
        let of = |factory: &Arc<dyn ParquetFileReaderFactory>, store: &Arc<dyn ObjectStore>| {
            ReaderChoice::of(Some(factory), Some(store))
        };
        assert_eq!(of(&default_over(&long), &short), ReaderChoice::AsSet);
        assert_eq!(of(&default_over(&short), &long), ReaderChoice::AsSet);
    }

    #[tokio::test]
    async fn a_store_that_prints_its_objects_is_known_by_their_beginning() {
        let store = InMemory::new();
        let object = vec![b'x'; 100_000];
        object_store::ObjectStoreExt::put(&store, &Path::from("a"), object.into())
            .await
            .unwrap();
        let store: Arc<dyn ObjectStore> = Arc::new(store);
        let factory = default_over(&store);
        assert_eq!(
            ReaderChoice::of(Some(&factory), Some(&store)),
            ReaderChoice::Default
        );
        let empty: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        assert_eq!(
            ReaderChoice::of(Some(&factory), Some(&empty)),
            ReaderChoice::AsSet
        );
    }

    #[test]
    fn printing_ends_where_there_is_enough() {
        let large = vec![0u8; 10_000_000];
        assert!(Prefix::of(&large).len() < 2 * Prefix::MAX_BYTES);
    }
}
