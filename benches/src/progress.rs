//! What a benchmark is at.

use std::io::{self, IsTerminal, Write};

/// On a terminal, one line that changes; elsewhere, one for each. Nothing ends it.
pub fn show(progress: &str) {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K{progress}");
        let _ = io::stderr().flush();
    } else if !progress.is_empty() {
        eprintln!("{progress}");
    }
}
