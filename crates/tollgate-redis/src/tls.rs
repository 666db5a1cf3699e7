//! How TLS is set up.

use std::{path::Path, sync::Arc};

use fred::types::config::{TlsConfig, TlsConnector};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::{ConnectError, TlsSettings};

/// Reads the files now, so that what is wrong with them is said at the start.
///
/// The provider of the cryptography is named: a process in which several are linked has no default.
pub(crate) fn config(settings: &TlsSettings) -> Result<TlsConfig, ConnectError> {
    let roots = match &settings.ca_file {
        Some(path) => of_file(path)?,
        None => of_system()?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ConnectError::setting("tls", error.to_string()))?
        .with_root_certificates(roots);
    let config = match (&settings.certificate_file, &settings.key_file) {
        (None, None) => builder.with_no_client_auth(),
        (Some(certificate), Some(key)) => {
            let chain = certificates("tls.certificate_file", certificate)?;
            let key = PrivateKeyDer::from_pem_file(key)
                .map_err(|error| unreadable("tls.key_file", key, &error))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| ConnectError::setting("tls.key_file", error.to_string()))?
        }
        (Some(_), None) => {
            return Err(ConnectError::setting(
                "tls.key_file",
                "the certificate needs its key",
            ));
        }
        (None, Some(_)) => {
            let problem = "the key needs its certificate";
            return Err(ConnectError::setting("tls.certificate_file", problem));
        }
    };
    if let Some(name) = &settings.server_name
        && rustls::pki_types::ServerName::try_from(name.as_str()).is_err()
    {
        return Err(ConnectError::setting(
            "tls.server_name",
            "it is no name of a host",
        ));
    }
    Ok(TlsConnector::from(config).into())
}

fn of_file(path: &Path) -> Result<RootCertStore, ConnectError> {
    const FIELD: &str = "tls.ca_file";
    let mut roots = RootCertStore::empty();
    for certificate in certificates(FIELD, path)? {
        roots
            .add(certificate)
            .map_err(|error| unreadable(FIELD, path, &error))?;
    }
    Ok(roots)
}

/// Those that cannot be read are left out; without any, no server could ever be trusted.
fn of_system() -> Result<RootCertStore, ConnectError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let problem = "it is not set, and the system trusts no certificates";
        return Err(ConnectError::setting("tls.ca_file", problem));
    }
    Ok(roots)
}

fn certificates(
    field: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let certificates: Vec<_> = read.map_err(|error| unreadable(field, path, &error))?;
    if certificates.is_empty() {
        let problem = format!("{} has no certificate", path.display());
        return Err(ConnectError::setting(field, problem));
    }
    Ok(certificates)
}

fn unreadable(field: &'static str, path: &Path, error: &impl ToString) -> ConnectError {
    let problem = format!("{} cannot be used: {}", path.display(), error.to_string());
    ConnectError::setting(field, problem)
}
