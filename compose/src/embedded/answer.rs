//! Finds where a server's answer to a command ends. Pure.
//!
//! A proxy that terminates the protocol has to know this: an answer is one or
//! many packets, and only their contents say how many.

use mysql_common::constants::StatusFlags;

use super::wire::{MAX_PAYLOAD, Reader};

/// The shape of the answer a command gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// One packet.
    Single,
    /// A result, perhaps several.
    Result,
    /// A prepared statement's description.
    Prepare,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    First,
    /// That many more packets of any content, then the rows.
    Columns(u64),
    Rows,
    /// That many more packets of any content, then the end.
    Rest(u64),
}

/// Follows one answer, packet by packet.
#[derive(Debug)]
pub(crate) struct Answer {
    shape: Shape,
    deprecate_eof: bool,
    expect: Expect,
    /// Status flags last seen.
    pub(crate) status: Option<StatusFlags>,
    /// Whether it is an error.
    pub(crate) failed: bool,
}

/// The packet makes no sense at this place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Nonsense;

impl Answer {
    pub(crate) fn new(shape: Shape, deprecate_eof: bool) -> Self {
        Self {
            shape,
            deprecate_eof,
            expect: Expect::First,
            status: None,
            failed: false,
        }
    }

    /// Takes the next packet's payload; true if it is the answer's last.
    pub(crate) fn packet(&mut self, payload: &[u8]) -> Result<bool, Nonsense> {
        let &first = payload.first().ok_or(Nonsense)?;
        match self.expect {
            Expect::First if first == 0xFF => {
                self.failed = true;
                Ok(true)
            }
            Expect::First => match self.shape {
                Shape::Single => {
                    self.read_status(payload);
                    Ok(true)
                }
                Shape::Prepare => self.description(payload),
                Shape::Result => match first {
                    0x00 => {
                        self.read_status(payload);
                        Ok(!self.more())
                    }
                    // A file of the client's is asked for.
                    0xFB => Err(Nonsense),
                    _ => {
                        let columns = Reader(payload).lenenc().ok_or(Nonsense)?;
                        let packets = columns.saturating_add(u64::from(!self.deprecate_eof));
                        self.expect = Expect::Columns(packets);
                        Ok(false)
                    }
                },
            },
            Expect::Columns(left) => {
                self.expect = if left > 1 {
                    Expect::Columns(left - 1)
                } else {
                    Expect::Rows
                };
                Ok(false)
            }
            Expect::Rows if first == 0xFF => {
                self.failed = true;
                Ok(true)
            }
            Expect::Rows => {
                let limit = if self.deprecate_eof { MAX_PAYLOAD } else { 8 };
                if first != 0xFE || payload.len() > limit {
                    return Ok(false);
                }
                self.read_status(payload);
                self.expect = Expect::First;
                Ok(!self.more())
            }
            Expect::Rest(left) => {
                self.expect = Expect::Rest(left.saturating_sub(1));
                Ok(left <= 1)
            }
        }
    }

    fn more(&self) -> bool {
        self.status
            .is_some_and(|status| status.contains(StatusFlags::SERVER_MORE_RESULTS_EXISTS))
    }

    fn description(&mut self, payload: &[u8]) -> Result<bool, Nonsense> {
        let mut reader = Reader(payload);
        reader.take(5).ok_or(Nonsense)?;
        let columns = u16::from_le_bytes(reader.array().ok_or(Nonsense)?);
        let params = u16::from_le_bytes(reader.array().ok_or(Nonsense)?);
        let packets: u64 = [columns, params]
            .into_iter()
            .filter(|count| *count > 0)
            .map(|count| u64::from(count) + u64::from(!self.deprecate_eof))
            .sum();
        self.expect = Expect::Rest(packets);
        Ok(packets == 0)
    }

    fn read_status(&mut self, payload: &[u8]) {
        let mut reader = Reader(payload);
        let eof = payload[0] == 0xFE && !self.deprecate_eof;
        let bits = (|| {
            reader.u8()?;
            if eof {
                reader.take(2)?;
            } else {
                reader.lenenc()?;
                reader.lenenc()?;
            }
            reader.array().map(u16::from_le_bytes)
        })();
        self.status = bits.map(StatusFlags::from_bits_truncate);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use proptest::prelude::*;

    use super::super::session::{Facts, Session, Store, VariablesSchema};
    use super::*;

    fn payloads(mut bytes: &[u8]) -> Vec<&[u8]> {
        let mut found = Vec::new();
        while let [a, b, c, _, rest @ ..] = bytes {
            let length = usize::from(*a) | usize::from(*b) << 8 | usize::from(*c) << 16;
            let (payload, tail) = rest.split_at(length);
            found.push(payload);
            bytes = tail;
        }
        found
    }

    #[track_caller]
    fn check(session: &mut Session<'_>, shape: Shape, deprecate_eof: bool, command: &[u8]) {
        let mut out = Vec::new();
        session.handle(command, &mut out);
        let packets = payloads(&out);
        let mut answer = Answer::new(shape, deprecate_eof);
        for (index, payload) in packets.iter().enumerate() {
            let last = index + 1 == packets.len();
            assert_eq!(
                answer.packet(payload),
                Ok(last),
                "packet {index} of {command:?}"
            );
        }
    }

    #[test]
    fn the_end_of_every_answer_is_found() {
        let facts = Facts {
            hostname: "h".into(),
            port: 1,
            server_id: 1,
            version: "v".into(),
            user: "u".into(),
            variables: VariablesSchema::InformationSchema,
            read_only: AtomicBool::new(false),
            store: Store::default(),
        };
        for deprecate_eof in [true, false] {
            let mut session = Session::new(&facts, 1, deprecate_eof, None);
            let mut check = |shape, command: &[u8]| {
                check(&mut session, shape, deprecate_eof, command);
            };
            check(Shape::Single, b"\x0E");
            check(Shape::Result, b"\x03SET @a = 1");
            check(Shape::Result, b"\x03SELECT 1, 'x', NULL");
            check(Shape::Result, b"\x03SELECT 1 LIMIT 0");
            check(Shape::Result, b"\x03nonsense");
            check(Shape::Prepare, b"\x16SET @a = 1");
            check(Shape::Prepare, b"\x16SELECT ?, ?");
            check(Shape::Prepare, b"\x16SELECT 1");
            check(Shape::Prepare, b"\x16nonsense");
            check(Shape::Result, b"\x17\x03\0\0\0\0\x01\0\0\0");
            check(Shape::Result, b"\x17\x63\0\0\0\0\x01\0\0\0");
        }
    }

    proptest! {
        #[test]
        fn no_packets_panic(
            packets in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..20), 0..20),
            deprecate_eof: bool,
            shape in prop_oneof![Just(Shape::Single), Just(Shape::Result), Just(Shape::Prepare)],
        ) {
            let mut answer = Answer::new(shape, deprecate_eof);
            for packet in packets {
                if answer.packet(&packet) != Ok(false) {
                    break;
                }
            }
        }
    }
}
