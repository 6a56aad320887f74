//! The uplink's decisions, one by one, and against a model of the other side.

use std::collections::VecDeque;

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
        heartbeat_ns: 0,
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

/// Between two heartbeats of a live run, unless the aggregator asks for another pace.
const LIVE_NS: i64 = 250_000_000;

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
fn of_a_frame_refused_by_half_the_other_half_is_kept() {
    let mut session = up(&[(1, 5), (6, 9)]);
    session.handle(welcome(0), 1);
    let loss = Loss::exact(stream(StreamKind::Samples), 4, 5, LossReason::Rejected);
    assert_eq!(
        session.handle(nack(NackReason::Malformed, 4), 2),
        [
            Action::Declare(loss),
            Action::Send(frame(1, 3)),
            Action::SendLoss(loss),
        ]
    );
    session.handle(ack(5), 3);
    assert!(!session.is_drained());
    session.handle(ack(9), 4);
    assert!(session.is_drained());
}

#[test]
fn an_aggregator_that_answers_nothing_for_a_minute_is_connected_to_anew() {
    let mut session = up(&[(1, 5)]);
    session.handle(welcome(0), 0);
    let again = Action::Reconnect("nothing was acknowledged for a minute");
    for second in 1..=60 {
        session.handle(Event::Heard, second * 1_000_000_000);
        let actions = session.handle(Event::Tick { live: false }, second * 1_000_000_000);
        assert!(!actions.contains(&again), "{second}");
    }
    let late = STALL_NS + 1_000_000_000;
    session.handle(Event::Heard, late);
    assert!(
        session
            .handle(Event::Tick { live: false }, late)
            .contains(&again)
    );
    // Nothing in flight: nothing to wait for.
    session.handle(ack(5), late);
    session.handle(Event::Heard, late * 3);
    let actions = session.handle(Event::Tick { live: false }, late * 3);
    assert!(!actions.contains(&again));
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
        session.handle(Event::Tick { live: true }, LIVE_NS),
        [Action::Heartbeat]
    );
    assert_eq!(session.handle(Event::Tick { live: false }, LIVE_NS * 2), []);
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

/// Ticks of 50 ms for `over_ns`: when a heartbeat is due, and when the silence is
/// too long.
fn beats(asked_ns: i64, live: bool, over_ns: i64) -> (Vec<i64>, Option<i64>) {
    let mut session = up(&[]);
    session.handle(
        Event::Welcome {
            committed: Vec::new(),
            window_bytes: 0,
            heartbeat_ns: asked_ns,
        },
        0,
    );
    let (mut due, mut silent) = (Vec::new(), None);
    for now in (0..=over_ns).step_by(50_000_000) {
        for action in session.handle(Event::Tick { live }, now) {
            match action {
                Action::Heartbeat => due.push(now / 1_000_000),
                Action::Reconnect(_) => silent = silent.or(Some(now / 1_000_000)),
                other => panic!("{other:?}"),
            }
        }
    }
    (due, silent)
}

#[test]
fn heartbeats_come_as_often_as_the_aggregator_asks() {
    const S: i64 = 1_000_000_000;
    // Not said: 2 s, 250 ms while a run is shown, 6 s of silence.
    assert_eq!(beats(0, false, 7 * S), (vec![2000, 4000, 6000], Some(6050)));
    assert_eq!(beats(0, true, S), (vec![250, 500, 750, 1000], None));
    assert_eq!(
        beats(5 * S, false, 16 * S),
        (vec![5000, 10000, 15000], Some(15050))
    );
    assert_eq!(beats(4 * S, true, S), (vec![500, 1000], None));
    assert_eq!(
        beats(S / 2, false, 2 * S),
        (vec![500, 1000, 1500, 2000], None)
    );
    // Nonsense is bounded on both sides.
    assert_eq!(
        beats(1, false, S / 2),
        (vec![100, 200, 300, 400, 500], None)
    );
    assert_eq!(beats(i64::MAX, false, 41 * S), (vec![20000, 40000], None));
}
