//! Error packets: who speaks, and what it means. Pure.
//!
//! A number alone does not say it: 9001 to 9006 are ProxySQL's and, with other
//! meanings, TiDB's; 1045 is a server's "access denied" and was an old ProxySQL's
//! "no backend in time"; 1290 is "read only" and half a dozen other options. So a
//! row may hold words of the text that have to be there ([`Code::marker`]). Rows
//! with words come first, then the ones that go by number alone; what no row
//! knows is `other_server` of an unknown speaker.
//!
//! What it cannot know: whether a server or a proxy that passes on the server's
//! packet has spoken, where the text is the server's. Such a packet counts as the
//! server's.

use std::fmt;

use gapscope_proto::sample::Cause;

/// Whose words an error packet holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Speaker {
    /// MySQL, MariaDB or TiDB, itself or passed on.
    Server,
    /// MariaDB alone has this.
    MariaDb,
    /// MySQL alone has this.
    MySql,
    /// TiDB alone has this.
    TiDb,
    /// MariaDB or MySQL with Galera.
    Galera,
    /// ProxySQL.
    ProxySql,
    /// TiProxy.
    TiProxy,
    /// MariaDB MaxScale.
    MaxScale,
    /// MySQL Router.
    MySqlRouter,
    /// mysql-proxy and its descendants.
    MysqlProxy,
    /// A proxy, by numbers that are a client library's own and no server sends.
    SomeProxy,
    /// Nobody that is known here.
    Unknown,
}

impl Speaker {
    /// For people.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::MariaDb => "MariaDB",
            Self::MySql => "MySQL",
            Self::TiDb => "TiDB",
            Self::Galera => "Galera",
            Self::ProxySql => "ProxySQL",
            Self::TiProxy => "TiProxy",
            Self::MaxScale => "MaxScale",
            Self::MySqlRouter => "MySQL Router",
            Self::MysqlProxy => "mysql-proxy",
            Self::SomeProxy => "a proxy",
            Self::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Speaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One row of the table of error packets.
#[derive(Debug, Clone, Copy)]
pub struct Code {
    /// Whose it is.
    pub speaker: Speaker,
    /// The error number; [`ANY`] where the words alone tell.
    pub number: u16,
    /// As documented or read in the source; empty where it was not confirmed.
    pub sqlstate: &'static str,
    /// Words that the text must hold, in lower case; empty: the number suffices.
    pub marker: &'static str,
    /// What it is called here.
    pub cause: Cause,
    /// The packet is no answer to the statement: its effect is unknown.
    pub unknown_effect: bool,
    /// The error's own name or meaning.
    pub name: &'static str,
    /// Where it is documented.
    pub source: Source,
    /// What produced it in a test of this project; empty: could not be made here.
    pub made_by: &'static str,
}

/// Any number.
pub const ANY: u16 = 0;

/// Where a row was looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// MySQL error reference.
    MySqlReference,
    /// MariaDB error code reference.
    MariaDbReference,
    /// Both.
    Both,
    /// A file of the program's source, or its documentation.
    Program(&'static str),
}

impl Source {
    /// For the table.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::MySqlReference => "MySQL error reference",
            Self::MariaDbReference => "MariaDB error codes",
            Self::Both => "MySQL and MariaDB references",
            Self::Program(text) => text,
        }
    }
}

/// What an error packet means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meaning {
    /// Who spoke.
    pub speaker: Speaker,
    /// What it is called.
    pub cause: Cause,
    /// It is no answer to the statement.
    pub unknown_effect: bool,
}

/// Reads a packet.
pub fn meaning(number: u16, text: &str) -> Meaning {
    let text = text.to_lowercase();
    let with_words = |row: &&Code| {
        !row.marker.is_empty()
            && (row.number == number || row.number == ANY)
            && text.contains(row.marker)
    };
    let by_number = |row: &&Code| row.marker.is_empty() && row.number == number;
    let row = CODES
        .iter()
        .find(with_words)
        .or_else(|| CODES.iter().find(by_number));
    match row {
        Some(row) => Meaning {
            speaker: row.speaker,
            cause: row.cause,
            unknown_effect: row.unknown_effect,
        },
        None => Meaning {
            speaker: Speaker::Unknown,
            cause: Cause::OtherServer,
            unknown_effect: false,
        },
    }
}

const fn row(
    speaker: Speaker,
    number: u16,
    sqlstate: &'static str,
    marker: &'static str,
    cause: Cause,
    name: &'static str,
    source: Source,
) -> Code {
    Code {
        speaker,
        number,
        sqlstate,
        marker,
        cause,
        unknown_effect: false,
        name,
        source,
        made_by: "",
    }
}

impl Code {
    const fn made(mut self, by: &'static str) -> Self {
        self.made_by = by;
        self
    }

    const fn unknown_effect(mut self) -> Self {
        self.unknown_effect = true;
        self
    }
}

const PROXYSQL: Source = Source::Program("ProxySQL, lib/MySQL_Session.cpp");
const PROXYSQL_NUMBERS: Source = Source::Program("ProxySQL, include/proxysql_structs.h");
const TIPROXY: Source = Source::Program("TiProxy, pkg/proxy/backend/error.go");
const MAXSCALE: Source = Source::Program("MaxScale, server/modules/protocol/MariaDB");
const ROUTER: Source = Source::Program("MySQL Router, routing/src");
const MYSQL_PROXY: Source = Source::Program("mysql-proxy, plugins/proxy/proxy-plugin.c");
const TIDB: Source = Source::Program("TiDB, errors.toml and error code documentation");
const CLIENT: Source = Source::Program("MySQL client error reference");

/// The table. Rows with words first, by speaker.
pub const CODES: &[Code] = {
    use Cause as C;
    use Source::{Both, MariaDbReference, MySqlReference};
    use Speaker as S;
    &[
        // ProxySQL: by its words, since the numbers are TiDB's too.
        row(
            S::ProxySql,
            ANY,
            "HY000",
            "max connect timeout reached while reaching hostgroup",
            C::Proxy,
            "9001 (1045, 28000 before 1.3): no connection to a server of the hostgroup in time",
            PROXYSQL,
        ),
        row(
            S::ProxySql,
            ANY,
            "HY000",
            "max connect failure while reaching hostgroup",
            C::Proxy,
            "9002 (1045, 28000 before 1.3): connecting failed as often as allowed",
            PROXYSQL,
        ),
        row(
            S::ProxySql,
            9003,
            "",
            "command not supported",
            C::Proxy,
            "a command that it does not carry",
            PROXYSQL_NUMBERS,
        ),
        row(
            S::ProxySql,
            9006,
            "Y0000",
            "connection is locked to hostgroup",
            C::Proxy,
            "the session is pinned to one hostgroup and the rules want another",
            PROXYSQL,
        ),
        row(
            S::ProxySql,
            1045,
            "28000",
            "proxysql error: access denied",
            C::Denied,
            "the user is unknown to the proxy, or its password differs",
            PROXYSQL,
        ),
        row(
            S::ProxySql,
            ANY,
            "",
            "proxysql error",
            C::Proxy,
            "another error of its own",
            PROXYSQL,
        ),
        // TiProxy: 1105 with words.
        row(
            S::TiProxy,
            1105,
            "HY000",
            "no available tidb instances",
            C::Proxy,
            "no backend",
            TIPROXY,
        ),
        row(
            S::TiProxy,
            1105,
            "HY000",
            "tiproxy fails to connect to tidb",
            C::Proxy,
            "a backend was chosen and cannot be reached",
            TIPROXY,
        ),
        row(
            S::TiProxy,
            1105,
            "HY000",
            "verify tidb capability failed",
            C::Proxy,
            "a backend lacks a capability",
            TIPROXY,
        ),
        row(
            S::TiProxy,
            1105,
            "HY000",
            "require-backend-tls=true",
            C::Tls,
            "TLS to the backend is required and not to be had",
            TIPROXY,
        ),
        // MaxScale.
        row(
            S::MaxScale,
            1927,
            "08S01",
            "connection killed by maxscale",
            C::Proxy,
            "it closed the session; why stands in the text",
            MAXSCALE,
        )
        .unknown_effect(),
        row(
            S::MaxScale,
            ANY,
            "",
            "lost connection to backend server",
            C::Proxy,
            "it lost the server under the session (number not confirmed)",
            MAXSCALE,
        )
        .unknown_effect(),
        // MySQL Router.
        row(
            S::MySqlRouter,
            2003,
            "HY000",
            "can't connect to remote mysql server for client",
            C::Proxy,
            "no destination can be reached",
            ROUTER,
        ),
        row(
            S::MySqlRouter,
            1040,
            "08004",
            "too many connections to mysql router",
            C::TooManyConnections,
            "its own max_connections",
            ROUTER,
        ),
        row(
            S::MySqlRouter,
            1129,
            "HY000",
            "too many connection errors from",
            C::HostBlocked,
            "its own max_connect_errors",
            ROUTER,
        ),
        // mysql-proxy.
        row(
            S::MysqlProxy,
            ANY,
            "07000",
            "(proxy) all backends are down",
            C::Proxy,
            "1105, or a packet of the time before 4.1",
            MYSQL_PROXY,
        ),
        row(
            S::MysqlProxy,
            1105,
            "07000",
            "(proxy)",
            C::Proxy,
            "another error of its own",
            MYSQL_PROXY,
        ),
        row(
            S::MysqlProxy,
            1105,
            "07000",
            "proxy warning",
            C::Proxy,
            "a descendant's own refusal",
            MYSQL_PROXY,
        ),
        row(
            S::SomeProxy,
            1105,
            "HY000",
            "no backend within",
            C::Proxy,
            "this project's embedded proxies: no backend in time",
            Source::Program("this project, compose/src/embedded"),
        )
        .made("an embedded proxy, every backend stopped"),
        // TiDB: by its words, since the numbers are ProxySQL's too.
        row(
            S::TiDb,
            9001,
            "HY000",
            "pd server timeout",
            C::NotReady,
            "placement driver does not answer",
            TIDB,
        ),
        row(
            S::TiDb,
            9002,
            "HY000",
            "tikv server timeout",
            C::NotReady,
            "storage does not answer",
            TIDB,
        )
        .unknown_effect(),
        row(
            S::TiDb,
            9003,
            "HY000",
            "tikv server is busy",
            C::NotReady,
            "storage refuses for load",
            TIDB,
        ),
        row(
            S::TiDb,
            9004,
            "HY000",
            "resolve lock timeout",
            C::LockWait,
            "a lock of another transaction",
            TIDB,
        ),
        row(
            S::TiDb,
            9005,
            "HY000",
            "region is unavailable",
            C::NotReady,
            "a part of the data has no leader",
            TIDB,
        )
        .unknown_effect(),
        row(
            S::TiDb,
            9006,
            "HY000",
            "gc life time is shorter",
            C::OtherServer,
            "the transaction outlived the garbage collector's limit",
            TIDB,
        ),
        // Galera.
        row(
            S::Galera,
            1047,
            "08S01",
            "wsrep has not yet prepared node",
            C::NotReady,
            "ER_UNKNOWN_COM_ERROR: the node is not in the primary component",
            Source::Program("MariaDB, sql/sql_parse.cc"),
        ),
        // Options that refuse; only some of them are about writing.
        row(
            S::Server,
            1290,
            "HY000",
            "read-only",
            C::ReadOnly,
            "ER_OPTION_PREVENTS_STATEMENT",
            Both,
        )
        .made("MariaDB, SET GLOBAL read_only=1, a CREATE TABLE"),
        row(
            S::Server,
            1290,
            "HY000",
            "read_only",
            C::ReadOnly,
            "ER_OPTION_PREVENTS_STATEMENT",
            Both,
        ),
        row(
            S::Server,
            1226,
            "42000",
            "max_user_connections",
            C::TooManyConnections,
            "ER_USER_LIMIT_REACHED",
            Both,
        )
        .made("MariaDB, WITH MAX_USER_CONNECTIONS 1, a second connection"),
        row(
            S::Server,
            1226,
            "42000",
            "max_connections_per_hour",
            C::TooManyConnections,
            "ER_USER_LIMIT_REACHED",
            Both,
        )
        .made("MariaDB, WITH MAX_CONNECTIONS_PER_HOUR 1, a second connection"),
        // By number alone.
        row(
            S::Server,
            1040,
            "08004",
            "",
            C::TooManyConnections,
            "ER_CON_COUNT_ERROR",
            Both,
        )
        .made("MariaDB, max_connections=10, eleven and more connections"),
        row(
            S::Server,
            1203,
            "42000",
            "",
            C::TooManyConnections,
            "ER_TOO_MANY_USER_CONNECTIONS",
            Both,
        )
        .made("MariaDB, SET GLOBAL max_user_connections = 1, a second connection"),
        row(
            S::Server,
            1045,
            "28000",
            "",
            C::Denied,
            "ER_ACCESS_DENIED_ERROR",
            Both,
        )
        .made("MariaDB, a wrong password"),
        row(
            S::Server,
            1044,
            "42000",
            "",
            C::Denied,
            "ER_DBACCESS_DENIED_ERROR",
            Both,
        )
        .made("MariaDB, a database that the user may not use"),
        row(
            S::Server,
            1698,
            "28000",
            "",
            C::Denied,
            "ER_ACCESS_DENIED_NO_PASSWORD_ERROR",
            Both,
        )
        .made("MariaDB, an account by unix_socket, over TCP"),
        row(
            S::Server,
            1142,
            "42000",
            "",
            C::Denied,
            "ER_TABLEACCESS_DENIED_ERROR",
            Both,
        ),
        row(
            S::Server,
            1143,
            "42000",
            "",
            C::Denied,
            "ER_COLUMNACCESS_DENIED_ERROR",
            Both,
        )
        .made("MariaDB, a column that the user may not read"),
        row(
            S::Server,
            1227,
            "42000",
            "",
            C::Denied,
            "ER_SPECIFIC_ACCESS_DENIED_ERROR",
            Both,
        )
        .made("MariaDB, SET GLOBAL by a user without SUPER"),
        row(
            S::Server,
            1820,
            "HY000",
            "",
            C::Denied,
            "ER_MUST_CHANGE_PASSWORD",
            Both,
        )
        .made("MariaDB, PASSWORD EXPIRE with disconnect_on_expired_password=OFF"),
        row(
            S::Server,
            1862,
            "HY000",
            "",
            C::Denied,
            "ER_MUST_CHANGE_PASSWORD_LOGIN",
            Both,
        )
        .made("MariaDB, PASSWORD EXPIRE with disconnect_on_expired_password=ON"),
        row(
            S::MySql,
            3118,
            "HY000",
            "",
            C::Denied,
            "ER_ACCOUNT_HAS_BEEN_LOCKED",
            MySqlReference,
        ),
        row(
            S::MariaDb,
            4151,
            "HY000",
            "",
            C::Denied,
            "ER_ACCOUNT_HAS_BEEN_LOCKED",
            MariaDbReference,
        )
        .made("MariaDB, ALTER USER ... ACCOUNT LOCK"),
        row(
            S::MySql,
            3879,
            "HY000",
            "",
            C::Denied,
            "ER_ACCESS_DENIED_FOR_USER_ACCOUNT_WITH_MFA",
            MySqlReference,
        ),
        row(
            S::MySql,
            3955,
            "HY000",
            "",
            C::Denied,
            "ER_USER_ACCESS_DENIED_FOR_USER_ACCOUNT_BLOCKED_BY_PASSWORD_LOCK",
            MySqlReference,
        ),
        row(
            S::MySql,
            3159,
            "HY000",
            "",
            C::Tls,
            "ER_SECURE_TRANSPORT_REQUIRED",
            MySqlReference,
        ),
        row(
            S::Server,
            1129,
            "HY000",
            "",
            C::HostBlocked,
            "ER_HOST_IS_BLOCKED",
            Both,
        )
        .made("MariaDB, max_connect_errors=1, two broken-off logins"),
        row(
            S::Server,
            1130,
            "HY000",
            "",
            C::HostBlocked,
            "ER_HOST_NOT_PRIVILEGED",
            Both,
        )
        .made("MariaDB, no account for 127.0.0.2"),
        row(
            S::Server,
            1053,
            "08S01",
            "",
            C::ShuttingDown,
            "ER_SERVER_SHUTDOWN",
            Both,
        ),
        row(
            S::Server,
            1077,
            "HY000",
            "",
            C::ShuttingDown,
            "ER_NORMAL_SHUTDOWN",
            Both,
        ),
        row(
            S::Server,
            1079,
            "HY000",
            "",
            C::ShuttingDown,
            "ER_SHUTDOWN_COMPLETE",
            Both,
        ),
        row(
            S::MySql,
            3032,
            "HY000",
            "",
            C::NotReady,
            "ER_SERVER_OFFLINE_MODE",
            MySqlReference,
        ),
        row(
            S::Server,
            1317,
            "70100",
            "",
            C::Killed,
            "ER_QUERY_INTERRUPTED",
            Both,
        )
        .made("MariaDB, KILL QUERY while the statement runs"),
        row(
            S::MariaDb,
            1927,
            "70100",
            "",
            C::Killed,
            "ER_CONNECTION_KILLED",
            MariaDbReference,
        ),
        row(
            S::MySql,
            3169,
            "HY000",
            "",
            C::Killed,
            "ER_SESSION_WAS_KILLED",
            MySqlReference,
        ),
        row(
            S::MariaDb,
            1969,
            "70100",
            "",
            C::StatementTimeout,
            "ER_STATEMENT_TIMEOUT",
            MariaDbReference,
        )
        .made("MariaDB, SET STATEMENT max_statement_time"),
        row(
            S::MySql,
            3024,
            "HY000",
            "",
            C::StatementTimeout,
            "ER_QUERY_TIMEOUT",
            MySqlReference,
        ),
        row(
            S::MySql,
            4031,
            "HY000",
            "",
            C::IdleTimeout,
            "ER_CLIENT_INTERACTION_TIMEOUT (8.0.24 and later)",
            MySqlReference,
        ),
        row(
            S::Server,
            1792,
            "25006",
            "",
            C::ReadOnly,
            "ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION",
            Both,
        )
        .made("MariaDB, START TRANSACTION READ ONLY, an INSERT"),
        row(
            S::Server,
            1836,
            "HY000",
            "",
            C::ReadOnly,
            "ER_READ_ONLY_MODE",
            Both,
        ),
        row(
            S::Server,
            1243,
            "HY000",
            "",
            C::UnknownStatement,
            "ER_UNKNOWN_STMT_HANDLER",
            Both,
        )
        .made("MariaDB, EXECUTE of a name that was not prepared"),
        row(
            S::Server,
            1615,
            "HY000",
            "",
            C::MustReprepare,
            "ER_NEED_REPREPARE",
            Both,
        ),
        row(
            S::Server,
            1205,
            "HY000",
            "",
            C::LockWait,
            "ER_LOCK_WAIT_TIMEOUT",
            Both,
        )
        .made("MariaDB, SELECT ... FOR UPDATE NOWAIT of a row that another session holds"),
        row(
            S::Server,
            1213,
            "40001",
            "",
            C::LockWait,
            "ER_LOCK_DEADLOCK",
            Both,
        )
        .made("MariaDB, two transactions that wait for each other's row"),
        row(
            S::MySql,
            3572,
            "HY000",
            "",
            C::LockWait,
            "ER_LOCK_NOWAIT",
            MySqlReference,
        ),
        row(
            S::Server,
            1152,
            "08S01",
            "",
            C::GoneAway,
            "ER_ABORTING_CONNECTION",
            Both,
        )
        .unknown_effect(),
        row(
            S::Server,
            1158,
            "08S01",
            "",
            C::GoneAway,
            "ER_NET_READ_ERROR",
            Both,
        )
        .unknown_effect(),
        row(
            S::Server,
            1159,
            "08S01",
            "",
            C::GoneAway,
            "ER_NET_READ_INTERRUPTED",
            Both,
        )
        .unknown_effect(),
        row(
            S::Server,
            1160,
            "08S01",
            "",
            C::GoneAway,
            "ER_NET_ERROR_ON_WRITE",
            Both,
        )
        .unknown_effect(),
        row(
            S::Server,
            1161,
            "08S01",
            "",
            C::GoneAway,
            "ER_NET_WRITE_INTERRUPTED",
            Both,
        )
        .unknown_effect(),
        row(
            S::Server,
            1184,
            "08S01",
            "",
            C::GoneAway,
            "ER_NEW_ABORTING_CONNECTION",
            Both,
        )
        .unknown_effect(),
        // A client library's own numbers in a packet: a proxy passes on what its
        // own client library said.
        row(
            S::SomeProxy,
            2002,
            "HY000",
            "",
            C::GoneAway,
            "CR_CONNECTION_ERROR",
            CLIENT,
        ),
        row(
            S::SomeProxy,
            2003,
            "HY000",
            "",
            C::GoneAway,
            "CR_CONN_HOST_ERROR",
            CLIENT,
        ),
        row(
            S::SomeProxy,
            2005,
            "HY000",
            "",
            C::GoneAway,
            "CR_UNKNOWN_HOST",
            CLIENT,
        ),
        row(
            S::SomeProxy,
            2006,
            "HY000",
            "",
            C::GoneAway,
            "CR_SERVER_GONE_ERROR",
            CLIENT,
        ),
        row(
            S::SomeProxy,
            2013,
            "HY000",
            "",
            C::GoneAway,
            "CR_SERVER_LOST",
            CLIENT,
        )
        .unknown_effect()
        .made(""),
        row(
            S::SomeProxy,
            2026,
            "HY000",
            "",
            C::Tls,
            "CR_SSL_CONNECTION_ERROR",
            CLIENT,
        ),
        row(
            S::SomeProxy,
            2055,
            "HY000",
            "",
            C::GoneAway,
            "CR_SERVER_LOST_EXTENDED",
            CLIENT,
        )
        .unknown_effect(),
    ]
};

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(number: u16, text: &str, speaker: Speaker, cause: Cause) {
        let meaning = meaning(number, text);
        assert_eq!(
            (meaning.speaker, meaning.cause),
            (speaker, cause),
            "{number} {text}"
        );
    }

    #[test]
    fn the_same_number_from_another_speaker() {
        let connect = "Max connect timeout reached while reaching hostgroup 10 after 10000ms";
        check(9001, connect, Speaker::ProxySql, Cause::Proxy);
        check(1045, connect, Speaker::ProxySql, Cause::Proxy);
        check(
            9001,
            "PD server timeout: start timestamp",
            Speaker::TiDb,
            Cause::NotReady,
        );
        check(9001, "something new", Speaker::Unknown, Cause::OtherServer);
        let locked =
            "ProxySQL Error: connection is locked to hostgroup 1 but trying to reach hostgroup 2";
        check(9006, locked, Speaker::ProxySql, Cause::Proxy);
        check(
            9006,
            "GC life time is shorter than transaction duration",
            Speaker::TiDb,
            Cause::OtherServer,
        );
        check(
            1045,
            "ProxySQL Error: Access denied for user 'a'@'b' (using password: YES)",
            Speaker::ProxySql,
            Cause::Denied,
        );
        check(
            1045,
            "Access denied for user 'a'@'b' (using password: YES)",
            Speaker::Server,
            Cause::Denied,
        );
        check(
            1927,
            "Connection was killed",
            Speaker::MariaDb,
            Cause::Killed,
        );
        check(
            1927,
            "Connection killed by MaxScale: Router could not recover from connection errors",
            Speaker::MaxScale,
            Cause::Proxy,
        );
        check(
            2003,
            "Can't connect to MySQL server on 'db-1' (111)",
            Speaker::SomeProxy,
            Cause::GoneAway,
        );
        check(
            2003,
            "Can't connect to remote MySQL server for client connected to '0.0.0.0:6446'",
            Speaker::MySqlRouter,
            Cause::Proxy,
        );
        check(
            1040,
            "Too many connections to MySQL Router",
            Speaker::MySqlRouter,
            Cause::TooManyConnections,
        );
        check(
            1105,
            "No available TiDB instances, please make sure TiDB is available",
            Speaker::TiProxy,
            Cause::Proxy,
        );
        check(
            1105,
            "(proxy) all backends are down",
            Speaker::MysqlProxy,
            Cause::Proxy,
        );
        check(1105, "Unknown error", Speaker::Unknown, Cause::OtherServer);
    }

    #[test]
    fn an_option_that_refuses_is_read_only_only_where_it_says_so() {
        check(
            1290,
            "The MariaDB server is running with the --read-only option so it cannot execute this statement",
            Speaker::Server,
            Cause::ReadOnly,
        );
        check(
            1290,
            "The MySQL server is running with the --super-read-only option",
            Speaker::Server,
            Cause::ReadOnly,
        );
        check(
            1290,
            "The MySQL server is running with the --secure-file-priv option",
            Speaker::Unknown,
            Cause::OtherServer,
        );
        check(
            1226,
            "User 'p' has exceeded the 'max_questions' resource",
            Speaker::Unknown,
            Cause::OtherServer,
        );
    }

    /// Each row is reachable, and no row hides another.
    #[test]
    fn every_row_is_found_by_its_own_packet() {
        for row in CODES {
            assert_eq!(row.marker, row.marker.to_lowercase());
            assert!(row.number != ANY || !row.marker.is_empty(), "{row:?}");
            let number = if row.number == ANY { 1234 } else { row.number };
            let found = meaning(number, &format!("Text: {} more", row.marker));
            assert_eq!(
                (found.speaker, found.cause, found.unknown_effect),
                (row.speaker, row.cause, row.unknown_effect),
                "{row:?}"
            );
        }
    }
}
