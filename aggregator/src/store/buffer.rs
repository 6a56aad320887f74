//! Samples that wait to be written, as columns.
//!
//! What samples of one stream and series have in common stands once, with its words;
//! a row holds numbers and the number of what it has in common. So a word is looked
//! up in the dictionary once for each frame and series that came, not for each row.

use std::sync::Arc;

use gapscope_proto::batch::{Columns, Row, Series};
use gapscope_proto::ids::{AgentId, Incarnation, RunId};
use gapscope_proto::sample::Sample;
use polars::prelude::PolarsResult;
use polars_arrow::array::Array;

use super::pages::{maybe, numbers, truths, words};
use super::schema::{samples, samples_schema};
use crate::names::Names;

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
    of: Vec<u32>,
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
        let base = u32::try_from(self.common.len()).unwrap_or(u32::MAX);
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

    /// As columns of [`super::schema::samples_schema`], in its order.
    pub(crate) fn columns(&self, run: RunId) -> PolarsResult<Vec<Box<dyn Array>>> {
        use samples::*;
        let the_run = || {
            let mut names = Names::default();
            let number = names.number(&run.to_string());
            words(names, self.of.iter().map(|_| Some(number)))
        };
        // Of what rows have in common, looked up once each; a row then has a number.
        let word = |pick: &dyn Fn(&Common) -> Option<&str>| {
            let mut names = Names::default();
            let of_common: Vec<Option<u32>> = self
                .common
                .iter()
                .map(|common| pick(common).map(|word| names.number(word)))
                .collect();
            words(names, self.of.iter().map(|of| of_common[*of as usize]))
        };
        let series = || self.of.iter().map(|of| &self.common[*of as usize].series);
        let schema = samples_schema();
        let columns = schema.iter_names().map(|name| {
            Ok(match name.as_str() {
                RUN_ID => the_run()?,
                AGENT_ID => word(&|c| Some(&c.agent))?,
                INCARNATION => word(&|c| Some(&c.incarnation))?,
                TARGET => word(&|c| Some(c.series.target.as_str()))?,
                STYLE => word(&|c| Some(c.series.style.as_str()))?,
                CLIENT => numbers(series().map(|s| s.client)),
                SEQ => numbers(self.seq.iter().copied()),
                SLOT => numbers(self.slot.iter().copied()),
                SCHEDULED_NS => numbers(self.scheduled.iter().copied()),
                STARTED_NS => numbers(self.started.iter().copied()),
                FINISHED_NS => numbers(self.finished.iter().copied()),
                RESOLVE_NS => maybe(self.resolve.iter().copied()),
                CONNECT_NS => maybe(self.connect.iter().copied()),
                QUERY_NS => maybe(self.query.iter().copied()),
                PHASE => word(&|c| Some(c.series.phase.as_str()))?,
                OUTCOME => word(&|c| Some(c.series.outcome.as_str()))?,
                CAUSE => word(&|c| c.series.cause.map(|cause| cause.as_str()))?,
                ERROR_CODE => maybe(series().map(|s| s.error_code)),
                SQLSTATE => word(&|c| c.series.sqlstate.as_deref())?,
                ERROR => word(&|c| c.series.error.as_deref())?,
                MAY_HAVE_EXECUTED => truths(series().map(|s| Some(s.may_have_executed))),
                CONNECTION => maybe(self.connection.iter().copied()),
                CONNECTION_ID => maybe(self.connection_id.iter().copied()),
                HANDSHAKE_ID => maybe(series().map(|s| s.handshake_id)),
                BACKEND => word(&|c| c.series.backend.as_deref())?,
                PEER => word(&|c| c.series.peer.as_deref())?,
                SERVER_VERSION => word(&|c| c.series.server_version.as_deref())?,
                CANARY => word(&|c| c.series.canary.map(|canary| canary.as_str()))?,
                other => unreachable!("samples have no column `{other}`"),
            })
        });
        columns.collect()
    }
}
