//! What the delivery tests count by: a server that gives every answer a number of
//! its own, and a forwarder that cuts and silences connections. Neither knows
//! anything of the product.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file is a program of its own and uses a part"
)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use gapscope_proto::clock::{Clock, SystemClock};

use super::common::pause;

/// An answer, as the server that gave it knows it. Its number is its place, from 1.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    /// Over which connection: the number that its greeting had.
    pub connection: u32,
    /// When it was decided, by this host's RAW clock.
    pub given_ns: i64,
    /// When all of it had been handed to the kernel; none: it never was.
    pub sent_ns: Option<i64>,
}

/// A MySQL-speaking server whose `CONNECTION_ID()` is another number each time.
pub struct CountingServer {
    pub address: SocketAddr,
    answers: Answers,
    connections: Arc<AtomicU32>,
    /// Who is answered: a port that was free may be one that another test's agent still
    /// tries to reach, and what that is told is not ours.
    pub user: String,
}

type Answers = Arc<Mutex<Vec<Answer>>>;

/// As the programs read it: they run on the same host.
pub fn now_ns() -> i64 {
    static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::new);
    CLOCK.raw_ns()
}

impl CountingServer {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let answers = Answers::default();
        let connections = Arc::new(AtomicU32::new(0));
        let (count, numbers) = (answers.clone(), connections.clone());
        let user = format!("probe-{:08x}", rand::random::<u32>());
        let only = user.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (count, only) = (count.clone(), only.clone());
                let connection = numbers.fetch_add(1, Ordering::SeqCst) + 1;
                std::thread::spawn(move || {
                    // The client went away.
                    let _ = serve(stream, connection, &count, &only);
                });
            }
        });
        Self {
            address,
            answers,
            connections,
            user,
        }
    }

    /// The number of the newest answer; they are 1, 2, 3 ...
    pub fn answered(&self) -> u64 {
        self.answers.lock().expect("sound").len() as u64
    }

    /// All answers so far.
    pub fn answers(&self) -> Vec<Answer> {
        self.answers.lock().expect("sound").clone()
    }

    /// How many connections there have been.
    pub fn connections(&self) -> u32 {
        self.connections.load(Ordering::SeqCst)
    }
}

fn packet(seq: u8, body: &[u8]) -> Vec<u8> {
    let mut out = (body.len() as u32).to_le_bytes()[..3].to_vec();
    out.push(seq);
    out.extend_from_slice(body);
    out
}

fn text(text: &str) -> Vec<u8> {
    let mut out = vec![text.len() as u8];
    out.extend_from_slice(text.as_bytes());
    out
}

fn read_packet(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut header = [0; 4];
    stream.read_exact(&mut header)?;
    let length = u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize;
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn serve(
    mut stream: TcpStream,
    connection: u32,
    answers: &Answers,
    only: &str,
) -> std::io::Result<()> {
    const EOF: [u8; 5] = [0xfe, 0, 0, 2, 0];
    stream.set_nodelay(true)?;
    // Protocol 10, 4.1, secure connection, plugin auth, transactions.
    let mut greeting = b"\x0a8.0.99-count\0".to_vec();
    greeting.extend_from_slice(&connection.to_le_bytes());
    greeting.extend_from_slice(b"12345678\0");
    let capabilities: u32 = 0x0000_0200 | 0x8000 | 0x0008_0000 | 0x2000 | 1;
    greeting.extend_from_slice(&capabilities.to_le_bytes()[..2]);
    greeting.extend_from_slice(&[33, 2, 0]);
    greeting.extend_from_slice(&capabilities.to_le_bytes()[2..]);
    greeting.push(21);
    greeting.extend_from_slice(&[0; 10]);
    greeting.extend_from_slice(b"123456789012\0mysql_native_password\0");
    stream.write_all(&packet(0, &greeting))?;
    let login = read_packet(&mut stream)?;
    // Behind capabilities, longest packet, character set and 23 zeros.
    let name = login.get(32..).unwrap_or_default();
    if name.split(|byte| *byte == 0).next() != Some(only.as_bytes()) {
        return Ok(());
    }
    stream.write_all(&packet(2, &[0, 0, 0, 2, 0, 0, 0]))?;
    loop {
        let command = read_packet(&mut stream)?;
        if command.first() != Some(&3) {
            return Ok(());
        }
        let mut out = packet(1, &[3]);
        for (seq, name) in (2..).zip(["id", "version", "backend"]) {
            let mut column = text("def");
            for part in ["", "", "", name, ""] {
                column.extend(text(part));
            }
            column.extend_from_slice(&[0x0c, 33, 0, 255, 0, 0, 0, 0xfd, 0, 0, 0, 0, 0]);
            out.extend(packet(seq, &column));
        }
        out.extend(packet(5, &EOF));
        // Noted before it is sent: an answer that nobody noted cannot arrive.
        let number = {
            let mut answers = answers.lock().expect("sound");
            answers.push(Answer {
                connection,
                given_ns: now_ns(),
                sent_ns: None,
            });
            answers.len()
        };
        let mut row = text(&number.to_string());
        row.extend(text("8.0.99-count"));
        row.extend(text("counting"));
        out.extend(packet(6, &row));
        out.extend(packet(7, &EOF));
        stream.write_all(&out)?;
        answers.lock().expect("sound")[number - 1].sent_ns = Some(now_ns());
    }
}

struct Connection {
    silent: AtomicBool,
    ends: [TcpStream; 2],
}

impl Connection {
    fn cut(&self) {
        for end in &self.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// Forwards connections to an address that may change, until told otherwise.
pub struct Forwarder {
    pub address: SocketAddr,
    target: Arc<Mutex<SocketAddr>>,
    connections: Arc<Mutex<Vec<Arc<Connection>>>>,
    refusing: Arc<AtomicBool>,
}

impl Forwarder {
    pub fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let forwarder = Self {
            address: listener.local_addr().expect("bound"),
            target: Arc::new(Mutex::new(target)),
            connections: Arc::default(),
            refusing: Arc::default(),
        };
        let target = forwarder.target.clone();
        let connections = forwarder.connections.clone();
        let refusing = forwarder.refusing.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                if refusing.load(Ordering::SeqCst) {
                    continue;
                }
                let address = *target.lock().expect("sound");
                let Ok(far) = TcpStream::connect(address) else {
                    continue;
                };
                let connection = Arc::new(Connection {
                    silent: AtomicBool::new(false),
                    ends: [near, far],
                });
                let mut all = connections.lock().expect("sound");
                all.push(connection.clone());
                for from in [0, 1] {
                    let connection = connection.clone();
                    std::thread::spawn(move || {
                        let _ = pump(&connection, from);
                        if !connection.silent.load(Ordering::SeqCst) {
                            connection.cut();
                        }
                    });
                }
            }
        });
        forwarder
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// New connections go there.
    pub fn lead_to(&self, target: SocketAddr) {
        *self.target.lock().expect("sound") = target;
    }

    /// New connections are closed at once, or not any more.
    pub fn refuse(&self, refuse: bool) {
        self.refusing.store(refuse, Ordering::SeqCst);
    }

    /// All connections end now.
    pub fn cut(&self) {
        for connection in self.connections.lock().expect("sound").drain(..) {
            connection.cut();
        }
    }

    /// Not a byte goes through the connections of now any more, and they stay
    /// open: each end must find out by itself.
    pub fn silence(&self) {
        for connection in &*self.connections.lock().expect("sound") {
            connection.silent.store(true, Ordering::SeqCst);
        }
    }

    /// What was silenced goes on where it was: late, whole.
    pub fn resume(&self) {
        for connection in &*self.connections.lock().expect("sound") {
            connection.silent.store(false, Ordering::SeqCst);
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.refuse(true);
        self.resume();
        self.cut();
    }
}

fn pump(connection: &Connection, from: usize) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let (mut from, mut to) = (&connection.ends[from], &connection.ends[1 - from]);
    loop {
        let read = from.read(&mut buffer)?;
        while connection.silent.load(Ordering::SeqCst) {
            pause(Duration::from_millis(10));
        }
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read])?;
    }
}
