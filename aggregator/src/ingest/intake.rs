//! What is answered to records that are offered to a run. Pure.
//!
//! A hole is answered once for each session: the frames behind it in the pipe
//! need not draw the same answer again.

use std::collections::BTreeMap;

use super::admit::{Admission, admit};
use crate::store::footer::StreamKey;
use crate::store::positions::Positions;

/// What to do with records `first..=last` of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offered {
    /// Take them, without the first `skip`.
    Take {
        /// How many are here already.
        skip: u64,
    },
    /// They are safe on disk: say so again, the acknowledgement may be lost.
    Acknowledge {
        /// Up to here.
        seq: u64,
    },
    /// Some are missing before them: ask for these.
    Refuse {
        /// The seq that must come first.
        expected: u64,
    },
    /// Nothing: they are here and will be acknowledged, or the hole was told of.
    Nothing,
}

/// What has been answered so far.
#[derive(Debug, Default)]
pub struct Intake {
    /// Session and expected seq that each stream was told of last.
    refused: BTreeMap<StreamKey, (u64, u64)>,
}

impl Intake {
    /// Decides about records `first..=last` of `stream`, offered by `session`.
    pub fn offer(
        &mut self,
        positions: &Positions,
        stream: &StreamKey,
        session: u64,
        first: u64,
        last: u64,
    ) -> Offered {
        match admit(positions.admitted(stream), first, last) {
            Admission::Take { skip } => {
                // Should the same hole ever open again, it is told of again.
                self.refused.remove(stream);
                Offered::Take { skip }
            }
            Admission::Duplicate => {
                let seq = positions.durable(stream);
                if seq >= last {
                    Offered::Acknowledge { seq }
                } else {
                    Offered::Nothing
                }
            }
            Admission::Gap { expected } => {
                let told = self.refused.insert(stream.clone(), (session, expected));
                if told == Some((session, expected)) {
                    Offered::Nothing
                } else {
                    Offered::Refuse { expected }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapscope_proto::frame::StreamKind;
    use gapscope_proto::ids::Incarnation;

    #[test]
    fn a_hole_is_told_once_a_session_and_what_is_safe_is_said_again() {
        let stream = StreamKey {
            agent_id: "a".parse().expect("a name"),
            incarnation: Incarnation::new(1).expect("not 0"),
            kind: StreamKind::Samples,
        };
        let (mut intake, mut positions) = (Intake::default(), Positions::default());
        let mut offer = |positions: &Positions, session, first, last| {
            intake.offer(positions, &stream, session, first, last)
        };
        assert_eq!(offer(&positions, 1, 3, 4), Offered::Refuse { expected: 1 });
        assert_eq!(offer(&positions, 1, 5, 6), Offered::Nothing);
        assert_eq!(offer(&positions, 2, 5, 6), Offered::Refuse { expected: 1 });
        assert_eq!(offer(&positions, 2, 1, 4), Offered::Take { skip: 0 });
        positions.take(&stream, 4);
        assert_eq!(offer(&positions, 2, 1, 4), Offered::Nothing);
        positions.settle(StreamKind::Samples);
        assert_eq!(positions.take_acks(), [(stream.clone(), 4)]);
        assert_eq!(offer(&positions, 2, 2, 3), Offered::Acknowledge { seq: 4 });
        assert_eq!(offer(&positions, 2, 3, 9), Offered::Take { skip: 2 });
    }
}
