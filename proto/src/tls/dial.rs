//! A client's way to its server: where it is, by which CA it is known, with what
//! one shows oneself.
//!
//! The connection is made here and handed to gRPC ready, once: a channel that
//! connects again by itself would hide that the other side was gone, and could
//! not say why it does not come back.

use std::future::Future;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tonic::codegen::{InterceptedService, Service};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status};

use super::certificate::Facts;
use super::heard::{Heard, Io, Listening, tls_error};
use super::material::{self, ClientFiles, ClientMaterial};
use super::reload::{Kept, Look};
use super::words::{self, Side, Trouble};
use crate::clock::Clock;
use crate::secret::Secret;

/// The metadata key under which a server says what to do.
pub const HINT: &str = "gapscope-hint";

/// Where a server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// By TLS.
    pub secured: bool,
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl Address {
    /// Reads `http://HOST:PORT` or `https://HOST:PORT`.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(url: &str) -> Result<Self, Trouble> {
        let wrong = |why: &str| {
            Trouble::hinted(
                format!("`{url}` is not the URL of an aggregator: {why}"),
                "write it as https://HOST:PORT, or http://127.0.0.1:PORT on its own host",
            )
        };
        let uri: Uri = url.parse().map_err(|error| wrong(&format!("{error}")))?;
        let secured = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("no http:// or https://")),
        };
        if uri
            .path_and_query()
            .is_some_and(|rest| rest.as_str() != "/")
        {
            return Err(wrong("something stands behind the port"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("a user has no place in it"));
        }
        let port = authority.port_u16().ok_or_else(|| wrong("no port"))?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(wrong("no host"));
        }
        Ok(Self {
            secured,
            host,
            port,
        })
    }

    /// Whether it is on this host, as far as its text tells.
    fn is_here(&self) -> bool {
        self.host.eq_ignore_ascii_case("localhost")
            || self.host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    }
}

/// The way to a server.
pub struct Dialer {
    url: String,
    address: Address,
    tls: Option<Arc<Kept<ClientMaterial>>>,
    token: Option<Arc<Kept<Secret>>>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer").field("url", &self.url).finish()
    }
}

impl Dialer {
    /// Reads what is needed; connects to nobody yet. `clock` says what time it is
    /// when a certificate is refused.
    ///
    /// # Errors
    /// When the URL and the files do not go together, a file cannot be used, or a
    /// token would leave this host in clear text.
    pub fn new(url: &str, files: &ClientFiles, clock: Arc<dyn Clock>) -> Result<Self, Trouble> {
        let address = Address::parse(url)?;
        let tls = match (address.secured, &files.ca) {
            (true, None) => {
                return Err(Trouble::hinted(
                    format!("`{url}` is reached by TLS, and no CA is given by which to know it"),
                    "give the aggregator's ca.pem with --ca (agent: [tls] ca); for a certificate of \
                     a public CA, the system's bundle, often /etc/ssl/certs/ca-certificates.crt",
                ));
            }
            (false, Some(_)) => {
                return Err(Trouble::hinted(
                    format!("a CA is given, but `{url}` is clear text"),
                    "write https://, or leave --ca, --cert and --key ([tls]) out",
                ));
            }
            (false, None) if files.cert.is_some() || files.key.is_some() => {
                return Err(Trouble::hinted(
                    format!("a certificate is given, but `{url}` is clear text"),
                    "write https:// and give the aggregator's CA with --ca ([tls] ca)",
                ));
            }
            (false, None) => None,
            (true, Some(ca)) => Some(keep_material(ca.clone(), files)?),
        };
        if !address.secured && files.token.is_some() && !address.is_here() {
            return Err(clear_token(url));
        }
        let token = match files.token.clone() {
            None => None,
            Some(path) => Some(Kept::new("the token", vec![path.clone()], move || {
                material::token(&path)
            })?),
        };
        let dialer = Self {
            url: url.to_owned(),
            address,
            tls,
            token,
            clock,
        };
        dialer.remind();
        Ok(dialer)
    }

    /// Where it goes.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The own certificate, if there is one.
    pub fn own(&self) -> Option<Facts> {
        self.tls
            .as_ref()
            .and_then(|kept| kept.current().own.clone())
    }

    /// What is to be looked after by [`super::reload::keep`].
    pub fn files(&self) -> Vec<Arc<dyn Look>> {
        let tls = self.tls.clone().map(|kept| kept as Arc<dyn Look>);
        let token = self.token.clone().map(|kept| kept as Arc<dyn Look>);
        tls.into_iter().chain(token).collect()
    }

    /// Tells when there is a new certificate or token.
    pub fn changes(&self) -> Changes {
        Changes {
            tls: self.tls.as_ref().map(|kept| kept.changes()),
            token: self.token.as_ref().map(|kept| kept.changes()),
        }
    }

    /// Says so if the own certificate needs somebody.
    pub fn remind(&self) {
        if let Some(warning) = self.own().and_then(|own| own.warning(self.now_s())) {
            tracing::warn!("the certificate with which this side shows itself {warning}");
        }
    }

    fn now_s(&self) -> i64 {
        self.clock.anchor().realtime_ns.div_euclid(1_000_000_000)
    }

    /// Connects within this time; `settings` are gRPC's.
    ///
    /// # Errors
    /// When nobody answers, or it is the wrong one.
    pub async fn dial(
        &self,
        within: Duration,
        settings: impl FnOnce(Endpoint) -> Endpoint,
    ) -> Result<Line, Trouble> {
        // What is shown on this connection, whatever is replaced meanwhile.
        let tls = self.tls.as_ref().map(|kept| kept.current());
        let token = self.token.as_ref().map(|kept| kept.current());
        let io = tokio::time::timeout(within, self.open(tls.as_deref(), token.is_some()))
            .await
            .map_err(|_| {
                Trouble::hinted(
                    format!(
                        "no aggregator answers at {} within {} s",
                        self.url,
                        within.as_secs()
                    ),
                    "is it running, and does a firewall let one through?",
                )
            })??;
        let (io, heard) = Listening::new(io);
        let endpoint = Endpoint::from_shared(self.url.clone())
            .map_err(|error| Trouble::new(format!("`{}`: {error}", self.url)))?;
        let line = Line {
            channel: None,
            bearer: Bearer::new(token.as_deref()),
            heard,
            url: self.url.clone(),
            tls: tls.clone(),
            clock: self.clock.clone(),
        };
        match settings(endpoint)
            .connect_with_connector(Once(Some(io)))
            .await
        {
            Ok(channel) => Ok(Line {
                channel: Some(channel),
                ..line
            }),
            Err(error) => Err(line.explain(&Status::from_error(Box::new(error)))),
        }
    }

    async fn open(
        &self,
        tls: Option<&ClientMaterial>,
        has_token: bool,
    ) -> Result<Box<dyn Io>, Trouble> {
        let Address { host, port, .. } = &self.address;
        let unreached = |error: &std::io::Error| {
            Trouble::hinted(
                format!("no aggregator answers at {}: {error}", self.url),
                "start one with `gapscope-aggregator serve`, or say where it is with --aggregator URL",
            )
        };
        let tcp = TcpStream::connect((host.as_str(), *port))
            .await
            .map_err(|error| unreached(&error))?;
        tcp.set_nodelay(true).map_err(|error| unreached(&error))?;
        let Some(tls) = tls else {
            // A name says little: the address counts.
            let is_here = tcp.peer_addr().is_ok_and(|peer| peer.ip().is_loopback());
            if has_token && !is_here {
                return Err(clear_token(&self.url));
            }
            return Ok(Box::new(tcp));
        };
        let name = ServerName::try_from(host.clone())
            .map_err(|error| Trouble::new(format!("`{host}` is no name for TLS: {error}")))?;
        let stream = TlsConnector::from(tls.config.clone())
            .connect(name, tcp)
            .await
            .map_err(|error| self.shaken(&error, tls))?;
        Ok(Box::new(stream))
    }

    fn shaken(&self, error: &std::io::Error, tls: &ClientMaterial) -> Trouble {
        let Some(tls_error) = tls_error(error) else {
            return Trouble::hinted(
                format!(
                    "{} ended the connection during the TLS handshake: {error}",
                    self.url
                ),
                "if it speaks clear text, write http://; else its log says why",
            );
        };
        let side = Side::Client {
            own: tls.own.as_ref(),
            now_s: self.now_s(),
        };
        at(&self.url, words::explain(tls_error, side))
    }
}

fn at(url: &str, mut trouble: Trouble) -> Trouble {
    trouble.what = format!("{url}: {}", trouble.what);
    trouble
}

fn clear_token(url: &str) -> Trouble {
    Trouble::hinted(
        format!("the token is not sent to {url}: anyone on the way could read and use it"),
        "use https://, or reach the aggregator on this host's loopback, through an ssh tunnel",
    )
}

fn keep_material(ca: PathBuf, files: &ClientFiles) -> Result<Arc<Kept<ClientMaterial>>, Trouble> {
    let pair = match (files.cert.clone(), files.key.clone()) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        (Some(_), None) => return Err(Trouble::new("a certificate is given without its key")),
        (None, Some(_)) => return Err(Trouble::new("a key is given without its certificate")),
    };
    let mut watched = vec![ca.clone()];
    watched.extend(
        pair.iter()
            .flat_map(|(cert, key)| [cert.clone(), key.clone()]),
    );
    Kept::new("certificate, key and CA", watched, move || {
        let pair = pair
            .as_ref()
            .map(|(cert, key)| (cert.as_path(), key.as_path()));
        material::client(&ca, pair)
    })
}

/// Waits for a new certificate or token.
#[derive(Debug)]
pub struct Changes {
    tls: Option<watch::Receiver<Arc<ClientMaterial>>>,
    token: Option<watch::Receiver<Arc<Secret>>>,
}

impl Changes {
    /// The next one; never, if there is nothing that could change.
    pub async fn next(&mut self) {
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
            () = one(&mut self.tls) => {}
            () = one(&mut self.token) => {}
        }
    }
}

/// A channel on which each request shows the token, if there is one.
pub type Secured = InterceptedService<Channel, Bearer>;

/// A connection that stands.
pub struct Line {
    channel: Option<Channel>,
    bearer: Bearer,
    heard: Arc<Mutex<Heard>>,
    url: String,
    tls: Option<Arc<ClientMaterial>>,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("url", &self.url).finish()
    }
}

impl Line {
    /// For a client of gRPC.
    pub fn service(&self) -> Secured {
        let channel = self
            .channel
            .clone()
            .expect("it was connected when it was made");
        InterceptedService::new(channel, self.bearer.clone())
    }

    /// Says why a request failed: by what was heard on the connection, else by what
    /// the server answered.
    pub fn explain(&self, status: &Status) -> Trouble {
        let heard = self
            .heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(error) = heard.error {
            let side = Side::Client {
                own: self.tls.as_ref().and_then(|tls| tls.own.as_ref()),
                now_s: self.clock.anchor().realtime_ns.div_euclid(1_000_000_000),
            };
            return at(&self.url, words::explain(&error, side));
        }
        if self.tls.is_none() && heard.sounds_like_tls() {
            return at(
                &self.url,
                Trouble::hinted(
                    "what answers there speaks TLS",
                    "write https://, and give its CA with --ca (agent: [tls] ca)",
                ),
            );
        }
        let mut trouble = of_status(status);
        if heard.first.is_none() && status.code() != Code::Unauthenticated {
            // Nothing at all was answered: what gRPC calls it says nothing.
            trouble = Trouble::hinted(
                format!(
                    "{} ended the connection without an answer ({})",
                    self.url, trouble.what
                ),
                "its log says why; is it an aggregator?",
            );
        }
        trouble
    }
}

/// What a server answered, with its hint.
pub fn of_status(status: &Status) -> Trouble {
    let mut what = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        let text = cause.to_string();
        if !what.contains(&text) {
            what = format!("{what}: {text}");
        }
        source = cause.source();
    }
    let hint = status
        .metadata()
        .get(HINT)
        .and_then(|hint| hint.to_str().ok())
        .map(str::to_owned);
    Trouble { what, hint }
}

/// Shows the token with each request.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

impl Bearer {
    fn new(token: Option<&Secret>) -> Self {
        Self(token.map(|token| {
            let text = zeroize::Zeroizing::new(format!("Bearer {}", token.expose()));
            let mut value = MetadataValue::try_from(text.as_str())
                .expect("a token is made of visible characters");
            // Neither printed nor kept in HTTP/2's table of headers.
            value.set_sensitive(true);
            value
        }))
    }
}

impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bearer(***)")
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(value) = &self.0 {
            request
                .metadata_mut()
                .insert("authorization", value.clone());
        }
        Ok(request)
    }
}

/// Gives a connection that stands already, once.
struct Once(Option<Listening>);

impl Service<Uri> for Once {
    type Response = TokioIo<Listening>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let io = self.0.take().map(TokioIo::new);
        Box::pin(async move { io.ok_or_else(|| std::io::Error::other("the connection has ended")) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[track_caller]
    fn check(url: &str, expect: Result<(bool, &str, u16), &str>) {
        match (Address::parse(url), expect) {
            (Ok(address), Ok((secured, host, port))) => assert_eq!(
                (address.secured, address.host.as_str(), address.port),
                (secured, host, port)
            ),
            (Err(trouble), Err(part)) => assert!(trouble.what.contains(part), "{trouble}"),
            (got, _) => panic!("{url}: {got:?}"),
        }
    }

    #[test]
    fn urls() {
        check("http://127.0.0.1:7350", Ok((false, "127.0.0.1", 7350)));
        check("https://db.example:1/", Ok((true, "db.example", 1)));
        check("https://[::1]:7350", Ok((true, "::1", 7350)));
        check("https://db.example", Err("no port"));
        check("db.example:7350", Err("no http:// or https://"));
        check("ftp://x:1", Err("no http:// or https://"));
        check("https://u:p@x:1", Err("a user has no place"));
        check("https://x:1/y", Err("behind the port"));
    }

    #[track_caller]
    fn refused(url: &str, files: &ClientFiles, part: &str) {
        let dialer = Dialer::new(url, files, Arc::new(SystemClock::new()));
        let trouble = dialer.expect_err("refused");
        assert!(trouble.what.contains(part), "{trouble}");
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let none = ClientFiles::default();
        let token = ClientFiles {
            token: Some("/nonexistent".into()),
            ..none.clone()
        };
        let ca = ClientFiles {
            ca: Some("/nonexistent".into()),
            ..none.clone()
        };
        refused("https://x:1", &none, "no CA is given");
        refused("http://x:1", &ca, "is clear text");
        refused("https://x:1", &ca, "cannot read the CA's certificate");
        refused("http://10.0.0.5:1", &token, "the token is not sent");
        refused("http://db.example:1", &token, "the token is not sent");
        refused("http://127.0.0.1:1", &token, "cannot read the token");
        let half = ClientFiles {
            cert: Some("x".into()),
            ..ca.clone()
        };
        refused("https://x:1", &half, "without its key");
    }
}
