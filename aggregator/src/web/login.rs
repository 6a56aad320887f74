//! Sessions of browsers: a token is shown once in a form, and a random number stands
//! for it in a cookie that scripts cannot read and other sites do not get to send.
//!
//! The token stays here, and each request is decided by it anew, so whoever is
//! denied or whose token is removed is out at once. Sessions live in memory only: a
//! restart of the server ends them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use gapscope_proto::clock::Clock;
use gapscope_proto::secret::Secret;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// Sessions at once; beyond, the oldest ends.
const MOST: usize = 256;
/// How long one lasts.
pub const LASTS_S: i64 = 12 * 3600;

type Key = [u8; 32];

struct Session {
    token: Secret,
    since_ns: i64,
}

/// The sessions.
pub struct Sessions {
    clock: Arc<dyn Clock>,
    open: Mutex<HashMap<Key, Session>>,
}

/// Only hashes are looked up, so how long that takes tells nothing of the number.
fn key(number: &str) -> Key {
    let hash = digest(&SHA256, number.as_bytes());
    hash.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

impl Sessions {
    /// None yet.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            open: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Session>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let since = self.clock.raw_ns() - LASTS_S * 1_000_000_000;
        open.retain(|_, session| session.since_ns > since);
        open
    }

    /// Begins one for somebody who has shown this token; gives back its number, or
    /// nothing if the system has no random numbers.
    pub fn begin(&self, token: Secret) -> Option<String> {
        let mut bytes = [0; 32];
        SystemRandom::new().fill(&mut bytes).ok()?;
        let number = URL_SAFE_NO_PAD.encode(bytes);
        let mut open = self.lock();
        if open.len() >= MOST {
            let oldest = open.iter().min_by_key(|(_, session)| session.since_ns);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                open.remove(&oldest);
            }
        }
        let since_ns = self.clock.raw_ns();
        open.insert(key(&number), Session { token, since_ns });
        Some(number)
    }

    /// The token behind a session's number.
    pub fn token(&self, number: &str) -> Option<Secret> {
        self.lock()
            .get(&key(number))
            .map(|session| session.token.clone())
    }

    /// Ends one.
    pub fn end(&self, number: &str) {
        self.lock().remove(&key(number));
    }
}

/// The value of a cookie in a `Cookie` header.
pub fn cookie<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    header.split(';').find_map(|pair| {
        let (known, value) = pair.trim().split_once('=')?;
        (known == name).then_some(value)
    })
}

/// The field `token` of a form as browsers encode it.
pub fn token_of_form(body: &str) -> Option<Secret> {
    let value = body
        .split('&')
        .find_map(|pair| pair.strip_prefix("token="))?;
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let (high, low) = (digit(rest.next())?, digit(rest.next())?);
                u8::try_from(high * 16 + low).ok()?
            }
            byte => byte,
        });
    }
    let text = String::from_utf8(bytes).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| Secret::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapscope_proto::clock::SimClock;

    #[test]
    fn a_session_ends_by_itself_by_hand_and_by_being_one_too_many() {
        let clock = Arc::new(SimClock::new(0, 0));
        let sessions = Sessions::new(clock.clone());
        let token = Secret::new("t");
        let first = sessions.begin(token.clone()).expect("random");
        let second = sessions.begin(token.clone()).expect("random");
        assert_ne!(first, second);
        assert_eq!(first.len(), 43);
        assert_eq!(sessions.token(&first), Some(token.clone()));
        assert_eq!(sessions.token("t"), None);
        sessions.end(&second);
        assert_eq!(sessions.token(&second), None);
        clock.advance(LASTS_S * 1_000_000_000 - 1);
        assert!(sessions.token(&first).is_some());
        clock.advance(1);
        assert!(sessions.token(&first).is_none());
        let old = sessions.begin(token.clone()).expect("random");
        clock.advance(1);
        for _ in 0..MOST {
            sessions.begin(token.clone()).expect("random");
        }
        assert!(sessions.token(&old).is_none());
        assert_eq!(sessions.lock().len(), MOST);
    }

    #[test]
    fn cookies_and_forms() {
        assert_eq!(cookie("a=1; gapscope=xy; b=2", "gapscope"), Some("xy"));
        assert_eq!(cookie("xgapscope=1", "gapscope"), None);
        let form = |body| token_of_form(body).map(|token| token.expose().to_owned());
        assert_eq!(form("token=ab%2Bc+"), Some("ab+c".to_owned()));
        assert_eq!(form("x=1&token=q"), Some("q".to_owned()));
        for bad in ["", "token=", "token=+", "token=%2", "token=%ff", "other=1"] {
            assert_eq!(form(bad), None, "{bad}");
        }
    }
}
