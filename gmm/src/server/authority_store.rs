//! Storage of the authority's key and certificate: in a file next to the manager's store, or in a key of etcd
//! that all managers of that store share. A restored backup replaces the stored authority.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::authority::{AUTHORITY_FILE, Authority, AuthorityError, CERTIFICATE_FILE};
use crate::store::etcd::SharedAuthority;
use crate::store::{EtcdPlace, StorePlace};
use cxloe_private::{Existing, WideFile};
use tokio::sync::watch;

/// Pause before a failed request to etcd is repeated.
const SHARED_PAUSE: Duration = Duration::from_millis(500);
/// Interval at which a manager reads the authority from etcd, since another manager may have restored a
/// backup with another authority.
const SHARED_LOOK: Duration = Duration::from_secs(5);

/// The authority in use; none until the store has answered.
pub type AuthorityInUse = watch::Sender<Option<Arc<Authority>>>;

/// Place of the authority: beside the manager's records, so that they are lost or backed up together.
#[derive(Debug, Clone)]
pub enum AuthorityStore {
    /// The folder that contains the file of the store.
    Folder(PathBuf),
    /// The etcd cluster that contains the store.
    Etcd(EtcdPlace),
}

impl AuthorityStore {
    /// Returns the place of the authority that belongs to a store at `place`.
    pub fn beside(place: &StorePlace) -> Self {
        match place {
            StorePlace::File(path) => {
                let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
                Self::Folder(folder.unwrap_or(Path::new(".")).to_owned())
            }
            StorePlace::Etcd(place) => Self::Etcd(place.clone()),
        }
    }

    /// Replaces the stored authority by `authority`.
    ///
    /// # Errors
    /// [`AuthorityError::File`], [`AuthorityError::Shared`].
    pub async fn replace(&self, authority: &Authority) -> Result<(), AuthorityError> {
        match self {
            Self::Folder(folder) => {
                let path = folder.join(AUTHORITY_FILE);
                let written = cxloe_private::write(&path, authority.pem().as_bytes(), Existing::Replace)
                    .and_then(|()| fs::write(folder.join(CERTIFICATE_FILE), authority.certificate_pem()));
                written.map_err(|source| AuthorityError::File { path, source })
            }
            Self::Etcd(place) => {
                let shared = SharedAuthority::at(place).map_err(AuthorityError::Shared)?;
                shared.replace(authority.pem()).await.map_err(AuthorityError::Shared)
            }
        }
    }
}

/// Reads the authority in `folder`, or makes and stores one there.
pub fn in_folder(folder: &Path) -> Result<Authority, AuthorityError> {
    let path = folder.join(AUTHORITY_FILE);
    let failed = |source: io::Error| match source.downcast::<WideFile>() {
        Ok(wide) => AuthorityError::Wide(wide),
        Err(source) => AuthorityError::File { path: path.clone(), source },
    };
    match cxloe_private::read_to_string(&path) {
        Ok(pem) => Authority::from_pem(&pem, &path.display().to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let new = Authority::new()?;
            match cxloe_private::write(&path, new.pem().as_bytes(), Existing::Keep) {
                Ok(()) => {
                    fs::write(folder.join(CERTIFICATE_FILE), new.certificate_pem()).map_err(failed)?;
                    tracing::info!(path = %path.display(), hash = %new.hash(), "made an authority for certificates");
                    Ok(new)
                }
                // Another process has stored an authority in the meantime, and this process uses that authority.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => in_folder(folder),
                Err(error) => Err(failed(error)),
            }
        }
        Err(error) => Err(failed(error)),
    }
}

/// Sets `in_use` to the authority of the managers that share the store at `place`, again after each
/// replacement. Never returns.
pub async fn follow(place: &EtcdPlace, in_use: &AuthorityInUse) {
    let mut said = false;
    loop {
        let asked = async {
            let shared = SharedAuthority::at(place).map_err(|error| error.to_string())?;
            // The new authority is stored only if no manager has stored one before.
            let new = Authority::new().map_err(|error| error.to_string())?;
            let pem = shared.or_new(new.pem()).await.map_err(|error| error.to_string())?;
            let authority = Authority::from_pem(&pem, &place.to_string());
            Ok::<_, String>((shared, authority.map_err(|error| error.to_string())?))
        };
        let shared = match asked.await {
            Ok((shared, authority)) => {
                in_use.send_replace(Some(authority.into()));
                shared
            }
            Err(reason) => {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(store = %place, %reason, "no key to sign certificates with yet; trying again");
                }
                tokio::time::sleep(SHARED_PAUSE).await;
                continue;
            }
        };
        loop {
            tokio::time::sleep(SHARED_LOOK).await;
            // If etcd does not answer, the authority in use stays.
            let Ok(Some(pem)) = shared.read().await else { continue };
            if in_use.borrow().as_ref().is_some_and(|known| known.pem() == pem) {
                continue;
            }
            match Authority::from_pem(&pem, &place.to_string()) {
                Ok(authority) => {
                    tracing::info!(store = %place, hash = %authority.hash(), "another authority signs certificates from now on");
                    in_use.send_replace(Some(authority.into()));
                    said = false;
                }
                Err(reason) if !std::mem::replace(&mut said, true) => {
                    tracing::warn!(store = %place, %reason, "the key that signs certificates stays as it was");
                }
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use cxloe_fabric::model::Digest;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::*;

    #[test]
    fn it_is_made_once_and_read_by_nobody_else() {
        let folder = tempfile::tempdir().unwrap();
        let made = in_folder(folder.path()).unwrap();
        let again = in_folder(folder.path()).unwrap();
        assert_eq!(made.hash(), again.hash());
        let mode = fs::metadata(folder.path().join(AUTHORITY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let public = fs::read_to_string(folder.path().join(CERTIFICATE_FILE)).unwrap();
        assert!(!public.contains("PRIVATE"));
        assert_eq!(Digest::of(&CertificateDer::from_pem_slice(public.as_bytes()).unwrap()), made.hash());
        fs::write(folder.path().join(AUTHORITY_FILE), public).unwrap();
        assert!(matches!(in_folder(folder.path()), Err(AuthorityError::Damaged { .. })));
    }

    #[tokio::test]
    async fn another_one_takes_its_place() {
        let folder = tempfile::tempdir().unwrap();
        in_folder(folder.path()).unwrap();
        let other = Authority::new().unwrap();
        let place = AuthorityStore::beside(&folder.path().join("gmm.redb").into());
        place.replace(&other).await.unwrap();
        assert_eq!(in_folder(folder.path()).unwrap().hash(), other.hash());
        let mode = fs::metadata(folder.path().join(AUTHORITY_FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            fs::read_to_string(folder.path().join(CERTIFICATE_FILE)).unwrap(),
            other.certificate_pem()
        );
    }
}
