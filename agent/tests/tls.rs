//! TLS and ways of logging in, against a real MariaDB with certificates made
//! here. Skipped, with a message, where it is not installed.

mod real;

use std::path::{Path, PathBuf};

use gapscope_agent::config::{Secret, Target};
use gapscope_agent::reach::{Reach, TlsFiles, TlsMode};
use gapscope_proto::sample::{Cause, Outcome, Phase, Sample, Style};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use real::{MariaDb, client, is_ok, probe};

/// A certificate authority and what it signed.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("signed").pem();
        Self {
            pem,
            issuer: Issuer::new(params, key),
        }
    }

    /// Certificate and key, in PEM, for these names.
    fn sign(&self, names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params
            .distinguished_name
            .push(DnType::CommonName, "gapscope test");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed");
        (certificate.pem(), key.serialize_pem())
    }
}

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("written");
    real::open_to_all(&path);
    path
}

fn reach(files: &TlsFiles) -> Reach {
    Reach {
        tls: files.load(Path::new("")).expect("good files"),
        ..Reach::default()
    }
}

/// A look's TLS, by our own eyes and by the server's word: they agree.
async fn check_look(db: &MariaDb, tls: &TlsFiles) {
    let target = Target {
        host: "localhost".into(),
        reach: reach(tls),
        ..db.target()
    };
    let clock = gapscope_proto::clock::SystemClock::new();
    let endpoint = std::sync::Arc::new(gapscope_agent::probe::mysql::Endpoint::new(target, &clock));
    let means = gapscope_agent::inspection::reach::Means {
        clock: &clock,
        graveyard: &gapscope_agent::probe::leash::Graveyard::open().expect("a thread"),
        limit: std::time::Duration::from_secs(10),
        give_up: &tokio_util::sync::CancellationToken::new(),
    };
    let why = gapscope_agent::inspection::when::Why::Start;
    let seen = gapscope_agent::inspection::watch::look(&endpoint, &endpoint.identity, why, means)
        .await
        .expect("room");
    assert_eq!(seen.error, "", "{seen:#?}");
    assert!(seen.tls_version.starts_with("TLSv1."), "{seen:#?}");
    let servers = seen.server_tls.as_deref().expect("MariaDB says it");
    assert!(servers.starts_with("TLSv1."), "{seen:#?}");
    assert_eq!(seen.findings(), [], "{seen:#?}");
}

async fn once(db: &MariaDb, host: &str, user: &str, files: &TlsFiles) -> Sample {
    let mut client = client(
        Target {
            host: host.into(),
            user: user.into(),
            reach: reach(files),
            ..db.target()
        },
        Style::New,
        10_000,
    );
    probe(&mut client).await;
    // The second time as the first.
    probe(&mut client).await
}

#[track_caller]
fn refused(sample: &Sample, outcome: Outcome, cause: Cause) {
    assert_eq!(
        (sample.phase, sample.outcome, sample.cause),
        (Phase::Connect, outcome, Some(cause)),
        "{sample:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_mode_against_certificates_good_and_bad() {
    let (ours, strange) = (Authority::new("ours"), Authority::new("strange"));
    let files = tempfile::tempdir().expect("a folder");
    let ca = write(files.path(), "ca.pem", &ours.pem);
    let other_ca = write(files.path(), "other.pem", &strange.pem);
    let (certificate, key) = ours.sign(&["client"]);
    let our_cert = write(files.path(), "client.pem", &certificate);
    let our_key = write(files.path(), "client.key", &key);
    let (certificate, key) = strange.sign(&["client"]);
    let strange_cert = write(files.path(), "strange.pem", &certificate);
    let strange_key = write(files.path(), "strange.key", &key);
    let Some(db) = MariaDb::start(
        &[],
        "CREATE USER secure@'127.0.0.1' IDENTIFIED BY 'hunter2' REQUIRE SSL;\n\
         CREATE USER known@'127.0.0.1' IDENTIFIED BY 'hunter2' REQUIRE X509;\n",
        |folder| {
            let (certificate, key) = ours.sign(&["db.example", "localhost"]);
            vec![
                format!("--ssl-ca={}", write(folder, "ca.pem", &ours.pem).display()),
                format!(
                    "--ssl-cert={}",
                    write(folder, "server.pem", &certificate).display()
                ),
                format!("--ssl-key={}", write(folder, "server.key", &key).display()),
            ]
        },
    )
    .await
    else {
        return;
    };
    let mode = |mode| TlsFiles {
        mode: Some(mode),
        ..TlsFiles::default()
    };
    let trusting = |what, ca: &Path| TlsFiles {
        ca: Some(ca.to_owned()),
        ..mode(what)
    };
    use TlsMode::{Off, Required, VerifyCa, VerifyIdentity};
    let address = "127.0.0.1";
    // Off: as ever; an account that wants TLS is refused like a wrong password.
    assert!(is_ok(&once(&db, address, "probe", &mode(Off)).await));
    refused(
        &once(&db, address, "secure", &mode(Off)).await,
        Outcome::ServerError,
        Cause::Denied,
    );
    // Required: whoever answers.
    assert!(is_ok(&once(&db, address, "secure", &mode(Required)).await));
    check_look(&db, &mode(Required)).await;
    // By public authorities it is not known.
    refused(
        &once(&db, "localhost", "secure", &mode(VerifyIdentity)).await,
        Outcome::ConnectFailed,
        Cause::Tls,
    );
    // Verified: the authority, and the name.
    let good = once(&db, "localhost", "secure", &trusting(VerifyIdentity, &ca)).await;
    assert!(is_ok(&good), "{good:#?}");
    refused(
        &once(
            &db,
            "localhost",
            "secure",
            &trusting(VerifyIdentity, &other_ca),
        )
        .await,
        Outcome::ConnectFailed,
        Cause::Tls,
    );
    let wrong_name = once(&db, address, "secure", &trusting(VerifyIdentity, &ca)).await;
    refused(&wrong_name, Outcome::ConnectFailed, Cause::Tls);
    assert!(
        wrong_name
            .error
            .as_deref()
            .is_some_and(|e| e.contains("127.0.0.1")),
        "{wrong_name:#?}"
    );
    let named = TlsFiles {
        name: Some("db.example".into()),
        ..trusting(VerifyIdentity, &ca)
    };
    assert!(is_ok(&once(&db, address, "secure", &named).await));
    // The authority alone: under an address that is not in the certificate.
    let by_ca = once(&db, address, "secure", &trusting(VerifyCa, &ca)).await;
    assert!(is_ok(&by_ca), "{by_ca:#?}");
    refused(
        &once(&db, address, "secure", &trusting(VerifyCa, &other_ca)).await,
        Outcome::ConnectFailed,
        Cause::Tls,
    );
    // Our certificate.
    refused(
        &once(&db, address, "known", &mode(Required)).await,
        Outcome::ServerError,
        Cause::Denied,
    );
    let with = |cert: &Path, key: &Path| TlsFiles {
        cert: Some(cert.to_owned()),
        key: Some(key.to_owned()),
        ..trusting(VerifyCa, &ca)
    };
    let known = once(&db, address, "known", &with(&our_cert, &our_key)).await;
    assert!(is_ok(&known), "{known:#?}");
    let unknown = once(&db, address, "known", &with(&strange_cert, &strange_key)).await;
    assert_ne!(unknown.outcome, Outcome::Ok, "{unknown:#?}");
    assert!(
        matches!(
            unknown.outcome,
            Outcome::ConnectFailed | Outcome::ServerError
        ),
        "{unknown:#?}"
    );
    // A key that is not the certificate's is a mistake of the configuration.
    let error = with(&our_cert, &strange_key)
        .load(Path::new(""))
        .expect_err("refused");
    assert!(error.contains("do not fit"), "{error}");
    // What a held connection under TLS sees when the server goes: a FIN, no more.
    let mut held = client(
        Target {
            user: "secure".into(),
            reach: reach(&mode(Required)),
            ..db.target()
        },
        Style::Reused,
        10_000,
    );
    assert!(is_ok(&probe(&mut held).await));
    drop(db);
    let lost = probe(&mut held).await;
    assert_eq!(
        (lost.outcome, lost.cause, lost.may_have_executed),
        (Outcome::ConnectionLost, Some(Cause::Closed), true),
        "{lost:#?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_that_is_not_to_be_had_and_tls_that_is_demanded() {
    let Some(db) = MariaDb::plain().await else {
        return;
    };
    let required = TlsFiles {
        mode: Some(TlsMode::Required),
        ..TlsFiles::default()
    };
    refused(
        &once(&db, "127.0.0.1", "probe", &required).await,
        Outcome::ConnectFailed,
        Cause::Tls,
    );
    drop(db);
    let ours = Authority::new("ours");
    let Some(db) = MariaDb::start(&["--require-secure-transport=ON"], "", |folder| {
        let (certificate, key) = ours.sign(&["localhost"]);
        vec![
            format!(
                "--ssl-cert={}",
                write(folder, "server.pem", &certificate).display()
            ),
            format!("--ssl-key={}", write(folder, "server.key", &key).display()),
        ]
    })
    .await
    else {
        return;
    };
    let demanded = once(&db, "127.0.0.1", "probe", &TlsFiles::default()).await;
    // MariaDB says it in the words of a wrong password (MySQL has 3159 for it).
    refused(&demanded, Outcome::ServerError, Cause::Denied);
    assert_eq!(demanded.error_code, Some(1045), "{demanded:#?}");
    assert!(is_ok(&once(&db, "127.0.0.1", "probe", &required).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn ways_of_logging_in() {
    let Some(db) = MariaDb::start(
        &["--plugin-load-add=auth_ed25519"],
        "CREATE USER native@'127.0.0.1' IDENTIFIED VIA mysql_native_password USING PASSWORD('hunter2');\n\
         CREATE USER curve@'127.0.0.1' IDENTIFIED VIA ed25519 USING PASSWORD('hunter2');\n\
         CREATE USER empty@'127.0.0.1';\n",
        |_| Vec::new(),
    )
    .await
    else {
        return;
    };
    for (user, password, lets_in) in [
        ("native", "hunter2", true),
        ("native", "wrong", false),
        ("native", "", false),
        ("curve", "hunter2", true),
        ("curve", "wrong", false),
        ("empty", "", true),
        ("empty", "hunter2", false),
    ] {
        let mut client = client(
            Target {
                user: user.into(),
                password: Secret::new(password),
                ..db.target()
            },
            Style::New,
            10_000,
        );
        let sample = probe(&mut client).await;
        if lets_in {
            assert!(is_ok(&sample), "{user} {password:?}: {sample:#?}");
        } else {
            refused(&sample, Outcome::ServerError, Cause::Denied);
            assert_eq!(sample.error_code, Some(1045), "{user}: {sample:#?}");
        }
    }
}
