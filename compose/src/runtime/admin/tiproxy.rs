//! TiProxy's HTTP port. In static mode (no PD) its backends are those of a
//! namespace, which is put and then committed; what it believes of them stands in
//! its metrics.
//!
//! A drain is a namespace without the backend: new clients go elsewhere. Clients
//! that are there stay: a commit makes a new router, which knows nothing of the
//! connections of the old one.

use std::net::SocketAddr;

use futures::FutureExt;
use futures::future::BoxFuture;

use super::{Backends, address_of, http, name_of};
use crate::runtime::{Belief, Beliefs, Viewer};

const NAMESPACE: &str = "/api/admin/namespace/default";
const COMMIT: &str = "/api/admin/namespace/commit";

fn namespace<'a>(backends: impl Iterator<Item = &'a SocketAddr>) -> String {
    let instances: Vec<String> = backends.map(ToString::to_string).collect();
    serde_json::json!({
        "namespace": "default",
        "backend": { "instances": instances },
    })
    .to_string()
}

/// Gives it these backends: only the commit makes it use them.
///
/// # Errors
/// When it does not answer, or refuses.
pub async fn commit<'a>(
    address: SocketAddr,
    backends: impl Iterator<Item = &'a SocketAddr>,
) -> Result<(), String> {
    http::ask(address, "PUT", NAMESPACE, &namespace(backends)).await?;
    http::ask(address, "POST", COMMIT, "").await.map(drop)
}

pub(super) async fn drain(
    address: SocketAddr,
    backends: &Backends,
    backend: &str,
    on: bool,
) -> Result<String, String> {
    let gone = address_of(backends, backend)?;
    let left = backends
        .iter()
        .map(|(_, at)| at)
        .filter(|at| !on || **at != gone);
    commit(address, left).await?;
    Ok(if on {
        "namespace without it committed".to_owned()
    } else {
        "namespace with it committed".to_owned()
    })
}

/// Reads what TiProxy believes of its backends.
pub(super) struct MetricsViewer {
    address: SocketAddr,
    backends: Backends,
}

impl MetricsViewer {
    pub(super) fn new(address: SocketAddr, backends: Backends) -> Self {
        Self { address, backends }
    }
}

impl Viewer for MetricsViewer {
    fn look(&mut self) -> BoxFuture<'_, Beliefs> {
        async move {
            let text = http::ask(self.address, "GET", "/metrics", "").await?;
            Ok(beliefs(&text, &self.backends))
        }
        .boxed()
    }
}

/// The value of `NAME{backend="ADDRESS"}` for each address.
fn gauge<'t>(text: &'t str, name: &str) -> Vec<(&'t str, f64)> {
    text.lines()
        .filter_map(|line| {
            let rest = line.strip_prefix(name)?.strip_prefix("{backend=\"")?;
            let (address, rest) = rest.split_once("\"}")?;
            Some((address, rest.trim().parse().ok()?))
        })
        .collect()
}

fn beliefs(text: &str, backends: &Backends) -> Vec<Belief> {
    let sessions = gauge(text, "tiproxy_balance_b_conn");
    gauge(text, "tiproxy_backend_b_status")
        .into_iter()
        .filter_map(|(address, up)| {
            let held = sessions.iter().find(|(at, _)| *at == address);
            Some(Belief {
                backend: name_of(backends, address)?.to_owned(),
                state: if up > 0.5 { "healthy" } else { "down" }.to_owned(),
                check: String::new(),
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a count of connections"
                )]
                sessions: held.map(|(_, count)| *count as u64),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backends() -> Backends {
        vec![
            ("a".to_owned(), SocketAddr::from(([10, 0, 0, 1], 4000))),
            ("b".to_owned(), SocketAddr::from(([10, 0, 0, 2], 4000))),
        ]
    }

    #[test]
    fn backends_are_read_from_the_metrics() {
        let text = "# HELP tiproxy_backend_b_status Gauge of backend status.\n\
                    # TYPE tiproxy_backend_b_status gauge\n\
                    tiproxy_backend_b_status{backend=\"10.0.0.1:4000\"} 0\n\
                    tiproxy_backend_b_status{backend=\"10.0.0.2:4000\"} 1\n\
                    tiproxy_backend_b_status{backend=\"10.0.0.9:4000\"} 1\n\
                    tiproxy_balance_b_conn{backend=\"10.0.0.2:4000\"} 7\n";
        let seen: Vec<_> = beliefs(text, &backends())
            .into_iter()
            .map(|belief| (belief.backend.clone(), belief.is_up(), belief.sessions))
            .collect();
        assert_eq!(
            seen,
            [
                ("a".to_owned(), false, None),
                ("b".to_owned(), true, Some(7))
            ]
        );
    }

    #[test]
    fn a_namespace_holds_the_addresses() {
        let backends = backends();
        let text = namespace(backends.iter().map(|(_, at)| at));
        let read: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(read["backend"]["instances"][1], "10.0.0.2:4000");
        assert_eq!(read["namespace"], "default");
    }
}
