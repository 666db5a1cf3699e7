//! What the programs that count have in common.

mod hot_path;

pub use self::hot_path::Way;

/// The compiler, by which instructions differ.
pub const COMPILER: &str = env!("COMPILER");

pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
