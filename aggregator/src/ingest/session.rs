//! One agent's session: its way out.

use std::sync::{Arc, Mutex, PoisonError};

use futures::{Stream, stream};
use gapscope_proto::clock::ClockKey;
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
    /// What is to be sent and must wait for the Welcome; none once it is out.
    waiting: Mutex<Option<Vec<Kind>>>,
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
            waiting: Mutex::new(Some(Vec::new())),
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

    /// Sends the Welcome, then what has waited for it: a run may have something
    /// to say to a session while the session is still asking other runs.
    pub fn open(&self, welcome: wire::Welcome) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.push(Kind::Welcome(welcome));
        for kind in waiting.take().into_iter().flatten() {
            self.push(kind);
        }
    }

    /// Sends, or closes the link if the other end does not read.
    pub fn send(&self, kind: Kind) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *waiting {
            Some(waiting) if waiting.len() < OUTBOX => waiting.push(kind),
            _ => self.push(kind),
        }
    }

    fn push(&self, kind: Kind) {
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
    /// Its clock.
    pub clock: ClockKey,
    /// It has shown who it is, so it is held to the runs that it was chosen for.
    pub only_its_runs: bool,
    /// The way to the agent.
    pub link: Arc<Link>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::StreamExt;

    #[tokio::test]
    async fn the_welcome_comes_first_and_the_status_last() {
        let (link, messages) = Link::new(&CancellationToken::new());
        link.send(Kind::Ack(wire::Ack::default()));
        link.open(wire::Welcome::default());
        link.send(Kind::Drain(wire::Drain::default()));
        link.close(Status::aborted("enough"));
        link.close(Status::internal("the first reason stands"));
        let heard: Vec<_> = messages.collect().await;
        let kinds: Vec<_> = heard.iter().flatten().flat_map(|m| &m.kind).collect();
        assert!(
            matches!(kinds[..], [Kind::Welcome(_), Kind::Ack(_), Kind::Drain(_)]),
            "{kinds:?}"
        );
        let last = heard.last().expect("there is one");
        assert_eq!(
            last.as_ref().map_err(|status| status.code()).err(),
            Some(tonic::Code::Aborted)
        );
        assert_eq!(heard.len(), 4);
    }

    #[tokio::test]
    async fn an_agent_that_never_reads_is_given_up() {
        let (link, messages) = Link::new(&CancellationToken::new());
        link.open(wire::Welcome::default());
        for _ in 0..OUTBOX {
            link.send(Kind::Ack(wire::Ack::default()));
        }
        link.closed().await;
        let last = messages.collect::<Vec<_>>().await.pop().expect("a status");
        assert_eq!(
            last.map_err(|status| status.code()).err(),
            Some(tonic::Code::ResourceExhausted)
        );
    }
}
