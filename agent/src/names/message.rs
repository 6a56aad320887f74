//! The few DNS messages (RFC 1035, section 4) that looking up an address needs:
//! one question out, one answer in. Pure: bytes in, bytes out.
//!
//! What it does not do: answers longer than one packet (the `TC` bit is an error),
//! DNSSEC, names that are not ASCII. A chain of aliases is followed as far as the
//! answer itself holds it, which is what resolvers send.

use std::fmt;
// The types alone: nothing here opens a socket.
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const HEADER: usize = 12;
const INTERNET: u16 = 1;
const ALIAS: u16 = 5;
/// More aliases than that are a loop.
const MOST_ALIASES: usize = 16;
const LONGEST_NAME: usize = 253;
const LONGEST_LABEL: usize = 63;

/// What kind of address is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// IPv4.
    A,
    /// IPv6.
    Aaaa,
}

impl Kind {
    const fn code(self) -> u16 {
        match self {
            Self::A => 1,
            Self::Aaaa => 28,
        }
    }

    fn of(code: u16) -> Option<Self> {
        [Self::A, Self::Aaaa]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// Why an answer gives no addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such name.
    NoSuchName,
    /// The server's own code, in words.
    Failed(&'static str),
    /// It does not fit into one packet.
    TooLong,
    /// It cannot be read.
    Broken,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSuchName => "there is no such name",
            Self::Failed(code) => code,
            Self::TooLong => "its answer does not fit into one packet, and TCP is not tried",
            Self::Broken => "its answer cannot be read",
        })
    }
}

/// A question as bytes.
///
/// # Errors
/// When `name` can be no name, with the reason.
pub fn question(id: u16, name: &str, kind: Kind) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(HEADER + name.len() + 6);
    out.extend_from_slice(&id.to_be_bytes());
    // Recursion is wanted; one question.
    out.extend_from_slice(&[1, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() || name.len() > LONGEST_NAME {
        return Err(format!("a name has 1 to {LONGEST_NAME} characters"));
    }
    for label in name.split('.') {
        let length = u8::try_from(label.len())
            .ok()
            .filter(|length| (1..=LONGEST_LABEL).contains(&usize::from(*length)))
            .filter(|_| label.is_ascii())
            .ok_or_else(|| {
                format!(
                    "`{label}` can be no part of a name (1 to {LONGEST_LABEL} ASCII characters)"
                )
            })?;
        out.push(length);
        out.extend_from_slice(label.as_bytes());
    }
    out.push(0);
    out.extend_from_slice(&kind.code().to_be_bytes());
    out.extend_from_slice(&INTERNET.to_be_bytes());
    Ok(out)
}

/// A question, read by who answers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Of the message.
    pub id: u16,
    /// In lower case, without the last point.
    pub name: String,
    /// None: for something else than an address.
    pub kind: Option<Kind>,
    /// Where the question ends in the packet.
    pub end: usize,
}

/// Reads a question; none if the packet holds none, or several.
pub fn read_question(packet: &[u8]) -> Option<Question> {
    let is_question = packet.get(2)? & 0xf8 == 0;
    if !is_question || number(packet, 4)? != 1 {
        return None;
    }
    let (name, at) = name_at(packet, HEADER)?;
    let class = number(packet, at + 2)?;
    Some(Question {
        id: number(packet, 0)?,
        name,
        kind: Kind::of(number(packet, at)?).filter(|_| class == INTERNET),
        end: at + 4,
    })
}

/// The addresses in an answer to the question with this id, name and kind; none if
/// the packet is an answer to something else.
pub fn read_answer(
    packet: &[u8],
    id: u16,
    name: &str,
    kind: Kind,
) -> Option<Result<Vec<IpAddr>, Refusal>> {
    let flags = number(packet, 2)?;
    if number(packet, 0)? != id || flags & 0x8000 == 0 {
        return None;
    }
    let wanted = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let refusal = match flags & 0xf {
        0 => None,
        1 => Some(Refusal::Failed("it calls the question malformed")),
        2 => Some(Refusal::Failed("it failed (SERVFAIL)")),
        3 => Some(Refusal::NoSuchName),
        5 => Some(Refusal::Failed("it refuses to answer (REFUSED)")),
        _ => Some(Refusal::Failed("it answers with an error")),
    };
    // A server that fails need not repeat the question.
    let questions = number(packet, 4)?;
    let mut at = HEADER;
    if questions > 0 {
        let (asked, end) = name_at(packet, at)?;
        if asked != wanted || number(packet, end)? != kind.code() {
            return None;
        }
        at = end + 4;
    }
    if let Some(refusal) = refusal {
        return Some(Err(refusal));
    }
    if questions != 1 {
        return None;
    }
    if flags & 0x200 != 0 {
        return Some(Err(Refusal::TooLong));
    }
    Some(addresses(packet, at, wanted, kind).ok_or(Refusal::Broken))
}

/// The addresses of `name` among the records from `at` on, aliases followed.
fn addresses(packet: &[u8], mut at: usize, name: String, kind: Kind) -> Option<Vec<IpAddr>> {
    let mut found: Vec<(String, IpAddr)> = Vec::new();
    let mut aliases: Vec<(String, String)> = Vec::new();
    for _ in 0..number(packet, 6)? {
        let (owner, end) = name_at(packet, at)?;
        let (of, class) = (number(packet, end)?, number(packet, end + 2)?);
        let length = usize::from(number(packet, end + 8)?);
        let begin = end + 10;
        let data = packet.get(begin..begin + length)?;
        at = begin + length;
        if class != INTERNET {
            continue;
        }
        if of == ALIAS {
            aliases.push((owner, name_at(packet, begin)?.0));
        } else if of == kind.code() {
            let address = match kind {
                Kind::A => Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?).into(),
                Kind::Aaaa => Ipv6Addr::from(<[u8; 16]>::try_from(data).ok()?).into(),
            };
            found.push((owner, address));
        }
    }
    let mut name = name;
    for _ in 0..MOST_ALIASES {
        let its: Vec<IpAddr> = found
            .iter()
            .filter(|(owner, _)| *owner == name)
            .map(|(_, address)| *address)
            .collect();
        if !its.is_empty() {
            return Some(its);
        }
        match aliases.iter().find(|(owner, _)| *owner == name) {
            Some((_, to)) => name.clone_from(to),
            // The name is there, and has no such address.
            None => return Some(Vec::new()),
        }
    }
    None
}

fn number(packet: &[u8], at: usize) -> Option<u16> {
    let bytes = packet.get(at..at.checked_add(2)?)?;
    Some(u16::from_be_bytes([bytes[0], bytes[1]]))
}

/// The name at `at`, in lower case, and where it ends there. A pointer leads
/// backwards only, so none leads in a circle.
fn name_at(packet: &[u8], at: usize) -> Option<(String, usize)> {
    let mut name = String::new();
    let (mut from, mut end, mut at) = (at, None, at);
    loop {
        let length = usize::from(*packet.get(at)?);
        match length {
            0 => return Some((name, end.unwrap_or(at + 1))),
            1..=LONGEST_LABEL => {
                let label = packet.get(at + 1..at + 1 + length)?;
                if !name.is_empty() {
                    name.push('.');
                }
                name.push_str(&String::from_utf8_lossy(label).to_ascii_lowercase());
                if name.len() > LONGEST_NAME {
                    return None;
                }
                at += 1 + length;
            }
            0xc0.. => {
                let to = usize::from(number(packet, at)? & 0x3fff);
                if to >= from {
                    return None;
                }
                end = end.or(Some(at + 2));
                (from, at) = (to, to);
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// As a resolver answered `www.example.com`, an alias, in a packet with pointers.
    const ALIASED: &[u8] = b"\x12\x34\x81\x80\x00\x01\x00\x03\x00\x00\x00\x00\
        \x03www\x07example\x03com\x00\x00\x01\x00\x01\
        \xc0\x0c\x00\x05\x00\x01\x00\x00\x0e\x10\x00\x05\x02db\xc0\x10\
        \xc0\x2d\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04\x0a\x00\x00\x07\
        \xc0\x2d\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04\x0a\x00\x00\x08";

    #[test]
    fn a_question_is_what_the_standard_says() {
        let bytes = question(0x1234, "db.example.", Kind::A).expect("a name");
        assert_eq!(
            bytes,
            b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\
              \x02db\x07example\x00\x00\x01\x00\x01"
        );
        let read = read_question(&bytes).expect("a question");
        assert_eq!(
            (read.id, read.name.as_str(), read.kind, read.end),
            (0x1234, "db.example", Some(Kind::A), bytes.len())
        );
        for wrong in ["", ".", "a..b", &"x".repeat(64), "dé.example"] {
            assert!(question(1, wrong, Kind::A).is_err(), "{wrong:?}");
        }
    }

    #[track_caller]
    fn check(packet: &[u8], name: &str, kind: Kind, expect: Option<Result<&[&str], Refusal>>) {
        let found = read_answer(packet, 0x1234, name, kind).map(|answer| {
            answer.map(|all| all.iter().map(ToString::to_string).collect::<Vec<_>>())
        });
        let expect =
            expect.map(|answer| answer.map(|all| all.iter().map(ToString::to_string).collect()));
        assert_eq!(found, expect);
    }

    #[test]
    fn aliases_are_followed_to_their_addresses() {
        check(
            ALIASED,
            "WWW.example.com",
            Kind::A,
            Some(Ok(&["10.0.0.7", "10.0.0.8"])),
        );
        // Somebody else's answer.
        check(ALIASED, "other.example.com", Kind::A, None);
        check(ALIASED, "www.example.com", Kind::Aaaa, None);
        assert_eq!(read_answer(ALIASED, 1, "www.example.com", Kind::A), None);
    }

    #[test]
    fn refusals_have_their_reasons() {
        let with = |flags: [u8; 2], answers: u8| {
            let mut packet = ALIASED[..33].to_vec();
            packet[2..4].copy_from_slice(&flags);
            packet[7] = answers;
            packet
        };
        let check =
            |flags, expect| check(&with(flags, 0), "www.example.com", Kind::A, Some(expect));
        check([0x81, 0x83], Err(Refusal::NoSuchName));
        check([0x81, 0x82], Err(Refusal::Failed("it failed (SERVFAIL)")));
        check([0x83, 0x80], Err(Refusal::TooLong));
        check([0x81, 0x80], Ok(&[]));
        // A record is promised that is not there.
        let cut = with([0x81, 0x80], 1);
        assert_eq!(
            read_answer(&cut, 0x1234, "www.example.com", Kind::A),
            Some(Err(Refusal::Broken))
        );
    }

    #[test]
    fn a_circle_of_names_ends() {
        // An alias of itself, and a pointer to itself.
        let mut packet = ALIASED[..33].to_vec();
        packet[7] = 1;
        packet.extend_from_slice(b"\xc0\x0c\x00\x05\x00\x01\x00\x00\x0e\x10\x00\x02\xc0\x0c");
        assert_eq!(
            read_answer(&packet, 0x1234, "www.example.com", Kind::A),
            Some(Err(Refusal::Broken))
        );
        let here = packet.len();
        packet.extend_from_slice(&[0xc0, u8::try_from(here).expect("small")]);
        assert_eq!(name_at(&packet, here), None);
    }

    proptest! {
        #[test]
        fn no_packet_breaks_it(bytes in prop::collection::vec(any::<u8>(), 0..600), cut in 0..100usize) {
            let _ = read_question(&bytes);
            let _ = read_answer(&bytes, 0x1234, "www.example.com", Kind::A);
            let mut aliased = ALIASED.to_vec();
            for (at, byte) in bytes.iter().enumerate().take(3) {
                let place = (usize::from(*byte) * 7 + at) % aliased.len();
                aliased[place] = *byte;
            }
            aliased.truncate(cut);
            let _ = read_answer(&aliased, 0x1234, "www.example.com", Kind::A);
        }
    }
}
