//! Whom a client trusts, and what it shows of itself: a manager is known by the authority that signed its certificate, and
//! the authority by its hash, which comes with a token or is kept since the node joined. The name in the certificate does
//! not matter: the authority signs for this fabric's managers and nobody else, under whatever address they are reached.

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
pub use renewal::{Renewal, Step};

/// The variable of the environment that holds a token.
pub const TOKEN_VARIABLE: &str = "CXLOE_TOKEN";

/// Bytes of a public key: an uncompressed point of P-256.
const POINT_BYTES: usize = 65;

/// What this process shows where nothing else is said.
static OWN: OnceLock<Credentials> = OnceLock::new();

/// What a client shows, and whom it trusts. Without any, it reaches managers without TLS only.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// The hash of the certificate of the managers' authority.
    pub authority: Option<Digest>,
    /// A token. It is sent over TLS and Unix sockets only.
    pub token: Option<Token>,
    /// The certificate of a node.
    pub identity: Option<Arc<Identity>>,
}

impl Credentials {
    /// Those of a token's bearer.
    pub fn of_token(token: Token) -> Self {
        Self { authority: Some(token.authority()), token: Some(token), identity: None }
    }

    /// Those of a node that has joined.
    pub fn of_node(identity: Arc<Identity>) -> Self {
        Self { authority: Some(identity.authority()), token: None, identity: Some(identity) }
    }

    /// Those of this process, for clients that are told of none: what a daemon [has taken](Self::take), else the token in
    /// the variable `CXLOE_TOKEN`, else none.
    pub fn of_process() -> Self {
        let token = || std::env::var(TOKEN_VARIABLE).ok()?.parse().ok().map(Self::of_token);
        OWN.get().cloned().or_else(token).unwrap_or_default()
    }

    /// From here on, these are [those of this process](Self::of_process); the first ones taken stay.
    pub fn take(&self) {
        drop(OWN.set(self.clone()));
    }

    /// What HTTP clients are built from that trust and show this; tokens are theirs to send.
    #[cfg(feature = "client")]
    pub fn http(&self) -> reqwest::ClientBuilder {
        reqwest::Client::builder().no_proxy().tls_backend_preconfigured(self.tls())
    }

    /// What TLS is spoken with.
    pub fn tls(&self) -> ClientConfig {
        let provider = Arc::new(ring::default_provider());
        let verifier = PinnedAuthority { hash: self.authority, provider: Arc::clone(&provider) };
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap_or_else(|error| unreachable!("ring speaks TLS 1.3: {error}"))
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        match &self.identity {
            Some(identity) => builder.with_client_cert_resolver(Arc::<Identity>::clone(identity)),
            None => builder.with_no_client_auth(),
        }
    }
}

/// Trusts certificates of managers that the authority of this hash has signed; none without one.
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
                "its authority is {shown}, and {hash} is the one to trust: it is another manager, or somebody in between"
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

/// A node's certificate with its key, as one text (PEM): the key, the certificate, that of the authority. The certificate
/// may be renewed while connections use it: each takes the one there is.
pub struct Identity {
    authority: Digest,
    key: String,
    /// What TLS signs with, and the text.
    current: RwLock<(Arc<CertifiedKey>, String)>,
}

/// A text that is no identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it holds no usable key and certificates ({0}); have the node join again")]
pub struct IdentityError(String);

impl Identity {
    /// From its text.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn parse(pem: &str) -> Result<Self, IdentityError> {
        let wrong = |reason: String| IdentityError(reason);
        let key = section(pem, "PRIVATE KEY").ok_or_else(|| wrong("there is no key".to_owned()))?;
        let (certified, authority) = certified(pem)?;
        Ok(Self { authority, key, current: RwLock::new((certified, pem.to_owned())) })
    }

    /// The hash of the certificate of the authority that signed it.
    pub fn authority(&self) -> Digest {
        self.authority
    }

    /// The text.
    pub fn pem(&self) -> String {
        self.current.read().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// The key alone (PEM).
    pub fn key_pem(&self) -> &str {
        &self.key
    }

    /// The public half of the key, as the manager takes it: a point of P-256 as base64.
    pub fn public_key(&self) -> String {
        use base64::Engine;
        let current = Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner).0);
        let info = current.key.public_key();
        let info = info.as_ref().map(|info| info.as_ref()).unwrap_or_default();
        // The point is what SubjectPublicKeyInfo ends with.
        base64::engine::general_purpose::STANDARD.encode(&info[info.len().saturating_sub(POINT_BYTES)..])
    }

    /// Takes the certificate of `written`, which another process has got for the same key.
    ///
    /// # Errors
    /// [`IdentityError`] when its key is another, or it is of another authority.
    pub fn follow(&self, written: &Self) -> Result<(), IdentityError> {
        if written.key != self.key || written.authority != self.authority {
            return Err(IdentityError("it is another node's, or of another authority".to_owned()));
        }
        let current = written.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = current;
        Ok(())
    }

    /// Takes a new certificate for the same key; connections made from here on show it. Returns the new text.
    ///
    /// # Errors
    /// [`IdentityError`] when the certificates do not fit the key, or are of another authority.
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

/// Key and certificate as TLS takes them, and the hash of the authority's certificate, the last one in `pem`.
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

/// The first section of this kind in `pem`, with its lines of dashes.
fn section(pem: &str, kind: &str) -> Option<String> {
    let (begin, end) = (format!("-----BEGIN {kind}-----"), format!("-----END {kind}-----"));
    let rest = &pem[pem.find(&begin)?..];
    let length = rest.find(&end)? + end.len();
    Some(format!("{}\n", &rest[..length]))
}
