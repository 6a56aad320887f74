//! What a person is told when a secured connection fails: a sentence, and what to
//! do, on the side of whoever can do it. Pure.
//!
//! Where a certificate is refused, rustls tells its own side why, and the other
//! side only by an alert's number. So an alert about one's own certificate is
//! explained from what that certificate says and from one's own clock.

use std::fmt;

use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, CertificateError, Error, InvalidMessage, PeerIncompatible};

use super::certificate::Facts;
use crate::utc;

/// What is wrong, and what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trouble {
    /// What failed, and why.
    pub what: String,
    /// What to do.
    pub hint: Option<String>,
}

impl Trouble {
    /// Without a hint.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            hint: None,
        }
    }

    /// With one.
    pub fn hinted(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            hint: Some(hint.into()),
        }
    }

    /// Both, for a line of a log.
    pub fn line(&self) -> String {
        match &self.hint {
            None => self.what.clone(),
            Some(hint) => format!("{} (hint: {hint})", self.what),
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Trouble {}

/// Who is told.
#[derive(Debug, Clone, Copy)]
pub enum Side<'a> {
    /// The one who connects.
    Client {
        /// Its own certificate, if it has one.
        own: Option<&'a Facts>,
        /// Its clock, in seconds since 1970.
        now_s: i64,
    },
    /// The one who is connected to.
    Server,
}

impl Side<'_> {
    fn other(self) -> &'static str {
        match self {
            Self::Client { .. } => "the aggregator",
            Self::Server => "the client",
        }
    }

    fn renew(self) -> &'static str {
        match self {
            Self::Client { .. } => {
                "renew it on the aggregator's host with `gapscope-aggregator certs server`, or set \
                 the clock here if it is wrong"
            }
            Self::Server => {
                "renew it with `gapscope-aggregator certs agent` (or operator, viewer), or set the \
                 clock here if it is wrong"
            }
        }
    }
}

/// Explains why a handshake failed.
pub fn explain(error: &Error, side: Side<'_>) -> Trouble {
    match error {
        Error::InvalidCertificate(why) => of_certificate(why, side),
        Error::AlertReceived(alert) => of_alert(*alert, side),
        Error::NoCertificatesPresented => Trouble::hinted(
            "the client shows no certificate, and this aggregator asks for one",
            "give the agent [tls] cert and key, a command --cert and --key",
        ),
        Error::InvalidMessage(InvalidMessage::InvalidContentType) => match side {
            Side::Client { .. } => not_tls(),
            Side::Server => clear_text_to_tls(),
        },
        Error::PeerIncompatible(PeerIncompatible::NoCertificateRequestSignatureSchemesInCommon) => {
            Trouble::new(format!("{} knows no common signatures", side.other()))
        }
        Error::PeerIncompatible(_) => Trouble::hinted(
            format!("{} does not speak TLS 1.3: {error}", side.other()),
            "something between may end TLS: connect past it",
        ),
        other => Trouble::new(format!("the TLS handshake failed: {other}")),
    }
}

/// The server answers in clear text.
pub fn not_tls() -> Trouble {
    Trouble::hinted(
        "what answers there does not speak TLS",
        "write http://, or start the aggregator with --tls-cert and --tls-key",
    )
}

/// The client speaks in clear text.
pub fn clear_text_to_tls() -> Trouble {
    Trouble::hinted(
        "the client speaks clear text, and this aggregator speaks TLS",
        "write https:// in the client's --aggregator or configuration",
    )
}

/// The client speaks TLS.
pub fn tls_to_clear_text() -> Trouble {
    Trouble::hinted(
        "the client speaks TLS, and this aggregator speaks clear text",
        "start the aggregator with --tls-cert and --tls-key, or write http:// in the client's \
         --aggregator or configuration",
    )
}

fn seconds(time: UnixTime) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}

fn of_certificate(why: &CertificateError, side: Side<'_>) -> Trouble {
    let whose = format!("{}'s certificate", side.other());
    match why {
        CertificateError::ExpiredContext { time, not_after } => Trouble::hinted(
            format!(
                "{whose} expired on {} (the clock here says {})",
                utc::minute(seconds(*not_after)),
                utc::minute(seconds(*time))
            ),
            side.renew(),
        ),
        CertificateError::Expired => Trouble::hinted(format!("{whose} has expired"), side.renew()),
        CertificateError::NotValidYetContext { time, not_before } => Trouble::hinted(
            format!(
                "{whose} is not valid before {} (the clock here says {})",
                utc::minute(seconds(*not_before)),
                utc::minute(seconds(*time))
            ),
            "set the clock that is wrong: this host's, or that of the host on which the \
             certificate was made",
        ),
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => Trouble::hinted(
            format!(
                "{whose} is not for `{}` but for {}",
                expected.to_str(),
                if presented.is_empty() {
                    "no host at all".to_owned()
                } else {
                    presented
                        .iter()
                        .map(|n| bare(n))
                        .collect::<Vec<_>>()
                        .join(", ")
                }
            ),
            "connect by a name that it is for, or make one for this name with \
             `gapscope-aggregator certs server DIR --host NAME`",
        ),
        CertificateError::UnknownIssuer => match side {
            Side::Client { .. } => Trouble::hinted(
                format!("{whose} was not issued by the CA that this side trusts"),
                "`ca` (--ca) must be the ca.pem of the aggregator that you mean to reach; if it is, \
                 somebody else answers there",
            ),
            Side::Server => Trouble::hinted(
                format!("{whose} was not issued by the CA of --client-ca"),
                "make it with `gapscope-aggregator certs agent` in the folder of that CA",
            ),
        },
        CertificateError::BadSignature => Trouble::hinted(
            format!("{whose} has a signature that is not of the CA whose name it bears"),
            "a CA of the same name was made anew: hand out its ca.pem, or issue the certificate \
             again",
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            match side {
                Side::Client { .. } => Trouble::hinted(
                    format!("{whose} is not one of a server"),
                    "--tls-cert must be a server's certificate, such as server.pem; if it is, \
                     somebody else answers there",
                ),
                Side::Server => Trouble::hinted(
                    format!("{whose} is not one of a client"),
                    "give it an agent's or operator's certificate, not the server's",
                ),
            }
        }
        other => Trouble::new(format!("{whose} is not accepted: {other}")),
    }
}

/// `DnsName("x")` as `x`.
fn bare(presented: &str) -> String {
    let inner = presented
        .split_once('(')
        .map_or(presented, |(_, rest)| rest.trim_end_matches(')'));
    format!("`{}`", inner.trim_matches('"'))
}

fn of_alert(alert: AlertDescription, side: Side<'_>) -> Trouble {
    match side {
        Side::Client { own, now_s } => of_alert_to_client(alert, own, now_s),
        Side::Server => of_alert_to_server(alert),
    }
}

fn of_alert_to_client(alert: AlertDescription, own: Option<&Facts>, now_s: i64) -> Trouble {
    match alert {
        AlertDescription::CertificateRequired => Trouble::hinted(
            "the aggregator asks for a client certificate, and none was given",
            "give the agent [tls] cert and key, a command --cert and --key; \
             `gapscope-aggregator certs agent DIR ID` on the aggregator's host makes them",
        ),
        AlertDescription::CertificateExpired => {
            let why = own.map_or_else(
                || "as expired or not yet valid".to_owned(),
                |own| match own.warning(now_s) {
                    Some(why) => format!("it {why}"),
                    None => format!(
                        "as expired or not yet valid: it is {}, and the clock here says {}",
                        own.validity(),
                        utc::minute(now_s)
                    ),
                },
            );
            let hint = match own {
                Some(own) if now_s >= own.not_before_s && now_s <= own.not_after_s => {
                    "by the clock here it is valid: the aggregator's clock may be wrong"
                }
                _ => {
                    "get a new one (`gapscope-aggregator certs agent DIR ID` on the aggregator's \
                     host), or set the clock that is wrong"
                }
            };
            Trouble::hinted(
                format!("the aggregator refuses the certificate of this side: {why}"),
                hint,
            )
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => Trouble::hinted(
            "the aggregator refuses the certificate of this side: it was not issued by the CA \
             that the aggregator trusts",
            "use one made by `gapscope-aggregator certs agent` in the folder of that aggregator's CA",
        ),
        AlertDescription::UnsupportedCertificate => Trouble::hinted(
            "the aggregator refuses the certificate of this side: it is not one of a client",
            "give an agent's or operator's certificate, not the server's",
        ),
        AlertDescription::AccessDenied
        | AlertDescription::BadCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRevoked => Trouble::hinted(
            format!("the aggregator refuses the certificate of this side ({alert:?})"),
            "its log says why",
        ),
        AlertDescription::ProtocolVersion => Trouble::hinted(
            "what answers there does not speak TLS 1.3",
            "something between may end TLS: connect past it",
        ),
        AlertDescription::NoApplicationProtocol => Trouble::hinted(
            "what answers there speaks TLS, but no HTTP/2 over it",
            "is this the aggregator's port?",
        ),
        other => Trouble::hinted(
            format!("what answers there ended the TLS handshake ({other:?})"),
            "the aggregator's log says why",
        ),
    }
}

fn of_alert_to_server(alert: AlertDescription) -> Trouble {
    match alert {
        AlertDescription::UnknownCA | AlertDescription::DecryptError => Trouble::hinted(
            "the client does not trust this aggregator's certificate: it knows another CA",
            "give the client the ca.pem of the CA that issued --tls-cert",
        ),
        AlertDescription::CertificateExpired => Trouble::hinted(
            "the client refuses this aggregator's certificate as expired or not yet valid",
            "renew it with `gapscope-aggregator certs server`, or set the clock that is wrong",
        ),
        AlertDescription::BadCertificate => Trouble::hinted(
            "the client refuses this aggregator's certificate: most likely it is not for the name \
             by which the client connects",
            "make one for that name with `gapscope-aggregator certs server DIR --host NAME`",
        ),
        AlertDescription::UnsupportedCertificate => Trouble::hinted(
            "the client refuses this aggregator's certificate: it is not one of a server",
            "--tls-cert must be a server's certificate, such as server.pem",
        ),
        other => Trouble::new(format!("the client ended the TLS handshake ({other:?})")),
    }
}
