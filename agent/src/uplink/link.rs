//! The connection of the uplink: waiting for the next attempt, connecting, or up.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use gapscope_proto::tls::{Dialer, Line, Trouble};
use gapscope_proto::wire::{AgentMessage, AggregatorMessage, collector_client::CollectorClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;

/// Longest message either way; frames are at most 1 MiB.
const MAX_MESSAGE: usize = 4 << 20;

/// How long connecting may take.
pub(super) const CONNECT_WITHIN: Duration = Duration::from_secs(3);

/// The channel's settings, for both connections.
pub(super) fn settings(endpoint: Endpoint) -> Endpoint {
    endpoint
        .http2_keep_alive_interval(Duration::from_secs(2))
        .keep_alive_timeout(Duration::from_secs(4))
        .keep_alive_while_idle(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(2 << 20)
}

/// An open session: what comes in, and the line that says why it breaks.
pub(super) struct Opened {
    inbound: Streaming<AggregatorMessage>,
    line: Line,
}

type Connecting = Pin<Box<dyn Future<Output = Result<Opened, Trouble>> + Send>>;

/// One connection after the other.
pub(super) enum Link {
    Waiting(Pin<Box<tokio::time::Sleep>>),
    Connecting(Connecting, mpsc::Sender<AgentMessage>),
    Up(Box<Opened>, mpsc::Sender<AgentMessage>),
}

/// What happened on a link.
pub(super) enum Turn {
    Waited,
    Connected(Box<Opened>),
    Message(Box<AggregatorMessage>),
    Ended(Trouble),
    /// A newer session of this agent's id has taken over.
    Fenced(String),
}

impl Link {
    /// Waits before the next attempt.
    pub(super) fn wait(delay: Duration) -> Self {
        Self::Waiting(Box::pin(tokio::time::sleep(delay)))
    }

    /// Connects and opens a session that sends what comes out of `messages`.
    pub(super) fn connect(
        dialer: Arc<Dialer>,
        outbound: mpsc::Sender<AgentMessage>,
        messages: mpsc::Receiver<AgentMessage>,
    ) -> Self {
        let connecting = Box::pin(async move {
            let line = dialer.dial(CONNECT_WITHIN, settings).await?;
            let mut client = CollectorClient::new(line.service())
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE);
            match client.session(ReceiverStream::new(messages)).await {
                Ok(response) => Ok(Opened {
                    inbound: response.into_inner(),
                    line,
                }),
                Err(status) => Err(line.explain(&status)),
            }
        });
        Self::Connecting(connecting, outbound)
    }

    /// What happens next on it. Safe to drop and call again.
    pub(super) async fn turn(&mut self) -> Turn {
        match self {
            Self::Waiting(sleep) => {
                sleep.as_mut().await;
                Turn::Waited
            }
            Self::Connecting(connecting, _) => match connecting.as_mut().await {
                Ok(opened) => Turn::Connected(Box::new(opened)),
                Err(why) => Turn::Ended(why),
            },
            Self::Up(opened, _) => match opened.inbound.message().await {
                Ok(Some(message)) => Turn::Message(Box::new(message)),
                Ok(None) => Turn::Ended(Trouble::new("the aggregator closed the session")),
                Err(status) if status.code() == tonic::Code::Aborted => {
                    Turn::Fenced(status.message().to_owned())
                }
                Err(status) => Turn::Ended(opened.line.explain(&status)),
            },
        }
    }

    /// Waits until the aggregator has ended its side of a session that is over.
    pub(super) async fn end(self) {
        if let Self::Up(mut opened, outbound) = self {
            drop(outbound);
            while let Ok(Some(_)) = opened.inbound.message().await {}
        }
    }

    /// Where messages go in, unless it waits.
    pub(super) fn outbound(&self) -> Option<mpsc::Sender<AgentMessage>> {
        match self {
            Self::Waiting(_) => None,
            Self::Connecting(_, outbound) | Self::Up(_, outbound) => Some(outbound.clone()),
        }
    }
}
