//! The table of everything a probe can be called, for people. Pure.
//!
//! `agent/docs/outcomes.md` is made of it and of [`codes`](super::codes), so what
//! is documented is what the program does; a test compares them.

use std::fmt::Write as _;

use gapscope_proto::sample::{Cause, Outcome};

use super::codes::{ANY, CODES};

/// A way to fail that is no error packet.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    /// Called so.
    pub outcome: Outcome,
    /// And so.
    pub cause: Cause,
    /// What it means.
    pub meaning: &'static str,
    /// How it is told from others.
    pub told_by: &'static str,
    /// `may_have_executed`, where the statement had been sent.
    pub unknown_effect: bool,
    /// What produced it in a test of this project; empty: could not be made here.
    pub made_by: &'static str,
}

const fn way(
    outcome: Outcome,
    cause: Cause,
    meaning: &'static str,
    told_by: &'static str,
    unknown_effect: bool,
    made_by: &'static str,
) -> Way {
    Way {
        outcome,
        cause,
        meaning,
        told_by,
        unknown_effect,
        made_by,
    }
}

/// What is no error packet, by outcome.
pub const WAYS: &[Way] = {
    use Cause as C;
    use Outcome as O;
    &[
        way(
            O::ConnectFailed,
            C::NotResolved,
            "the name has no address",
            "the resolver's answer",
            false,
            "a name under `.invalid`",
        ),
        way(
            O::ConnectFailed,
            C::Refused,
            "nobody listens, or a firewall rejects",
            "ECONNREFUSED",
            false,
            "MariaDB after SIGKILL; a port without a listener",
        ),
        way(
            O::ConnectFailed,
            C::Unreachable,
            "no route to host or network",
            "EHOSTUNREACH, ENETUNREACH, ENETDOWN",
            false,
            "a network namespace without a route",
        ),
        way(
            O::ConnectFailed,
            C::Reset,
            "RST during TCP, TLS or login",
            "ECONNRESET, ECONNABORTED",
            false,
            "a peer that accepts and resets",
        ),
        way(
            O::ConnectFailed,
            C::Closed,
            "FIN during TLS or login",
            "end of file",
            false,
            "HAProxy with its server down; a peer that accepts and closes",
        ),
        way(
            O::ConnectFailed,
            C::Denied,
            "the server wants a way to log in that the driver does not know or may not use",
            "the driver's own refusal",
            false,
            "MariaDB, an account by auth_pam",
        ),
        way(
            O::ConnectFailed,
            C::Tls,
            "TLS was asked for and is not to be had, or a certificate is not trusted, or the peer sent an alert",
            "the TLS library's error",
            false,
            "MariaDB without TLS; a certificate of another authority; one for another name; no client certificate",
        ),
        way(
            O::ConnectFailed,
            C::OtherIo,
            "another I/O error while connecting",
            "none of the above",
            false,
            "",
        ),
        way(
            O::ConnectionLost,
            C::Closed,
            "FIN while the connection was in use",
            "end of file, also in the middle of a packet",
            true,
            "MariaDB after SIGTERM and SIGKILL; KILL CONNECTION of an idle client and of one whose statement runs; HAProxy `shutdown sessions server`",
        ),
        way(
            O::ConnectionLost,
            C::Closed,
            "the peer had closed before: nothing was sent",
            "EPIPE, ENOTCONN",
            false,
            "",
        ),
        way(
            O::ConnectionLost,
            C::Reset,
            "RST while the connection was in use",
            "ECONNRESET",
            true,
            "a peer that resets at the statement",
        ),
        way(
            O::ConnectionLost,
            C::OtherIo,
            "another I/O error in use, such as the kernel's own retransmission limit",
            "ETIMEDOUT and others",
            true,
            "",
        ),
        way(
            O::TimedOut,
            C::ResolveTimeout,
            "the name lookup took longer than the client waits",
            "our own timer",
            false,
            "a name server that says nothing, in a network namespace",
        ),
        way(
            O::TimedOut,
            C::ConnectTimeout,
            "TCP, TLS and login took longer than the client waits",
            "our own timer",
            false,
            "MariaDB under SIGSTOP, a new connection; packets dropped in a network namespace",
        ),
        way(
            O::TimedOut,
            C::QueryTimeout,
            "the statement took longer than the client waits",
            "our own timer",
            true,
            "MariaDB under SIGSTOP, a held connection; packets dropped in a network namespace; a half-open connection",
        ),
        way(
            O::TimedOut,
            C::RunEnded,
            "the run ended while the probe waited",
            "the end of the run",
            true,
            "a run that ends during a hang",
        ),
        way(
            O::ProtocolError,
            C::Malformed,
            "bytes that make no sense",
            "the driver's parser",
            true,
            "a peer that sends garbage in its greeting, and in a result",
        ),
        way(
            O::ProtocolError,
            C::Tls,
            "TLS broke: a record that cannot be decrypted or is none",
            "the TLS library's error",
            true,
            "",
        ),
        way(
            O::ProtocolError,
            C::DriverPanic,
            "the peer's bytes made the driver panic; caught",
            "the panic",
            true,
            "two login packets: an empty public key, an authentication switch without a nonce",
        ),
        way(
            O::WrongAnswer,
            C::WrongShape,
            "columns, rows or types are not the ones asked for",
            "the probe's own check",
            false,
            "a peer that answers with two rows, or NULL",
        ),
        way(
            O::StateLost,
            C::CanaryBroken,
            "the session answers and is not as it was set up",
            "the canary",
            false,
            "the embedded reconnecting proxy, its backend stopped",
        ),
        way(
            O::AgentError,
            C::Unsupported,
            "what this client does is not supported there: it is left out, with a caveat",
            "an error packet to the set-up, before anything worked",
            false,
            "a canary whose statement the embedded server does not know",
        ),
        way(
            O::AgentError,
            C::NoFileHandles,
            "the agent has no file handle left",
            "EMFILE, ENFILE",
            false,
            "a process without a free file handle",
        ),
        way(
            O::AgentError,
            C::NoLocalPort,
            "the agent's host has no port left",
            "EADDRNOTAVAIL, EADDRINUSE",
            false,
            "a network namespace with two local ports, both in use",
        ),
        way(
            O::AgentError,
            C::Guard,
            "the agent's own limits on connections and sockets held it back",
            "the guard",
            false,
            "max_connects_per_second = 1",
        ),
        way(
            O::AgentError,
            C::Breaker,
            "the agent's circuit breaker was open: nothing was sent",
            "the breaker",
            false,
            "1040 from the target",
        ),
        way(
            O::AgentError,
            C::Tls,
            "a certificate or name of our own settings is of no use",
            "the TLS library's error",
            false,
            "",
        ),
        way(
            O::AgentError,
            C::Local,
            "another limit or fault of the agent's host",
            "EPERM, EACCES, ENOMEM, ENOBUFS",
            false,
            "",
        ),
    ]
};

/// The text of `agent/docs/outcomes.md`.
pub fn document() -> String {
    let mut out = String::from(HEAD);
    out.push_str("\n## Without an error packet\n\n");
    out.push_str("| outcome | cause | means | told by | may have executed | made by |\n|---|---|---|---|---|---|\n");
    for way in WAYS {
        let _ = writeln!(
            out,
            "| `{}` | `{}` | {} | {} | {} | {} |",
            way.outcome,
            way.cause,
            way.meaning,
            way.told_by,
            if way.unknown_effect {
                "yes, if sent"
            } else {
                "no"
            },
            made(way.made_by),
        );
    }
    out.push_str("\n## Error packets (`server_error`)\n\n");
    out.push_str("| cause | speaker | code | SQLSTATE | words | name or meaning | may have executed | source | made by |\n|---|---|---|---|---|---|---|---|---|\n");
    let mut rows: Vec<_> = CODES.iter().collect();
    rows.sort_by_key(|row| (row.cause, row.speaker, row.number));
    for row in rows {
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.cause,
            row.speaker,
            if row.number == ANY {
                "any".to_owned()
            } else {
                row.number.to_string()
            },
            if row.sqlstate.is_empty() {
                "not confirmed"
            } else {
                row.sqlstate
            },
            if row.marker.is_empty() {
                String::new()
            } else {
                format!("`{}`", row.marker)
            },
            row.name,
            if row.unknown_effect { "yes" } else { "no" },
            row.source.as_str(),
            made(row.made_by),
        );
    }
    let _ = writeln!(
        out,
        "| `{}` | unknown | other | | | no row fits | no | | MariaDB, a function that does not exist (1305) |",
        Cause::OtherServer
    );
    out.push_str(TAIL);
    out
}

fn made(by: &str) -> &str {
    if by.is_empty() {
        "could not be made here"
    } else {
        by
    }
}

const HEAD: &str = "\
# What a probe's end is called

Made from the program's own tables (`agent/src/outcome/`); a test fails where the
two differ, and `GAPSCOPE_UPDATE_DOCS=1 cargo test --workspace --test outcomes`
writes this page anew.

Each sample says `outcome`, the finer `cause`, the `phase` in which it ended
(`resolve`, `connect` which is TCP, TLS and login, `setup`, `query`), for an error
packet its `error_code` and `sqlstate`, the first 200 characters of the text, and
`may_have_executed`: the statement was sent and no answer came. The text never
holds the target's password.

An error packet is keyed by number and speaker. The speaker is known by words of
the text where numbers are used twice: 9001 to 9006 are ProxySQL's and TiDB's.
Where a proxy passes the server's packet on, the server counts as the speaker.

\"Made by\" names what produced it in a test of this project. \"Could not be made
here\" means that the row is taken from its source alone.
";

const TAIL: &str = "
## What a stopped MariaDB sends

Nothing. After SIGTERM and SIGKILL an idle connection gets a FIN and no error
packet (`connection_lost`, `closed`); the listener then refuses (`connect_failed`,
`refused`). `KILL CONNECTION` gives a FIN too, with a statement under way as without
(MariaDB 10.11; 1927 was never seen here), `KILL QUERY` gives 1317. 1053 needs a statement that starts at the right moment, or MySQL 8 or
TiDB; it was never seen here.

Numbers that ProxySQL only logs (9004, 9005, 9007 and up to 9020, of its monitor
and of servers taken offline) never reach a client and are not listed. HAProxy
speaks no MySQL after the login check it does itself: its clients see FIN, RST and
timeouts.

## What the driver cannot do

- `verify-ca`: the driver compares the name even where it was told not to. The
  agent reads the certificate's own names from the refusal and connects again
  under one of them; a certificate without names cannot be used this way.
- `sha256_password`, `auth_pam`, `gssapi`, `parsec`: `connect_failed`, `denied`.
- It does not say why TLS was not offered, nor the version and the cipher: the
  agent reads those from the bytes of a connection of its own ([looks](looks.md)).
- A peer that announces more columns than any memory holds makes it ask for that
  memory at once, and a process that is refused memory is aborted. No setting bounds
  it (`max_allowed_packet` does not: the announcement is nine bytes), the newest
  release (0.37) does it too, and an abort cannot be caught. Nothing that was measured
  is lost: the agent that is started again goes on with the run, and the first one's
  missing end is how the report knows
  (`cargo test --workspace --test aborted`). Let whoever starts agents start them
  again (`Restart=on-failure`).
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_and_outcome_is_listed() {
        for cause in Cause::ALL {
            assert!(
                WAYS.iter().any(|way| way.cause == *cause)
                    || CODES.iter().any(|row| row.cause == *cause),
                "{cause} is in no table"
            );
        }
        for outcome in Outcome::ALL {
            assert!(
                matches!(outcome, Outcome::Ok | Outcome::ServerError)
                    || WAYS.iter().any(|way| way.outcome == *outcome),
                "{outcome} is in no table"
            );
        }
    }
}
