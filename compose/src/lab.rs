//! A lab that is up: backends, proxies, and the folder they live in. Dropping it
//! ends everything and removes the folder.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::clock::Clock;

use crate::children::Itself;
use crate::error::{Problem, Result};
use crate::folder::LabFolder;
use crate::login::{ask, plain, until_it_answers};
use crate::names::{self, NameServer};
use crate::runtime::docker::Composition;
use crate::runtime::docker::engine::Engine;
use crate::runtime::embedded::{EmbeddedBackend, EmbeddedProxy};
use crate::runtime::external::{self, ExternalBackend, ExternalProxy, Shared};
use crate::runtime::name::Name;
use crate::runtime::process::find::Named;
use crate::runtime::process::program::Program;
use crate::runtime::process::server::{self, Server};
use crate::runtime::process::sql::Dialect;
use crate::runtime::process::{
    Host, custom, haproxy, mysql_proxy, mysqlrouter, net, nginx, proxysql, tiproxy,
};
use crate::runtime::{Backend, Proxy, Reached};
use crate::scenario::{BackendKind, External, ProxyKind, ProxySpec, RuntimeKind, Scenario};
use crate::witness::Login;

/// See the module's description.
pub struct Lab {
    // Dropped in this order: what runs, then what it runs in.
    /// In the scenario's order.
    pub proxies: Vec<Box<dyn Proxy>>,
    /// In the scenario's order.
    pub backends: Vec<Box<dyn Backend>>,
    /// What they are containers of, if they are.
    composition: Option<Composition>,
    /// Who may log in everywhere.
    pub login: Login,
    /// Where everything temporary is.
    pub folder: LabFolder,
}

/// What a lab is made with.
pub struct Make<'a> {
    /// What it is made of.
    pub scenario: &'a Scenario,
    /// What it is made of.
    pub runtime: RuntimeKind,
    /// Servers that are not the lab's may be done things to although they serve others.
    pub hurt_others: bool,
    /// What kind its backends are.
    pub backend: BackendKind,
    /// How to start this program again.
    pub itself: Itself,
    /// Programs named by path.
    pub named: Named,
    /// Stamps.
    pub clock: Arc<dyn Clock>,
}

impl Make<'_> {
    /// Whether it takes programs of this host.
    fn needs_programs(&self) -> bool {
        Dialect::of(self.backend).is_some()
            || self
                .scenario
                .proxies
                .iter()
                .any(|spec| spec.kind.is_program())
    }

    fn host(&self, itself: Itself) -> Result<Host> {
        Host::new(itself, self.named.clone(), Arc::clone(&self.clock))
    }

    /// Whether what this lab is made of is there; starts nothing and leaves nothing.
    ///
    /// # Errors
    /// What is missing, and how to get it; or which of the servers that should be there
    /// already does not answer.
    pub async fn look(&self) -> Result<()> {
        if let Some(external) = &self.scenario.external {
            let login = login_of(external)?;
            for place in external.backends.iter().chain(&external.proxies) {
                let address = external::resolve(place)?;
                ask(address, &login, "1", LOOK_WITHIN)
                    .await
                    .map_err(|error| {
                        let why = plain(&error);
                        Problem::new(format!(
                            "`{}` at {} cannot be asked as `{}`: {why}",
                            place.name, place.address, login.user
                        ))
                    })?;
            }
            return Ok(());
        }
        if self.runtime == RuntimeKind::Docker {
            return Engine::find(&self.named).map(drop);
        }
        if !self.needs_programs() {
            return Ok(());
        }
        let host = self.host(self.itself.clone())?;
        for spec in &self.scenario.proxies {
            find_program(&host, spec)?;
        }
        if let Some(dialect) = Dialect::of(self.backend) {
            server::Programs::find(&host, dialect)?;
        }
        Ok(())
    }
}

impl Lab {
    /// Brings everything up. `say` tells people what is being waited for. On an
    /// error, or if this is dropped, nothing is left.
    pub async fn up(make: Make<'_>, mut say: impl FnMut(&str)) -> Result<Self> {
        let mut lab = Self {
            proxies: Vec::new(),
            backends: Vec::new(),
            composition: None,
            login: Login {
                user: "gapscope".to_owned(),
                password: format!("{:032x}", rand::random::<u128>()),
            },
            folder: LabFolder::make(&make.itself)?,
        };
        if let Some(external) = &make.scenario.external {
            lab.find_external(&make, external, &mut say).await?;
            return Ok(lab);
        }
        if make.runtime == RuntimeKind::Docker {
            lab.compose(&make, &mut say).await?;
            return Ok(lab);
        }
        let host = if make.needs_programs() {
            Some(make.host(lab.folder.itself().clone())?)
        } else {
            None
        };
        if let Some(host) = &host {
            // Before the seconds that a database takes.
            for spec in &make.scenario.proxies {
                find_program(host, spec)?;
            }
        }
        lab.bring_backends_up(&make, host.as_ref(), &mut say)
            .await?;
        lab.bring_proxies_up(&make, host.as_ref(), &mut say).await?;
        Ok(lab)
    }

    /// What is there already.
    async fn find_external(
        &mut self,
        make: &Make<'_>,
        external: &External,
        say: &mut impl FnMut(&str),
    ) -> Result<()> {
        self.login = login_of(external)?;
        let shared = Shared {
            itself: self.folder.itself().clone(),
            login: self.login.clone(),
            clock: Arc::clone(&make.clock),
            hurt_others: make.hurt_others,
            run_s: make.scenario.duration_ns.div_ceil(1_000_000_000) + SETTING_UP_S,
        };
        for place in &external.backends {
            let backend = ExternalBackend::find(place, &shared).await?;
            said(
                say,
                "backend",
                backend.name(),
                &backend.program(),
                backend.address(),
            );
            self.backends.push(Box::new(backend));
        }
        for place in &external.proxies {
            let proxy = ExternalProxy::new(place, &shared)?;
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
                    place.name, place.address
                ))
            })?;
            said(
                say,
                "proxy",
                proxy.name(),
                &proxy.program(),
                proxy.address(),
            );
            self.proxies.push(Box::new(proxy));
        }
        Ok(())
    }

    /// The same in containers.
    async fn compose(&mut self, make: &Make<'_>, say: &mut impl FnMut(&str)) -> Result<()> {
        let composition = Composition::prepare(
            (&self.folder, &make.named),
            make.scenario,
            make.backend,
            &self.login,
            Arc::clone(&make.clock),
            &mut *say,
        )
        .await?;
        let composition = self.composition.insert(composition);
        say("starting the servers' containers");
        for backend in composition.backends().await? {
            said(
                say,
                "backend",
                backend.name(),
                &backend.program(),
                backend.address(),
            );
            self.backends.push(backend);
        }
        for spec in &make.scenario.proxies {
            let proxy = composition.proxy(spec).await?;
            said(
                say,
                "proxy",
                proxy.name(),
                &proxy.program(),
                proxy.address(),
            );
            self.proxies.push(proxy);
        }
        Ok(())
    }

    async fn bring_backends_up(
        &mut self,
        make: &Make<'_>,
        host: Option<&Host>,
        say: &mut impl FnMut(&str),
    ) -> Result<()> {
        let mut template = None;
        let cuts = make
            .scenario
            .timeline
            .iter()
            .any(|step| step.action.cuts_off());
        let dialect = Dialect::of(make.backend);
        let tools = if dialect.is_some() && cuts {
            Some(net::Tools::find(&make.named).map_err(Problem::usage)?)
        } else {
            None
        };
        let places = if make.scenario.proxies.iter().any(|spec| spec.kind.is_name()) {
            names::places(make.scenario.backends.len()).map_err(|error| {
                Problem::new(format!(
                    "no loopback addresses that share a free port, as backends behind a name need \
                     them: {error}"
                ))
            })?
        } else {
            Vec::new()
        };
        for (name, server_id) in make.scenario.backends.iter().zip(1u32..) {
            let place = places.get(self.backends.len()).copied();
            let backend: Box<dyn Backend> = match (dialect, host) {
                (Some(dialect), Some(host)) => {
                    if template.is_none() {
                        let programs = server::Programs::find(host, dialect)?;
                        if dialect != Dialect::Tidb {
                            say(&format!(
                                "making a data folder for {} (some seconds)",
                                dialect.name()
                            ));
                        }
                        let data = server::install(host, &programs, &self.folder).await?;
                        template = Some((programs, data));
                    }
                    let Some((programs, data)) = &template else {
                        return Err(Problem::new("the servers' data folder is missing"));
                    };
                    let server = Server::start(
                        host,
                        programs,
                        &self.folder,
                        data.as_deref(),
                        (name, server_id),
                        &self.login,
                        (place, tools.as_ref()),
                    )
                    .await?;
                    Box::new(server)
                }
                _ => Box::new(
                    EmbeddedBackend::start(
                        (name, server_id),
                        place,
                        &self.login,
                        Arc::clone(&make.clock),
                    )
                    .await?,
                ),
            };
            said(say, "backend", name, &backend.program(), backend.address());
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
        let mut name_server = None;
        for spec in &make.scenario.proxies {
            let proxy: Box<dyn Proxy> = match host {
                _ if spec.kind.is_name() => {
                    if name_server.is_none() {
                        let server =
                            NameServer::start(Arc::clone(&make.clock))
                                .await
                                .map_err(|error| {
                                    Problem::new(format!(
                                        "the lab's name server cannot be started: {error}"
                                    ))
                                })?;
                        name_server = Some(Arc::new(server));
                    }
                    let Some(server) = &name_server else {
                        return Err(Problem::new("the lab's name server is missing"));
                    };
                    let server = Arc::clone(server);
                    Box::new(Name::make(
                        &spec.name,
                        spec.kind,
                        spec.ttl_ns,
                        &behind,
                        server,
                    )?)
                }
                _ if spec.kind.is_embedded() => Box::new(
                    EmbeddedProxy::start(
                        &spec.name,
                        spec.kind,
                        &behind,
                        &self.login,
                        Arc::clone(&make.clock),
                    )
                    .await?,
                ),
                None => {
                    return Err(Problem::new(format!(
                        "proxy `{}` is a real program, and nothing was prepared to start one",
                        spec.name
                    )));
                }
                Some(host) => {
                    Box::new(start_program(host, &self.folder, spec, &behind, &self.login).await?)
                }
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
            said(say, "proxy", &spec.name, &proxy.program(), proxy.address());
            self.proxies.push(proxy);
        }
        Ok(())
    }

    /// Every target's name and how it is reached.
    pub fn targets(&self, scenario: &Scenario) -> Vec<(String, Reached)> {
        let addresses = self.proxies.iter().map(|proxy| proxy.reached()).chain(
            self.backends
                .iter()
                .map(|backend| Reached::from(backend.address())),
        );
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

fn said(say: &mut impl FnMut(&str), what: &str, name: &str, program: &str, address: SocketAddr) {
    say(&format!("{what} `{name}`: {program} at {address}"));
}

/// A look at a server that should be there already may take this long.
const LOOK_WITHIN: Duration = Duration::from_secs(5);
/// Bringing a run up and closing it take this long at most, as far as a dead man's
/// timer is concerned.
const SETTING_UP_S: u64 = 120;

/// Who probes what is there already.
fn login_of(external: &External) -> Result<Login> {
    let password = match &external.password_file {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Problem::usage(format!("cannot read password file {path}: {error}")))?
            .trim_end_matches(['\r', '\n'])
            .to_owned(),
        None => std::env::var("GAPSCOPE_PASSWORD").unwrap_or_default(),
    };
    Ok(Login {
        user: external.user.clone(),
        password,
    })
}

/// Says early what is missing.
fn find_program(host: &Host, spec: &ProxySpec) -> Result<()> {
    match spec.kind {
        ProxyKind::Command => spec
            .custom
            .as_ref()
            .map_or(Ok(()), |custom| custom::find(&host.named, custom).map(drop)),
        ProxyKind::Nginx => nginx::find(host).map(drop),
        ProxyKind::Proxysql => proxysql::find(host).map(drop),
        ProxyKind::Tiproxy => tiproxy::find(host).map(drop),
        ProxyKind::Mysqlrouter => mysqlrouter::find(host).map(drop),
        ProxyKind::MysqlProxy => mysql_proxy::find(host).map(drop),
        ProxyKind::Haproxy
        | ProxyKind::HaproxyMysqlCheck
        | ProxyKind::HaproxyMysqlCheckShutdown => haproxy::find(host).map(drop),
        ProxyKind::L4Passthrough
        | ProxyKind::L7Reconnecting
        | ProxyKind::L7Migrating
        | ProxyKind::L7Multiplexing
        | ProxyKind::Dns
        | ProxyKind::DnsFollowing
        | ProxyKind::External => Ok(()),
    }
}

async fn start_program(
    host: &Host,
    folder: &LabFolder,
    spec: &ProxySpec,
    behind: &[(String, SocketAddr)],
    login: &Login,
) -> Result<Program> {
    let name = &spec.name;
    match spec.kind {
        ProxyKind::Command => {
            let custom = spec
                .custom
                .as_ref()
                .ok_or_else(|| Problem::usage(format!("proxy `{name}` has no `command`")))?;
            custom::start(host, folder, name, custom, behind, login).await
        }
        ProxyKind::Nginx => nginx::start(host, folder, name, behind, login).await,
        ProxyKind::Proxysql => proxysql::start(host, folder, name, behind, login).await,
        ProxyKind::Tiproxy => tiproxy::start(host, folder, name, behind, login).await,
        ProxyKind::Mysqlrouter => mysqlrouter::start(host, folder, name, behind, login).await,
        ProxyKind::MysqlProxy => mysql_proxy::start(host, folder, name, behind, login).await,
        kind => haproxy::start(host, folder, name, kind, behind, login).await,
    }
}
