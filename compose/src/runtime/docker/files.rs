//! What a composition is made of: the compose file, the configurations that its
//! containers read, and where everything is in its network.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Problem, Result};
use crate::leftovers::Owner;
use crate::runtime::admin::Place;
use crate::runtime::process::sql::Dialect;
use crate::runtime::process::{haproxy, proxysql, tiproxy};
use crate::scenario::{BackendKind, ProxyKind};
use crate::witness::Login;

/// The compose file.
pub const COMPOSE: &str = include_str!("../../../docker/compose.yaml");
/// What TiDB servers of the cluster are told.
pub const TIDB_CLUSTER: &str = include_str!("../../../docker/config/tidb-cluster.toml");

/// Where servers listen.
pub const SQL_PORT: u16 = 4000;
const HAPROXY_ADMIN: u16 = 9999;
const PROXYSQL_ADMIN: u16 = 6032;
const TIPROXY_ADMIN: u16 = 3080;
const PD: u8 = 21;

/// A service of the compose file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Service {
    /// Its name there.
    pub name: &'static str,
    /// The last part of its address.
    pub host: u8,
    /// Where it serves clients.
    pub port: u16,
    /// The variable that names another image.
    pub variable: &'static str,
    /// Its image.
    pub image: &'static str,
}

const fn service(
    name: &'static str,
    host: u8,
    port: u16,
    variable: &'static str,
    image: &'static str,
) -> Service {
    Service {
        name,
        host,
        port,
        variable,
        image,
    }
}

const TIDB: (&str, &str) = ("GAPSCOPE_IMAGE_TIDB", "pingcap/tidb:v8.5.4");
const MARIADB: (&str, &str) = ("GAPSCOPE_IMAGE_MARIADB", "mariadb:11.4");
const TIPROXY: (&str, &str) = ("GAPSCOPE_IMAGE_TIPROXY", "pingcap/tiproxy:v1.3.0");

const TIDBS: [Service; 2] = [
    service("tidb-1", 11, SQL_PORT, TIDB.0, TIDB.1),
    service("tidb-2", 12, SQL_PORT, TIDB.0, TIDB.1),
];
const MARIADBS: [Service; 2] = [
    service("mariadb-1", 13, SQL_PORT, MARIADB.0, MARIADB.1),
    service("mariadb-2", 14, SQL_PORT, MARIADB.0, MARIADB.1),
];
const CLUSTER: [Service; 2] = [
    service("tidb-cluster-1", 23, SQL_PORT, TIDB.0, TIDB.1),
    service("tidb-cluster-2", 24, SQL_PORT, TIDB.0, TIDB.1),
];
/// What the cluster's servers need beside them.
const BESIDES: [Service; 2] = [
    service("pd", PD, 2379, "GAPSCOPE_IMAGE_PD", "pingcap/pd:v8.5.4"),
    service(
        "tikv",
        22,
        20160,
        "GAPSCOPE_IMAGE_TIKV",
        "pingcap/tikv:v8.5.4",
    ),
];

/// The servers of a kind, in the order of the scenario's backends.
pub fn servers(kind: BackendKind) -> &'static [Service] {
    match kind {
        BackendKind::Mariadb => &MARIADBS,
        BackendKind::TidbCluster => &CLUSTER,
        _ => &TIDBS,
    }
}

/// What a kind of servers needs beside them.
pub fn besides(kind: BackendKind) -> &'static [Service] {
    if kind == BackendKind::TidbCluster {
        &BESIDES
    } else {
        &[]
    }
}

/// A proxy's service; none if there is none for its kind.
pub fn proxy(kind: ProxyKind, backend: BackendKind) -> Option<Service> {
    match kind {
        ProxyKind::Haproxy
        | ProxyKind::HaproxyMysqlCheck
        | ProxyKind::HaproxyMysqlCheckShutdown => Some(service(
            "haproxy",
            31,
            6001,
            "GAPSCOPE_IMAGE_HAPROXY",
            "haproxy:2.9",
        )),
        ProxyKind::Proxysql => Some(service(
            "proxysql",
            32,
            6002,
            "GAPSCOPE_IMAGE_PROXYSQL",
            "proxysql/proxysql:2.7.1",
        )),
        ProxyKind::Tiproxy if backend == BackendKind::TidbCluster => {
            Some(service("tiproxy-cluster", 34, 6000, TIPROXY.0, TIPROXY.1))
        }
        ProxyKind::Tiproxy => Some(service("tiproxy", 33, 6000, TIPROXY.0, TIPROXY.1)),
        _ => None,
    }
}

impl Service {
    /// The image it is made of here.
    pub fn image_here(&self) -> String {
        std::env::var(self.variable)
            .ok()
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| self.image.to_owned())
    }
}

/// A composition's name, files and variables.
#[derive(Debug, Clone)]
pub struct Project {
    /// What the engine calls it.
    pub name: String,
    /// Its compose file.
    pub file: PathBuf,
    /// What the file's variables are.
    pub environment: Vec<(String, String)>,
    /// The network, without the last part: `10.198.33`.
    pub net: [u8; 3],
    config: PathBuf,
}

impl Project {
    /// Writes the compose file into the lab's folder.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn make(owner: &Owner, net: [u8; 3]) -> Result<Self> {
        let folder = owner.folder.join("docker");
        let config = folder.join("config");
        let file = folder.join("compose.yaml");
        fs::create_dir_all(&config)
            .and_then(|()| fs::write(&file, COMPOSE))
            .map_err(|error| Problem::new(format!("cannot write {}: {error}", folder.display())))?;
        let [a, b, c] = net;
        Ok(Self {
            // Names of projects know no capital letters.
            name: format!("gapscope-{}-{}", owner.pid, owner.name().to_lowercase()),
            file,
            environment: vec![
                ("GAPSCOPE_OWNER".to_owned(), owner.to_string()),
                ("GAPSCOPE_NET".to_owned(), format!("{a}.{b}.{c}")),
                (
                    "GAPSCOPE_CONFIG".to_owned(),
                    config.to_string_lossy().into_owned(),
                ),
            ],
            net,
            config,
        })
    }

    /// Where a host of its network is.
    pub fn at(&self, host: u8, port: u16) -> SocketAddr {
        let [a, b, c] = self.net;
        SocketAddr::from((Ipv4Addr::new(a, b, c, host), port))
    }

    /// Writes a file that a container reads. Its user has another number in there,
    /// so that everybody may read it; nobody else gets into the folder.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.config.join(name);
        fs::write(&path, text)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o644)))
            .map_err(|error| Problem::new(format!("cannot write {}: {error}", path.display())))
    }

    /// Where such a file is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.config.join(name)
    }
}

/// Makes the users of the servers.
pub fn init_sql(kind: BackendKind, login: &Login, admin: &Login) -> String {
    let dialect = Dialect::of(kind).unwrap_or(Dialect::Tidb);
    let users = dialect.users("", login, admin, "%");
    format!("{};\n", users.join(";\n"))
}

const fn anywhere(port: u16) -> SocketAddr {
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)
}

/// The file of a proxy, and its name; `pd` is where the cluster's PD is.
pub fn of_proxy(
    kind: ProxyKind,
    service: Service,
    backends: &[(String, SocketAddr)],
    (login, admin): (&Login, &Login),
    pd: SocketAddr,
) -> (&'static str, String) {
    let listen = anywhere(service.port);
    match kind {
        ProxyKind::Proxysql => (
            "proxysql.cnf",
            proxysql::config(
                listen,
                anywhere(PROXYSQL_ADMIN),
                admin,
                "/var/lib/proxysql",
                backends,
                login,
            ),
        ),
        ProxyKind::Tiproxy if service.name == "tiproxy-cluster" => (
            "tiproxy-cluster.toml",
            tiproxy::config(listen, anywhere(TIPROXY_ADMIN), "/tmp", &pd.to_string()),
        ),
        ProxyKind::Tiproxy => (
            "tiproxy.toml",
            tiproxy::config(listen, anywhere(TIPROXY_ADMIN), "/tmp", ""),
        ),
        kind => (
            "haproxy.cfg",
            haproxy::config(
                kind,
                listen,
                backends,
                Some(&Place::Port(anywhere(HAPROXY_ADMIN))),
            ),
        ),
    }
}

/// The port of a proxy's admin interface.
pub const fn admin_port(kind: ProxyKind) -> u16 {
    match kind {
        ProxyKind::Proxysql => PROXYSQL_ADMIN,
        ProxyKind::Tiproxy => TIPROXY_ADMIN,
        _ => HAPROXY_ADMIN,
    }
}

/// Where PD is.
pub fn pd(project: &Project) -> SocketAddr {
    project.at(PD, 2379)
}

/// A key and a certificate with which the cluster's servers sign sessions that they
/// hand over, made by `openssl`.
///
/// # Errors
/// When there is no such program, or it fails.
pub fn session_certificate(project: &Project, openssl: &Path) -> Result<()> {
    let failed = |why: String| {
        Problem::new(format!(
            "the cluster's servers need a certificate to hand sessions over, and openssl did not \
             make one: {why}"
        ))
    };
    let (key, certificate) = (project.path("session.key"), project.path("session.pem"));
    let output = std::process::Command::new(openssl)
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        ])
        .args(["-subj", "/CN=gapscope-lab"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        ));
    }
    for path in [&key, &certificate] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o644))
            .map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_service() -> Vec<Service> {
        let mut all = Vec::new();
        for kind in [
            BackendKind::Tidb,
            BackendKind::Mariadb,
            BackendKind::TidbCluster,
        ] {
            all.extend_from_slice(servers(kind));
            all.extend_from_slice(besides(kind));
            for proxies in [ProxyKind::Haproxy, ProxyKind::Proxysql, ProxyKind::Tiproxy] {
                all.extend(proxy(proxies, kind));
            }
        }
        all
    }

    #[test]
    fn the_compose_file_has_every_service_where_it_is_looked_for() {
        for service in every_service() {
            let begin = COMPOSE
                .find(&format!("\n  {}:\n", service.name))
                .unwrap_or_else(|| panic!("no service {}", service.name));
            let rest = &COMPOSE[begin + 1..];
            let end = rest[3..].find("\n\n  ").map_or(rest.len(), |at| at + 3);
            let text = &rest[..end];
            let image = format!("image: ${{{}:-{}}}", service.variable, service.image);
            assert!(text.contains(&image), "{} {image}\n{text}", service.name);
            let address = format!(
                "ipv4_address: ${{GAPSCOPE_NET:-10.198.33}}.{}\n",
                service.host
            );
            assert!(format!("{text}\n").contains(&address), "{text}");
        }
    }

    #[test]
    fn nothing_is_published_beyond_this_host() {
        assert!(!COMPOSE.contains("\n    ports:"));
        let ports = include_str!("../../../docker/compose.ports.yaml");
        let published: Vec<&str> = ports.split('"').skip(1).step_by(2).collect();
        assert_eq!(published.len(), 5);
        assert!(published.iter().all(|port| port.starts_with("127.0.0.1:")));
    }

    fn project() -> Project {
        Project {
            name: "x".to_owned(),
            file: PathBuf::new(),
            environment: Vec::new(),
            net: [10, 198, 33],
            config: PathBuf::new(),
        }
    }

    /// The scripts use files beside the compose file, in which the password is put
    /// at the start. They say what the lab's own would.
    #[test]
    fn the_scripts_configurations_are_the_lab_s() {
        let project = project();
        let login = |user: &str| Login {
            user: user.to_owned(),
            password: "@PASSWORD@".to_owned(),
        };
        let (probe, admin) = (login("gapscope"), login("gapscope_admin"));
        let backends = |kind| -> Vec<(String, SocketAddr)> {
            servers(kind)
                .iter()
                .map(|s| (s.name.to_owned(), project.at(s.host, s.port)))
                .collect()
        };
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docker/config");
        let mut files = vec![("init.sql", init_sql(BackendKind::Tidb, &probe, &admin))];
        for (kind, backend) in [
            (ProxyKind::Haproxy, BackendKind::Tidb),
            (ProxyKind::Proxysql, BackendKind::Tidb),
            (ProxyKind::Tiproxy, BackendKind::Tidb),
            (ProxyKind::Tiproxy, BackendKind::TidbCluster),
        ] {
            let service = proxy(kind, backend).expect("there is one");
            files.push(of_proxy(
                kind,
                service,
                &backends(backend),
                (&probe, &admin),
                pd(&project),
            ));
        }
        for (name, text) in files {
            let path = folder.join(name);
            if std::env::var_os("GAPSCOPE_UPDATE_DOCKER").is_some() {
                fs::write(&path, &text).expect("written");
            }
            let there = fs::read_to_string(&path).expect("the file is there");
            assert_eq!(
                there, text,
                "{name}: GAPSCOPE_UPDATE_DOCKER=1 writes it anew"
            );
        }
    }
}
