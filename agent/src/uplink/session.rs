//! What to send next, and what may be forgotten. Pure: performs nothing.
//!
//! Each stream has an outbox of entries in seq order: sealed frames and declared
//! losses. They are sent in order, streams in turn, as long as the bytes sent
//! and not acknowledged stay within the window. Only an acknowledgement removes
//! an entry. A connection that ends makes everything unsent again.
//!
//! A negative acknowledgement for a hole makes the stream start again at the
//! expected seq; what the spool does not hold there becomes a loss. Frames that
//! were in flight then each draw the same answer, which is counted off instead
//! of starting again each time.
//!
//! An aggregator that is alive and acknowledges nothing of what it was sent may
//! have a full disk, or the two may misunderstand each other: after a minute the
//! connection is made anew, which settles the latter and does no harm in the
//! former case.

use std::collections::BTreeMap;

use gapscope_proto::frame::StreamId;

use crate::spool::{FrameRef, Loss, LossReason, Report};

mod outbox;
#[cfg(test)]
mod tests;

use outbox::{Entry, Outbox};

/// Silence for so long means that the connection is dead, unless the aggregator
/// asks for heartbeats so seldom that it may be silent for longer itself.
pub const SILENCE_NS: i64 = 6_000_000_000;
/// Nothing sent was answered for so long: one connection more, to be sure.
pub const STALL_NS: i64 = 60_000_000_000;
const DEFAULT_WINDOW: u64 = 4 << 20;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The spool has something new.
    Report(Report),
    /// A connection is up; nothing has been said yet.
    Connected,
    /// The aggregator's first message.
    Welcome {
        /// Durable up to here.
        committed: Vec<(StreamId, u64)>,
        /// Unacknowledged bytes allowed; 0: not said.
        window_bytes: u64,
        /// Between two heartbeats, as the aggregator asks; 0: not said.
        heartbeat_ns: i64,
    },
    /// Durable up to `seq`.
    Ack {
        /// Which stream.
        stream: StreamId,
        /// Up to here.
        seq: u64,
    },
    /// Something was not accepted.
    Nack {
        /// Which stream.
        stream: StreamId,
        /// Why.
        reason: NackReason,
        /// What is expected next.
        expected: u64,
        /// When to try again, for [`NackReason::Busy`].
        retry_after_ns: i64,
    },
    /// The aggregator said something.
    Heard,
    /// A frame cannot be read from the spool.
    Unreadable(FrameRef),
    /// Some time has passed.
    Tick {
        /// Whether a run is being probed.
        live: bool,
    },
    /// The connection ended.
    Disconnected,
}

/// Why something was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NackReason {
    /// A hole before it.
    Gap,
    /// The run is not there any more.
    UnknownRun,
    /// It will never be accepted.
    Malformed,
    /// Later.
    Busy,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Introduce the agent with these positions.
    Hello(Vec<Position>),
    /// Send a frame.
    Send(FrameRef),
    /// Send a loss.
    SendLoss(Loss),
    /// Send a heartbeat.
    Heartbeat,
    /// Tell the spool: durable elsewhere up to here.
    Forget(StreamId, u64),
    /// Tell the spool: lost, remember it.
    Declare(Loss),
    /// The aggregator does not know the run: so many records were given up here.
    GaveUp(StreamId, u64),
    /// Close the connection and make a new one.
    Reconnect(&'static str),
}

/// Where a stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Which.
    pub stream: StreamId,
    /// First seq that is held and not acknowledged; 0: nothing is.
    pub first_unacked: u64,
    /// Last seq sealed so far; 0: none.
    pub last: u64,
}

/// How often this side gives a sign of life, and how long the other may be silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pace {
    /// Between two heartbeats while nothing is being probed.
    idle_ns: i64,
    /// Between two heartbeats while a run is shown live.
    live_ns: i64,
    /// Without a sign of life for so long, the connection is dead.
    silence_ns: i64,
}

impl Pace {
    /// What an aggregator is given that does not say.
    const DEFAULT_NS: i64 = 2_000_000_000;
    /// Shorter would be load without use, and is below the tick's grain.
    const LEAST_NS: i64 = 100_000_000;
    /// Longer, and a dead connection would go unnoticed for minutes.
    const MOST_NS: i64 = 20_000_000_000;

    /// As the aggregator asks; 0: it does not say. A live display gets eight times
    /// as many; the aggregator beats as often as it asks for, so three of its own
    /// are waited for.
    fn asked(heartbeat_ns: i64) -> Self {
        let idle_ns = match heartbeat_ns {
            0 => Self::DEFAULT_NS,
            asked => asked.clamp(Self::LEAST_NS, Self::MOST_NS),
        };
        Self {
            idle_ns,
            live_ns: (idle_ns / 8).max(Self::LEAST_NS),
            silence_ns: (3 * idle_ns).max(SILENCE_NS),
        }
    }

    const fn silent(self) -> &'static str {
        if self.silence_ns == SILENCE_NS {
            "the aggregator has been silent for 6 s"
        } else {
            "the aggregator has been silent for three of its heartbeats"
        }
    }
}

/// The state of the uplink.
#[derive(Debug)]
pub struct Session {
    outboxes: BTreeMap<StreamId, Outbox>,
    welcomed: bool,
    connected: bool,
    window_bytes: u64,
    heard_ns: i64,
    heartbeat_ns: i64,
    pace: Pace,
    /// When something sent was last answered, or nothing was in flight.
    answered_ns: i64,
    turn: Option<StreamId>,
}

impl Default for Session {
    fn default() -> Self {
        Self {
            outboxes: BTreeMap::new(),
            welcomed: false,
            connected: false,
            window_bytes: DEFAULT_WINDOW,
            heard_ns: 0,
            heartbeat_ns: 0,
            pace: Pace::asked(0),
            answered_ns: 0,
            turn: None,
        }
    }
}

impl Session {
    /// Whether the aggregator has answered on this connection.
    pub fn is_welcomed(&self) -> bool {
        self.welcomed
    }

    /// Whether nothing is held that is not acknowledged.
    pub fn is_drained(&self) -> bool {
        self.outboxes
            .values()
            .all(|outbox| outbox.entries.is_empty())
    }

    /// Records of all streams that are held and not acknowledged.
    pub fn unacked_records(&self) -> u64 {
        self.outboxes
            .values()
            .flat_map(|outbox| &outbox.entries)
            .map(|entry| match entry {
                Entry::Frame(frame) => frame.last + 1 - frame.first,
                Entry::Loss(_) => 0,
            })
            .sum()
    }

    /// Decides what follows from `event` at `now_ns`.
    pub fn handle(&mut self, event: Event, now_ns: i64) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Report(Report::Sealed(frame)) => self.sealed(frame, &mut actions),
            Event::Report(Report::Lost(loss)) => {
                let outbox = self.outboxes.entry(loss.stream).or_default();
                if outbox.refused {
                    actions.push(Action::Forget(loss.stream, loss.last));
                } else {
                    outbox.insert_loss(loss);
                }
            }
            Event::Connected => {
                self.connected = true;
                self.welcomed = false;
                self.heard_ns = now_ns;
                self.heartbeat_ns = now_ns;
                self.pace = Pace::asked(0);
                actions.push(Action::Hello(self.positions()));
            }
            Event::Welcome {
                committed,
                window_bytes,
                heartbeat_ns,
            } => {
                self.heard_ns = now_ns;
                self.answered_ns = now_ns;
                self.welcomed = true;
                self.pace = Pace::asked(heartbeat_ns);
                if window_bytes > 0 {
                    self.window_bytes = window_bytes;
                }
                for (stream, seq) in committed {
                    self.acked(stream, seq, &mut actions);
                }
            }
            Event::Ack { stream, seq } => {
                self.heard_ns = now_ns;
                self.answered_ns = now_ns;
                self.acked(stream, seq, &mut actions);
            }
            Event::Nack {
                stream,
                reason,
                expected,
                retry_after_ns,
            } => {
                self.heard_ns = now_ns;
                self.answered_ns = now_ns;
                self.nacked(
                    stream,
                    reason,
                    expected,
                    now_ns.saturating_add(retry_after_ns),
                    &mut actions,
                );
            }
            Event::Heard => self.heard_ns = now_ns,
            Event::Unreadable(frame) => {
                if let Some(outbox) = self.outboxes.get_mut(&frame.stream)
                    && outbox.entries.contains(&Entry::Frame(frame))
                {
                    let first = frame.first.max(outbox.acked + 1);
                    let loss = Loss::exact(frame.stream, first, frame.last, LossReason::Corrupt);
                    outbox.insert_loss(loss);
                    actions.push(Action::Declare(loss));
                }
            }
            Event::Tick { live } => {
                if self.connected && now_ns.saturating_sub(self.heard_ns) > self.pace.silence_ns {
                    actions.push(Action::Reconnect(self.pace.silent()));
                }
                if self.outboxes.values().all(|outbox| outbox.sent == 0) {
                    self.answered_ns = now_ns;
                } else if self.welcomed && now_ns.saturating_sub(self.answered_ns) > STALL_NS {
                    self.answered_ns = now_ns;
                    actions.push(Action::Reconnect("nothing was acknowledged for a minute"));
                }
                let every = if live {
                    self.pace.live_ns
                } else {
                    self.pace.idle_ns
                };
                if self.welcomed && now_ns.saturating_sub(self.heartbeat_ns) >= every {
                    self.heartbeat_ns = now_ns;
                    actions.push(Action::Heartbeat);
                }
            }
            Event::Disconnected => {
                self.connected = false;
                self.welcomed = false;
                for outbox in self.outboxes.values_mut() {
                    outbox.sent = 0;
                    outbox.echoes = (0, 0);
                    outbox.not_before_ns = i64::MIN;
                }
            }
        }
        if self.welcomed {
            self.pump(now_ns, &mut actions);
        }
        actions
    }

    fn positions(&self) -> Vec<Position> {
        self.outboxes
            .iter()
            .filter(|(_, outbox)| !outbox.refused && outbox.last > 0)
            .map(|(stream, outbox)| Position {
                stream: *stream,
                first_unacked: outbox.entries.front().map_or(0, Entry::first),
                last: outbox.last,
            })
            .collect()
    }

    fn sealed(&mut self, frame: FrameRef, actions: &mut Vec<Action>) {
        let outbox = self.outboxes.entry(frame.stream).or_default();
        if outbox.refused {
            actions.push(Action::Forget(frame.stream, frame.last));
            actions.push(Action::GaveUp(frame.stream, frame.last + 1 - frame.first));
            return;
        }
        let at = outbox.index_of(frame.first);
        outbox.entries.insert(at, Entry::Frame(frame));
        outbox.sent = outbox.sent.min(at);
        outbox.last = outbox.last.max(frame.last);
    }

    fn acked(&mut self, stream: StreamId, seq: u64, actions: &mut Vec<Action>) {
        if let Some(outbox) = self.outboxes.get_mut(&stream)
            && seq > 0
        {
            // More than was ever sealed is nothing one could acknowledge.
            let seq = seq.min(outbox.last);
            outbox.ack(seq);
            actions.push(Action::Forget(stream, seq));
        }
    }

    fn nacked(
        &mut self,
        stream: StreamId,
        reason: NackReason,
        expected: u64,
        retry_ns: i64,
        actions: &mut Vec<Action>,
    ) {
        let Some(outbox) = self.outboxes.get_mut(&stream) else {
            return;
        };
        let at = outbox.index_of(expected);
        match reason {
            NackReason::UnknownRun => {
                let records = outbox
                    .entries
                    .drain(..)
                    .map(|entry| entry.last() + 1 - entry.first())
                    .sum();
                outbox.sent = 0;
                let first = !outbox.refused;
                outbox.refused = true;
                if first {
                    actions.push(Action::Forget(stream, outbox.last));
                    actions.push(Action::GaveUp(stream, records));
                }
            }
            NackReason::Busy => {
                outbox.sent = outbox.sent.min(at);
                outbox.not_before_ns = retry_ns;
            }
            NackReason::Malformed => {
                if let Some(loss) = outbox.reject(at, expected) {
                    actions.push(Action::Declare(loss));
                }
            }
            NackReason::Gap => {
                if outbox.echoes.0 == expected && outbox.echoes.1 > 0 {
                    outbox.echoes.1 -= 1;
                    return;
                }
                outbox.echoes = (expected, outbox.sent.saturating_sub(at + 1));
                let missing_until = match outbox.entries.get(at) {
                    Some(entry) if entry.first() > expected => Some(entry.first() - 1),
                    Some(_) => None,
                    None if expected <= outbox.last => Some(outbox.last),
                    None => None,
                };
                if let Some(last) = missing_until {
                    let loss = Loss::exact(stream, expected, last, LossReason::Corrupt);
                    outbox.insert_loss(loss);
                    actions.push(Action::Declare(loss));
                }
                outbox.sent = outbox.sent.min(at);
            }
        }
    }

    /// Sends what may be sent: one entry of each stream in turn.
    fn pump(&mut self, now_ns: i64, actions: &mut Vec<Action>) {
        let mut in_flight: u64 = self.outboxes.values().map(Outbox::in_flight).sum();
        loop {
            let ready = |outbox: &Outbox| {
                outbox.sent < outbox.entries.len() && outbox.not_before_ns <= now_ns
            };
            let next = match self.turn {
                Some(turn) => self
                    .outboxes
                    .range((std::ops::Bound::Excluded(turn), std::ops::Bound::Unbounded))
                    .chain(self.outboxes.range(..=turn))
                    .find(|(_, outbox)| ready(outbox))
                    .map(|(stream, _)| *stream),
                None => self
                    .outboxes
                    .iter()
                    .find(|(_, outbox)| ready(outbox))
                    .map(|(stream, _)| *stream),
            };
            let Some(stream) = next else { break };
            let outbox = self.outboxes.get_mut(&stream).expect("just found");
            let entry = outbox.entries[outbox.sent];
            if in_flight > 0 && in_flight + entry.bytes() > self.window_bytes {
                break;
            }
            in_flight += entry.bytes();
            outbox.sent += 1;
            self.turn = Some(stream);
            actions.push(match entry {
                Entry::Frame(frame) => Action::Send(frame),
                Entry::Loss(loss) => Action::SendLoss(loss),
            });
        }
    }
}
