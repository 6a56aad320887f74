//! What can be probed, from the file or from a flag.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use gapscope_proto::ids::TargetName;
use gapscope_proto::secret::Secret;
use serde::Deserialize;
use serde_spanned::Spanned;

use super::error::{ConfigError, Place};
use super::{DEFAULT_MAX_CONNECTS_PER_SECOND, Sources};
use crate::names;
use crate::probe::identity::check_expression;
use crate::reach::{DEFAULT_MAX_SOCKETS, Reach, TlsFiles};

/// One endpoint that can be probed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its name in plans and reports.
    pub name: TargetName,
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Who logs in.
    pub user: String,
    /// With which password.
    pub password: Secret,
    /// Default database, if any.
    pub database: Option<String>,
    /// SQL expression that says which backend answers.
    pub identity: Option<String>,
    /// The guard: more new connections a second are not made.
    pub max_connects_per_second: u32,
    /// TLS, name lookups, sockets.
    pub reach: Reach,
}

impl Target {
    /// `host:port`, as configured.
    pub fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileTarget {
    pub(super) name: Spanned<String>,
    address: Spanned<String>,
    user: String,
    password_env: Option<Spanned<String>>,
    password_file: Option<Spanned<PathBuf>>,
    database: Option<String>,
    identity: Option<Spanned<String>>,
    max_connects_per_second: Option<Spanned<u32>>,
    tls: Option<Spanned<String>>,
    tls_ca: Option<PathBuf>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_name: Option<String>,
    #[serde(default)]
    follow_dns: bool,
    name_server: Option<Spanned<String>>,
    max_sockets: Option<Spanned<u32>>,
    breaker: Option<bool>,
    inspect: Option<bool>,
}

impl FileTarget {
    /// How the target is reached. `whole` is where it stands.
    fn reach(&self, whole: &Range<usize>, place: Place<'_>) -> Result<Reach, ConfigError> {
        let at_tls = |why: String| {
            let span = self.tls.as_ref().map_or(whole.clone(), Spanned::span);
            place.at(span, "tls", &why)
        };
        let files = TlsFiles {
            mode: self
                .tls
                .as_ref()
                .map(|word| word.get_ref().parse().map_err(at_tls))
                .transpose()?,
            ca: self.tls_ca.clone(),
            cert: self.tls_cert.clone(),
            key: self.tls_key.clone(),
            name: self.tls_name.clone(),
        };
        let tls = files
            .load(place.path.parent().unwrap_or(Path::new(".")))
            .map_err(at_tls)?;
        let max_sockets = match &self.max_sockets {
            None => DEFAULT_MAX_SOCKETS,
            Some(most) if *most.get_ref() == 0 => {
                return Err(place.at(
                    most.span(),
                    "max_sockets",
                    &"0 would never connect; at least 1 is needed",
                ));
            }
            Some(most) => *most.get_ref(),
        };
        let name_server = self
            .name_server
            .as_ref()
            .map(|text| {
                name_server(text.get_ref())
                    .map_err(|why| place.at(text.span(), "name_server", &why))
            })
            .transpose()?;
        Ok(Reach {
            tls,
            follow_dns: self.follow_dns,
            name_server,
            max_sockets,
            breaker: self.breaker.unwrap_or(true),
            inspect: self.inspect.unwrap_or(true),
        })
    }

    /// Checks it and reads its password. `whole` is where it stands.
    pub(super) fn resolve(
        self,
        whole: Range<usize>,
        place: Place<'_>,
        sources: &impl Sources,
    ) -> Result<Target, ConfigError> {
        let reach = self.reach(&whole, place)?;
        let name: TargetName = self
            .name
            .get_ref()
            .parse()
            .map_err(|error| place.at(self.name.span(), "name", &error))?;
        let (host, port) = split_address(self.address.get_ref())
            .map_err(|why| place.at(self.address.span(), "address", &why))?;
        let password = match (&self.password_env, &self.password_file) {
            (Some(_), Some(_)) => {
                return Err(place.at(
                    whole,
                    "password_file",
                    &"give either password_env or password_file, not both",
                ));
            }
            (Some(variable), None) => {
                Secret::new(sources.env(variable.get_ref()).ok_or_else(|| {
                    place.at(
                        variable.span(),
                        "password_env",
                        &format!(
                            "the environment variable `{}` (password of target `{name}`) is not set",
                            variable.get_ref()
                        ),
                    )
                })?)
            }
            (None, Some(file)) => {
                let file_path = place.beside(file.get_ref());
                let read = sources.file(&file_path).map_err(|why| {
                    place.at(
                        file.span(),
                        "password_file",
                        &format!("cannot read `{}`: {why}", file_path.display()),
                    )
                })?;
                Secret::first_line(read)
            }
            (None, None) => Secret::default(),
        };
        let max_connects_per_second = match self.max_connects_per_second {
            None => DEFAULT_MAX_CONNECTS_PER_SECOND,
            Some(rate) if *rate.get_ref() == 0 => {
                return Err(place.at(
                    rate.span(),
                    "max_connects_per_second",
                    &"0 would never connect; at least 1 is needed",
                ));
            }
            Some(rate) => rate.into_inner(),
        };
        let identity = match self.identity {
            None => None,
            Some(expression) => {
                check_expression(expression.get_ref())
                    .map_err(|why| place.at(expression.span(), "identity", &why))?;
                Some(expression.into_inner())
            }
        };
        Ok(Target {
            name,
            host,
            port,
            user: self.user,
            password,
            database: self.database,
            identity,
            max_connects_per_second,
            reach,
        })
    }
}

/// `ADDRESS` or `ADDRESS:PORT`; a name would need a name server itself.
fn name_server(text: &str) -> Result<SocketAddr, String> {
    text.parse::<SocketAddr>()
        .ok()
        .or_else(|| Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, names::PORT)))
        .filter(|address| address.port() != 0)
        .ok_or_else(|| {
            format!("`{text}` is no address: write 10.0.0.53, 10.0.0.53:5353 or [fd00::53]:53")
        })
}

pub(crate) fn split_address(text: &str) -> Result<(String, u16), String> {
    let wrong = || format!("`{text}` is not HOST:PORT (an IPv6 address stands in brackets)");
    let (host, port) = text.rsplit_once(':').ok_or_else(wrong)?;
    let port = u16::from_str(port).map_err(|_| wrong())?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or_else(wrong)?,
        None if host.contains(':') => return Err(wrong()),
        None => host,
    };
    if host.is_empty() || port == 0 {
        return Err(wrong());
    }
    Ok((host.to_owned(), port))
}

pub(super) fn target_from_flag(text: &str, sources: &impl Sources) -> Result<Target, ConfigError> {
    let wrong = |why: &str| {
        // The text is not quoted: somebody may have put a password into it.
        ConfigError::new(format!("--target: {why}")).hint(
            "write NAME=USER@HOST:PORT[/DB]; the password comes from GAPSCOPE_PASSWORD_<NAME>, \
             GAPSCOPE_PASSWORD or, with --config, from password_env or password_file",
        )
    };
    let (name, rest) = text
        .split_once('=')
        .ok_or_else(|| wrong("there is no `=` behind the name"))?;
    let name: TargetName = name.parse().map_err(|error| wrong(&format!("{error}")))?;
    let (user, rest) = rest
        .rsplit_once('@')
        .ok_or_else(|| wrong(&format!("target `{name}` has no USER@")))?;
    if user.contains(':') {
        return Err(wrong(&format!(
            "target `{name}` has a `:` in the user: a password is never taken from a flag"
        )));
    }
    let (address, database) = match rest.split_once('/') {
        Some((address, database)) if !database.is_empty() => (address, Some(database.to_owned())),
        Some((address, _)) => (address, None),
        None => (rest, None),
    };
    let (host, port) =
        split_address(address).map_err(|why| wrong(&format!("target `{name}`: {why}")))?;
    let variable: String = name
        .as_str()
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect();
    let password = sources
        .env(&format!("GAPSCOPE_PASSWORD_{variable}"))
        .or_else(|| sources.env("GAPSCOPE_PASSWORD"))
        .unwrap_or_default();
    Ok(Target {
        name,
        host,
        port,
        user: user.to_owned(),
        password: Secret::new(password),
        database,
        identity: None,
        max_connects_per_second: DEFAULT_MAX_CONNECTS_PER_SECOND,
        reach: Reach::default(),
    })
}
