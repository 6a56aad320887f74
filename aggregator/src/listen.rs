//! Accepts connections: decides by the first byte whether somebody speaks the
//! wrong protocol, makes TLS, and keeps what the client has shown.
//!
//! Who does not get to a request that is let in within half a minute is cut off,
//! so connections cannot be kept for nothing. A refused client is told as far as
//! its protocol allows: the connection is closed only when it has had time to read
//! the alert.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use gapscope_proto::tls::Facts;
use gapscope_proto::tls::heard::{Io, tls_error};
use gapscope_proto::tls::material::ServerMaterial;
use gapscope_proto::tls::words::{self, Side, Trouble};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use crate::auth::gate::Gate;

/// Connections at once, let in or not. An agent has two.
const MOST_CONNECTIONS: usize = 8_192;
/// The same of the web page. A browser has up to six.
const MOST_BROWSERS: usize = 256;
/// Bytes that may wait for a browser in the kernel.
const BROWSER_BUFFER: usize = 128 << 10;
/// How long the first byte, and then a handshake, may take.
const SHAKE_WITHIN: Duration = Duration::from_secs(10);
/// How long a connection may last on which nobody was let in.
const ADMITTED_WITHIN: Duration = Duration::from_secs(30);
/// How long a refused client may take to read why.
const LINGER: Duration = Duration::from_secs(1);
/// After an error of accepting: mostly too many open files.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// First byte of a TLS handshake.
const TLS_HANDSHAKE: u8 = 0x16;
/// A fatal alert, `unexpected_message`: what a client of clear text finds.
const TLS_ALERT: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 10];
/// An empty SETTINGS frame of HTTP/2: what a client of TLS finds.
const HTTP2_SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
/// What a browser finds that speaks the one where the other is meant.
const HTTP1_REFUSAL: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\
Connection: close\r\n\r\nhttp where https is meant, or the other way round\n";

/// What is spoken on a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speech {
    /// gRPC: HTTP/2.
    Grpc,
    /// HTTP/1.1, for browsers.
    Web,
}

impl Speech {
    /// Connections at once, let in or not.
    const fn most_connections(self) -> usize {
        match self {
            Self::Grpc => MOST_CONNECTIONS,
            Self::Web => MOST_BROWSERS,
        }
    }

    /// What a client of TLS finds where none is spoken.
    const fn to_tls(self) -> &'static [u8] {
        match self {
            Self::Grpc => &HTTP2_SETTINGS,
            Self::Web => HTTP1_REFUSAL,
        }
    }

    /// What a client of clear text finds where TLS is spoken.
    const fn to_clear_text(self) -> &'static [u8] {
        match self {
            Self::Grpc => &TLS_ALERT,
            Self::Web => HTTP1_REFUSAL,
        }
    }

    fn acceptor(self, tls: &ServerMaterial) -> TlsAcceptor {
        match self {
            Self::Grpc => TlsAcceptor::from(tls.config.clone()),
            Self::Web => {
                let mut config = (*tls.config).clone();
                config.alpn_protocols = vec![b"http/1.1".to_vec()];
                TlsAcceptor::from(Arc::new(config))
            }
        }
    }
}

/// A client's certificate, as its handshake proved it.
#[derive(Debug)]
pub struct Shown {
    /// It, and those between it and the CA.
    pub chain: Vec<CertificateDer<'static>>,
    /// What it says.
    pub facts: Facts,
}

/// The other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Where it is.
    pub address: SocketAddr,
    /// What it has shown.
    pub shown: Option<Arc<Shown>>,
    let_in: Arc<AtomicBool>,
}

impl Peer {
    /// Somebody was let in on this connection: it may stay.
    pub fn admitted(&self) {
        self.let_in.store(true, Ordering::Relaxed);
    }
}

/// A connection that has got as far as requests.
pub struct Connection {
    inner: Box<dyn Io>,
    peer: Peer,
    patience: Option<Pin<Box<tokio::time::Sleep>>>,
    _slot: OwnedSemaphorePermit,
}

impl Connection {
    /// Who is at the other end.
    pub fn peer(&self) -> &Peer {
        &self.peer
    }
}

/// Accepts until `shutdown`; what comes out is ready for requests.
pub fn incoming(
    listener: TcpListener,
    gate: Arc<Gate>,
    speech: Speech,
    shutdown: CancellationToken,
) -> impl Stream<Item = io::Result<Connection>> {
    let (ready, connections) = mpsc::channel(16);
    tokio::spawn(async move {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = accept(listener, gate, speech, ready) => {}
        }
    });
    ReceiverStream::new(connections)
}

async fn accept(
    listener: TcpListener,
    gate: Arc<Gate>,
    speech: Speech,
    ready: mpsc::Sender<io::Result<Connection>>,
) {
    let slots = Arc::new(Semaphore::new(speech.most_connections()));
    let mut complained = false;
    loop {
        // Who only stalls has a slot for as long as a handshake may take, and one
        // address gets few of them (`Gate::may_come`).
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return;
        };
        let (tcp, address) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                if !complained {
                    tracing::warn!("a connection cannot be accepted: {error}");
                    complained = true;
                }
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        complained = false;
        if !gate.may_come(address.ip()) {
            continue;
        }
        let (gate, ready) = (gate.clone(), ready.clone());
        tokio::spawn(async move {
            if let Some((inner, shown)) = shake(tcp, address, &gate, speech).await {
                let connection = Connection {
                    inner,
                    peer: Peer {
                        address,
                        shown,
                        let_in: Arc::default(),
                    },
                    patience: Some(Box::pin(tokio::time::sleep(ADMITTED_WITHIN))),
                    _slot: slot,
                };
                // Nobody takes it when the server ends.
                let _ = ready.send(Ok(connection)).await;
            }
        });
    }
}

type Shaken = (Box<dyn Io>, Option<Arc<Shown>>);

async fn shake(
    mut tcp: TcpStream,
    address: SocketAddr,
    gate: &Gate,
    speech: Speech,
) -> Option<Shaken> {
    tcp.set_nodelay(true).ok()?;
    if speech == Speech::Web {
        rustix::net::sockopt::set_socket_send_buffer_size(&tcp, BROWSER_BUFFER).ok()?;
    }
    let mut first = [0];
    let peeked = tokio::time::timeout(SHAKE_WITHIN, tcp.peek(&mut first)).await;
    if !matches!(peeked, Ok(Ok(1))) {
        // Gone again, or silent: nothing to be told.
        return None;
    }
    match (gate.tls(), first[0] == TLS_HANDSHAKE) {
        (None, false) => Some((Box::new(tcp), None)),
        (Some(tls), true) => match secure(tcp, &tls, speech).await {
            Ok(shaken) => Some(shaken),
            Err((trouble, tcp)) => {
                gate.failed(address, &trouble);
                if let Some(tcp) = tcp {
                    linger(tcp).await;
                }
                None
            }
        },
        (tls, _) => {
            let (trouble, answer): (_, &[u8]) = match tls {
                Some(_) => (words::clear_text_to_tls(), speech.to_clear_text()),
                None => (words::tls_to_clear_text(), speech.to_tls()),
            };
            gate.failed(address, &trouble);
            if tcp.write_all(answer).await.is_ok() {
                linger(tcp).await;
            }
            None
        }
    }
}

async fn secure(
    tcp: TcpStream,
    tls: &ServerMaterial,
    speech: Speech,
) -> Result<Shaken, (Trouble, Option<TcpStream>)> {
    let accepting = speech.acceptor(tls).accept(tcp).into_fallible();
    let stream = match tokio::time::timeout(SHAKE_WITHIN, accepting).await {
        Err(_) => {
            return Err((Trouble::new("the TLS handshake took too long"), None));
        }
        Ok(Err((error, tcp))) => {
            let trouble = tls_error(&error).map_or_else(
                || Trouble::new(format!("the TLS handshake was broken off: {error}")),
                |error| words::explain(error, Side::Server),
            );
            return Err((trouble, Some(tcp)));
        }
        Ok(Ok(stream)) => stream,
    };
    let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let shown = match chain.first() {
        None => None,
        Some(own) => {
            let facts = Facts::read(own).map_err(|why| {
                (
                    Trouble::new(format!("the client's certificate {why}")),
                    None,
                )
            })?;
            Some(Arc::new(Shown {
                chain: chain.iter().map(|one| one.clone().into_owned()).collect(),
                facts,
            }))
        }
    };
    Ok((Box::new(stream), shown))
}

/// Closes so that what was written is read: a socket closed with something unread
/// in it is reset, and the other side loses what it had not read yet.
async fn linger(mut tcp: TcpStream) {
    let _ = tcp.shutdown().await;
    let mut sink = [0; 4096];
    let drained = async {
        for _ in 0..64 {
            match tcp.read(&mut sink).await {
                Ok(read) if read > 0 => {}
                _ => return,
            }
        }
    };
    let _ = tokio::time::timeout(LINGER, drained).await;
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(patience) = &mut self.patience
            && patience.as_mut().poll(cx).is_ready()
        {
            self.patience = None;
            if !self.peer.let_in.load(Ordering::Relaxed) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
