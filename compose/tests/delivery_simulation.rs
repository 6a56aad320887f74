//! Delivery, simulated: the agent's uplink decisions and the aggregator's intake
//! and positions, as the product uses them, under a network, disks and processes
//! that fail at the worst moments. Everything follows from the seed, which is
//! printed.
//!
//! Asserted for each seed, after the world has become kind again: every record
//! that no fault destroyed is stored once, in order, and what was destroyed is
//! declared (conservation); and the agent's spool becomes empty (liveness). A
//! world whose aggregator acknowledges early, or takes what comes twice, must
//! fail.
//!
//! `GAPSCOPE_SEEDS=20000` runs more seeds, `GAPSCOPE_SEED=n` one.

#![expect(clippy::print_stdout, reason = "what is measured is printed")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gapscope_agent::spool::{FrameRef, Loss, LossReason, Report};
use gapscope_agent::uplink::session::{Action, Event, NackReason, Session};
use gapscope_aggregator::ingest::admit::cut_loss;
use gapscope_aggregator::ingest::intake::{Intake, Offered};
use gapscope_aggregator::store::footer::StreamKey;
use gapscope_aggregator::store::positions::Positions;
use gapscope_proto::frame::{StreamId, StreamKind};
use gapscope_proto::ids::{AgentId, Incarnation, RunId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What is wrong with this aggregator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutation {
    Nothing,
    AcknowledgesBeforeItIsDurable,
    TakesDuplicates,
}

/// What stands for a stretch of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stretch {
    first: u64,
    last: u64,
    is_loss: bool,
}

#[derive(Debug, Clone, Copy)]
enum Entry {
    Frame(FrameRef),
    Loss(Loss),
}

impl Entry {
    fn range(&self) -> (u64, u64) {
        match self {
            Self::Frame(frame) => (frame.first, frame.last),
            Self::Loss(loss) => (loss.first, loss.last),
        }
    }
}

enum Up {
    Hello(Vec<StreamId>),
    Frame(FrameRef),
    Loss(Loss),
}

enum Down {
    Welcome(Vec<(StreamId, u64)>),
    Ack(StreamId, u64),
    Nack(StreamId, NackReason, u64),
    Heartbeat,
}

struct Connection {
    id: u64,
    up: VecDeque<Up>,
    down: VecDeque<Down>,
}

/// The agent: a spool that outlives it, and its decisions, which do not.
struct Agent {
    spool: BTreeMap<StreamId, Vec<Entry>>,
    session: Session,
    incarnation: u64,
    connection: Option<u64>,
    next_offset: u64,
}

/// The aggregator: what is on its disk, and what is in its memory.
struct Aggregator {
    disk: BTreeMap<StreamKey, Vec<Stretch>>,
    memory: Vec<(StreamKey, Stretch)>,
    positions: Positions,
    intake: Intake,
    newest: Option<u64>,
    disk_is_full: bool,
}

struct World {
    random: StdRng,
    mutation: Mutation,
    run: RunId,
    id: AgentId,
    now_ns: i64,
    agent: Agent,
    aggregator: Aggregator,
    connections: Vec<Connection>,
    next_connection: u64,
    /// Records measured in each stream.
    measured: BTreeMap<StreamId, u64>,
    /// Records that a fault has destroyed.
    destroyed: BTreeMap<StreamId, BTreeSet<u64>>,
    kind: bool,
}

impl World {
    fn new(seed: u64, mutation: Mutation) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            mutation,
            run: "01a22c71-a5ce-7341-a1d3-9c297ce0a076"
                .parse()
                .expect("an id"),
            id: "a".parse().expect("a name"),
            now_ns: 0,
            agent: Agent {
                spool: BTreeMap::new(),
                session: Session::default(),
                incarnation: 1,
                connection: None,
                next_offset: 0,
            },
            aggregator: Aggregator {
                disk: BTreeMap::new(),
                memory: Vec::new(),
                positions: Positions::default(),
                intake: Intake::default(),
                newest: None,
                disk_is_full: false,
            },
            connections: Vec::new(),
            next_connection: 1,
            measured: BTreeMap::new(),
            destroyed: BTreeMap::new(),
            kind: false,
        }
    }

    fn key(&self, stream: &StreamId) -> StreamKey {
        StreamKey {
            agent_id: self.id.clone(),
            incarnation: stream.incarnation,
            kind: stream.kind,
        }
    }

    fn stream(&self, key: &StreamKey) -> StreamId {
        StreamId {
            run: self.run,
            incarnation: key.incarnation,
            kind: key.kind,
        }
    }

    // ------------------------------------------------------------- the agent

    fn tell_session(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for action in self.agent.session.handle(event, self.now_ns) {
                match action {
                    Action::Hello(positions) => {
                        let streams = positions.iter().map(|p| p.stream).collect();
                        self.say(Up::Hello(streams));
                    }
                    Action::Send(frame) => {
                        // A bad sector: the frame cannot be read any more.
                        if !self.kind && self.random.random_ratio(1, 150) {
                            self.destroy(frame.stream, frame.first, frame.last);
                            events.push_back(Event::Unreadable(frame));
                        } else {
                            self.say(Up::Frame(frame));
                        }
                    }
                    Action::SendLoss(loss) => self.say(Up::Loss(loss)),
                    Action::Forget(stream, seq) => {
                        let entries = self.agent.spool.entry(stream).or_default();
                        entries.retain(|entry| entry.range().1 > seq);
                    }
                    Action::Declare(loss) => self.lose_in_spool(loss),
                    Action::Heartbeat => {}
                    Action::GaveUp(..) => panic!("the run is always there"),
                    Action::Reconnect(_) => {
                        self.agent.connection = None;
                        events.push_back(Event::Disconnected);
                    }
                }
            }
        }
    }

    fn say(&mut self, message: Up) {
        let id = self.agent.connection;
        if let Some(connection) = self.connections.iter_mut().find(|c| Some(c.id) == id) {
            connection.up.push_back(message);
        }
    }

    fn lose_in_spool(&mut self, loss: Loss) {
        let entries = self.agent.spool.entry(loss.stream).or_default();
        entries.retain(|entry| {
            let (first, last) = entry.range();
            first > loss.last || last < loss.first
        });
        entries.push(Entry::Loss(loss));
        entries.sort_by_key(|entry| entry.range());
    }

    fn destroy(&mut self, stream: StreamId, first: u64, last: u64) {
        self.destroyed
            .entry(stream)
            .or_default()
            .extend(first..=last);
    }

    fn measure(&mut self) {
        let kind = if self.random.random() {
            StreamKind::Samples
        } else {
            StreamKind::Host
        };
        let stream = StreamId {
            run: self.run,
            incarnation: Incarnation::new(self.agent.incarnation).expect("not 0"),
            kind,
        };
        let count = self.random.random_range(1..6);
        let measured = self.measured.entry(stream).or_default();
        let frame = FrameRef {
            stream,
            first: *measured + 1,
            last: *measured + count,
            segment: 1,
            offset: self.agent.next_offset,
            len: self.random.random_range(20..200),
        };
        *measured += count;
        self.agent.next_offset += 1;
        self.agent
            .spool
            .entry(stream)
            .or_default()
            .push(Entry::Frame(frame));
        self.tell_session(Event::Report(Report::Sealed(frame)));
    }

    /// The spool is full: its oldest frame of a stream goes.
    fn overflow(&mut self) {
        let oldest = self.agent.spool.values().find_map(|entries| {
            entries.iter().find_map(|entry| match entry {
                Entry::Frame(frame) => Some(*frame),
                Entry::Loss(_) => None,
            })
        });
        if let Some(frame) = oldest {
            // Of what is acknowledged by now nothing is destroyed, only unknown here.
            self.destroy(frame.stream, frame.first, frame.last);
            let loss = Loss::exact(frame.stream, frame.first, frame.last, LossReason::SpoolFull);
            self.lose_in_spool(loss);
            self.tell_session(Event::Report(Report::Lost(loss)));
        }
    }

    fn connect(&mut self) {
        if self.agent.connection.is_some() {
            return;
        }
        let id = self.next_connection;
        self.next_connection += 1;
        self.connections.push(Connection {
            id,
            up: VecDeque::new(),
            down: VecDeque::new(),
        });
        self.agent.connection = Some(id);
        self.tell_session(Event::Connected);
    }

    /// The connection ends for the agent; what it had said may still arrive.
    fn cut(&mut self) {
        if let Some(id) = self.agent.connection.take() {
            let arrives: bool = self.random.random();
            for connection in &mut self.connections {
                if connection.id == id {
                    connection.down.clear();
                    if !arrives {
                        connection.up.clear();
                    }
                }
            }
            self.tell_session(Event::Disconnected);
        }
    }

    /// Silence: nothing of it arrives any more, and nobody is told.
    fn go_silent(&mut self) {
        let id = self.agent.connection;
        self.connections
            .retain(|connection| Some(connection.id) != id);
    }

    fn kill_agent(&mut self) {
        self.cut();
        self.agent.incarnation += 1;
        self.agent.session = Session::default();
        let held: Vec<Entry> = self.agent.spool.values().flatten().copied().collect();
        for entry in held {
            self.tell_session(Event::Report(match entry {
                Entry::Frame(frame) => Report::Sealed(frame),
                Entry::Loss(loss) => Report::Lost(loss),
            }));
        }
    }

    fn hear(&mut self) {
        let id = self.agent.connection;
        let Some(connection) = self.connections.iter_mut().find(|c| Some(c.id) == id) else {
            return;
        };
        let event = match connection.down.pop_front() {
            None => return,
            Some(Down::Welcome(committed)) => Event::Welcome {
                committed,
                window_bytes: 400,
                heartbeat_ns: 0,
            },
            Some(Down::Ack(stream, seq)) => Event::Ack { stream, seq },
            Some(Down::Nack(stream, reason, expected)) => Event::Nack {
                stream,
                reason,
                expected,
                retry_after_ns: 300_000_000,
            },
            Some(Down::Heartbeat) => Event::Heard,
        };
        self.tell_session(event);
    }

    // -------------------------------------------------------- the aggregator

    fn answer(&mut self, connection: u64, message: Down) {
        if let Some(connection) = self.connections.iter_mut().find(|c| c.id == connection) {
            connection.down.push_back(message);
        }
    }

    /// Takes in one message of any connection that has some.
    fn take_in(&mut self) {
        let full: Vec<usize> = (0..self.connections.len())
            .filter(|at| !self.connections[*at].up.is_empty())
            .collect();
        if full.is_empty() {
            return;
        }
        let at = full[self.random.random_range(0..full.len())];
        let id = self.connections[at].id;
        match self.connections[at].up.pop_front().expect("is not empty") {
            Up::Hello(streams) => {
                self.aggregator.newest = self.aggregator.newest.max(Some(id));
                let committed = streams
                    .into_iter()
                    .map(|s| (s, self.aggregator.positions.durable(&self.key(&s))))
                    .collect();
                self.answer(id, Down::Welcome(committed));
            }
            Up::Frame(frame) => {
                // The run's folder cannot be opened just now.
                if !self.kind && self.random.random_ratio(1, 40) {
                    let busy = Down::Nack(frame.stream, NackReason::Busy, frame.first);
                    return self.answer(id, busy);
                }
                let stretch = Stretch {
                    first: frame.first,
                    last: frame.last,
                    is_loss: false,
                };
                self.offer(id, frame.stream, stretch);
            }
            Up::Loss(loss) => {
                let stretch = Stretch {
                    first: loss.first,
                    last: loss.last,
                    is_loss: true,
                };
                self.offer(id, loss.stream, stretch);
            }
        }
    }

    fn offer(&mut self, session: u64, stream: StreamId, stretch: Stretch) {
        let key = self.key(&stream);
        let (first, last) = (stretch.first, stretch.last);
        let positions = &self.aggregator.positions;
        let offered = self
            .aggregator
            .intake
            .offer(positions, &key, session, first, last);
        if self.mutation == Mutation::TakesDuplicates
            && last <= self.aggregator.positions.admitted(&key)
        {
            self.aggregator.memory.push((key, stretch));
            return;
        }
        match offered {
            Offered::Take { skip } => {
                let first = if stretch.is_loss {
                    cut_loss(skip, first, last, 0, last - first + 1).0
                } else {
                    first + skip
                };
                self.aggregator.positions.take(&key, last + 1 - first);
                self.aggregator
                    .memory
                    .push((key, Stretch { first, ..stretch }));
                if self.mutation == Mutation::AcknowledgesBeforeItIsDurable {
                    self.acknowledge();
                }
            }
            Offered::Acknowledge { seq } => self.answer(session, Down::Ack(stream, seq)),
            Offered::Refuse { expected } => {
                self.answer(session, Down::Nack(stream, NackReason::Gap, expected));
            }
            Offered::Nothing => {}
        }
    }

    /// What is in memory goes to the disk; a crash may come before anyone is told.
    fn commit(&mut self) {
        if self.aggregator.disk_is_full {
            return;
        }
        for (key, stretch) in self.aggregator.memory.drain(..) {
            self.aggregator.disk.entry(key).or_default().push(stretch);
        }
        if !self.kind && self.random.random_ratio(1, 20) {
            return self.kill_aggregator();
        }
        self.acknowledge();
    }

    fn acknowledge(&mut self) {
        for kind in [StreamKind::Samples, StreamKind::Host] {
            self.aggregator.positions.settle(kind);
        }
        for (key, seq) in self.aggregator.positions.take_acks() {
            if let Some(newest) = self.aggregator.newest {
                self.answer(newest, Down::Ack(self.stream(&key), seq));
            }
        }
    }

    fn kill_aggregator(&mut self) {
        self.connections.clear();
        let aggregator = &mut self.aggregator;
        aggregator.memory.clear();
        aggregator.intake = Intake::default();
        aggregator.newest = None;
        aggregator.positions = Positions::default();
        for (key, stretches) in &aggregator.disk {
            let last = stretches.iter().map(|s| s.last).max().unwrap_or(0);
            aggregator.positions.found(key.clone(), last);
        }
        // The agent may find out at once, or by the silence.
        if self.random.random() {
            self.cut();
        }
    }

    // ------------------------------------------------------------- the world

    fn pass_time(&mut self, ns: i64) {
        self.now_ns += ns;
        if let Some(newest) = self.aggregator.newest {
            self.answer(newest, Down::Heartbeat);
        }
        let live = self.random.random();
        self.tell_session(Event::Tick { live });
    }

    fn step(&mut self) {
        match self.random.random_range(0..100) {
            0..20 => self.measure(),
            20..30 => self.connect(),
            30..55 => self.take_in(),
            55..75 => self.hear(),
            75..85 => self.commit(),
            85..90 => {
                let ns = self.random.random_range(0..2_000_000_000);
                self.pass_time(ns);
            }
            90..93 => self.cut(),
            93 => self.kill_agent(),
            94 => self.kill_aggregator(),
            95 => self.go_silent(),
            96 => self.overflow(),
            97..99 => {
                self.aggregator.disk_is_full = !self.aggregator.disk_is_full;
            }
            _ => {
                // Away for a while.
                self.pass_time(7_000_000_000);
            }
        }
    }

    /// Everything works from now on.
    fn heal(&mut self) -> Result<(), String> {
        self.kind = true;
        self.aggregator.disk_is_full = false;
        for _ in 0..4_000 {
            self.connect();
            self.take_in();
            self.hear();
            self.hear();
            self.commit();
            self.pass_time(50_000_000);
            if self.agent.session.is_drained() && self.agent.spool.values().all(Vec::is_empty) {
                return Ok(());
            }
        }
        Err(format!("the spool still holds {:?}", self.agent.spool))
    }

    fn check(&self) -> Result<(), String> {
        for (stream, measured) in &self.measured {
            let key = self.key(stream);
            let mut stretches = self.aggregator.disk.get(&key).cloned().unwrap_or_default();
            stretches.sort_by_key(|s| (s.first, s.last));
            let mut next = 1;
            let nothing = BTreeSet::new();
            let destroyed = self.destroyed.get(stream).unwrap_or(&nothing);
            for stretch in stretches {
                if stretch.first != next {
                    return Err(format!("{stream:?}: {next} is next, not {stretch:?}"));
                }
                next = stretch.last + 1;
                let sound = (stretch.first..=stretch.last).find(|seq| !destroyed.contains(seq));
                if let (true, Some(seq)) = (stretch.is_loss, sound) {
                    return Err(format!("{stream:?}: {seq} is declared lost and was sound"));
                }
            }
            if next != measured + 1 {
                return Err(format!(
                    "{stream:?}: {measured} measured, {} here",
                    next - 1
                ));
            }
        }
        Ok(())
    }
}

fn simulate(seed: u64, mutation: Mutation) -> Result<u64, String> {
    let mut world = World::new(seed, mutation);
    let steps = world.random.random_range(50..600);
    for _ in 0..steps {
        world.step();
    }
    world.heal().and_then(|()| world.check())?;
    Ok(world.measured.values().sum())
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| Some(std::env::var(name).ok()?.parse().expect("a number"));
    match number("GAPSCOPE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("GAPSCOPE_SEEDS").unwrap_or(3_000),
    }
}

#[test]
fn every_record_arrives_once_whatever_fails() {
    let mut records = 0;
    let seeds = seeds();
    for seed in seeds.clone() {
        match simulate(seed, Mutation::Nothing) {
            Ok(measured) => records += measured,
            Err(why) => panic!("GAPSCOPE_SEED={seed}: {why}"),
        }
    }
    println!(
        "{} seeds, {records} records: each stored once or declared",
        seeds.count()
    );
    assert!(records > 0);
}

#[track_caller]
fn is_found_out(mutation: Mutation) {
    let found = (0..500)
        .filter(|seed| simulate(*seed, mutation).is_err())
        .count();
    println!("{mutation:?}: found out by {found} of 500 seeds");
    assert!(found > 50, "{found}");
}

#[test]
fn an_aggregator_that_acknowledges_early_is_found_out() {
    is_found_out(Mutation::AcknowledgesBeforeItIsDurable);
}

#[test]
fn an_aggregator_that_takes_duplicates_is_found_out() {
    is_found_out(Mutation::TakesDuplicates);
}
