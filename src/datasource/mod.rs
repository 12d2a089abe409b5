//! What DataFusion sees: a format, its factory, the source of its scans, their opener, and a rule that turns the scans of
//! stock's format into ours.

mod execute;
mod factory;
mod facts;
mod format;
mod opener;
mod rule;
mod siblings;
mod source;

pub use factory::PrefetchingParquetFormatFactory;
pub use format::PrefetchingParquetFormat;
pub use opener::PrefetchingParquetOpener;
pub use rule::PrefetchRule;
pub use source::PrefetchingParquetSource;
