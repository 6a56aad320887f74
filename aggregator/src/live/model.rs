//! A run as it is seen so far: what was acknowledged, brought into lanes. Pure.
//!
//! Records are taken when they arrive and count when they are acknowledged, that is,
//! durable: what is shown will not be unsaid by a crash. Every part is bounded, in
//! lanes, clients, backends, columns, lines.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gapscope_proto::batch::{Row, Series};
use gapscope_proto::clock::ClockKey;
use gapscope_proto::fault::{FIRST_NOTE_ID, Fault, FaultScope, Span};
use gapscope_proto::host::{Anchor, HostRecord};
use gapscope_proto::ids::{AgentId, TargetName};
use gapscope_proto::plan::ClientGroup;
use gapscope_proto::sample::{Outcome, Style};

use super::clock::Placement;
use super::event::{EventKind, Events};
use super::lane::{Lane, Name, Seen, Worth};
use super::presence::Seat;
use super::totals::Counts;
use super::view::{AgentView, FaultView, View};
use crate::store::manifest::{Manifest, RunState};

/// Lanes that are shown.
const MOST_LANES: usize = 300;
/// Backends that are told apart; later ones are put together under the last number.
const MOST_BACKENDS: usize = 250;
/// Faults and marks that are shown.
const MOST_FAULTS: usize = 200;
/// An agent from which something came so lately is heard.
const HEARD_NS: i64 = 2_000_000_000;
/// A mark's text is cut here.
const LONGEST_NAME: usize = 120;

type ClientKey = (u32, Style, u16, Arc<TargetName>);

/// What some samples of one client have in common.
struct Common {
    lane: Option<u32>,
    target: Arc<TargetName>,
    style: Style,
    backend: Option<Arc<str>>,
    /// Its times and slot are each sample's own.
    seen: Seen,
}

/// One sample's own, by its agent's clock.
struct Own {
    common: u32,
    slot: u64,
    started: i64,
    finished: i64,
}

/// What has arrived and is not acknowledged.
struct Arrived {
    agent: u32,
    common: Vec<Common>,
    own: Vec<Own>,
}

#[derive(Debug)]
struct AgentPart {
    id: AgentId,
    /// Something of it has arrived, so its clock is known by name.
    is_met: bool,
    clock: Placement,
    /// When something of it was last acknowledged.
    heard: Option<i64>,
    newest: Option<i64>,
}

impl AgentPart {
    fn new(id: AgentId) -> Self {
        Self {
            id,
            is_met: false,
            clock: Placement::default(),
            heard: None,
            newest: None,
        }
    }
}

struct FaultPart {
    view: FaultView,
    told: Vec<&'static str>,
}

/// The word for a state.
const fn state_word(state: RunState) -> &'static str {
    match state {
        RunState::Running => "running",
        RunState::Closed => "closed",
        RunState::Interrupted => "interrupted",
    }
}

/// A run so far.
pub struct Model {
    run_id: String,
    plan: gapscope_proto::plan::RunPlan,
    own: ClockKey,
    zero_ns: i64,
    state: RunState,
    trouble: String,
    agents: Vec<AgentPart>,
    lanes: Vec<Lane>,
    by_name: HashMap<(u32, Arc<TargetName>, Style, &'static str, u64), u32>,
    by_client: HashMap<ClientKey, Option<u32>>,
    backends: Vec<String>,
    waiting: Vec<Arrived>,
    faults: BTreeMap<u32, FaultPart>,
    events: Events,
    events_told: u64,
    samples: u64,
    lost: u64,
    lanes_left_out: u64,
}

impl Model {
    /// Of a run whose folder is open; `own` is the aggregator's clock.
    pub fn new(manifest: &Manifest, own: ClockKey, now: &Anchor) -> Self {
        let zero_ns = manifest.anchors.first().map_or(now.raw_after_ns, |begin| {
            if manifest.clock == own {
                begin.raw_after_ns
            } else {
                // Begun before a reboot: by wall time, which is good enough to look at.
                let since = now.realtime_ns.saturating_sub(begin.realtime_ns);
                now.raw_after_ns.saturating_sub(since)
            }
        });
        let mut model = Self {
            run_id: manifest.run_id.to_string(),
            plan: manifest.plan.clone(),
            own,
            zero_ns,
            state: manifest.state,
            trouble: String::new(),
            agents: {
                let chosen = manifest.agents.iter().map(|agent| agent.agent_id.clone());
                chosen.map(AgentPart::new).collect()
            },
            lanes: Vec::new(),
            by_name: HashMap::new(),
            by_client: HashMap::new(),
            backends: Vec::new(),
            waiting: Vec::new(),
            faults: BTreeMap::new(),
            events: Events::default(),
            events_told: 0,
            samples: 0,
            lost: 0,
            lanes_left_out: 0,
        };
        // In the plan's order, and there before anything has arrived.
        for (number, agent) in (0..).zip(&manifest.agents) {
            let has = |target: &TargetName| agent.targets.iter().any(|own| own.name == *target);
            for group in manifest
                .plan
                .groups
                .iter()
                .filter(|group| has(&group.target))
            {
                model.lane_of_group(number, Arc::new(group.target.clone()), group);
            }
        }
        model
    }

    /// So many samples were stored before this aggregator was started; what they say
    /// is not in the lanes, and that is said.
    pub fn stored_before(&mut self, stored: u64, now: i64) {
        if stored > 0 {
            self.samples += stored;
            let text = format!(
                "the aggregator was started again: {stored} samples stored before are counted, \
                 and not in the lanes"
            );
            let at = now.saturating_sub(self.zero_ns);
            self.events.push(at, EventKind::Run, &text);
        }
    }

    /// Lets go of what is large: the run's task has ended.
    pub fn forget(&mut self) {
        self.by_client = HashMap::new();
        self.by_name = HashMap::new();
        self.lanes = Vec::new();
        self.waiting = Vec::new();
    }

    fn agent(&mut self, id: &AgentId, clock: &ClockKey) -> u32 {
        let known = self.agents.iter().position(|part| part.id == *id);
        let at = known.unwrap_or_else(|| {
            self.agents.push(AgentPart::new(id.clone()));
            self.agents.len() - 1
        });
        let part = &mut self.agents[at];
        if !part.is_met {
            part.is_met = true;
            part.clock = Placement::new(clock, &self.own);
        }
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    fn lane_of(&mut self, agent: u32, sample: &Series) -> Option<u32> {
        let key = (agent, sample.style, sample.client, sample.target.clone());
        if let Some(known) = self.by_client.get(&key) {
            return *known;
        }
        let group = self
            .plan
            .group_of(&sample.target, sample.style, sample.client)?
            .clone();
        let lane = self.lane_of_group(agent, sample.target.clone(), &group);
        self.by_client.insert(key, lane);
        lane
    }

    fn lane_of_group(
        &mut self,
        agent: u32,
        target: Arc<TargetName>,
        group: &ClientGroup,
    ) -> Option<u32> {
        let kind = group.kind.as_str();
        let name = (agent, target, group.style, kind, group.interval_ns);
        if let Some(known) = self.by_name.get(&name) {
            return Some(*known);
        }
        if self.lanes.len() >= MOST_LANES {
            self.lanes_left_out += 1;
            return None;
        }
        let alike = self.plan.groups.iter().filter(|other| {
            other.target == group.target
                && other.style == group.style
                && other.kind == group.kind
                && other.interval_ns == group.interval_ns
        });
        let clients = alike.map(|group| u32::from(group.clients)).sum();
        self.lanes.push(Lane::new(
            Name {
                agent: self.agents[agent as usize].id.to_string(),
                target: group.target.to_string(),
                style: group.style.to_string(),
                kind: kind.to_owned(),
            },
            clients,
            i64::try_from(group.interval_ns).unwrap_or(i64::MAX),
            i64::try_from(self.plan.deadline_ns).unwrap_or(i64::MAX),
        ));
        let number = u32::try_from(self.lanes.len() - 1).ok()?;
        self.by_name.insert(name, number);
        Some(number)
    }

    /// Samples have arrived; they count once they are acknowledged.
    pub fn take_rows(
        &mut self,
        agent: &AgentId,
        clock: &ClockKey,
        series: &[Series],
        rows: &[Row],
    ) {
        let agent = self.agent(agent, clock);
        let common = series
            .iter()
            .map(|series| Common {
                lane: self.lane_of(agent, series),
                target: series.target.clone(),
                style: series.style,
                backend: series.backend.clone(),
                seen: Seen {
                    client: series.client,
                    slot: 0,
                    started: 0,
                    finished: 0,
                    outcome: series.outcome,
                    cause: series.cause,
                    code: series.error_code,
                    error: series.error.clone(),
                    backend: 0,
                },
            })
            .collect();
        let own = rows
            .iter()
            .map(|row| Own {
                common: row.series,
                slot: row.slot,
                started: row.started.ns(),
                finished: row.finished.ns(),
            })
            .collect();
        self.waiting.push(Arrived { agent, common, own });
    }

    /// Records of an agent's host have arrived; they only place its clock.
    pub fn take_host(
        &mut self,
        agent: &AgentId,
        clock: &ClockKey,
        records: &[HostRecord],
        now: i64,
    ) {
        let number = self.agent(agent, clock);
        let own = self.own.clone();
        let part = &mut self.agents[number as usize];
        part.heard = Some(now);
        for record in records {
            match record {
                HostRecord::Started(started) if started.clock == own => {
                    part.clock = Placement::new(&started.clock, &own);
                }
                HostRecord::Exchange(exchange) if exchange.server == own => {
                    part.clock.exchange(exchange);
                }
                _ => {}
            }
        }
    }

    /// Records that will never come.
    pub fn take_loss(&mut self, agent: &AgentId, count_max: u64, reason: &str, now: i64) {
        self.lost = self.lost.saturating_add(count_max);
        let text = format!("agent {agent}: up to {count_max} records are lost ({reason})");
        let at = now.saturating_sub(self.zero_ns);
        self.events.push(at, EventKind::Loss, &text);
    }

    fn backend(&mut self, identity: &str) -> u8 {
        let known = self.backends.iter().position(|known| known == identity);
        let at = known.unwrap_or_else(|| {
            if self.backends.len() < MOST_BACKENDS {
                let clean = identity
                    .chars()
                    .map(|c| if c.is_control() { ' ' } else { c });
                self.backends.push(clean.take(LONGEST_NAME).collect());
            }
            self.backends.len() - 1
        });
        u8::try_from(at + 1).unwrap_or(u8::MAX)
    }

    /// What has arrived is durable at `now`; gives back what that adds to the sums.
    pub fn acknowledged(&mut self, now: i64) -> BTreeMap<(Arc<TargetName>, Style), Counts> {
        let mut sums = BTreeMap::new();
        for arrived in std::mem::take(&mut self.waiting) {
            self.count(arrived, now, &mut sums);
        }
        sums
    }

    fn count(
        &mut self,
        arrived: Arrived,
        now: i64,
        sums: &mut BTreeMap<(Arc<TargetName>, Style), Counts>,
    ) {
        let Arrived {
            agent,
            mut common,
            own,
        } = arrived;
        let Some(newest) = own.iter().map(|own| own.finished).max() else {
            return;
        };
        self.samples += own.len() as u64;
        let part = &mut self.agents[agent as usize];
        part.clock.arrived(newest, now);
        part.heard = Some(now);
        let placed = part.clock.place(newest);
        part.newest = Some(part.newest.map_or(placed, |known| known.max(placed)));
        for common in &mut common {
            if let Some(backend) = &common.backend {
                common.seen.backend = self.backend(backend);
            }
        }
        let present = now.saturating_sub(self.zero_ns);
        let deadline = i64::try_from(self.plan.deadline_ns).unwrap_or(i64::MAX);
        for own in own {
            let Some(common) = common.get_mut(own.common as usize) else {
                continue;
            };
            let clock = &self.agents[agent as usize].clock;
            let took = own.finished.saturating_sub(own.started);
            let seen = &mut common.seen;
            seen.slot = own.slot;
            seen.finished = clock.place(own.finished).saturating_sub(self.zero_ns);
            seen.started = seen.finished.saturating_sub(took);
            let counts = sums
                .entry((common.target.clone(), common.style))
                .or_default();
            *counts.outcomes.entry(seen.outcome).or_default() += 1;
            if seen.outcome == Outcome::Ok {
                counts.answer(u64::try_from(took).unwrap_or(0));
            }
            if seen.worth(deadline) == Worth::Late {
                counts.late += 1;
            }
            if let Some(lane) = common
                .lane
                .and_then(|lane| self.lanes.get_mut(lane as usize))
            {
                let before = lane.stretches();
                lane.take(seen, present, &mut self.events, &self.backends);
                counts.stretches += lane.stretches() - before;
            }
        }
    }

    /// A fault was recorded, or more about one.
    pub fn fault(&mut self, fault: &Fault, now: i64) {
        // Another host's stamps: the record is seconds late at most.
        let is_ours = fault.clock == self.own;
        let present = now.saturating_sub(self.zero_ns);
        let place = |span: &Span| match is_ours {
            true => span.latest_ns.saturating_sub(self.zero_ns),
            false => present,
        };
        let is_mark = fault.scope == FaultScope::Mark;
        let clean = |text: &str| -> String {
            let clean = text.chars().map(|c| if c.is_control() { ' ' } else { c });
            clean.take(LONGEST_NAME).collect()
        };
        let name = match (is_mark, fault.subject.is_empty()) {
            (true, true) => clean(&fault.detail),
            (_, true) => clean(&fault.step),
            _ => clean(&format!("{} {}", fault.step, fault.subject)),
        };
        let spans = [
            ("asked for", Some(&fault.asked)),
            ("listener refused", fault.listener_refused.as_ref()),
            ("held connection cut", fault.held_cut.as_ref()),
            ("gone", fault.gone.as_ref()),
            ("cleared", fault.cleared.as_ref()),
        ];
        let part = self.faults.entry(fault.id).or_insert_with(|| FaultPart {
            view: FaultView {
                id: fault.id,
                name: String::new(),
                is_mark,
                asked_ns: place(&fault.asked),
                seen_ns: None,
                cleared_ns: None,
            },
            told: Vec::new(),
        });
        part.view.name = name.clone();
        for (what, span) in spans {
            let Some(span) = span else { continue };
            if part.told.contains(&what) {
                continue;
            }
            part.told.push(what);
            let at = place(span);
            match what {
                "asked for" => part.view.asked_ns = at,
                "cleared" => part.view.cleared_ns = Some(at),
                _ => part.view.seen_ns = Some(part.view.seen_ns.map_or(at, |seen| seen.max(at))),
            }
            let (kind, text) = match is_mark {
                true if fault.is_note() => (EventKind::Mark, clean(&fault.detail)),
                true => (EventKind::Mark, format!("mark {}: {name}", fault.id)),
                false => (
                    EventKind::Fault,
                    format!("fault {}: {name}: {what}", fault.id),
                ),
            };
            self.events.push(at, kind, &text);
        }
        while self.faults.len() > MOST_FAULTS {
            // Notes first: they are many, and not what was asked for.
            let note = self.faults.range(FIRST_NOTE_ID..).next().map(|(id, _)| *id);
            match note {
                Some(id) => drop(self.faults.remove(&id)),
                None => drop(self.faults.pop_first()),
            }
        }
    }

    /// How the run stands.
    pub fn stands(&mut self, state: RunState, trouble: Option<&str>, now: i64) {
        let at = now.saturating_sub(self.zero_ns);
        if self.state != state {
            self.state = state;
            let text = format!("the run is {}", state_word(state));
            self.events.push(at, EventKind::Run, &text);
        }
        let trouble = trouble.unwrap_or_default();
        if self.trouble != trouble {
            trouble.clone_into(&mut self.trouble);
            let text = match trouble.is_empty() {
                true => "writing works again".to_owned(),
                false => format!("nothing is acknowledged: {trouble}"),
            };
            self.events.push(at, EventKind::Run, &text);
        }
    }

    /// Clients whose newest probe was bad, by target and style.
    pub fn bad_clients(&self) -> BTreeMap<(String, String), u64> {
        let mut sums = BTreeMap::new();
        for lane in &self.lanes {
            let name = lane.name();
            let key = (name.target.clone(), name.style.clone());
            *sums.entry(key).or_default() += u64::from(lane.bad_clients());
        }
        sums
    }

    /// Agents with their clock's bound and how far behind their newest acknowledged
    /// sample is, at `now`.
    pub fn agents(&self, now: i64) -> impl Iterator<Item = (&AgentId, Option<u64>, Option<u64>)> {
        self.agents.iter().map(move |part| {
            let behind = part
                .newest
                .map(|at| u64::try_from(now.saturating_sub(at)).unwrap_or(0));
            (&part.id, part.clock.bound_ns(now), behind)
        })
    }

    /// Whether it is still going on.
    pub fn is_running(&self) -> bool {
        self.state == RunState::Running
    }

    fn put_together(
        &self,
        now: &Anchor,
        seats: &BTreeMap<AgentId, Seat>,
        events_after: u64,
        from: impl Fn(usize) -> i64,
    ) -> View {
        let raw = now.raw_after_ns;
        let present = raw.saturating_sub(self.zero_ns);
        let is_over = !self.is_running();
        let heard = |name: &Name| {
            let part = self
                .agents
                .iter()
                .find(|part| part.id.as_str() == name.agent);
            let is_here = part
                .and_then(|part| seats.get(&part.id))
                .is_some_and(|s| s.connected);
            let newest = part.and_then(|part| part.heard);
            is_here && newest.is_some_and(|at| raw.saturating_sub(at) < HEARD_NS)
        };
        let newest = self.agents.iter().filter_map(|part| part.newest).max();
        let wall_ms = |at: i64| {
            now.realtime_ns
                .saturating_sub(raw.saturating_sub(at))
                .div_euclid(1_000_000)
        };
        View {
            run_id: self.run_id.clone(),
            scenario: self.plan.scenario.clone(),
            run_state: state_word(self.state).to_owned(),
            is_whole: false,
            now_ns: present,
            now_unix_ms: wall_ms(raw),
            newest_unix_ms: newest.map(wall_ms),
            planned_ns: self.plan.duration_ns,
            deadline_ns: self.plan.deadline_ns,
            samples: self.samples,
            lost: self.lost,
            trouble: self.trouble.clone(),
            missed: 0,
            lanes_left_out: self.lanes_left_out,
            events_left_out: self.events.left_out(),
            backends: self.backends.clone(),
            lanes: self
                .lanes
                .iter()
                .enumerate()
                .map(|(at, lane)| lane.view(present, from(at), heard(lane.name()), is_over))
                .collect(),
            agents: self
                .agents(raw)
                .map(|(id, clock_bound_ns, behind_ns)| {
                    let seat = seats.get(id);
                    AgentView {
                        agent: id.to_string(),
                        connected: seat.is_some_and(|seat| seat.connected),
                        clock_bound_ns,
                        spool_bytes: seat.map_or(0, |seat| seat.spool_bytes),
                        unacked_samples: seat.map_or(0, |seat| seat.unacked_samples),
                        behind_ns,
                    }
                })
                .collect(),
            faults: self.faults.values().map(|part| part.view.clone()).collect(),
            events: self.events.after(events_after),
        }
    }

    /// All there is to know.
    pub fn whole(&self, now: &Anchor, seats: &BTreeMap<AgentId, Seat>) -> View {
        View {
            is_whole: true,
            ..self.put_together(now, seats, 0, |_| i64::MIN)
        }
    }

    /// What changed since this was asked last.
    pub fn changes(&mut self, now: &Anchor, seats: &BTreeMap<AgentId, Seat>) -> View {
        let changed: Vec<i64> = self.lanes.iter_mut().map(Lane::take_changed).collect();
        let view = self.put_together(now, seats, self.events_told, |at| changed[at]);
        self.events_told = self.events.newest();
        view
    }
}
