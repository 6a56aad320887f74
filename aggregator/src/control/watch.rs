//! Views as messages, and back.

use gapscope_proto::wire;

use crate::live::event::{Event, EventKind};
use crate::live::view::{AgentView, Bin, FaultView, LaneView, State, View};

/// As it goes over the wire.
pub fn to_wire(view: &View) -> wire::WatchResponse {
    wire::WatchResponse {
        run_id: view.run_id.clone(),
        scenario: view.scenario.clone(),
        run_state: view.run_state.clone(),
        is_whole: view.is_whole,
        now_ns: view.now_ns,
        now_unix_ms: view.now_unix_ms,
        newest_unix_ms: view.newest_unix_ms,
        planned_ns: view.planned_ns,
        deadline_ns: view.deadline_ns,
        samples: view.samples,
        lost: view.lost,
        trouble: view.trouble.clone(),
        missed: view.missed,
        lanes_left_out: view.lanes_left_out,
        events_left_out: view.events_left_out,
        backends: view.backends.clone(),
        lanes: view.lanes.iter().map(lane_to_wire).collect(),
        agents: view
            .agents
            .iter()
            .map(|agent| wire::WatchAgent {
                agent_id: agent.agent.clone(),
                connected: agent.connected,
                clock_bound_ns: agent.clock_bound_ns,
                spool_bytes: agent.spool_bytes,
                unacked_samples: agent.unacked_samples,
                behind_ns: agent.behind_ns,
            })
            .collect(),
        faults: view
            .faults
            .iter()
            .map(|fault| wire::WatchFault {
                id: fault.id,
                name: fault.name.clone(),
                is_mark: fault.is_mark,
                asked_ns: fault.asked_ns,
                seen_ns: fault.seen_ns,
                cleared_ns: fault.cleared_ns,
            })
            .collect(),
        events: view
            .events
            .iter()
            .map(|event| wire::WatchEvent {
                number: event.number,
                at_ns: event.at_ns,
                kind: event.kind.as_str().to_owned(),
                text: event.text.clone(),
            })
            .collect(),
    }
}

fn lane_to_wire(lane: &LaneView) -> wire::WatchLane {
    wire::WatchLane {
        agent_id: lane.agent.clone(),
        target: lane.target.clone(),
        style: lane.style.clone(),
        kind: lane.kind.clone(),
        clients: lane.clients,
        interval_ns: lane.interval_ns,
        state: lane.state.as_str().to_owned(),
        quiet_ns: lane.quiet_ns,
        backends: lane.backends.clone(),
        rate: lane.rate,
        p50_ns: lane.p50_ns,
        p99_ns: lane.p99_ns,
        bad_clients: lane.bad_clients,
        ok: lane.ok,
        late: lane.late,
        bad: lane.bad,
        void: lane.void,
        stretches: lane.stretches,
        last_error: lane.last_error.clone(),
        first_bin: lane.first_bin,
        bins: lane
            .bins
            .iter()
            .flat_map(|bin| <[u32; 6]>::from(*bin))
            .collect(),
    }
}

/// As the program has it. What a newer aggregator calls by words that are not known
/// here is taken for no data, or a note.
pub fn from_wire(message: wire::WatchResponse) -> View {
    View {
        run_id: message.run_id,
        scenario: message.scenario,
        run_state: message.run_state,
        is_whole: message.is_whole,
        now_ns: message.now_ns,
        now_unix_ms: message.now_unix_ms,
        newest_unix_ms: message.newest_unix_ms,
        planned_ns: message.planned_ns,
        deadline_ns: message.deadline_ns,
        samples: message.samples,
        lost: message.lost,
        trouble: message.trouble,
        missed: message.missed,
        lanes_left_out: message.lanes_left_out,
        events_left_out: message.events_left_out,
        backends: message.backends,
        lanes: message.lanes.into_iter().map(lane_from_wire).collect(),
        agents: message
            .agents
            .into_iter()
            .map(|agent| AgentView {
                agent: agent.agent_id,
                connected: agent.connected,
                clock_bound_ns: agent.clock_bound_ns,
                spool_bytes: agent.spool_bytes,
                unacked_samples: agent.unacked_samples,
                behind_ns: agent.behind_ns,
            })
            .collect(),
        faults: message
            .faults
            .into_iter()
            .map(|fault| FaultView {
                id: fault.id,
                name: fault.name,
                is_mark: fault.is_mark,
                asked_ns: fault.asked_ns,
                seen_ns: fault.seen_ns,
                cleared_ns: fault.cleared_ns,
            })
            .collect(),
        events: message
            .events
            .into_iter()
            .map(|event| Event {
                number: event.number,
                at_ns: event.at_ns,
                kind: {
                    let known = EventKind::ALL.into_iter();
                    let mut known = known.filter(|kind| kind.as_str() == event.kind);
                    known.next().unwrap_or(EventKind::Mark)
                },
                text: event.text,
            })
            .collect(),
    }
}

fn lane_from_wire(lane: wire::WatchLane) -> LaneView {
    let mut states = State::ALL.into_iter();
    LaneView {
        agent: lane.agent_id,
        target: lane.target,
        style: lane.style,
        kind: lane.kind,
        clients: lane.clients,
        interval_ns: lane.interval_ns,
        state: states
            .find(|state| state.as_str() == lane.state)
            .unwrap_or(State::NoData),
        quiet_ns: lane.quiet_ns,
        backends: lane.backends,
        rate: lane.rate,
        p50_ns: lane.p50_ns,
        p99_ns: lane.p99_ns,
        bad_clients: lane.bad_clients,
        ok: lane.ok,
        late: lane.late,
        bad: lane.bad,
        void: lane.void,
        stretches: lane.stretches,
        last_error: lane.last_error,
        first_bin: lane.first_bin,
        bins: lane
            .bins
            .chunks_exact(6)
            .map(|six| Bin::from([six[0], six[1], six[2], six[3], six[4], six[5]]))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_survives_the_way() {
        let view = View {
            run_id: "r".to_owned(),
            scenario: "s".to_owned(),
            run_state: "running".to_owned(),
            is_whole: true,
            now_ns: -5,
            now_unix_ms: 7,
            newest_unix_ms: None,
            planned_ns: 9,
            deadline_ns: 11,
            samples: 13,
            lost: 15,
            trouble: "full".to_owned(),
            missed: 17,
            lanes_left_out: 19,
            events_left_out: 21,
            backends: vec!["b".to_owned()],
            lanes: State::ALL
                .into_iter()
                .map(|state| LaneView {
                    agent: "a".to_owned(),
                    target: "t".to_owned(),
                    style: "new".to_owned(),
                    kind: "bare".to_owned(),
                    clients: 1,
                    interval_ns: 2,
                    state,
                    quiet_ns: Some(0),
                    backends: vec![0],
                    rate: 0.5,
                    p50_ns: Some(3),
                    p99_ns: None,
                    bad_clients: 4,
                    ok: 5,
                    late: 6,
                    bad: 7,
                    void: 8,
                    stretches: 9,
                    last_error: "e".to_owned(),
                    first_bin: -10,
                    bins: vec![Bin::default(), Bin::from([1, 2, 3, 4, 5, 6])],
                })
                .collect(),
            agents: vec![AgentView {
                agent: "a".to_owned(),
                connected: true,
                clock_bound_ns: Some(0),
                spool_bytes: 1,
                unacked_samples: 2,
                behind_ns: None,
            }],
            faults: vec![FaultView {
                id: 1,
                name: "stop b".to_owned(),
                is_mark: false,
                asked_ns: 2,
                seen_ns: Some(3),
                cleared_ns: None,
            }],
            events: EventKind::ALL
                .into_iter()
                .map(|kind| Event {
                    number: 1,
                    at_ns: 2,
                    kind,
                    text: "x".to_owned(),
                })
                .collect(),
        };
        assert_eq!(from_wire(to_wire(&view)), view);
        let json = serde_json::to_string(&view).expect("JSON");
        assert_eq!(serde_json::from_str::<View>(&json).expect("the same"), view);
    }
}
