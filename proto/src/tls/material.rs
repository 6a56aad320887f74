//! From PEM files to configurations of rustls.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::certificate::Facts;
use super::words::Trouble;
use crate::secret::Secret;
use crate::small_file;

const HTTP2: &[u8] = b"h2";

/// Where a client's material is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientFiles {
    /// Certificates of the CAs by which it knows its server.
    pub ca: Option<PathBuf>,
    /// Its own certificate, with those between it and the CA.
    pub cert: Option<PathBuf>,
    /// Its key.
    pub key: Option<PathBuf>,
    /// A file with its bearer token.
    pub token: Option<PathBuf>,
}

/// A client's side of TLS.
#[derive(Debug, Clone)]
pub struct ClientMaterial {
    /// For the next connection.
    pub config: Arc<ClientConfig>,
    /// Its own certificate.
    pub own: Option<Facts>,
}

/// Where a server's material is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// Its certificate, with those between it and the CA.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Certificates of the CAs by which it knows its clients.
    pub client_ca: Option<PathBuf>,
    /// A client may come without a certificate (it has a token).
    pub client_may_be_bare: bool,
}

impl ServerFiles {
    /// All of them.
    pub fn paths(&self) -> Vec<PathBuf> {
        let mut paths = vec![self.cert.clone(), self.key.clone()];
        paths.extend(self.client_ca.clone());
        paths
    }
}

/// A server's side of TLS.
#[derive(Clone)]
pub struct ServerMaterial {
    /// For the next connection.
    pub config: Arc<ServerConfig>,
    /// Its own certificate.
    pub own: Facts,
    /// What its clients' certificates are checked by.
    pub verifier: Option<Arc<dyn ClientCertVerifier>>,
}

impl std::fmt::Debug for ServerMaterial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerMaterial")
            .field("own", &self.own)
            .finish()
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn read(path: &Path, what: &str) -> Result<Vec<u8>, Trouble> {
    small_file::read(path, small_file::BY_HAND).map_err(|error| {
        Trouble::hinted(
            format!("cannot read {what} `{}`: {error}", path.display()),
            "is the path right, and may this user read it?",
        )
    })
}

/// Says so if others can read a secret; containers' secrets often look like that,
/// so it is no reason to refuse.
fn mind(path: &Path, what: &str) {
    if std::fs::metadata(path).is_ok_and(|meta| meta.mode() & 0o007 != 0) {
        tracing::warn!(
            "{what} `{}` can be read by every user of this host: chmod 600",
            path.display()
        );
    }
}

fn certificates(path: &Path, what: &str) -> Result<Vec<CertificateDer<'static>>, Trouble> {
    let shown = path.display();
    let pem = read(path, what)?;
    let found: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| Trouble::new(format!("{what} `{shown}` is not PEM: {error}")))?;
    if found.is_empty() {
        return Err(Trouble::hinted(
            format!("{what} `{shown}` holds no certificate"),
            "it must have a section -----BEGIN CERTIFICATE-----",
        ));
    }
    Ok(found)
}

fn roots(path: &Path, what: &str) -> Result<Arc<RootCertStore>, Trouble> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, what)? {
        roots.add(certificate).map_err(|error| {
            Trouble::new(format!(
                "{what} `{}` cannot be used: {error}",
                path.display()
            ))
        })?;
    }
    Ok(Arc::new(roots))
}

/// A certificate with its key, and what it says.
fn own(cert: &Path, key: &Path, whose: &str) -> Result<(Arc<CertifiedKey>, Facts), Trouble> {
    let chain = certificates(cert, &format!("the certificate of {whose}"))?;
    let facts = Facts::read(&chain[0])
        .map_err(|why| Trouble::new(format!("the certificate `{}` {why}", cert.display())))?;
    mind(key, "the key");
    let pem = zeroize::Zeroizing::new(read(key, &format!("the key of {whose}"))?);
    let bad_key = |why: &dyn std::fmt::Display| {
        Trouble::new(format!("the key `{}` cannot be used: {why}", key.display()))
    };
    let key_der = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| bad_key(&error))?;
    let signing = provider()
        .key_provider
        .load_private_key(key_der)
        .map_err(|error| bad_key(&error))?;
    let certified = CertifiedKey::new(chain, signing);
    certified.keys_match().map_err(|_| {
        Trouble::hinted(
            format!(
                "the key `{}` does not belong to the certificate `{}`",
                key.display(),
                cert.display()
            ),
            "replace both together",
        )
    })?;
    Ok((Arc::new(certified), facts))
}

/// Makes a client's side.
///
/// # Errors
/// When a file cannot be read or does not hold what it should.
pub fn client(ca: &Path, pair: Option<(&Path, &Path)>) -> Result<ClientMaterial, Trouble> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("ring has TLS 1.3")
        .with_root_certificates(roots(ca, "the CA's certificate")?);
    let (mut config, own) = match pair {
        None => (builder.with_no_client_auth(), None),
        Some((cert, key)) => {
            let (certified, facts) = own(cert, key, "this side")?;
            let resolver = Arc::new(SingleCertAndKey::from(certified));
            (builder.with_client_cert_resolver(resolver), Some(facts))
        }
    };
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(ClientMaterial {
        config: Arc::new(config),
        own,
    })
}

/// Makes a server's side.
///
/// # Errors
/// When a file cannot be read or does not hold what it should.
pub fn server(files: &ServerFiles) -> Result<ServerMaterial, Trouble> {
    let (certified, facts) = own(&files.cert, &files.key, "this server")?;
    let verifier = match &files.client_ca {
        None => None,
        Some(path) => {
            let roots = roots(path, "the certificate of the clients' CA")?;
            let mut builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
            if files.client_may_be_bare {
                builder = builder.allow_unauthenticated();
            }
            let verifier = builder.build().map_err(|error| {
                let shown = path.display();
                Trouble::new(format!("the clients' CA `{shown}` cannot be used: {error}"))
            })?;
            Some(verifier)
        }
    };
    let builder = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("ring has TLS 1.3");
    let builder = match &verifier {
        None => builder.with_no_client_auth(),
        Some(verifier) => builder.with_client_cert_verifier(verifier.clone()),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(certified)));
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(ServerMaterial {
        config: Arc::new(config),
        own: facts,
        verifier,
    })
}

/// Reads a bearer token: one line.
///
/// # Errors
/// When the file cannot be read, or holds something else. The text is not quoted.
pub fn token(path: &Path) -> Result<Secret, Trouble> {
    mind(path, "the token");
    let shown = path.display();
    let bytes = read(path, "the token")?;
    let secret = Secret::first_line(String::from_utf8(bytes).unwrap_or_default());
    let text = secret.expose();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Trouble::hinted(
            format!("`{shown}` holds no token"),
            "it must be one line of letters, digits and signs, as `gapscope-aggregator tokens add` writes it",
        ));
    }
    Ok(secret)
}
