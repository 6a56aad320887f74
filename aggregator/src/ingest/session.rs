//! One agent's session: its way out.

use std::sync::{Arc, Mutex, PoisonError};

use futures::{Stream, stream};
use gapscope_proto::ids::{AgentId, Incarnation};
use gapscope_proto::wire;
use gapscope_proto::wire::aggregator_message::Kind;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Messages that may wait for a slow agent. Beyond it the session is closed: an
/// agent that reads nothing for so long gets everything anew when it is back.
const OUTBOX: usize = 1024;

/// The way to whoever is at the other end.
#[derive(Debug)]
pub struct Link {
    outbox: mpsc::Sender<wire::AggregatorMessage>,
    closed: CancellationToken,
    status: Mutex<Option<Status>>,
}

impl Link {
    /// A link, and the stream of what is sent on it, to be given to tonic. The
    /// link closes with `parent`, or by itself.
    pub fn new(
        parent: &CancellationToken,
    ) -> (
        Arc<Self>,
        impl Stream<Item = Result<wire::AggregatorMessage, Status>> + Send + use<>,
    ) {
        let (outbox, outgoing) = mpsc::channel(OUTBOX);
        let link = Arc::new(Self {
            outbox,
            closed: parent.child_token(),
            status: Mutex::new(None),
        });
        let state = Some((link.clone(), outgoing));
        let messages = stream::unfold(state, |state| async {
            let (link, mut outgoing) = state?;
            // What was sent before the close still goes out.
            tokio::select! {
                biased;
                message = outgoing.recv() => message.map(|message| (Ok(message), Some((link, outgoing)))),
                () = link.closed.cancelled() => link.take_status().map(|status| (Err(status), None)),
            }
        });
        (link, messages)
    }

    /// Sends, or closes the link if the other end does not read.
    pub fn send(&self, kind: Kind) {
        let message = wire::AggregatorMessage { kind: Some(kind) };
        if let Err(mpsc::error::TrySendError::Full(_)) = self.outbox.try_send(message) {
            self.close(Status::resource_exhausted(
                "the agent does not read what it is sent",
            ));
        }
    }

    /// Ends the link with this status.
    pub fn close(&self, status: Status) {
        self.status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(status);
        self.closed.cancel();
    }

    /// Ends the link without a complaint.
    pub fn finish(&self) {
        self.closed.cancel();
    }

    /// Resolves when it is closed.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    fn take_status(&self) -> Option<Status> {
        self.status
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

/// An agent's session.
#[derive(Debug)]
pub struct Session {
    /// Newer sessions have higher ids.
    pub id: u64,
    /// Whose.
    pub agent: AgentId,
    /// Which start of the agent.
    pub incarnation: Incarnation,
    /// The way to the agent.
    pub link: Arc<Link>,
}
