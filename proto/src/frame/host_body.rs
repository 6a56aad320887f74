//! The body of a frame of host records: a MessagePack array, each record a map of
//! one entry, from its kind to an array of its fields. Pure.
//!
//! A record of a kind, or in a form, that this build does not know is kept as the
//! bytes it is: the body's checksum holds, so it is no damage but what a newer
//! build wrote. It keeps its seq, and is written again unchanged.

use super::FrameError;
use crate::host::{HostRecord, Unknown};

/// MessagePack's nil: the place of an unknown record of which nothing is left.
const NIL: u8 = 0xc0;
/// A record is a map of an array, with a clock's array in it at most.
const DEEPEST: usize = 16;

fn wrong(why: impl std::fmt::Display) -> FrameError {
    FrameError::Body(why.to_string())
}

/// The records as a body.
pub(super) fn pack(records: &[HostRecord]) -> Result<Vec<u8>, FrameError> {
    let mut body = Vec::new();
    match (u8::try_from(records.len()), u16::try_from(records.len())) {
        (Ok(few @ 0..16), _) => body.push(0x90 | few),
        (_, Ok(count)) => {
            body.push(0xdc);
            body.extend_from_slice(&count.to_be_bytes());
        }
        _ => {
            let count = u32::try_from(records.len()).map_err(wrong)?;
            body.push(0xdd);
            body.extend_from_slice(&count.to_be_bytes());
        }
    }
    for record in records {
        match record {
            HostRecord::Unknown(unknown) if unknown.packed.is_empty() => body.push(NIL),
            HostRecord::Unknown(unknown) => body.extend_from_slice(&unknown.packed),
            known => rmp_serde::encode::write(&mut body, known).map_err(wrong)?,
        }
    }
    Ok(body)
}

/// The `count` records of a body.
pub(super) fn unpack(body: &[u8], count: usize) -> Result<Vec<HostRecord>, FrameError> {
    let (found, mut rest) = match *body {
        [few @ 0x90..=0x9f, ref rest @ ..] => (usize::from(few & 0x0f), rest),
        [0xdc, a, b, ref rest @ ..] => (usize::from(u16::from_be_bytes([a, b])), rest),
        [0xdd, a, b, c, d, ref rest @ ..] => (u32::from_be_bytes([a, b, c, d]) as usize, rest),
        _ => return Err(wrong("it is not an array")),
    };
    if found != count {
        return Err(wrong(format!(
            "{found} records where the header says {count}"
        )));
    }
    // Each takes at least a byte.
    let mut records = Vec::with_capacity(count.min(rest.len()));
    for _ in 0..count {
        records.push(take(&mut rest)?);
    }
    if rest.is_empty() {
        Ok(records)
    } else {
        Err(wrong("there is something behind the last record"))
    }
}

/// The one record that is all of `bytes`.
pub(crate) fn record(mut bytes: &[u8]) -> Result<HostRecord, FrameError> {
    let record = take(&mut bytes)?;
    if bytes.is_empty() {
        Ok(record)
    } else {
        Err(wrong("there is something behind the record"))
    }
}

/// Takes the record at the start of `rest`.
fn take(rest: &mut &[u8]) -> Result<HostRecord, FrameError> {
    let (packed, after) = rest.split_at(extent(rest)?);
    *rest = after;
    Ok(rmp_serde::from_slice(packed).unwrap_or_else(|_| {
        HostRecord::Unknown(Unknown {
            kind: kind_of(packed),
            packed: packed.to_vec(),
        })
    }))
}

/// Length of the value at the start of `bytes`. It may be anything, so it is walked
/// over without recursion, and refused where it is nested deeper than any record.
fn extent(bytes: &[u8]) -> Result<usize, FrameError> {
    let mut at = 0;
    // Values that are still to come at each level.
    let mut open: Vec<u64> = vec![1];
    while let Some(left) = open.last_mut() {
        if *left == 0 {
            open.pop();
            continue;
        }
        *left -= 1;
        let marker = *bytes.get(at).ok_or_else(|| wrong("it is cut short"))?;
        let number = |width: usize| -> Result<u64, FrameError> {
            let digits = bytes.get(at + 1..at + 1 + width);
            let digits = digits.ok_or_else(|| wrong("it is cut short"))?;
            Ok(digits.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
        };
        // Bytes of the value itself, and values inside it.
        let (own, inside) = match marker {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (1, 0),
            0x80..=0x8f => (1, 2 * u64::from(marker & 0x0f)),
            0x90..=0x9f => (1, u64::from(marker & 0x0f)),
            0xa0..=0xbf => (1 + u64::from(marker & 0x1f), 0),
            0xc1 => return Err(wrong("it is no MessagePack")),
            // bin and str
            0xc4 | 0xd9 => (2 + number(1)?, 0),
            0xc5 | 0xda => (3 + number(2)?, 0),
            0xc6 | 0xdb => (5 + number(4)?, 0),
            // ext
            0xc7 => (3 + number(1)?, 0),
            0xc8 => (4 + number(2)?, 0),
            0xc9 => (6 + number(4)?, 0),
            0xd4..=0xd8 => (2 + (1 << (marker - 0xd4)), 0),
            // numbers
            0xcc | 0xd0 => (2, 0),
            0xcd | 0xd1 => (3, 0),
            0xca | 0xce | 0xd2 => (5, 0),
            0xcb | 0xcf | 0xd3 => (9, 0),
            0xdc => (3, number(2)?),
            0xdd => (5, number(4)?),
            0xde => (3, 2 * number(2)?),
            0xdf => (5, 2 * number(4)?),
        };
        at += usize::try_from(own).map_err(wrong)?;
        if at > bytes.len() {
            return Err(wrong("it is cut short"));
        }
        if inside > 0 {
            if open.len() == DEEPEST {
                return Err(wrong("it is nested too deep"));
            }
            open.push(inside);
        }
    }
    Ok(at)
}

/// What the record is called; empty if it has no name that one could print.
fn kind_of(packed: &[u8]) -> String {
    let name = match *packed {
        [0x81, length @ 0xa0..=0xbf, ref rest @ ..] => rest.get(..usize::from(length & 0x1f)),
        [0x81, 0xd9, length, ref rest @ ..] => rest.get(..usize::from(length)),
        _ => None,
    };
    name.and_then(|name| std::str::from_utf8(name).ok())
        .filter(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Lag;
    use proptest::prelude::*;
    use serde::Serialize;

    /// As a newer build has it.
    #[derive(Serialize)]
    enum Newer {
        Lag(NewerLag),
        Rainfall(u64, String),
    }

    /// One field more.
    #[derive(Serialize)]
    struct NewerLag {
        at_ns: i64,
        ticks: u32,
        late_max_ns: u64,
        cpu: u8,
    }

    fn lag(at_ns: i64) -> HostRecord {
        HostRecord::Lag(Lag {
            at_ns,
            ticks: 100,
            late_max_ns: 5,
        })
    }

    fn newer() -> [Vec<u8>; 2] {
        [
            Newer::Rainfall(9, "mm".into()),
            Newer::Lag(NewerLag {
                at_ns: 1,
                ticks: 2,
                late_max_ns: 3,
                cpu: 4,
            }),
        ]
        .map(|record| rmp_serde::to_vec(&record).expect("encodes"))
    }

    /// `[lag, newer kind, newer form, lag]`.
    fn mixed() -> Vec<u8> {
        let [rainfall, longer] = newer();
        let known = |at| rmp_serde::to_vec(&lag(at)).expect("encodes");
        [vec![0x94], known(1), rainfall, longer, known(4)].concat()
    }

    #[test]
    fn what_a_newer_build_wrote_is_kept_between_what_is_known() {
        let records = unpack(&mixed(), 4).expect("sound");
        let [rainfall, longer] = newer();
        let unknown = |kind: &str, packed: Vec<u8>| {
            HostRecord::Unknown(Unknown {
                kind: kind.to_owned(),
                packed,
            })
        };
        let expected = [
            lag(1),
            unknown("Rainfall", rainfall),
            unknown("Lag", longer),
            lag(4),
        ];
        assert_eq!(records, expected);
        assert_eq!(pack(&records).expect("encodes"), mixed());
        assert!(unpack(&mixed(), 3).is_err());
        assert!(unpack(&mixed()[..mixed().len() - 1], 4).is_err());
    }

    #[test]
    fn known_records_are_written_as_ever() {
        for count in [0, 1, 15, 16, 70_000] {
            let records: Vec<_> = (0..count).map(lag).collect();
            let bytes = pack(&records).expect("encodes");
            assert_eq!(bytes, rmp_serde::to_vec(&records).expect("encodes"));
            assert_eq!(unpack(&bytes, records.len()), Ok(records));
        }
    }

    #[test]
    fn what_came_without_content_keeps_its_place() {
        let records = [lag(1), HostRecord::Unknown(Unknown::default()), lag(3)];
        let bytes = pack(&records).expect("encodes");
        let found = unpack(&bytes, 3).expect("sound");
        assert_eq!([&found[0], &found[2]], [&records[0], &records[2]]);
        assert!(matches!(&found[1], HostRecord::Unknown(u) if u.kind.is_empty()));
        // And goes round unchanged from then on.
        assert_eq!(pack(&found), Ok(bytes));
    }

    proptest! {
        /// No panic, no more records than bytes, and what is read goes round.
        #[test]
        fn any_bytes_are_records_or_an_error(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            count in 0usize..40,
        ) {
            if let (Some(first), true) = (bytes.first_mut(), count < 16) {
                *first = 0x90 | count as u8;
            }
            if let Ok(records) = unpack(&bytes, count) {
                prop_assert!(records.len() < bytes.len().max(1));
                let again = pack(&records).expect("encodes");
                prop_assert_eq!(unpack(&again, count), Ok(records));
            }
            let _ = record(&bytes);
        }

        #[test]
        fn a_flipped_bit_is_no_panic(at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut bytes = mixed();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            if let Ok(records) = unpack(&bytes, 4) {
                prop_assert_eq!(records.len(), 4);
            }
        }
    }

    /// A value nested without end is refused, not followed.
    #[test]
    fn nesting_is_bounded() {
        for marker in [0x91, 0x81] {
            let mut bytes = vec![marker; 100_000];
            bytes.extend([NIL; 2]);
            assert!(record(&bytes).is_err());
        }
        let mut bytes = vec![0x91; DEEPEST - 1];
        bytes.push(NIL);
        assert!(matches!(record(&bytes), Ok(HostRecord::Unknown(_))));
    }

    /// All markers: as long as another reader says.
    #[test]
    fn the_extent_is_that_of_the_value() {
        for marker in 0u8..=255 {
            // Lengths of 0 and 2, whatever the width, then enough to fill them.
            for length in [0, 2] {
                let mut bytes = vec![marker, 0, 0, 0, 0];
                let width = match marker {
                    0xc4 | 0xc7 | 0xd9 => 1,
                    0xc5 | 0xc8 | 0xda | 0xdc | 0xde => 2,
                    _ => 4,
                };
                bytes[width] = length;
                bytes.extend([1; 40]);
                let mut rest = &bytes[..];
                let read: Result<serde::de::IgnoredAny, _> = rmp_serde::from_read(&mut rest);
                let expected = read.is_ok().then(|| bytes.len() - rest.len());
                assert_eq!(extent(&bytes).ok(), expected, "{marker:#x} {length}");
            }
        }
    }
}
