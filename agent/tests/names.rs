//! A name whose address changes, a name server that says nothing, and one that
//! knows no such name. The name server is a real one, written here, on port 53 of
//! a network namespace of the test's own, and the host's resolver asks it.

mod real;
mod support;

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::{Arc, Mutex};

use gapscope_agent::config::Target;
use gapscope_agent::probe::mysql::Client;
use gapscope_agent::reach::Reach;
use gapscope_proto::sample::{Cause, Outcome, Phase, Sample, Style};
use real::{client, is_ok, probe, skip, target};
use support::{Behaviour, Server};

const NAME: &str = "db.gapscope.test";

/// What the name server says.
#[derive(Debug, Clone)]
enum Says {
    Addresses(Vec<Ipv4Addr>),
    NoSuchName,
    Nothing,
}

/// One packet of a query to one of an answer (RFC 1035, section 4). None: it is no
/// query, or nothing is said.
fn answer(query: &[u8], says: &Says) -> Option<Vec<u8>> {
    let mut at = 12;
    let mut name = Vec::new();
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        name.push(String::from_utf8_lossy(query.get(at..at + length)?).to_ascii_lowercase());
        at += length;
    }
    let question = query.get(12..at + 4)?;
    let wants_ipv4 = query.get(at..at + 2)? == [0, 1];
    let (code, addresses) = match says {
        Says::Nothing => return None,
        Says::Addresses(addresses) if name.join(".") == NAME => match wants_ipv4 {
            true => (0, addresses.as_slice()),
            // The name is there, without such an address.
            false => (0, &[][..]),
        },
        _ => (3, &[][..]),
    };
    let mut out = query[..2].to_vec();
    // An answer, with authority, recursion as asked for.
    out.extend_from_slice(&[0x84 | (query[2] & 1), 0x80 | code]);
    out.extend_from_slice(&[0, 1, 0, addresses.len() as u8, 0, 0, 0, 0]);
    out.extend_from_slice(question);
    for address in addresses {
        // The name as in the question; A, IN, 1 s, 4 bytes.
        out.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4]);
        out.extend_from_slice(&address.octets());
    }
    Some(out)
}

struct NameServer(Arc<Mutex<Says>>);

impl NameServer {
    fn start(says: Says) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:53").expect("the namespace's port 53");
        let says = Arc::new(Mutex::new(says));
        let of_thread = says.clone();
        std::thread::spawn(move || {
            let mut packet = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut packet) {
                let says = of_thread.lock().expect("not poisoned").clone();
                if let Some(answer) = answer(&packet[..length], &says) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Self(says)
    }

    fn says(&self, says: Says) {
        *self.0.lock().expect("not poisoned") = says;
    }
}

/// This program again, inside a namespace, where it runs the test below.
#[test]
fn names_change_and_name_servers_fail() {
    if !rustix::process::geteuid().is_root() {
        skip("a namespace needs root");
        return;
    }
    let done = Command::new("unshare")
        .args(["--net", "--mount"])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "inside", "--ignored", "--nocapture"])
        .env("GAPSCOPE_INSIDE", "1")
        .output();
    let done = match done {
        Ok(done) => done,
        Err(error) => {
            skip(&format!("unshare does not run: {error}"));
            return;
        }
    };
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    if said.contains("unshare failed") || said.contains("Operation not permitted") {
        skip("no namespace to be had");
        return;
    }
    assert!(done.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status();
    assert!(status.is_ok_and(|s| s.success()), "{program} {args:?}");
}

fn named(port: u16, follow_dns: bool, style: Style) -> Client {
    let there = Target {
        identity: Some("whoami()".into()),
        reach: Reach {
            follow_dns,
            ..Reach::default()
        },
        ..target(NAME, port)
    };
    client(there, style, 800)
}

#[track_caller]
fn check(sample: &Sample, peer: &str, connection: u32) {
    assert!(is_ok(sample), "{sample:#?}");
    assert_eq!(
        (sample.peer.as_deref(), sample.connection),
        (Some(peer), Some(connection)),
        "{sample:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by the test above, in a namespace"]
async fn inside() {
    if std::env::var_os("GAPSCOPE_INSIDE").is_none() {
        skip("this is run by another test, in a namespace");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("resolv.conf");
    std::fs::write(
        &file,
        "nameserver 127.0.0.1\noptions timeout:2 attempts:1\n",
    )
    .expect("written");
    run("ip", &["link", "set", "lo", "up"]);
    run(
        "mount",
        &["--bind", &file.display().to_string(), "/etc/resolv.conf"],
    );
    let [old, new] = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];
    let names = NameServer::start(Says::Addresses(vec![old]));
    let first = Server::at(&format!("{old}:0"), Behaviour::Answers);
    let port = first.address.port();
    let _second = Server::at(&format!("{new}:{port}"), Behaviour::Answers);
    let [old_peer, new_peer] = [old, new].map(|ip| format!("{ip}:{port}"));

    let mut stays = named(port, false, Style::Reused);
    let mut follows = named(port, true, Style::Reused);
    let mut fresh = named(port, false, Style::New);
    for client in [&mut stays, &mut follows] {
        check(&probe(client).await, &old_peer, 1);
        check(&probe(client).await, &old_peer, 1);
    }
    check(&probe(&mut fresh).await, &old_peer, 1);

    // The name has another address.
    names.says(Says::Addresses(vec![new]));
    check(&probe(&mut stays).await, &old_peer, 1);
    let moved = probe(&mut follows).await;
    check(&moved, &new_peer, 2);
    assert!(moved.resolve_ns.is_some() && moved.connect_ns.is_some());
    check(&probe(&mut fresh).await, &new_peer, 2);
    // As long as the name has its address, it stays, whatever the order.
    names.says(Says::Addresses(vec![old, new]));
    check(&probe(&mut follows).await, &new_peer, 2);

    // Nothing is said: who has to look the name up waits, who has not goes on.
    names.says(Says::Nothing);
    check(&probe(&mut stays).await, &old_peer, 1);
    for client in [&mut follows, &mut fresh] {
        let silent = probe(client).await;
        assert_eq!(
            (silent.phase, silent.outcome, silent.cause),
            (
                Phase::Resolve,
                Outcome::TimedOut,
                Some(Cause::ResolveTimeout)
            ),
            "{silent:#?}"
        );
        assert!(!silent.may_have_executed && silent.connect_ns.is_none());
    }
    // The name is gone.
    names.says(Says::NoSuchName);
    check(&probe(&mut stays).await, &old_peer, 1);
    let gone = probe(&mut fresh).await;
    assert_eq!(
        (gone.phase, gone.outcome, gone.cause),
        (
            Phase::Resolve,
            Outcome::ConnectFailed,
            Some(Cause::NotResolved)
        ),
        "{gone:#?}"
    );
    // And back: its connection was not thrown away for a name server's silence.
    names.says(Says::Addresses(vec![new]));
    check(&probe(&mut follows).await, &new_peer, 2);
}
