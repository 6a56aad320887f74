//! What a proxy has to know of a command before it passes it on. Pure.

use super::super::answer::Shape;
use super::super::wire::HEADER;

/// The shape of a command's answer; none for commands that are not carried.
pub(super) fn shape_of(command: &[u8]) -> Option<Shape> {
    match command.get(HEADER)? {
        0x02 | 0x0E | 0x1A | 0x1F => Some(Shape::Single),
        0x03 | 0x17 => Some(Shape::Result),
        0x16 => Some(Shape::Prepare),
        _ => None,
    }
}

/// Whether sending a command twice does no harm: it only reads, or only touches
/// the session.
pub(super) fn may_be_sent_again(command: &[u8]) -> bool {
    match command.get(HEADER) {
        Some(0x02 | 0x0E | 0x16 | 0x1F) => true,
        Some(0x03) => only_reads(&command[HEADER + 1..]),
        _ => false,
    }
}

/// Whether a command neither uses nor leaves anything in the session: any
/// connection may answer it.
pub(super) fn needs_no_session(command: &[u8]) -> bool {
    match command.get(HEADER) {
        Some(0x0E) => true,
        Some(0x03) => {
            let text = &command[HEADER + 1..];
            only_reads(text) && !text.contains(&b'@')
        }
        _ => false,
    }
}

pub(super) fn only_reads(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text).to_ascii_lowercase();
    let mut text = text.trim_start();
    while let Some(comment) = text.strip_prefix("/*") {
        let Some((_, rest)) = comment.split_once("*/") else {
            return false;
        };
        text = rest.trim_start();
    }
    let reads = ["select", "show"].iter().any(|word| {
        text.strip_prefix(word)
            .is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    });
    // Locks, files, variables set on the way.
    let acts = ["for update", "share", "into", "_lock", ":=", "nextval"]
        .iter()
        .any(|word| text.contains(word));
    reads && !acts
}

/// The number in bytes 1 to 4 of a payload that has one there.
pub(super) fn statement_id(packet: &[u8]) -> Option<u32> {
    let bytes = packet.get(HEADER + 1..HEADER + 5)?;
    Some(u32::from_le_bytes(bytes.try_into().ok()?))
}

pub(super) fn set_statement_id(packet: &mut [u8], id: u32) {
    if let Some(bytes) = packet.get_mut(HEADER + 1..HEADER + 5) {
        bytes.copy_from_slice(&id.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, reads: bool, free: bool) {
        let mut command = vec![0, 0, 0, 0, 3];
        command.extend_from_slice(text.as_bytes());
        assert_eq!(may_be_sent_again(&command), reads, "{text:?}");
        assert_eq!(needs_no_session(&command), free, "{text:?}");
    }

    #[test]
    fn only_reads_may_be_sent_again_and_only_those_without_state_anywhere() {
        check("SELECT 1", true, true);
        check(" /* probe */\nselect\t@a", true, false);
        check("SELECT @@port", true, false);
        check("SHOW GRANTS", true, true);
        check("SELECT 1 FOR UPDATE", false, false);
        check("SELECT @a := 1", false, false);
        check("SELECT GET_LOCK('a', 1)", false, false);
        check("SELECT 1 INTO OUTFILE 'x'", false, false);
        check("INSERT INTO t SELECT 1", false, false);
        check("SET @a = 1", false, false);
        check("BEGIN", false, false);
        check("selector", false, false);
        check("/* open", false, false);
        check("", false, false);
    }
}
