//! Before every call: who is it, and may he? And during calls that last: still?
//!
//! A call whose caller has lost the right ends from both sides: what is read of it
//! fails, and what is sent ends with the reason.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use gapscope_proto::secret::Secret;
use http_body::Frame;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response, header};
use tower::{Layer, Service};

use super::gate::{Gate, Presented};
use crate::listen::Peer;

/// Puts a [`Guard`] around all services.
#[derive(Clone)]
pub struct GuardLayer(pub Arc<Gate>);

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard {
            inner,
            gate: self.0.clone(),
        }
    }
}

/// Lets in whom the gate lets in.
#[derive(Clone)]
pub struct Guard<S> {
    inner: S,
    gate: Arc<Gate>,
}

type Answer<E> = Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>;

impl<S> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answer<S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // The one that is ready; the other gets ready for the next.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let Some(peer) = request.extensions().get::<Peer>().cloned() else {
            let status = Status::internal("a connection without an address");
            return Box::pin(async move { Ok(status.into_http()) });
        };
        let presented = Presented {
            peer,
            token: bearer(request.headers_mut()),
        };
        // Before the decision, so that nothing is missed between.
        let changes = self.gate.changes();
        let (caller, rpc) = match self.gate.admit(&presented, request.uri().path()) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                return Box::pin(async move { Ok(refusal.status().into_http()) });
            }
        };
        if caller.is_known() || !self.gate.asks() {
            presented.peer.admitted();
        }
        request.extensions_mut().insert(caller.clone());
        if !(rpc.lasts() && caller.is_known()) {
            return Box::pin(inner.call(request));
        }
        let standing = Standing::default();
        let gate = self.gate.clone();
        let (why, ended) = (standing.why.clone(), standing.ended.clone());
        let done = CancellationToken::new();
        let guard = Arc::new(done.clone().drop_guard());
        tokio::spawn(async move {
            tokio::select! {
                () = done.cancelled() => {}
                status = gate.until_ended(&presented, rpc, changes) => {
                    let _ = why.set(status);
                    ended.cancel();
                }
            }
        });
        let request = request.map(|body| Body::new(Watched::new(body, &standing, &guard, Way::In)));
        let answer = inner.call(request);
        Box::pin(async move {
            let response = answer.await?;
            Ok(response.map(|body| Body::new(Watched::new(body, &standing, &guard, Way::Out))))
        })
    }
}

/// The bearer token, taken out of the headers so that it goes no further.
pub(crate) fn bearer(headers: &mut HeaderMap) -> Option<Secret> {
    let value = headers.remove(header::AUTHORIZATION)?;
    let text = value.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then(|| Secret::new(token.trim()))
}

/// Whether a call may still go on.
#[derive(Clone, Default)]
struct Standing {
    ended: CancellationToken,
    why: Arc<OnceLock<Status>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

/// A body that ends when its caller has lost the right.
struct Watched {
    inner: Body,
    ended: Pin<Box<tokio_util::sync::WaitForCancellationFutureOwned>>,
    why: Arc<OnceLock<Status>>,
    way: Way,
    over: bool,
    _guard: Arc<DropGuard>,
}

impl Watched {
    fn new(inner: Body, standing: &Standing, guard: &Arc<DropGuard>, way: Way) -> Self {
        Self {
            inner,
            ended: Box::pin(standing.ended.clone().cancelled_owned()),
            why: standing.why.clone(),
            way,
            over: false,
            _guard: guard.clone(),
        }
    }
}

impl http_body::Body for Watched {
    type Data = tonic::codegen::Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        if self.over {
            return Poll::Ready(None);
        }
        if self.ended.as_mut().poll(cx).is_ready() {
            self.over = true;
            let status = self
                .why
                .get()
                .cloned()
                .unwrap_or_else(|| Status::unavailable("the call was ended"));
            if self.way == Way::In {
                return Poll::Ready(Some(Err(status)));
            }
            let mut trailers = HeaderMap::new();
            let ending = match status.add_header(&mut trailers) {
                Ok(()) => Ok(Frame::trailers(trailers)),
                Err(status) => Err(status),
            };
            return Poll::Ready(Some(ending));
        }
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.inner.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(header: &str, expect: Option<&str>) {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, header.parse().expect("a value"));
        let token = bearer(&mut headers);
        assert_eq!(token.as_ref().map(Secret::expose), expect);
        assert!(headers.is_empty(), "it goes no further");
    }

    #[test]
    fn bearer_tokens() {
        check("Bearer abc", Some("abc"));
        check("bearer  abc ", Some("abc"));
        check("Basic abc", None);
        check("abc", None);
    }
}
