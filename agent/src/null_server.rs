//! A server that does nothing, on loopback in this process: it greets, lets in,
//! and answers every statement with the same row.
//!
//! Purpose: the floor. What a probe of it takes is the driver, the kernel's
//! loopback and this process's own scheduling: no target can be seen to be faster
//! than that, and when it is slow the prober itself is in trouble.
//!
//! It speaks as much of the protocol as the agent's own probe needs, and is
//! reachable from this host only.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::config::{Secret, Target};
use crate::reach::Reach;

/// What it says it is.
pub const BACKEND: &str = "null";
const VERSION: &[u8] = b"8.0.0-gapscope-null";
/// A probe's statement is a few hundred bytes.
const MOST_REQUEST: usize = 1 << 16;

/// A running one; dropped, it ends with its connections.
#[derive(Debug)]
pub struct NullServer {
    /// Where it listens.
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl NullServer {
    /// Listens on a free loopback port.
    pub async fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(async move {
            let mut sessions = tokio::task::JoinSet::new();
            let mut id = 0u32;
            loop {
                tokio::select! {
                    Some(_) = sessions.join_next() => {}
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => {
                            id = id.wrapping_add(1);
                            sessions.spawn(serve(stream, id));
                        }
                        // No handles left: others will be closed.
                        Err(_) => tokio::task::yield_now().await,
                    },
                }
            }
        });
        Ok(Self { address, task })
    }
}

impl NullServer {
    /// How to probe it.
    pub fn target(&self) -> Target {
        Target {
            name: "loopback".parse().expect("a good name"),
            host: self.address.ip().to_string(),
            port: self.address.port(),
            user: "floor".to_owned(),
            password: Secret::default(),
            database: None,
            identity: Some(format!("'{BACKEND}'")),
            max_connects_per_second: 20,
            reach: Reach::default(),
        }
    }
}

impl Drop for NullServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream, id: u32) {
    // Whatever ends a session is the client's to notice.
    let _ = talk(stream, id).await;
}

async fn talk(mut stream: TcpStream, id: u32) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.write_all(&greeting(id)).await?;
    request(&mut stream).await?;
    stream.write_all(&packet(2, &OK)).await?;
    let answer = answer(id);
    loop {
        match request(&mut stream).await?.first() {
            Some(3) => stream.write_all(&answer).await?,
            // Ping.
            Some(14) => stream.write_all(&packet(1, &OK)).await?,
            _ => return Ok(()),
        }
    }
}

async fn request(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut header = [0; 4];
    stream.read_exact(&mut header).await?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize;
    if length > MOST_REQUEST {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await?;
    Ok(body)
}

const OK: [u8; 7] = [0, 0, 0, 2, 0, 0, 0];
const EOF: [u8; 5] = [0xfe, 0, 0, 2, 0];

fn packet(number: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("short packets only");
    let mut out = length.to_le_bytes()[..3].to_vec();
    out.push(number);
    out.extend_from_slice(body);
    out
}

fn text(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![u8::try_from(bytes.len()).expect("short texts only")];
    out.extend_from_slice(bytes);
    out
}

fn greeting(id: u32) -> Vec<u8> {
    // Long password, protocol 4.1, transactions, secure connection, plugin.
    const CAPABILITIES: u32 = 1 | 0x0200 | 0x2000 | 0x8000 | 0x0008_0000;
    let [a, b, c, d] = CAPABILITIES.to_le_bytes();
    let mut body = vec![10];
    body.extend_from_slice(VERSION);
    body.push(0);
    body.extend_from_slice(&id.to_le_bytes());
    body.extend_from_slice(b"12345678\0");
    body.extend_from_slice(&[a, b, 33, 2, 0, c, d, 21]);
    body.extend_from_slice(&[0; 10]);
    body.extend_from_slice(b"123456789012\0mysql_native_password\0");
    packet(0, &body)
}

/// `id`, `version` and `backend`, as the probe's one statement asks.
fn answer(id: u32) -> Vec<u8> {
    let mut out = packet(1, &[3]);
    for (number, name) in (2..).zip([b"id".as_slice(), b"version", b"backend"]) {
        let mut column = text(b"def");
        for part in [b"".as_slice(), b"", b"", name, b""] {
            column.extend(text(part));
        }
        column.extend_from_slice(&[0x0c, 33, 0, 255, 0, 0, 0, 0xfd, 0, 0, 0, 0, 0]);
        out.extend(packet(number, &column));
    }
    out.extend(packet(5, &EOF));
    let mut row = text(id.to_string().as_bytes());
    row.extend(text(VERSION));
    row.extend(text(BACKEND.as_bytes()));
    out.extend(packet(6, &row));
    out.extend(packet(7, &EOF));
    out
}
