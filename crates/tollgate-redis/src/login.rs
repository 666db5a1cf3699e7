//! As whom to log in.

use std::{fmt, fs, path::PathBuf};

use fred::types::config::Config;
use tollgate_core::{ErrorKind, StoreError};

use crate::{ConnectError, failure};

/// A user name and where its password comes from.
#[derive(Clone, Default)]
pub(crate) struct Login {
    pub(crate) username: Option<String>,
    pub(crate) password: Password,
}

/// Where a password comes from.
#[derive(Clone, Default)]
pub(crate) enum Password {
    #[default]
    None,
    Given(String),
    /// Read anew for each connection, so that it can be changed while the service runs.
    File(PathBuf),
}

impl Login {
    /// Picks the one source of the password that is set; the names are those of the settings, for the error.
    pub(crate) fn new<const N: usize>(
        username: Option<String>,
        user_field: &'static str,
        sources: [(&'static str, Option<Password>); N],
    ) -> Result<Self, ConnectError> {
        let mut set = sources
            .into_iter()
            .filter_map(|(field, source)| Some((field, source?)));
        let password = match (set.next(), set.next()) {
            (None, _) if username.is_some() => {
                return Err(ConnectError::setting(user_field, "it has no password"));
            }
            (None, _) => Password::None,
            (Some((field, password)), None) => password.checked(field)?,
            (Some((first, _)), Some((second, _))) => {
                let problem = format!("the password is given already, as {first}");
                return Err(ConnectError::setting(second, problem));
            }
        };
        Ok(Self { username, password })
    }

    /// Writes both into a client's settings.
    ///
    /// # Errors
    ///
    /// If the password is in a file that cannot be read now.
    pub(crate) fn apply(&self, config: &mut Config) -> Result<(), StoreError> {
        config.username.clone_from(&self.username);
        let password = self.password.read();
        config.password =
            password.map_err(|problem| failure::without_connection(ErrorKind::Io, problem))?;
        Ok(())
    }
}

// === impl Login ===

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(..)")
    }
}

impl Password {
    /// The value of an environment variable.
    pub(crate) fn from_env(
        field: &'static str,
        name: Option<&str>,
    ) -> Result<Option<Self>, ConnectError> {
        let Some(name) = name else {
            return Ok(None);
        };
        let Ok(value) = std::env::var(name) else {
            let problem = format!("there is no environment variable `{name}` with text in it");
            return Err(ConnectError::setting(field, problem));
        };
        Ok(Some(Self::Given(value)))
    }

    /// Says at the start what would be wrong at each connection.
    fn checked(self, field: &'static str) -> Result<Self, ConnectError> {
        match self.read() {
            Ok(Some(password)) if password.is_empty() => {
                Err(ConnectError::setting(field, "it is empty"))
            }
            Ok(_) => Ok(self),
            Err(problem) => Err(ConnectError::setting(field, problem)),
        }
    }

    fn read(&self) -> Result<Option<String>, String> {
        match self {
            Self::None => Ok(None),
            Self::Given(password) => Ok(Some(password.clone())),
            Self::File(path) => match fs::read_to_string(path) {
                // Editors and `echo` end the last line.
                Ok(text) => Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned())),
                Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
            },
        }
    }
}
