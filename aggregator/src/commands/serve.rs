//! `serve`: the server, until SIGINT or SIGTERM.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use gapscope_proto::clock::SystemClock;
use gapscope_proto::tls::ServerFiles;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::auth::gate::Security;
use crate::exit::Exit;
use crate::output::{hinted, note};
use crate::reporter::by_itself;
use crate::server::{Config, serve};
use crate::store::disk::Disk;

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7350")]
    pub listen: SocketAddr,
    /// Where runs are kept.
    #[arg(long, value_name = "DIR", default_value = "./runs")]
    pub data: PathBuf,
    /// File into which the bound address is written, once it is bound.
    #[arg(long, value_name = "PATH")]
    pub address_file: Option<PathBuf>,
    /// Serve without encryption beyond this host: anyone on the way can read and
    /// change what is sent.
    #[arg(long)]
    pub insecure_clear_text: bool,
    /// Own certificate: serve TLS.
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        help_heading = "Security"
    )]
    pub tls_cert: Option<PathBuf>,
    /// Its key.
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        help_heading = "Security"
    )]
    pub tls_key: Option<PathBuf>,
    /// Let in who shows a certificate of this CA.
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        help_heading = "Security"
    )]
    pub client_ca: Option<PathBuf>,
    /// Let in who shows a token of this list (`tokens add` makes it).
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    pub tokens: Option<PathBuf>,
    /// Let in nobody of this list: agent:ID, operator:NAME, viewer:NAME or
    /// serial:HEX, one a line.
    #[arg(long, value_name = "FILE", help_heading = "Security")]
    pub deny: Option<PathBuf>,
    /// Serve a page for browsers here as well, and /metrics (for example
    /// 127.0.0.1:8080; port 0 takes a free one).
    #[arg(long, value_name = "ADDR", help_heading = "Browsers and metrics")]
    pub http: Option<SocketAddr>,
    /// A name of this host by which browsers ask for that page; addresses, localhost
    /// and the names in --tls-cert need not be told.
    #[arg(
        long,
        value_name = "NAME",
        requires = "http",
        help_heading = "Browsers and metrics"
    )]
    pub http_name: Vec<String>,
    /// File into which that page's address is written, once it is bound.
    #[arg(
        long,
        value_name = "PATH",
        requires = "http",
        help_heading = "Browsers and metrics"
    )]
    pub http_address_file: Option<PathBuf>,
    /// Make no report when a run is closed.
    #[arg(long)]
    pub no_report: bool,
    /// End when the process that started this one ends.
    #[arg(long)]
    pub die_with_parent: bool,
}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// When it cannot listen, or the data folder cannot be used.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    if let Err(error) = check(&args) {
        crate::output::error(&error);
        return Ok(Exit::Usage);
    }
    if std::fs::metadata(&args.data).is_ok_and(|meta| !meta.is_dir()) {
        return Err(hinted(
            format!(
                "cannot keep runs in `{}`: it is not a folder",
                args.data.display()
            ),
            "choose a folder with --data DIR",
        ));
    }
    if args.die_with_parent {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
            .context("cannot ask to end with the parent process")?;
    }
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(serve_until_signal(args))?;
    Ok(Exit::Ok)
}

/// What does not go together.
fn check(args: &Args) -> anyhow::Result<()> {
    check_address(args, args.listen)?;
    if let Some(http) = args.http {
        check_address(args, http)?;
    }
    if args.deny.is_some() && args.client_ca.is_none() && args.tokens.is_none() {
        return Err(hinted(
            "--deny alone keeps nobody out: nobody is asked who he is",
            "say by what people and agents are known: --client-ca FILE, --tokens FILE, or both",
        ));
    }
    Ok(())
}

/// What may not be served there.
fn check_address(args: &Args, listen: SocketAddr) -> anyhow::Result<()> {
    let beyond = !listen.ip().is_loopback();
    if args.tls_cert.is_some() {
        if args.client_ca.is_none() && args.tokens.is_none() {
            return Err(hinted(
                "with --tls-cert alone, whoever connects may do everything",
                "say by what people and agents are known: --client-ca FILE, --tokens FILE, or both",
            ));
        }
        if args.insecure_clear_text {
            return Err(hinted(
                "--insecure-clear-text and --tls-cert contradict each other",
                "leave one of them out",
            ));
        }
    } else if beyond && !args.insecure_clear_text {
        return Err(hinted(
            format!(
                "cannot listen on {listen}: it is not a loopback address, and what is sent is not encrypted"
            ),
            "`gapscope-aggregator certs init DIR` makes what --tls-cert, --tls-key and --client-ca need; or use an ssh tunnel to 127.0.0.1, or accept the risk with --insecure-clear-text",
        ));
    } else if beyond && args.tokens.is_some() {
        return Err(hinted(
            format!(
                "tokens would come to {listen} in clear text: anyone on the way could use them"
            ),
            "serve TLS with --tls-cert and --tls-key, or listen on 127.0.0.1",
        ));
    }
    Ok(())
}

fn security(args: &Args) -> Security {
    let pair = args.tls_cert.clone().zip(args.tls_key.clone());
    Security {
        tls: pair.map(|(cert, key)| ServerFiles {
            cert,
            key,
            client_ca: args.client_ca.clone(),
            client_may_be_bare: args.tokens.is_some(),
        }),
        tokens: args.tokens.clone(),
        deny: args.deny.clone(),
    }
}

/// What stood before `serve`: where this program is a part of another one, by what
/// that calls it.
fn own_words() -> Vec<OsString> {
    let words = std::env::args_os().skip(1);
    words.take_while(|word| word != "serve").collect()
}

/// Who is let in, in a few words.
fn known_by(args: &Args) -> &'static str {
    match (args.client_ca.is_some(), args.tokens.is_some()) {
        (false, false) => "whoever connects may do everything",
        (true, false) => "callers are known by certificate",
        (false, true) => "callers are known by token",
        (true, true) => "callers are known by certificate or token",
    }
}

async fn serve_until_signal(args: Args) -> anyhow::Result<()> {
    // Before anything is announced, so that a signal right after is not missed.
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let listener = TcpListener::bind(args.listen).await.map_err(|error| {
        hinted(
            format!("cannot listen on {}: {error}", args.listen),
            "is another aggregator running? --listen 127.0.0.1:0 takes a free port",
        )
    })?;
    let address = listener
        .local_addr()
        .context("cannot read the bound address")?;
    let page = match args.http {
        None => None,
        Some(wanted) => Some(TcpListener::bind(wanted).await.map_err(|error| {
            hinted(
                format!("cannot serve a page on {wanted}: {error}"),
                "is something else there? --http 127.0.0.1:0 takes a free port",
            )
        })?),
    };
    let page_address = page.as_ref().map(TcpListener::local_addr).transpose();
    let page_address = page_address.context("cannot read the bound address")?;
    // The lock and the runs first: who finds the address file finds a server.
    let config = Config {
        data: args.data.clone(),
        clock: Arc::new(SystemClock::new()),
        disk: Disk::default(),
        security: security(&args),
        reports: (!args.no_report).then(|| by_itself(own_words())),
        web: page.map(|listener| crate::web::Config {
            listener,
            names: args.http_name.clone(),
            patience: crate::web::PATIENCE,
        }),
    };
    let scheme = if config.security.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let ready = || {
        // First: who finds the other file finds this one.
        if let (Some(path), Some(page)) = (&args.http_address_file, page_address) {
            write_address(path, page)?;
        }
        if let Some(path) = &args.address_file {
            write_address(path, address)?;
        }
        note(format_args!(
            "gapscope-aggregator serves {scheme}://{address}, runs in {}; {}",
            args.data.display(),
            known_by(&args)
        ));
        if let Some(page) = page_address {
            let scheme = if args.tls_cert.is_some() {
                "https"
            } else {
                "http"
            };
            note(format_args!("the page for browsers: {scheme}://{page}/"));
        }
        Ok(())
    };
    serve(config, listener, ready, async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
    .await
}

fn write_address(path: &Path, address: SocketAddr) -> anyhow::Result<()> {
    Disk::default()
        .write_bytes(path, format!("{address}\n").as_bytes())
        .with_context(|| format!("cannot write the address file `{}`", path.display()))
}
