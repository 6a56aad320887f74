//! A name that leads straight to a backend, with no proxy between: what clients have
//! who are told to "just change the DNS record".
//!
//! The record is the lab's own (see [`crate::names`]). Two kinds of clients meet it:
//! such as look the name up when they connect (`dns`), and such as look before each
//! use whether it still leads to where they are (`dns-following`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use tokio::sync::mpsc;

use super::{Applied, Proxy, Reached, Viewer};
use crate::error::{Problem, Result};
use crate::names::{Change, NameServer};
use crate::scenario::{Action, ProxyKind};
use crate::timeline::Due;

/// Why a `repoint` cannot be done to a proxy.
pub const NO_NAME: &str =
    "not applicable: it is reached by its address; only a target of kind `dns` is a name";
/// How long a resolver keeps the record, unless told otherwise.
pub const DEFAULT_TTL_NS: u64 = 3_000_000_000;

/// See the module's description.
pub struct Name {
    name: String,
    host: String,
    kind: ProxyKind,
    ttl_ns: u64,
    backends: Vec<(String, SocketAddr)>,
    /// Which of them it leads to.
    at: usize,
    server: Arc<NameServer>,
}

impl Name {
    /// A name that leads to the first of `backends`, which differ by address alone.
    ///
    /// # Errors
    /// When they do not.
    pub fn make(
        name: &str,
        kind: ProxyKind,
        ttl_ns: Option<u64>,
        backends: &[(String, SocketAddr)],
        server: Arc<NameServer>,
    ) -> Result<Self> {
        let ports = backends.iter().map(|(_, address)| address.port());
        let is_one = ports.clone().min() == ports.max();
        let made = Self {
            name: name.to_owned(),
            // `.test` belongs to nobody.
            host: format!("{name}.gapscope.test").to_ascii_lowercase(),
            kind,
            ttl_ns: ttl_ns.unwrap_or(DEFAULT_TTL_NS),
            backends: backends.to_vec(),
            at: 0,
            server,
        };
        match made.backends.first().map(|(_, address)| address.ip()) {
            Some(IpAddr::V4(address)) if is_one => {
                made.server.add(&made.host, address, made.ttl_ns);
                Ok(made)
            }
            _ => Err(Problem::new(format!(
                "name `{name}` cannot be pointed at these backends: a record holds an IPv4 address \
                 and no port, so they have to share one"
            ))),
        }
    }

    fn carry_out(&mut self, due: &Due) -> Result<Applied> {
        let to = match (due.action, &due.to) {
            (Action::Restore, _) => 0,
            (Action::Repoint, Some(to)) => self
                .backends
                .iter()
                .position(|(name, _)| name == to)
                .ok_or_else(|| Problem::new(format!("there is no backend `{to}`")))?,
            (action, _) => {
                let why = self.can(action).err().unwrap_or_default();
                return Err(Problem::new(format!(
                    "`{action}` cannot be done to name `{}`: {why}",
                    self.name
                )));
            }
        };
        let (old, (new, address)) = (&self.backends[self.at].0, &self.backends[to]);
        let IpAddr::V4(ip) = address.ip() else {
            return Err(Problem::new(format!("backend `{new}` has no IPv4 address")));
        };
        let change = self
            .server
            .point(&self.host, ip)
            .ok_or_else(|| Problem::new(format!("the name server does not know {}", self.host)))?;
        let detail = format!(
            "{} leads to {new} ({ip}) instead of {old}; {}",
            self.host,
            kept(change)
        );
        self.at = to;
        let (_, seen) = mpsc::unbounded_channel();
        Ok(Applied {
            asked: change.when,
            cleared: (due.action == Action::Restore).then_some(change.when),
            detail,
            seen,
        })
    }
}

/// How long the change is hidden from clients, in words.
fn kept(change: Change) -> String {
    match change.old_until_ns {
        None => "who asks is told so at once".to_owned(),
        Some(until_ns) => {
            let left = until_ns.saturating_sub(change.when.latest_ns) as f64 / 1e9;
            format!("the clients' resolver remembers the old address for another {left:.3} s")
        }
    }
}

impl Proxy for Name {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> SocketAddr {
        self.backends[self.at].1
    }

    fn reached(&self) -> Reached {
        Reached {
            address: format!("{}:{}", self.host, self.address().port()),
            name_server: Some(self.server.address()),
            follows: self.kind == ProxyKind::DnsFollowing,
        }
    }

    fn program(&self) -> String {
        format!(
            "the name {} (no proxy; remembered for {})",
            self.host,
            crate::duration::text(self.ttl_ns)
        )
    }

    fn can(&self, action: Action) -> std::result::Result<(), String> {
        match action {
            Action::Repoint | Action::Restore | Action::LongQuery => Ok(()),
            _ => Err("not applicable: a DNS record can only be pointed elsewhere".to_owned()),
        }
    }

    fn apply<'a>(&'a mut self, due: &'a Due) -> LocalBoxFuture<'a, Result<Applied>> {
        futures::future::ready(self.carry_out(due)).boxed_local()
    }

    fn drain<'a>(&'a mut self, _: &'a str, _: bool) -> LocalBoxFuture<'a, Result<String>> {
        let why = self.can(Action::Drain).err().unwrap_or_default();
        futures::future::ready(Err(Problem::new(why))).boxed_local()
    }

    fn leads_to(&self) -> Option<&str> {
        Some(&self.backends[self.at].0)
    }

    fn viewer(&self) -> Option<Box<dyn Viewer>> {
        None
    }

    fn shut_down(&mut self) -> LocalBoxFuture<'_, ()> {
        futures::future::ready(()).boxed_local()
    }
}
