//! What a certificate says: who, until when, which number. Pure; verifies nothing.
//!
//! What decides anything (names of gapscope, serial) is read by the same library
//! that verifies certificates. What is only shown to people (dates, addresses) is
//! read here: that library has no function for it.

use core::net::IpAddr;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use super::principal::Principal;
use crate::utc;

/// A certificate that ends so soon is spoken of.
const SOON_S: i64 = 14 * 86_400;

/// What a certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// Valid from, in seconds since 1970.
    pub not_before_s: i64,
    /// Valid until, in seconds since 1970.
    pub not_after_s: i64,
    /// Its number, in lower-case hex without colons.
    pub serial: String,
    /// Host names and addresses it is for.
    pub hosts: Vec<String>,
    /// The gapscope URIs in it.
    principals: Vec<Result<Principal, String>>,
}

impl Facts {
    /// Reads a certificate.
    ///
    /// # Errors
    /// When it is not one.
    pub fn read(der: &[u8]) -> Result<Self, String> {
        let whole = CertificateDer::from(der);
        let certificate = EndEntityCert::try_from(&whole)
            .map_err(|error| format!("is not a certificate that can be used: {error:?}"))?;
        let shown = shown(der).ok_or("has dates that make no sense")?;
        let names = certificate.valid_dns_names().map(str::to_owned);
        let addresses = shown.addresses.iter().map(ToString::to_string);
        Ok(Self {
            not_before_s: shown.not_before_s,
            not_after_s: shown.not_after_s,
            serial: hex(certificate.serial()),
            hosts: names.chain(addresses).collect(),
            principals: certificate
                .valid_uri_names()
                .filter_map(|uri| Principal::of_uri(uri).transpose())
                .collect(),
        })
    }

    /// Who it is for; none if it says nothing of gapscope.
    ///
    /// # Errors
    /// When it is for several, or what it says makes no sense.
    pub fn principal(&self) -> Result<Option<&Principal>, String> {
        match self.principals.as_slice() {
            [] => Ok(None),
            [one] => one.as_ref().map(Some).map_err(Clone::clone),
            several => Err(format!("it is for {} at once", several.len())),
        }
    }

    /// From when to when it is valid, for a sentence.
    pub fn validity(&self) -> String {
        format!(
            "valid from {} to {}",
            utc::minute(self.not_before_s),
            utc::minute(self.not_after_s)
        )
    }

    /// What is to be said about it at this time, if anything.
    pub fn warning(&self, now_s: i64) -> Option<String> {
        let clock = utc::minute(now_s);
        if now_s > self.not_after_s {
            let end = utc::minute(self.not_after_s);
            Some(format!("expired on {end} (the clock here says {clock})"))
        } else if now_s < self.not_before_s {
            let begin = utc::minute(self.not_before_s);
            Some(format!(
                "is not valid before {begin} (the clock here says {clock})"
            ))
        } else if self.not_after_s - now_s < SOON_S {
            let end = utc::minute(self.not_after_s);
            Some(format!("expires on {end}: replace it before"))
        } else {
            None
        }
    }
}

/// What is only shown.
struct Shown {
    not_before_s: i64,
    not_after_s: i64,
    addresses: Vec<IpAddr>,
}

const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const ADDRESS: u8 = 0x87;
const SUBJECT_ALT_NAME: [u8; 3] = [0x55, 0x1d, 0x11];

/// Reads what webpki does not give (RFC 5280, section 4.1; DER, so lengths are
/// definite).
fn shown(der: &[u8]) -> Option<Shown> {
    let (_, certificate, _) = element(der)?;
    let (_, signed, _) = element(certificate)?;
    let mut fields = Elements(signed).peekable();
    fields.next_if(|(tag, _)| *tag == VERSION);
    // Serial, algorithm, issuer.
    let (_, validity) = fields.nth(3)?;
    let mut times = Elements(validity).map(|(tag, text)| seconds(tag, text));
    Some(Shown {
        not_before_s: times.next()??,
        not_after_s: times.next()??,
        addresses: fields
            .filter(|(tag, _)| *tag == EXTENSIONS)
            .flat_map(|(_, list)| Elements(list))
            .flat_map(|(_, extensions)| Elements(extensions))
            .filter_map(|(_, extension)| {
                let mut parts = Elements(extension);
                let (_, name) = parts.next()?;
                (name == SUBJECT_ALT_NAME).then(|| parts.last())?
            })
            .flat_map(|(_, names)| Elements(names))
            .flat_map(|(_, names)| Elements(names))
            .filter(|(tag, _)| *tag == ADDRESS)
            .filter_map(|(_, bytes)| address(bytes))
            .collect(),
    })
}

/// Tag, contents, and what follows.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let length = digits
                .iter()
                .fold(0, |sum, byte| (sum << 8) | usize::from(*byte));
            (length, rest)
        }
        _ => return None,
    };
    let (contents, rest) = rest.split_at_checked(length)?;
    Some((tag, contents, rest))
}

/// The elements in a sequence's contents, up to the first that makes no sense.
struct Elements<'a>(&'a [u8]);

impl<'a> Iterator for Elements<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (tag, contents, rest) = element(self.0)?;
        self.0 = rest;
        Some((tag, contents))
    }
}

/// `YYMMDDHHMMSSZ` or `YYYYMMDDHHMMSSZ`.
fn seconds(tag: u8, text: &[u8]) -> Option<i64> {
    let digits = text.strip_suffix(b"Z")?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = |part: &[u8]| {
        part.iter()
            .fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0'))
    };
    let (year, rest) = match (tag, digits.len()) {
        (UTC_TIME, 12) => {
            let year = number(&digits[..2]);
            (
                if year < 50 { 2000 + year } else { 1900 + year },
                &digits[2..],
            )
        }
        (GENERALIZED_TIME, 14) => (number(&digits[..4]), &digits[4..]),
        _ => return None,
    };
    let part = |at: usize| number(&rest[at..at + 2]);
    let day = utc::day(year, part(0), part(2));
    Some(((day * 24 + part(4)) * 60 + part(6)) * 60 + part(8))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}

/// A serial number as it is written everywhere: no leading zeros.
pub fn hex(bytes: &[u8]) -> String {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = text.trim_start_matches('0');
    if text.is_empty() { "0" } else { text }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_of_both_kinds() {
        let check = |tag, text: &str, expect| assert_eq!(seconds(tag, text.as_bytes()), expect);
        check(UTC_TIME, "700101000000Z", Some(0));
        check(UTC_TIME, "491231235959Z", Some(2_524_607_999));
        check(UTC_TIME, "500101000000Z", Some(-631_152_000));
        check(GENERALIZED_TIME, "20260311034544Z", Some(1_773_200_744));
        check(GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799));
        for (tag, text) in [
            (UTC_TIME, "20260311034544Z"),
            (UTC_TIME, "7001010000Z"),
            (GENERALIZED_TIME, "2026031103454xZ"),
            (UTC_TIME, ""),
            (0x02, "700101000000Z"),
        ] {
            check(tag, text, None);
        }
    }

    proptest! {
        #[test]
        fn nonsense_is_no_certificate(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = shown(&bytes);
            prop_assert!(Facts::read(&bytes).is_err());
        }
    }
}
