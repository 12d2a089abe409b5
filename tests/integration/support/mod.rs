//! What the tests share: object stores that record and misbehave, Parquet files made to
//! measure, sessions of either kind, and the comparison of what they answer.

pub(crate) mod behaviour;
pub(crate) mod cases;
pub(crate) mod compare;
pub(crate) mod faulty;
pub(crate) mod faulty_scan;
pub(crate) mod files;
pub(crate) mod log;
pub(crate) mod observe;
pub(crate) mod random;
pub(crate) mod session;
pub(crate) mod store;
