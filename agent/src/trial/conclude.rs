//! From what was seen to what it means, with the evidence for it. Pure.
//!
//! What lies between is told by disagreements that only something in between can
//! produce. Their absence proves less: a proxy that passes bytes on and our
//! address with them (PROXY protocol, transparent proxying) looks like no proxy,
//! and that is said.

use std::net::IpAddr;

use gapscope_proto::inspection::is_other_tls;

use super::facts::Facts;
use super::witness::Witness;

/// What the target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The server itself.
    Direct,
    /// Something that passes bytes on.
    PassThrough,
    /// Something that speaks the protocol.
    Terminates,
    /// Nothing tells the first from the second.
    CannotTell,
}

impl Kind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::PassThrough => "pass-through",
            Self::Terminates => "terminates",
            Self::CannotTell => "cannot-tell",
        }
    }
}

/// How held connections meet server connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sessions {
    /// One held connection met several server connections.
    Multiplexed,
    /// One and the same all the time.
    Pinned,
    /// Nothing was answered.
    Unknown,
}

/// How work is spread over servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Balance {
    /// Statements of one connection went to several.
    PerStatement,
    /// Connections went to several.
    PerConnection,
    /// One server was seen.
    OneServer,
    /// None.
    Unknown,
}

/// What is concluded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Findings {
    pub(crate) kind: Kind,
    /// In a sentence.
    pub(crate) what: String,
    /// What of the evidence speaks for it.
    pub(crate) because: Vec<String>,
    pub(crate) sessions: Sessions,
    pub(crate) balance: Balance,
}

/// Whether the server's view of our address is our own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SeenAs {
    Ourselves,
    Another,
    Unknown,
}

fn seen_as(witness: &Witness) -> SeenAs {
    let Ok(seen) = &witness.seen_as else {
        return SeenAs::Unknown;
    };
    let Some((host, port)) = seen.rsplit_once(':') else {
        return SeenAs::Unknown;
    };
    let Ok(port) = port.parse::<u16>() else {
        return SeenAs::Unknown;
    };
    let other_host = host
        .trim_matches(['[', ']'])
        .parse::<IpAddr>()
        .is_ok_and(|ip| ip.to_canonical() != witness.local.ip().to_canonical());
    if port == witness.local.port() && !other_host {
        SeenAs::Ourselves
    } else {
        SeenAs::Another
    }
}

/// What a version text says the server is.
pub(crate) fn product(version: &str) -> &'static str {
    let version = version.to_ascii_lowercase();
    if version.contains("tidb") {
        "TiDB"
    } else if version.contains("mariadb") {
        "MariaDB"
    } else {
        "MySQL or one that says so"
    }
}

/// Concludes; `facts` may be empty where only one connection was looked at.
pub(crate) fn conclude(witness: &Witness, facts: &Facts) -> Findings {
    let mut because = Vec::new();
    let mut terminates = false;
    let answered = witness.answer.id;
    let server_changes =
        (witness.again.id, &witness.again.backend) != (answered, &witness.answer.backend);
    if let Some(greeting) = &witness.greeting {
        let low_bits = answered & u64::from(u32::MAX);
        if u64::from(greeting.id) == answered {
            because.push(format!(
                "the greeting's connection id and CONNECTION_ID() are the same, {answered}"
            ));
        } else if u64::from(greeting.id) == low_bits {
            because.push(format!(
                "CONNECTION_ID() is {answered}; the greeting holds its lower 32 bits, {}",
                greeting.id
            ));
        } else {
            terminates = true;
            because.push(format!(
                "the greeting gives connection id {}, CONNECTION_ID() is {answered}: two connections, one before and one behind it",
                greeting.id
            ));
        }
        if greeting.plain_version() != witness.answer.version {
            terminates = true;
            because.push(format!(
                "the greeting says version {}, VERSION() says {}",
                greeting.plain_version(),
                witness.answer.version
            ));
        }
    }
    if server_changes || facts.most_sessions > 1 {
        terminates = true;
        because.push("one connection was answered over several server connections".to_owned());
    }
    if let Some(why) = tls_ends(witness) {
        terminates = true;
        because.push(why);
    }
    let lone = witness.lone_id.as_ref().ok().copied();
    let answers_itself = witness
        .greeting
        .as_ref()
        .is_some_and(|g| lone == Some(u64::from(g.id)) && lone != Some(answered));
    if answers_itself {
        because.push(
            "asked alone, CONNECTION_ID() is the greeting's, inside a larger statement it is not: the first was answered without a server, as ProxySQL does"
                .to_owned(),
        );
    }
    let seen = seen_as(witness);
    match (&witness.seen_as, seen) {
        (Ok(text), SeenAs::Ourselves) => because.push(format!(
            "the server sees the connection come from {text}, which is our own end of it"
        )),
        (Ok(text), SeenAs::Another) => because.push(format!(
            "the server sees the connection come from {text}, our own end of it is {}",
            witness.local
        )),
        (Ok(text), SeenAs::Unknown) => because.push(format!(
            "the server gives `{text}` as our address, which says nothing"
        )),
        (Err(why), _) => because.push(format!("the server does not say where it sees us: {why}")),
    }
    let other_port = other_port(witness);
    if let Some(port) = other_port {
        because.push(format!(
            "the server says that it listens on port {port}, we connected to {}",
            witness.peer.port()
        ));
    }
    let kind = match (terminates, seen) {
        (true, _) => Kind::Terminates,
        (false, SeenAs::Ourselves) => Kind::Direct,
        (false, SeenAs::Another) => Kind::PassThrough,
        (false, SeenAs::Unknown) if other_port.is_some() => Kind::PassThrough,
        (false, SeenAs::Unknown) => Kind::CannotTell,
    };
    Findings {
        kind,
        what: what(kind, witness, answers_itself),
        because,
        sessions: match (facts.most_sessions, server_changes) {
            (0, false) => Sessions::Unknown,
            (n, changes) if n > 1 || changes => Sessions::Multiplexed,
            _ => Sessions::Pinned,
        },
        balance: match (facts.most_backends, facts.backends.len()) {
            (n, _) if n > 1 => Balance::PerStatement,
            (_, n) if n > 1 => Balance::PerConnection,
            (_, 1) => Balance::OneServer,
            _ => Balance::Unknown,
        },
    }
}

/// Whether TLS ends before the server, by the server's own word.
fn tls_ends(witness: &Witness) -> Option<String> {
    let servers = witness.server_tls.as_ref().ok()?;
    match &witness.tls {
        Some(ours) if is_other_tls(&ours.version, &ours.cipher, servers) => Some(format!(
            "we speak {} {}, the server sees {}: TLS ends before the server",
            ours.version,
            ours.cipher,
            if servers.is_empty() { "none" } else { servers }
        )),
        None if !servers.is_empty() => Some(format!(
            "we speak without TLS, the server sees {servers}: something in between speaks it"
        )),
        _ => None,
    }
}

/// The port in an identity of host and port, if it is not the one we connected to.
fn other_port(witness: &Witness) -> Option<u16> {
    use crate::probe::identity::Form;
    if witness.identity.form == Form::Given {
        return None;
    }
    let (_, port) = witness.answer.backend.rsplit_once(':')?;
    let port = port.parse().ok()?;
    (port != witness.peer.port()).then_some(port)
}

fn what(kind: Kind, witness: &Witness, answers_itself: bool) -> String {
    let server = product(&witness.answer.version);
    match kind {
        Kind::Direct => format!(
            "{server} itself (or through something that passes our address on: PROXY protocol, transparent proxying)"
        ),
        Kind::PassThrough => format!(
            "something that passes bytes on to {server}: HAProxy, MySQL Router without sharing, LVS, a cloud load balancer, a port forwarding or NAT; which of them cannot be told from here"
        ),
        Kind::CannotTell => format!(
            "{server}; whether directly or through something that passes bytes on cannot be told"
        ),
        Kind::Terminates => {
            let texts = [
                witness.comment.as_deref().unwrap_or_default(),
                witness.greeting.as_ref().map_or("", |g| &g.version),
            ]
            .join(" ")
            .to_ascii_lowercase();
            let family = if texts.contains("proxysql") {
                "ProxySQL, by its own word".to_owned()
            } else if texts.contains("maxscale") {
                "MaxScale, by its own word".to_owned()
            } else if texts.contains("router") {
                "MySQL Router, by its own word".to_owned()
            } else if answers_itself {
                "probably ProxySQL, by the questions it answers itself".to_owned()
            } else if server == "TiDB" {
                "in front of TiDB, so TiProxy or one like it: it does not say".to_owned()
            } else {
                "of which family it does not say (ProxySQL, MaxScale, MySQL Router with sharing, mysql-proxy, a cloud proxy ...)".to_owned()
            };
            format!("a proxy that speaks the protocol in front of {server}; {family}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inspection::parse::Greeting;
    use crate::probe::answer::Answer;
    use crate::probe::identity::{Form, Identity};

    fn witness() -> Witness {
        let answer = Answer {
            id: 42,
            version: "10.11.19-MariaDB".into(),
            backend: "db-1:3306".into(),
            canary: None,
        };
        Witness {
            addresses: vec!["10.0.0.5:3306".parse().expect("an address")],
            peer: "10.0.0.5:3306".parse().expect("an address"),
            local: "10.0.0.9:40000".parse().expect("an address"),
            connect_ns: 1_000_000,
            greeting: Some(Greeting {
                version: "5.5.5-10.11.19-MariaDB".into(),
                id: 42,
                capabilities: 0,
                offers_tls: false,
                auth_plugin: "mysql_native_password".into(),
            }),
            tls: None,
            identity: std::sync::Arc::new(Identity::default_of(Form::InformationSchema)),
            again: answer.clone(),
            answer,
            lone_id: Ok(42),
            seen_as: Ok("10.0.0.9:40000".into()),
            server_tls: Ok(String::new()),
            comment: Ok("Debian 12".into()),
            grants: Ok(vec![]),
        }
    }

    #[track_caller]
    fn check(witness: &Witness, kind: Kind, words: &str) {
        let found = conclude(witness, &Facts::default());
        assert_eq!(found.kind, kind, "{found:#?}");
        assert!(found.what.contains(words), "{found:#?}");
    }

    #[test]
    fn what_each_witness_says() {
        check(&witness(), Kind::Direct, "MariaDB itself");
        let mut resolved = witness();
        resolved.seen_as = Ok("client.example:40000".into());
        check(&resolved, Kind::Direct, "itself");
        let mut balancer = witness();
        balancer.seen_as = Ok("10.0.0.7:51000".into());
        check(&balancer, Kind::PassThrough, "HAProxy");
        // Masquerading may keep the port.
        balancer.seen_as = Ok("10.0.0.7:40000".into());
        check(&balancer, Kind::PassThrough, "NAT");
        let mut silent = witness();
        silent.seen_as = Err("denied".into());
        check(&silent, Kind::CannotTell, "cannot be told");
        silent.answer.backend = "db-1:3307".into();
        silent.again = silent.answer.clone();
        check(&silent, Kind::PassThrough, "passes bytes on");
    }

    #[test]
    fn who_terminates() {
        let mut proxy = witness();
        proxy.greeting.as_mut().expect("one").id = 7;
        check(&proxy, Kind::Terminates, "does not say");
        proxy.lone_id = Ok(7);
        check(&proxy, Kind::Terminates, "probably ProxySQL");
        proxy.comment = Ok("(ProxySQL)".into());
        check(&proxy, Kind::Terminates, "ProxySQL, by its own word");
        let mut tidb = witness();
        tidb.greeting.as_mut().expect("one").id = 7;
        tidb.answer.version = "8.0.11-TiDB-v8.5.0".into();
        check(&tidb, Kind::Terminates, "TiProxy or one like it");
        let mut ending = witness();
        ending.tls = Some(crate::inspection::parse::TlsSeen {
            version: "TLSv1.3".into(),
            cipher: "TLS_AES_256_GCM_SHA384".into(),
        });
        check(&ending, Kind::Terminates, "speaks the protocol");
        ending.server_tls = Ok("TLSv1.3 TLS_AES_256_GCM_SHA384".into());
        check(&ending, Kind::Direct, "itself");
        // 64 bits of TiDB's, 32 in the greeting: no proxy.
        let mut wide = witness();
        wide.answer.id = (9 << 32) | 42;
        wide.again = wide.answer.clone();
        check(&wide, Kind::Direct, "itself");
    }
}
