//! A proxy's own connection to a backend: connect, log in, carry packets.

use std::io;
use std::net::SocketAddr;

use mysql_common::constants::CapabilityFlags;
use tokio::net::TcpStream;

use super::auth::{self, Credentials, Greeting};
use super::wire::{Inbox, MAX_LOGIN_PAYLOAD, Outbox, ReadError, Reader, write_all};

/// Why a backend could not be logged in to.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("connect: {0}")]
    Connect(io::Error),
    #[error("login: {0}")]
    Read(#[from] ReadError),
    #[error("login: {0}")]
    Write(io::Error),
    #[error("login refused with error {code}: {message}")]
    Refused { code: u16, message: String },
    #[error("login: the backend offers no CLIENT_DEPRECATE_EOF, which the client was offered")]
    DeprecateEof,
    #[error("login: the backend wants an authentication other than mysql_native_password")]
    Plugin,
    #[error("login: the backend does not speak the protocol")]
    Nonsense,
}

/// A logged-in connection to a backend.
#[derive(Debug)]
pub(crate) struct Link {
    /// Which member of the pool.
    pub(crate) member: usize,
    pub(crate) stream: TcpStream,
    pub(crate) inbox: Inbox,
}

impl Link {
    /// Connects and logs in. `capabilities` are those agreed with the client:
    /// answers are passed on as they are, so both sides must agree.
    pub(crate) async fn connect(
        member: usize,
        addr: SocketAddr,
        credentials: &Credentials,
        database: Option<&[u8]>,
        capabilities: CapabilityFlags,
    ) -> Result<Self, LinkError> {
        let stream = TcpStream::connect(addr).await.map_err(LinkError::Connect)?;
        let _ = stream.set_nodelay(true);
        let mut link = Self {
            member,
            stream,
            inbox: Inbox::default(),
        };
        let (sequence, payload) = link.packet().await?;
        refused(&payload)?;
        let greeting = auth::read_greeting(&payload).ok_or(LinkError::Nonsense)?;
        tracing::trace!(%addr, id = greeting.connection_id, "backend connection");
        link.log_in(&greeting, sequence, credentials, database, capabilities)
            .await?;
        Ok(link)
    }

    async fn log_in(
        &mut self,
        greeting: &Greeting,
        sequence: u8,
        credentials: &Credentials,
        database: Option<&[u8]>,
        agreed: CapabilityFlags,
    ) -> Result<(), LinkError> {
        let eof = agreed & CapabilityFlags::CLIENT_DEPRECATE_EOF;
        if !greeting.capabilities.contains(eof) {
            return Err(LinkError::DeprecateEof);
        }
        let mut wanted = auth::server_capabilities(false) | eof;
        wanted.set(
            CapabilityFlags::CLIENT_FOUND_ROWS,
            agreed.contains(CapabilityFlags::CLIENT_FOUND_ROWS),
        );
        let mut out = Vec::new();
        Outbox::new(&mut out, sequence.wrapping_add(1))
            .packet(|out| auth::put_login(out, credentials, greeting, database, wanted));
        write_all(&self.stream, &out)
            .await
            .map_err(LinkError::Write)?;
        let (sequence, payload) = self.packet().await?;
        let payload = match payload.first() {
            Some(0xFE) => {
                let mut reader = Reader(&payload[1..]);
                if reader.until_nul() != Some(auth::NATIVE) {
                    return Err(LinkError::Plugin);
                }
                out.clear();
                Outbox::new(&mut out, sequence.wrapping_add(1)).packet(|out| {
                    out.extend(auth::prove(reader.0, &credentials.password));
                });
                write_all(&self.stream, &out)
                    .await
                    .map_err(LinkError::Write)?;
                self.packet().await?.1
            }
            _ => payload,
        };
        refused(&payload)?;
        (payload.first() == Some(&0))
            .then_some(())
            .ok_or(LinkError::Nonsense)
    }

    async fn packet(&mut self) -> Result<(u8, Vec<u8>), ReadError> {
        let length = self.inbox.packet(&self.stream, MAX_LOGIN_PAYLOAD).await?;
        let (sequence, payload) = self.inbox.peek(length);
        let payload = payload.to_vec();
        self.inbox.consume(length);
        Ok((sequence, payload))
    }

    /// Whether the backend sent nothing unasked and is still there, as far as
    /// can be seen without waiting.
    pub(crate) fn is_quiet(&mut self) -> bool {
        self.inbox.is_empty()
            && matches!(
                self.inbox.try_fill(&self.stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock
            )
    }
}

fn refused(payload: &[u8]) -> Result<(), LinkError> {
    let [0xFF, a, b, message @ ..] = payload else {
        return Ok(());
    };
    // `#` and five characters of state come first, except before the greeting.
    let message = match message {
        [b'#', rest @ ..] => rest.get(5..).unwrap_or_default(),
        other => other,
    };
    Err(LinkError::Refused {
        code: u16::from_le_bytes([*a, *b]),
        message: String::from_utf8_lossy(message).chars().take(200).collect(),
    })
}
