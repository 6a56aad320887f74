//! What the kinds of servers have in common and where they differ: users, command
//! lines, and how an administrator ends connections. Pure.

use std::net::IpAddr;
use std::path::Path;

use super::version_in;
use crate::scenario::BackendKind;
use crate::witness::Login;

/// The user of health checks that log in: without a password or any right, since
/// such a check can prove neither.
pub const CHECK_USER: &str = "gapscope_check";
/// Where clients that write do it.
pub const WRITTEN_SCHEMA: &str = "gapscope";
/// The schema of `gapscope-lab overhead`.
const OVERHEAD_SCHEMA: &str = "gapscope_overhead";

/// A kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// MariaDB.
    Mariadb,
    /// MySQL or a fork that keeps its ways.
    Mysql,
    /// TiDB.
    Tidb,
}

impl Dialect {
    /// The kind of a real backend.
    pub const fn of(kind: BackendKind) -> Option<Self> {
        match kind {
            BackendKind::Embedded | BackendKind::External => None,
            BackendKind::Mariadb => Some(Self::Mariadb),
            BackendKind::Mysqld => Some(Self::Mysql),
            BackendKind::Tidb | BackendKind::TidbCluster => Some(Self::Tidb),
        }
    }

    /// Its name, for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mariadb => "MariaDB",
            Self::Mysql => "MySQL",
            Self::Tidb => "TiDB",
        }
    }

    /// The names of its program, the first being that of `--program`.
    pub const fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Mariadb => &["mariadbd", "mysqld"],
            Self::Mysql => &["mysqld"],
            Self::Tidb => &["tidb-server"],
        }
    }

    /// How to get it.
    pub const fn packages(self) -> &'static str {
        match self {
            Self::Mariadb => {
                "apt install mariadb-server, dnf install mariadb-server, apk add mariadb \
                 mariadb-server-utils, brew install mariadb"
            }
            Self::Mysql => "apt install mysql-server, dnf install mysql-server",
            Self::Tidb => "it comes with TiUP, or is built from its sources by go",
        }
    }

    /// What makes it say its version.
    pub const fn version_flag(self) -> &'static str {
        match self {
            Self::Tidb => "-V",
            _ => "--version",
        }
    }

    /// Its version, from what it says; an error if it is another kind of server.
    pub fn version(self, said: &str) -> Result<String, String> {
        let is_it = match self {
            Self::Mariadb => said.contains("MariaDB"),
            Self::Mysql => !said.contains("MariaDB") && said.contains("Ver "),
            Self::Tidb => said.contains("Release Version"),
        };
        if !is_it {
            let line = said.lines().next().unwrap_or_default();
            return Err(format!("it is not {}: it says `{line}`", self.name()));
        }
        let rest = said
            .split_once(if self == Self::Tidb {
                "Release Version"
            } else {
                "Ver "
            })
            .map_or(said, |(_, rest)| rest);
        Ok(version_in(rest)
            .or_else(|| rest.split_whitespace().next().map(str::to_owned))
            .unwrap_or_default())
    }

    /// How a password is set: by the method that every client and proxy knows, where
    /// the server still has it.
    fn identified(self, version: &str, password: &str) -> String {
        let major: u32 = version
            .split('.')
            .next()
            .and_then(|number| number.parse().ok())
            .unwrap_or(0);
        match self {
            Self::Mysql if major < 9 => {
                format!("IDENTIFIED WITH mysql_native_password BY '{password}'")
            }
            _ => format!("IDENTIFIED BY '{password}'"),
        }
    }

    /// The user whom probes log in as may do nothing but log in from `from`, keep a
    /// table of its own for benchmarks, and do what it likes in a schema for clients
    /// that write, at this server, whose data is worth nothing.
    pub fn users(self, version: &str, login: &Login, admin: &Login, from: &str) -> Vec<String> {
        let by = |login: &Login| self.identified(version, &login.password);
        vec![
            format!(
                "CREATE USER IF NOT EXISTS '{}'@'{from}' {}",
                admin.user,
                by(admin)
            ),
            format!("GRANT ALL PRIVILEGES ON *.* TO '{}'@'{from}'", admin.user),
            format!(
                "CREATE USER IF NOT EXISTS '{}'@'{from}' {}",
                login.user,
                by(login)
            ),
            format!("CREATE DATABASE IF NOT EXISTS {WRITTEN_SCHEMA}"),
            format!(
                "GRANT ALL PRIVILEGES ON {WRITTEN_SCHEMA}.* TO '{}'@'{from}'",
                login.user
            ),
            format!("CREATE DATABASE IF NOT EXISTS {OVERHEAD_SCHEMA}"),
            format!(
                "GRANT SELECT, INSERT, CREATE, DROP ON {OVERHEAD_SCHEMA}.* TO '{}'@'{from}'",
                login.user
            ),
            format!("CREATE USER IF NOT EXISTS '{CHECK_USER}'@'{from}'"),
        ]
    }

    /// Whether it reads its users from a file at each start; else they are made by
    /// statements, after each start that may have forgotten them.
    pub const fn has_init_file(self) -> bool {
        !matches!(self, Self::Tidb)
    }

    /// How an administrator ends all connections of `user`, if one statement does.
    pub fn kill_user(self, user: &str) -> Option<String> {
        matches!(self, Self::Mariadb).then(|| format!("KILL USER '{user}'"))
    }

    /// The connections of `user`, where each has to be ended by itself.
    pub fn connections_of(user: &str) -> String {
        format!("SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{user}'")
    }

    /// Its arguments.
    pub fn args(self, version: &str, at: &Launch<'_>) -> Vec<String> {
        match self {
            Self::Mariadb | Self::Mysql => self.args_of_mysql(version, at),
            Self::Tidb => args_of_tidb(at),
        }
    }

    fn args_of_mysql(self, version: &str, at: &Launch<'_>) -> Vec<String> {
        let path =
            |option: &str, file: &str| format!("--{option}={}", at.place.join(file).display());
        let mut args = vec![
            "--no-defaults".to_owned(),
            path("datadir", "data"),
            path("tmpdir", ""),
            path("pid-file", "pid"),
            path("init-file", "init.sql"),
            // Unix sockets' paths are limited to some hundred bytes.
            path("socket", "s"),
            format!("--port={}", at.port),
            format!("--bind-address={}", at.ip),
            format!("--server-id={}", at.server_id),
            "--skip-name-resolve".to_owned(),
            // Nobody is ever blocked for handshakes left unfinished.
            "--host-cache-size=0".to_owned(),
            "--max-connect-errors=4294967295".to_owned(),
            "--max-connections=2000".to_owned(),
            "--innodb-buffer-pool-size=16M".to_owned(),
            // Durable: with 0 a killed server forgets up to a second of acknowledged
            // commits, which the write ledger shows.
            "--innodb-flush-log-at-trx-commit=1".to_owned(),
            "--skip-log-bin".to_owned(),
        ];
        if self == Self::Mariadb {
            args.push("--skip-slave-start".to_owned());
            args.push("--innodb-log-file-size=8M".to_owned());
            args.push("--performance-schema=OFF".to_owned());
        } else {
            // Its second protocol wants a port of its own.
            args.push("--mysqlx=OFF".to_owned());
            // From 8.4 on the method that all proxies know has to be asked for.
            if version.starts_with("8.4.") {
                args.push("--mysql-native-password=ON".to_owned());
            }
        }
        if let Some(base) = at.base {
            args.push(format!("--basedir={}", base.display()));
        }
        args
    }
}

/// Where a server is started.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'a> {
    /// Its folder.
    pub place: &'a Path,
    /// Where it listens.
    pub ip: IpAddr,
    /// And on which port.
    pub port: u16,
    /// A second port, for kinds of servers that want one.
    pub status_port: u16,
    /// Its number.
    pub server_id: u32,
    /// Where it was unpacked, if not installed.
    pub base: Option<&'a Path>,
}

fn args_of_tidb(at: &Launch<'_>) -> Vec<String> {
    let path = |file: &str| at.place.join(file).display().to_string();
    vec![
        // Its storage is inside it, and forgotten when it ends.
        "--store=unistore".to_owned(),
        format!("--path={}", path("data")),
        format!("--host={}", at.ip),
        format!("-P={}", at.port),
        format!("--advertise-address={}", at.ip),
        format!("--status-host={}", at.ip),
        format!("--status={}", at.status_port),
        format!("--socket={}", path("s")),
        format!("--temp-dir={}", path("tmp")),
        "-L=warn".to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(user: &str) -> Login {
        Login {
            user: user.to_owned(),
            password: "secret".to_owned(),
        }
    }

    fn launch(dialect: Dialect, version: &str) -> String {
        let at = Launch {
            place: Path::new("/lab"),
            ip: IpAddr::from([127, 0, 0, 1]),
            port: 4001,
            status_port: 10081,
            server_id: 2,
            base: None,
        };
        dialect.args(version, &at).join("\n")
    }

    #[test]
    fn a_program_that_is_another_is_told() {
        let maria = "mariadbd  Ver 10.11.14-MariaDB-0+deb12u2 for debian-linux-gnu on x86_64";
        let mysql =
            "/usr/sbin/mysqld  Ver 8.4.6 for Linux on x86_64 (MySQL Community Server - GPL)";
        let tidb = "Release Version: v8.5.4\nEdition: Community\nGit Commit Hash: None\n";
        assert_eq!(
            Dialect::Mariadb.version(maria).as_deref(),
            Ok("10.11.14-MariaDB-0+d")
        );
        assert_eq!(Dialect::Mysql.version(mysql).as_deref(), Ok("8.4.6"));
        assert_eq!(Dialect::Tidb.version(tidb).as_deref(), Ok("8.5.4"));
        for (dialect, said) in [
            (Dialect::Mysql, maria),
            (Dialect::Mariadb, mysql),
            (Dialect::Tidb, mysql),
        ] {
            assert!(dialect.version(said).is_err(), "{dialect:?} {said}");
        }
    }

    #[test]
    fn users_are_made_in_each_server_s_way() {
        let users = |dialect: Dialect, version: &str| {
            dialect
                .users(version, &login("probe"), &login("admin"), "%")
                .join("\n")
        };
        assert!(users(Dialect::Mariadb, "10.11").contains("'probe'@'%' IDENTIFIED BY 'secret'"));
        assert!(
            users(Dialect::Mysql, "8.4.6")
                .contains("'probe'@'%' IDENTIFIED WITH mysql_native_password BY 'secret'")
        );
        assert!(users(Dialect::Mysql, "9.1.0").contains("'probe'@'%' IDENTIFIED BY 'secret'"));
    }

    #[test]
    fn a_mysql_server_is_started() {
        insta::assert_snapshot!(launch(Dialect::Mysql, "8.4.6"), @r"
        --no-defaults
        --datadir=/lab/data
        --tmpdir=/lab/
        --pid-file=/lab/pid
        --init-file=/lab/init.sql
        --socket=/lab/s
        --port=4001
        --bind-address=127.0.0.1
        --server-id=2
        --skip-name-resolve
        --host-cache-size=0
        --max-connect-errors=4294967295
        --max-connections=2000
        --innodb-buffer-pool-size=16M
        --innodb-flush-log-at-trx-commit=1
        --skip-log-bin
        --mysqlx=OFF
        --mysql-native-password=ON
        ");
    }

    #[test]
    fn a_tidb_server_is_started() {
        insta::assert_snapshot!(launch(Dialect::Tidb, "8.5.4"), @r"
        --store=unistore
        --path=/lab/data
        --host=127.0.0.1
        -P=4001
        --advertise-address=127.0.0.1
        --status-host=127.0.0.1
        --status=10081
        --socket=/lab/s
        --temp-dir=/lab/tmp
        -L=warn
        ");
    }
}
