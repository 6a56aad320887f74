//! Carries out a timeline and records each fault: first when it was asked for,
//! then what witnesses saw of it, as they see it.
//!
//! A `hang` or `black_hole` that is undone (`resume`) gets its `cleared`; that is
//! no fault of its own, since nothing new happens to clients. A backend that is
//! started again after it was gone does: that is recorded as a failback.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use futures::future::LocalBoxFuture;
use gapscope_proto::clock::Clock;
use gapscope_proto::fault::{Fault, FaultScope, Subject};

use crate::clock_wait::until;
use crate::error::{Problem, Result};
use crate::runtime::{Applied, Backend};
use crate::scenario::Action;
use crate::timeline::Due;
use crate::witness::Seen;

/// Witnesses that must be there first are called this long before a step.
const PREPARE_BEFORE_NS: i64 = 500_000_000;

/// Keeps faults.
pub trait Record {
    /// Keeps a fault, or what was learnt about it since; returns its id. Id 0 asks
    /// for a new one.
    fn record<'a>(&'a mut self, fault: &'a Fault) -> LocalBoxFuture<'a, Result<u32>>;
}

/// A fault with those who still watch it.
struct Open {
    fault: Fault,
    seen: Option<tokio::sync::mpsc::UnboundedReceiver<Seen>>,
}

/// See the module's description.
pub struct Player<'a> {
    clock: Arc<dyn Clock>,
    backends: &'a mut [Box<dyn Backend>],
    subjects: &'a [Subject],
    record: &'a mut dyn Record,
    say: &'a mut dyn FnMut(&str),
    open: Vec<Open>,
}

enum Event {
    Due,
    Seen(usize, Option<Seen>),
}

impl<'a> Player<'a> {
    /// `subjects` as they were found by asking each backend; `say` tells people.
    pub fn new(
        clock: Arc<dyn Clock>,
        backends: &'a mut [Box<dyn Backend>],
        subjects: &'a [Subject],
        record: &'a mut dyn Record,
        say: &'a mut dyn FnMut(&str),
    ) -> Self {
        Self {
            clock,
            backends,
            subjects,
            record,
            say,
            open: Vec::new(),
        }
    }

    /// Carries out `due`, in order, `origin_ns` being the run's start; then goes
    /// on recording what witnesses see. Ends only on an error: drop it when the
    /// run ends.
    pub async fn play(&mut self, due: &[Due], origin_ns: i64) -> Result<std::convert::Infallible> {
        for step in due {
            let at = origin_ns.saturating_add(i64::try_from(step.at_ns).unwrap_or(i64::MAX));
            self.listen_until(at.saturating_sub(PREPARE_BEFORE_NS))
                .await?;
            self.backend(&step.subject)?.prepare(step.action).await?;
            self.listen_until(at).await?;
            let applied = self.backend(&step.subject)?.apply(step).await?;
            self.applied(step, applied).await?;
        }
        self.listen_until(i64::MAX).await?;
        Err(Problem::new("the end of time was reached"))
    }

    fn backend(&mut self, name: &str) -> Result<&mut Box<dyn Backend>> {
        self.backends
            .iter_mut()
            .find(|backend| backend.name() == name)
            .ok_or_else(|| Problem::new(format!("there is no backend `{name}`")))
    }

    async fn listen_until(&mut self, at_ns: i64) -> Result<()> {
        loop {
            let clock = Arc::clone(&self.clock);
            let event = tokio::select! {
                () = until(clock.as_ref(), at_ns) => Event::Due,
                event = next_seen(&mut self.open) => event,
            };
            match event {
                Event::Due => return Ok(()),
                Event::Seen(index, None) => self.open[index].seen = None,
                Event::Seen(index, Some(seen)) => self.saw(index, seen).await?,
            }
        }
    }

    async fn saw(&mut self, index: usize, seen: Seen) -> Result<()> {
        let fault = &mut self.open[index].fault;
        let after = |ns: i64| ns.saturating_sub(fault.asked.earliest_ns) as f64 / 1e6;
        let told = match &seen {
            Seen::ListenerRefused(span) => {
                format!("refuses connections, {:.1} ms after", after(span.latest_ns))
            }
            Seen::HeldCut(span) => {
                format!(
                    "cut a held connection, {:.1} ms after",
                    after(span.latest_ns)
                )
            }
            Seen::Gone(span) => format!("is gone, {:.1} ms after", after(span.latest_ns)),
            Seen::Note(note) => note.clone(),
        };
        match seen {
            Seen::ListenerRefused(span) => fault.listener_refused = Some(span),
            Seen::HeldCut(span) => fault.held_cut = Some(span),
            Seen::Gone(span) => fault.gone = Some(span),
            Seen::Note(note) => {
                fault.detail.push_str("; ");
                fault.detail.push_str(&note);
            }
        }
        (self.say)(&format!("`{}` {told}", fault.subject));
        self.record.record(fault).await.map(|_| ())
    }

    async fn applied(&mut self, step: &Due, applied: Applied) -> Result<()> {
        (self.say)(&format!(
            "{} `{}`: {}",
            step.action, step.subject, applied.detail
        ));
        if let Some(cleared) = applied.cleared {
            let undone = self.open.iter_mut().rev().find(|open| {
                open.fault.subject == step.subject && open.fault.scope == FaultScope::Backend
            });
            if let Some(open) = undone {
                open.fault.cleared = Some(cleared);
                self.record.record(&open.fault).await?;
            }
        }
        if step.action == Action::Resume {
            return Ok(());
        }
        let identity = self
            .subjects
            .iter()
            .find(|subject| subject.name == step.subject)
            .and_then(|subject| subject.identity.clone());
        let mut fault = Fault {
            id: 0,
            step: step.action.as_str().to_owned(),
            subject: step.subject.clone(),
            identity,
            scope: if step.action == Action::Start {
                FaultScope::Failback
            } else {
                FaultScope::Backend
            },
            clock: self.clock.key(),
            asked: applied.asked,
            listener_refused: None,
            held_cut: None,
            gone: None,
            cleared: None,
            detail: applied.detail,
        };
        fault.id = self.record.record(&fault).await?;
        self.open.push(Open {
            fault,
            seen: Some(applied.seen),
        });
        Ok(())
    }

    /// The faults so far, as far as they are known.
    pub fn faults(&self) -> impl Iterator<Item = &Fault> {
        self.open.iter().map(|open| &open.fault)
    }
}

/// The next thing that any witness tells; waits for ever if nobody watches.
async fn next_seen(open: &mut [Open]) -> Event {
    poll_fn(|context| {
        for (index, open) in open.iter_mut().enumerate() {
            if let Some(seen) = &mut open.seen
                && let Poll::Ready(told) = seen.poll_recv(context)
            {
                return Poll::Ready(Event::Seen(index, told));
            }
        }
        Poll::Pending
    })
    .await
}
