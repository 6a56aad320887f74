//! A file's checksum, kept inside the file.
//!
//! The writer leaves eight zeros where the checksum belongs, computes the CRC-32
//! of the whole file as it goes, and puts the digits there before the file gets
//! its name. A reader computes it with zeros in that place. So the checksum
//! appears with the file, moves with it, and no second file can disagree with
//! it after a crash. CRC-32 is the one of IEEE 802.3.
//!
//! What it cannot know: a change that was made on purpose, digits included.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::disk::open_regular;
use super::error::StoreError;

/// Stands where the digits belong until they are known.
pub const PLACEHOLDER: &str = "00000000";
/// Files of this version and later have one.
pub const SINCE_VERSION: u32 = 2;
/// Longest parquet footer that is looked through.
const FOOTER_MOST: u64 = 64 << 20;
const IN_FOOTER: &[u8] = b"\"checksum\":\"";
const IN_MANIFEST: &[u8] = b"\"checksum\": \"";

/// Where the digits stand: behind the last `marker` of `text`.
fn digits_at(text: &[u8], marker: &[u8]) -> Option<usize> {
    let at = text
        .windows(marker.len())
        .rposition(|window| window == marker)?
        + marker.len();
    text.get(at..at + PLACEHOLDER.len()).map(|_| at)
}

/// Where the digits stand in a parquet file, and what they are.
fn find(file: &File) -> io::Result<Option<(u64, Vec<u8>)>> {
    let end = file.metadata()?.len();
    // ... footer, its length, "PAR1".
    let Some(tail) = end.checked_sub(8) else {
        return Ok(None);
    };
    let mut length = [0; 4];
    file.read_exact_at(&mut length, tail)?;
    let length = u64::from(u32::from_le_bytes(length));
    let Some(begin) = tail.checked_sub(length).filter(|_| length <= FOOTER_MOST) else {
        return Ok(None);
    };
    let mut footer = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut footer, begin)?;
    Ok(digits_at(&footer, IN_FOOTER).map(|at| {
        let digits = footer[at..at + PLACEHOLDER.len()].to_vec();
        (begin + at as u64, digits)
    }))
}

/// Puts the checksum of a parquet file that has just been written into it.
pub(super) fn seal(file: &File, crc: u32) -> io::Result<()> {
    let (at, found) = find(file)?.ok_or_else(|| io::Error::other("its footer has no checksum"))?;
    if found != PLACEHOLDER.as_bytes() {
        return Err(io::Error::other("its footer has a checksum already"));
    }
    file.write_all_at(format!("{crc:08x}").as_bytes(), at)
}

/// Reads a whole parquet file and compares its checksum.
///
/// # Errors
/// When it cannot be read, has no checksum, or it does not hold.
pub fn check(path: &Path) -> Result<(), StoreError> {
    match check_file(path).map_err(StoreError::io("read", path))? {
        Some(true) => Ok(()),
        Some(false) => Err(StoreError::Damaged {
            path: path.to_owned(),
            why: "its checksum does not hold".to_owned(),
        }),
        None => Err(StoreError::Unsealed(path.to_owned())),
    }
}

/// Whether the checksum holds; none if there is none.
fn check_file(path: &Path) -> io::Result<Option<bool>> {
    let file = open_regular(path)?;
    let Some((at, digits)) = find(&file)? else {
        return Ok(None);
    };
    let mut crc = crc32fast::Hasher::new();
    // Everything before the digits, zeros, everything behind them.
    feed(&mut crc, &mut (&file).take(at))?;
    crc.update(PLACEHOLDER.as_bytes());
    let mut skipped = [0; PLACEHOLDER.len()];
    (&file).read_exact(&mut skipped)?;
    feed(&mut crc, &mut &file)?;
    let holds = digits == skipped && format!("{:08x}", crc.finalize()).as_bytes() == digits;
    Ok(Some(holds))
}

/// A file's length, and the checksum that stands in it; where it has none, that of
/// all its bytes. Tells whether a file is the one it was, not whether it is sound.
pub(super) fn fingerprint(path: &Path) -> io::Result<(u64, String)> {
    let file = open_regular(path)?;
    let bytes = file.metadata()?.len();
    if let Some((_, digits)) = find(&file)? {
        return Ok((bytes, String::from_utf8_lossy(&digits).into_owned()));
    }
    let mut crc = crc32fast::Hasher::new();
    feed(&mut crc, &mut &file)?;
    Ok((bytes, format!("{:08x}", crc.finalize())))
}

fn feed(crc: &mut crc32fast::Hasher, from: &mut impl Read) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 18];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        crc.update(&buffer[..read]);
    }
}

/// A manifest's text with its checksum as the last entry.
pub(super) fn seal_manifest(text: &str) -> String {
    let text = text.trim_end();
    let body = text.strip_suffix('}').unwrap_or(text).trim_end();
    let mut sealed = format!("{body},\n  \"checksum\": \"{PLACEHOLDER}\"\n}}\n");
    let crc = crc32fast::hash(sealed.as_bytes());
    let at = digits_at(sealed.as_bytes(), IN_MANIFEST).expect("it was just written");
    sealed.replace_range(at..at + PLACEHOLDER.len(), &format!("{crc:08x}"));
    sealed
}

/// Whether a manifest's text is what was written. One that somebody has edited
/// is still read; it is only told apart.
pub fn manifest_holds(text: &[u8]) -> bool {
    let Some(at) = digits_at(text, IN_MANIFEST) else {
        return false;
    };
    let mut plain = text.to_vec();
    let place = &mut plain[at..at + PLACEHOLDER.len()];
    let digits = place.to_vec();
    place.copy_from_slice(PLACEHOLDER.as_bytes());
    format!("{:08x}", crc32fast::hash(&plain)).as_bytes() == digits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_of_a_manifest_is_noticed() {
        let sealed = seal_manifest("{\n  \"a\": {\n    \"b\": 1\n  }\n}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&sealed).expect("is JSON")["a"]["b"],
            1
        );
        assert!(manifest_holds(sealed.as_bytes()));
        let mut bytes = sealed.into_bytes();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                bytes[at] ^= 1 << bit;
                assert!(!manifest_holds(&bytes), "byte {at} bit {bit}");
                bytes[at] ^= 1 << bit;
            }
        }
    }

    #[test]
    fn short_and_strange_files_are_no_panic() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x");
        for bytes in [
            &b""[..],
            b"PAR1",
            b"\xff\xff\xff\xffPAR1",
            b"0000\0\0\0\0PAR1",
        ] {
            std::fs::write(&path, bytes).expect("written");
            assert!(check(&path).is_err(), "{bytes:?}");
        }
        assert!(!manifest_holds(b"\"checksum\": \"000"));
    }
}
