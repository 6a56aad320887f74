//! Frames that fit what the aggregator takes. Pure.
//!
//! A spool's frame is bounded in the spool's coding; on the wire the same records
//! may be longer, and an aggregator may take less than this build sends. Such a
//! frame goes in parts, each a frame of its own: seqs tell that nothing is
//! missing between them.

use gapscope_proto::batch::Columns;
use gapscope_proto::convert::packed_frame;
use gapscope_proto::frame::{Body, Frame};
use gapscope_proto::wire;
use prost::Message;

/// The records of `frame` up to seq `last`, as frames of at most `most` bytes
/// each, `packed` if the aggregator takes them so. A single record that is longer is sent as it is: the aggregator refuses
/// it, and that becomes a loss that is counted.
pub fn frames(frame: Frame, last: u64, most: usize, packed: bool) -> Vec<wire::Frame> {
    let mut fitting = Vec::new();
    let mut left = match upto(frame, last) {
        Some(frame) => vec![frame],
        None => return fitting,
    };
    while let Some(frame) = left.pop() {
        let encoded = if packed {
            packed_frame(&frame)
        } else {
            wire::Frame::from(&frame)
        };
        let count = frame.count();
        if encoded.encoded_len() <= most || count < 2 {
            fitting.push(encoded);
            continue;
        }
        let middle = frame.first_seq + count as u64 / 2;
        let (front, back) = split(frame, middle);
        left.extend(back);
        left.extend(front);
    }
    fitting
}

fn upto(frame: Frame, last: u64) -> Option<Frame> {
    if frame.last_seq() <= last {
        return Some(frame);
    }
    split(frame, last.saturating_add(1)).0
}

/// The records before seq `at`, and those from it on; none where there are none,
/// or where they cannot be decoded (then the whole frame is the first part, and
/// the aggregator says what is wrong with it).
fn split(frame: Frame, at: u64) -> (Option<Frame>, Option<Frame>) {
    let Some(before) = at.checked_sub(frame.first_seq).filter(|count| *count > 0) else {
        return (None, Some(frame));
    };
    let before = usize::try_from(before).unwrap_or(usize::MAX);
    if before >= frame.count() {
        return (Some(frame), None);
    }
    let (front, back) = match &frame.body {
        Body::Samples(columns) => {
            let Ok(samples) = columns.decode() else {
                return (Some(frame), None);
            };
            (
                Body::Samples(Columns::encode(&samples[..before])),
                Body::Samples(Columns::encode(&samples[before..])),
            )
        }
        Body::Host(records) => (
            Body::Host(records[..before].to_vec()),
            Body::Host(records[before..].to_vec()),
        ),
    };
    let part = |first_seq, body| Frame {
        stream: frame.stream,
        first_seq,
        body,
    };
    (
        Some(part(frame.first_seq, front)),
        Some(part(frame.first_seq + before as u64, back)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapscope_proto::frame::{StreamId, StreamKind};
    use gapscope_proto::host::{HostRecord, Lag};
    use gapscope_proto::ids::{Incarnation, RunId};
    use gapscope_proto::sample::{Outcome, Phase, Sample, Style};
    use gapscope_proto::time::Timestamp;
    use std::sync::Arc;

    fn stream(kind: StreamKind) -> StreamId {
        StreamId {
            run: RunId::generate(),
            incarnation: Incarnation::generate(),
            kind,
        }
    }

    fn sample(number: u64) -> Sample {
        Sample {
            target: Arc::new("t".parse().expect("a name")),
            style: Style::Reused,
            client: 0,
            slot: number,
            scheduled: Timestamp::from_ns(number as i64 * 10),
            started: Timestamp::from_ns(number as i64 * 10 + 1),
            finished: Timestamp::from_ns(number as i64 * 10 + 2),
            resolve_ns: None,
            connect_ns: None,
            query_ns: Some(1),
            phase: Phase::Query,
            outcome: Outcome::Ok,
            cause: None,
            error_code: None,
            sqlstate: None,
            error: None,
            may_have_executed: false,
            connection: Some(1),
            connection_id: Some(number),
            handshake_id: None,
            backend: Some(Arc::from("db")),
            peer: None,
            server_version: None,
            canary: None,
        }
    }

    #[test]
    fn parts_fit_and_hold_each_record_once() {
        let samples: Vec<Sample> = (0..1_000).map(sample).collect();
        let whole = Frame {
            stream: stream(StreamKind::Samples),
            first_seq: 7,
            body: Body::Samples(Columns::encode(&samples)),
        };
        for (most, packed) in [1 << 20, 4_000, 700, 1]
            .into_iter()
            .flat_map(|most| [(most, false), (most, true)])
        {
            for last in [2_000, 1_006, 500, 7] {
                let parts = frames(whole.clone(), last, most, packed);
                let mut next = 7;
                let mut held = Vec::new();
                for part in parts {
                    assert!(part.encoded_len() <= most || part.count == 1);
                    assert_eq!(part.first_seq, next);
                    next += u64::from(part.count);
                    let part = Frame::try_from(part).expect("is a frame");
                    held.extend(part.samples().expect("decodes"));
                }
                let expect = (last.min(1_006) - 6) as usize;
                assert_eq!(held, &samples[..expect], "{most} {last}");
            }
        }
    }

    #[test]
    fn host_records_are_split_as_well_and_nothing_is_nothing() {
        let lag = |at_ns| {
            HostRecord::Lag(Lag {
                at_ns,
                ticks: 1,
                late_max_ns: 1,
            })
        };
        let whole = Frame {
            stream: stream(StreamKind::Host),
            first_seq: 1,
            body: Body::Host((0..9).map(lag).collect()),
        };
        let counts: Vec<u32> = frames(whole.clone(), 9, 1, true)
            .iter()
            .map(|f| f.count)
            .collect();
        assert_eq!(counts, [1; 9]);
        assert_eq!(frames(whole, 0, 100, false), []);
    }
}
