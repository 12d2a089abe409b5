//! The keys of encrypted files.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::EncryptionFactoryOptions;
use datafusion::common::encryption::FileDecryptionProperties;
use datafusion::config::TableParquetOptions;
use datafusion::execution::parquet_encryption::EncryptionFactory;
use object_store::path::Path;

/// Where a scan takes the keys of its files from.
#[derive(Clone)]
pub(crate) enum Decryption {
    /// There are none: what is encrypted cannot be read.
    None,
    /// The same for all files.
    Properties(Arc<FileDecryptionProperties>),
    /// Asked for each file.
    Factory(Arc<dyn EncryptionFactory>, EncryptionFactoryOptions),
}

impl Decryption {
    /// Properties in the table's `options` go before the `factory`.
    ///
    /// # Errors
    /// A configuration error where a key in the options is not hexadecimal.
    pub(crate) fn try_new(
        options: &TableParquetOptions,
        factory: Option<&Arc<dyn EncryptionFactory>>,
    ) -> Result<Self> {
        let crypto = &options.crypto;
        Ok(match (&crypto.file_decryption, factory) {
            (Some(properties), _) => Self::Properties(Arc::new(properties.clone().try_into()?)),
            (None, Some(factory)) => {
                Self::Factory(Arc::clone(factory), crypto.factory_options.clone())
            }
            (None, None) => Self::None,
        })
    }

    /// What the file at `location` is read with. A factory may know some files as not encrypted.
    ///
    /// # Errors
    /// What the factory says.
    pub(super) async fn properties_of(
        &self,
        location: &Path,
    ) -> Result<Option<Arc<FileDecryptionProperties>>> {
        match self {
            Self::None => Ok(None),
            Self::Properties(properties) => Ok(Some(Arc::clone(properties))),
            Self::Factory(factory, options) => {
                factory
                    .get_file_decryption_properties(options, location)
                    .await
            }
        }
    }
}

/// Without the keys, and without what a factory of the user's prints.
impl fmt::Debug for Decryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Properties(_) => "Properties",
            Self::Factory(..) => "Factory",
        })
    }
}
