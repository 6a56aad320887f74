//! The collector service: one session an agent.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use gapscope_proto::PROTOCOL_VERSION;
use gapscope_proto::frame::{Frame, StreamId};
use gapscope_proto::ids::{AgentId, Incarnation, RunId};
use gapscope_proto::wire;
use gapscope_proto::wire::agent_message::Kind as FromAgent;
use gapscope_proto::wire::aggregator_message::Kind;
use prost::Message;
use tokio::sync::oneshot;
use tonic::{Code, Request, Response, Status, Streaming};

use super::command::{Arrived, Command};
use super::hub::{Agent, Hub};
use super::session::{Link, Session};
use crate::auth::caller::{Caller, status};
use crate::store::LossRecord;
use crate::store::manifest::{RunState, TargetEntry};

/// Longest frame taken, encoded.
pub const MAX_FRAME_BYTES: usize = 1 << 20;
/// Longest message decoded at all; beyond it the session ends.
pub const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// Unacknowledged bytes an agent may have in flight.
pub const WINDOW_BYTES: u64 = 8 << 20;
/// Between two heartbeats: its own, and those that it asks agents for.
pub const HEARTBEAT: Duration = Duration::from_secs(2);
/// Without a sign of life for so long, three heartbeats, the other side is gone.
pub const SILENCE: Duration = Duration::from_secs(6);
/// When to try again with a run that is here and cannot be opened.
const RETRY_AFTER_MS: u32 = 10_000;
/// Most streams and targets in a hello.
const MAX_OFFERED: usize = 10_000;

/// The service.
pub struct CollectorService {
    hub: Arc<Hub>,
}

impl CollectorService {
    /// Takes in for `hub`.
    pub fn new(hub: Arc<Hub>) -> Self {
        Self { hub }
    }
}

#[tonic::async_trait]
impl wire::collector_server::Collector for CollectorService {
    type SessionStream =
        Pin<Box<dyn Stream<Item = Result<wire::AggregatorMessage, Status>> + Send>>;

    async fn session(
        &self,
        request: Request<Streaming<wire::AgentMessage>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let (link, messages) = Link::new(&self.hub.shutdown);
        let hub = self.hub.clone();
        // Without it nobody has decided about this call.
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Status::internal("the caller was not looked at"))?;
        tokio::spawn(async move {
            match serve(&hub, &link, &caller, request.into_inner()).await {
                Ok(()) => link.finish(),
                Err(status) => link.close(status),
            }
        });
        Ok(Response::new(Box::pin(messages)))
    }
}

/// The next message, unless the agent is silent or the link closed.
async fn next(
    link: &Link,
    inbound: &mut Streaming<wire::AgentMessage>,
) -> Result<Option<FromAgent>, Status> {
    loop {
        let message = tokio::select! {
            () = link.closed() => return Ok(None),
            message = tokio::time::timeout(SILENCE, inbound.message()) => message
                .map_err(|_| Status::deadline_exceeded(format!(
                    "nothing was heard for {} s",
                    SILENCE.as_secs()
                )))??,
        };
        match message {
            None => return Ok(None),
            Some(wire::AgentMessage { kind: Some(kind) }) => return Ok(Some(kind)),
            // A kind that this version does not know.
            Some(wire::AgentMessage { kind: None }) => {}
        }
    }
}

async fn serve(
    hub: &Arc<Hub>,
    link: &Arc<Link>,
    caller: &Caller,
    mut inbound: Streaming<wire::AgentMessage>,
) -> Result<(), Status> {
    let Some(first) = next(link, &mut inbound).await? else {
        return Ok(());
    };
    let FromAgent::Hello(hello) = first else {
        return Err(Status::invalid_argument(
            "the first message must be a Hello",
        ));
    };
    let session = welcome(hub, link, caller, hello).await?;
    let beating = tokio::spawn(beat(hub.clone(), link.clone()));
    let result = take_in(hub, &session, &mut inbound).await;
    beating.abort();
    hub.disconnect(&session);
    match &result {
        Ok(()) => tracing::info!(agent = %session.agent, "disconnected"),
        Err(status) => {
            tracing::warn!(agent = %session.agent, "disconnected: {}", status.message());
        }
    }
    result
}

async fn beat(hub: Arc<Hub>, link: Arc<Link>) {
    let mut ticks = tokio::time::interval(HEARTBEAT);
    loop {
        tokio::select! {
            () = link.closed() => return,
            _ = ticks.tick() => link.send(Kind::Heartbeat(wire::Heartbeat {
                sent_ns: hub.clock().raw_ns(),
                ..wire::Heartbeat::default()
            })),
        }
    }
}

fn bad(field: &str, why: impl std::fmt::Display) -> Status {
    Status::invalid_argument(format!("hello, `{field}`: {why}"))
}

async fn welcome(
    hub: &Arc<Hub>,
    link: &Arc<Link>,
    caller: &Caller,
    hello: wire::Hello,
) -> Result<Arc<Session>, Status> {
    if hello.protocol != PROTOCOL_VERSION {
        return Err(Status::failed_precondition(format!(
            "the agent speaks protocol {}, this aggregator speaks {PROTOCOL_VERSION}: use programs of the same version",
            hello.protocol
        )));
    }
    let id: AgentId = hello.agent_id.parse().map_err(|e| bad("agent_id", e))?;
    caller.may_speak_for(&id).map_err(|trouble| {
        tracing::warn!("refused: {}", trouble.line());
        status(Code::PermissionDenied, &trouble)
    })?;
    let incarnation = Incarnation::new(hello.incarnation).map_err(|e| bad("incarnation", e))?;
    if hello.streams.len() > MAX_OFFERED || hello.targets.len() > MAX_OFFERED {
        return Err(bad("streams", format!("at most {MAX_OFFERED} are allowed")));
    }
    let mut targets = Vec::new();
    for target in hello.targets {
        targets.push(TargetEntry {
            name: target.name.parse().map_err(|e| bad("targets", e))?,
            address: target.address,
            user: target.user,
        });
    }
    let mut by_run: BTreeMap<RunId, Vec<(StreamId, u64)>> = BTreeMap::new();
    for position in &hello.streams {
        let stream = position
            .stream
            .as_ref()
            .ok_or_else(|| bad("streams", "a stream is missing"))?;
        let stream = StreamId::try_from(stream).map_err(|e| bad("streams", e))?;
        by_run
            .entry(stream.run)
            .or_default()
            .push((stream, position.last));
    }
    let mut running = Vec::new();
    for run in &hello.running {
        let run: RunId = run.parse().map_err(|e| bad("running", e))?;
        by_run.entry(run).or_default();
        running.push(run);
    }
    let clock = hello.clock.map_or_else(
        || gapscope_proto::clock::ClockKey {
            boot_id: String::new(),
            time_namespace: 0,
        },
        Into::into,
    );
    let session = Arc::new(Session {
        id: hub.session_number(),
        agent: id.clone(),
        incarnation,
        clock: clock.clone(),
        only_its_runs: caller.is_known(),
        link: link.clone(),
    });
    let agent = Agent {
        incarnation,
        program_version: hello.program_version,
        clock,
        host: hello.host.map(Into::into).unwrap_or_default(),
        targets,
        running: running.iter().copied().collect(),
        spool_bytes: 0,
        session: None,
        progress: BTreeMap::new(),
    };
    let entry = agent.entry(&id);
    let mut committed = Vec::new();
    let mut ended = Vec::new();
    for (run, streams) in by_run {
        // A run that is not here gets its Nack when its frames come.
        let found = match hub.run(run).await {
            Ok(found) => found,
            Err(error) => {
                // Its frames will be told to wait; other runs are not held up.
                tracing::error!(%run, "{error}");
                continue;
            }
        };
        let Some(handle) = found else {
            if hub.flush.is_cancelled() {
                return Err(Status::unavailable("the aggregator is shutting down"));
            }
            if running.contains(&run) {
                ended.push((run, "this run is not here"));
            }
            continue;
        };
        if !handle.takes_part(&session) {
            // Its frames get their Nack.
            if running.contains(&run) {
                ended.push((run, "this agent was not chosen for this run"));
            }
            continue;
        }
        let (reply, answer) = oneshot::channel();
        let attach = Command::Attach {
            session: session.clone(),
            entry: Box::new(entry.clone()),
            streams: streams.clone(),
            is_probing: running.contains(&run),
            reply,
        };
        if handle.commands.send(attach).await.is_err() {
            return Err(Status::unavailable("a run is being closed: try again"));
        }
        let durable = answer
            .await
            .map_err(|_| Status::unavailable("the aggregator is shutting down"))?;
        for ((stream, _), seq) in streams.iter().zip(durable) {
            committed.push(wire::Committed {
                stream: Some(stream.into()),
                seq,
            });
        }
        let status = handle.status.borrow().clone();
        if !running.contains(&run) {
            continue;
        }
        if status.state != RunState::Running {
            ended.push((run, "this run has ended here"));
        } else if status.is_stopping {
            // Whoever was away when it was stopped is told now.
            ended.push((run, "this run is being stopped"));
        }
    }
    link.open(wire::Welcome {
        protocol: PROTOCOL_VERSION,
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
        max_frame_bytes: MAX_FRAME_BYTES as u32,
        window_bytes: WINDOW_BYTES,
        heartbeat_ms: HEARTBEAT.as_millis() as u32,
        committed,
        clock: Some((&hub.clock().key()).into()),
        takes_packed: true,
    });
    for (run, reason) in ended {
        link.send(Kind::StopRun(wire::StopRun {
            run_id: run.to_string(),
            reason: reason.to_owned(),
        }));
    }
    tracing::info!(agent = %id, %incarnation, targets = agent.targets.len(), "connected");
    hub.connect(
        id,
        Agent {
            session: Some(session.clone()),
            ..agent
        },
    );
    Ok(session)
}

async fn take_in(
    hub: &Arc<Hub>,
    session: &Arc<Session>,
    inbound: &mut Streaming<wire::AgentMessage>,
) -> Result<(), Status> {
    while let Some(message) = next(&session.link, inbound).await? {
        match message {
            FromAgent::Hello(_) => {
                return Err(Status::invalid_argument("a second Hello in one session"));
            }
            FromAgent::Frame(frame) => take_frame(hub, session, frame).await?,
            FromAgent::Loss(loss) => take_loss(hub, session, loss).await?,
            FromAgent::Heartbeat(beat) => hub.heartbeat(session, beat),
            FromAgent::RunRefused(refused) => {
                if let Ok(run) = refused.run_id.parse() {
                    let caveat = format!("agent `{}` refused: {}", session.agent, refused.reason);
                    hub.refuse(run, &session.agent, refused.reason);
                    hub.caveat(run, session, caveat).await;
                }
            }
            FromAgent::Goodbye(goodbye) => {
                tracing::info!(agent = %session.agent, "says goodbye: {}", goodbye.reason);
                return Ok(());
            }
        }
    }
    Ok(())
}

fn nack(
    session: &Session,
    stream: Option<wire::StreamId>,
    reason: wire::NackReason,
    expected_seq: u64,
    detail: impl std::fmt::Display,
) {
    let detail = detail.to_string();
    tracing::warn!(agent = %session.agent, "not taken ({}): {detail}", reason.as_str_name());
    session.link.send(Kind::Nack(wire::Nack {
        stream,
        reason: reason.into(),
        expected_seq,
        detail,
        retry_after_ms: 0,
    }));
}

/// Hands a command that takes so many bytes to a run; a run that is not here is nacked, a
/// run that ends meanwhile is opened anew.
async fn to_run(
    hub: &Arc<Hub>,
    session: &Arc<Session>,
    stream: StreamId,
    first_seq: u64,
    (mut command, bytes): (Command, usize),
) -> Result<(), Status> {
    for _ in 0..3 {
        let found = match hub.run(stream.run).await {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(run = %stream.run, "{error}");
                session.link.send(Kind::Nack(wire::Nack {
                    stream: Some((&stream).into()),
                    reason: wire::NackReason::Busy.into(),
                    expected_seq: first_seq,
                    detail: error.to_string(),
                    retry_after_ms: RETRY_AFTER_MS,
                }));
                return Ok(());
            }
        };
        let Some(handle) = found else {
            if hub.flush.is_cancelled() {
                return Err(Status::unavailable("the aggregator is shutting down"));
            }
            nack(
                session,
                Some((&stream).into()),
                wire::NackReason::UnknownRun,
                first_seq,
                format!("run {} is not here", stream.run),
            );
            return Ok(());
        };
        if !handle.takes_part(session) {
            nack(
                session,
                Some((&stream).into()),
                wire::NackReason::UnknownRun,
                first_seq,
                format!(
                    "agent `{}` was not chosen for run {}",
                    session.agent, stream.run
                ),
            );
            return Ok(());
        }
        if let Command::Frame(_, _, room) = &mut command {
            *room = tokio::select! {
                () = session.link.closed() => return Ok(()),
                room = handle.room(bytes) => Some(room),
                () = handle.commands.closed() => None,
            };
        }
        let refused = tokio::select! {
            () = session.link.closed() => return Ok(()),
            sent = handle.commands.send(command) => match sent {
                Ok(()) => return Ok(()),
                Err(refused) => refused,
            },
        };
        command = refused.0;
    }
    Err(Status::unavailable("a run is being closed: try again"))
}

async fn take_frame(
    hub: &Arc<Hub>,
    session: &Arc<Session>,
    frame: wire::Frame,
) -> Result<(), Status> {
    let stream = frame.stream.clone();
    let first_seq = frame.first_seq;
    let length = frame.encoded_len();
    if length > MAX_FRAME_BYTES {
        let detail = format!("a frame of {length} bytes; at most {MAX_FRAME_BYTES} are taken");
        nack(
            session,
            stream,
            wire::NackReason::Malformed,
            first_seq,
            detail,
        );
        return Ok(());
    }
    // Decoded here, where each session has a task, and before it is admitted: what
    // cannot be decoded takes no seq.
    let arrived = Frame::try_from(frame)
        .map_err(|error| error.to_string())
        .and_then(|frame| Arrived::try_from(frame).map_err(|error| error.to_string()));
    match arrived {
        Ok(arrived) => {
            let id = arrived.stream;
            let bytes = arrived.bytes(length);
            let command = Command::Frame(session.clone(), Box::new(arrived), None);
            to_run(hub, session, id, first_seq, (command, bytes)).await
        }
        Err(error) => {
            nack(
                session,
                stream,
                wire::NackReason::Malformed,
                first_seq,
                error,
            );
            Ok(())
        }
    }
}

fn loss_reason(reason: wire::LossReason) -> &'static str {
    match reason {
        wire::LossReason::Unspecified => "unspecified",
        wire::LossReason::SpoolFull => "spool_full",
        wire::LossReason::DiskFull => "disk_full",
        wire::LossReason::Corrupt => "corrupt",
        wire::LossReason::PowerLoss => "power_loss",
        wire::LossReason::Rejected => "rejected",
        wire::LossReason::WriteFailed => "write_failed",
    }
}

async fn take_loss(hub: &Arc<Hub>, session: &Arc<Session>, loss: wire::Loss) -> Result<(), Status> {
    let reason = loss_reason(loss.reason());
    let stream = loss.stream.clone();
    match stream.as_ref().map(StreamId::try_from) {
        Some(Ok(id)) => {
            let record = LossRecord {
                agent_id: session.agent.clone(),
                incarnation: id.incarnation,
                kind: id.kind,
                first_seq: loss.first_seq,
                last_seq: loss.last_seq,
                count_min: loss.count_min,
                count_max: loss.count_max,
                reason: reason.to_owned(),
            };
            let command = Command::Loss(session.clone(), record);
            to_run(hub, session, id, loss.first_seq, (command, 0)).await
        }
        Some(Err(error)) => {
            nack(
                session,
                stream,
                wire::NackReason::Malformed,
                loss.first_seq,
                error,
            );
            Ok(())
        }
        None => {
            let detail = "a loss without a stream";
            nack(
                session,
                None,
                wire::NackReason::Malformed,
                loss.first_seq,
                detail,
            );
            Ok(())
        }
    }
}
