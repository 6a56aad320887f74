//! A real MySQL Router with plain connection routing: new clients go to the first
//! server that can be connected to. It carries bytes, checks nothing while nobody
//! connects, and blocks no client host for failed logins here.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::program::Program;
use super::served::{Recipe, Served};
use super::{Host, version_of};
use crate::error::Result;
use crate::folder::LabFolder;
use crate::witness::Login;

const PACKAGES: &str = "apt install mysql-router, dnf install mysql-router";

/// Finds the program.
pub fn find(host: &Host) -> Result<PathBuf> {
    super::find::find(&host.named, &["mysqlrouter"], PACKAGES)
}

/// The configuration file.
pub fn config(port: u16, backends: &[(String, SocketAddr)], place: &str) -> String {
    let destinations: Vec<String> = backends.iter().map(|(_, at)| at.to_string()).collect();
    format!(
        "[DEFAULT]\nlogging_folder=\nruntime_folder={place}\ndata_folder={place}\n\n\
         [logger]\nlevel=INFO\n\n\
         [routing:mysql]\nbind_address=127.0.0.1\nbind_port={port}\ndestinations={}\n\
         routing_strategy=first-available\nprotocol=classic\nconnect_timeout=5\n\
         max_connect_errors=4294967295\n",
        destinations.join(",")
    )
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
    let recipe = Recipe {
        program,
        called: "mysqlrouter".to_owned(),
        label: format!("MySQL Router {version}"),
        file: "mysqlrouter.conf".to_owned(),
        config: {
            let backends = backends.to_vec();
            let place = place.to_string_lossy().into_owned();
            Box::new(move |port| config(port, &backends, &place))
        },
        args: Box::new(|_, file, _| vec!["-c".into(), file.into()]),
        tell: None,
    };
    let served = Served::start(host, folder, name, place, recipe, login).await?;
    Ok(Program {
        served,
        admin: None,
        no_drain: "MySQL Router takes its servers from its configuration, or from a cluster",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_routing_is_written() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let text = config(
            6446,
            &[("a".to_owned(), at(4001)), ("b".to_owned(), at(4002))],
            "/lab",
        );
        insta::assert_snapshot!(text, @r"
        [DEFAULT]
        logging_folder=
        runtime_folder=/lab
        data_folder=/lab

        [logger]
        level=INFO

        [routing:mysql]
        bind_address=127.0.0.1
        bind_port=6446
        destinations=127.0.0.1:4001,127.0.0.1:4002
        routing_strategy=first-available
        protocol=classic
        connect_timeout=5
        max_connect_errors=4294967295
        ");
    }
}
