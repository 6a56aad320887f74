//! Watches what becomes of a backend that a fault was done to. "It took effect"
//! has several moments, more than a second apart on real servers: the listener
//! refuses, held connections are cut, the process is gone. Each is told as an
//! interval: from the last look at which it had not happened to the first at
//! which it had.
//!
//! Method: look again and again, about a millisecond apart at first and less
//! often later. A look is stamped before it begins and after it ends. If it shows
//! nothing, the event was not before the begin; if it shows the event, the event
//! was not after the end.
//!
//! The listener is asked by connecting, which is only done after a fault that
//! ends the server. A hung one would keep each connection in its backlog, and a
//! full backlog is what some health checks see: the witness would decide the
//! result. Handshakes left unfinished can make a server block a host, so it has
//! to be one that does not count them (as those of the lab).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::fault::Span;
use mysql_common::constants::CapabilityFlags;
use mysql_common::io::ParseBuf;
use mysql_common::packets::{AuthPlugin, HandshakePacket, HandshakeResponse};
use mysql_common::proto::{MyDeserialize, MySerialize};
use mysql_common::scramble::scramble_native;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::children::Child;

/// What a witness saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// The listener began to refuse.
    ListenerRefused(Span),
    /// The held connection was cut.
    HeldCut(Span),
    /// The process had ended and was waited for.
    Gone(Span),
    /// For people.
    Note(String),
}

/// Where witnesses tell. They stop when nobody listens any more.
pub type Telling = mpsc::UnboundedSender<Seen>;

/// How long to wait between two looks, `since_ns` after the fault was asked for.
fn pause(since_ns: i64) -> Duration {
    Duration::from_millis(match since_ns {
        ..2_000_000_000 => 1,
        2_000_000_000..10_000_000_000 => 10,
        _ => 100,
    })
}

/// Who may log in directly.
#[derive(Clone)]
pub struct Login {
    /// User name.
    pub user: String,
    /// Password, for the native method.
    pub password: String,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Login({:?}, ..)", self.user)
    }
}

/// An idle connection straight to a backend, logged in before the fault.
#[derive(Debug)]
pub struct HeldConnection {
    stream: TcpStream,
}

impl HeldConnection {
    /// Connects and logs in.
    pub async fn open(address: SocketAddr, login: &Login) -> io::Result<Self> {
        let attempt = async {
            let mut stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let (sequence, greeting) = packet(&mut stream).await?;
            let answer = answer(&greeting, login)?;
            write_packet(&mut stream, sequence.wrapping_add(1), &answer).await?;
            let (_, verdict) = packet(&mut stream).await?;
            match verdict.first() {
                Some(0) => Ok(Self { stream }),
                Some(0xff) => Err(io::Error::other(
                    String::from_utf8_lossy(verdict.get(9..).unwrap_or_default()).into_owned(),
                )),
                _ => Err(io::Error::other("the server asks for another login method")),
            }
        };
        tokio::time::timeout(Duration::from_secs(5), attempt)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// One look: whether it has been cut. Data on it (a server's farewell) is no
    /// cut.
    fn is_cut(&self) -> bool {
        let mut buffer = [0u8; 256];
        loop {
            match self.stream.try_read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return true,
            }
        }
    }

    /// Watches it from now on. `asked_ns`: before the fault was asked for.
    pub async fn watch(self, clock: Arc<dyn Clock>, asked_ns: i64, telling: Telling) {
        let mut not_before = asked_ns;
        loop {
            let before = clock.raw_ns();
            let cut = self.is_cut();
            let after = clock.raw_ns();
            if cut {
                // An error means that nobody wants to know.
                let _ = telling.send(Seen::HeldCut(Span {
                    earliest_ns: not_before,
                    latest_ns: after,
                }));
                return;
            }
            not_before = before;
            // Whichever comes first: the socket has something, or it is time to say
            // that it had not.
            let wait = tokio::time::timeout(pause(after - asked_ns), self.stream.readable());
            tokio::select! {
                _ = wait => {}
                () = telling.closed() => return,
            }
        }
    }
}

async fn packet(stream: &mut TcpStream) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0u8; 4];
    stream.read_exact(&mut head).await?;
    let length = usize::from(head[0]) | usize::from(head[1]) << 8 | usize::from(head[2]) << 16;
    if length > 65_536 {
        return Err(io::Error::other("a greeting of more than 64 KiB"));
    }
    let mut payload = vec![0u8; length];
    stream.read_exact(&mut payload).await?;
    if payload.first() == Some(&0xff) && head[3] == 0 {
        return Err(io::Error::other(
            String::from_utf8_lossy(payload.get(3..).unwrap_or_default()).into_owned(),
        ));
    }
    Ok((head[3], payload))
}

async fn write_packet(stream: &mut TcpStream, sequence: u8, payload: &[u8]) -> io::Result<()> {
    let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
    let mut bytes = length.to_le_bytes();
    bytes[3] = sequence;
    let mut whole = bytes.to_vec();
    whole.extend_from_slice(payload);
    stream.write_all(&whole).await
}

fn answer(greeting: &[u8], login: &Login) -> io::Result<Vec<u8>> {
    let greeting = HandshakePacket::deserialize((), &mut ParseBuf(greeting))
        .map_err(|_| io::Error::other("what answers does not greet as a MySQL server"))?;
    let nonce = greeting.nonce();
    let proof = scramble_native(&nonce, login.password.as_bytes());
    let response = HandshakeResponse::new(
        Some(proof.map(|proof| proof.to_vec()).unwrap_or_default()),
        (8, 0, 11),
        Some(login.user.as_bytes()),
        None::<Vec<u8>>,
        Some(AuthPlugin::MysqlNativePassword),
        CapabilityFlags::CLIENT_PROTOCOL_41
            | CapabilityFlags::CLIENT_SECURE_CONNECTION
            | CapabilityFlags::CLIENT_PLUGIN_AUTH,
        None,
        1 << 24,
    );
    let mut bytes = Vec::new();
    response.serialize(&mut bytes);
    Ok(bytes)
}

/// Connects to `address` until it is refused.
pub async fn watch_listener(
    clock: Arc<dyn Clock>,
    address: SocketAddr,
    asked_ns: i64,
    telling: Telling,
) {
    let mut not_before = asked_ns;
    while !telling.is_closed() {
        let before = clock.raw_ns();
        let attempt =
            tokio::time::timeout(Duration::from_secs(1), TcpStream::connect(address)).await;
        let after = clock.raw_ns();
        match attempt {
            Ok(Ok(_accepted)) => not_before = before,
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                let _ = telling.send(Seen::ListenerRefused(Span {
                    earliest_ns: not_before,
                    latest_ns: after,
                }));
                return;
            }
            // Reset while in the backlog, no local port, no answer: says nothing
            // about the listener.
            Ok(Err(_)) | Err(_) => {}
        }
        tokio::time::sleep(pause(after - asked_ns)).await;
    }
}

/// Waits for a process to be gone.
pub async fn watch_process(clock: Arc<dyn Clock>, child: Child, asked_ns: i64, telling: Telling) {
    let mut not_before = asked_ns;
    while !telling.is_closed() {
        let before = clock.raw_ns();
        let ended = child.ended();
        let after = clock.raw_ns();
        match ended {
            Ok(Some(status)) => {
                let _ = telling.send(Seen::Gone(Span {
                    earliest_ns: not_before,
                    latest_ns: after,
                }));
                let _ = telling.send(Seen::Note(format!("ended: {status}")));
                return;
            }
            Ok(None) => not_before = before,
            Err(error) => {
                let _ = telling.send(Seen::Note(format!(
                    "cannot wait for {}: {error}",
                    child.name()
                )));
                return;
            }
        }
        tokio::time::sleep(pause(after - asked_ns)).await;
    }
}
