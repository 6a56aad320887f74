//! A real proxy as a part of a lab: a process, and its admin interface if it has one
//! that is of use.

use std::net::SocketAddr;

use futures::FutureExt;
use futures::future::LocalBoxFuture;

use super::served::Served;
use crate::error::{Problem, Result};
use crate::runtime::admin::Admin;
use crate::runtime::{Applied, Proxy, Viewer};
use crate::scenario::Action;
use crate::timeline::Due;

/// See the module's description.
pub struct Program {
    /// The process.
    pub served: Served,
    /// How it is asked and told things.
    pub admin: Option<Admin>,
    /// Why it cannot be told to drain, where it cannot.
    pub no_drain: &'static str,
}

impl Proxy for Program {
    fn name(&self) -> &str {
        &self.served.name
    }

    fn address(&self) -> SocketAddr {
        self.served.address()
    }

    fn program(&self) -> String {
        self.served.label()
    }

    fn can(&self, action: Action) -> std::result::Result<(), String> {
        match action {
            Action::Drain | Action::Undrain if self.admin.is_none() => {
                Err(format!("not applicable: {}", self.no_drain))
            }
            other => Served::can(other),
        }
    }

    fn apply<'a>(&'a mut self, due: &'a Due) -> LocalBoxFuture<'a, Result<Applied>> {
        self.served.carry_out(due).boxed_local()
    }

    fn drain<'a>(&'a mut self, backend: &'a str, on: bool) -> LocalBoxFuture<'a, Result<String>> {
        async move {
            match &self.admin {
                Some(admin) => admin.drain(&self.served.name, backend, on).await,
                None => Err(Problem::new(format!("not applicable: {}", self.no_drain))),
            }
        }
        .boxed_local()
    }

    fn viewer(&self) -> Option<Box<dyn Viewer>> {
        self.admin.as_ref().map(Admin::viewer)
    }

    fn shut_down(&mut self) -> LocalBoxFuture<'_, ()> {
        async move { self.served.end().await }.boxed_local()
    }
}
