//! A small certificate authority: one folder, one key that signs.
//!
//! Keys are ECDSA P-256. The CA signs for ten years, what it issues is valid for a
//! year unless told otherwise, from an hour ago (clocks differ). A server's
//! certificate serves only servers and a client's only clients, so a stolen agent's
//! key cannot pose as the aggregator. Nothing that exists is overwritten unless
//! asked: then it is renamed into its place, key first; readers that meet the two
//! in between keep what they have.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use gapscope_proto::small_file;
use gapscope_proto::tls::certificate::hex;
use gapscope_proto::tls::{Principal, Trouble};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use time::OffsetDateTime;
use webpki::EndEntityCert;
use zeroize::Zeroizing;

const DAY_S: i64 = 86_400;
/// Certificates are valid from a little earlier: clocks differ.
const EARLIER_S: i64 = 3_600;
/// How long a CA signs.
pub const CA_DAYS: u32 = 3_650;
/// How long a certificate is valid unless told otherwise.
pub const DAYS: u32 = 365;
const CA_CERT: &str = "ca.pem";
const CA_KEY: &str = "ca.key";

/// From when to when, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validity {
    /// The first moment.
    pub from_s: i64,
    /// The last.
    pub to_s: i64,
}

impl Validity {
    /// So many days from now on.
    pub fn days(now_s: i64, days: u32) -> Self {
        Self {
            from_s: now_s - EARLIER_S,
            to_s: now_s + i64::from(days) * DAY_S,
        }
    }
}

/// Whose certificate is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// The server's, which is reached by these names and addresses.
    Server(Vec<String>),
    /// An agent's, an operator's or a viewer's.
    Client(Principal),
}

impl Whose {
    /// What its files are called, without ending.
    pub fn stem(&self) -> String {
        match self {
            Self::Server(_) => "server".to_owned(),
            Self::Client(principal) => principal.to_string().replace(':', "-"),
        }
    }
}

/// A certificate and its key, as files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate.
    pub cert: PathBuf,
    /// The key.
    pub key: PathBuf,
}

/// A certificate authority in a folder.
pub struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

fn failed(what: &str, why: impl std::fmt::Display) -> Trouble {
    Trouble::new(format!("{what}: {why}"))
}

fn serial() -> Result<SerialNumber, Trouble> {
    let mut bytes = [0; 16];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Trouble::new("the system gives no random numbers"))?;
    // Positive, and as long as it looks.
    bytes[0] = (bytes[0] & 0x7f) | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

fn params(name: String, validity: Validity) -> Result<CertificateParams, Trouble> {
    let at = |seconds| {
        OffsetDateTime::from_unix_timestamp(seconds)
            .map_err(|error| failed("a certificate cannot end then", error))
    };
    let mut params = CertificateParams::default();
    params.not_before = at(validity.from_s)?;
    params.not_after = at(validity.to_s)?;
    params.serial_number = Some(serial()?);
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// A CA's name is made of its key, so that two of them never share one, and so
/// that it can be told again from the key.
fn ca_params(key: &KeyPair, validity: Validity) -> Result<CertificateParams, Trouble> {
    let print = digest(&SHA256, key.public_key_raw());
    let name = format!("gapscope CA {}", hex(&print.as_ref()[..4]));
    let mut params = params(name, validity)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

impl Authority {
    /// Makes a new one in a folder that has none.
    ///
    /// # Errors
    /// When there is one, or the files cannot be written.
    pub fn create(folder: &Path, validity: Validity) -> Result<Self, Trouble> {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|error| failed(&format!("cannot make `{}`", folder.display()), error))?;
        let key = KeyPair::generate().map_err(|error| failed("no key can be made", error))?;
        let params = ca_params(&key, validity)?;
        let certificate = params
            .self_signed(&key)
            .map_err(|error| failed("the CA's certificate cannot be made", error))?;
        write_pair(
            &folder.join(CA_CERT),
            &certificate.pem(),
            &folder.join(CA_KEY),
            &Zeroizing::new(key.serialize_pem()),
            false,
        )?;
        Ok(Self {
            folder: folder.to_owned(),
            issuer: Issuer::new(params, key),
        })
    }

    /// Opens that of a folder.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn open(folder: &Path) -> Result<Self, Trouble> {
        let read = |name: &str| {
            let path = folder.join(name);
            small_file::read_text(&path, small_file::BY_HAND).map_err(|error| {
                Trouble::hinted(
                    format!("cannot read `{}`: {error}", path.display()),
                    "`gapscope-aggregator certs init DIR` makes a new CA",
                )
            })
        };
        let certificate = read(CA_CERT)?;
        let key = Zeroizing::new(read(CA_KEY)?);
        let unusable = |error| {
            failed(
                &format!("the CA in `{}` cannot be used", folder.display()),
                error,
            )
        };
        let key = KeyPair::from_pem(&key).map_err(unusable)?;
        let same = CertificateDer::from_pem_slice(certificate.as_bytes())
            .ok()
            .and_then(|der| {
                let end = EndEntityCert::try_from(&der).ok()?;
                Some(end.subject_public_key_info().as_ref() == key.subject_public_key_info())
            });
        if same != Some(true) {
            return Err(Trouble::hinted(
                format!(
                    "`{CA_KEY}` in `{}` is not the key of `{CA_CERT}` there",
                    folder.display()
                ),
                "put back the two that were made together",
            ));
        }
        // What the issuer says of itself does not depend on its validity.
        let params = ca_params(&key, Validity { from_s: 0, to_s: 0 })?;
        let issuer = Issuer::new(params, key);
        Ok(Self {
            folder: folder.to_owned(),
            issuer,
        })
    }

    /// The CA's own certificate: what everybody gets.
    pub fn cert(&self) -> PathBuf {
        self.folder.join(CA_CERT)
    }

    /// Issues a certificate with a key of its own.
    ///
    /// # Errors
    /// When it is there and must not be replaced, a name makes no sense, or the
    /// files cannot be written.
    pub fn issue(&self, whose: &Whose, validity: Validity, replace: bool) -> Result<Pair, Trouble> {
        let pair = self.pair(whose);
        if !replace {
            absent(&pair.cert)?;
            absent(&pair.key)?;
        }
        let key = KeyPair::generate().map_err(|error| failed("no key can be made", error))?;
        let mut params = params(format!("gapscope {}", whose.stem()), validity)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        match whose {
            Whose::Server(hosts) => {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
                params.subject_alt_names = hosts
                    .iter()
                    .map(|host| name_of(host))
                    .collect::<Result<_, _>>()?;
            }
            Whose::Client(principal) => {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
                let uri = principal.uri().try_into();
                let uri =
                    uri.map_err(|error| failed("the name cannot stand in a certificate", error))?;
                params.subject_alt_names = vec![SanType::URI(uri)];
            }
        }
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(|error| failed("the certificate cannot be made", error))?;
        write_pair(
            &pair.cert,
            &certificate.pem(),
            &pair.key,
            &Zeroizing::new(key.serialize_pem()),
            replace,
        )?;
        Ok(pair)
    }

    /// Where somebody's files are.
    pub fn pair(&self, whose: &Whose) -> Pair {
        let stem = whose.stem();
        Pair {
            cert: self.folder.join(format!("{stem}.pem")),
            key: self.folder.join(format!("{stem}.key")),
        }
    }
}

fn name_of(host: &str) -> Result<SanType, Trouble> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(ip));
    }
    let wrong = || {
        Trouble::hinted(
            format!("--host: `{host}` is neither a host name nor an address"),
            "give it as agents will write it in the URL, without port",
        )
    };
    // What clients accept as a name is what counts.
    ServerName::try_from(host).map_err(|_| wrong())?;
    host.try_into().map(SanType::DnsName).map_err(|_| wrong())
}

fn absent(path: &Path) -> Result<(), Trouble> {
    match path.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(_) => Err(exists(path)),
    }
}

fn exists(path: &Path) -> Trouble {
    Trouble::hinted(
        format!(
            "`{}` is there already and is not overwritten",
            path.display()
        ),
        "--replace makes a certificate anew; a CA stays: choose another folder for another one",
    )
}

/// The key first: a certificate without its key would be of no use.
fn write_pair(
    cert: &Path,
    cert_pem: &str,
    key: &Path,
    key_pem: &str,
    replace: bool,
) -> Result<(), Trouble> {
    if !replace {
        absent(cert)?;
    }
    write(key, key_pem, 0o600, replace)?;
    write(cert, cert_pem, 0o644, replace)
}

/// Writes a file that is not there, or puts it in the place of the one that is.
///
/// # Errors
/// When it is there and must not be replaced, or cannot be written.
pub fn write(path: &Path, text: &str, mode: u32, replace: bool) -> Result<(), Trouble> {
    let wrong = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists if !replace => exists(path),
        _ => failed(&format!("cannot write `{}`", path.display()), error),
    };
    let target = if replace {
        let mut name = path.as_os_str().to_owned();
        name.push(".new");
        let target = PathBuf::from(name);
        // What an earlier attempt has left.
        let _ = std::fs::remove_file(&target);
        target
    } else {
        path.to_owned()
    };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&target)
        .map_err(wrong)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .map_err(wrong)?;
    if replace {
        std::fs::rename(&target, path).map_err(wrong)?;
    }
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))
        .and_then(|folder| folder.sync_all())
        .map_err(wrong)
}

/// A new bearer token: 256 random bits, in hex.
///
/// # Errors
/// When the system gives no random numbers.
pub fn new_token() -> Result<Zeroizing<String>, Trouble> {
    let mut bytes = Zeroizing::new([0_u8; 32]);
    SystemRandom::new()
        .fill(&mut *bytes)
        .map_err(|_| Trouble::new("the system gives no random numbers"))?;
    let mut text = Zeroizing::new(String::with_capacity(64));
    for byte in bytes.iter() {
        use std::fmt::Write as _;
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapscope_proto::tls::Facts;
    use gapscope_proto::tls::material::{ServerFiles, client, server};
    use std::os::unix::fs::MetadataExt;

    const NOW_S: i64 = 1_790_000_000;

    fn facts(path: &Path) -> Facts {
        let der = CertificateDer::from_pem_file(path).expect("a certificate");
        Facts::read(&der).expect("makes sense")
    }

    #[test]
    fn what_is_issued_is_for_whom_it_was_ordered_and_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path().join("certs");
        let validity = Validity::days(NOW_S, 10);
        Authority::create(&folder, Validity::days(NOW_S, CA_DAYS)).expect("made");
        let authority = Authority::open(&folder).expect("opened again");
        let hosts = vec![
            "db.example".to_owned(),
            "10.0.0.5".to_owned(),
            "::1".to_owned(),
        ];
        let of_server = Whose::Server(hosts.clone());
        let own = authority
            .issue(&of_server, validity, false)
            .expect("issued");
        assert_eq!(facts(&own.cert).hosts, hosts);
        assert_eq!(facts(&own.cert).principal(), Ok(None));
        assert_eq!(facts(&own.cert).not_before_s, NOW_S - 3_600);
        assert_eq!(facts(&own.cert).not_after_s, NOW_S + 864_000);
        let agent: Principal = "agent:east-1".parse().expect("somebody");
        let of_agent = Whose::Client(agent.clone());
        let pair = authority.issue(&of_agent, validity, false).expect("issued");
        assert_eq!(pair.cert, folder.join("agent-east-1.pem"));
        assert_eq!(facts(&pair.cert).principal(), Ok(Some(&agent)));
        assert_eq!(facts(&pair.cert).serial.len(), 32);
        for key in ["ca.key", "server.key", "agent-east-1.key"] {
            let mode = std::fs::metadata(folder.join(key)).expect("there").mode();
            assert_eq!(mode & 0o777, 0o600, "{key}");
        }
        // Both ends can use them.
        client(&authority.cert(), Some((&pair.cert, &pair.key))).expect("usable");
        let files = ServerFiles {
            cert: own.cert.clone(),
            key: own.key.clone(),
            client_ca: Some(authority.cert()),
            client_may_be_bare: false,
        };
        server(&files).expect("usable");
        let mixed = ServerFiles {
            key: pair.key.clone(),
            ..files
        };
        let trouble = server(&mixed).expect_err("another's key");
        assert!(trouble.what.contains("does not belong to"), "{trouble}");

        let serial = facts(&pair.cert).serial;
        let again = authority
            .issue(&of_agent, validity, false)
            .expect_err("there");
        assert!(again.what.contains("is not overwritten"), "{again}");
        assert_eq!(facts(&pair.cert).serial, serial, "untouched");
        authority
            .issue(&of_agent, validity, true)
            .expect("replaced");
        assert_ne!(facts(&pair.cert).serial, serial);
        client(&authority.cert(), Some((&pair.cert, &pair.key))).expect("usable");
        let again = Authority::create(&folder, validity);
        assert!(again.is_err(), "a CA is never overwritten");
        std::fs::copy(&own.key, folder.join(CA_KEY)).expect("copied");
        let other = Authority::open(&folder);
        assert!(other.is_err(), "another's key");
    }

    #[test]
    fn names_that_nobody_could_connect_by_are_refused() {
        for bad in ["", "a b", "https://x", "x:1", "-"] {
            assert!(name_of(bad).is_err(), "{bad:?}");
        }
    }
}
