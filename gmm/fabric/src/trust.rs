//! Trust and credentials of a client. A manager is trusted if a known authority signed its certificate. The authority
//! is identified by its hash, which is part of a token or was stored when the node joined. The name in the certificate
//! is not checked: the authority signs only for this fabric's managers, whatever their addresses.

mod identity_file;
mod renewal;

use std::fmt;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::model::{Digest, Token};
pub use identity_file::IdentityFile;
pub use renewal::{Renewal, RenewalStep};

/// Environment variable that holds a token.
pub const TOKEN_VARIABLE: &str = "CXLOE_TOKEN";

/// Length of a public key in bytes: an uncompressed point of P-256.
const POINT_BYTES: usize = 65;

/// Credentials that [`Credentials::take`] has set.
static OWN: OnceLock<Credentials> = OnceLock::new();

/// Credentials of a client, and the authority that it trusts. A client without an authority can use only managers
/// without TLS.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// Hash of the trusted authority's certificate; none: no certificate is trusted.
    pub authority: Option<Digest>,
    /// The token to send, over TLS and Unix sockets only.
    pub token: Option<Token>,
    pub identity: Option<Arc<Identity>>,
}

impl Credentials {
    /// Returns credentials with this token, which also names the authority to trust.
    pub fn of_token(token: Token) -> Self {
        Self { authority: Some(token.authority()), token: Some(token), identity: None }
    }

    /// Returns credentials with the certificate of a joined node, and trust in the authority that signed it.
    pub fn of_node(identity: Arc<Identity>) -> Self {
        Self { authority: Some(identity.authority()), token: None, identity: Some(identity) }
    }

    /// Returns the credentials of this process, for clients without their own: those that a daemon [has
    /// set](Self::take); otherwise the token in the variable `CXLOE_TOKEN`; otherwise none.
    pub fn of_process() -> Self {
        let token = || std::env::var(TOKEN_VARIABLE).ok()?.parse().ok().map(Self::of_token);
        OWN.get().cloned().or_else(token).unwrap_or_default()
    }

    /// Makes these credentials the [credentials of this process](Self::of_process); later calls have no effect.
    pub fn take(&self) {
        drop(OWN.set(self.clone()));
    }

    /// Returns an HTTP client builder that trusts this authority and presents this certificate. The token is not part
    /// of it: the client adds the token to its requests.
    #[cfg(feature = "client")]
    pub fn http(&self) -> reqwest::ClientBuilder {
        reqwest::Client::builder().no_proxy().tls_backend_preconfigured(self.tls())
    }

    pub fn tls(&self) -> ClientConfig {
        let provider = Arc::new(ring::default_provider());
        let verifier = PinnedAuthority { hash: self.authority, provider: Arc::clone(&provider) };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap_or_else(|error| unreachable!("ring supports TLS 1.3: {error}"))
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        match &self.identity {
            Some(identity) => builder.with_client_cert_resolver(Arc::<Identity>::clone(identity)),
            None => builder.with_no_client_auth(),
        }
    }
}

/// Accepts certificates signed by the authority with this hash; without a hash, accepts none.
#[derive(Debug)]
struct PinnedAuthority {
    hash: Option<Digest>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(hash) = self.hash else {
            return Err(Error::General(
                "no token and no certificate says which authority to trust".to_owned(),
            ));
        };
        let authority = intermediates.iter().find(|shown| Digest::of(shown) == hash);
        let Some(authority) = authority else {
            let shown =
                intermediates.first().map_or("none".to_owned(), |shown| Digest::of(shown).to_string());
            return Err(Error::General(format!(
                "its authority is {shown}, and {hash} is the one to trust: it is another manager, or the connection is intercepted"
            )));
        };
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let parsed = ParsedCertificate::try_from(leaf)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // TLS never calls this method, because the client offers only TLS 1.3.
        Err(Error::InvalidCertificate(CertificateError::BadSignature))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// A node's key and certificate as one PEM text: the key, the certificate, and the authority's certificate.
/// The certificate may be renewed while connections exist: each new connection uses the latest one.
pub struct Identity {
    authority: Digest,
    key: String,
    /// Key and certificate for TLS, and the PEM text they were read from.
    current: RwLock<(Arc<CertifiedKey>, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it holds no usable key and certificates ({0}); have the node join again")]
pub struct IdentityError(String);

impl Identity {
    /// Reads a node's key and certificates from their PEM text.
    ///
    /// # Errors
    /// [`IdentityError`] if the key or one of the two certificates is missing, or they do not belong
    /// together.
    pub fn parse(pem: &str) -> Result<Self, IdentityError> {
        let wrong = |reason: String| IdentityError(reason);
        let key = section(pem, "PRIVATE KEY").ok_or_else(|| wrong("there is no key".to_owned()))?;
        let (certified, authority) = certified(pem)?;
        Ok(Self { authority, key, current: RwLock::new((certified, pem.to_owned())) })
    }

    pub fn authority(&self) -> Digest {
        self.authority
    }

    /// Returns key and certificates as one PEM text: a secret.
    pub fn pem(&self) -> String {
        self.current.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// Returns the private key alone, as PEM: a secret.
    pub fn key_pem(&self) -> &str {
        &self.key
    }

    /// Returns the public key as the manager expects it: a point of P-256 as base64.
    pub fn public_key(&self) -> String {
        use base64::Engine;
        let current = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).0);
        let info = current.key.public_key();
        let info = info.as_ref().map(|info| info.as_ref()).unwrap_or_default();
        // The last bytes of the SubjectPublicKeyInfo are the public key's point.
        base64::engine::general_purpose::STANDARD.encode(&info[info.len().saturating_sub(POINT_BYTES)..])
    }

    /// Replaces the certificate by the one in `written`, which another process has requested for the same key.
    ///
    /// # Errors
    /// [`IdentityError`] if `written` has another key or another authority.
    pub fn follow(&self, written: &Self) -> Result<(), IdentityError> {
        if written.key != self.key || written.authority != self.authority {
            return Err(IdentityError("it is another node's, or of another authority".to_owned()));
        }
        let current = written.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        Ok(())
    }

    /// Replaces the certificate by a new one for the same key; later connections use it. Returns the new PEM text.
    ///
    /// # Errors
    /// [`IdentityError`] if the certificates do not fit the key, or another authority issued them.
    pub fn renew(&self, certificate: &str, authority: &str) -> Result<String, IdentityError> {
        let pem = format!("{}{certificate}{authority}", self.key);
        let (certified, authority) = certified(&pem)?;
        if authority != self.authority {
            return Err(IdentityError(format!("its authority would be {authority}, not {}", self.authority)));
        }
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = (certified, pem.clone());
        Ok(pem)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("authority", &self.authority).finish_non_exhaustive()
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).0))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Returns key and certificate for TLS, and the hash of the authority's certificate, which is the last one in
/// `pem`.
fn certified(pem: &str) -> Result<(Arc<CertifiedKey>, Digest), IdentityError> {
    let wrong = |reason: String| IdentityError(reason);
    let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|e| wrong(e.to_string()))?;
    let certificates = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let certificates = certificates.map_err(|e| wrong(e.to_string()))?;
    let [leaf, authority] = &certificates[..] else {
        return Err(wrong(format!("{} certificates are in it, and not 2", certificates.len())));
    };
    let authority = Digest::of(authority);
    let signing = ring::sign::any_supported_type(&key).map_err(|e| wrong(e.to_string()))?;
    let certified = CertifiedKey::new(vec![leaf.clone()], signing);
    certified.keys_match().map_err(|e| wrong(e.to_string()))?;
    Ok((Arc::new(certified), authority))
}

/// Returns the first PEM section of this kind, with its BEGIN and END lines.
fn section(pem: &str, kind: &str) -> Option<String> {
    let (begin, end) = (format!("-----BEGIN {kind}-----"), format!("-----END {kind}-----"));
    let rest = &pem[pem.find(&begin)?..];
    let length = rest.find(&end)? + end.len();
    Some(format!("{}\n", &rest[..length]))
}
