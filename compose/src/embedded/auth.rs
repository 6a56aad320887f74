//! Greeting and login with `mysql_native_password`, for the server's side and
//! for the client's side of a proxy.
//!
//! The password itself never crosses the wire: the client proves it against a
//! random scramble. What it cannot do: TLS, other plugins (a client that
//! prefers another one is asked to switch).

use std::fmt;

use mysql_common::constants::{CapabilityFlags, StatusFlags};
use mysql_common::io::ParseBuf;
use mysql_common::packets::{AuthPlugin, AuthSwitchRequest, HandshakePacket, HandshakeResponse};
use mysql_common::proto::{MyDeserialize, MySerialize};
use mysql_common::scramble::scramble_native;
use rand::Rng as _;

use super::wire::{Reader, SqlError};

pub(crate) const NATIVE: &[u8] = b"mysql_native_password";

/// Who may log in. The password is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User name.
    pub user: String,
    /// Password; may be empty.
    pub password: String,
}

impl Credentials {
    /// A user and a password, which may be empty.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: user.into(),
            password: password.into(),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({:?}, ..)", self.user)
    }
}

/// The random bytes of one greeting: no NUL, 20 of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scramble([u8; 20]);

impl Scramble {
    pub(crate) fn random() -> Self {
        let mut rng = rand::rng();
        // Neither NUL (which ends the field) nor `$` (which some servers avoid too).
        Self(std::array::from_fn(|_| {
            match rng.random_range(1..=127_u8) {
                b'$' => b'%',
                byte => byte,
            }
        }))
    }
}

/// What the servers here can do.
pub(crate) fn server_capabilities(deprecate_eof: bool) -> CapabilityFlags {
    let mut flags = CapabilityFlags::CLIENT_LONG_PASSWORD
        | CapabilityFlags::CLIENT_FOUND_ROWS
        | CapabilityFlags::CLIENT_LONG_FLAG
        | CapabilityFlags::CLIENT_CONNECT_WITH_DB
        | CapabilityFlags::CLIENT_IGNORE_SPACE
        | CapabilityFlags::CLIENT_PROTOCOL_41
        | CapabilityFlags::CLIENT_INTERACTIVE
        | CapabilityFlags::CLIENT_TRANSACTIONS
        | CapabilityFlags::CLIENT_RESERVED
        | CapabilityFlags::CLIENT_SECURE_CONNECTION
        | CapabilityFlags::CLIENT_MULTI_RESULTS
        | CapabilityFlags::CLIENT_PS_MULTI_RESULTS
        | CapabilityFlags::CLIENT_PLUGIN_AUTH
        | CapabilityFlags::CLIENT_CONNECT_ATTRS
        | CapabilityFlags::CLIENT_PLUGIN_AUTH_LENENC_CLIENT_DATA;
    flags.set(CapabilityFlags::CLIENT_DEPRECATE_EOF, deprecate_eof);
    flags
}

/// Writes the payload of the greeting.
pub(crate) fn put_greeting(
    out: &mut Vec<u8>,
    version: &str,
    connection_id: u32,
    scramble: &Scramble,
    capabilities: CapabilityFlags,
) {
    let (first, rest) = scramble.0.split_at(8);
    let mut second = rest.to_vec();
    second.push(0);
    HandshakePacket::new(
        10,
        version.as_bytes(),
        connection_id,
        first.try_into().expect("8 bytes were split off"),
        Some(second),
        capabilities,
        45, // utf8mb4_general_ci
        StatusFlags::SERVER_STATUS_AUTOCOMMIT,
        Some(NATIVE),
    )
    .serialize(out);
}

/// What a client said at login.
#[derive(Debug)]
pub(crate) struct Login {
    pub(crate) user: Vec<u8>,
    pub(crate) proof: Vec<u8>,
    pub(crate) database: Option<Vec<u8>>,
    pub(crate) capabilities: CapabilityFlags,
    /// The client prefers another plugin and has to be asked to switch.
    pub(crate) must_switch: bool,
}

/// Reads the client's answer to a greeting that offered `offered`.
pub(crate) fn read_login(payload: &[u8], offered: CapabilityFlags) -> Result<Login, SqlError> {
    let bad = |why: &str| SqlError::new(1043, "08S01", format!("Bad handshake: {why}"));
    let response = HandshakeResponse::deserialize((), &mut ParseBuf(payload))
        .map_err(|_| bad("the login packet cannot be read (TLS is not offered)"))?;
    let capabilities = response.capabilities();
    if !capabilities.contains(CapabilityFlags::CLIENT_PROTOCOL_41)
        || !capabilities.contains(CapabilityFlags::CLIENT_SECURE_CONNECTION)
    {
        return Err(bad("the client is older than protocol 4.1"));
    }
    if capabilities.intersects(CapabilityFlags::CLIENT_SSL | CapabilityFlags::CLIENT_COMPRESS) {
        return Err(bad(
            "the client wants TLS or compression, which was not offered",
        ));
    }
    let must_switch = match response.auth_plugin() {
        None | Some(AuthPlugin::MysqlNativePassword) => false,
        Some(_) => true,
    };
    Ok(Login {
        user: response.user().to_vec(),
        proof: response.scramble_buf().to_vec(),
        database: response
            .db_name()
            .filter(|name| !name.is_empty())
            .map(<[u8]>::to_vec),
        capabilities: capabilities & offered,
        must_switch,
    })
}

/// Writes the payload that asks the client to use the native password.
pub(crate) fn put_switch(out: &mut Vec<u8>, scramble: &Scramble) {
    let mut data = scramble.0.to_vec();
    data.push(0);
    AuthSwitchRequest::new(NATIVE, data).serialize(out);
}

/// Whether `proof` shows that the client knows the password.
pub(crate) fn verify(
    allowed: &Credentials,
    scramble: &Scramble,
    user: &[u8],
    proof: &[u8],
) -> Result<(), SqlError> {
    // A proof may come with a terminating NUL from an auth switch.
    let proof = match proof {
        [0] => &[],
        other => other,
    };
    let expected = scramble_native(&scramble.0, allowed.password.as_bytes());
    let proven = match expected {
        None => proof.is_empty(),
        Some(expected) => proof == expected,
    };
    if proven && user == allowed.user.as_bytes() {
        return Ok(());
    }
    let using = if proof.is_empty() { "NO" } else { "YES" };
    let user: String = String::from_utf8_lossy(user).chars().take(80).collect();
    Err(SqlError::new(
        1045,
        "28000",
        format!("Access denied for user '{user}'@'localhost' (using password: {using})"),
    ))
}

/// What a client has to know of a server's greeting.
#[derive(Debug)]
pub(crate) struct Greeting {
    pub(crate) connection_id: u32,
    pub(crate) capabilities: CapabilityFlags,
    pub(crate) scramble: Vec<u8>,
}

/// Reads a greeting (not with `mysql_common`, whose reader can overflow on a
/// hostile length). `None`: it is none, or an error packet.
pub(crate) fn read_greeting(payload: &[u8]) -> Option<Greeting> {
    let mut reader = Reader(payload);
    if reader.u8()? != 10 {
        return None;
    }
    reader.until_nul()?;
    let connection_id = u32::from_le_bytes(reader.array()?);
    let mut scramble = reader.take(8)?.to_vec();
    reader.take(1)?;
    let low = u16::from_le_bytes(reader.array()?);
    reader.take(3)?;
    let high = u16::from_le_bytes(reader.array()?);
    let length = usize::from(reader.u8()?);
    reader.take(10)?;
    let second = reader.take(length.saturating_sub(8).max(13))?;
    scramble.extend_from_slice(&second[..12]);
    Some(Greeting {
        connection_id,
        capabilities: CapabilityFlags::from_bits_truncate(u32::from(high) << 16 | u32::from(low)),
        scramble,
    })
}

/// The proof a client sends for `password`; empty for an empty one.
pub(crate) fn prove(scramble: &[u8], password: &str) -> Vec<u8> {
    let Ok(nonce) = <&[u8; 20]>::try_from(scramble.get(..20).unwrap_or_default()) else {
        return Vec::new();
    };
    scramble_native(nonce, password.as_bytes())
        .map(|proof| proof.to_vec())
        .unwrap_or_default()
}

/// Writes the payload of a client's login.
pub(crate) fn put_login(
    out: &mut Vec<u8>,
    credentials: &Credentials,
    greeting: &Greeting,
    database: Option<&[u8]>,
    capabilities: CapabilityFlags,
) {
    HandshakeResponse::new(
        Some(prove(&greeting.scramble, &credentials.password)),
        (8, 0, 11),
        Some(credentials.user.as_bytes()),
        database.map(<[u8]>::to_vec),
        Some(AuthPlugin::MysqlNativePassword),
        capabilities & greeting.capabilities,
        None,
        1 << 24,
    )
    .serialize(out);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn proof_of(password: &str, scramble: &Scramble) -> Vec<u8> {
        prove(&scramble.0, password)
    }

    #[test]
    fn only_the_right_password_is_proven() {
        let scramble = Scramble::random();
        let secret = Credentials::new("probe", "secret");
        let open = Credentials::new("probe", "");
        assert!(verify(&secret, &scramble, b"probe", &proof_of("secret", &scramble)).is_ok());
        assert!(verify(&secret, &scramble, b"other", &proof_of("secret", &scramble)).is_err());
        assert!(verify(&secret, &scramble, b"probe", &proof_of("wrong", &scramble)).is_err());
        assert!(verify(&secret, &scramble, b"probe", b"").is_err());
        assert!(
            verify(
                &secret,
                &scramble,
                b"probe",
                &proof_of("secret", &Scramble::random())
            )
            .is_err()
        );
        assert!(verify(&open, &scramble, b"probe", b"").is_ok());
        assert!(verify(&open, &scramble, b"probe", &proof_of("x", &scramble)).is_err());
    }

    #[test]
    fn a_greeting_is_read_as_written() {
        let scramble = Scramble::random();
        let mut out = Vec::new();
        put_greeting(
            &mut out,
            "11.4.2-x",
            77,
            &scramble,
            server_capabilities(true),
        );
        let greeting = read_greeting(&out).expect("it is a greeting");
        assert_eq!(greeting.connection_id, 77);
        assert_eq!(greeting.scramble, scramble.0);
        assert_eq!(greeting.capabilities, server_capabilities(true));
        for end in 0..out.len().saturating_sub(NATIVE.len() + 1) {
            assert!(read_greeting(&out[..end]).is_none(), "cut at {end}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let text = format!("{:?}", Credentials::new("probe", "hunter2"));
        assert!(!text.contains("hunter2"), "{text}");
    }

    proptest! {
        #[test]
        fn no_greeting_or_login_panics(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            capabilities: u32,
        ) {
            let _ = read_greeting(&bytes);
            let mut greeting = vec![10, b'v', 0];
            greeting.extend_from_slice(&bytes);
            let _ = read_greeting(&greeting);
            // A login with a sound head, so that what follows is reached.
            let mut login = capabilities.to_le_bytes().to_vec();
            login.extend([0; 28]);
            login.extend_from_slice(&bytes);
            for payload in [&bytes, &login] {
                if let Ok(login) = read_login(payload, server_capabilities(true)) {
                    let open = Credentials::new("probe", "");
                    let _ = verify(&open, &Scramble::random(), &login.user, &login.proof);
                }
            }
        }
    }
}
