//! TLS to etcd: the authorities to trust, and this manager's certificate.

use std::fmt::Display;
use std::path::Path;

use cxloe_fabric::client::causes;
use reqwest::{Certificate, ClientBuilder, Identity, tls};

use crate::store::EtcdAccess;

/// HTTP client builder with the authorities and the certificate of `access`.
///
/// # Errors
/// Text with the unusable file and its defect.
pub fn http(access: &EtcdAccess) -> Result<ClientBuilder, String> {
    let Some(ca) = &access.ca else { return Ok(cxloe_fabric::client::http()) };
    // An error means that the process has a provider already.
    drop(rustls::crypto::ring::default_provider().install_default());
    let pem = std::fs::read(ca).map_err(|error| of(ca, error))?;
    let authorities = Certificate::from_pem_bundle(&pem).map_err(|error| of(ca, causes(&error)))?;
    if authorities.is_empty() {
        return Err(of(ca, "no certificate is in it"));
    }
    let builder = reqwest::Client::builder().no_proxy().tls_version_min(tls::Version::TLS_1_3);
    let builder = builder.tls_certs_only(authorities);
    let Some((certificate, key)) = &access.identity else { return Ok(builder) };
    let mut pem = std::fs::read(certificate).map_err(|error| of(certificate, error))?;
    // The certificate's file may end without a newline, and the key begins a new line.
    pem.push(b'\n');
    pem.extend_from_slice(&cxloe_private::read(key).map_err(|error| of(key, error))?);
    let identity = Identity::from_pem(&pem).map_err(|error| of(certificate, causes(&error)))?;
    Ok(builder.identity(identity))
}

fn of(path: &Path, error: impl Display) -> String {
    format!("{}: {error}", path.display())
}
