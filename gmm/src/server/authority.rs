//! The manager's certificate authority (CA): it signs the certificates of this fabric's managers and nodes only.
//! Clients identify it by the hash of its certificate, which is part of every token, so they need no other trust
//! anchor.
//!
//! The authority's key is stored with the manager's store; see [`authority_store`](super::authority_store).

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::store::etcd::EtcdError;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cxloe_fabric::api::Party;
use cxloe_fabric::model::Digest;
use cxloe_private::WideFile;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber, SignatureAlgorithm,
};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

/// Name of the file with the authority's key and certificate, in the store's folder.
pub const AUTHORITY_FILE: &str = "authority.pem";
/// Name of the file with the authority's certificate alone, for other programs.
pub const CERTIFICATE_FILE: &str = "ca.pem";
/// Validity of a node's certificate, unless the manager is configured otherwise.
pub const NODE_VALID_DEFAULT: Duration = Duration::from_secs(30 * 86_400);
/// Validity of a manager's own certificate. It is renewed at each start and after each tenth of this time.
const MANAGER_VALID: Duration = Duration::from_secs(100 * 86_400);
/// Interval between renewals of the manager's certificate, a tenth of its validity.
pub const MANAGER_RENEW: Duration = Duration::from_secs(10 * 86_400);
/// Validity of the authority's certificate.
const AUTHORITY_VALID: Duration = Duration::from_secs(3650 * 86_400);
/// Maximum time by which a node's clock may be behind the manager's.
const SKEW: Duration = Duration::from_secs(3600);
/// Bytes of a public key: an uncompressed point of P-256.
const POINT_BYTES: usize = 65;

/// Reason for which the authority cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error(
        "cannot use {path} for the manager's certificates: {source}; it is read and written by the manager's user alone"
    )]
    File { path: PathBuf, source: std::io::Error },
    #[error("the key of the manager's certificates: {0}")]
    Wide(WideFile),
    #[error(
        "{place} holds no usable key and certificate ({reason}); put the file back from a backup, or remove it: all nodes have to join again then"
    )]
    Damaged {
        /// Path of the file, or name of the key in etcd.
        place: String,
        reason: String,
    },
    #[error("cannot store the key that signs certificates: {0}")]
    Shared(EtcdError),
    #[error("cannot make a certificate: {0}")]
    Sign(String),
    #[error("cannot set up TLS: {0}")]
    Tls(String),
}

impl From<rcgen::Error> for AuthorityError {
    fn from(error: rcgen::Error) -> Self {
        Self::Sign(error.to_string())
    }
}

/// The authority's key and certificate, with which it signs other certificates.
pub struct Authority {
    certificate: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    /// Key and certificate as they are stored, in PEM.
    pem: String,
}

pub struct Signed {
    pub pem: String,
    /// Time at which the certificate expires, in milliseconds since the Unix epoch.
    pub expires_ms: u64,
    /// Time from which to renew the certificate, in milliseconds since the Unix epoch.
    pub renew_ms: u64,
}

/// Public half of a node's TLS key: an uncompressed point of P-256.
pub struct NodeKey([u8; POINT_BYTES]);

impl NodeKey {
    /// Reads a public key from base64; `None` if the text is not a point of P-256.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes: [u8; POINT_BYTES] = STANDARD.decode(text).ok()?.try_into().ok()?;
        // 4 is the prefix of an uncompressed point (SEC 1).
        (bytes[0] == 4).then_some(Self(bytes))
    }

    /// Hash of the key's SubjectPublicKeyInfo, as in a certificate.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.subject_public_key_info())
    }
}

impl PublicKeyData for NodeKey {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}

impl Authority {
    /// Makes an authority with a new key; the caller has to store it.
    ///
    /// # Errors
    /// [`AuthorityError::Sign`].
    pub fn new() -> Result<Self, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = authority_params(SystemTime::now()).self_signed(&key)?;
        Self::from_pem(&format!("{}{}", key.serialize_pem(), certificate.pem()), "what was just made")
    }

    /// Reads the key and certificate that are stored at `place`.
    ///
    /// # Errors
    /// [`AuthorityError::Damaged`].
    pub fn from_pem(pem: &str, place: &str) -> Result<Self, AuthorityError> {
        let damaged = |reason: String| AuthorityError::Damaged { place: place.to_owned(), reason };
        let certificate =
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|e| damaged(e.to_string()))?;
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|e| damaged(e.to_string()))?;
        let key = KeyPair::try_from(&key).map_err(|e| damaged(e.to_string()))?;
        let parsed = rustls::server::ParsedCertificate::try_from(&certificate);
        let parsed = parsed.map_err(|e| damaged(e.to_string()))?;
        if parsed.subject_public_key_info().as_ref() != key.subject_public_key_info() {
            return Err(damaged("the key is not that of the certificate".to_owned()));
        }
        let issuer = Issuer::new(authority_params(SystemTime::now()), key);
        Ok(Self { certificate, issuer, pem: pem.to_owned() })
    }

    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Hash of the authority's certificate, which is part of each token.
    pub fn hash(&self) -> Digest {
        Digest::of(&self.certificate)
    }

    /// The authority's certificate in PEM, without the key.
    pub fn certificate_pem(&self) -> String {
        to_pem(&self.certificate)
    }

    /// Signs a certificate that expires after `valid`, for `node` and its public key `key`.
    ///
    /// # Errors
    /// [`AuthorityError::Sign`].
    pub fn sign(&self, node: &Party, key: &NodeKey, valid: Duration) -> Result<Signed, AuthorityError> {
        let now = SystemTime::now();
        let mut params = params(&node.to_string(), now, valid);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let pem = params.signed_by(key, &self.issuer)?.pem();
        let at = |after: Duration| unix_ms(now + after);
        Ok(Signed { pem, expires_ms: at(valid), renew_ms: at(valid * 2 / 3) })
    }

    /// TLS configuration of a manager, with a certificate for the host names `names`.
    pub fn server_config(&self, names: &[String]) -> Result<Arc<rustls::ServerConfig>, AuthorityError> {
        let tls = |error: String| AuthorityError::Tls(error);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = params("manager", SystemTime::now(), MANAGER_VALID);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = names.iter().filter_map(|name| alternative(name)).collect();
        let leaf = params.signed_by(&key, &self.issuer)?;
        let chain = vec![leaf.der().clone(), self.certificate.clone()];
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(|e| tls(e.to_owned()))?;
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).map_err(|e| tls(e.to_string()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider))
            // Callers that authenticate by a token have no certificate.
            .allow_unauthenticated()
            .build()
            .map_err(|e| tls(e.to_string()))?;
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| tls(e.to_string()))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)
            .map_err(|e| tls(e.to_string()))?;
        Ok(Arc::new(config))
    }
}

fn authority_params(now: SystemTime) -> CertificateParams {
    let mut params = params("CXLoE authority", now, AUTHORITY_VALID);
    // The authority certifies managers and nodes, and no further authorities.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn params(name: &str, now: SystemTime, valid: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::OrganizationName, "CXLoE");
    params.distinguished_name.push(DnType::CommonName, name);
    // The certificate is already valid for a node whose clock is behind.
    params.not_before = (now - SKEW).into();
    params.not_after = (now + valid).into();
    // Browsers remember certificates by serial number, and refuse another certificate with the same number.
    params.serial_number =
        Some(SerialNumber::from(rand::random::<[u8; 16]>().map(|byte| byte & 0x7f).to_vec()));
    params
}

fn alternative(name: &str) -> Option<SanType> {
    match name.parse::<IpAddr>() {
        Ok(ip) => Some(SanType::IpAddress(ip)),
        Err(_) => name.try_into().ok().map(SanType::DnsName),
    }
}

/// Names and addresses by which clients may reach a manager that listens on `listen`.
pub fn names(listen: SocketAddr, more: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut names: Vec<String> = vec!["localhost".to_owned(), listen.ip().to_string()];
    names.extend(nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()));
    for interface in nix::ifaddrs::getifaddrs().into_iter().flatten() {
        let Some(address) = interface.address else { continue };
        names.extend(address.as_sockaddr_in().map(|address| address.ip().to_string()));
        names.extend(address.as_sockaddr_in6().map(|address| address.ip().to_string()));
    }
    names.extend(more);
    names.sort();
    names.dedup();
    names
}

fn to_pem(certificate: &CertificateDer<'_>) -> String {
    let text = STANDARD.encode(certificate);
    let lines = text.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned() + "\n");
    format!("-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----\n", lines.collect::<String>())
}

fn unix_ms(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key_of(pair: &KeyPair) -> NodeKey {
        NodeKey::parse(&STANDARD.encode(pair.public_key_raw())).unwrap()
    }

    #[test]
    fn key_and_certificate_go_together() {
        let other = Authority::new().unwrap();
        let mixed = format!("{}{}", KeyPair::generate().unwrap().serialize_pem(), other.certificate_pem());
        assert!(matches!(Authority::from_pem(&mixed, "x"), Err(AuthorityError::Damaged { .. })));
    }

    #[test]
    fn a_nodes_certificate_has_its_key() {
        let authority = Authority::new().unwrap();
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let key = key_of(&pair);
        let node = Party::MemoryNode("mn0".parse().unwrap());
        let signed = authority.sign(&node, &key, NODE_VALID_DEFAULT).unwrap();
        let certificate = CertificateDer::from_pem_slice(signed.pem.as_bytes()).unwrap();
        let parsed = rustls::server::ParsedCertificate::try_from(&certificate).unwrap();
        assert_eq!(Digest::of(&parsed.subject_public_key_info()), key.digest());
        assert!(signed.renew_ms < signed.expires_ms);
        for wrong in ["", "AAAA", &STANDARD.encode([0; POINT_BYTES]), &STANDARD.encode([4; POINT_BYTES + 1])]
        {
            assert!(NodeKey::parse(wrong).is_none(), "{wrong}");
        }
    }
}
