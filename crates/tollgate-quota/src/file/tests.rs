//! Limits files, good and bad, and what happens when they change.

mod bad_files;
mod changes;
mod schema;

/// A file that uses every field.
const FULL: &str = include_str!("../../../../examples/limits.toml");
