//! Who is it: by certificate, by token, and not on the deny list.
//!
//! Asked at each call, and of calls that last again whenever a file changes and
//! twice a minute: a certificate that has expired, was denied, or whose CA is
//! trusted no more ends its holder's streams.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gapscope_proto::clock::Clock;
use gapscope_proto::small_file;
use gapscope_proto::tls::material::{self, ServerMaterial};
use gapscope_proto::tls::reload::Look;
use gapscope_proto::tls::words::{self, Side};
use gapscope_proto::tls::{Kept, Principal, ServerFiles, Trouble};
use rustls::pki_types::UnixTime;
use tokio::sync::watch;
use tonic::{Code, Status};

use super::access::{Rpc, may};
use super::caller::{Caller, status};
use super::deny::Deny;
use super::limits::Meter;
use super::tokens::Tokens;
use crate::listen::{Peer, Shown};

/// TLS handshakes of one address: a hundred a second, after a burst that lets a
/// thousand agents come back at once, with two connections each.
const SHAKE_EVERY_NS: i64 = 10_000_000;
const SHAKE_BURST: i64 = 2_000;
/// Failed logins of one address: one a second, after a few.
const FAIL_EVERY_NS: i64 = 1_000_000_000;
const FAIL_BURST: i64 = 20;
/// Lines of the log about one address, which may stand for many hosts.
const LOG_EVERY_NS: i64 = 5_000_000_000;
const LOG_BURST: i64 = 30;

/// How a server is secured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Security {
    /// Its certificate, and by what it knows clients by theirs.
    pub tls: Option<ServerFiles>,
    /// Whose token is whose.
    pub tokens: Option<PathBuf>,
    /// Who is not let in any more.
    pub deny: Option<PathBuf>,
}

/// Decides who is let in.
pub struct Gate {
    tls: Option<Arc<Kept<ServerMaterial>>>,
    tokens: Option<Arc<Kept<Tokens>>>,
    deny: Option<Arc<Kept<Deny>>>,
    clock: Arc<dyn Clock>,
    meters: Mutex<Meters>,
}

struct Meters {
    shakes: Meter,
    failures: Meter,
    log: Meter,
}

/// What has been shown with a call.
#[derive(Clone)]
pub struct Presented {
    /// The connection.
    pub peer: Peer,
    /// The bearer token, if there is one.
    pub token: Option<gapscope_proto::secret::Secret>,
}

/// Why somebody is not let in.
#[derive(Debug, Clone)]
pub struct Refusal {
    code: Code,
    trouble: Trouble,
}

impl Refusal {
    fn login(trouble: Trouble) -> Self {
        Self {
            code: Code::Unauthenticated,
            trouble,
        }
    }

    fn denied(trouble: Trouble) -> Self {
        Self {
            code: Code::PermissionDenied,
            trouble,
        }
    }

    /// Nobody knows who it is; otherwise it is known, and may not.
    pub fn is_login(&self) -> bool {
        self.code == Code::Unauthenticated
    }

    /// What a person is told.
    pub fn trouble(&self) -> &Trouble {
        &self.trouble
    }

    /// As gRPC sends it.
    pub fn status(&self) -> Status {
        status(self.code, &self.trouble)
    }
}

fn text(path: &std::path::Path, what: &str) -> Result<String, Trouble> {
    small_file::read_text(path, small_file::BY_HAND).map_err(|error| {
        Trouble::hinted(
            format!("cannot read {what} `{}`: {error}", path.display()),
            "is the path right, and may this user read it?",
        )
    })
}

fn placed(path: &std::path::Path, mut trouble: Trouble) -> Trouble {
    trouble.what = format!("`{}`, {}", path.display(), trouble.what);
    trouble
}

impl Gate {
    /// Reads what is needed.
    ///
    /// # Errors
    /// When a file cannot be used.
    pub fn open(security: &Security, clock: Arc<dyn Clock>) -> Result<Arc<Self>, Trouble> {
        let tls = match security.tls.clone() {
            None => None,
            Some(files) => Some(Kept::new(
                "the certificate of this server",
                files.paths(),
                move || material::server(&files),
            )?),
        };
        let tokens = match security.tokens.clone() {
            None => None,
            Some(path) => Some(Kept::new("the tokens", vec![path.clone()], move || {
                let text = text(&path, "the tokens")?;
                Tokens::parse(&text).map_err(|trouble| placed(&path, trouble))
            })?),
        };
        let deny = match security.deny.clone() {
            None => None,
            Some(path) => Some(Kept::new("the deny list", vec![path.clone()], move || {
                let text = text(&path, "the deny list")?;
                Deny::parse(&text).map_err(|trouble| placed(&path, trouble))
            })?),
        };
        let gate = Self {
            tls,
            tokens,
            deny,
            clock,
            meters: Mutex::new(Meters {
                shakes: Meter::new(SHAKE_EVERY_NS, SHAKE_BURST),
                failures: Meter::new(FAIL_EVERY_NS, FAIL_BURST),
                log: Meter::new(LOG_EVERY_NS, LOG_BURST),
            }),
        };
        gate.remind();
        Ok(Arc::new(gate))
    }

    /// What is to be looked after.
    pub fn files(&self) -> Vec<Arc<dyn Look>> {
        let tls = self.tls.clone().map(|kept| kept as Arc<dyn Look>);
        let tokens = self.tokens.clone().map(|kept| kept as Arc<dyn Look>);
        let deny = self.deny.clone().map(|kept| kept as Arc<dyn Look>);
        tls.into_iter().chain(tokens).chain(deny).collect()
    }

    /// The TLS of the next connection, if there is any.
    pub fn tls(&self) -> Option<Arc<ServerMaterial>> {
        self.tls.as_ref().map(|kept| kept.current())
    }

    /// Says so if the server's certificate needs somebody.
    pub fn remind(&self) {
        if let Some(tls) = self.tls()
            && let Some(warning) = tls.own.warning(self.now_s())
        {
            tracing::warn!("the certificate of this server {warning}");
        }
    }

    fn now_s(&self) -> i64 {
        self.clock.anchor().realtime_ns.div_euclid(1_000_000_000)
    }

    fn metered<T>(&self, with: impl FnOnce(&mut Meters, i64) -> T) -> T {
        let now_ns = self.clock.raw_ns();
        with(
            &mut self.meters.lock().unwrap_or_else(PoisonError::into_inner),
            now_ns,
        )
    }

    /// Whether a connection of this address is served at all.
    pub fn may_come(&self, from: IpAddr) -> bool {
        let (may, why) = self.metered(|meters, now_ns| {
            if meters.failures.wait_ns(from, now_ns) > 0 {
                (false, "too many logins of this address have failed")
            } else if self.tls.is_some() && !meters.shakes.take(from, now_ns) {
                (false, "this address connects too often")
            } else {
                (true, "")
            }
        });
        if !may && self.metered(|meters, now_ns| meters.log.take(from, now_ns)) {
            tracing::warn!(peer = %from, "not served for the moment: {why}");
        }
        may
    }

    /// Takes note of a login that failed: nobody knows who it was.
    pub fn failed(&self, from: SocketAddr, trouble: &Trouble) {
        self.metered(|meters, now_ns| meters.failures.take(from.ip(), now_ns));
        self.told(from, trouble);
    }

    /// Says why somebody was refused, unless much was said about this address.
    fn told(&self, from: SocketAddr, trouble: &Trouble) {
        if self.metered(|meters, now_ns| meters.log.take(from.ip(), now_ns)) {
            tracing::warn!(peer = %from, "refused: {}", trouble.line());
        }
    }

    /// Decides about a call.
    ///
    /// # Errors
    /// When it is refused; that is said here too.
    pub fn admit(&self, presented: &Presented, path: &str) -> Result<(Caller, Rpc), Refusal> {
        let Some(rpc) = Rpc::of_path(path) else {
            return Err(self.refused(
                presented,
                Refusal {
                    code: Code::Unimplemented,
                    trouble: Trouble::hinted(
                        "this aggregator does not know this call",
                        "use programs of the same version",
                    ),
                },
            ));
        };
        if rpc == Rpc::Health {
            return Ok((Caller::Anyone, rpc));
        }
        Ok((self.admit_to(presented, rpc)?, rpc))
    }

    /// Takes note of a refusal, and says it.
    fn refused(&self, presented: &Presented, refusal: Refusal) -> Refusal {
        let address = presented.peer.address;
        match refusal.code {
            Code::Unauthenticated => self.failed(address, &refusal.trouble),
            _ => self.told(address, &refusal.trouble),
        }
        refusal
    }

    /// Decides whether somebody may do this.
    ///
    /// # Errors
    /// When it is refused; that is said here too.
    pub fn admit_to(&self, presented: &Presented, rpc: Rpc) -> Result<Caller, Refusal> {
        let refused = |refusal| self.refused(presented, refusal);
        let caller = self.identify(presented).map_err(refused)?;
        if let Caller::Known(known) = &caller
            && !may(known.role, rpc)
        {
            return Err(refused(Refusal::denied(Trouble::hinted(
                format!("{known} may not {}", rpc.as_str()),
                match rpc.is_an_agents() {
                    true => "only an agent may, with its own certificate or token",
                    false if may(gapscope_proto::tls::Role::Viewer, rpc) => {
                        "an operator or a viewer may, with a certificate or token of that role"
                    }
                    false => "an operator may, with a certificate or token of that role",
                },
            ))));
        }
        Ok(caller)
    }

    /// Whether anybody is asked who he is.
    pub fn asks(&self) -> bool {
        self.tokens.is_some() || self.tls().is_some_and(|tls| tls.verifier.is_some())
    }

    /// Whether somebody can be known by a token.
    pub fn takes_tokens(&self) -> bool {
        self.tokens.is_some()
    }

    /// Finds out who it is.
    ///
    /// # Errors
    /// When that is not known, or not good any more.
    pub fn identify(&self, presented: &Presented) -> Result<Caller, Refusal> {
        let tls = self.tls();
        let asks_certificates = tls.as_ref().is_some_and(|tls| tls.verifier.is_some());
        if !self.asks() {
            return Ok(Caller::Anyone);
        }
        let by_certificate = match &presented.peer.shown {
            Some(shown) => Some(self.of_certificate(shown, tls.as_deref())?),
            None => None,
        };
        let by_token = match (&self.tokens, &presented.token) {
            (Some(tokens), Some(token)) => {
                let found = tokens.current().find(token.expose()).cloned();
                Some(found.ok_or_else(|| {
                    Refusal::login(Trouble::hinted(
                        "the token is not one that this aggregator knows",
                        "get one with `gapscope-aggregator tokens add` on the aggregator's host; \
                         it may have been removed or replaced there",
                    ))
                })?)
            }
            _ => None,
        };
        let principal = match (by_certificate, by_token) {
            (Some(certificate), Some(token)) if certificate != token => {
                return Err(Refusal::login(Trouble::hinted(
                    format!("the certificate is that of {certificate}, the token that of {token}"),
                    "show one of them, or two of the same",
                )));
            }
            (Some(principal), _) | (None, Some(principal)) => principal,
            (None, None) => {
                return Err(Refusal::login(if asks_certificates {
                    Trouble::hinted(
                        "this aggregator asks for a certificate or a token, and none was shown",
                        "give the agent [tls] cert and key or token_file, a command --cert and --key or --token-file",
                    )
                } else {
                    Trouble::hinted(
                        "this aggregator asks for a token, and none was shown",
                        "give the agent token_file, a command --token-file",
                    )
                }));
            }
        };
        if self
            .deny
            .as_ref()
            .is_some_and(|deny| deny.current().has(&principal))
        {
            return Err(on_the_list(&principal.to_string()));
        }
        Ok(Caller::Known(principal))
    }

    fn of_certificate(
        &self,
        shown: &Shown,
        tls: Option<&ServerMaterial>,
    ) -> Result<Principal, Refusal> {
        // Checked in the handshake; but the CA may be another since, and time passes.
        if let Some(verifier) = tls.and_then(|tls| tls.verifier.as_ref()) {
            let now = u64::try_from(self.now_s()).unwrap_or(0);
            let now = UnixTime::since_unix_epoch(Duration::from_secs(now));
            verifier
                .verify_client_cert(&shown.chain[0], &shown.chain[1..], now)
                .map_err(|error| Refusal::login(words::explain(&error, Side::Server)))?;
        }
        let serial = &shown.facts.serial;
        if self
            .deny
            .as_ref()
            .is_some_and(|deny| deny.current().has_serial(serial))
        {
            return Err(on_the_list(&format!(
                "the certificate with serial {serial}"
            )));
        }
        match shown.facts.principal() {
            Ok(Some(principal)) => Ok(principal.clone()),
            Ok(None) => Err(Refusal::login(Trouble::hinted(
                "the certificate does not say whose it is",
                "it needs a URI gapscope://agent/ID, operator/NAME or viewer/NAME among its alternative names, as `gapscope-aggregator certs` makes it",
            ))),
            Err(why) => Err(Refusal::login(Trouble::new(format!(
                "the certificate does not say clearly whose it is: {why}"
            )))),
        }
    }

    /// Tells when somebody may have lost his right.
    pub fn changes(&self) -> Changes {
        Changes {
            tls: self.tls.as_ref().map(|kept| kept.changes()),
            tokens: self.tokens.as_ref().map(|kept| kept.changes()),
            deny: self.deny.as_ref().map(|kept| kept.changes()),
        }
    }

    /// Waits until a call that lasts must end; says why.
    pub async fn until_ended(
        &self,
        presented: &Presented,
        rpc: Rpc,
        mut changes: Changes,
    ) -> Status {
        loop {
            let new_certificate = changes.next().await;
            if let Err(refusal) = self.identify(presented) {
                self.told(presented.peer.address, &refusal.trouble);
                return refusal.status();
            }
            if new_certificate && rpc.is_an_agents() {
                return Status::unavailable(
                    "the aggregator has a new certificate; the connection is made anew with it",
                );
            }
        }
    }
}

fn on_the_list(who: &str) -> Refusal {
    Refusal::denied(Trouble::hinted(
        format!("{who} is on the deny list of this aggregator"),
        "its operator has put it there (--deny FILE); a new certificate or token under another name, or taking it off, lets one in again",
    ))
}

/// Waits for what may cost somebody his right.
pub struct Changes {
    tls: Option<watch::Receiver<Arc<ServerMaterial>>>,
    tokens: Option<watch::Receiver<Arc<Tokens>>>,
    deny: Option<watch::Receiver<Arc<Deny>>>,
}

/// Certificates expire without anything changing.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

impl Changes {
    /// The next one; true if the server's own certificate was replaced.
    async fn next(&mut self) -> bool {
        async fn one<T>(changes: &mut Option<watch::Receiver<T>>) {
            // Without a file, or at the very end, nothing changes any more.
            let changed = match changes {
                Some(changes) => changes.changed().await.is_ok(),
                None => false,
            };
            if !changed {
                std::future::pending::<()>().await;
            }
        }
        tokio::select! {
            () = one(&mut self.tls) => true,
            () = one(&mut self.tokens) => false,
            () = one(&mut self.deny) => false,
            () = tokio::time::sleep(LOOK_AGAIN) => false,
        }
    }
}
