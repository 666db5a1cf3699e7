//! A Redis behind TLS, and the authority that vouches for it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use tempfile::TempDir;

use crate::{RedisServer, free_port};

/// A certificate authority of the test's own, and what it has signed, as files that end with the value.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: TempDir,
}

/// A certificate and its key, as PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// How long a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// For an hour from now.
    Current,
    /// Until a minute ago.
    Expired,
}

impl Authority {
    /// A new authority, which nobody knows yet.
    ///
    /// # Panics
    ///
    /// If no key can be made or no file written.
    #[must_use]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Two authorities of the same name would be told apart by their signatures only.
        let dir = tempfile::tempdir().expect("a temporary folder");
        let name = dir.path().display().to_string();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a certificate");
        fs::write(dir.path().join("ca.pem"), issuer.pem()).expect("a file");
        Self { issuer, dir }
    }

    /// Its own certificate, as a PEM file.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.dir.path().join("ca.pem")
    }

    /// Signs a certificate for a server or client of this name, such as `localhost` or `127.0.0.1`.
    ///
    /// # Panics
    ///
    /// If the name is none, or no file can be written.
    #[must_use]
    pub fn sign(&self, name: &str, validity: Validity) -> Pair {
        let mut params = CertificateParams::new([name.to_owned()]).expect("a name");
        // OpenSSL takes a certificate for its own issuer if both have the same name.
        params.distinguished_name.push(DnType::CommonName, name);
        let now = SystemTime::now();
        let (hour, minute) = (Duration::from_secs(3_600), Duration::from_secs(60));
        (params.not_before, params.not_after) = match validity {
            Validity::Current => ((now - hour).into(), (now + hour).into()),
            Validity::Expired => ((now - hour).into(), (now - minute).into()),
        };
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let file = |suffix: &str| {
            self.dir
                .path()
                .join(format!("{name}-{validity:?}.{suffix}"))
        };
        let pair = Pair {
            certificate: file("pem"),
            key: file("key"),
        };
        fs::write(&pair.certificate, certificate.pem()).expect("a file");
        fs::write(&pair.key, key.serialize_pem()).expect("a file");
        pair
    }
}

impl Pair {
    /// The command-line arguments by which a server shows it, and asks no client for one.
    pub(crate) fn args(&self, authority: &Authority) -> Vec<String> {
        let ca = authority.certificate();
        let args = [
            "--tls-cert-file",
            text(&self.certificate),
            "--tls-key-file",
            text(&self.key),
            "--tls-ca-cert-file",
            text(&ca),
            "--tls-auth-clients",
            "no",
        ];
        args.map(String::from).to_vec()
    }
}

// === impl Authority ===

impl Default for Authority {
    fn default() -> Self {
        Self::new()
    }
}

/// A server that takes TLS on one port, and the harness's own commands without it on another.
#[derive(Debug)]
pub struct TlsServer {
    server: RedisServer,
    port: u16,
}

impl TlsServer {
    /// Starts one that shows this certificate, and wants one of `authority` from each client if
    /// `ask_clients`.
    ///
    /// # Panics
    ///
    /// If there is no `redis-server` with TLS to start.
    #[must_use]
    pub fn start(pair: &Pair, authority: &Authority, ask_clients: bool) -> Self {
        let port = free_port();
        let (args, number) = (pair.args(authority), port.to_string());
        let mut args: Vec<_> = args.iter().map(String::as_str).collect();
        args.extend(["--tls-port", &number]);
        if ask_clients {
            args.extend(["--tls-auth-clients", "yes"]);
        }
        let server = RedisServer::start_with(&args);
        Self { server, port }
    }

    /// The port that takes TLS.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// `rediss://<host>:<port>`.
    #[must_use]
    pub fn url(&self, host: &str) -> String {
        format!("rediss://{host}:{}", self.port)
    }

    /// Without TLS, for the test's own commands.
    #[must_use]
    pub const fn plain(&self) -> &RedisServer {
        &self.server
    }

    /// Shows another certificate to new connections, and closes those there are.
    ///
    /// # Panics
    ///
    /// If the server refuses it.
    pub fn show(&self, pair: &Pair) {
        let mut connection = self.server.connection();
        redis::cmd("CONFIG")
            .arg("SET")
            .arg("tls-cert-file")
            .arg(text(&pair.certificate))
            .arg("tls-key-file")
            .arg(text(&pair.key))
            .query::<()>(&mut connection)
            .expect("CONFIG SET");
        redis::cmd("CLIENT")
            .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
            .query::<u64>(&mut connection)
            .expect("CLIENT KILL");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
