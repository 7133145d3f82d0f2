//! How a manager comes in at etcd: over TLS with a CA of etcd's own, with a certificate, as a user.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde::{Deserialize, Serialize};

use crate::store::EtcdAccess;

/// A user and a password, as etcd is asked for a token.
#[derive(Debug, Serialize)]
pub struct Authenticate<'a> {
    /// The user.
    pub name: &'a str,
    /// The password.
    pub password: &'a str,
}

/// The token that etcd answers with.
#[derive(Debug, Deserialize)]
pub struct Authenticated {
    /// It.
    pub token: String,
}

/// What HTTP clients for it are built from.
///
/// # Errors
/// What is wrong with which file.
pub fn http(access: &EtcdAccess) -> Result<reqwest::ClientBuilder, String> {
    let Some(ca) = &access.ca else { return Ok(cxloe_fabric::client::http()) };
    let wrong = |path: &Path, error: &dyn fmt::Display| format!("{}: {error}", path.display());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(ca)? {
        roots.add(certificate).map_err(|error| wrong(ca, &error))?;
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots);
    let config = match &access.identity {
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            let pem = cxloe_private::read(key).map_err(|error| wrong(key, &error))?;
            let private = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| wrong(key, &error))?;
            builder.with_client_auth_cert(chain, private).map_err(|error| wrong(certificate, &error))?
        }
        None => builder.with_no_client_auth(),
    };
    Ok(reqwest::Client::builder().no_proxy().tls_backend_preconfigured(config))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let wrong = |error: &dyn fmt::Display| format!("{}: {error}", path.display());
    let found = CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))?;
    let found = found.collect::<Result<Vec<_>, _>>().map_err(|error| wrong(&error))?;
    if found.is_empty() { Err(wrong(&"no certificate is in it")) } else { Ok(found) }
}
