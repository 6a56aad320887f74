//! The connection of the uplink: waiting for the next attempt, connecting, or up.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use gapscope_proto::wire::{AgentMessage, AggregatorMessage, collector_client::CollectorClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

/// Longest message either way; frames are at most 1 MiB.
const MAX_MESSAGE: usize = 4 << 20;

/// The channel's settings, for both connections.
pub(super) fn endpoint(url: &str) -> Result<Endpoint, tonic::transport::Error> {
    Ok(Endpoint::from_shared(url.to_owned())?
        .connect_timeout(Duration::from_secs(3))
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(2))
        .keep_alive_timeout(Duration::from_secs(4))
        .keep_alive_while_idle(true)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(2 << 20))
}

type Connecting =
    Pin<Box<dyn Future<Output = Result<Streaming<AggregatorMessage>, String>> + Send>>;

/// One connection after the other.
pub(super) enum Link {
    Waiting(Pin<Box<tokio::time::Sleep>>),
    Connecting(Connecting, mpsc::Sender<AgentMessage>),
    Up(
        Box<Streaming<AggregatorMessage>>,
        mpsc::Sender<AgentMessage>,
    ),
}

/// What happened on a link.
pub(super) enum Turn {
    Waited,
    Connected(Box<Streaming<AggregatorMessage>>),
    Message(Box<AggregatorMessage>),
    Ended(String),
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
        url: String,
        outbound: mpsc::Sender<AgentMessage>,
        messages: mpsc::Receiver<AgentMessage>,
    ) -> Self {
        let connecting = Box::pin(async move {
            let channel: Channel = endpoint(&url)
                .map_err(|error| error.to_string())?
                .connect()
                .await
                .map_err(|error| chain(&error))?;
            let mut client = CollectorClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE);
            let response = client
                .session(ReceiverStream::new(messages))
                .await
                .map_err(|status| status.message().to_owned())?;
            Ok(response.into_inner())
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
                Ok(inbound) => Turn::Connected(Box::new(inbound)),
                Err(why) => Turn::Ended(why),
            },
            Self::Up(inbound, _) => match inbound.message().await {
                Ok(Some(message)) => Turn::Message(Box::new(message)),
                Ok(None) => Turn::Ended("the aggregator closed the session".to_owned()),
                Err(status) if status.code() == tonic::Code::Aborted => {
                    Turn::Fenced(status.message().to_owned())
                }
                Err(status) => Turn::Ended(status.message().to_owned()),
            },
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

/// An error with its causes: tonic's own text says only "transport error".
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
