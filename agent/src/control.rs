//! The prober's own trouble, told apart from the target's: while a run goes on,
//! the agent also probes a null server in its own process over loopback, and a
//! control: a direct connection to a server that no fault touches.
//!
//! A loopback probe that is slow can only be this host's fault. A control that is
//! slow or fails is not the proxy's: network, server or host. Together with the
//! ticker's lateness they say when not to believe the samples.
//!
//! Method: each is probed ten times a second, open loop, on a held connection;
//! good and quick probes are gathered into one record a second, a slow or bad one
//! is a record of its own, so that its begin and end are exact.
//!
//! With a control there is a circuit breaker: while the p99 of its last ten
//! seconds is more than twice that of its first ten, and 20 ms above it, probing
//! of everything rests, a second at a time. What is not probed then is
//! `agent_error`, `breaker`: no data.
//!
//! What it cannot know: why the control is slow. A load that moves to it in a
//! failover makes it slow too; then `breaker = false` for the target is right.

use std::collections::VecDeque;
use std::sync::Arc;

use gapscope_proto::host::{ControlProbes, HostRecord};
use gapscope_proto::plan::Timeouts;
use gapscope_proto::sample::{Outcome, Sample, Style};
use tokio_util::sync::CancellationToken;

use crate::null_server::NullServer;
use crate::probe::endpoint::Endpoint;
use crate::probe::mysql::{Client, ClientSpec};
use crate::run::Tools;
use crate::schedule::Slot;

const INTERVAL_NS: i64 = 100_000_000;
const TIMEOUT_NS: u64 = 2_000_000_000;
/// Longer than this is a record of its own.
const SLOW_NS: u64 = 50_000_000;
const GATHERED: u32 = 10;
const MOST_TEXT: usize = 200;

/// Gathers probes into records. Pure.
#[derive(Debug)]
pub struct ControlBook {
    name: String,
    gathered: Option<ControlProbes>,
}

impl ControlBook {
    /// For the control of this name; the loopback's is empty.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            gathered: None,
        }
    }

    /// A probe from `started_ns` to `finished_ns` ended; `error` says how, if not
    /// well. Gives the records that are complete.
    pub fn note(
        &mut self,
        started_ns: i64,
        finished_ns: i64,
        error: Option<&str>,
    ) -> Vec<ControlProbes> {
        let took_ns = u64::try_from(finished_ns.saturating_sub(started_ns)).unwrap_or(0);
        let this = ControlProbes {
            name: self.name.clone(),
            at_ns: started_ns,
            until_ns: finished_ns,
            probes: 1,
            bad: u32::from(error.is_some()),
            took_max_ns: took_ns,
            error: error.unwrap_or_default().chars().take(MOST_TEXT).collect(),
        };
        if error.is_some() || took_ns > SLOW_NS {
            let mut out: Vec<_> = self.gathered.take().into_iter().collect();
            out.push(this);
            return out;
        }
        let gathered = match self.gathered.take() {
            None => this,
            Some(before) => ControlProbes {
                until_ns: finished_ns,
                probes: before.probes + 1,
                took_max_ns: before.took_max_ns.max(took_ns),
                ..before
            },
        };
        if gathered.probes >= GATHERED {
            return vec![gathered];
        }
        self.gathered = Some(gathered);
        Vec::new()
    }

    /// What is gathered so far.
    pub fn flush(&mut self) -> Option<ControlProbes> {
        self.gathered.take()
    }
}

/// Says when the control is so much slower than it was that the load is felt.
/// Pure.
#[derive(Debug, Default)]
pub struct Strain {
    first: Vec<u64>,
    last: VecDeque<u64>,
}

impl Strain {
    const WINDOW: usize = 100;
    const MARGIN_NS: u64 = 20_000_000;

    /// A probe took this long. True if probing has to rest.
    pub fn note(&mut self, took_ns: u64) -> bool {
        if self.first.len() < Self::WINDOW {
            self.first.push(took_ns);
            return false;
        }
        self.last.push_back(took_ns);
        if self.last.len() > Self::WINDOW {
            self.last.pop_front();
        }
        if self.last.len() < Self::WINDOW {
            return false;
        }
        let (before, now) = (p99(self.first.iter()), p99(self.last.iter()));
        now > before.saturating_mul(2) && now > before.saturating_add(Self::MARGIN_NS)
    }
}

fn p99<'a>(values: impl Iterator<Item = &'a u64>) -> u64 {
    let mut sorted: Vec<u64> = values.copied().collect();
    sorted.sort_unstable();
    let rank = (sorted.len() * 99).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

/// Probes loopback and control while runs go on, until stopped.
pub async fn run(tools: Tools, control: Option<Arc<Endpoint>>, stop: CancellationToken) {
    let null = match NullServer::start().await {
        Ok(null) => null,
        Err(error) => {
            tracing::error!(%error, "no loopback port for the null server: the prober's own trouble is told by its lateness alone");
            return;
        }
    };
    let loopback = Arc::new(Endpoint::new(null.target(), &*tools.clock));
    let watching = watch(tools.clone(), loopback, String::new(), stop.clone());
    match control {
        None => watching.await,
        Some(control) => {
            let name = control.target.name.to_string();
            tokio::join!(watching, watch(tools, control, name, stop));
        }
    }
}

async fn watch(tools: Tools, endpoint: Arc<Endpoint>, name: String, stop: CancellationToken) {
    let timeout = Some(TIMEOUT_NS);
    let is_control = !name.is_empty();
    let mut client = Client::new(
        ClientSpec {
            identity: endpoint.identity.clone(),
            endpoint,
            style: Style::Reused,
            number: 0,
            canary: None,
            canary_value: String::new(),
            pool: false,
            ledger: None,
            timeouts: Timeouts {
                resolve_ns: timeout,
                connect_ns: timeout,
                query_ns: timeout,
            },
        },
        tools.clock.clone(),
        tools.graveyard.clone(),
    );
    let mut book = ControlBook::new(&name);
    let mut strain = Strain::default();
    let mut due_ns = tools.clock.raw_ns();
    let mut first = true;
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            () = tools.waker.until(due_ns) => {}
        }
        if tools.board.running().is_empty() {
            // Nobody asks: nothing is probed and nothing held.
            client.close().await;
            first = true;
            strain = Strain::default();
        } else {
            let slot = Slot { number: 0, due_ns };
            let sample = client.probe(slot, &stop).await;
            // The first one connects, which is another measure.
            if !std::mem::take(&mut first) && !stop.is_cancelled() {
                note(&tools, &mut book, &mut strain, &sample, is_control).await;
            }
        }
        let now_ns = tools.clock.raw_ns();
        due_ns = (due_ns + INTERVAL_NS).max(now_ns);
    }
    if let Some(rest) = book.flush() {
        tools.spool.host_for_all(HostRecord::Control(rest)).await;
    }
    client.close().await;
}

async fn note(
    tools: &Tools,
    book: &mut ControlBook,
    strain: &mut Strain,
    sample: &Sample,
    is_control: bool,
) {
    let (started_ns, finished_ns) = (sample.started.ns(), sample.finished.ns());
    let error = (sample.outcome != Outcome::Ok).then(|| {
        format!(
            "{} {}",
            sample.outcome,
            sample.error.as_deref().unwrap_or_default()
        )
    });
    if is_control && strain.note(u64::try_from(finished_ns.saturating_sub(started_ns)).unwrap_or(0))
    {
        tracing::warn!(
            "the control is more than twice as slow as it was: probing rests for a second"
        );
        for endpoint in tools.endpoints.values() {
            endpoint.rest(finished_ns);
        }
    }
    for record in book.note(started_ns, finished_ns, error.as_deref()) {
        tools.spool.host_for_all(HostRecord::Control(record)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    #[test]
    fn quick_ones_are_gathered_and_others_stand_alone() {
        let mut book = ControlBook::new("db-2");
        let mut out = Vec::new();
        for k in 0..12 {
            out.extend(book.note(k * 100 * MS, (k * 100 + 1 + k) * MS, None));
        }
        assert_eq!(out.len(), 1);
        assert_eq!(
            (
                out[0].at_ns,
                out[0].until_ns,
                out[0].probes,
                out[0].took_max_ns
            ),
            (0, 910 * MS, 10, 10 * MS as u64)
        );
        let slow = book.note(1_200 * MS, 1_300 * MS, None);
        assert_eq!(slow.len(), 2);
        assert_eq!((slow[0].probes, slow[1].probes, slow[1].bad), (2, 1, 0));
        let bad = book.note(1_300 * MS, 1_301 * MS, Some(&"x".repeat(500)));
        assert_eq!((bad.len(), bad[0].bad, bad[0].error.len()), (1, 1, 200));
        assert_eq!(book.flush(), None);
    }

    #[test]
    fn strain_takes_twice_and_twenty_milliseconds() {
        let mut strain = Strain::default();
        assert!((0..300).all(|_| !strain.note(1_000_000)));
        // Twice a millisecond is nobody's outage.
        assert!((0..300).all(|_| !strain.note(15_000_000)));
        assert!((0..300).any(|_| strain.note(40_000_000)));
        let mut slow = Strain::default();
        assert!((0..100).all(|_| !slow.note(30_000_000)));
        assert!((0..300).all(|_| !slow.note(55_000_000)));
        assert!((0..300).any(|_| slow.note(65_000_000)));
    }
}
