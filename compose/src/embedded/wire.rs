//! Packets of the client/server protocol: framing with bounded lengths, and
//! the few answers a server gives.
//!
//! Method: commands are read into a buffer that grows with the bytes that
//! arrive, never with the length a header claims; a header that claims more
//! than the limit is an error at once. Answers are appended to a byte vector
//! that the caller reuses.
//!
//! What it cannot do: commands longer than 16 MiB - 2 (those are split over
//! several packets), compression, TLS.

use std::io;

use bytes::{Buf, BytesMut};
use mysql_common::constants::{ColumnFlags, ColumnType, StatusFlags};
use mysql_common::packets::Column;
use mysql_common::proto::MySerialize;
use tokio::net::TcpStream;

/// Longest payload of one packet that is not continued in a next one.
pub(crate) const MAX_PAYLOAD: usize = 0xFF_FFFF - 1;
/// Longest payload accepted before a client has logged in.
pub(crate) const MAX_LOGIN_PAYLOAD: usize = 64 * 1024;
/// Bytes of the header before each payload.
pub(crate) const HEADER: usize = 4;

/// Why no packet could be had from a peer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// The peer closed its side.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer sent a length above the limit.
    #[error("the peer announced a packet of {0} bytes")]
    TooLong(usize),
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Bytes received and not yet taken as packets.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    bytes: BytesMut,
}

impl Inbox {
    /// Length of the first packet's payload, once it is wholly here.
    pub(crate) fn complete(&self, limit: usize) -> Result<Option<usize>, ReadError> {
        let [a, b, c, _sequence, ..] = self.bytes[..] else {
            return Ok(None);
        };
        let length = usize::from(a) | usize::from(b) << 8 | usize::from(c) << 16;
        if length > limit {
            return Err(ReadError::TooLong(length));
        }
        Ok((self.bytes.len() >= HEADER + length).then_some(length))
    }

    /// The payload of a packet that [`Self::complete`] found, and its sequence number.
    pub(crate) fn peek(&self, length: usize) -> (u8, &[u8]) {
        (self.bytes[3], &self.bytes[HEADER..HEADER + length])
    }

    /// Header and payload of that packet, as received.
    pub(crate) fn peek_raw(&self, length: usize) -> &[u8] {
        &self.bytes[..HEADER + length]
    }

    /// Drops that packet.
    pub(crate) fn consume(&mut self, length: usize) {
        self.bytes.advance(HEADER + length);
    }

    /// Drops everything received so far.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Whether nothing is left over.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes received and not yet taken.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Reads what has arrived without waiting. `Ok(0)` is the peer's end.
    pub(crate) fn try_fill(&mut self, stream: &TcpStream) -> io::Result<usize> {
        self.bytes.reserve(4096);
        stream.try_read_buf(&mut self.bytes)
    }

    /// Waits until more has arrived.
    pub(crate) async fn fill(&mut self, stream: &TcpStream) -> Result<(), ReadError> {
        loop {
            match self.try_fill(stream) {
                Ok(0) => return Err(ReadError::Closed),
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    stream.readable().await?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for a whole packet; returns its length. Safe to cancel.
    pub(crate) async fn packet(
        &mut self,
        stream: &TcpStream,
        limit: usize,
    ) -> Result<usize, ReadError> {
        loop {
            if let Some(length) = self.complete(limit)? {
                return Ok(length);
            }
            self.fill(stream).await?;
        }
    }
}

/// Writes all of `bytes`.
pub(crate) async fn write_all(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Packets being written, with the running sequence number.
#[derive(Debug)]
pub(crate) struct Outbox<'a> {
    bytes: &'a mut Vec<u8>,
    sequence: u8,
}

impl<'a> Outbox<'a> {
    /// Appends to `bytes`; the first packet gets number `sequence`.
    pub(crate) fn new(bytes: &'a mut Vec<u8>, sequence: u8) -> Self {
        Self { bytes, sequence }
    }

    /// Appends one packet whose payload `fill` writes. A payload above
    /// [`MAX_PAYLOAD`] is replaced by error 1153.
    pub(crate) fn packet(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0, 0, 0, self.sequence]);
        fill(self.bytes);
        let mut length = self.bytes.len() - start - HEADER;
        if length > MAX_PAYLOAD {
            self.bytes.truncate(start + HEADER);
            put_error(
                self.bytes,
                &SqlError::new(
                    1153,
                    "08S01",
                    "the row is longer than `max_allowed_packet` bytes",
                ),
            );
            length = self.bytes.len() - start - HEADER;
        }
        let [a, b, c, ..] = u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes();
        self.bytes[start..start + 3].copy_from_slice(&[a, b, c]);
        self.sequence = self.sequence.wrapping_add(1);
    }

    /// Appends an OK packet.
    pub(crate) fn ok(&mut self, status: StatusFlags) {
        self.packet(|out| {
            out.extend_from_slice(&[0, 0, 0]);
            out.extend_from_slice(&status.bits().to_le_bytes());
            out.extend_from_slice(&[0, 0]);
        });
    }

    /// Appends an error packet.
    pub(crate) fn error(&mut self, error: &SqlError) {
        self.packet(|out| put_error(out, error));
    }

    /// Appends an EOF packet, as sent where CLIENT_DEPRECATE_EOF is off.
    pub(crate) fn eof(&mut self, status: StatusFlags) {
        self.packet(|out| {
            out.extend_from_slice(&[0xFE, 0, 0]);
            out.extend_from_slice(&status.bits().to_le_bytes());
        });
    }

    /// Appends what ends the rows of a result.
    pub(crate) fn end_of_rows(&mut self, status: StatusFlags, deprecate_eof: bool) {
        if deprecate_eof {
            self.packet(|out| {
                out.extend_from_slice(&[0xFE, 0, 0]);
                out.extend_from_slice(&status.bits().to_le_bytes());
                out.extend_from_slice(&[0, 0]);
            });
        } else {
            self.eof(status);
        }
    }

    /// Appends a column's definition.
    pub(crate) fn column(&mut self, name: &[u8], kind: ColumnType) {
        let text = kind == ColumnType::MYSQL_TYPE_VAR_STRING;
        let column = Column::new(kind)
            .with_name(name)
            .with_character_set(if text { 45 } else { 63 })
            .with_column_length(if text { 1 << 16 } else { 21 })
            .with_decimals(if kind == ColumnType::MYSQL_TYPE_LONGLONG {
                0
            } else {
                31
            })
            .with_flags(if text {
                ColumnFlags::empty()
            } else {
                ColumnFlags::BINARY_FLAG | ColumnFlags::NUM_FLAG
            });
        self.packet(|out| column.serialize(out));
    }
}

fn put_error(out: &mut Vec<u8>, error: &SqlError) {
    out.push(0xFF);
    out.extend_from_slice(&error.code.to_le_bytes());
    // Before a client has said that it speaks 4.1, errors have no state.
    if !error.state.is_empty() {
        out.push(b'#');
        out.extend_from_slice(error.state.as_bytes());
    }
    out.extend_from_slice(error.message.as_bytes());
}

/// Appends a length-encoded integer.
pub(crate) fn put_lenenc(out: &mut Vec<u8>, number: u64) {
    let bytes = number.to_le_bytes();
    match number {
        0..=250 => out.push(bytes[0]),
        251..=0xFFFF => {
            out.push(0xFC);
            out.extend_from_slice(&bytes[..2]);
        }
        0x1_0000..=0xFF_FFFF => {
            out.push(0xFD);
            out.extend_from_slice(&bytes[..3]);
        }
        _ => {
            out.push(0xFE);
            out.extend_from_slice(&bytes);
        }
    }
}

/// Appends a length-encoded string.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    put_lenenc(out, text.len() as u64);
    out.extend_from_slice(text);
}

/// Takes bytes off the front of a packet; every method is `None` past the end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `length` bytes.
    pub(crate) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        Some(head)
    }

    /// The next `N` bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// The next byte.
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Bytes up to a NUL, which is skipped.
    pub(crate) fn until_nul(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let head = self.take(end)?;
        self.take(1)?;
        Some(head)
    }

    /// A length-encoded integer.
    pub(crate) fn lenenc(&mut self) -> Option<u64> {
        Some(match self.u8()? {
            0xFC => u64::from(u16::from_le_bytes(self.array()?)),
            0xFD => {
                let [a, b, c] = self.array()?;
                u64::from(u32::from_le_bytes([a, b, c, 0]))
            }
            0xFE => u64::from_le_bytes(self.array()?),
            0xFB | 0xFF => return None,
            small => u64::from(small),
        })
    }

    /// A length-encoded string.
    pub(crate) fn text(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.lenenc()?).ok()?;
        self.take(length)
    }
}

/// An error a server reports to its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SqlError {
    pub(crate) code: u16,
    /// Five characters, or empty before login.
    pub(crate) state: &'static str,
    pub(crate) message: String,
}

impl SqlError {
    pub(crate) fn new(code: u16, state: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            state,
            message: message.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_encoded_as_they_are_read() {
        for number in [
            0,
            250,
            251,
            65_535,
            65_536,
            16_777_215,
            16_777_216,
            u64::MAX,
        ] {
            let mut out = Vec::new();
            put_lenenc(&mut out, number);
            let mut reader = Reader(&out);
            assert_eq!(reader.lenenc(), Some(number));
            assert!(reader.0.is_empty());
        }
    }

    #[test]
    fn a_claimed_length_allocates_nothing() {
        let mut inbox = Inbox::default();
        inbox.bytes.extend_from_slice(&[0xFF, 0xFF, 0xFF, 0]);
        assert!(matches!(
            inbox.complete(MAX_PAYLOAD),
            Err(ReadError::TooLong(0xFF_FFFF))
        ));
        let mut inbox = Inbox::default();
        inbox.bytes.extend_from_slice(&[0xFE, 0xFF, 0xFF, 0, 1]);
        assert!(matches!(inbox.complete(MAX_PAYLOAD), Ok(None)));
        assert!(inbox.bytes.capacity() < 10_000);
    }
}
