//! Proxies' own admin interfaces: giving a backend no new work, and asking what a
//! proxy believes of its backends. The same ones serve real programs on this host
//! and in containers.
//!
//! HAProxy: its stats socket. ProxySQL: SQL on its admin port. TiProxy: HTTP. What
//! else there is (MySQL Router, mysql-proxy, nginx) has none that is of use here.

mod haproxy;
mod http;
mod proxysql;
mod tiproxy;

use std::net::SocketAddr;

pub use self::haproxy::Place;
pub use self::tiproxy::commit as commit_namespace;
use super::Viewer;
use crate::error::{Problem, Result};
use crate::witness::Login;

/// Backends by name.
pub type Backends = Vec<(String, SocketAddr)>;

/// How to reach one.
#[derive(Debug, Clone)]
pub enum Admin {
    /// HAProxy's stats socket.
    Haproxy(Place),
    /// ProxySQL's admin port, and what the backends are called.
    Proxysql(SocketAddr, Login, Backends),
    /// TiProxy's HTTP port, and what the backends are called.
    Tiproxy(SocketAddr, Backends),
}

impl Admin {
    /// Gives a backend no new work, or again; tells what was done.
    ///
    /// # Errors
    /// When the interface does not answer, or refuses.
    pub async fn drain(&self, proxy: &str, backend: &str, on: bool) -> Result<String> {
        let done = match self {
            Self::Haproxy(place) => haproxy::drain(place, backend, on).await,
            Self::Proxysql(address, login, backends) => {
                proxysql::drain(*address, login, backends, backend, on).await
            }
            Self::Tiproxy(address, backends) => {
                tiproxy::drain(*address, backends, backend, on).await
            }
        };
        done.map_err(|why| {
            let word = if on { "drain" } else { "undrain" };
            Problem::new(format!(
                "proxy `{proxy}` could not be told to {word} `{backend}`: {why}"
            ))
        })
    }

    /// How to ask what it believes.
    pub fn viewer(&self) -> Box<dyn Viewer> {
        match self {
            Self::Haproxy(place) => Box::new(haproxy::StatViewer::new(place.clone())),
            Self::Proxysql(address, login, backends) => Box::new(proxysql::PoolViewer::new(
                *address,
                login.clone(),
                backends.clone(),
            )),
            Self::Tiproxy(address, backends) => {
                Box::new(tiproxy::MetricsViewer::new(*address, backends.clone()))
            }
        }
    }
}

/// What a backend at `address` is called.
fn name_of<'a>(backends: &'a Backends, address: &str) -> Option<&'a str> {
    backends
        .iter()
        .find(|(_, at)| at.to_string() == address)
        .map(|(name, _)| name.as_str())
}

/// Where a backend is.
fn address_of(backends: &Backends, name: &str) -> std::result::Result<SocketAddr, String> {
    backends
        .iter()
        .find(|(known, _)| known == name)
        .map(|(_, at)| *at)
        .ok_or_else(|| format!("it has no backend `{name}`"))
}
