//! `watch`: looks at a run as it goes on.

use std::io::IsTerminal;
use std::time::Duration;

use gapscope_proto::wire::WatchRequest;
use tokio::sync::mpsc;
use tonic::Code;

use super::client::{Aggregator, block_on, refused, resolve_run};
use crate::control::watch::from_wire;
use crate::exit::Exit;
use crate::live::view::View;
use crate::output::hinted;

pub mod draw;
pub mod paint;
mod plain;
mod screen;
pub mod shown;
mod term;

/// Between two tries to reach an aggregator that has gone.
const AGAIN: Duration = Duration::from_secs(2);
/// Views that may wait for the terminal. Beyond, the aggregator's own queue fills,
/// and it counts what is missed.
const WAITING: usize = 4;

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The run: its id, the beginning of one, or `latest`. The newest, and then the
    /// next, if none is named.
    pub run: Option<String>,
    /// Print lines instead of drawing, as it does where the output is no terminal.
    #[arg(long)]
    pub plain: bool,
    /// Draw with ASCII only.
    #[arg(long)]
    pub ascii: bool,
    /// Where the aggregator is.
    #[command(flatten)]
    pub aggregator: Aggregator,
}

/// What comes from the aggregator.
enum Told {
    View(Box<View>),
    /// It has gone: why. It is tried again.
    Gone(String),
    /// The run that was named is over.
    Over,
}

/// Looks until the run is over, or somebody has seen enough.
///
/// # Errors
/// When the aggregator cannot be reached at first, lets nobody in, or has no such
/// run.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    block_on(async {
        // What is wrong from the beginning is said before the screen is taken.
        let mut control = args.aggregator.control().await?;
        let run_id = match &args.run {
            Some(wanted) => resolve_run(&mut control, wanted).await?,
            None => String::new(),
        };
        let request = WatchRequest {
            run_id: run_id.clone(),
        };
        let views = control.watch(request).await.map_err(|status| {
            if status.code() == Code::Unimplemented {
                return hinted(
                    "this aggregator cannot be watched",
                    "it is older than this program: use programs of the same version",
                );
            }
            refused(status)
        })?;
        let (tell, told) = mpsc::channel(WAITING);
        let follows = run_id.is_empty();
        let draws = std::io::stdout().is_terminal() && !args.plain;
        let listening = listen(args.aggregator, run_id, views.into_inner(), tell);
        let showing = async {
            if draws {
                screen::show(told, args.ascii).await
            } else {
                plain::show(told, follows).await
            }
        };
        // Whichever ends first: the one who looks has seen enough, or all is told.
        tokio::pin!(showing);
        tokio::select! {
            shown = &mut showing => shown,
            () = listening => showing.await,
        }
    })
}

/// Hands on what is told; when the aggregator goes away, tries again until nobody
/// looks any more.
async fn listen(
    aggregator: Aggregator,
    run_id: String,
    mut views: tonic::Streaming<gapscope_proto::wire::WatchResponse>,
    tell: mpsc::Sender<Told>,
) {
    loop {
        let why = loop {
            match views.message().await {
                Ok(Some(message)) => {
                    let view = Box::new(from_wire(message));
                    if tell.send(Told::View(view)).await.is_err() {
                        return;
                    }
                }
                Ok(None) if !run_id.is_empty() => {
                    let _ = tell.send(Told::Over).await;
                    return;
                }
                Ok(None) => break "the aggregator has ended".to_owned(),
                Err(status) => break format!("{:#}", refused(status)),
            }
        };
        if tell.send(Told::Gone(why)).await.is_err() {
            return;
        }
        views = loop {
            tokio::time::sleep(AGAIN).await;
            let request = WatchRequest {
                run_id: run_id.clone(),
            };
            let again = async {
                let mut control = aggregator.control().await?;
                control.watch(request).await.map_err(refused)
            };
            match again.await {
                Ok(views) => break views.into_inner(),
                Err(error) => {
                    if tell.send(Told::Gone(format!("{error:#}"))).await.is_err() {
                        return;
                    }
                }
            }
        };
    }
}
