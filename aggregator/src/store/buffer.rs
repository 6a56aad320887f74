//! Samples that wait to be written, as columns.
//!
//! What samples of one stream and series have in common stands once, with its words;
//! a row holds numbers and the number of what it has in common. So a word is looked
//! up in the dictionary once for each frame and series that came, not for each row.

use std::sync::Arc;

use gapscope_proto::batch::{Columns, Row, Series};
use gapscope_proto::ids::{AgentId, Incarnation, RunId};
use gapscope_proto::sample::Sample;
use polars::prelude::*;

use super::frame::{maybe, numbers, texts};
use super::schema::{samples, samples_schema};

/// What rows of one stream and series have in common.
#[derive(Debug)]
struct Common {
    agent: Arc<str>,
    incarnation: Arc<str>,
    series: Series,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Buffer {
    common: Vec<Common>,
    of: Vec<IdxSize>,
    seq: Vec<u64>,
    slot: Vec<u64>,
    scheduled: Vec<i64>,
    started: Vec<i64>,
    finished: Vec<i64>,
    resolve: Vec<Option<u64>>,
    connect: Vec<Option<u64>>,
    query: Vec<Option<u64>>,
    connection: Vec<Option<u32>>,
    connection_id: Vec<Option<u64>>,
}

impl Buffer {
    /// How many samples.
    pub(crate) fn len(&self) -> usize {
        self.of.len()
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// Takes in rows of one stream, numbered on from `before`; returns how many. Each
    /// row's series is one of `series`.
    pub(crate) fn append(
        &mut self,
        agent: &AgentId,
        incarnation: Incarnation,
        before: u64,
        series: &[Series],
        rows: &[Row],
    ) -> u64 {
        let base = IdxSize::try_from(self.common.len()).unwrap_or(IdxSize::MAX);
        let agent: Arc<str> = Arc::from(agent.as_str());
        let incarnation: Arc<str> = Arc::from(incarnation.to_string());
        self.common.extend(series.iter().map(|series| Common {
            agent: agent.clone(),
            incarnation: incarnation.clone(),
            series: series.clone(),
        }));
        self.of.extend(rows.iter().map(|row| base + row.series));
        self.seq.extend((before + 1..).take(rows.len()));
        self.slot.extend(rows.iter().map(|row| row.slot));
        let ns = rows.iter();
        self.scheduled
            .extend(ns.clone().map(|row| row.scheduled.ns()));
        self.started.extend(ns.clone().map(|row| row.started.ns()));
        self.finished.extend(ns.map(|row| row.finished.ns()));
        self.resolve.extend(rows.iter().map(|row| row.resolve_ns));
        self.connect.extend(rows.iter().map(|row| row.connect_ns));
        self.query.extend(rows.iter().map(|row| row.query_ns));
        self.connection
            .extend(rows.iter().map(|row| row.connection));
        self.connection_id
            .extend(rows.iter().map(|row| row.connection_id));
        rows.len() as u64
    }

    /// The same, of whole samples.
    pub(crate) fn append_samples(
        &mut self,
        agent: &AgentId,
        incarnation: Incarnation,
        before: u64,
        samples: impl IntoIterator<Item = Sample>,
    ) -> u64 {
        // A frame's worth at a time: that is what the coding is made for.
        const AT_ONCE: usize = 1 << 13;
        let mut samples = samples.into_iter();
        let mut taken = 0;
        loop {
            let some: Vec<Sample> = samples.by_ref().take(AT_ONCE).collect();
            if some.is_empty() {
                return taken;
            }
            let columns = Columns::encode(&some);
            let rows = columns
                .rows()
                .expect("columns that were just made are sound");
            taken += self.append(agent, incarnation, before + taken, &columns.series, &rows);
        }
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// As a frame of [`samples_schema`].
    pub(crate) fn frame(&self, run: RunId) -> PolarsResult<DataFrame> {
        use samples::*;
        let run = run.to_string();
        let of = || self.common.iter().map(|common| &common.series);
        let word = |name, pick: fn(&Series) -> Option<&str>| texts(name, of().map(pick));
        let agents = self.common.iter().map(|c| Some(&*c.agent));
        let incarnations = self.common.iter().map(|c| Some(&*c.incarnation));
        let common = DataFrame::new(
            self.common.len(),
            vec![
                texts(RUN_ID, of().map(|_| Some(run.as_str())))?,
                texts(AGENT_ID, agents)?,
                texts(INCARNATION, incarnations)?,
                word(TARGET, |s| Some(s.target.as_str()))?,
                word(STYLE, |s| Some(s.style.as_str()))?,
                numbers(CLIENT, of().map(|s| s.client)),
                word(PHASE, |s| Some(s.phase.as_str()))?,
                word(OUTCOME, |s| Some(s.outcome.as_str()))?,
                word(CAUSE, |s| s.cause.map(|cause| cause.as_str()))?,
                maybe(ERROR_CODE, of().map(|s| s.error_code)),
                word(SQLSTATE, |s| s.sqlstate.as_deref())?,
                word(ERROR, |s| s.error.as_deref())?,
                numbers(MAY_HAVE_EXECUTED, of().map(|s| s.may_have_executed)),
                maybe(HANDSHAKE_ID, of().map(|s| s.handshake_id)),
                word(BACKEND, |s| s.backend.as_deref())?,
                word(PEER, |s| s.peer.as_deref())?,
                word(SERVER_VERSION, |s| s.server_version.as_deref())?,
                word(CANARY, |s| s.canary.map(|canary| canary.as_str()))?,
            ],
        )?;
        let of = IdxCa::from_vec(PlSmallStr::EMPTY, self.of.clone());
        let common = common.take(&of)?;
        let own = |name: &str| -> Option<Column> {
            Some(match name {
                SEQ => numbers(SEQ, self.seq.iter().copied()),
                SLOT => numbers(SLOT, self.slot.iter().copied()),
                SCHEDULED_NS => numbers(SCHEDULED_NS, self.scheduled.iter().copied()),
                STARTED_NS => numbers(STARTED_NS, self.started.iter().copied()),
                FINISHED_NS => numbers(FINISHED_NS, self.finished.iter().copied()),
                RESOLVE_NS => maybe(RESOLVE_NS, self.resolve.iter().copied()),
                CONNECT_NS => maybe(CONNECT_NS, self.connect.iter().copied()),
                QUERY_NS => maybe(QUERY_NS, self.query.iter().copied()),
                CONNECTION => maybe(CONNECTION, self.connection.iter().copied()),
                CONNECTION_ID => maybe(CONNECTION_ID, self.connection_id.iter().copied()),
                _ => return None,
            })
        };
        let columns = samples_schema()
            .iter_names()
            .map(|name| match own(name.as_str()) {
                Some(column) => Ok(column),
                None => common.column(name.as_str()).cloned(),
            })
            .collect::<PolarsResult<Vec<Column>>>()?;
        DataFrame::new(self.len(), columns)
    }
}
