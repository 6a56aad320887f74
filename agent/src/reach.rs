//! How a target is reached: TLS, whose certificates, when its name is looked up,
//! how many sockets it may cost.
//!
//! Files are read once, when the agent starts: a certificate that cannot be read
//! or parsed is an error of the configuration, never a failed probe.
//!
//! What it cannot do: read a password for an encrypted key; check revocation.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use mysql_async::{ClientIdentity, SslOpts};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};

/// Most sockets to one target at a time, abandoned ones included, unless told
/// otherwise.
pub const DEFAULT_MAX_SOCKETS: u32 = 2_000;

/// How much TLS has to prove.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlsMode {
    /// No TLS.
    #[default]
    Off,
    /// TLS, whoever answers: keeps listeners out, not impostors.
    Required,
    /// The certificate comes from a trusted authority.
    VerifyCa,
    /// And is for the name that was asked for.
    VerifyIdentity,
}

impl TlsMode {
    /// The words of flags and files.
    pub const WORDS: [&'static str; 4] = ["off", "required", "verify-ca", "verify-identity"];

    /// The word.
    pub const fn as_str(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

impl std::str::FromStr for TlsMode {
    type Err = String;
    fn from_str(word: &str) -> Result<Self, String> {
        [
            Self::Off,
            Self::Required,
            Self::VerifyCa,
            Self::VerifyIdentity,
        ]
        .into_iter()
        .find(|mode| mode.as_str() == word)
        .ok_or_else(|| format!("`{word}` is no TLS mode; known: {}", Self::WORDS.join(", ")))
    }
}

/// A file's bytes; a key among them, so they are never printed.
#[derive(Clone, PartialEq, Eq)]
struct Bytes(Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

/// TLS to a target, ready to use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TargetTls {
    mode: TlsMode,
    ca: Option<Bytes>,
    identity: Option<(Bytes, Bytes)>,
    name: Option<String>,
}

/// TLS to a target, as flags or a file say it.
#[derive(Debug, Clone, Default)]
pub struct TlsFiles {
    /// `off` unless given, or unless anything else is.
    pub mode: Option<TlsMode>,
    /// Trusted authorities, PEM; the public ones unless given.
    pub ca: Option<PathBuf>,
    /// Our certificate and those above it, PEM.
    pub cert: Option<PathBuf>,
    /// Its key, PEM.
    pub key: Option<PathBuf>,
    /// The name that the certificate has to be for, where it is not the host's.
    pub name: Option<String>,
}

/// How a target is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reach {
    /// TLS to it.
    pub tls: TargetTls,
    /// A held client looks the name up before each probe and goes where it points.
    pub follow_dns: bool,
    /// Who is asked for its name; none: the host's resolver.
    pub name_server: Option<SocketAddr>,
    /// No more sockets than this at a time, abandoned ones included.
    pub max_sockets: u32,
    /// Whether the circuit breaker may pause probing.
    pub breaker: bool,
    /// Whether a connection beside the probes is looked at now and then.
    pub inspect: bool,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            tls: TargetTls::default(),
            follow_dns: false,
            name_server: None,
            max_sockets: DEFAULT_MAX_SOCKETS,
            breaker: true,
            inspect: true,
        }
    }
}

impl TlsFiles {
    /// Reads and checks the files; `relative_to` is where relative paths begin.
    pub fn load(&self, relative_to: &Path) -> Result<TargetTls, String> {
        let mode = match self.mode {
            Some(mode) => mode,
            None if self.ca.is_some() || self.name.is_some() => TlsMode::VerifyIdentity,
            None if self.cert.is_some() || self.key.is_some() => TlsMode::Required,
            None => TlsMode::Off,
        };
        if mode == TlsMode::Off && (self.ca.is_some() || self.cert.is_some() || self.key.is_some())
        {
            return Err("certificates are given and TLS is off".to_owned());
        }
        if mode == TlsMode::Required && self.ca.is_some() {
            return Err(
                "an authority is given and `required` would not ask it: say verify-ca or verify-identity"
                    .to_owned(),
            );
        }
        let read = |path: &PathBuf| {
            let path = relative_to.join(path);
            std::fs::read(&path)
                .map(|bytes| (path.display().to_string(), bytes))
                .map_err(|error| format!("cannot read `{}`: {error}", path.display()))
        };
        let certificates = |path: &PathBuf| {
            let (shown, bytes) = read(path)?;
            let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
            match found {
                Ok(found) if !found.is_empty() => Ok((bytes, found)),
                Ok(_) => Err(format!("`{shown}` holds no certificate in PEM form")),
                Err(error) => Err(format!("`{shown}`: {error}")),
            }
        };
        let ca = self.ca.as_ref().map(&certificates).transpose()?;
        if let Some((_, authorities)) = &ca {
            let mut store = rustls::RootCertStore::empty();
            for authority in authorities {
                store
                    .add(authority.clone())
                    .map_err(|error| format!("an authority is of no use: {error}"))?;
            }
        }
        let identity = match (&self.cert, &self.key) {
            (None, None) => None,
            (Some(cert), Some(key)) => {
                let (cert, chain) = certificates(cert)?;
                let (shown, key) = read(key)?;
                let parsed = PrivateKeyDer::from_pem_slice(&key)
                    .map_err(|error| format!("`{shown}` holds no private key: {error}"))?;
                check_pair(chain, parsed)?;
                Some((Bytes(cert), Bytes(key)))
            }
            _ => return Err("a certificate and its key go together".to_owned()),
        };
        if let Some(name) = &self.name {
            ServerName::try_from(name.as_str())
                .map_err(|error| format!("`{name}` cannot be in a certificate: {error}"))?;
        }
        Ok(TargetTls {
            mode,
            ca: ca.map(|(bytes, _)| Bytes(bytes)),
            identity,
            name: self.name.clone(),
        })
    }
}

fn check_pair(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<(), String> {
    use_one_provider();
    rustls::ClientConfig::builder()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_client_auth_cert(chain, key)
        .map(|_| ())
        .map_err(|error| format!("certificate and key do not fit: {error}"))
}

/// The driver asks for the process's own provider of cryptography.
pub(crate) fn use_one_provider() {
    // An error means that there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

impl TargetTls {
    /// How much it has to prove.
    pub fn mode(&self) -> TlsMode {
        self.mode
    }

    /// For the driver; none: no TLS. `name` is what the certificate has to be for,
    /// unless the configuration says otherwise.
    pub(crate) fn options(&self, host: &str, found_name: Option<&str>) -> Option<SslOpts> {
        if self.mode == TlsMode::Off {
            return None;
        }
        use_one_provider();
        let name = found_name
            .or(self.name.as_deref())
            .unwrap_or(host)
            .to_owned();
        let mut options = SslOpts::default()
            .with_danger_accept_invalid_certs(self.mode == TlsMode::Required)
            // Ignored by the present driver, see `names_of`.
            .with_danger_skip_domain_validation(self.mode == TlsMode::VerifyCa)
            .with_disable_built_in_roots(self.ca.is_some());
        // What cannot be in a certificate cannot be asked for either; with
        // `required` any name does.
        options = if ServerName::try_from(name.as_str()).is_ok() {
            options.with_danger_tls_hostname_override(Some(name))
        } else {
            options
        };
        if let Some(Bytes(ca)) = &self.ca {
            options = options.with_root_certs(vec![ca.clone().into()]);
        }
        if let Some((Bytes(cert), Bytes(key))) = &self.identity {
            options = options.with_client_identity(Some(ClientIdentity::new(
                cert.clone().into(),
                key.clone().into(),
            )));
        }
        Some(options)
    }
}

/// The first name in a certificate that was refused for its name alone. The
/// driver compares the name even where it was told not to, so `verify-ca` connects
/// again under the certificate's own: the chain is verified, the name is not.
pub(crate) fn name_of_refused(error: &mysql_async::Error) -> Option<String> {
    use rustls::CertificateError::NotValidForNameContext;
    let mysql_async::Error::Io(mysql_async::IoError::Io(error)) = error else {
        return None;
    };
    let tls: &rustls::Error = error.get_ref()?.downcast_ref()?;
    let rustls::Error::InvalidCertificate(NotValidForNameContext { presented, .. }) = tls else {
        return None;
    };
    presented.iter().find_map(|name| readable(name))
}

fn readable(presented: &str) -> Option<String> {
    let inner = |prefix| {
        presented
            .strip_prefix(prefix)
            .and_then(|rest: &str| rest.strip_suffix(')'))
    };
    let name = match inner("DnsName(") {
        Some(quoted) => quoted.trim_matches('"').replacen('*', "any", 1),
        None => inner("IpAddress(")?.to_owned(),
    };
    ServerName::try_from(name.as_str()).is_ok().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(files: &TlsFiles, why: &str) {
        let error = files.load(Path::new(".")).expect_err("refused");
        assert!(error.contains(why), "{error:?} does not say {why:?}");
    }

    #[test]
    fn what_makes_no_sense_is_refused_at_the_start() {
        let missing = Some(PathBuf::from("/nonexistent/ca.pem"));
        check(
            &TlsFiles {
                ca: missing.clone(),
                ..TlsFiles::default()
            },
            "cannot read `/nonexistent/ca.pem`",
        );
        check(
            &TlsFiles {
                mode: Some(TlsMode::Off),
                ca: missing.clone(),
                ..TlsFiles::default()
            },
            "TLS is off",
        );
        check(
            &TlsFiles {
                mode: Some(TlsMode::Required),
                ca: missing.clone(),
                ..TlsFiles::default()
            },
            "say verify-ca",
        );
        check(
            &TlsFiles {
                cert: missing,
                ..TlsFiles::default()
            },
            "go together",
        );
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("ca.pem"), "no certificate").expect("written");
        let error = TlsFiles {
            ca: Some("ca.pem".into()),
            ..TlsFiles::default()
        }
        .load(folder.path())
        .expect_err("refused");
        assert!(error.contains("holds no certificate"), "{error}");
    }

    #[test]
    fn names_of_a_certificate_are_read() {
        for (presented, name) in [
            ("DnsName(\"db.example\")", Some("db.example")),
            ("DnsName(\"*.db.example\")", Some("any.db.example")),
            ("IpAddress(10.1.2.3)", Some("10.1.2.3")),
            ("DirectoryName", None),
        ] {
            assert_eq!(readable(presented).as_deref(), name);
        }
    }

    #[test]
    fn off_unless_something_is_given() {
        assert!(
            TlsFiles::default()
                .load(Path::new("."))
                .expect("fine")
                .options("db", None)
                .is_none()
        );
        for word in TlsMode::WORDS {
            assert_eq!(word.parse::<TlsMode>().expect("known").as_str(), word);
        }
        assert!("verify".parse::<TlsMode>().is_err());
    }
}
