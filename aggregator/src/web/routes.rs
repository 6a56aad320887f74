//! What is answered under which path, and to whom.

use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path as InPath, Request, State};
use axum::http::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    COOKIE, HOST, LOCATION, ORIGIN, REFERRER_POLICY, SET_COOKIE, WWW_AUTHENTICATE,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::{get, post};
use gapscope_proto::ids::RunId;
use gapscope_proto::tls::Trouble;

use super::login::{self, Sessions};
use super::overview::Kept;
use super::page::Pages;
use super::{events, host, metrics};
use crate::auth::access::Rpc;
use crate::auth::caller::Caller;
use crate::auth::gate::{Gate, Presented};
use crate::auth::layer::bearer;
use crate::ingest::hub::Hub;
use crate::listen::Peer;

/// Bytes of a form.
const LONGEST_FORM: usize = 4 << 10;
/// What is said of everything that has no policy of its own.
const NOTHING: &str =
    "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
/// A report runs its own script, and is of nobody's origin: it gets at nothing here.
const REPORT: &str = "sandbox allow-scripts; default-src 'none'; style-src \
                      'unsafe-inline'; script-src 'unsafe-inline'; frame-ancestors 'none'; \
                      base-uri 'none'; form-action 'none'";

/// What answers need.
pub(super) struct App {
    pub(super) hub: Arc<Hub>,
    pub(super) gate: Arc<Gate>,
    names: Vec<String>,
    sessions: Sessions,
    pages: Pages,
    kept: Kept,
}

/// Somebody who was let in.
#[derive(Clone)]
pub(super) struct Visitor {
    pub(super) caller: Caller,
    pub(super) presented: Presented,
}

impl App {
    pub(super) fn new(hub: Arc<Hub>, gate: Arc<Gate>, names: Vec<String>) -> Self {
        Self {
            sessions: Sessions::new(hub.clock().clone()),
            hub,
            gate,
            names,
            pages: Pages::new(),
            kept: Kept::default(),
        }
    }

    pub(super) async fn overview(&self) -> Arc<str> {
        self.kept.json(&self.hub).await
    }

    fn is_ours(&self, host: &str) -> bool {
        let own = self.gate.tls();
        let certified = own.as_ref().map_or(&[][..], |tls| &tls.own.hosts[..]);
        host::is_ours(host, &self.names) || host::is_ours(host, certified)
    }

    /// A browser keeps a cookie with such a name to this host, and to https.
    fn cookie_name(&self) -> &'static str {
        match self.gate.tls() {
            Some(_) => "__Host-gapscope",
            None => "gapscope",
        }
    }

    fn cookie(&self, number: &str, lasts_s: i64) -> String {
        let secure = match self.gate.tls() {
            Some(_) => "; Secure",
            None => "",
        };
        format!(
            "{}={number}; Path=/; HttpOnly; SameSite=Strict; Max-Age={lasts_s}{secure}",
            self.cookie_name()
        )
    }

    fn session<'a>(&self, headers: &'a HeaderMap) -> Option<&'a str> {
        let mut all = headers.get_all(COOKIE).into_iter();
        all.find_map(|header| login::cookie(header.to_str().ok()?, self.cookie_name()))
    }
}

pub(super) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/login", post(log_in))
        .route("/logout", post(log_out))
        .route("/events", get(stream))
        .route("/metrics", get(collect))
        .route("/runs/{run}/{file}", get(report))
        .fallback(unknown)
        .layer(from_fn_with_state(app.clone(), guard))
        .with_state(app)
}

fn plain(status: StatusCode, text: &str) -> Response {
    let mut response = Response::new(Body::from(format!("{text}\n")));
    *response.status_mut() = status;
    set(&mut response, CONTENT_TYPE, "text/plain; charset=utf-8");
    response
}

fn html(status: StatusCode, text: String, policy: &str) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    set(&mut response, CONTENT_TYPE, "text/html; charset=utf-8");
    set(&mut response, CONTENT_SECURITY_POLICY, policy);
    response
}

fn set(response: &mut Response, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

fn text_of(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Before everything: is it meant for us, and on every answer what a browser may do
/// with it.
async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    // Two names are none: who reads the other one would see somebody else (RFC 9112, 3.2).
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    let is_ours = host.is_some_and(|host| app.is_ours(host))
        && hosts.next().is_none()
        && request
            .uri()
            .authority()
            .is_none_or(|authority| app.is_ours(authority.as_str()));
    let mut response = if is_ours {
        next.run(request).await
    } else {
        plain(
            StatusCode::MISDIRECTED_REQUEST,
            "this name is not one of this server's, or there are several: ask for an address or localhost, or name it \
             with --http-name",
        )
    };
    if !response.headers().contains_key(CONTENT_SECURITY_POLICY) {
        set(&mut response, CONTENT_SECURITY_POLICY, NOTHING);
    }
    set(&mut response, X_CONTENT_TYPE_OPTIONS, "nosniff");
    // With none at all, browsers would not say where a form of ours comes from.
    set(&mut response, REFERRER_POLICY, "same-origin");
    set(&mut response, CACHE_CONTROL, "no-store");
    let only_here = HeaderName::from_static("cross-origin-resource-policy");
    set(&mut response, only_here, "same-origin");
    let alone = HeaderName::from_static("cross-origin-opener-policy");
    set(&mut response, alone, "same-origin");
    response
}

/// Who asks, and may he? The answer that he may not is the error.
fn admitted(app: &App, request: &mut Request, rpc: Rpc) -> Result<Visitor, Box<Response>> {
    let Some(peer) = request.extensions().get::<Peer>().cloned() else {
        let text = "a connection without an address";
        return Err(Box::new(plain(StatusCode::INTERNAL_SERVER_ERROR, text)));
    };
    let wants_page = text_of(request.headers(), ACCEPT).is_some_and(|a| a.contains("text/html"));
    let shows_token = request.headers().contains_key(AUTHORIZATION);
    let token = bearer(request.headers_mut());
    let token = token.or_else(|| app.sessions.token(app.session(request.headers())?));
    let presented = Presented { peer, token };
    // A browser that has nothing to show yet is no failed login.
    let is_bare = !shows_token && presented.token.is_none() && presented.peer.shown.is_none();
    if is_bare && app.gate.asks() {
        return Err(Box::new(ask(app, wants_page, None)));
    }
    let caller = app.gate.admit_to(&presented, rpc).map_err(|refusal| {
        if refusal.is_login() {
            let mut response = ask(app, wants_page, Some(refusal.trouble()));
            set(&mut response, CONNECTION, "close");
            return Box::new(response);
        }
        Box::new(plain(StatusCode::FORBIDDEN, &refusal.trouble().line()))
    })?;
    presented.peer.admitted();
    Ok(Visitor { caller, presented })
}

/// Asks who it is.
fn ask(app: &App, wants_page: bool, trouble: Option<&Trouble>) -> Response {
    let why = trouble.map_or_else(String::new, Trouble::line);
    if wants_page {
        let (text, policy) = app.pages.login(&why, app.gate.takes_tokens());
        return html(StatusCode::UNAUTHORIZED, text, &policy);
    }
    let text = match why.is_empty() {
        true => "show a token (Authorization: Bearer ...) or a certificate",
        false => &why,
    };
    let mut response = plain(StatusCode::UNAUTHORIZED, text);
    set(&mut response, WWW_AUTHENTICATE, "Bearer");
    response
}

async fn page(State(app): State<Arc<App>>, mut request: Request) -> Response {
    match admitted(&app, &mut request, Rpc::Watch) {
        Ok(visitor) => {
            let who = match &visitor.caller {
                Caller::Anyone => String::new(),
                Caller::Known(known) => known.to_string(),
            };
            let has_session = app.session(request.headers()).is_some();
            let (text, policy) = app.pages.live(&who, has_session);
            html(StatusCode::OK, text, &policy)
        }
        Err(response) => *response,
    }
}

async fn log_in(State(app): State<Arc<App>>, request: Request) -> Response {
    let host = text_of(request.headers(), HOST).unwrap_or_default();
    if !host::is_own_form(text_of(request.headers(), ORIGIN), host) {
        return plain(
            StatusCode::FORBIDDEN,
            "this form is on a page of somebody else",
        );
    }
    let Some(peer) = request.extensions().get::<Peer>().cloned() else {
        return plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            "a connection without an address",
        );
    };
    let Ok(body) = axum::body::to_bytes(request.into_body(), LONGEST_FORM).await else {
        return plain(StatusCode::PAYLOAD_TOO_LARGE, "this form is too long");
    };
    let token = std::str::from_utf8(&body)
        .ok()
        .and_then(login::token_of_form);
    let Some(token) = token.filter(|_| app.gate.takes_tokens()) else {
        return ask(&app, true, None);
    };
    let presented = Presented {
        peer,
        token: Some(token.clone()),
    };
    if let Err(refusal) = app.gate.admit_to(&presented, Rpc::Watch) {
        let mut response = ask(&app, true, Some(refusal.trouble()));
        set(&mut response, CONNECTION, "close");
        return response;
    }
    presented.peer.admitted();
    let Some(number) = app.sessions.begin(token) else {
        return plain(
            StatusCode::INTERNAL_SERVER_ERROR,
            "no random numbers can be had",
        );
    };
    home(&app.cookie(&number, login::LASTS_S))
}

fn home(cookie: &str) -> Response {
    let mut response = plain(StatusCode::SEE_OTHER, "/");
    set(&mut response, LOCATION, "/");
    set(&mut response, SET_COOKIE, cookie);
    response
}

async fn log_out(State(app): State<Arc<App>>, request: Request) -> Response {
    let host = text_of(request.headers(), HOST).unwrap_or_default();
    if !host::is_own_form(text_of(request.headers(), ORIGIN), host) {
        return plain(
            StatusCode::FORBIDDEN,
            "this form is on a page of somebody else",
        );
    }
    if let Some(number) = app.session(request.headers()) {
        app.sessions.end(number);
    }
    home(&app.cookie("", 0))
}

async fn stream(State(app): State<Arc<App>>, mut request: Request) -> Response {
    let visitor = match admitted(&app, &mut request, Rpc::Watch) {
        Ok(visitor) => visitor,
        Err(response) => return *response,
    };
    let query = request.uri().query().unwrap_or_default();
    let wanted = query.split('&').find_map(|pair| pair.strip_prefix("run="));
    let wanted = match wanted.unwrap_or_default() {
        "" | "latest" => None,
        text => match text.parse::<RunId>() {
            Ok(id) if app.hub.data().join(id.to_string()).is_dir() => Some(id),
            _ => return plain(StatusCode::NOT_FOUND, "there is no such run"),
        },
    };
    let events = events::stream(app.clone(), visitor, wanted);
    let mut response = Response::new(Body::from_stream(events));
    set(&mut response, CONTENT_TYPE, "text/event-stream");
    response
}

async fn collect(State(app): State<Arc<App>>, mut request: Request) -> Response {
    if let Err(response) = admitted(&app, &mut request, Rpc::Metrics) {
        return *response;
    }
    let sums = metrics::Sums::gather(&app.hub).await;
    match metrics::encode(sums) {
        Ok(text) => {
            let mut response = Response::new(Body::from(text));
            set(&mut response, CONTENT_TYPE, metrics::CONTENT);
            response
        }
        Err(error) => {
            tracing::error!("metrics: {error}");
            plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the metrics cannot be written",
            )
        }
    }
}

async fn report(
    State(app): State<Arc<App>>,
    InPath((run, file)): InPath<(String, String)>,
    mut request: Request,
) -> Response {
    if let Err(response) = admitted(&app, &mut request, Rpc::Report) {
        return *response;
    }
    // Never a path from outside: an id that is one, and one of two names.
    let Ok(id) = run.parse::<RunId>() else {
        return plain(StatusCode::NOT_FOUND, "there is no such run");
    };
    let (name, kind) = match file.as_str() {
        "report.html" => ("report.html", "text/html; charset=utf-8"),
        "report.json" => ("summary.json", "application/json"),
        _ => {
            return plain(
                StatusCode::NOT_FOUND,
                "there is report.html and report.json",
            );
        }
    };
    let path = app.hub.data().join(id.to_string()).join(name);
    match tokio::task::spawn_blocking(move || read(&path)).await {
        Ok(Ok(bytes)) => {
            let mut response = Response::new(Body::from(bytes));
            set(&mut response, CONTENT_TYPE, kind);
            set(&mut response, CONTENT_SECURITY_POLICY, REPORT);
            response
        }
        _ => plain(
            StatusCode::NOT_FOUND,
            &format!(
                "run {id} has no report here yet: it is made when the run is closed, or by \
                 `gapscope-aggregator report {id}`"
            ),
        ),
    }
}

/// A file, not what a link in its place names.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    if !std::fs::symlink_metadata(path)?.is_file() {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    std::fs::read(path)
}

async fn unknown() -> Response {
    plain(StatusCode::NOT_FOUND, "there is nothing here")
}
