//! A lab that is up: backends, proxies, and the folder they live in. Dropping it
//! ends everything and removes the folder.

use std::net::SocketAddr;
use std::sync::Arc;

use gapscope_proto::clock::Clock;

use crate::children::Itself;
use crate::error::{Problem, Result};
use crate::folder::LabFolder;
use crate::login::until_it_answers;
use crate::runtime::embedded::{EmbeddedBackend, EmbeddedProxy};
use crate::runtime::process::find::Named;
use crate::runtime::process::haproxy::Haproxy;
use crate::runtime::process::mariadb::{self, Mariadb};
use crate::runtime::process::{Host, haproxy};
use crate::runtime::{Backend, Proxy};
use crate::scenario::{BackendKind, RuntimeKind, Scenario};
use crate::witness::Login;

/// See the module's description.
pub struct Lab {
    // Dropped in this order: what runs, then what it runs in.
    /// In the scenario's order.
    pub proxies: Vec<Box<dyn Proxy>>,
    /// In the scenario's order.
    pub backends: Vec<Box<dyn Backend>>,
    /// Who may log in everywhere.
    pub login: Login,
    /// Where everything temporary is.
    pub folder: LabFolder,
}

/// What a lab is made with.
pub struct Make<'a> {
    /// What it is made of.
    pub scenario: &'a Scenario,
    /// What kind its backends are.
    pub backend: BackendKind,
    /// How to start this program again.
    pub itself: Itself,
    /// Programs named by path.
    pub named: Named,
    /// Stamps.
    pub clock: Arc<dyn Clock>,
}

impl Lab {
    /// Brings everything up. `say` tells people what is being waited for. On an
    /// error, or if this is dropped, nothing is left.
    pub async fn up(make: Make<'_>, mut say: impl FnMut(&str)) -> Result<Self> {
        let mut lab = Self {
            proxies: Vec::new(),
            backends: Vec::new(),
            login: Login {
                user: "gapscope".to_owned(),
                password: format!("{:032x}", rand::random::<u128>()),
            },
            folder: LabFolder::make(&make.itself)?,
        };
        let needs_programs = make.backend == BackendKind::Mariadb
            || make
                .scenario
                .proxies
                .iter()
                .any(|proxy| proxy.kind.runtime() == RuntimeKind::Process);
        let host = if needs_programs {
            Some(Host::new(
                lab.folder.itself().clone(),
                make.named.clone(),
                Arc::clone(&make.clock),
            )?)
        } else {
            None
        };
        if let Some(host) = &host
            && make
                .scenario
                .proxies
                .iter()
                .any(|proxy| proxy.kind.runtime() == RuntimeKind::Process)
        {
            // Before the seconds that a database takes.
            haproxy::find(host)?;
        }
        lab.bring_backends_up(&make, host.as_ref(), &mut say)
            .await?;
        lab.bring_proxies_up(&make, host.as_ref(), &mut say).await?;
        Ok(lab)
    }

    async fn bring_backends_up(
        &mut self,
        make: &Make<'_>,
        host: Option<&Host>,
        say: &mut impl FnMut(&str),
    ) -> Result<()> {
        let mut template = None;
        for (name, server_id) in make.scenario.backends.iter().zip(1u32..) {
            let backend: Box<dyn Backend> = match (make.backend, host) {
                (BackendKind::Mariadb, Some(host)) => {
                    if template.is_none() {
                        say("making a data folder for MariaDB (some seconds)");
                        let programs = mariadb::Programs::find(host)?;
                        let data = mariadb::install(host, &programs, &self.folder).await?;
                        template = Some((programs, data));
                    }
                    let Some((programs, data)) = &template else {
                        return Err(Problem::new("MariaDB's data folder is missing"));
                    };
                    let server = Mariadb::start(
                        host,
                        programs,
                        &self.folder,
                        data,
                        name,
                        server_id,
                        &self.login,
                    )
                    .await?;
                    Box::new(server)
                }
                _ => Box::new(
                    EmbeddedBackend::start(name, server_id, &self.login, Arc::clone(&make.clock))
                        .await?,
                ),
            };
            say(&format!(
                "backend `{name}`: {} at {}",
                backend.program(),
                backend.address()
            ));
            self.backends.push(backend);
        }
        Ok(())
    }

    async fn bring_proxies_up(
        &mut self,
        make: &Make<'_>,
        host: Option<&Host>,
        say: &mut impl FnMut(&str),
    ) -> Result<()> {
        let behind: Vec<(String, SocketAddr)> = self
            .backends
            .iter()
            .map(|backend| (backend.name().to_owned(), backend.address()))
            .collect();
        for spec in &make.scenario.proxies {
            let proxy: Box<dyn Proxy> = match (spec.kind, host) {
                (kind, _) if kind.runtime() == RuntimeKind::Embedded => Box::new(
                    EmbeddedProxy::start(
                        &spec.name,
                        spec.kind,
                        &behind,
                        &self.login,
                        Arc::clone(&make.clock),
                    )
                    .await?,
                ),
                (_, None) => {
                    return Err(Problem::new(format!(
                        "proxy `{}` is a real program, and nothing was prepared to start one",
                        spec.name
                    )));
                }
                (_, Some(host)) => Box::new(
                    Haproxy::start(
                        host,
                        &self.folder,
                        &spec.name,
                        spec.kind,
                        &behind,
                        &self.login,
                    )
                    .await?,
                ),
            };
            let deadline = make.clock.raw_ns() + 10_000_000_000;
            until_it_answers(
                make.clock.as_ref(),
                proxy.address(),
                &self.login,
                deadline,
                || Ok(()),
            )
            .await
            .map_err(|why| {
                Problem::new(format!(
                    "proxy `{}` at {} does not route to a backend: {why}",
                    spec.name,
                    proxy.address()
                ))
            })?;
            say(&format!(
                "proxy `{}`: {} at {}",
                spec.name,
                proxy.program(),
                proxy.address()
            ));
            self.proxies.push(proxy);
        }
        Ok(())
    }

    /// Every target's name and where it is.
    pub fn targets(&self, scenario: &Scenario) -> Vec<(String, SocketAddr)> {
        let addresses = self
            .proxies
            .iter()
            .map(|proxy| proxy.address())
            .chain(self.backends.iter().map(|backend| backend.address()));
        // The names come in this order, backends only where they are targets, or
        // the ledger is read from them.
        let mut names = crate::scenario::target_names(scenario);
        if scenario.clients.write() && !scenario.direct {
            names.extend(crate::scenario::direct_names(scenario));
        }
        names.into_iter().zip(addresses).collect()
    }

    /// Ends everything and removes the folder.
    pub async fn down(mut self) {
        for proxy in &mut self.proxies {
            proxy.shut_down().await;
        }
        for backend in &mut self.backends {
            backend.shut_down().await;
        }
    }
}
