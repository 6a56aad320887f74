//! What a connection that was looked at says of what lies in between. Pure.
//!
//! Method: disagreements that only something in between can produce. Their
//! absence proves less: whoever passes bytes and our address on looks like nobody.
//!
//! What it cannot know: the certificate, and TLS behind a server that does not say.

use std::fmt;

use crate::host::Inspection;

/// One thing that was found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// The greeting's connection id is not `CONNECTION_ID()`: two connections.
    OwnIds {
        /// In the greeting.
        greeting: u32,
        /// Inside the probes' statement.
        answered: u64,
    },
    /// The greeting holds the lower 32 bits of a longer id.
    CutId {
        /// Inside the probes' statement.
        answered: u64,
    },
    /// The greeting's version is not `VERSION()`.
    OtherVersion {
        /// In the greeting.
        greeting: String,
        /// `VERSION()`.
        answered: String,
    },
    /// One connection was answered over several server connections.
    Multiplexed,
    /// `CONNECTION_ID()` alone is answered without a server.
    AnswersItself,
    /// The server sees the connection come from another address or port.
    AnotherAddress {
        /// As the server sees us.
        seen: String,
        /// Our own end.
        local: String,
    },
    /// TLS ends before the server.
    TlsEnds {
        /// What was agreed on with whoever answers.
        ours: String,
        /// What the server says; empty: it sees none.
        servers: String,
    },
    /// The server speaks TLS, we do not: somebody in between does.
    TlsOnlyBehind {
        /// What the server says.
        servers: String,
    },
}

impl Finding {
    /// Whether it shows that something in between speaks the protocol.
    pub fn is_termination(&self) -> bool {
        !matches!(self, Self::CutId { .. } | Self::AnotherAddress { .. })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnIds { greeting, answered } => write!(
                f,
                "ids of its own: the greeting gives {greeting}, CONNECTION_ID() is {answered}"
            ),
            Self::CutId { answered } => write!(
                f,
                "ids cut to 32 bits: CONNECTION_ID() is {answered}, the greeting holds the lower half"
            ),
            Self::OtherVersion { greeting, answered } => write!(
                f,
                "the greeting says version {greeting}, VERSION() says {answered}"
            ),
            Self::Multiplexed => {
                f.write_str("one connection was answered over several server connections")
            }
            Self::AnswersItself => {
                f.write_str("CONNECTION_ID() asked alone is answered without a server")
            }
            Self::AnotherAddress { seen, local } => {
                write!(f, "the server sees us at {seen}, our end is {local}")
            }
            Self::TlsEnds { ours, servers } if servers.is_empty() => {
                write!(
                    f,
                    "TLS ends before the server: we speak {ours}, it sees none"
                )
            }
            Self::TlsEnds { ours, servers } => write!(
                f,
                "TLS ends before the server: we speak {ours}, it speaks {servers}"
            ),
            Self::TlsOnlyBehind { servers } => {
                write!(f, "no TLS on our side, the server speaks {servers}")
            }
        }
    }
}

/// A greeting's version without the prefix by which MariaDB, up to 10, gets past
/// old replicas.
pub fn plain_version(version: &str) -> &str {
    match version.strip_prefix("5.5.5-") {
        Some(rest) if rest.to_ascii_lowercase().contains("mariadb") => rest,
        _ => version,
    }
}

/// A suite's name by the standards (`TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384`) and by
/// OpenSSL (`ECDHE-RSA-AES256-GCM-SHA384`), made comparable. OpenSSL leaves the
/// hash of ChaCha20 out.
fn letters_of(cipher: &str) -> String {
    cipher
        .split(['_', '-'])
        .filter(|part| !matches!(part.to_ascii_uppercase().as_str(), "TLS" | "WITH"))
        .collect::<String>()
        .to_ascii_uppercase()
        .replace("POLY1305SHA256", "POLY1305")
}

/// Whether the server's word, version and cipher, cannot be of the connection on
/// which these were agreed.
pub fn is_other_tls(version: &str, cipher: &str, servers: &str) -> bool {
    let Some((their_version, their_cipher)) = servers.split_once(' ') else {
        return servers.is_empty();
    };
    // OpenSSL writes TLSv1 for 1.0.
    let same_version =
        their_version == version || (their_version == "TLSv1" && version == "TLSv1.0");
    !same_version || letters_of(their_cipher) != letters_of(cipher)
}

/// Whether two addresses with ports are not one: `None` where that is not known,
/// because one of them is a name.
fn is_another_address(seen: &str, local: &str) -> Option<bool> {
    let split = |text: &str| {
        let (host, port) = text.rsplit_once(':')?;
        let port: u16 = port.parse().ok()?;
        let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
        Some((
            host.strip_prefix("::ffff:").unwrap_or(&host).to_owned(),
            port,
        ))
    };
    let ((seen, their_port), (local, our_port)) = (split(seen)?, split(local)?);
    if their_port != our_port {
        return Some(true);
    }
    let is_number =
        |host: &str| host.contains(':') || host.split('.').all(|n| n.parse::<u8>().is_ok());
    (is_number(&seen) && is_number(&local)).then(|| seen != local)
}

impl Inspection {
    /// What it shows of what lies in between, most telling first.
    pub fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        if let (Some(greeting), Some(answered)) = (self.greeting_id, self.answered_id)
            && u64::from(greeting) != answered
        {
            found.push(if u64::from(greeting) == answered & u64::from(u32::MAX) {
                Finding::CutId { answered }
            } else {
                Finding::OwnIds { greeting, answered }
            });
        }
        let greeting = plain_version(&self.greeting_version);
        if !greeting.is_empty()
            && !self.server_version.is_empty()
            && greeting != self.server_version
        {
            found.push(Finding::OtherVersion {
                greeting: greeting.to_owned(),
                answered: self.server_version.clone(),
            });
        }
        if self.again_id.is_some()
            && (self.again_id, &self.again_backend) != (self.answered_id, &self.backend)
        {
            found.push(Finding::Multiplexed);
        }
        if self.lone_id.is_some()
            && self.lone_id == self.greeting_id.map(u64::from)
            && self.answered_id.is_some()
            && self.lone_id != self.answered_id
            && !matches!(found.first(), Some(Finding::CutId { .. }))
        {
            found.push(Finding::AnswersItself);
        }
        match &self.server_tls {
            Some(servers)
                if !self.tls_version.is_empty()
                    && is_other_tls(&self.tls_version, &self.tls_cipher, servers) =>
            {
                found.push(Finding::TlsEnds {
                    ours: format!("{} {}", self.tls_version, self.tls_cipher),
                    servers: servers.clone(),
                });
            }
            // Without a greeting it is not known whether there is TLS.
            Some(servers)
                if self.tls_version.is_empty()
                    && !servers.is_empty()
                    && self.greeting_id.is_some() =>
            {
                found.push(Finding::TlsOnlyBehind {
                    servers: servers.clone(),
                });
            }
            _ => {}
        }
        if is_another_address(&self.seen_as, &self.local) == Some(true) {
            found.push(Finding::AnotherAddress {
                seen: self.seen_as.clone(),
                local: self.local.clone(),
            });
        }
        found
    }

    /// Whether the probes' own statement makes ProxySQL pin the session.
    pub fn pins(&self) -> bool {
        self.identity.contains('@')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direct() -> Inspection {
        Inspection {
            greeting_version: "5.5.5-10.11.19-MariaDB".into(),
            greeting_id: Some(42),
            answered_id: Some(42),
            again_id: Some(42),
            lone_id: Some(42),
            server_version: "10.11.19-MariaDB".into(),
            backend: "db-1:3306".into(),
            again_backend: "db-1:3306".into(),
            seen_as: "127.0.0.1:4000".into(),
            local: "127.0.0.1:4000".into(),
            tls_version: "TLSv1.3".into(),
            tls_cipher: "TLS_AES_256_GCM_SHA384".into(),
            server_tls: Some("TLSv1.3 TLS_AES_256_GCM_SHA384".into()),
            identity: "SELECT 1".into(),
            ..Inspection::default()
        }
    }

    #[track_caller]
    fn check(change: impl Fn(&mut Inspection), words: &[&str]) {
        let mut seen = direct();
        change(&mut seen);
        let found: Vec<String> = seen.findings().iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), words.len(), "{found:?}");
        for (text, word) in found.iter().zip(words) {
            assert!(text.contains(word), "{text} does not say {word}");
        }
    }

    #[test]
    fn agreement_says_nothing_and_each_disagreement_its_own() {
        check(|_| {}, &[]);
        check(|i| *i = Inspection::default(), &[]);
        check(
            |i| {
                (i.greeting_id, i.lone_id) = (Some(7), Some(7));
            },
            &["ids of its own: the greeting gives 7", "without a server"],
        );
        check(|i| i.greeting_id = Some(7), &["ids of its own"]);
        check(
            |i| {
                let long = Some(9 << 32 | 42);
                (i.answered_id, i.again_id, i.lone_id) = (long, long, long);
            },
            &["cut to 32 bits: CONNECTION_ID() is 38654705706"],
        );
        check(
            |i| i.server_version = "11.4.2-MariaDB".into(),
            &["version 10.11.19-MariaDB, VERSION() says 11.4.2"],
        );
        check(|i| i.again_id = Some(43), &["several server connections"]);
        check(
            |i| i.again_backend = "db-2:3306".into(),
            &["several server connections"],
        );
        check(
            |i| i.seen_as = "10.0.0.7:4000".into(),
            &["sees us at 10.0.0.7:4000"],
        );
        check(|i| i.seen_as = "127.0.0.1:4001".into(), &["sees us at"]);
        // A name says nothing of the address, a mapped address is the same one.
        check(|i| i.seen_as = "client.example:4000".into(), &[]);
        check(|i| i.local = "[::ffff:127.0.0.1]:4000".into(), &[]);
        check(|i| i.seen_as = "nonsense".into(), &[]);
    }

    #[test]
    fn where_tls_ends() {
        check(|i| i.server_tls = Some(String::new()), &["it sees none"]);
        check(|i| i.server_tls = None, &[]);
        check(
            |i| i.server_tls = Some("TLSv1.2 ECDHE-RSA-AES256-GCM-SHA384".into()),
            &["it speaks TLSv1.2"],
        );
        check(
            |i| (i.tls_version, i.tls_cipher) = (String::new(), String::new()),
            &["no TLS on our side"],
        );
        for (ours, theirs) in [
            (
                "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
                "ECDHE-RSA-AES256-GCM-SHA384",
            ),
            (
                "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
                "ECDHE-ECDSA-AES128-GCM-SHA256",
            ),
            (
                "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
                "ECDHE-RSA-CHACHA20-POLY1305",
            ),
            (
                "TLS_CHACHA20_POLY1305_SHA256",
                "TLS_CHACHA20_POLY1305_SHA256",
            ),
        ] {
            assert!(
                !is_other_tls("TLSv1.2", ours, &format!("TLSv1.2 {theirs}")),
                "{ours}"
            );
        }
    }
}
