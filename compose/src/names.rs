//! A name server of the lab's own, in user space: on a free loopback port, asked by the
//! agent alone (its target's `name_server`), so that nothing of the host's own
//! names is touched and nobody else can ask it anything of use.
//!
//! It answers as a resolver with a cache does, which is what stands between clients
//! and a changed record: an answer that was given holds until its time to live is
//! over, and only then is the record looked at again. When that is, is known here
//! exactly, as is the moment of the change.
//!
//! What it cannot show: several resolvers whose caches began at different moments,
//! or one that keeps to no time to live.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gapscope_agent::names::message::{Kind, Question, read_question};
use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Span;
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

/// No question is longer.
const LONGEST: usize = 512;

/// One name's record, and what the resolver remembers of it.
#[derive(Debug, Clone, Copy)]
struct Record {
    address: Ipv4Addr,
    ttl_ns: u64,
    /// The address that was given, and until when it is given again.
    remembered: Option<(Ipv4Addr, i64)>,
}

impl Record {
    /// The address at `now_ns`, and how many whole seconds it holds, rounded up.
    fn answer(&mut self, now_ns: i64) -> (Ipv4Addr, u32) {
        let (address, until_ns) = match self.remembered {
            Some((address, until_ns)) if until_ns > now_ns => (address, until_ns),
            _ => {
                let ttl_ns = i64::try_from(self.ttl_ns).unwrap_or(i64::MAX);
                let until_ns = now_ns.saturating_add(ttl_ns);
                self.remembered = Some((self.address, until_ns));
                (self.address, until_ns)
            }
        };
        let left_ns = u64::try_from(until_ns.saturating_sub(now_ns)).unwrap_or(0);
        let left_s = left_ns.div_ceil(1_000_000_000);
        (address, u32::try_from(left_s).unwrap_or(u32::MAX))
    }

    /// Points it elsewhere; returns until when the old address is still given.
    fn point(&mut self, address: Ipv4Addr, now_ns: i64) -> Option<i64> {
        self.address = address;
        self.remembered
            .filter(|(old, until_ns)| *old != address && *until_ns > now_ns)
            .map(|(_, until_ns)| until_ns)
    }
}

/// What came of pointing a name elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// When the record changed.
    pub when: Span,
    /// Until when clients are still given the old address, by the same clock; none:
    /// they were given the new one at once.
    pub old_until_ns: Option<i64>,
}

/// A running name server; dropping it ends it.
pub struct NameServer {
    address: SocketAddr,
    records: Arc<Mutex<BTreeMap<String, Record>>>,
    clock: Arc<dyn Clock>,
    serving: JoinHandle<()>,
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl NameServer {
    /// Starts one that knows no name yet.
    ///
    /// # Errors
    /// When there is no loopback port to be had.
    pub async fn start(clock: Arc<dyn Clock>) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = socket.local_addr()?;
        let records = Arc::new(Mutex::new(BTreeMap::new()));
        let serving = tokio::spawn(serve(socket, Arc::clone(&records), Arc::clone(&clock)));
        Ok(Self {
            address,
            records,
            clock,
            serving,
        })
    }

    /// Where it is asked.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes it know a name.
    pub fn add(&self, name: &str, address: Ipv4Addr, ttl_ns: u64) {
        lock(&self.records).insert(
            name.to_ascii_lowercase(),
            Record {
                address,
                ttl_ns,
                remembered: None,
            },
        );
    }

    /// Points a name elsewhere; none if there is no such name.
    pub fn point(&self, name: &str, address: Ipv4Addr) -> Option<Change> {
        let earliest_ns = self.clock.raw_ns();
        let mut records = lock(&self.records);
        let record = records.get_mut(&name.to_ascii_lowercase())?;
        // Within the lock, as every answer.
        let old_until_ns = record.point(address, self.clock.raw_ns());
        let latest_ns = self.clock.raw_ns();
        Some(Change {
            when: Span {
                earliest_ns,
                latest_ns,
            },
            old_until_ns,
        })
    }
}

async fn serve(
    socket: UdpSocket,
    records: Arc<Mutex<BTreeMap<String, Record>>>,
    clock: Arc<dyn Clock>,
) {
    let mut packet = [0u8; LONGEST];
    loop {
        // An error is that of an earlier answer that nobody took.
        let Ok((length, from)) = socket.recv_from(&mut packet).await else {
            continue;
        };
        let Some(asked) = read_question(&packet[..length]) else {
            continue;
        };
        let known = lock(&records)
            .get_mut(&asked.name)
            .map(|record| (asked.kind == Some(Kind::A)).then(|| record.answer(clock.raw_ns())));
        let bytes = answer(&packet[..length], &asked, known);
        // Who does not hear it asks again.
        let _ = socket.send_to(&bytes, from).await;
    }
}

/// The answer as bytes. `known`: none if there is no such name, `Some(None)` if it has no
/// address of that kind.
fn answer(question: &[u8], asked: &Question, known: Option<Option<(Ipv4Addr, u32)>>) -> Vec<u8> {
    const NO_SUCH_NAME: u8 = 3;
    let code = if known.is_some() { 0 } else { NO_SUCH_NAME };
    let address = known.flatten();
    let mut out = asked.id.to_be_bytes().to_vec();
    // An answer, recursion as wanted and to be had.
    out.extend_from_slice(&[0x80 | (question[2] & 1), 0x80 | code]);
    out.extend_from_slice(&[0, 1, 0, u8::from(address.is_some()), 0, 0, 0, 0]);
    out.extend_from_slice(&question[12..asked.end]);
    if let Some((address, ttl_s)) = address {
        // The name as in the question; A, IN, how long it holds, 4 bytes.
        out.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1]);
        out.extend_from_slice(&ttl_s.to_be_bytes());
        out.extend_from_slice(&[0, 4]);
        out.extend_from_slice(&address.octets());
    }
    out
}

/// How often other addresses or ports are tried.
const ATTEMPTS: u32 = 50;

/// Loopback addresses that share a port that is free on all of them: a record holds no
/// port, so backends that a name is pointed at must differ by address alone.
///
/// # Errors
/// When the host has no such addresses (Linux has all of 127.0.0.0/8), or no port.
pub fn places(count: usize) -> io::Result<Vec<SocketAddr>> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let (b, c): (u8, u8) = (rand::random_range(200..250), rand::random());
        let first = 1u8;
        let addresses: Vec<Ipv4Addr> = (first..=u8::MAX - 1)
            .take(count)
            .map(|d| Ipv4Addr::new(127, b, c, d))
            .collect();
        match common_port(&addresses) {
            Ok(port) => {
                return Ok(addresses
                    .into_iter()
                    .map(|address| SocketAddr::from((address, port)))
                    .collect());
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
}

fn common_port(addresses: &[Ipv4Addr]) -> io::Result<u16> {
    let mut port = 0;
    let mut held = Vec::new();
    for address in addresses {
        let listener = TcpListener::bind((*address, port))?;
        port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(port)
}

#[cfg(test)]
mod tests {
    use gapscope_agent::names::look_up;
    use gapscope_proto::clock::SystemClock;

    use super::*;

    const S: i64 = 1_000_000_000;
    const OLD: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
    const NEW: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

    #[test]
    fn an_answer_holds_until_its_time_is_over() {
        let mut record = Record {
            address: OLD,
            ttl_ns: 3_000_000_000,
            remembered: None,
        };
        assert_eq!(record.answer(10 * S), (OLD, 3));
        assert_eq!(record.answer(11 * S + 1), (OLD, 2));
        assert_eq!(record.point(NEW, 12 * S), Some(13 * S));
        assert_eq!(record.answer(13 * S - 1), (OLD, 1));
        assert_eq!(record.answer(13 * S), (NEW, 3));
        // It is remembered, not asked again: pointing back is late as well.
        assert_eq!(record.point(OLD, 14 * S), Some(16 * S));
        // Nothing is remembered that is not the new one.
        assert_eq!(record.point(NEW, 15 * S), None);
        // After a time in which nobody asked it is looked at anew.
        assert_eq!(record.point(OLD, 30 * S), None);
        assert_eq!(record.answer(31 * S), (OLD, 3));
    }

    #[tokio::test]
    async fn the_agent_s_own_way_of_asking_understands_it() {
        let clock = Arc::new(SystemClock::new());
        let server = NameServer::start(clock.clone()).await.expect("a port");
        let at = Some(server.address());
        let ask = |name: &'static str| look_up(name, 7, at);
        server.add("db.gapscope.test", OLD, 0);
        assert_eq!(
            ask("DB.gapscope.test").await.expect("an address"),
            [SocketAddr::from((OLD, 7))]
        );
        let error = ask("other.gapscope.test").await.expect_err("unknown");
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        let begin = clock.raw_ns();
        let change = server.point("db.gapscope.test", NEW).expect("known");
        assert_eq!(change.old_until_ns, None, "nothing is remembered");
        assert!(begin <= change.when.earliest_ns);
        assert!(change.when.earliest_ns <= change.when.latest_ns);
        assert_eq!(
            ask("db.gapscope.test").await.expect("an address"),
            [SocketAddr::from((NEW, 7))]
        );
        assert_eq!(server.point("other.gapscope.test", NEW), None);
    }

    #[test]
    fn places_differ_by_address_alone() {
        let Ok(places) = places(3) else {
            eprintln!("skipped: this host has one loopback address");
            return;
        };
        assert!(places.iter().all(|place| place.port() == places[0].port()));
        assert!(places.iter().all(|place| place.ip().is_loopback()));
        assert_ne!(places[0].ip(), places[1].ip());
    }
}
