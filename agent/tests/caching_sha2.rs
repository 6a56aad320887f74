//! `caching_sha2_password` against a peer that implements it, written from the
//! public description of the protocol ("Caching_sha2_password information" in the
//! MySQL source documentation; RFC 8017, section 7.1.2 for the decryption): full
//! authentication by RSA and over TLS, then the fast path. The peer proves what it
//! is told: it decrypts, and it checks every scramble.
//!
//! And against MySQL's `mysqld` or `tidb-server`, where one is on the PATH.

mod real;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gapscope_agent::config::{Secret, Target};
use gapscope_agent::reach::{Reach, TlsFiles, TlsMode};
use gapscope_proto::sample::{Cause, Outcome, Phase, Sample, Style};
use num_bigint::BigUint;
use real::{Running, client, free_port, is_ok, probe, program, skip, target};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// Longer than the nonce, and not all letters.
const PASSWORD: &str = "correct horse battery staple \u{e9}\u{2020}";
const PLUGIN: &[u8] = b"caching_sha2_password";

// A key pair of this test's own, of no use elsewhere.
const PUBLIC: &str = "\
-----BEGIN PUBLIC KEY-----\n\
MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAqaCS1B01G9iAKuq9UOO/\n\
2JJ0QP+/WKN2lTurAVql9A+oG/uAUgnWFPF7KZNc9sbjjhZmzIZEDrILQt/3ZKiD\n\
hR/Y4csdOcaZ7Hu5+zxkK722GMd0RtC5Tf9ODRTeMkbejiUrgpg3KOLUQychhuRl\n\
ZVu4pEgoOZmzodvqJ/amAgzNo6l7Fm3QveSNGC2ClpOEp1CcZiVLhGR7TFMVrZbv\n\
9Mhlo8q9yAfPukz9Xsqy3iHNDBaaLWXYySmyXKRw5PHuAsDAN70IqBGn1uaOIfE6\n\
2kUFN832TMtAnCxIh9Bjg+aOin0+louWRi8OTUlDetLjY2m9AHEx6WrJn/ZjgzDV\n\
8wIDAQAB\n\
-----END PUBLIC KEY-----\n";
const MODULUS: &str = "\
    a9a092d41d351bd8802aeabd50e3bfd8927440ffbf58a376953bab015aa5f40fa81bfb805209d614f17b2993\
    5cf6c6e38e1666cc86440eb20b42dff764a883851fd8e1cb1d39c699ec7bb9fb3c642bbdb618c77446d0b94d\
    ff4e0d14de3246de8e252b82983728e2d443272186e465655bb8a448283999b3a1dbea27f6a6020ccda3a97b\
    166dd0bde48d182d82969384a7509c66254b84647b4c5315ad96eff4c865a3cabdc807cfba4cfd5ecab2de21\
    cd0c169a2d65d8c929b25ca470e4f1ee02c0c037bd08a811a7d6e68e21f13ada450537cdf64ccb409c2c4887\
    d06383e68e8a7d3e968b96462f0e4d49437ad2e36369bd007131e96ac99ff6638330d5f3";
const EXPONENT: &str = "\
    10e0758b5e2691112edb5644a4be2c31c78c82850f8c29a35c40b60869f4f5fdf2cb69effff9938fbce0f4a7\
    8149da4afcb194e3c77e10fa3ced97ebfcdb594e8ef71cac0149e4cd1ebec6a7ccffe86c35286cfbd029e72d\
    eff75b8cd678a91d6e861b38a09d68577d27fb46362e163a89f02a84356059bf0a1d1fc47f215035bd613d7d\
    a2598f57051871bbce0fbdd3d2b288e874172f0ff6676701cd9984f4a90601dfe32c0adcc8ad2f27cec1b543\
    9c77aabe42ce5f4f6a25ae554fbbb3da9eb887e07f4b4be0326e3bb39bb6845d00e75250ac78562c5127cecc\
    ad972b87bee081ddc457323864f3e9eb2973683ebae36124a7bf9d4329f954edab112305";

fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

fn number(hex: &str) -> BigUint {
    BigUint::parse_bytes(hex.as_bytes(), 16).expect("hexadecimal")
}

fn mask(seed: &[u8], length: usize) -> Vec<u8> {
    (0u32..)
        .flat_map(|counter| {
            let mut hash = Sha1::new();
            hash.update(seed);
            hash.update(counter.to_be_bytes());
            hash.finalize().to_vec()
        })
        .take(length)
        .collect()
}

fn xor(a: &[u8], b: &[u8]) -> Vec<u8> {
    a.iter().zip(b.iter().cycle()).map(|(a, b)| a ^ b).collect()
}

/// RSAES-OAEP with SHA-1 and an empty label.
fn decrypt(cipher: &[u8]) -> Option<Vec<u8>> {
    let plain = BigUint::from_bytes_be(cipher)
        .modpow(&number(EXPONENT), &number(MODULUS))
        .to_bytes_be();
    let mut block = vec![0; 256usize.checked_sub(plain.len())?];
    block.extend(plain);
    let (first, rest) = block.split_first()?;
    let (masked_seed, masked_data) = rest.split_at(20);
    let seed = xor(masked_seed, &mask(masked_data, 20));
    let data = xor(masked_data, &mask(&seed, masked_data.len()));
    let (label, message) = data.split_at(20);
    if *first != 0 || label != Sha1::digest([]).as_slice() {
        return None;
    }
    let one = message.iter().position(|byte| *byte != 0)?;
    (message[one] == 1).then(|| message[one + 1..].to_vec())
}

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// How a login went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Login {
    FullByRsa,
    FullByTls,
    Fast,
    Empty,
    Refused,
}

/// The peer.
struct Peer {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    password: String,
    /// The greeting names another way, and the account's has to be switched to.
    switches: bool,
    tls: Option<Arc<rustls::ServerConfig>>,
    /// SHA256(SHA256(password)) of who has logged in by full authentication.
    cache: Mutex<Option<[u8; 32]>>,
    logins: Mutex<Vec<Login>>,
}

struct Wire {
    stream: Box<dyn Stream>,
    number: u8,
}

impl Wire {
    fn read(&mut self) -> std::io::Result<Vec<u8>> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header)?;
        self.number = header[3].wrapping_add(1);
        let length = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let mut body = vec![0; length as usize];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }

    fn write(&mut self, body: &[u8]) -> std::io::Result<()> {
        let mut out = (body.len() as u32).to_le_bytes()[..3].to_vec();
        out.push(self.number);
        out.extend_from_slice(body);
        self.number = self.number.wrapping_add(1);
        self.stream.write_all(&out)?;
        self.stream.flush()
    }
}

const CLIENT_SSL: u32 = 0x0800;

fn nonce() -> [u8; 20] {
    // Never a zero, which ends it on the wire.
    std::array::from_fn(|_| rand::random_range(1..=127))
}

fn greeting(nonce: &[u8; 20], plugin: &[u8], with_tls: bool) -> Vec<u8> {
    let mut capabilities: u32 = 1 | 0x0200 | 0x2000 | 0x8000 | 0x0008_0000 | 0x0020_0000;
    if with_tls {
        capabilities |= CLIENT_SSL;
    }
    let [a, b, c, d] = capabilities.to_le_bytes();
    let mut body = b"\x0a8.4.0-peer\0\x07\0\0\0".to_vec();
    body.extend_from_slice(&nonce[..8]);
    body.extend_from_slice(&[0, a, b, 45, 2, 0, c, d, 21]);
    body.extend_from_slice(&[0; 10]);
    body.extend_from_slice(&nonce[8..]);
    body.push(0);
    body.extend_from_slice(plugin);
    body.push(0);
    body
}

/// What a client's login says by way of proof (HandshakeResponse41).
fn proof_of(login: &[u8]) -> Option<Vec<u8>> {
    let rest = login.get(32..)?;
    let user = rest.iter().position(|byte| *byte == 0)?;
    let rest = rest.get(user + 1..)?;
    let length = usize::from(*rest.first()?);
    rest.get(1..1 + length).map(<[u8]>::to_vec)
}

impl Shared {
    fn serve(&self, mut tcp: TcpStream) -> std::io::Result<()> {
        let nonce_of_greeting = nonce();
        let plugin: &[u8] = match self.switches {
            true => b"mysql_native_password",
            false => PLUGIN,
        };
        let mut wire = Wire {
            stream: Box::new(tcp.try_clone()?),
            number: 0,
        };
        wire.write(&greeting(&nonce_of_greeting, plugin, self.tls.is_some()))?;
        let mut login = wire.read()?;
        let wants_tls = login.get(1).is_some_and(|byte| byte & 0x08 != 0);
        let mut over_tls = false;
        if let (true, Some(config)) = (wants_tls, &self.tls) {
            let mut session =
                rustls::ServerConnection::new(config.clone()).map_err(std::io::Error::other)?;
            session.complete_io(&mut tcp)?;
            wire.stream = Box::new(rustls::StreamOwned::new(session, tcp));
            over_tls = true;
            login = wire.read()?;
        }
        let mut proof = proof_of(&login).ok_or(std::io::ErrorKind::InvalidData)?;
        let mut nonce_now = nonce_of_greeting;
        if self.switches {
            nonce_now = nonce();
            let mut request = vec![0xfe];
            request.extend_from_slice(PLUGIN);
            request.push(0);
            request.extend_from_slice(&nonce_now);
            request.push(0);
            wire.write(&request)?;
            proof = wire.read()?;
        }
        let how = self.authenticate(&mut wire, &nonce_now, &proof, over_tls)?;
        self.logins.lock().expect("not poisoned").push(how);
        if how == Login::Refused {
            let mut error = vec![0xff];
            error.extend_from_slice(&1045u16.to_le_bytes());
            error.extend_from_slice(b"#28000Access denied for user 'probe'");
            return wire.write(&error);
        }
        wire.write(&[0, 0, 0, 2, 0, 0, 0])?;
        loop {
            let command = wire.read()?;
            if command.first() != Some(&3) {
                return Ok(());
            }
            answer(&mut wire)?;
        }
    }

    fn authenticate(
        &self,
        wire: &mut Wire,
        nonce: &[u8; 20],
        proof: &[u8],
        over_tls: bool,
    ) -> std::io::Result<Login> {
        if proof.is_empty() || proof == [0] {
            return Ok(match self.password.is_empty() {
                true => Login::Empty,
                false => Login::Refused,
            });
        }
        let cached = *self.cache.lock().expect("not poisoned");
        if let Some(twice) = cached {
            // The scramble is SHA256(password) XOR SHA256(cached, nonce).
            let once = xor(proof, &sha256(&[&twice, nonce]));
            if proof.len() == 32 && sha256(&[&once]) == twice {
                wire.write(&[1, 3])?;
                return Ok(Login::Fast);
            }
        }
        wire.write(&[1, 4])?;
        let said = wire.read()?;
        let (how, clear) = if over_tls {
            (Login::FullByTls, Some(said))
        } else if said == [2] {
            let mut key = vec![1];
            key.extend_from_slice(PUBLIC.as_bytes());
            wire.write(&key)?;
            let sealed = wire.read()?;
            (
                Login::FullByRsa,
                decrypt(&sealed).map(|clear| xor(&clear, nonce)),
            )
        } else {
            // In clear text over a connection that anybody can read.
            (Login::Refused, None)
        };
        let mut expected = self.password.clone().into_bytes();
        expected.push(0);
        if clear.as_deref() != Some(expected.as_slice()) {
            return Ok(Login::Refused);
        }
        let once = sha256(&[self.password.as_bytes()]);
        *self.cache.lock().expect("not poisoned") = Some(sha256(&[&once]));
        Ok(how)
    }
}

/// One row of three texts, as the probe asks for them.
fn answer(wire: &mut Wire) -> std::io::Result<()> {
    let text = |out: &mut Vec<u8>, text: &[u8]| {
        out.push(text.len() as u8);
        out.extend_from_slice(text);
    };
    wire.write(&[3])?;
    for name in ["id", "version", "backend"] {
        let mut column = Vec::new();
        for part in ["def", "", "", "", name, ""] {
            text(&mut column, part.as_bytes());
        }
        column.extend_from_slice(&[0x0c, 33, 0, 255, 0, 0, 0, 0xfd, 0, 0, 0, 0, 0]);
        wire.write(&column)?;
    }
    wire.write(&[0xfe, 0, 0, 2, 0])?;
    let mut row = Vec::new();
    for part in ["7", "8.4.0-peer", "peer:1"] {
        text(&mut row, part.as_bytes());
    }
    wire.write(&row)?;
    wire.write(&[0xfe, 0, 0, 2, 0])
}

impl Peer {
    fn start(password: &str, switches: bool, with_tls: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let shared = Arc::new(Shared {
            password: password.to_owned(),
            switches,
            tls: with_tls.then(certificate),
            cache: Mutex::default(),
            logins: Mutex::default(),
        });
        let of_thread = shared.clone();
        std::thread::spawn(move || {
            for tcp in listener.incoming().flatten() {
                let shared = of_thread.clone();
                std::thread::spawn(move || {
                    let _ = shared.serve(tcp);
                });
            }
        });
        Self { port, shared }
    }

    async fn log_in(&self, password: &str, tls: TlsMode) -> Sample {
        log_in(target("127.0.0.1", self.port), password, tls).await
    }

    fn logins(&self) -> Vec<Login> {
        std::mem::take(&mut self.shared.logins.lock().expect("not poisoned"))
    }
}

fn certificate() -> Arc<rustls::ServerConfig> {
    let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![key.cert.der().clone()],
            rustls::pki_types::PrivateKeyDer::try_from(key.signing_key.serialize_der())
                .expect("a key"),
        )
        .expect("a certificate");
    Arc::new(config)
}

async fn log_in(there: Target, password: &str, tls: TlsMode) -> Sample {
    let files = TlsFiles {
        mode: Some(tls),
        ..TlsFiles::default()
    };
    let there = Target {
        password: Secret::new(password),
        identity: there.identity.or(Some("'peer'".into())),
        reach: Reach {
            tls: files.load(std::path::Path::new("")).expect("good"),
            ..Reach::default()
        },
        ..there
    };
    probe(&mut client(there, Style::New, 20_000)).await
}

#[track_caller]
fn check_denied(sample: &Sample) {
    assert_eq!(
        (
            sample.phase,
            sample.outcome,
            sample.cause,
            sample.error_code
        ),
        (
            Phase::Connect,
            Outcome::ServerError,
            Some(Cause::Denied),
            Some(1045)
        ),
        "{sample:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn full_authentication_then_the_fast_path() {
    for switches in [false, true] {
        for (tls, full) in [
            (TlsMode::Off, Login::FullByRsa),
            (TlsMode::Required, Login::FullByTls),
        ] {
            let peer = Peer::start(PASSWORD, switches, tls != TlsMode::Off);
            for expected in [full, Login::Fast, Login::Fast] {
                let sample = peer.log_in(PASSWORD, tls).await;
                assert!(is_ok(&sample), "{switches} {tls:?}: {sample:#?}");
                assert_eq!(peer.logins(), [expected], "{switches} {tls:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_refused_by_every_way() {
    for tls in [TlsMode::Off, TlsMode::Required] {
        let peer = Peer::start(PASSWORD, false, tls != TlsMode::Off);
        check_denied(&peer.log_in("another", tls).await);
        assert!(is_ok(&peer.log_in(PASSWORD, tls).await));
        // Also where the right one is in the cache.
        check_denied(&peer.log_in("another", tls).await);
        check_denied(&peer.log_in("", tls).await);
        assert!(is_ok(&peer.log_in(PASSWORD, tls).await));
        assert_eq!(peer.logins().last(), Some(&Login::Fast));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_password_needs_no_proof() {
    for switches in [false, true] {
        let peer = Peer::start("", switches, false);
        let sample = peer.log_in("", TlsMode::Off).await;
        assert!(is_ok(&sample), "{switches}: {sample:#?}");
        assert_eq!(peer.logins(), [Login::Empty]);
    }
}

/// MySQL's own server or TiDB's, if there is one: MariaDB has no such plugin.
fn real_server(folder: &std::path::Path, port: u16) -> Option<Running> {
    if let Some(tidb) = program(&["tidb-server"]) {
        let child = Command::new(tidb)
            .args(["-store", "unistore", "-host", "127.0.0.1", "-status", "0"])
            .arg("-P")
            .arg(port.to_string())
            .arg("-path")
            .arg(folder.join("data"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        return child.ok().map(Running);
    }
    let mysqld = program(&["mysqld"])?;
    let version = Command::new(&mysqld).arg("--version").output().ok()?;
    if String::from_utf8_lossy(&version.stdout).contains("MariaDB") {
        return None;
    }
    real::open_to_all(folder);
    let data = folder.join("data");
    let user: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["--user=mysql"],
        false => &[],
    };
    let server = || {
        let mut command = Command::new(&mysqld);
        command.arg("--no-defaults").args(user);
        command.arg(format!("--datadir={}", data.display()));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let made = server().arg("--initialize-insecure").status().ok()?;
    assert!(made.success(), "mysqld --initialize-insecure failed");
    let child = server()
        .arg(format!("--port={port}"))
        .args(["--bind-address=127.0.0.1", "--mysqlx=OFF"])
        .arg(format!("--socket={}", folder.join("s").display()))
        .spawn();
    child.ok().map(Running)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_server_where_there_is_one() {
    let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
    let Some(_server) = real_server(folder.path(), port) else {
        skip("neither MySQL's mysqld nor tidb-server is installed");
        return;
    };
    let opts = mysql_async::OptsBuilder::default()
        .ip_or_hostname("127.0.0.1")
        .tcp_port(port)
        .user(Some("root"))
        .prefer_socket(false);
    let connecting = async {
        loop {
            match mysql_async::Conn::new(opts.clone()).await {
                Ok(conn) => return conn,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    };
    let mut root = tokio::time::timeout(Duration::from_secs(120), connecting)
        .await
        .expect("it answers");
    use mysql_async::prelude::Queryable;
    for user in ["by_rsa", "by_tls"] {
        root.query_drop(format!(
            "CREATE USER {user}@'%' IDENTIFIED WITH caching_sha2_password BY '{PASSWORD}'"
        ))
        .await
        .expect("an account");
    }
    for (user, tls) in [("by_rsa", TlsMode::Off), ("by_tls", TlsMode::Required)] {
        for _ in 0..2 {
            let there = Target {
                user: user.into(),
                identity: Some("'real'".into()),
                ..target("127.0.0.1", port)
            };
            let sample = log_in(there, PASSWORD, tls).await;
            assert!(is_ok(&sample), "{user}: {sample:#?}");
        }
        let there = Target {
            user: user.into(),
            ..target("127.0.0.1", port)
        };
        check_denied(&log_in(there, "another", tls).await);
    }
}
