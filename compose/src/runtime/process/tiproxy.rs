//! A real TiProxy in static mode, as in the study that this lab began with: no PD, its
//! backends put and committed through its HTTP port after each start.
//!
//! In this mode it does not move sessions from a server that ends: that needs PD and
//! servers that share a signing certificate (see the docker runtime's second set).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use futures::FutureExt;

use super::program::Program;
use super::served::{Recipe, Served};
use super::{Host, free_port, version_of};
use crate::error::Result;
use crate::folder::LabFolder;
use crate::runtime::admin::{Admin, commit_namespace};
use crate::witness::Login;

const PACKAGES: &str = "it comes with TiUP, or is built from its sources by go";

/// Finds the program.
pub fn find(host: &Host) -> Result<PathBuf> {
    super::find::find(&host.named, &["tiproxy"], PACKAGES)
}

/// The configuration file: clients at `listen`, administrators at `admin`. Without
/// `pd` its backends are put through the API; with it they are those that PD knows.
pub fn config(listen: SocketAddr, admin: SocketAddr, place: &str, pd: &str) -> String {
    format!(
        "workdir = \"{place}/work\"\n\n\
         [proxy]\naddr = \"{listen}\"\npd-addrs = \"{pd}\"\n\n\
         [api]\naddr = \"{admin}\"\n\n\
         [log]\nlevel = \"warn\"\n"
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
    let admin_port = Arc::new(AtomicU16::new(0));
    let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let recipe = Recipe {
        program,
        called: "tiproxy".to_owned(),
        label: format!("TiProxy {version}"),
        file: "tiproxy.toml".to_owned(),
        config: {
            let admin_port = Arc::clone(&admin_port);
            let place = place.to_string_lossy().into_owned();
            Box::new(move |port| {
                admin_port.store(free_port().unwrap_or(0), Ordering::SeqCst);
                config(at(port), at(admin_port.load(Ordering::SeqCst)), &place, "")
            })
        },
        args: Box::new(|_, file, _| vec!["--config".into(), file.into()]),
        tell: Some({
            let admin_port = Arc::clone(&admin_port);
            let behind: Vec<SocketAddr> = backends.iter().map(|(_, at)| *at).collect();
            Box::new(move || {
                let admin = at(admin_port.load(Ordering::SeqCst));
                let behind = behind.clone();
                async move { commit_namespace(admin, behind.iter()).await }.boxed()
            })
        }),
    };
    let served = Served::start(host, folder, name, place, recipe, login).await?;
    let admin = at(admin_port.load(Ordering::SeqCst));
    Ok(Program {
        served,
        admin: Some(Admin::Tiproxy(admin, backends.to_vec())),
        no_drain: "",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_mode_is_written() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        insta::assert_snapshot!(config(at(6000), at(3080), "/lab", ""), @r#"
        workdir = "/lab/work"

        [proxy]
        addr = "127.0.0.1:6000"
        pd-addrs = ""

        [api]
        addr = "127.0.0.1:3080"

        [log]
        level = "warn"
        "#);
    }
}
