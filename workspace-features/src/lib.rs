//! Depends on what the members of the workspace share, with every feature that one of them needs.
//!
//! Cargo chooses features by the packages it is asked to build. With this crate under all of them, whatever is built
//! first has compiled DataFusion for the others too.
