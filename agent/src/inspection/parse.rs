//! The first bytes that a server sends: its greeting, and the beginning of TLS.
//! Pure, and safe on any bytes.
//!
//! Sources: MySQL client/server protocol, "Protocol::HandshakeV10"; RFC 5246 and
//! RFC 8446, "ServerHello" (version and cipher are in clear in both).

/// What a server says of itself before anything else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// Its version, as it stands there.
    pub version: String,
    /// The connection's id, 32 bits of it.
    pub id: u32,
    /// What it can do, as bits.
    pub capabilities: u32,
    /// Whether it offers TLS.
    pub offers_tls: bool,
    /// How it wants passwords, unless the account says otherwise.
    pub auth_plugin: String,
}

impl Greeting {
    /// Its version without what MariaDB puts before it.
    pub fn plain_version(&self) -> &str {
        gapscope_proto::inspection::plain_version(&self.version)
    }
}

/// What TLS agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSeen {
    /// `TLSv1.3` and the like.
    pub version: String,
    /// The suite's name, or its number.
    pub cipher: String,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }

    fn u16_be(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_be_bytes([b[0], b[1]]))
    }

    fn u16_le(&mut self) -> Option<u16> {
        self.take(2).map(|b| u16::from_le_bytes([b[0], b[1]]))
    }

    fn text(&mut self) -> Option<String> {
        let end = self.0.iter().position(|b| *b == 0)?;
        let text = String::from_utf8_lossy(self.take(end)?);
        let text = text.chars().take(200).collect();
        self.take(1)?;
        Some(text)
    }
}

fn first_packet(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut reader = Reader(bytes);
    let header = reader.take(4)?;
    let length =
        usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
    let body = reader.take(length)?;
    Some((body, reader.0))
}

/// Reads the greeting; none if it has not come whole, or is none.
pub fn greeting(bytes: &[u8]) -> Option<Greeting> {
    const SSL: u32 = 0x0800;
    const PLUGIN_AUTH: u32 = 0x0008_0000;
    let (body, _) = first_packet(bytes)?;
    let mut reader = Reader(body);
    if reader.u8()? != 10 {
        return None;
    }
    let version = reader.text()?;
    let id = reader.take(4)?;
    let id = u32::from_le_bytes([id[0], id[1], id[2], id[3]]);
    reader.take(9)?;
    let mut capabilities = u32::from(reader.u16_le()?);
    let mut auth_plugin = String::new();
    if reader.take(3).is_some()
        && let Some(upper) = reader.u16_le()
    {
        capabilities |= u32::from(upper) << 16;
        let scramble = reader.u8().unwrap_or(0);
        reader.take(10)?;
        reader.take(usize::from(scramble.saturating_sub(8)).max(13))?;
        if capabilities & PLUGIN_AUTH != 0 {
            auth_plugin = reader.text().unwrap_or_else(|| {
                // Some servers leave the last zero out.
                String::from_utf8_lossy(reader.0)
                    .chars()
                    .take(100)
                    .collect()
            });
        }
    }
    Some(Greeting {
        version,
        id,
        capabilities,
        offers_tls: capabilities & SSL != 0,
        auth_plugin,
    })
}

/// Reads TLS's ServerHello behind the greeting; none where there is no TLS.
pub fn tls(bytes: &[u8]) -> Option<TlsSeen> {
    const HANDSHAKE: u8 = 22;
    const SERVER_HELLO: u8 = 2;
    const SUPPORTED_VERSIONS: u16 = 43;
    let (_, behind) = first_packet(bytes)?;
    let mut record = Reader(behind);
    if record.u8()? != HANDSHAKE || record.u8()? != 3 {
        return None;
    }
    record.u8()?;
    let length = record.u16_be()?;
    let mut hello = Reader(record.take(usize::from(length))?);
    if hello.u8()? != SERVER_HELLO {
        return None;
    }
    hello.take(3)?;
    let mut version = hello.u16_be()?;
    hello.take(32)?;
    let session = hello.u8()?;
    hello.take(usize::from(session))?;
    let cipher = hello.u16_be()?;
    hello.u8()?;
    if let Some(length) = hello.u16_be() {
        let mut extensions = Reader(hello.take(usize::from(length))?);
        while let (Some(kind), Some(length)) = (extensions.u16_be(), extensions.u16_be()) {
            let body = extensions.take(usize::from(length))?;
            if kind == SUPPORTED_VERSIONS {
                version = Reader(body).u16_be()?;
            }
        }
    }
    Some(TlsSeen {
        version: match version {
            0x0301 => "TLSv1.0".to_owned(),
            0x0302 => "TLSv1.1".to_owned(),
            0x0303 => "TLSv1.2".to_owned(),
            0x0304 => "TLSv1.3".to_owned(),
            other => format!("0x{other:04x}"),
        },
        cipher: match rustls::CipherSuite::from(cipher) {
            rustls::CipherSuite::Unknown(number) => format!("0x{number:04x}"),
            known => format!("{known:?}").replace("TLS13_", "TLS_"),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(body: &[u8]) -> Vec<u8> {
        let mut out = (body.len() as u32).to_le_bytes()[..3].to_vec();
        out.push(0);
        out.extend_from_slice(body);
        out
    }

    fn mariadb() -> Vec<u8> {
        let mut body = b"\x0a5.5.5-10.11.19-MariaDB-0+deb12u1\0".to_vec();
        body.extend_from_slice(&42u32.to_le_bytes());
        body.extend_from_slice(b"12345678\0");
        body.extend_from_slice(&[0xfe, 0xff, 45, 2, 0, 0xff, 0x81, 21]);
        body.extend_from_slice(&[0; 10]);
        body.extend_from_slice(b"123456789012\0mysql_native_password\0");
        packet(&body)
    }

    #[test]
    fn a_greeting_is_read() {
        let greeting = greeting(&mariadb()).expect("a greeting");
        assert_eq!(greeting.plain_version(), "10.11.19-MariaDB-0+deb12u1");
        assert_eq!(
            (
                greeting.id,
                greeting.capabilities,
                greeting.offers_tls,
                greeting.auth_plugin.as_str()
            ),
            (42, 0x81ff_fffe, true, "mysql_native_password")
        );
        assert_eq!(tls(&mariadb()), None);
    }

    #[test]
    fn tls_is_read_in_both_dialects() {
        let hello = |extensions: &[u8]| {
            let mut hello = vec![3, 3];
            hello.extend_from_slice(&[7; 32]);
            hello.extend_from_slice(&[0, 0x13, 0x02, 0]);
            if !extensions.is_empty() {
                hello.extend_from_slice(&(extensions.len() as u16).to_be_bytes());
                hello.extend_from_slice(extensions);
            }
            let mut body = vec![2, 0, 0, hello.len() as u8];
            body.extend(hello);
            let mut bytes = mariadb();
            bytes.extend_from_slice(&[22, 3, 3, 0, body.len() as u8]);
            bytes.extend(body);
            tls(&bytes).expect("TLS")
        };
        let seen = hello(&[0, 43, 0, 2, 3, 4]);
        assert_eq!(
            (seen.version.as_str(), seen.cipher.as_str()),
            ("TLSv1.3", "TLS_AES_256_GCM_SHA384")
        );
        assert_eq!(hello(&[]).version, "TLSv1.2");
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_much(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..400) {
            let _ = greeting(&bytes);
            let _ = tls(&bytes);
            let mut real = mariadb();
            real.extend_from_slice(&[22, 3, 3]);
            real.extend_from_slice(&bytes);
            real.truncate(cut);
            let _ = greeting(&real);
            let _ = tls(&real);
        }
    }
}
