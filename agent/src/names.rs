//! Looks names up: by the host's resolver, or by one name server that the
//! configuration names.
//!
//! A named server is asked over UDP for the name as it stands, for IPv4 and IPv6 at
//! once, and again each second while it says nothing. It is asked each time: nothing
//! is remembered here, so that what is seen is that server's own view, its cache
//! included. The host's own files, search lists and caches are not asked.
//!
//! What it cannot know: who really answered. An answer has to come from the server's
//! address and carry the question's number and name; that is all DNS offers.

pub mod message;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::UdpSocket;

use self::message::{Kind, Refusal};

/// The port of name servers.
pub const PORT: u16 = 53;
/// A server that says nothing is asked again after so long.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// And given up after so many times, as a client without a timeout of its own needs.
const TIMES: u32 = 10;
/// Without extensions no answer over UDP is longer.
const LONGEST: usize = 512;

/// Looks `host` up. With `server` only that one is asked.
///
/// # Errors
/// When nobody knows the name, the server refuses or fails, or says nothing.
pub async fn look_up(
    host: &str,
    port: u16,
    server: Option<SocketAddr>,
) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let found: Vec<SocketAddr> = match server {
        None => tokio::net::lookup_host((host, port)).await?.collect(),
        Some(server) => ask(server, host)
            .await?
            .into_iter()
            .map(|ip| SocketAddr::new(ip, port))
            .collect(),
    };
    if found.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the name has no address",
        ));
    }
    Ok(found)
}

/// One of the two questions.
struct Asked {
    id: u16,
    kind: Kind,
    answer: Option<Result<Vec<IpAddr>, Refusal>>,
}

/// IPv4 addresses first, then IPv6.
async fn ask(server: SocketAddr, host: &str) -> io::Result<Vec<IpAddr>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    // From now on only that server is heard.
    socket.connect(server).await?;
    let mut asked = [Kind::A, Kind::Aaaa].map(|kind| Asked {
        id: rand::random(),
        kind,
        answer: None,
    });
    let says = |what: &dyn std::fmt::Display| format!("name server {server}: {what}");
    for _ in 0..TIMES {
        for one in asked.iter().filter(|one| one.answer.is_none()) {
            let bytes = message::question(one.id, host, one.kind)
                .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
            socket
                .send(&bytes)
                .await
                .map_err(|error| io::Error::new(error.kind(), says(&error)))?;
        }
        match tokio::time::timeout(ASK_EVERY, hear(&socket, host, &mut asked)).await {
            Ok(Ok(())) => {
                return settled(asked).map_err(|why| {
                    let kind = match why {
                        Refusal::NoSuchName => io::ErrorKind::NotFound,
                        _ => io::ErrorKind::Other,
                    };
                    io::Error::new(kind, says(&why))
                });
            }
            Ok(Err(error)) => return Err(io::Error::new(error.kind(), says(&error))),
            Err(_) => {}
        }
    }
    Err(io::Error::new(
        io::ErrorKind::TimedOut,
        says(&"it says nothing"),
    ))
}

/// Until both are answered, or one answer is enough for both.
async fn hear(socket: &UdpSocket, host: &str, asked: &mut [Asked; 2]) -> io::Result<()> {
    let mut packet = [0u8; LONGEST];
    loop {
        let length = socket.recv(&mut packet).await?;
        for one in asked.iter_mut().filter(|one| one.answer.is_none()) {
            one.answer = message::read_answer(&packet[..length], one.id, host, one.kind);
        }
        let nobody = |one: &Asked| one.answer == Some(Err(Refusal::NoSuchName));
        if asked.iter().any(nobody) || asked.iter().all(|one| one.answer.is_some()) {
            return Ok(());
        }
    }
}

/// A server that knows one kind of address only is good enough.
fn settled(asked: [Asked; 2]) -> Result<Vec<IpAddr>, Refusal> {
    let mut found = Vec::new();
    let mut refusal = None;
    for answer in asked.into_iter().filter_map(|one| one.answer) {
        match answer {
            Ok(addresses) => found.extend(addresses),
            Err(Refusal::NoSuchName) => return Err(Refusal::NoSuchName),
            Err(why) => refusal = refusal.or(Some(why)),
        }
    }
    match refusal {
        Some(why) if found.is_empty() => Err(why),
        _ => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name server that answers each question with `answer(its bytes, how often it
    /// was asked)`.
    async fn server(answer: impl Fn(&[u8], u32) -> Option<Vec<u8>> + Send + 'static) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
        let address = socket.local_addr().expect("bound");
        tokio::spawn(async move {
            let mut packet = [0u8; LONGEST];
            let mut times = 0;
            while let Ok((length, from)) = socket.recv_from(&mut packet).await {
                times += 1;
                if let Some(bytes) = answer(&packet[..length], times) {
                    let _ = socket.send_to(&bytes, from).await;
                }
            }
        });
        address
    }

    /// The question, answered with this code, and 10.0.0.7 if IPv4 is asked for.
    fn says(question: &[u8], code: u8) -> Vec<u8> {
        let mut out = question.to_vec();
        (out[2], out[3]) = (0x81, 0x80 | code);
        if code == 0 && question.ends_with(&[0, 1, 0, 1]) {
            out[7] = 1;
            out.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 10, 0, 0, 7]);
        }
        out
    }

    #[track_caller]
    fn check(found: io::Result<Vec<SocketAddr>>, expect: Result<&str, &str>) {
        match (found, expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, [expect.parse().expect("an address")]),
            (Err(error), Err(why)) => assert!(error.to_string().contains(why), "{error}"),
            (found, expect) => panic!("{found:?}, not {expect:?}"),
        }
    }

    #[tokio::test]
    async fn the_named_server_is_asked_and_nobody_else() {
        let at = server(|question, _| Some(says(question, 0))).await;
        check(
            look_up("db.example", 3306, Some(at)).await,
            Ok("10.0.0.7:3306"),
        );
        // Even for what the host's own files know.
        check(
            look_up("localhost", 3306, Some(at)).await,
            Ok("10.0.0.7:3306"),
        );
        // A number is no name.
        check(
            look_up("127.0.0.9", 3306, Some(at)).await,
            Ok("127.0.0.9:3306"),
        );
    }

    #[tokio::test]
    async fn a_lost_question_is_asked_again() {
        let at = server(|question, times| (times > 2).then(|| says(question, 0))).await;
        check(look_up("db.example", 1, Some(at)).await, Ok("10.0.0.7:1"));
    }

    #[tokio::test]
    async fn refusals_are_told_with_the_server() {
        let at = server(|question, _| Some(says(question, 3))).await;
        check(
            look_up("db.example", 1, Some(at)).await,
            Err("no such name"),
        );
        let at = server(|question, _| Some(says(question, 2))).await;
        check(look_up("db.example", 1, Some(at)).await, Err("SERVFAIL"));
        let at = server(|question, _| {
            let mut answer = says(question, 0);
            answer[7] = 0;
            answer.truncate(question.len());
            Some(answer)
        })
        .await;
        check(look_up("db.example", 1, Some(at)).await, Err("no address"));
        // Nobody listens there any more.
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
        let at = socket.local_addr().expect("bound");
        drop(socket);
        check(
            look_up("db.example", 1, Some(at)).await,
            Err(&format!("name server {at}")),
        );
    }

    #[tokio::test]
    async fn answers_to_other_questions_are_not_believed() {
        let at = server(|question, times| {
            let mut answer = says(question, 0);
            // The first round is forged: another number, another name.
            match times {
                1 => answer[0] ^= 0x55,
                2 => answer[13] ^= 1,
                _ => {}
            }
            Some(answer)
        })
        .await;
        check(look_up("db.example", 1, Some(at)).await, Ok("10.0.0.7:1"));
    }
}
