//! The bearer token.

use std::{fmt, path::PathBuf};

use http::HeaderValue;

/// Where the token is.
#[derive(Clone)]
pub(super) enum Token {
    Value(String),
    /// Read at each use: it may be replaced at any time, as those of Kubernetes are.
    File(PathBuf),
}

impl Token {
    /// The value of the `Authorization` header. Errors do not quote the token.
    pub(super) async fn header(&self) -> Result<HeaderValue, String> {
        match self {
            Self::Value(token) => bearer(token),
            Self::File(path) => {
                let path_of = path.display();
                let read = tokio::fs::read_to_string(path).await;
                let token = read.map_err(|error| format!("the token file {path_of}: {error}"))?;
                // Files end with a new line more often than not.
                bearer(token.trim()).map_err(|error| format!("the token file {path_of}: {error}"))
            }
        }
    }
}

fn bearer(token: &str) -> Result<HeaderValue, String> {
    let wrong = || "a bearer token is one word of visible ASCII characters".to_owned();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong());
    }
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| wrong())?;
    // So that hyper and others who log headers leave it out.
    value.set_sensitive(true);
    Ok(value)
}

// === impl Token ===

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(_) => f.write_str("Value(..)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}
