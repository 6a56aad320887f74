//! A connection that is looked at: what the server's greeting says, which TLS
//! was agreed on, and by which TCP connection the target was reached.
//!
//! Method: the driver tells none of it, so it is given a relay on loopback that
//! carries its bytes to the target unchanged and keeps the first of the server's.
//! It is an ordinary login, by whatever way of logging in the driver knows. A
//! client that reads a greeting and leaves would be counted by the server as a
//! broken-off login, and after `max_connect_errors` of them the host is blocked.
//!
//! `check` and `try` look once ([`reach`]), a run now and then ([`watch`], as
//! [`when`] says).
//!
//! What it cannot know: the certificate under TLS 1.3, which is encrypted; what
//! lies behind whatever answers. One more hop makes it unfit for measuring.

pub mod parse;
pub mod reach;
pub mod watch;
pub mod when;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use self::parse::{Greeting, TlsSeen};

/// Enough for a greeting and the beginning of TLS.
const KEPT: usize = 16 << 10;

/// A relay for one connection, already connected to the target.
#[derive(Debug)]
pub struct Tap {
    /// Where the driver has to connect to.
    pub via: SocketAddr,
    /// Our end of the connection to the target, as a server that is reached
    /// directly sees it.
    pub local: SocketAddr,
    kept: Arc<Mutex<Vec<u8>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Tap {
    /// Connects to the target and waits for the driver.
    pub async fn connect(target: SocketAddr) -> std::io::Result<Self> {
        let server = TcpStream::connect(target).await?;
        server.set_nodelay(true)?;
        let local = server.local_addr()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let via = listener.local_addr()?;
        let kept = Arc::new(Mutex::new(Vec::new()));
        let for_task = kept.clone();
        let task = tokio::spawn(async move {
            let Ok((client, _)) = listener.accept().await else {
                return;
            };
            drop(listener);
            let _ = client.set_nodelay(true);
            carry(client, server, &for_task).await;
        });
        Ok(Self {
            via,
            local,
            kept,
            task,
        })
    }

    /// The server's greeting, once it has come.
    pub fn greeting(&self) -> Option<Greeting> {
        parse::greeting(&self.kept())
    }

    /// The TLS that was agreed on, if any.
    pub fn tls(&self) -> Option<TlsSeen> {
        parse::tls(&self.kept())
    }

    fn kept(&self) -> Vec<u8> {
        self.kept
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn carry(client: TcpStream, server: TcpStream, kept: &Mutex<Vec<u8>>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
        let _ = to_server.shutdown().await;
    };
    let down = async {
        let mut buffer = vec![0; KEPT];
        while let Ok(n @ 1..) = from_server.read(&mut buffer).await {
            {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                let room = KEPT.saturating_sub(kept.len()).min(n);
                kept.extend_from_slice(&buffer[..room]);
            }
            if to_client.write_all(&buffer[..n]).await.is_err() {
                break;
            }
        }
        let _ = to_client.shutdown().await;
    };
    tokio::join!(up, down);
}
