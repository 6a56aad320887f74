//! A server that answers at once: the instrument's own floor. Whatever is
//! measured against it is the instrument, the loopback and the scheduler.
//!
//! Method: a thread for each connection, blocking reads and writes, an answer
//! made beforehand. It parses nothing, so every statement gets the same answer;
//! pings and the like get an OK. What it cannot show: what parsing or a table
//! costs, which is the point.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use mysql_common::constants::{CapabilityFlags, ColumnType, StatusFlags};

use super::auth::{self, Credentials, Scramble};
use super::wire::{HEADER, MAX_LOGIN_PAYLOAD, MAX_PAYLOAD, Outbox, put_lenenc, put_text};

/// Connections held at once; more are closed at once.
const MOST_CONNECTIONS: usize = 2_000;
/// Threads that wait for statements need little.
const STACK: usize = 256 << 10;

/// The rows that every statement is answered with, as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NullAnswer {
    /// The columns' names.
    pub columns: Vec<Vec<u8>>,
    /// As many values in each row; none: NULL.
    pub rows: Vec<Vec<Option<Vec<u8>>>>,
}

/// Answers made beforehand, for clients with and without CLIENT_DEPRECATE_EOF.
struct Prepared {
    text: [Vec<u8>; 2],
    prepare: [Vec<u8>; 2],
    binary: [Vec<u8>; 2],
    ok: Vec<u8>,
}

impl Prepared {
    fn new(answer: &NullAnswer) -> Self {
        let both = |make: &dyn Fn(bool) -> Vec<u8>| [make(false), make(true)];
        let mut ok = Vec::new();
        Outbox::new(&mut ok, 1).ok(StatusFlags::SERVER_STATUS_AUTOCOMMIT);
        Self {
            text: both(&|deprecate_eof| result(answer, false, deprecate_eof)),
            binary: both(&|deprecate_eof| result(answer, true, deprecate_eof)),
            prepare: both(&|deprecate_eof| description(answer, deprecate_eof)),
            ok,
        }
    }
}

fn columns(out: &mut Outbox<'_>, answer: &NullAnswer, deprecate_eof: bool) {
    for name in &answer.columns {
        out.column(name, ColumnType::MYSQL_TYPE_VAR_STRING);
    }
    if !deprecate_eof {
        out.eof(StatusFlags::SERVER_STATUS_AUTOCOMMIT);
    }
}

fn result(answer: &NullAnswer, binary: bool, deprecate_eof: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = Outbox::new(&mut bytes, 1);
    out.packet(|out| put_lenenc(out, answer.columns.len() as u64));
    columns(&mut out, answer, deprecate_eof);
    for row in &answer.rows {
        out.packet(|out| {
            if binary {
                let mut nulls = vec![0_u8; (row.len() + 9) / 8];
                for (at, _) in row.iter().enumerate().filter(|(_, value)| value.is_none()) {
                    nulls[(at + 2) / 8] |= 1 << ((at + 2) % 8);
                }
                out.push(0);
                out.extend_from_slice(&nulls);
            }
            for value in row {
                match value {
                    Some(text) => put_text(out, text),
                    None if binary => {}
                    None => out.push(0xFB),
                }
            }
        });
    }
    out.end_of_rows(StatusFlags::SERVER_STATUS_AUTOCOMMIT, deprecate_eof);
    bytes
}

fn description(answer: &NullAnswer, deprecate_eof: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = Outbox::new(&mut bytes, 1);
    let count = u16::try_from(answer.columns.len()).unwrap_or(u16::MAX);
    out.packet(|out| {
        out.extend_from_slice(&[0, 1, 0, 0, 0]);
        out.extend_from_slice(&count.to_le_bytes());
        out.extend_from_slice(&[0, 0, 0, 0, 0]);
    });
    if count > 0 {
        columns(&mut out, answer, deprecate_eof);
    }
    bytes
}

struct Shared {
    answers: Prepared,
    credentials: Credentials,
    stopped: AtomicBool,
    next_id: AtomicU32,
    open: Mutex<HashMap<u32, TcpStream>>,
}

impl Shared {
    fn open(&self) -> std::sync::MutexGuard<'_, HashMap<u32, TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running null server. Dropping it ends it and its connections.
pub struct NullServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for NullServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NullServer({})", self.addr)
    }
}

impl NullServer {
    /// Listens on a free loopback port.
    pub fn start(answer: &NullAnswer, credentials: Credentials) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            answers: Prepared::new(answer),
            credentials,
            stopped: AtomicBool::new(false),
            next_id: AtomicU32::new(1),
            open: Mutex::default(),
        });
        let of_thread = Arc::clone(&shared);
        let accepting = std::thread::Builder::new()
            .name("null-accept".to_owned())
            .spawn(move || accept(&listener, &of_thread))?;
        Ok(Self {
            addr,
            shared,
            accepting: Some(accepting),
        })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for NullServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // Wakes the accepting thread; an error means that it is gone.
        let _ = TcpStream::connect(self.addr);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
        for stream in self.shared.open().values() {
            // An error means that it is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.stopped.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        let Ok(handle) = stream.try_clone() else {
            continue;
        };
        if shared.open().len() >= MOST_CONNECTIONS {
            continue;
        }
        shared.open().insert(id, handle);
        let of_thread = Arc::clone(shared);
        let started = std::thread::Builder::new()
            .name("null".to_owned())
            .stack_size(STACK)
            .spawn(move || {
                // An error is the client's end of the conversation.
                let _ = converse(stream, id, &of_thread);
                of_thread.open().remove(&id);
            });
        if started.is_err() {
            shared.open().remove(&id);
        }
    }
}

/// Reads a packet of at most `most` bytes to the begin of `buffer`; its sequence
/// number, and where it ends. Nothing follows it: clients wait for answers.
fn packet(stream: &mut TcpStream, buffer: &mut Vec<u8>, most: usize) -> io::Result<(u8, usize)> {
    let mut have = stream.read(buffer)?;
    loop {
        if have == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if have >= HEADER {
            let length =
                usize::from(buffer[0]) | usize::from(buffer[1]) << 8 | usize::from(buffer[2]) << 16;
            if length > most {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if buffer.len() < HEADER + length {
                buffer.resize(HEADER + length, 0);
            }
            if have >= HEADER + length {
                return Ok((buffer[3], HEADER + length));
            }
        }
        let more = stream.read(&mut buffer[have..])?;
        if more == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        have += more;
    }
}

fn converse(mut stream: TcpStream, id: u32, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 16 << 10];
    let mut out = Vec::with_capacity(256);
    let offered = auth::server_capabilities(true);
    let scramble = Scramble::random();
    Outbox::new(&mut out, 0).packet(|out| {
        auth::put_greeting(out, "11.4.99-gapscope-null", id, &scramble, offered);
    });
    stream.write_all(&out)?;
    let (mut sequence, end) = packet(&mut stream, &mut buffer, MAX_LOGIN_PAYLOAD)?;
    let login = auth::read_login(&buffer[HEADER..end], offered);
    out.clear();
    let mut answer = Outbox::new(&mut out, sequence.wrapping_add(1));
    let login = match login {
        Ok(mut login) => {
            if login.must_switch {
                answer.packet(|out| auth::put_switch(out, &scramble));
                stream.write_all(&out)?;
                let (answered, end) = packet(&mut stream, &mut buffer, MAX_LOGIN_PAYLOAD)?;
                sequence = answered;
                login.proof = buffer[HEADER..end].to_vec();
            }
            auth::verify(&shared.credentials, &scramble, &login.user, &login.proof).map(|()| login)
        }
        Err(error) => Err(error),
    };
    out.clear();
    let mut answer = Outbox::new(&mut out, sequence.wrapping_add(1));
    let login = match login {
        Ok(login) => login,
        Err(error) => {
            answer.error(&error);
            return stream.write_all(&out);
        }
    };
    answer.ok(StatusFlags::SERVER_STATUS_AUTOCOMMIT);
    stream.write_all(&out)?;
    let which = usize::from(
        login
            .capabilities
            .contains(CapabilityFlags::CLIENT_DEPRECATE_EOF),
    );
    let answers = &shared.answers;
    loop {
        let (_, end) = packet(&mut stream, &mut buffer, MAX_PAYLOAD)?;
        match buffer[..end].get(HEADER) {
            Some(0x01) => return Ok(()),                              // COM_QUIT
            Some(0x03) => stream.write_all(&answers.text[which])?,    // COM_QUERY
            Some(0x16) => stream.write_all(&answers.prepare[which])?, // COM_STMT_PREPARE
            Some(0x17) => stream.write_all(&answers.binary[which])?,  // COM_STMT_EXECUTE
            Some(0x18 | 0x19) => {}                                   // no answer
            _ => stream.write_all(&answers.ok)?,
        }
    }
}
