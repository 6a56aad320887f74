//! Who is not let in any more, whatever he shows: a file with one line each,
//! `agent:ID`, `operator:NAME`, `viewer:NAME` or `serial:HEX` (one certificate).
//! Pure.

use std::collections::BTreeSet;

use gapscope_proto::tls::{Principal, Trouble};

/// The list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Deny {
    principals: BTreeSet<Principal>,
    serials: BTreeSet<String>,
}

impl Deny {
    /// Reads the file's text.
    ///
    /// # Errors
    /// When a line makes no sense: the list is not used then, because it may lack
    /// somebody.
    pub fn parse(text: &str) -> Result<Self, Trouble> {
        let mut deny = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = || {
                Trouble::hinted(
                    format!("line {number} makes no sense"),
                    "each line is agent:ID, operator:NAME, viewer:NAME or serial:HEX, as `gapscope-aggregator certs show FILE` prints them",
                )
            };
            match line.strip_prefix("serial:") {
                Some(hex) => {
                    deny.serials.insert(serial(hex).ok_or_else(wrong)?);
                }
                None => {
                    deny.principals.insert(line.parse().map_err(|_| wrong())?);
                }
            }
        }
        Ok(deny)
    }

    /// Whether somebody is on it.
    pub fn has(&self, principal: &Principal) -> bool {
        self.principals.contains(principal)
    }

    /// Whether a certificate is on it.
    pub fn has_serial(&self, hex: &str) -> bool {
        self.serials.contains(hex)
    }
}

/// However a tool prints it: with colons, in capitals, with leading zeros.
fn serial(text: &str) -> Option<String> {
    let hex: String = text
        .trim()
        .chars()
        .filter(|c| *c != ':')
        .map(|c| c.to_ascii_lowercase())
        .collect();
    let sound = !hex.is_empty() && hex.bytes().all(|b| b.is_ascii_hexdigit());
    let hex = hex.trim_start_matches('0');
    sound.then(|| if hex.is_empty() { "0" } else { hex }.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn people_and_certificates() {
        let deny =
            Deny::parse("# lost\nagent:east-1\n\noperator\nserial:00:4F:a1\n").expect("sound");
        let has = |text: &str| deny.has(&text.parse().expect("somebody"));
        assert!(has("agent:east-1") && has("operator"));
        assert!(!has("agent:east-2") && !has("operator:ann") && !has("viewer:east-1"));
        assert!(deny.has_serial("4fa1") && !deny.has_serial("4fa"));
        for bad in ["east-1", "serial:", "serial:xyz", "agent"] {
            let trouble = Deny::parse(&format!("\n{bad}")).expect_err(bad);
            assert!(trouble.what.contains("line 2"), "{trouble}");
        }
    }

    proptest! {
        /// Never a panic; a list that is taken has every line that says something.
        #[test]
        fn any_text_is_a_list_or_an_error(
            lines in proptest::collection::vec(
                prop_oneof![
                    "(agent|operator|viewer):[a-z0-9-]{1,9}",
                    "serial:[0-9A-Fa-f:]{0,40}",
                    "#?\\PC{0,40}",
                ],
                0..6,
            ),
        ) {
            if let Ok(deny) = Deny::parse(&lines.join("\n")) {
                for line in &lines {
                    if let Ok(principal) = line.trim().parse::<Principal>() {
                        prop_assert!(deny.has(&principal), "{line}");
                    }
                }
            }
        }
    }
}
