//! Containers on a private network of this host, by a compose file of our own: no
//! port is published, clients connect to the containers' own addresses.
//!
//! Faults are `docker stop`, `kill`, `pause` and `network disconnect`. When each was
//! asked for and took effect is bounded by the engine's own events (see [`events`])
//! and never believed beyond what this process stamped itself around the command.
//!
//! What it cannot do: reach containers of an engine that runs in a virtual machine or
//! on another host, whose addresses are not this host's to connect to. That shows as
//! a backend that does not come up, and is said.

mod container;
pub mod engine;
pub mod events;
pub mod files;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::LocalBoxFuture;
use gapscope_proto::clock::Clock;

use self::container::Container;
use self::engine::Engine;
use self::events::Events;
use self::files::{Project, Service};
use super::admin::{Admin, Place, commit_namespace};
use super::process::net::free_prefix;
use super::process::proxysql::admin_login;
use super::process::sql::Dialect;
use super::{Applied, Backend, Proxy, Viewer};
use crate::error::{Problem, Result};
use crate::folder::LabFolder;
use crate::leftovers::Owner;
use crate::login::{cut_user, until_it_answers};
use crate::runtime::process::find::Named;
use crate::scenario::{Action, BackendKind, ProxyKind, ProxySpec, Scenario};
use crate::timeline::Due;
use crate::witness::{HeldConnection, Login};

/// TiDB bootstraps, and a cluster's PD and TiKV come first.
const UP_WITHIN_NS: i64 = 180_000_000_000;
const ROUTES_WITHIN_NS: i64 = 60_000_000_000;

/// A composition that is up. Dropping it removes its containers and its network.
pub struct Composition {
    engine: Engine,
    project: Project,
    events: Events,
    owner: Owner,
    kind: BackendKind,
    clock: Arc<dyn Clock>,
    login: Login,
    admin: Login,
    behind: Vec<(String, SocketAddr)>,
}

impl Drop for Composition {
    fn drop(&mut self) {
        engine::remove_all(&self.owner);
    }
}

impl Composition {
    /// Finds the engine and the images, and makes the network; nothing runs yet.
    ///
    /// # Errors
    /// When no engine answers, an image cannot be had, or the scenario asks for what
    /// the compose file does not have.
    pub async fn prepare(
        (folder, named): (&LabFolder, &Named),
        scenario: &Scenario,
        kind: BackendKind,
        login: &Login,
        clock: Arc<dyn Clock>,
        mut say: impl FnMut(&str),
    ) -> Result<Self> {
        let engine = Engine::find(named)?;
        let servers = files::servers(kind);
        if scenario.backends.len() > servers.len() {
            return Err(Problem::usage(format!(
                "runtime `docker` has {} servers, the scenario {} backends",
                servers.len(),
                scenario.backends.len()
            )));
        }
        let mut services = files::besides(kind).to_vec();
        services.extend_from_slice(&servers[..scenario.backends.len()]);
        for spec in &scenario.proxies {
            let service = service_of(spec, kind)?;
            if services.contains(&service) {
                return Err(Problem::usage(format!(
                    "runtime `docker` has one service `{}`; two proxies of the scenario need it",
                    service.name
                )));
            }
            services.push(service);
        }
        let mut had: Vec<String> = Vec::new();
        for service in &services {
            let image = service.image_here();
            if !had.contains(&image) {
                get(&engine, *service, &image, &mut say).await?;
                had.push(image);
            }
        }
        let owner = folder.owner().clone();
        let project = Project::make(&owner, free_prefix()?)?;
        let events = Events::listen(folder.itself(), &engine.docker, &clock)?;
        let mut made = Self {
            engine,
            project,
            events,
            owner,
            kind,
            clock,
            login: login.clone(),
            admin: admin_login(),
            behind: Vec::new(),
        };
        made.behind = scenario
            .backends
            .iter()
            .zip(servers)
            .map(|(name, service)| (name.clone(), made.project.at(service.host, service.port)))
            .collect();
        made.write_files(named)?;
        Ok(made)
    }

    fn write_files(&self, named: &Named) -> Result<()> {
        let project = &self.project;
        project.write(
            "init.sql",
            &files::init_sql(self.kind, &self.login, &self.admin),
        )?;
        if self.kind == BackendKind::TidbCluster {
            project.write("tidb-cluster.toml", files::TIDB_CLUSTER)?;
            let openssl = super::process::find::find(named, &["openssl"], "apt install openssl")?;
            files::session_certificate(project, &openssl)?;
        }
        Ok(())
    }

    /// Starts services and says which containers they are, in order.
    async fn start(&self, services: &[Service]) -> Result<Vec<Container>> {
        let names: Vec<&str> = services.iter().map(|service| service.name).collect();
        let mut words = vec!["up", "--detach", "--no-build"];
        words.extend(&names);
        self.engine
            .compose(&self.project, &words)
            .await
            .map_err(|why| Problem::new(format!("cannot start {}: {why}", names.join(", "))))?;
        let mut containers = Vec::new();
        for service in services {
            let name = service.name;
            let id = self
                .engine
                .compose(&self.project, &["ps", "--quiet", name])
                .await
                .map_err(|why| Problem::new(format!("cannot find container `{name}`: {why}")))?;
            let id = id.lines().next().unwrap_or_default().trim().to_owned();
            containers.push(Container::new(
                self.engine.clone(),
                (name, self.project.at(service.host, service.port).ip()),
                id,
                self.events.clone(),
                Arc::clone(&self.clock),
            ));
        }
        Ok(containers)
    }

    /// Brings the servers up, in the scenario's order.
    ///
    /// # Errors
    /// When one does not come up.
    pub async fn backends(&self) -> Result<Vec<Box<dyn Backend>>> {
        let besides = files::besides(self.kind);
        if !besides.is_empty() {
            self.start(besides).await?;
        }
        let servers = &files::servers(self.kind)[..self.behind.len()];
        let containers = self.start(servers).await?;
        let mut backends: Vec<Box<dyn Backend>> = Vec::new();
        for ((name, address), (service, container)) in
            self.behind.iter().zip(servers.iter().zip(containers))
        {
            let backend = DockerBackend {
                name: name.clone(),
                image: service.image_here(),
                dialect: Dialect::of(self.kind).unwrap_or(Dialect::Tidb),
                address: *address,
                container,
                login: self.login.clone(),
                admin: self.admin.clone(),
                clock: Arc::clone(&self.clock),
                held: None,
            };
            backend.until_ready().await?;
            backends.push(Box::new(backend));
        }
        Ok(backends)
    }

    /// Brings a proxy up and waits until it routes.
    ///
    /// # Errors
    /// When it does not.
    pub async fn proxy(&self, spec: &ProxySpec) -> Result<Box<dyn Proxy>> {
        let service = service_of(spec, self.kind)?;
        let (file, text) = files::of_proxy(
            spec.kind,
            service,
            &self.behind,
            (&self.login, &self.admin),
            files::pd(&self.project),
        );
        self.project.write(file, &text)?;
        let container = self
            .start(&[service])
            .await?
            .into_iter()
            .next()
            .ok_or_else(|| Problem::new("the engine started nothing"))?;
        let admin_at = self.project.at(service.host, files::admin_port(spec.kind));
        let is_static = service.name == "tiproxy";
        let admin = match spec.kind {
            ProxyKind::Proxysql => {
                Admin::Proxysql(admin_at, self.admin.clone(), self.behind.clone())
            }
            ProxyKind::Tiproxy => Admin::Tiproxy(admin_at, self.behind.clone()),
            _ => Admin::Haproxy(Place::Port(admin_at)),
        };
        let proxy = DockerProxy {
            name: spec.name.clone(),
            image: service.image_here(),
            address: self.project.at(service.host, service.port),
            container,
            admin,
            drains: service.name != "tiproxy-cluster",
            told: is_static.then(|| (admin_at, self.behind.clone())),
            login: self.login.clone(),
            clock: Arc::clone(&self.clock),
        };
        proxy.until_it_routes().await?;
        Ok(Box::new(proxy))
    }
}

fn service_of(spec: &ProxySpec, kind: BackendKind) -> Result<Service> {
    files::proxy(spec.kind, kind).ok_or_else(|| {
        Problem::usage(format!(
            "runtime `docker` has no proxy `{}`; --runtime process may",
            spec.kind
        ))
    })
}

/// Has an image on this host, by pulling it if it has to.
async fn get(
    engine: &Engine,
    service: Service,
    image: &str,
    say: &mut impl FnMut(&str),
) -> Result<()> {
    if engine.has_image(image) {
        return Ok(());
    }
    say(&format!("pulling image {image}, which is not on this host"));
    engine
        .ask_patiently(&["pull", "--quiet", image])
        .await
        .map(drop)
        .map_err(|why| {
            Problem::new(format!("image {image} cannot be had: {why}")).hint(format!(
                "pull or load it by hand, or name one that is there with {}=IMAGE",
                service.variable
            ))
        })
}

/// A server in a container.
struct DockerBackend {
    name: String,
    image: String,
    dialect: Dialect,
    address: SocketAddr,
    container: Container,
    login: Login,
    admin: Login,
    clock: Arc<dyn Clock>,
    held: Option<HeldConnection>,
}

impl DockerBackend {
    async fn until_ready(&self) -> Result<i64> {
        let clock = self.clock.as_ref();
        let deadline = clock.raw_ns() + UP_WITHIN_NS;
        let ready = until_it_answers(clock, self.address, &self.login, deadline, || {
            self.container.alive()
        });
        match ready.await {
            Ok(stamp) => Ok(stamp),
            Err(why) => Err(self
                .container
                .problem(&format!(
                    "backend `{}` ({}) did not come up at {}: {why}",
                    self.name, self.image, self.address
                ))
                .await),
        }
    }

    async fn carry_out(&mut self, due: &Due) -> Result<Applied> {
        let held = match due.action {
            Action::Stop | Action::Kill => self.held.take(),
            _ => None,
        };
        let (mut applied, telling) = self.container.apply(due).await?;
        if matches!(due.action, Action::Stop | Action::Kill) {
            let asked_ns = applied.asked.earliest_ns;
            tokio::spawn(crate::witness::watch_listener(
                Arc::clone(&self.clock),
                self.address,
                asked_ns,
                telling.clone(),
            ));
            if let Some(held) = held {
                tokio::spawn(held.watch(Arc::clone(&self.clock), asked_ns, telling));
            }
        }
        if due.action == Action::Start {
            let latest_ns = self.until_ready().await?;
            applied.cleared = Some(gapscope_proto::fault::Span {
                earliest_ns: applied.asked.earliest_ns,
                latest_ns,
            });
        }
        Ok(applied)
    }
}

impl Backend for DockerBackend {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn program(&self) -> String {
        format!("{} in a container of {}", self.dialect.name(), self.image)
    }

    fn can(&self, action: Action) -> std::result::Result<(), String> {
        Container::can(action)
    }

    fn prepare(&mut self, action: Action) -> LocalBoxFuture<'_, Result<()>> {
        async move {
            if matches!(action, Action::Stop | Action::Kill) && self.held.is_none() {
                // One that speaks another login method only has a witness less.
                self.held = HeldConnection::open(self.address, &self.login).await.ok();
            }
            Ok(())
        }
        .boxed_local()
    }

    fn apply<'a>(&'a mut self, due: &'a Due) -> LocalBoxFuture<'a, Result<Applied>> {
        self.carry_out(due).boxed_local()
    }

    fn cut_clients(&mut self) -> LocalBoxFuture<'_, Result<String>> {
        async move {
            if self.container.alive().is_err() {
                return Ok("is down".to_owned());
            }
            cut_user(self.dialect, self.address, &self.admin, &self.login.user)
                .await
                .map_err(|error| {
                    Problem::new(format!(
                        "cannot end the connections to backend `{}` at {}: {error}",
                        self.name, self.address
                    ))
                })
        }
        .boxed_local()
    }

    fn shut_down(&mut self) -> LocalBoxFuture<'_, ()> {
        // With the composition.
        futures::future::ready(()).boxed_local()
    }
}

/// A proxy in a container.
struct DockerProxy {
    name: String,
    image: String,
    address: SocketAddr,
    container: Container,
    admin: Admin,
    /// Whether its drain is known here.
    drains: bool,
    /// Of TiProxy in static mode: where it is told its backends, which it forgets.
    told: Option<(SocketAddr, Vec<(String, SocketAddr)>)>,
    login: Login,
    clock: Arc<dyn Clock>,
}

impl DockerProxy {
    async fn until_it_routes(&self) -> Result<i64> {
        let clock = self.clock.as_ref();
        let deadline = clock.raw_ns() + ROUTES_WITHIN_NS;
        let alive = || self.container.alive();
        let routing = async {
            if let Some((admin, behind)) = &self.told {
                while let Err(why) = commit_namespace(*admin, behind.iter().map(|(_, at)| at)).await
                {
                    alive()?;
                    if clock.raw_ns() > deadline {
                        return Err(why);
                    }
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
            until_it_answers(clock, self.address, &self.login, deadline, alive).await
        };
        match routing.await {
            Ok(stamp) => Ok(stamp),
            Err(why) => Err(self
                .container
                .problem(&format!(
                    "proxy `{}` ({}) at {} does not route to a backend: {why}",
                    self.name, self.image, self.address
                ))
                .await),
        }
    }

    async fn carry_out(&mut self, due: &Due) -> Result<Applied> {
        let (mut applied, _) = self.container.apply(due).await?;
        if due.action == Action::Start {
            let latest_ns = self.until_it_routes().await?;
            applied.cleared = Some(gapscope_proto::fault::Span {
                earliest_ns: applied.asked.earliest_ns,
                latest_ns,
            });
        }
        Ok(applied)
    }
}

impl Proxy for DockerProxy {
    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> SocketAddr {
        self.address
    }

    fn program(&self) -> String {
        format!("a container of {}", self.image)
    }

    fn can(&self, action: Action) -> std::result::Result<(), String> {
        match action {
            Action::Drain | Action::Undrain if !self.drains => Err(
                "not applicable: with PD, TiProxy takes a server's own word that it is about to \
                 end; stop the server"
                    .to_owned(),
            ),
            Action::Drain | Action::Undrain => Ok(()),
            action if action.cuts_off() => {
                Err("not applicable: a proxy's packets are not cut off".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn apply<'a>(&'a mut self, due: &'a Due) -> LocalBoxFuture<'a, Result<Applied>> {
        self.carry_out(due).boxed_local()
    }

    fn drain<'a>(&'a mut self, backend: &'a str, on: bool) -> LocalBoxFuture<'a, Result<String>> {
        self.admin.drain(&self.name, backend, on).boxed_local()
    }

    fn viewer(&self) -> Option<Box<dyn Viewer>> {
        Some(self.admin.viewer())
    }

    fn shut_down(&mut self) -> LocalBoxFuture<'_, ()> {
        // With the composition.
        futures::future::ready(()).boxed_local()
    }
}
