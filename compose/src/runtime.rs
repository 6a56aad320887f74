//! Brings backends and proxies up, does things to them, takes them down: one
//! trait each, several kinds of thing behind it.
//!
//! Whatever comes up here is the lab's own. Nothing that was running before is
//! ever touched.

pub mod admin;
pub mod docker;
pub mod embedded;
pub mod external;
pub mod name;
pub mod process;

use std::net::SocketAddr;

use futures::future::LocalBoxFuture;
use gapscope_proto::fault::Span;
use tokio::sync::mpsc;

use crate::error::Result;
use crate::scenario::{Action, BackendKind, ProxyKind, RuntimeKind};
use crate::timeline::Due;
use crate::witness::Seen;

/// By how much `slow` slows where the scenario does not say.
pub const DEFAULT_DELAY_NS: u64 = 500_000_000;

/// What came of carrying out a step.
#[derive(Debug)]
pub struct Applied {
    /// When it was asked for.
    pub asked: Span,
    /// Of a step that undoes another: when that was undone.
    pub cleared: Option<Span>,
    /// For people: what exactly was done.
    pub detail: String,
    /// What witnesses see of it, as they see it.
    pub seen: mpsc::UnboundedReceiver<Seen>,
}

/// A server behind the proxies. Its futures stay on the thread that made them:
/// processes are tied to the life of the thread that starts them.
pub trait Backend {
    /// Its name in the scenario.
    fn name(&self) -> &str;
    /// Where it listens itself.
    fn address(&self) -> SocketAddr;
    /// What it is, with its version, for people.
    fn program(&self) -> String;
    /// Whether `action` can be done to it; if not, why.
    fn can(&self, action: Action) -> std::result::Result<(), String>;
    /// Called some time before `action`, for witnesses that must be there first.
    fn prepare(&mut self, action: Action) -> LocalBoxFuture<'_, Result<()>>;
    /// Carries out a step.
    fn apply<'a>(&'a mut self, due: &'a Due) -> LocalBoxFuture<'a, Result<Applied>>;
    /// Cuts the connections of all clients, as an administrator who ends them, and
    /// serves on; tells how many, or what it did. One that is down has none.
    fn cut_clients(&mut self) -> LocalBoxFuture<'_, Result<String>>;
    /// Ends it for good; nothing of it is left when this returns.
    fn shut_down(&mut self) -> LocalBoxFuture<'_, ()>;
}

/// What a proxy believes of one of its backends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Belief {
    /// The backend's name.
    pub backend: String,
    /// The proxy's own word: `UP`, `DOWN`, `DRAIN` ...
    pub state: String,
    /// Why, by the proxy's own last check; empty if it says nothing.
    pub check: String,
    /// Connections it holds to that backend, if it tells.
    pub sessions: Option<u64>,
}

impl Belief {
    /// Whether it would give the backend work: the words of HAProxy and ours, of
    /// ProxySQL, of TiProxy.
    pub fn is_up(&self) -> bool {
        matches!(self.state.as_str(), "UP" | "ONLINE" | "healthy")
    }
}

/// What is waited for of a proxy that looks at its backends.
pub type Beliefs = std::result::Result<Vec<Belief>, String>;

/// Asks a proxy what it believes, from any task; survives the proxy's restart.
pub trait Viewer: Send {
    /// Its present view.
    fn look(&mut self) -> futures::future::BoxFuture<'_, Beliefs>;
}

/// How the agent reaches a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    /// `HOST:PORT`
    pub address: String,
    /// Who is asked for the host's address; none: it is a number.
    pub name_server: Option<SocketAddr>,
    /// Held clients look before each use whether the name still leads to where they
    /// are.
    pub follows: bool,
}

impl From<SocketAddr> for Reached {
    fn from(address: SocketAddr) -> Self {
        Self {
            address: address.to_string(),
            name_server: None,
            follows: false,
        }
    }
}

/// What clients connect to.
pub trait Proxy {
    /// The target's name.
    fn name(&self) -> &str;
    /// Where clients connect; where it is a name, where that leads to now.
    fn address(&self) -> SocketAddr;
    /// How clients get there.
    fn reached(&self) -> Reached {
        self.address().into()
    }
    /// What it is, with its version, for people.
    fn program(&self) -> String;
    /// Whether `action` can be done to it (or, a drain, by it); if not, why.
    fn can(&self, action: Action) -> std::result::Result<(), String>;
    /// Carries out a step on the proxy itself.
    fn apply<'a>(&'a mut self, due: &'a Due) -> LocalBoxFuture<'a, Result<Applied>>;
    /// Gives a backend no new work, or again; tells what was done.
    fn drain<'a>(&'a mut self, backend: &'a str, on: bool) -> LocalBoxFuture<'a, Result<String>>;
    /// The one backend that it stands for, where it is no more than a name for one.
    fn leads_to(&self) -> Option<&str> {
        None
    }
    /// How to ask what it believes; none where it has nothing to ask.
    fn viewer(&self) -> Option<Box<dyn Viewer>>;
    /// Ends it for good; nothing of it is left when this returns.
    fn shut_down(&mut self) -> LocalBoxFuture<'_, ()>;
}

/// What kind of backend a runtime has where nothing else is said.
pub const fn default_backend(runtime: RuntimeKind) -> BackendKind {
    match runtime {
        RuntimeKind::Embedded => BackendKind::Embedded,
        RuntimeKind::Process => BackendKind::Mariadb,
        RuntimeKind::Docker => BackendKind::Tidb,
        RuntimeKind::External => BackendKind::External,
    }
}

/// What proxies a runtime has where nothing else is said.
pub const fn default_proxies(runtime: RuntimeKind) -> &'static [ProxyKind] {
    match runtime {
        RuntimeKind::Embedded => &[ProxyKind::L4Passthrough, ProxyKind::L7Reconnecting],
        RuntimeKind::Process => &[ProxyKind::Haproxy],
        RuntimeKind::Docker => &[ProxyKind::Tiproxy, ProxyKind::Haproxy, ProxyKind::Proxysql],
        RuntimeKind::External => &[],
    }
}
