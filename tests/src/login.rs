//! The user that services log in as, and its password.

use std::{fs, path::PathBuf};

use tempfile::TempDir;

use crate::RedisServer;

/// The documented rights on every topology, and what the client libraries ask for beyond them and do without.
const RIGHTS: &str = "on resetkeys ~tg:* resetchannels -@all +evalsha +script|load +get +pttl +set \
                      +cluster|slots +asking +role +client|id +info +ping";

/// A user on some servers, with a password in a file, which ends with the value.
#[derive(Debug)]
pub struct Login {
    number: u32,
    dir: TempDir,
}

impl Login {
    /// The name of the user.
    pub const USER: &str = "tollgate";

    /// A user with a first password.
    ///
    /// # Panics
    ///
    /// If no file can be written.
    #[must_use]
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let login = Self { number: 0, dir };
        login.write();
        login
    }

    /// The file that holds the password.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("password")
    }

    fn password(&self) -> String {
        format!("secret-{}", self.number)
    }

    fn write(&self) {
        fs::write(self.file(), self.password()).expect("a file");
    }

    /// Makes the user known to a server, which forgets it when it ends.
    ///
    /// # Panics
    ///
    /// If the server refuses.
    pub fn allow(&self, server: &RedisServer) {
        let password = format!(">{}", self.password());
        let words = RIGHTS.split_whitespace().chain([&*password]);
        set_user(server, &words.collect::<Vec<_>>());
    }

    /// Changes the password as the documents say, on all servers that know the user: both hold for a moment, the
    /// file changes, the old one is taken away; and all connections that were made with it end.
    ///
    /// # Panics
    ///
    /// If a server refuses.
    pub fn rotate(&mut self, servers: &[RedisServer]) {
        let old = format!("<{}", self.password());
        self.number += 1;
        let new = format!(">{}", self.password());
        for server in servers {
            set_user(server, &[&new]);
        }
        self.write();
        for server in servers {
            set_user(server, &[&old]);
            redis::cmd("CLIENT")
                .arg(&["KILL", "USER", Self::USER])
                .query::<u64>(&mut server.connection())
                .expect("CLIENT KILL");
        }
    }
}

fn set_user(server: &RedisServer, rules: &[&str]) {
    redis::cmd("ACL")
        .arg(&["SETUSER", Login::USER])
        .arg(rules)
        .query::<()>(&mut server.connection())
        .expect("ACL SETUSER");
}

// === impl Login ===

impl Default for Login {
    fn default() -> Self {
        Self::new()
    }
}
