//! Samples as columns: the one layout that both the spool's frames and the wire
//! messages carry.
//!
//! What seldom changes (who probed whom, how it ended, which backend) stands
//! once per distinct combination in [`Series`]; the numbers of a sample are
//! stored as differences from the previous sample of the same series, which are
//! mostly tiny. The transformation is exact for every value of every column:
//! differences wrap.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::TargetName;
use crate::sample::{Canary, Cause, Outcome, Phase, Sample, Style};
use crate::time::{AgentRaw, Timestamp};

/// Most samples in one batch.
pub const MAX_SAMPLES: usize = 65_536;

/// What samples of one client have in common as long as nothing changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Series {
    /// Target probed.
    pub target: Arc<TargetName>,
    /// Style of the client.
    pub style: Style,
    /// Number of the client.
    pub client: u16,
    /// Where the probes ended.
    pub phase: Phase,
    /// What became of them.
    pub outcome: Outcome,
    /// Finer kind.
    pub cause: Option<Cause>,
    /// MySQL error number.
    pub error_code: Option<u16>,
    /// SQLSTATE.
    pub sqlstate: Option<Arc<str>>,
    /// Error text.
    pub error: Option<Arc<str>>,
    /// Statement sent, no answer.
    pub may_have_executed: bool,
    /// Id in the greeting.
    pub handshake_id: Option<u32>,
    /// Identity answered.
    pub backend: Option<Arc<str>>,
    /// Address connected to.
    pub peer: Option<Arc<str>>,
    /// Version answered.
    pub server_version: Option<Arc<str>>,
    /// Canary checked or broken.
    pub canary: Option<Canary>,
}

/// The columns; see `SampleColumns` in `gapscope.proto` for each one's coding.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Columns {
    /// Distinct combinations.
    pub series: Vec<Series>,
    /// For each sample, its series.
    pub series_index: Vec<u32>,
    /// Slot, delta in the series.
    pub slot: Vec<i64>,
    /// Due time, second difference in the series.
    pub scheduled: Vec<i64>,
    /// Begun minus due.
    pub started_after: Vec<i64>,
    /// Finished minus begun, as an unsigned number.
    pub took: Vec<u64>,
    /// Phase duration plus 1, 0 for none; the column is empty if all are none.
    pub resolve: Vec<u64>,
    /// As `resolve`.
    pub connect: Vec<u64>,
    /// As `resolve`.
    pub query: Vec<u64>,
    /// Plus 1, 0 for none, then delta in the series.
    pub connection: Vec<i64>,
    /// Plus 1, 0 for none, then delta in the series.
    pub connection_id: Vec<i64>,
}

/// Why columns do not make samples.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidColumns {
    /// A column is too long or too short.
    #[error("column `{column}` has {found} values where {expected} are expected")]
    Length {
        /// Which.
        column: &'static str,
        /// Its length.
        found: usize,
        /// What it should be.
        expected: usize,
    },
    /// More samples than a batch may have.
    #[error("{0} samples in one batch; at most {MAX_SAMPLES} are allowed")]
    TooMany(usize),
    /// A sample refers to a series that is not there.
    #[error("sample {sample} refers to series {series} of {count}")]
    NoSuchSeries {
        /// Which sample.
        sample: usize,
        /// To which.
        series: u32,
        /// How many there are.
        count: usize,
    },
    /// A number does not fit its type.
    #[error("column `{column}`, sample {sample}: {value} is out of range")]
    OutOfRange {
        /// Which.
        column: &'static str,
        /// Which sample.
        sample: usize,
        /// What was found.
        value: u64,
    },
}

#[derive(Default, Clone, Copy)]
struct Last {
    slot: i64,
    scheduled: i64,
    step: i64,
    connection: i64,
    connection_id: i64,
}

fn plus_1(value: Option<u64>) -> u64 {
    value.map_or(0, |v| v.saturating_add(1))
}

fn minus_1(value: u64) -> Option<u64> {
    value.checked_sub(1)
}

impl Columns {
    /// Turns samples into columns.
    pub fn encode(samples: &[Sample]) -> Self {
        let mut columns = Self::default();
        let mut index: HashMap<Series, u32> = HashMap::new();
        let mut last: Vec<Last> = Vec::new();
        for sample in samples {
            let series = series_of(sample);
            let at = match index.get(&series) {
                Some(at) => *at,
                None => {
                    let at = u32::try_from(columns.series.len()).unwrap_or(u32::MAX);
                    columns.series.push(series.clone());
                    index.insert(series, at);
                    last.push(Last::default());
                    at
                }
            };
            let previous = &mut last[at as usize];
            columns.series_index.push(at);
            let slot = sample.slot as i64;
            columns.slot.push(slot.wrapping_sub(previous.slot));
            let scheduled = sample.scheduled.ns();
            let step = scheduled.wrapping_sub(previous.scheduled);
            columns.scheduled.push(step.wrapping_sub(previous.step));
            columns
                .started_after
                .push(sample.started.ns().wrapping_sub(scheduled));
            columns
                .took
                .push(sample.finished.ns().wrapping_sub(sample.started.ns()) as u64);
            columns.resolve.push(plus_1(sample.resolve_ns));
            columns.connect.push(plus_1(sample.connect_ns));
            columns.query.push(plus_1(sample.query_ns));
            let connection = plus_1(sample.connection.map(u64::from)) as i64;
            columns
                .connection
                .push(connection.wrapping_sub(previous.connection));
            let connection_id = plus_1(sample.connection_id) as i64;
            columns
                .connection_id
                .push(connection_id.wrapping_sub(previous.connection_id));
            *previous = Last {
                slot,
                scheduled,
                step,
                connection,
                connection_id,
            };
        }
        for column in [
            &mut columns.resolve,
            &mut columns.connect,
            &mut columns.query,
        ] {
            if column.iter().all(|v| *v == 0) {
                column.clear();
            }
        }
        columns
    }

    /// How many samples.
    pub fn len(&self) -> usize {
        self.series_index.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.series_index.is_empty()
    }

    /// Turns columns back into samples.
    pub fn decode(&self) -> Result<Vec<Sample>, InvalidColumns> {
        let rows = self.rows()?;
        Ok(rows
            .into_iter()
            .map(|row| row.sample(&self.series[row.series as usize]))
            .collect())
    }

    /// What is a sample's own, one after the other; the series of each is there.
    pub fn rows(&self) -> Result<Vec<Row>, InvalidColumns> {
        let n = self.len();
        if n > MAX_SAMPLES {
            return Err(InvalidColumns::TooMany(n));
        }
        let exact = |column, found| {
            if found == n {
                Ok(())
            } else {
                Err(InvalidColumns::Length {
                    column,
                    found,
                    expected: n,
                })
            }
        };
        exact("slot", self.slot.len())?;
        exact("scheduled", self.scheduled.len())?;
        exact("started_after", self.started_after.len())?;
        exact("took", self.took.len())?;
        exact("connection", self.connection.len())?;
        exact("connection_id", self.connection_id.len())?;
        for (column, found) in [
            ("resolve", self.resolve.len()),
            ("connect", self.connect.len()),
            ("query", self.query.len()),
        ] {
            if found != 0 {
                exact(column, found)?;
            }
        }
        let optional = |column: &Vec<u64>, i: usize| column.get(i).copied().and_then(minus_1);
        let mut last = vec![Last::default(); self.series.len()];
        let mut rows = Vec::with_capacity(n);
        for i in 0..n {
            let at = self.series_index[i];
            let Some(previous) = last.get_mut(at as usize) else {
                return Err(InvalidColumns::NoSuchSeries {
                    sample: i,
                    series: at,
                    count: self.series.len(),
                });
            };
            let slot = previous.slot.wrapping_add(self.slot[i]);
            let step = previous.step.wrapping_add(self.scheduled[i]);
            let scheduled = previous.scheduled.wrapping_add(step);
            let started = scheduled.wrapping_add(self.started_after[i]);
            let connection = previous.connection.wrapping_add(self.connection[i]);
            let connection_id = previous.connection_id.wrapping_add(self.connection_id[i]);
            *previous = Last {
                slot,
                scheduled,
                step,
                connection,
                connection_id,
            };
            let number = match minus_1(connection as u64) {
                None => None,
                Some(wide) => {
                    Some(u32::try_from(wide).map_err(|_| InvalidColumns::OutOfRange {
                        column: "connection",
                        sample: i,
                        value: wide,
                    })?)
                }
            };
            rows.push(Row {
                series: at,
                slot: slot as u64,
                scheduled: Timestamp::from_ns(scheduled),
                started: Timestamp::from_ns(started),
                finished: Timestamp::from_ns(started.wrapping_add(self.took[i] as i64)),
                resolve_ns: optional(&self.resolve, i),
                connect_ns: optional(&self.connect, i),
                query_ns: optional(&self.query, i),
                connection: number,
                connection_id: minus_1(connection_id as u64),
            });
        }
        Ok(rows)
    }
}

/// What of a sample is its own, not its series'. Fields as in [`Sample`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Index of its series.
    pub series: u32,
    /// Number in the client's schedule.
    pub slot: u64,
    /// Due.
    pub scheduled: Timestamp<AgentRaw>,
    /// Begun.
    pub started: Timestamp<AgentRaw>,
    /// Answered or given up.
    pub finished: Timestamp<AgentRaw>,
    /// How long the name took.
    pub resolve_ns: Option<u64>,
    /// How long connecting took.
    pub connect_ns: Option<u64>,
    /// How long the statement took.
    pub query_ns: Option<u64>,
    /// The client's own number of its connection.
    pub connection: Option<u32>,
    /// `CONNECTION_ID()`.
    pub connection_id: Option<u64>,
}

impl Row {
    /// With what its series says.
    pub fn sample(&self, series: &Series) -> Sample {
        Sample {
            target: series.target.clone(),
            style: series.style,
            client: series.client,
            slot: self.slot,
            scheduled: self.scheduled,
            started: self.started,
            finished: self.finished,
            resolve_ns: self.resolve_ns,
            connect_ns: self.connect_ns,
            query_ns: self.query_ns,
            phase: series.phase,
            outcome: series.outcome,
            cause: series.cause,
            error_code: series.error_code,
            sqlstate: series.sqlstate.clone(),
            error: series.error.clone(),
            may_have_executed: series.may_have_executed,
            connection: self.connection,
            connection_id: self.connection_id,
            handshake_id: series.handshake_id,
            backend: series.backend.clone(),
            peer: series.peer.clone(),
            server_version: series.server_version.clone(),
            canary: series.canary,
        }
    }
}

fn series_of(sample: &Sample) -> Series {
    Series {
        target: sample.target.clone(),
        style: sample.style,
        client: sample.client,
        phase: sample.phase,
        outcome: sample.outcome,
        cause: sample.cause,
        error_code: sample.error_code,
        sqlstate: sample.sqlstate.clone(),
        error: sample.error.clone(),
        may_have_executed: sample.may_have_executed,
        handshake_id: sample.handshake_id,
        backend: sample.backend.clone(),
        peer: sample.peer.clone(),
        server_version: sample.server_version.clone(),
        canary: sample.canary,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Samples with hostile numbers in every column.
    pub(crate) fn any_sample() -> impl Strategy<Value = Sample> {
        (
            (
                0u16..3,
                any::<u64>(),
                any::<i64>(),
                any::<i64>(),
                any::<i64>(),
            ),
            (
                proptest::option::of(0..u64::MAX - 1),
                proptest::option::of(0..u64::MAX - 1),
                proptest::option::of(0..u64::MAX - 1),
            ),
            (
                proptest::option::of(any::<u32>()),
                proptest::option::of(0..u64::MAX - 1),
                proptest::option::of(any::<u16>()),
                proptest::option::of("[a-zA-Zä ]{0,12}"),
                any::<bool>(),
            ),
            0usize..Outcome::ALL.len(),
        )
            .prop_map(|(times, phases, more, outcome)| Sample {
                target: Arc::new("t".parse().expect("a name")),
                style: if times.0 == 0 {
                    Style::New
                } else {
                    Style::Reused
                },
                client: times.0,
                slot: times.1,
                scheduled: Timestamp::from_ns(times.2),
                started: Timestamp::from_ns(times.3),
                finished: Timestamp::from_ns(times.4),
                resolve_ns: phases.0,
                connect_ns: phases.1,
                query_ns: phases.2,
                phase: Phase::Query,
                outcome: Outcome::ALL[outcome],
                cause: None,
                error_code: more.2,
                sqlstate: None,
                error: None,
                may_have_executed: more.4,
                connection: more.0,
                connection_id: more.1,
                handshake_id: more.0,
                backend: more.3.map(Arc::from),
                peer: None,
                server_version: None,
                canary: None,
            })
    }

    proptest! {
        #[test]
        fn columns_give_back_every_sample(samples in proptest::collection::vec(any_sample(), 0..40)) {
            prop_assert_eq!(Columns::encode(&samples).decode(), Ok(samples));
        }
    }

    #[test]
    fn a_steady_client_costs_one_series() {
        let one = Sample {
            target: Arc::new("t".parse().expect("a name")),
            style: Style::Reused,
            client: 0,
            slot: 0,
            scheduled: Timestamp::from_ns(0),
            started: Timestamp::from_ns(0),
            finished: Timestamp::from_ns(0),
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
            connection_id: Some(7),
            handshake_id: Some(7),
            backend: Some("db-1".into()),
            peer: None,
            server_version: None,
            canary: None,
        };
        let samples: Vec<_> = (0..100i64)
            .map(|k| Sample {
                slot: k as u64,
                scheduled: Timestamp::from_ns(k * 10_000_000),
                started: Timestamp::from_ns(k * 10_000_000 + 50_000),
                finished: Timestamp::from_ns(k * 10_000_000 + 300_000),
                ..one.clone()
            })
            .collect();
        let columns = Columns::encode(&samples);
        assert_eq!(columns.series.len(), 1);
        assert!(columns.scheduled[2..].iter().all(|v| *v == 0));
        assert!(columns.resolve.is_empty());
    }
}
