//! Tables over whole configurations.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct Fake {
    env: HashMap<&'static str, &'static str>,
    files: HashMap<PathBuf, String>,
}

impl Sources for Fake {
    fn env(&self, name: &str) -> Option<String> {
        self.env.get(name).map(|v| (*v).to_owned())
    }
    fn file(&self, path: &Path) -> Result<String, String> {
        self.files
            .get(path)
            .cloned()
            .ok_or_else(|| "No such file".to_owned())
    }
}

fn with_file(text: &str) -> Result<Config, ConfigError> {
    let mut fake = Fake::default();
    fake.env.insert("PW", "s3cret");
    fake.files.insert("c/agent.toml".into(), text.to_owned());
    fake.files.insert("c/pw".into(), "from-file\n".to_owned());
    let flags = Flags {
        config: Some("c/agent.toml".into()),
        ..Flags::default()
    };
    resolve(&flags, &fake)
}

#[track_caller]
fn check_error(text: &str, parts: &[&str]) {
    let error = with_file(text).expect_err("must not be accepted");
    let shown = format!("{} {}", error.message, error.hint.unwrap_or_default());
    for part in parts {
        assert!(shown.contains(part), "{part:?} is not in {shown:?}");
    }
}

#[test]
fn a_file_gives_targets_and_secrets() {
    let config = with_file(
        r#"
agent_id = "east-1"
aggregator = "10.0.0.9:7350"
[[target]]
name = "haproxy"
address = "db.example:6033"
user = "probe"
password_env = "PW"
identity = "@@hostname"
max_connects_per_second = 7
[[target]]
name = "direct"
address = "[::1]:3306"
user = "probe"
password_file = "pw"
database = "shop"
"#,
    )
    .expect("valid");
    assert_eq!(config.agent_id.as_str(), "east-1");
    assert_eq!(config.aggregator, "http://10.0.0.9:7350");
    assert_eq!(config.targets[0].password, Secret::new("s3cret"));
    assert_eq!(config.targets[0].max_connects_per_second, 7);
    assert_eq!(config.targets[1].password, Secret::new("from-file"));
    assert_eq!(config.targets[1].host, "::1");
    assert_eq!(config.targets[1].address(), "[::1]:3306");
    let shown = format!("{config:?}");
    assert!(
        !shown.contains("s3cret") && !shown.contains("from-file"),
        "{shown}"
    );
}

#[test]
fn what_secures_the_connection_stands_beside_the_file_and_flags_win() {
    let text = r#"
aggregator = "https://db.example:7350/"
token_file = "token"
[tls]
ca = "/etc/ca.pem"
cert = "agent.pem"
key = "agent.key"
"#;
    let config = with_file(text).expect("valid");
    assert_eq!(config.aggregator, "https://db.example:7350");
    let files = ClientFiles {
        ca: Some("/etc/ca.pem".into()),
        cert: Some("c/agent.pem".into()),
        key: Some("c/agent.key".into()),
        token: Some("c/token".into()),
    };
    assert_eq!(config.security, files);
    let mut fake = Fake::default();
    fake.files.insert("c/agent.toml".into(), text.to_owned());
    let flags = Flags {
        config: Some("c/agent.toml".into()),
        security: ClientFiles {
            ca: Some("other.pem".into()),
            ..ClientFiles::default()
        },
        ..Flags::default()
    };
    let config = resolve(&flags, &fake).expect("valid");
    assert_eq!(config.security.ca, Some("other.pem".into()));
    assert_eq!(config.security.cert, files.cert);
    check_error("[tls]\npassword = \"x\"\n", &["agent.toml:2", "`password`"]);
    check_error(
        "aggregator = \"ftp://x:1\"\n",
        &["agent.toml:1", "no http://"],
    );
}

#[test]
fn errors_name_line_and_key() {
    check_error("\nagent_id = \"../x\"\n", &["agent.toml:2", "`agent_id`"]);
    check_error(
        "[[target]]\nname=\"a\"\nadress=\"x:1\"\n",
        &["agent.toml:3", "`adress`", "`address`", "`password_env`"],
    );
    check_error(
        "[[target]]\nname=\"a\"\naddress=\"x\"\nuser=\"u\"\n",
        &["agent.toml:3", "`address`", "HOST:PORT"],
    );
    check_error(
        "[[target]]\nname=\"a\"\naddress=\"x:1\"\nuser=\"u\"\npassword_env=\"NOPE\"\n",
        &["agent.toml:5", "`NOPE`", "not set"],
    );
    check_error(
        "[[target]]\nname=\"a\"\naddress=\"x:1\"\nuser=\"u\"\n[[target]]\nname=\"a\"\naddress=\"x:2\"\nuser=\"u\"\n",
        &["`a` is given twice"],
    );
}

#[test]
fn a_password_in_the_file_is_refused_without_being_shown() {
    let error =
        with_file("[[target]]\nname=\"a\"\naddress=\"x:1\"\nuser=\"u\"\npassword=\"hunter2\"\n")
            .expect_err("must not be accepted");
    let shown = format!("{error:?}");
    assert!(shown.contains("password_env"), "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn writing_is_allowed_by_the_owner_alone() {
    assert_eq!(with_file("agent_id = \"a\"").expect("valid").writes, None);
    let config = with_file(
        r#"
[[target]]
name = "direct"
address = "db:3306"
user = "probe"
[writes]
schema = "gapscope"
ledger_from = ["direct"]
shared = true
"#,
    )
    .expect("valid");
    let writes = config.writes.expect("allowed");
    assert_eq!((writes.schema.as_str(), writes.shared), ("gapscope", true));
    assert_eq!(writes.ledger_from.len(), 1);
    check_error(
        "[writes]\nschema = \"gapscope\"\nledger_from = [\"nowhere\"]\n",
        &["`nowhere`", "not configured"],
    );
    check_error("[writes]\nschema = \"mysql\"\n", &["never allowed"]);
    let flags = Flags {
        ledger_from: vec!["direct".into()],
        ..Flags::default()
    };
    let error = resolve(&flags, &Fake::default()).expect_err("no schema");
    assert!(error.message.contains("without a schema"), "{error:?}");
}

#[test]
fn flags_give_targets() {
    let mut fake = Fake::default();
    fake.env.insert("GAPSCOPE_PASSWORD_PROXY_1", "one");
    let flags = Flags {
        targets: vec!["proxy-1=probe@127.0.0.1:6033/shop".into()],
        identity: Some("@@port".into()),
        ..Flags::default()
    };
    let config = resolve(&flags, &fake).expect("valid");
    let target = &config.targets[0];
    assert_eq!(target.address(), "127.0.0.1:6033");
    assert_eq!(target.database.as_deref(), Some("shop"));
    assert_eq!(target.identity.as_deref(), Some("@@port"));
    assert_eq!(target.password, Secret::new("one"));
    for bad in ["x", "x=h:1", "x=u@h", "x=u:pw@h:1", "=u@h:1"] {
        let flags = Flags {
            targets: vec![bad.into()],
            ..Flags::default()
        };
        let error = resolve(&flags, &fake).expect_err(bad);
        assert!(!format!("{error:?}").contains("pw@"), "{error:?}");
    }
}

#[test]
fn how_a_target_is_reached_stands_beside_it() {
    let parse = |keys: &str| {
        let text = format!("[[target]]\nname = \"t\"\naddress = \"h:1\"\nuser = \"u\"\n{keys}\n");
        with_file(text.leak()).map(|config| (config.targets[0].reach.clone(), config.control))
    };
    let (reach, control) = parse("").expect("fine");
    assert_eq!((reach, control), (crate::reach::Reach::default(), None));
    let (reach, _) =
        parse("tls = \"required\"\nfollow_dns = true\nmax_sockets = 7\nbreaker = false")
            .expect("fine");
    assert_eq!(reach.tls.mode().as_str(), "required");
    assert!(reach.follow_dns && !reach.breaker && reach.max_sockets == 7);
    for (text, address) in [("10.0.0.53", "10.0.0.53:53"), ("[::1]:5353", "[::1]:5353")] {
        let (reach, _) = parse(&format!("name_server = \"{text}\"")).expect("fine");
        assert_eq!(reach.name_server, address.parse().ok());
    }
    for (keys, why) in [
        (
            "tls = \"verify\"",
            "agent.toml:5: key `tls`: `verify` is no TLS mode",
        ),
        ("tls_ca = \"ca.pem\"", "cannot read `c/ca.pem`"),
        ("max_sockets = 0", "would never connect"),
        (
            "name_server = \"ns.example\"",
            "agent.toml:5: key `name_server`: `ns.example` is no address",
        ),
    ] {
        let error = parse(keys).expect_err("refused").message;
        assert!(error.contains(why), "{error}");
    }
}

/// A configuration with every section.
const FULL: &str = r#"agent_id = "east-1"
aggregator = "https://10.0.0.9:7350"
data = "d"
control = "direct"
token_file = "east-1.token"
[tls]
ca = "ca.pem"
cert = "a.pem"
key = "a.key"
[spool]
max_bytes = 2097152
when_full = "newest"
sync = "20ms"
[[target]]
name = "haproxy"
address = "db.example:6033"
user = "probe"
password_env = "PW"
[[target]]
name = "direct"
address = "[::1]:3306"
user = "probe"
password_file = "pw"
"#;

proptest! {
    /// Lines that are gone, twice, elsewhere or garbled: a configuration, or an error
    /// with a message; never a panic, never a password in it.
    #[test]
    fn any_file_is_a_configuration_or_an_error(
        changes in proptest::collection::vec((0usize..25, 0u8..4, "\\PC{0,20}"), 0..5),
    ) {
        let mut lines: Vec<String> = FULL.lines().map(str::to_owned).collect();
        for (at, how, text) in changes {
            let at = at % lines.len();
            match how {
                0 if lines.len() > 1 => drop(lines.remove(at)),
                1 => lines.insert(at, lines[at].clone()),
                2 => lines.swap(at, 0),
                _ => {
                    let key = lines[at].split('=').next().unwrap_or_default().to_owned();
                    lines[at] = format!("{key}= {text}");
                }
            }
        }
        match with_file(&lines.join("\n")) {
            Ok(config) => {
                let shown = format!("{config:?}");
                prop_assert!(!shown.contains("s3cret"));
            }
            Err(error) => {
                prop_assert!(!error.message.is_empty());
                prop_assert!(!error.message.contains("s3cret"));
            }
        }
    }
}

#[test]
fn the_full_file_is_one() {
    with_file(FULL).unwrap_or_else(|error| panic!("{}", error.message));
}
