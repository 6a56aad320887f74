//! Whatever arrives on the wire: a message, or an error; never a panic, and never
//! more memory than the bytes that arrived account for.

use gapscope_proto::batch::Columns;
use gapscope_proto::fault::Fault;
use gapscope_proto::frame::{Body, Frame, StreamId};
use gapscope_proto::plan::RunPlan;
use gapscope_proto::wire;
use gapscope_proto::wire::agent_message::Kind;
use proptest::prelude::*;
use prost::Message;

fn stream() -> impl Strategy<Value = Option<wire::StreamId>> {
    let id = prop_oneof![
        Just("01a22c71-a5ce-7341-a1d3-9c297ce0a076".to_owned()),
        "\\PC{0,40}",
    ];
    proptest::option::weighted(
        0.9,
        (id, any::<u64>(), 0i32..5).prop_map(|(run_id, incarnation, kind)| wire::StreamId {
            run_id,
            incarnation,
            kind,
        }),
    )
}

fn series() -> impl Strategy<Value = wire::Series> {
    let words = |good: &'static str| prop_oneof![3 => Just(good.to_owned()), 1 => "\\PC{0,9}"];
    (
        words("t"),
        words("reused"),
        prop_oneof![0u32..9, any::<u32>()],
        words("query"),
        words("ok"),
        words(""),
        proptest::option::of(any::<u32>()),
        words(""),
    )
        .prop_map(
            |(target, style, client, phase, outcome, cause, error_code, canary)| wire::Series {
                target,
                style,
                client,
                phase,
                outcome,
                cause,
                error_code,
                canary,
                ..wire::Series::default()
            },
        )
}

/// Columns whose lengths and values may or may not fit together.
fn columns(count: usize) -> impl Strategy<Value = wire::SampleColumns> {
    let len = prop_oneof![6 => Just(count), 1 => 0usize..12];
    let signed = || {
        len.clone()
            .prop_flat_map(|n| proptest::collection::vec(any::<i64>(), n))
    };
    let unsigned = || {
        len.clone()
            .prop_flat_map(|n| proptest::collection::vec(any::<u64>(), n))
    };
    let index = len.clone().prop_flat_map(|n| {
        proptest::collection::vec(prop_oneof![8 => 0u32..3, 1 => any::<u32>()], n)
    });
    (
        proptest::collection::vec(series(), 0..4),
        index,
        (signed(), signed(), signed(), unsigned()),
        (unsigned(), unsigned(), unsigned()),
        (signed(), signed()),
    )
        .prop_map(|(series, series_index, a, b, c)| wire::SampleColumns {
            series,
            series_index,
            slot: a.0,
            scheduled_ns: a.1,
            started_after_ns: a.2,
            took_ns: a.3,
            resolve_ns_plus_1: b.0,
            connect_ns_plus_1: b.1,
            query_ns_plus_1: b.2,
            connection_plus_1: c.0,
            connection_id_plus_1: c.1,
        })
}

/// What an aggregator does with a frame before it takes it.
fn look_at(frame: wire::Frame) -> Option<usize> {
    let frame = Frame::try_from(frame).ok()?;
    assert!(frame.first_seq >= 1 && frame.count() >= 1);
    assert!(frame.last_seq() >= frame.first_seq);
    match &frame.body {
        Body::Samples(_) => frame.samples().ok().map(|samples| samples.len()),
        Body::Host(records) => Some(records.len()),
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(message) = wire::AgentMessage::decode(&bytes[..])
            && let Some(Kind::Frame(frame)) = message.kind
        {
            look_at(frame);
        }
        let _ = wire::AggregatorMessage::decode(&bytes[..]);
        if let Ok(request) = wire::StartRunRequest::decode(&bytes[..])
            && let Some(plan) = request.plan
        {
            let _ = RunPlan::try_from(plan);
        }
    }

    #[test]
    fn any_frame_is_taken_whole_or_refused(
        stream in stream(),
        first_seq in prop_oneof![0u64..9, any::<u64>()],
        count in prop_oneof![6 => Just(4u32), 1 => any::<u32>()],
        columns in columns(4),
    ) {
        let frame = wire::Frame {
            stream,
            first_seq,
            count,
            body: Some(wire::frame::Body::Samples(columns)),
        };
        if let Some(samples) = look_at(frame) {
            prop_assert_eq!(samples, count as usize);
        }
    }

    #[test]
    fn a_mutated_frame_is_taken_whole_or_refused(
        columns in columns(6),
        flips in proptest::collection::vec((any::<usize>(), 0u8..8), 1..8),
    ) {
        let frame = wire::Frame {
            stream: Some(wire::StreamId {
                run_id: "01a22c71-a5ce-7341-a1d3-9c297ce0a076".to_owned(),
                incarnation: 1,
                kind: 1,
            }),
            first_seq: 1,
            count: 6,
            body: Some(wire::frame::Body::Samples(columns)),
        };
        let mut bytes = frame.encode_to_vec();
        for (at, bit) in flips {
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
        }
        if let Ok(frame) = wire::Frame::decode(&bytes[..]) {
            let most = bytes.len();
            // Each sample takes at least a byte of each column that must be there.
            if let Some(samples) = look_at(frame) {
                prop_assert!(samples <= most);
            }
        }
    }

    /// Whole requests as bytes, each a valid one with some bits flipped.
    #[test]
    fn mutated_messages_of_all_kinds_are_no_panic(
        flips in proptest::collection::vec((any::<usize>(), 0u8..8), 0..12),
        packed in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mutate = |mut bytes: Vec<u8>| {
            for (at, bit) in &flips {
                let at = at % bytes.len().max(1);
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << bit;
                }
            }
            bytes
        };
        let host = wire::Frame {
            stream: Some(wire::StreamId {
                run_id: "01a22c71-a5ce-7341-a1d3-9c297ce0a076".to_owned(),
                incarnation: 1,
                kind: 2,
            }),
            first_seq: 1,
            count: 4,
            body: Some(wire::frame::Body::Host(wire::HostColumns {
                records: vec![
                    wire::HostRecord {
                        kind: Some(wire::host_record::Kind::Lag(wire::Lag {
                            at_ns: 1,
                            ticks: 2,
                            late_max_ns: 3,
                        })),
                    },
                    wire::HostRecord {
                        kind: Some(wire::host_record::Kind::Ledger(wire::LedgerEntry {
                            source: "a".to_owned(),
                            client: 9,
                            last_slot: 7,
                            ..wire::LedgerEntry::default()
                        })),
                    },
                    wire::HostRecord {
                        kind: Some(wire::host_record::Kind::Packed(packed)),
                    },
                    wire::HostRecord { kind: None },
                ],
            })),
        };
        if let Ok(frame) = wire::Frame::decode(&mutate(host.encode_to_vec())[..])
            && let Some(records) = look_at(frame)
        {
            prop_assert!(records <= 1 << 16);
        }
        let plan = wire::RunPlan {
            run_id: String::new(),
            scenario: "x".to_owned(),
            duration_ns: 1_000_000_000,
            deadline_ns: 250_000_000,
            groups: vec![wire::ClientGroup {
                target: "t".to_owned(),
                style: "reused".to_owned(),
                kind: "bare".to_owned(),
                clients: 4,
                interval_ns: 10_000_000,
                query_timeout_ns: 1,
                ..wire::ClientGroup::default()
            }],
            ..wire::RunPlan::default()
        };
        if let Ok(plan) = wire::RunPlan::decode(&mutate(plan.encode_to_vec())[..])
            && let Ok(plan) = RunPlan::try_from(plan)
        {
            // As it is sent on to the agents.
            prop_assert_eq!(RunPlan::try_from(wire::RunPlan::from(&plan)), Ok(plan));
        }
        let hello = wire::Hello {
            protocol: 1,
            agent_id: "a".to_owned(),
            incarnation: 1,
            streams: vec![wire::StreamPosition {
                stream: host.stream.clone(),
                first_unacked: 1,
                last: 9,
            }],
            ..wire::Hello::default()
        };
        if let Ok(hello) = wire::Hello::decode(&mutate(hello.encode_to_vec())[..]) {
            for position in &hello.streams {
                let _ = position.stream.as_ref().map(StreamId::try_from);
            }
        }
    }

    #[test]
    fn any_fault_and_stream_is_one_or_an_error(
        scope in "\\PC{0,12}",
        spans in proptest::collection::vec((any::<i64>(), any::<i64>()), 5),
        id in stream(),
    ) {
        let span = |at: usize| Some(wire::Span { earliest_ns: spans[at].0, latest_ns: spans[at].1 });
        let _ = Fault::try_from(wire::Fault {
            scope,
            clock: Some(wire::ClockKey::default()),
            asked: span(0),
            listener_refused: span(1),
            held_cut: span(2),
            gone: span(3),
            cleared: span(4),
            ..wire::Fault::default()
        });
        if let Some(id) = id {
            let _ = StreamId::try_from(&id);
        }
    }
}

/// A frame that claims four billion records takes no memory for them.
#[test]
fn a_count_is_only_a_claim() {
    let frame = wire::Frame {
        stream: Some(wire::StreamId {
            run_id: "01a22c71-a5ce-7341-a1d3-9c297ce0a076".to_owned(),
            incarnation: 1,
            kind: 1,
        }),
        first_seq: 1,
        count: u32::MAX,
        body: Some(wire::frame::Body::Samples(wire::SampleColumns::default())),
    };
    assert!(Frame::try_from(frame).is_err());
    assert_eq!(Columns::encode(&[]).len(), 0);
}
