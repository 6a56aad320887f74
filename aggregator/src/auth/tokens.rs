//! Bearer tokens: a file with one line a token, `sha256:HEX ROLE`. Pure.
//!
//! Only hashes are kept. A token is 256 random bits, so a plain hash is enough:
//! there is nothing to guess, and how long a comparison of hashes takes tells
//! nothing about the token.

use gapscope_proto::tls::{Principal, Trouble};
use ring::digest::{SHA256, digest};

const KIND: &str = "sha256:";

/// Whose token is whose.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    lines: Vec<(Hash, Principal)>,
}

/// SHA-256 of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hash([u8; 32]);

impl Hash {
    fn of(token: &str) -> Self {
        let digest = digest(&SHA256, token.as_bytes());
        Self(digest.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    fn parse(hex: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if hex.len() != 64 || !hex.is_ascii() {
            return None;
        }
        for (byte, at) in bytes.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&hex[at..at + 2], 16).ok()?;
        }
        Some(Self(bytes))
    }
}

/// The line for a token.
pub fn line(token: &str, principal: &Principal) -> String {
    let hex: String = Hash::of(token)
        .0
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    format!("{KIND}{hex} {principal}")
}

impl Tokens {
    /// Reads the file's text. Lines are named by number and never quoted: one may
    /// hold a token that somebody wrote there as it is.
    ///
    /// # Errors
    /// When a line makes no sense.
    pub fn parse(text: &str) -> Result<Self, Trouble> {
        let mut lines = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why: &str| {
                Trouble::hinted(
                    format!("line {number}: {why}"),
                    "each line is `sha256:HEX ROLE`, with the token's hash, as `gapscope-aggregator tokens add` writes it",
                )
            };
            let (hash, role) = line
                .split_once(char::is_whitespace)
                .ok_or_else(|| wrong("there is no role behind the hash"))?;
            let hash = hash
                .strip_prefix(KIND)
                .and_then(Hash::parse)
                .ok_or_else(|| wrong("it does not begin with a hash, sha256:HEX"))?;
            let principal = role
                .trim()
                .parse()
                .map_err(|why: String| wrong(&format!("the role {why}")))?;
            if lines.iter().any(|(known, _)| *known == hash) {
                return Err(wrong("this token is there already"));
            }
            lines.push((hash, principal));
        }
        Ok(Self { lines })
    }

    /// Whose token this is.
    pub fn find(&self, token: &str) -> Option<&Principal> {
        let hash = Hash::of(token);
        self.lines
            .iter()
            .find(|(known, _)| *known == hash)
            .map(|(_, principal)| principal)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_token_is_found_by_its_hash() {
        let ann: Principal = "operator:ann".parse().expect("somebody");
        let agent: Principal = "agent:east-1".parse().expect("somebody");
        let text = format!(
            "# who may come\n\n{}\n  {}  \n",
            line("secret-1", &ann),
            line("secret-2", &agent)
        );
        let tokens = Tokens::parse(&text).expect("makes sense");
        assert_eq!(tokens.len(), 2);
        assert_eq!(tokens.find("secret-1"), Some(&ann));
        assert_eq!(tokens.find("secret-2"), Some(&agent));
        for wrong in ["", "secret-3", "secret-1 ", "SECRET-1"] {
            assert_eq!(tokens.find(wrong), None, "{wrong:?}");
        }
        assert!(!text.contains("secret-"));
        // As any other program computes it.
        assert!(line("abc", &ann).starts_with(
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad "
        ));
    }

    #[track_caller]
    fn check(text: &str, part: &str) {
        let trouble = Tokens::parse(text).expect_err("refused");
        assert!(trouble.what.contains(part), "{trouble}");
        assert!(!trouble.line().contains("hunter2"), "{trouble}");
    }

    #[test]
    fn errors_name_the_line_and_quote_nothing() {
        let good = line("t", &"operator".parse().expect("somebody"));
        check("hunter2", "line 1: there is no role");
        check(
            "\nhunter2 operator",
            "line 2: it does not begin with a hash",
        );
        check(
            &good.replace("operator", "hunter2"),
            "the role is not agent:ID",
        );
        check(
            &good.replace("operator", "agent"),
            "the role is not agent:ID",
        );
        check(
            &format!("{good}\n{good}"),
            "line 2: this token is there already",
        );
        check(&good[..70], "there is no role");
    }

    proptest! {
        /// Never a panic, never a secret in an error, never more than there are lines.
        #[test]
        fn any_text_is_a_list_or_an_error(
            lines in proptest::collection::vec(
                prop_oneof![
                    Just(line("hunter2", &"agent:a".parse().expect("somebody"))),
                    "(sha256:)?[0-9a-f]{60,66} ?(agent|operator|viewer|who):?[a-z0-9-]{0,9}",
                    "#?\\PC{0,40}",
                ],
                0..6,
            ),
        ) {
            match Tokens::parse(&lines.join("\n")) {
                Ok(tokens) => prop_assert!(tokens.len() <= lines.len()),
                Err(trouble) => prop_assert!(!trouble.line().contains("hunter2")),
            }
        }
    }
}
