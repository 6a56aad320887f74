//! As much of an HTTP client as this command needs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::body::{Body, to_bytes};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{Method, Request, Uri};
use gapscope_proto::secret::Secret;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::output::hinted;

/// How long one request may take.
const WITHIN: Duration = Duration::from_secs(20);
/// Bytes of an answer.
const LONGEST: usize = 1 << 20;

/// Where requests go.
pub(super) struct Server {
    host: String,
    port: u16,
    prefix: String,
    tls: Option<Arc<ClientConfig>>,
    token: Secret,
}

trait Way: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Way for T {}

impl Server {
    /// From its address.
    ///
    /// # Errors
    /// When that is none, or the token would go over a network in clear text.
    pub(super) fn new(
        url: &str,
        ca: Option<&Path>,
        token: Secret,
        in_clear: bool,
    ) -> anyhow::Result<Self> {
        let wrong = || {
            hinted(
                format!("`{url}` is no address of a Grafana"),
                "an address such as https://grafana.example.org or http://127.0.0.1:3000/prefix \
                 is expected",
            )
        };
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let host = uri.host().ok_or_else(wrong)?;
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let is_local = host == "localhost"
            || host
                .parse::<std::net::IpAddr>()
                .is_ok_and(|ip| ip.is_loopback());
        let (tls, port) = match uri.scheme_str() {
            Some("https") => (Some(config(ca)?), 443),
            Some("http") if is_local || in_clear => (None, 80),
            Some("http") => {
                return Err(hinted(
                    format!("the token would go to {host} in clear text"),
                    "use https://, or accept the risk with --insecure-clear-text",
                ));
            }
            _ => return Err(wrong()),
        };
        Ok(Self {
            port: uri.port_u16().unwrap_or(port),
            host,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            tls,
            token,
        })
    }

    pub(super) async fn get(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        self.ask(Method::GET, path, Vec::new()).await
    }

    pub(super) async fn post(&self, path: &str, json: Vec<u8>) -> anyhow::Result<Vec<u8>> {
        self.ask(Method::POST, path, json).await
    }

    async fn ask(&self, method: Method, path: &str, json: Vec<u8>) -> anyhow::Result<Vec<u8>> {
        tokio::time::timeout(WITHIN, self.exchange(method, path, json))
            .await
            .map_err(|_| {
                anyhow::anyhow!("{}: no answer within {} s", self.name(), WITHIN.as_secs())
            })?
    }

    fn name(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    async fn exchange(&self, method: Method, path: &str, json: Vec<u8>) -> anyhow::Result<Vec<u8>> {
        let tcp = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .with_context(|| format!("cannot connect to {}", self.name()))?;
        let way: Box<dyn Way> = match &self.tls {
            None => Box::new(tcp),
            Some(config) => {
                let name = ServerName::try_from(self.host.clone())
                    .with_context(|| format!("`{}` is no name of a host", self.host))?;
                let connector = TlsConnector::from(config.clone());
                let secured = connector.connect(name, tcp).await;
                Box::new(secured.with_context(|| format!("no TLS with {}", self.name()))?)
            }
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(way))
            .await
            .with_context(|| format!("{} speaks no HTTP", self.name()))?;
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(HOST, self.name())
            .header(AUTHORIZATION, format!("Bearer {}", self.token.expose()))
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(json))
            .context("a request that cannot be sent")?;
        let asking = async {
            let answer = sender.send_request(request).await?;
            let status = answer.status();
            let body = to_bytes(Body::new(answer.into_body()), LONGEST).await?;
            anyhow::Ok((status, body.to_vec()))
        };
        tokio::pin!(asking);
        let answered = tokio::select! {
            answered = &mut asking => answered,
            // It may end with the answer already there.
            _ = connection => asking.await,
        };
        let (status, body) = answered.with_context(|| format!("{} broke off", self.name()))?;
        if status.is_success() {
            return Ok(body);
        }
        let said: String = String::from_utf8_lossy(&body)
            .chars()
            .filter(|c| !c.is_control())
            .take(200)
            .collect();
        let hint = match status.as_u16() {
            401 | 403 => "may the service account of this token write annotations?",
            404 => "is this the address of Grafana, with its path?",
            _ => "what does Grafana's log say?",
        };
        Err(hinted(
            format!("{} answers {status}: {said}", self.name()),
            hint,
        ))
    }
}

fn config(ca: Option<&Path>) -> anyhow::Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            let read = |error| {
                anyhow::anyhow!(
                    "cannot read the CA's certificate `{}`: {error}",
                    path.display()
                )
            };
            for certificate in CertificateDer::pem_file_iter(path).map_err(read)? {
                roots.add(certificate.map_err(read)?)?;
            }
        }
        None => {
            for certificate in rustls_native_certs::load_native_certs().certs {
                // The system may have some that are not understood.
                let _ = roots.add(certificate);
            }
        }
    }
    if roots.is_empty() {
        return Err(hinted(
            "there is no certificate by which Grafana could be known",
            "install ca-certificates, or give --ca FILE",
        ));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("no version of TLS can be spoken")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
