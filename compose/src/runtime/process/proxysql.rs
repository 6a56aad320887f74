//! A real ProxySQL, configured as in the study that this lab began with: both servers
//! in one hostgroup, its monitor connecting and pinging every 2 s.
//!
//! It reads its configuration file at each start (`--initial`): what an earlier start
//! left in its own database is not taken up. It asks nobody for newer versions.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use super::program::Program;
use super::served::{Recipe, Served};
use super::sql::CHECK_USER;
use super::{Host, free_port, version_of};
use crate::error::Result;
use crate::folder::LabFolder;
use crate::runtime::admin::Admin;
use crate::witness::Login;

const PACKAGES: &str = "its packages are on proxysql.com";

/// Finds the program.
pub fn find(host: &Host) -> Result<PathBuf> {
    super::find::find(&host.named, &["proxysql"], PACKAGES)
}

/// Who may use the admin port: `admin` itself is let in from its own host only.
pub fn admin_login() -> Login {
    Login {
        user: "gapscope_admin".to_owned(),
        password: format!("{:032x}", rand::random::<u128>()),
    }
}

/// The configuration file: clients at `listen`, administrators at `admin`.
pub fn config(
    listen: SocketAddr,
    admin: SocketAddr,
    admin_login: &Login,
    data: &str,
    backends: &[(String, SocketAddr)],
    login: &Login,
) -> String {
    let mut servers = Vec::new();
    for (_, at) in backends {
        servers.push(format!(
            "    {{ address=\"{}\", port={}, hostgroup=0 }}",
            at.ip(),
            at.port()
        ));
    }
    let mut text = String::new();
    write!(
        text,
        "datadir=\"{data}\"\n\n\
         admin_variables=\n{{\n    admin_credentials=\"{}:{}\"\n    mysql_ifaces=\"{admin}\"\n}}\n\n\
         mysql_variables=\n{{\n    threads=2\n    interfaces=\"{listen}\"\n    \
         monitor_username=\"{CHECK_USER}\"\n    monitor_password=\"\"\n    \
         monitor_connect_interval=2000\n    monitor_ping_interval=2000\n}}\n\n\
         mysql_servers=\n(\n{}\n)\n\n\
         mysql_users=\n(\n    {{ username=\"{}\", password=\"{}\", default_hostgroup=0 }}\n)\n",
        admin_login.user,
        admin_login.password,
        servers.join(",\n"),
        login.user,
        login.password,
    )
    .expect("a String takes everything");
    text
}

/// Starts it and waits until a real login goes through it.
pub async fn start(
    host: &Host,
    folder: &LabFolder,
    name: &str,
    backends: &[(String, SocketAddr)],
    login: &Login,
) -> Result<Program> {
    let program = find(host)?;
    let version = version_of(&program, "--version");
    let place = Served::place(host, folder, name)?;
    let admin_login = admin_login();
    let admin_port = Arc::new(AtomicU16::new(0));
    let recipe = Recipe {
        program,
        called: "proxysql".to_owned(),
        label: format!("ProxySQL {version}"),
        file: "proxysql.cnf".to_owned(),
        config: {
            let (admin_port, admin_login) = (Arc::clone(&admin_port), admin_login.clone());
            let (backends, login) = (backends.to_vec(), login.clone());
            let data = place.to_string_lossy().into_owned();
            Box::new(move |port| {
                admin_port.store(free_port().unwrap_or(0), Ordering::SeqCst);
                let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
                let admin = at(admin_port.load(Ordering::SeqCst));
                config(at(port), admin, &admin_login, &data, &backends, &login)
            })
        },
        args: Box::new(|place, file, _| {
            vec![
                "-f".into(),
                "--initial".into(),
                "--no-version-check".into(),
                "-D".into(),
                place.into(),
                "-c".into(),
                file.into(),
            ]
        }),
        tell: None,
    };
    let served = Served::start(host, folder, name, place, recipe, login).await?;
    let admin = SocketAddr::from(([127, 0, 0, 1], admin_port.load(Ordering::SeqCst)));
    Ok(Program {
        served,
        admin: Some(Admin::Proxysql(admin, admin_login, backends.to_vec())),
        no_drain: "",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_study_s_configuration_is_written() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let login = |user: &str| Login {
            user: user.to_owned(),
            password: "secret".to_owned(),
        };
        let text = config(
            at(6033),
            at(6032),
            &login("gapscope_admin"),
            "/lab",
            &[("a".to_owned(), at(4001)), ("b".to_owned(), at(4002))],
            &login("gapscope"),
        );
        insta::assert_snapshot!(text, @r#"
        datadir="/lab"

        admin_variables=
        {
            admin_credentials="gapscope_admin:secret"
            mysql_ifaces="127.0.0.1:6032"
        }

        mysql_variables=
        {
            threads=2
            interfaces="127.0.0.1:6033"
            monitor_username="gapscope_check"
            monitor_password=""
            monitor_connect_interval=2000
            monitor_ping_interval=2000
        }

        mysql_servers=
        (
            { address="127.0.0.1", port=4001, hostgroup=0 },
            { address="127.0.0.1", port=4002, hostgroup=0 }
        )

        mysql_users=
        (
            { username="gapscope", password="secret", default_hostgroup=0 }
        )
        "#);
    }
}
