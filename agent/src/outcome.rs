//! What a probe's result is called. Pure.
//!
//! Verdicts are keyed on the kernel's error kinds and numbers, the driver's
//! error types and the server's error numbers; never on what the message of an
//! operating system says. Two texts of the driver are read, because it puts two
//! things into one kind ([`io::ErrorKind::UnexpectedEof`]): an orderly close by
//! the peer, and a packet that ends too early.
//!
//! An error packet is `server_error` wherever it comes: at login (1045, 1040,
//! 1129 ...) with phase `connect`, and its code is kept; [`codes`] says who speaks
//! and what it means. A connection that ends without one is `connect_failed`
//! during login and `connection_lost` later; its cause tells FIN (`closed`), RST
//! (`reset`) and our own timeouts apart.
//!
//! `may_have_executed` means: the statement was sent and no answer came. An error
//! packet is an answer, except the ones by which a proxy says that it has lost
//! its own connection to the backend in mid-query (2013 and its like).
//!
//! What it cannot know: whether bytes that were accepted by the kernel ever left
//! it. A statement that may have been sent counts as sent. Nor whether a peer that
//! sent RST had read the statement.
//!
//! All of it is listed in `agent/docs/outcomes.md`, which a test keeps in step.

pub mod codes;
pub mod table;

use std::io;

use gapscope_proto::sample::{Cause, MAX_ERROR_CHARS, Outcome, Phase};
use mysql_async::{DriverError, Error, IoError};

/// What a probe's end is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// What became of it.
    pub outcome: Outcome,
    /// The finer kind.
    pub cause: Option<Cause>,
    /// MySQL error number, as the server gave it.
    pub code: Option<u16>,
    /// SQLSTATE, as the server gave it.
    pub sqlstate: Option<String>,
    /// The text, at most [`MAX_ERROR_CHARS`] characters.
    pub text: String,
    /// Whose error packet it is.
    pub speaker: Option<codes::Speaker>,
    /// Statement sent, no answer.
    pub may_have_executed: bool,
}

impl Verdict {
    fn new(outcome: Outcome, cause: Cause, text: impl Into<String>) -> Self {
        Self {
            outcome,
            cause: Some(cause),
            code: None,
            sqlstate: None,
            text: shorten(&text.into()),
            speaker: None,
            may_have_executed: false,
        }
    }

    fn unanswered(mut self, phase: Phase) -> Self {
        self.may_have_executed = matches!(phase, Phase::Query | Phase::Commit);
        self
    }

    /// Takes a secret out of the text, should a server or a driver have put it in.
    pub fn without(mut self, secret: &str) -> Self {
        if !secret.is_empty() && self.text.contains(secret) {
            self.text = self.text.replace(secret, "***");
        }
        if !secret.is_empty() && self.sqlstate.as_deref().is_some_and(|s| s.contains(secret)) {
            self.sqlstate = None;
        }
        self
    }
}

/// Whether a character steers a terminal instead of being shown: what a server says
/// must not.
pub(crate) fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn shorten(text: &str) -> String {
    text.chars()
        .take(MAX_ERROR_CHARS)
        .map(|c| if is_unprintable(c) { '\u{fffd}' } else { c })
        .collect()
}

/// The address could not be looked up.
pub fn of_resolve_error(error: &io::Error) -> Verdict {
    match local_limit(error) {
        Some(cause) => Verdict::new(Outcome::AgentError, cause, error.to_string()),
        None => Verdict::new(
            Outcome::ConnectFailed,
            Cause::NotResolved,
            error.to_string(),
        ),
    }
}

/// The client's own timeout ran out in `phase`.
pub fn of_timeout(phase: Phase, timeout_ns: u64) -> Verdict {
    let (cause, doing) = match phase {
        Phase::Resolve => (Cause::ResolveTimeout, "the name lookup"),
        Phase::Connect => (Cause::ConnectTimeout, "TCP and login"),
        Phase::Setup => (Cause::QueryTimeout, "setting up the session"),
        Phase::Query => (Cause::QueryTimeout, "the statement"),
        Phase::Ping => (Cause::QueryTimeout, "COM_PING"),
        Phase::Begin => (Cause::QueryTimeout, "the transaction, at its BEGIN,"),
        Phase::Write => (Cause::QueryTimeout, "the transaction, at its INSERT,"),
        Phase::Commit => (Cause::QueryTimeout, "the transaction, at its COMMIT,"),
    };
    Verdict::new(
        Outcome::TimedOut,
        cause,
        format!("{doing} took longer than {} ms", timeout_ns / 1_000_000),
    )
    .unanswered(phase)
}

/// The run ended while the probe waited in `phase`.
pub fn of_run_end(phase: Phase) -> Verdict {
    Verdict::new(
        Outcome::TimedOut,
        Cause::RunEnded,
        "the run ended before an answer came",
    )
    .unanswered(phase)
}

/// The driver panicked in `phase`.
pub fn of_panic(phase: Phase, text: &str) -> Verdict {
    Verdict::new(Outcome::ProtocolError, Cause::DriverPanic, text).unanswered(phase)
}

/// The guard held a connection back.
pub fn of_guard(per_second: u32) -> Verdict {
    Verdict::new(
        Outcome::AgentError,
        Cause::Guard,
        format!("the guard allows {per_second} connections a second to this target"),
    )
}

/// So many sockets to the target are open that no more is opened.
pub fn of_socket_limit(most: u32) -> Verdict {
    Verdict::new(
        Outcome::AgentError,
        Cause::Guard,
        format!(
            "the agent has {most} sockets to this target open, abandoned ones included, and opens no more"
        ),
    )
}

/// The circuit breaker is open.
pub fn of_breaker(left_ns: u64) -> Verdict {
    Verdict::new(
        Outcome::AgentError,
        Cause::Breaker,
        format!(
            "the circuit breaker is open for another {} ms: not probed",
            left_ns.div_ceil(1_000_000)
        ),
    )
}

/// The target says that it has no connection left: each further attempt makes it
/// worse.
pub fn is_overload(verdict: &Verdict) -> bool {
    verdict.outcome == Outcome::ServerError && verdict.cause == Some(Cause::TooManyConnections)
}

/// The answer is not of the shape that was asked for.
pub fn of_wrong_shape(why: &str) -> Verdict {
    Verdict::new(Outcome::WrongAnswer, Cause::WrongShape, why)
}

/// What a client does is not supported here, as an error packet said at its start.
pub fn of_unsupported(why: &Verdict) -> Verdict {
    Verdict {
        outcome: Outcome::AgentError,
        cause: Some(Cause::Unsupported),
        may_have_executed: false,
        ..why.clone()
    }
}

/// The session's state is not what it was set to.
pub fn of_broken_canary(why: &str) -> Verdict {
    Verdict::new(Outcome::StateLost, Cause::CanaryBroken, why)
}

/// The driver returned an error in `phase`.
pub fn of_driver_error(error: &Error, phase: Phase) -> Verdict {
    match error {
        Error::Io(IoError::Io(error)) => of_io(error, phase),
        // Of our own settings: a certificate of ours, a name that cannot be one.
        Error::Io(IoError::Tls(error)) => {
            Verdict::new(Outcome::AgentError, Cause::Tls, error.to_string())
        }
        Error::Server(error) => {
            let meaning = codes::meaning(error.code, &error.message);
            Verdict {
                outcome: Outcome::ServerError,
                cause: Some(meaning.cause),
                code: Some(error.code),
                sqlstate: Some(error.state.chars().take(5).collect()),
                text: shorten(&error.message),
                speaker: Some(meaning.speaker),
                may_have_executed: matches!(phase, Phase::Query | Phase::Commit)
                    && meaning.unknown_effect,
            }
        }
        Error::Driver(DriverError::ConnectionClosed) => Verdict::new(
            lost(phase),
            Cause::Closed,
            "the connection was closed before",
        ),
        Error::Driver(
            error @ (DriverError::UnknownAuthPlugin { .. }
            | DriverError::MysqlOldPasswordDisabled
            | DriverError::CleartextPluginDisabled),
        ) => Verdict::new(Outcome::ConnectFailed, Cause::Denied, error.to_string()),
        Error::Driver(error @ DriverError::NoClientSslFlagFromServer) => {
            Verdict::new(Outcome::ConnectFailed, Cause::Tls, error.to_string())
        }
        Error::Driver(error) => {
            Verdict::new(Outcome::ProtocolError, Cause::Malformed, error.to_string())
                .unanswered(phase)
        }
        Error::Url(error) => Verdict::new(Outcome::AgentError, Cause::Local, error.to_string()),
        Error::Other(error) => {
            Verdict::new(Outcome::ProtocolError, Cause::Malformed, error.to_string())
                .unanswered(phase)
        }
    }
}

/// No connection could be made for a reason that another address of the same
/// name may not have.
pub fn is_address_trouble(error: &Error) -> bool {
    let Error::Io(IoError::Io(error)) = error else {
        return false;
    };
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::AddrNotAvailable
    )
}

fn lost(phase: Phase) -> Outcome {
    match phase {
        Phase::Resolve | Phase::Connect => Outcome::ConnectFailed,
        _ => Outcome::ConnectionLost,
    }
}

/// Limits of the agent's own host.
fn local_limit(error: &io::Error) -> Option<Cause> {
    const EPERM: i32 = 1;
    const ENOMEM: i32 = 12;
    const EACCES: i32 = 13;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const EADDRINUSE: i32 = 98;
    const EADDRNOTAVAIL: i32 = 99;
    const ENOBUFS: i32 = 105;
    match error.raw_os_error()? {
        ENFILE | EMFILE => Some(Cause::NoFileHandles),
        EADDRINUSE | EADDRNOTAVAIL => Some(Cause::NoLocalPort),
        EPERM | EACCES | ENOMEM | ENOBUFS => Some(Cause::Local),
        _ => None,
    }
}

fn of_io(error: &io::Error, phase: Phase) -> Verdict {
    use io::ErrorKind as Kind;
    let text = error.to_string();
    if let Some(cause) = local_limit(error) {
        return Verdict::new(Outcome::AgentError, cause, text).unanswered(phase);
    }
    let ended = |cause| Verdict::new(lost(phase), cause, text.clone()).unanswered(phase);
    if let Some(verdict) = of_tls(error, phase) {
        return verdict;
    }
    let malformed =
        || Verdict::new(Outcome::ProtocolError, Cause::Malformed, text.clone()).unanswered(phase);
    match error.kind() {
        Kind::ConnectionRefused => ended(Cause::Refused),
        Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::NetworkDown => {
            ended(Cause::Unreachable)
        }
        Kind::ConnectionReset | Kind::ConnectionAborted => ended(Cause::Reset),
        // Writing where the peer had closed: the statement never left.
        Kind::BrokenPipe | Kind::NotConnected => {
            let mut verdict = ended(Cause::Closed);
            verdict.may_have_executed = false;
            verdict
        }
        // The codec's word for an orderly close; then those of the TLS layer, for
        // a FIN without TLS's own good-bye and for one during its handshake.
        Kind::UnexpectedEof
            if text == "connection closed"
                || text == "tls handshake eof"
                || text.starts_with("peer closed connection without sending TLS") =>
        {
            ended(Cause::Closed)
        }
        Kind::UnexpectedEof | Kind::InvalidData | Kind::InvalidInput => malformed(),
        // The codec's word for a close in the middle of a packet.
        Kind::Other if text == "bytes remaining on stream" => ended(Cause::Closed),
        Kind::Other if error.raw_os_error().is_none() => malformed(),
        _ => ended(Cause::OtherIo),
    }
}

/// What TLS itself found wrong. A certificate that is not trusted, or an alert,
/// means that no connection came about; anything else is no protocol.
fn of_tls(error: &io::Error, phase: Phase) -> Option<Verdict> {
    use rustls::Error as Tls;
    let tls: &Tls = error.get_ref()?.downcast_ref()?;
    let outcome = match tls {
        Tls::InvalidCertificate(_)
        | Tls::NoCertificatesPresented
        | Tls::AlertReceived(_)
        | Tls::PeerIncompatible(_) => lost(phase),
        _ => Outcome::ProtocolError,
    };
    Some(Verdict::new(outcome, Cause::Tls, tls.to_string()).unanswered(phase))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mysql_async::ServerError;

    #[track_caller]
    fn check(error: Error, phase: Phase, outcome: Outcome, cause: Cause, executed: bool) {
        let verdict = of_driver_error(&error, phase);
        assert_eq!(
            (verdict.outcome, verdict.cause, verdict.may_have_executed),
            (outcome, Some(cause), executed),
            "{error:?} in {phase}"
        );
    }

    fn os(code: i32) -> Error {
        io::Error::from_raw_os_error(code).into()
    }

    fn io(kind: io::ErrorKind, text: &str) -> Error {
        io::Error::new(kind, text.to_owned()).into()
    }

    fn server(code: u16, message: &str) -> Error {
        Error::Server(ServerError {
            code,
            message: message.into(),
            state: "HY000".into(),
        })
    }

    #[test]
    fn the_kernel_speaks() {
        use Outcome::{AgentError, ConnectFailed, ConnectionLost};
        use Phase::{Connect, Query};
        check(os(111), Connect, ConnectFailed, Cause::Refused, false);
        check(os(104), Connect, ConnectFailed, Cause::Reset, false);
        check(os(104), Query, ConnectionLost, Cause::Reset, true);
        check(os(32), Query, ConnectionLost, Cause::Closed, false);
        check(os(113), Connect, ConnectFailed, Cause::Unreachable, false);
        check(os(101), Connect, ConnectFailed, Cause::Unreachable, false);
        check(os(110), Connect, ConnectFailed, Cause::OtherIo, false);
        check(os(110), Query, ConnectionLost, Cause::OtherIo, true);
        check(os(24), Connect, AgentError, Cause::NoFileHandles, false);
        check(os(23), Connect, AgentError, Cause::NoFileHandles, false);
        check(os(99), Connect, AgentError, Cause::NoLocalPort, false);
        check(os(105), Connect, AgentError, Cause::Local, false);
    }

    #[test]
    fn one_kind_two_meanings() {
        use io::ErrorKind::{Other, UnexpectedEof};
        let closed = || io(UnexpectedEof, "connection closed");
        check(
            closed(),
            Phase::Query,
            Outcome::ConnectionLost,
            Cause::Closed,
            true,
        );
        check(
            closed(),
            Phase::Setup,
            Outcome::ConnectionLost,
            Cause::Closed,
            false,
        );
        check(
            closed(),
            Phase::Connect,
            Outcome::ConnectFailed,
            Cause::Closed,
            false,
        );
        let short = io(UnexpectedEof, "can't parse: buf doesn't have enough data");
        check(
            short,
            Phase::Connect,
            Outcome::ProtocolError,
            Cause::Malformed,
            false,
        );
        let cut = io(Other, "bytes remaining on stream");
        check(
            cut,
            Phase::Query,
            Outcome::ConnectionLost,
            Cause::Closed,
            true,
        );
        for text in [
            "peer closed connection without sending TLS close_notify: https://docs.rs",
            "tls handshake eof",
        ] {
            check(
                io(UnexpectedEof, text),
                Phase::Query,
                Outcome::ConnectionLost,
                Cause::Closed,
                true,
            );
        }
        let sync = io(Other, "Packets out of sync");
        check(
            sync,
            Phase::Query,
            Outcome::ProtocolError,
            Cause::Malformed,
            true,
        );
    }

    #[test]
    fn tls_speaks() {
        use rustls::{AlertDescription, CertificateError, Error as Tls};
        let of = |tls: Tls| -> Error { io::Error::new(io::ErrorKind::InvalidData, tls).into() };
        let untrusted = || of(Tls::InvalidCertificate(CertificateError::UnknownIssuer));
        check(
            untrusted(),
            Phase::Connect,
            Outcome::ConnectFailed,
            Cause::Tls,
            false,
        );
        check(
            of(Tls::AlertReceived(AlertDescription::CertificateRequired)),
            Phase::Connect,
            Outcome::ConnectFailed,
            Cause::Tls,
            false,
        );
        check(
            of(Tls::DecryptError),
            Phase::Query,
            Outcome::ProtocolError,
            Cause::Tls,
            true,
        );
    }

    #[test]
    fn the_server_speaks() {
        for (code, message, cause, executed) in [
            (1045, "Access denied", Cause::Denied, false),
            (
                1040,
                "Too many connections",
                Cause::TooManyConnections,
                false,
            ),
            (1129, "Host blocked", Cause::HostBlocked, false),
            (
                1053,
                "Server shutdown in progress",
                Cause::ShuttingDown,
                false,
            ),
            (1927, "Connection was killed", Cause::Killed, false),
            (2013, "Lost connection to backend", Cause::GoneAway, true),
            (2003, "Can't connect", Cause::GoneAway, false),
            (
                1290,
                "running with the --read-only option",
                Cause::ReadOnly,
                false,
            ),
            (
                9001,
                "Max connect timeout reached while reaching hostgroup 1",
                Cause::Proxy,
                false,
            ),
            (1105, "(proxy) all backends are down", Cause::Proxy, false),
            (1105, "Unknown error", Cause::OtherServer, false),
            (1290, "--secure-file-priv", Cause::OtherServer, false),
            (1927, "Connection killed by MaxScale", Cause::Proxy, true),
            (1064, "syntax", Cause::OtherServer, false),
        ] {
            check(
                server(code, message),
                Phase::Query,
                Outcome::ServerError,
                cause,
                executed,
            );
            check(
                server(code, message),
                Phase::Connect,
                Outcome::ServerError,
                cause,
                false,
            );
        }
        let verdict = of_driver_error(&server(1045, "Access denied"), Phase::Connect);
        assert_eq!(
            (verdict.code, verdict.sqlstate.as_deref()),
            (Some(1045), Some("HY000"))
        );
    }

    #[test]
    fn texts_are_short_and_hold_no_secret() {
        let long = "ä".repeat(500);
        let verdict = of_driver_error(&server(1064, &long), Phase::Query);
        assert_eq!(verdict.text.chars().count(), MAX_ERROR_CHARS);
        let verdict = of_driver_error(&server(1064, "near 'hunter2'"), Phase::Query);
        assert_eq!(verdict.without("hunter2").text, "near '***'");
    }

    #[test]
    fn timeouts_say_where() {
        for (phase, cause, executed) in [
            (Phase::Resolve, Cause::ResolveTimeout, false),
            (Phase::Connect, Cause::ConnectTimeout, false),
            (Phase::Setup, Cause::QueryTimeout, false),
            (Phase::Query, Cause::QueryTimeout, true),
        ] {
            let verdict = of_timeout(phase, 5_000_000_000);
            assert_eq!(
                (verdict.outcome, verdict.cause, verdict.may_have_executed),
                (Outcome::TimedOut, Some(cause), executed)
            );
        }
        assert!(of_run_end(Phase::Query).may_have_executed);
        assert_eq!(of_run_end(Phase::Connect).cause, Some(Cause::RunEnded));
    }
}
