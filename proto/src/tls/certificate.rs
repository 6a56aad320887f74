//! What a certificate says: who, until when, which number. Pure; verifies nothing.

use std::net::IpAddr;

use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

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
        let (_, certificate) =
            X509Certificate::from_der(der).map_err(|error| format!("is not X.509: {error}"))?;
        let validity = certificate.validity();
        let mut hosts = Vec::new();
        let mut principals = Vec::new();
        let names = certificate
            .subject_alternative_name()
            .map_err(|error| format!("its alternative names make no sense: {error}"))?;
        for name in names.iter().flat_map(|names| &names.value.general_names) {
            match name {
                GeneralName::DNSName(host) => hosts.push((*host).to_owned()),
                GeneralName::IPAddress(bytes) => hosts.extend(address(bytes)),
                GeneralName::URI(uri) => principals.extend(Principal::of_uri(uri).transpose()),
                _ => {}
            }
        }
        Ok(Self {
            not_before_s: validity.not_before.timestamp(),
            not_after_s: validity.not_after.timestamp(),
            serial: hex(certificate.raw_serial()),
            hosts,
            principals,
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

fn address(bytes: &[u8]) -> Option<String> {
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?),
        _ => return None,
    };
    Some(ip.to_string())
}

/// A serial number as it is written everywhere: no leading zeros.
pub fn hex(bytes: &[u8]) -> String {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = text.trim_start_matches('0');
    if text.is_empty() { "0" } else { text }.to_owned()
}
