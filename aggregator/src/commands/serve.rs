//! `serve`: the server, until SIGINT or SIGTERM.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use gapscope_proto::clock::SystemClock;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Exit;
use crate::output::{hinted, note};
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
    /// End when the process that started this one ends.
    #[arg(long)]
    pub die_with_parent: bool,
}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// When it cannot listen, or the data folder cannot be used.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    if !args.listen.ip().is_loopback() && !args.insecure_clear_text {
        return Err(hinted(
            format!(
                "cannot listen on {}: it is not a loopback address, and what is sent is not encrypted",
                args.listen
            ),
            "use an ssh tunnel to 127.0.0.1, or accept the risk with --insecure-clear-text",
        ));
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
    // The lock and the runs first: who finds the address file finds a server.
    let config = Config {
        data: args.data.clone(),
        clock: Arc::new(SystemClock::new()),
        disk: Disk::default(),
    };
    let ready = || {
        if let Some(path) = &args.address_file {
            write_address(path, address)?;
        }
        note(format_args!(
            "gapscope-aggregator serves http://{address}, runs in {}",
            args.data.display()
        ));
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
