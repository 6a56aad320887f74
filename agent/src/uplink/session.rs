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

use std::collections::{BTreeMap, VecDeque};

use gapscope_proto::frame::StreamId;

use crate::spool::{FrameRef, Loss, LossReason, Report};

/// Silence for so long means that the connection is dead.
pub const SILENCE_NS: i64 = 6_000_000_000;
/// Between two heartbeats while nothing is being probed.
const HEARTBEAT_NS: i64 = 2_000_000_000;
/// Between two heartbeats while a run is shown live.
const LIVE_HEARTBEAT_NS: i64 = 250_000_000;
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Entry {
    Frame(FrameRef),
    Loss(Loss),
}

impl Entry {
    fn first(&self) -> u64 {
        match self {
            Self::Frame(frame) => frame.first,
            Self::Loss(loss) => loss.first,
        }
    }

    fn last(&self) -> u64 {
        match self {
            Self::Frame(frame) => frame.last,
            Self::Loss(loss) => loss.last,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Frame(frame) => u64::from(frame.len),
            Self::Loss(_) => 64,
        }
    }
}

#[derive(Debug, Default)]
struct Outbox {
    entries: VecDeque<Entry>,
    /// The first so many entries are in flight.
    sent: usize,
    acked: u64,
    last: u64,
    refused: bool,
    not_before_ns: i64,
    /// Same answers still to come for what was in flight: expected seq, count.
    echoes: (u64, usize),
}

impl Outbox {
    /// Index of the first entry that reaches `seq`.
    fn index_of(&self, seq: u64) -> usize {
        self.entries.partition_point(|entry| entry.last() < seq)
    }

    fn in_flight(&self) -> u64 {
        self.entries.iter().take(self.sent).map(Entry::bytes).sum()
    }

    fn ack(&mut self, seq: u64) {
        self.acked = self.acked.max(seq);
        while self
            .entries
            .front()
            .is_some_and(|entry| entry.last() <= seq)
        {
            self.entries.pop_front();
            self.sent = self.sent.saturating_sub(1);
        }
    }

    fn insert_loss(&mut self, loss: Loss) {
        let touches = |entry: &Entry| entry.first() <= loss.last && entry.last() >= loss.first;
        let at = self
            .entries
            .iter()
            .take_while(|e| e.last() < loss.first)
            .count();
        self.entries.retain(|entry| !touches(entry));
        self.entries.insert(at, Entry::Loss(loss));
        self.sent = self.sent.min(at);
        self.last = self.last.max(loss.last);
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
                actions.push(Action::Hello(self.positions()));
            }
            Event::Welcome {
                committed,
                window_bytes,
            } => {
                self.heard_ns = now_ns;
                self.welcomed = true;
                if window_bytes > 0 {
                    self.window_bytes = window_bytes;
                }
                for (stream, seq) in committed {
                    self.acked(stream, seq, &mut actions);
                }
            }
            Event::Ack { stream, seq } => {
                self.heard_ns = now_ns;
                self.acked(stream, seq, &mut actions);
            }
            Event::Nack {
                stream,
                reason,
                expected,
                retry_after_ns,
            } => {
                self.heard_ns = now_ns;
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
                if self.connected && now_ns.saturating_sub(self.heard_ns) > SILENCE_NS {
                    actions.push(Action::Reconnect("the aggregator has been silent for 6 s"));
                }
                let every = if live {
                    LIVE_HEARTBEAT_NS
                } else {
                    HEARTBEAT_NS
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
                if let Some(Entry::Frame(frame)) = outbox.entries.get(at).copied()
                    && frame.first <= expected
                {
                    let loss = Loss::exact(stream, expected, frame.last, LossReason::Rejected);
                    outbox.insert_loss(loss);
                    outbox.sent = outbox.sent.min(at);
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

#[cfg(test)]
mod tests {
    use super::*;
    use gapscope_proto::frame::StreamKind;
    use gapscope_proto::ids::{Incarnation, RunId};
    use proptest::prelude::*;

    fn stream(kind: StreamKind) -> StreamId {
        StreamId {
            run: RunId::from_bytes([1, 2, 3, 4, 5, 6, 0x70, 8, 0x80, 1, 2, 3, 4, 5, 6, 7])
                .expect("a UUIDv7"),
            incarnation: Incarnation::new(9).expect("not 0"),
            kind,
        }
    }

    fn frame(first: u64, last: u64) -> FrameRef {
        FrameRef {
            stream: stream(StreamKind::Samples),
            first,
            last,
            segment: 1,
            offset: first,
            len: 100,
        }
    }

    fn welcome(committed: u64) -> Event {
        Event::Welcome {
            committed: vec![(stream(StreamKind::Samples), committed)],
            window_bytes: 250,
        }
    }

    fn up(frames: &[(u64, u64)]) -> Session {
        let mut session = Session::default();
        for (first, last) in frames {
            session.handle(Event::Report(Report::Sealed(frame(*first, *last))), 0);
        }
        session.handle(Event::Connected, 0);
        session
    }

    fn nack(reason: NackReason, expected: u64) -> Event {
        Event::Nack {
            stream: stream(StreamKind::Samples),
            reason,
            expected,
            retry_after_ns: 1_000,
        }
    }

    fn ack(seq: u64) -> Event {
        Event::Ack {
            stream: stream(StreamKind::Samples),
            seq,
        }
    }

    #[test]
    fn nothing_is_sent_before_the_welcome_and_nothing_beyond_the_window() {
        let mut session = up(&[(1, 5), (6, 9), (10, 12), (13, 13)]);
        assert_eq!(session.handle(Event::Tick { live: false }, 1), []);
        assert_eq!(
            session.handle(welcome(0), 1),
            [Action::Send(frame(1, 5)), Action::Send(frame(6, 9))]
        );
        assert_eq!(
            session.handle(ack(5), 2),
            [
                Action::Forget(stream(StreamKind::Samples), 5),
                Action::Send(frame(10, 12))
            ]
        );
        assert!(!session.is_drained());
    }

    #[test]
    fn a_new_connection_sends_again_what_is_not_committed() {
        let mut session = up(&[(1, 5), (6, 9)]);
        session.handle(welcome(0), 1);
        session.handle(Event::Disconnected, 2);
        let hello = session.handle(Event::Connected, 3);
        assert_eq!(
            hello,
            [Action::Hello(vec![Position {
                stream: stream(StreamKind::Samples),
                first_unacked: 1,
                last: 9
            }])]
        );
        assert_eq!(
            session.handle(welcome(5), 4),
            [
                Action::Forget(stream(StreamKind::Samples), 5),
                Action::Send(frame(6, 9))
            ]
        );
    }

    #[test]
    fn a_hole_is_filled_or_declared_once() {
        let mut session = up(&[(3, 5), (6, 9)]);
        session.handle(welcome(0), 1);
        let loss = Loss::exact(stream(StreamKind::Samples), 1, 2, LossReason::Corrupt);
        assert_eq!(
            session.handle(nack(NackReason::Gap, 1), 2),
            [
                Action::Declare(loss),
                Action::SendLoss(loss),
                Action::Send(frame(3, 5))
            ]
        );
        // The second frame in flight draws the same answer.
        assert_eq!(session.handle(nack(NackReason::Gap, 1), 3), []);
        session.handle(ack(5), 4);
        session.handle(ack(9), 5);
        assert!(session.is_drained());
    }

    #[test]
    fn a_malformed_frame_becomes_a_loss() {
        let mut session = up(&[(1, 5), (6, 9)]);
        session.handle(welcome(0), 1);
        let loss = Loss::exact(stream(StreamKind::Samples), 1, 5, LossReason::Rejected);
        assert_eq!(
            session.handle(nack(NackReason::Malformed, 1), 2),
            [
                Action::Declare(loss),
                Action::SendLoss(loss),
                Action::Send(frame(6, 9))
            ]
        );
    }

    #[test]
    fn an_unknown_run_is_given_up_and_counted() {
        let mut session = up(&[(1, 5)]);
        session.handle(welcome(0), 1);
        let id = stream(StreamKind::Samples);
        assert_eq!(
            session.handle(nack(NackReason::UnknownRun, 1), 2),
            [Action::Forget(id, 5), Action::GaveUp(id, 5)]
        );
        assert_eq!(
            session.handle(Event::Report(Report::Sealed(frame(6, 7))), 3),
            [Action::Forget(id, 7), Action::GaveUp(id, 2)]
        );
        assert!(session.is_drained());
    }

    #[test]
    fn busy_means_later() {
        let mut session = up(&[(1, 5)]);
        session.handle(welcome(0), 1);
        assert_eq!(session.handle(nack(NackReason::Busy, 1), 10), []);
        assert_eq!(session.handle(Event::Heard, 1_009), []);
        assert_eq!(
            session.handle(Event::Heard, 1_010),
            [Action::Send(frame(1, 5))]
        );
    }

    #[test]
    fn silence_is_noticed_and_heartbeats_are_sent() {
        let mut session = up(&[]);
        session.handle(welcome(0), 0);
        assert_eq!(
            session.handle(Event::Tick { live: true }, LIVE_HEARTBEAT_NS),
            [Action::Heartbeat]
        );
        assert_eq!(
            session.handle(Event::Tick { live: false }, LIVE_HEARTBEAT_NS * 2),
            []
        );
        assert!(
            session
                .handle(Event::Tick { live: false }, SILENCE_NS + 1)
                .contains(&Action::Reconnect("the aggregator has been silent for 6 s"))
        );
    }

    #[test]
    fn a_full_spool_replaces_frames_by_their_loss() {
        let mut session = up(&[(1, 5), (6, 9), (10, 11)]);
        let loss = Loss::exact(stream(StreamKind::Samples), 1, 9, LossReason::SpoolFull);
        session.handle(Event::Report(Report::Lost(loss)), 1);
        assert_eq!(
            session.handle(welcome(0), 2),
            [Action::SendLoss(loss), Action::Send(frame(10, 11))]
        );
    }

    /// An aggregator as the protocol describes it.
    #[derive(Default)]
    struct Model {
        accepted: u64,
        durable: u64,
        records: Vec<u64>,
        lost: Vec<u64>,
    }

    impl Model {
        fn take(&mut self, first: u64, last: u64, loss: bool) -> Option<Event> {
            if first > self.accepted + 1 {
                return Some(nack(NackReason::Gap, self.accepted + 1));
            }
            for seq in first.max(self.accepted + 1)..=last {
                if loss {
                    self.lost.push(seq);
                } else {
                    self.records.push(seq);
                }
            }
            self.accepted = self.accepted.max(last);
            None
        }

        /// What is not durable is forgotten when the connection ends.
        fn disconnect(&mut self) {
            self.accepted = self.durable;
            self.records.retain(|seq| *seq <= self.durable);
            self.lost.retain(|seq| *seq <= self.durable);
        }
    }

    proptest! {
        /// Whatever is cut off, dropped or sealed late: all arrives once, in order.
        #[test]
        fn all_arrives_once(script in proptest::collection::vec((0u8..6, 1u64..4), 1..120), hole in proptest::option::of(1u64..6)) {
            let mut session = Session::default();
            let mut model = Model::default();
            let mut wire: VecDeque<Action> = VecDeque::new();
            let mut next_seq = 1;
            let mut connected = false;
            let mut now = 0;
            let begin = hole.unwrap_or(1);
            let mut drain = vec![(1, 1), (5, 0)];
            drain.extend(std::iter::repeat_n((3, 3), 400));
            for (what, size) in script.into_iter().chain(drain) {
                now += 1;
                let mut actions = Vec::new();
                match what {
                    0 => {
                        // What is acknowledged before it is there cannot be lost.
                        if next_seq == 1 { next_seq = begin; }
                        actions = session.handle(Event::Report(Report::Sealed(frame(next_seq, next_seq + size - 1))), now);
                        next_seq += size;
                    }
                    1 | 2 if !connected => {
                        connected = true;
                        wire.clear();
                        session.handle(Event::Connected, now);
                        actions = session.handle(welcome(model.durable), now);
                    }
                    2 if connected => {
                        connected = false;
                        wire.clear();
                        model.disconnect();
                        session.handle(Event::Disconnected, now);
                    }
                    3 | 4 if connected => {
                        for _ in 0..size {
                            let answer = match wire.pop_front() {
                                Some(Action::Send(f)) => model.take(f.first, f.last, false),
                                Some(Action::SendLoss(l)) => model.take(l.first, l.last, true),
                                _ => None,
                            };
                            if let Some(answer) = answer {
                                actions.extend(session.handle(answer, now));
                            }
                        }
                        model.durable = model.accepted;
                        if model.durable > 0 {
                            actions.extend(session.handle(ack(model.durable), now));
                        }
                    }
                    _ => {}
                }
                wire.extend(actions.into_iter().filter(|a| matches!(a, Action::Send(_) | Action::SendLoss(_))));
            }
            prop_assert!(session.is_drained());
            let expect: Vec<u64> = (begin..next_seq).collect();
            prop_assert_eq!(&model.records, &expect);
            if next_seq > 1 {
                prop_assert_eq!(&model.lost, &(1..begin).collect::<Vec<_>>());
            }
        }
    }
}
