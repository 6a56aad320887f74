//! Carries out a timeline and records each fault: first when it was asked for,
//! then what witnesses saw of it, as they see it.
//!
//! A `hang` or `black_hole` that is undone (`resume`) gets its `cleared`; that is
//! no fault of its own, since nothing new happens to clients. A backend that is
//! started again after it was gone does: that is recorded as a failback. A proxy
//! that is started again is the end of its own fault, and so is the start that a
//! `restart` holds: a restart is one fault, however short its backend is away.
//!
//! A step that cannot be done to one of several proxies is done to the others;
//! the fault says to whom it was not applicable.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use futures::future::LocalBoxFuture;
use gapscope_proto::clock::Clock;
use gapscope_proto::fault::{Fault, FaultScope, Span, Subject};
use tokio::task::JoinSet;

use crate::clock_wait::until;
use crate::error::{Problem, Result};
use crate::long_query::{self, Ended};
use crate::runtime::{Applied, Backend, Proxy};
use crate::scenario::{Action, EVERY_PROXY};
use crate::timeline::Due;
use crate::view::{self, Change, Kept, Watching};
use crate::witness::{Login, Seen};

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
    proxies: &'a mut [Box<dyn Proxy>],
    subjects: &'a [Subject],
    record: &'a mut dyn Record,
    say: &'a mut dyn FnMut(&str),
    open: Vec<Open>,
    views: Option<Watching>,
    /// Who asks; none if no long queries are.
    login: Option<Login>,
    /// Statements in flight.
    long: JoinSet<Ended>,
    busy: Arc<AtomicBool>,
}

enum Event {
    Due,
    Seen(usize, Option<Seen>),
    View(Option<Change>),
    Long(Ended),
}

impl<'a> Player<'a> {
    /// `subjects` as they were found by asking each backend; `say` tells people.
    pub fn new(
        clock: Arc<dyn Clock>,
        backends: &'a mut [Box<dyn Backend>],
        proxies: &'a mut [Box<dyn Proxy>],
        subjects: &'a [Subject],
        record: &'a mut dyn Record,
        say: &'a mut dyn FnMut(&str),
    ) -> Self {
        Self {
            clock,
            backends,
            proxies,
            subjects,
            record,
            say,
            open: Vec::new(),
            views: None,
            login: None,
            long: JoinSet::new(),
            busy: Arc::default(),
        }
    }

    /// Who begins long queries.
    pub fn ask_as(&mut self, login: Login) {
        self.login = Some(login);
    }

    /// Also records when proxies change their minds about backends: each look goes to
    /// `kept`, the changes into the run's notes unless `quiet`.
    pub fn look_at_views(&mut self, kept: Kept, quiet: bool) {
        self.views = Some(view::watch(self.proxies, &self.clock, kept, quiet));
    }

    /// Carries out `due`, in order, `origin_ns` being the run's start; then goes
    /// on recording what witnesses see. Ends only on an error: drop it when the
    /// run ends.
    pub async fn play(&mut self, due: &[Due], origin_ns: i64) -> Result<std::convert::Infallible> {
        for step in due {
            self.play_one(step, origin_ns).await?;
        }
        self.listen_until(i64::MAX).await?;
        Err(Problem::new("the end of time was reached"))
    }

    /// What has to be there before a step.
    pub async fn prepare(&mut self, step: &Due) -> Result<()> {
        match self.backend(&step.subject) {
            Ok(backend) => backend.prepare(step.action).await,
            Err(_) => Ok(()),
        }
    }

    /// Whether a step is being done, or was and is not noted yet: who ends the run then
    /// would leave a fault without a word of it.
    pub fn busy(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.busy)
    }

    /// Carries one step out now.
    pub async fn carry_out(&mut self, step: &Due) -> Result<()> {
        self.busy.store(true, Ordering::Relaxed);
        let done = self.carry_out_and_note(step).await;
        self.busy.store(false, Ordering::Relaxed);
        done
    }

    async fn carry_out_and_note(&mut self, step: &Due) -> Result<()> {
        let (applied, scope) = match step.action {
            Action::LongQuery => return self.begin_long_queries(step),
            Action::Repoint | Action::Restore => return self.repoint(step).await,
            Action::Drain | Action::Undrain => self.drain(step).await?,
            _ if self.is_proxy(&step.subject) => {
                (self.apply_to_proxies(step).await?, FaultScope::Proxy)
            }
            action => (
                self.backend(&step.subject)?.apply(step).await?,
                if action == Action::Start {
                    FaultScope::Failback
                } else {
                    FaultScope::Backend
                },
            ),
        };
        let subject = step.subject.clone();
        self.applied(step, applied, scope, &subject).await
    }

    /// Points names elsewhere. Each is a fault of its own, which no other target has
    /// any part in; its subject is the backend that the name led to.
    async fn repoint(&mut self, step: &Due) -> Result<()> {
        let mut all = Parts::default();
        let mut done = Vec::new();
        for proxy in self
            .proxies
            .iter_mut()
            .filter(|proxy| step.subject == EVERY_PROXY || proxy.name() == step.subject)
        {
            let name = proxy.name().to_owned();
            if let Err(why) = proxy.can(step.action) {
                all.not_applicable(&name, &why);
                continue;
            }
            let led_to = proxy.leads_to().unwrap_or_default().to_owned();
            let applied = proxy.apply(step).await?;
            done.push((name, led_to, applied));
        }
        if done.is_empty() {
            return Err(Problem::new(format!(
                "`{}` of `{}` could not be done: {}",
                step.action,
                step.subject,
                all.detail()
            )));
        }
        for said in all.said {
            (self.say)(&format!("{}: {said}", step.action));
        }
        for (name, led_to, applied) in done {
            let step = Due {
                subject: name,
                ..step.clone()
            };
            self.applied(&step, applied, FaultScope::Dns, &led_to)
                .await?;
        }
        Ok(())
    }

    fn begin_long_queries(&mut self, step: &Due) -> Result<()> {
        let login = self
            .login
            .clone()
            .ok_or_else(|| Problem::new("nobody is there to ask long queries"))?;
        let lasts = Duration::from_nanos(step.lasts_ns.unwrap_or(0));
        for proxy in self
            .proxies
            .iter()
            .filter(|proxy| step.subject == EVERY_PROXY || proxy.name() == step.subject)
        {
            self.long.spawn(long_query::run(
                proxy.name().to_owned(),
                proxy.address(),
                login.clone(),
                lasts,
                Arc::clone(&self.clock),
            ));
        }
        (self.say)(&format!(
            "a statement of {} s begins through {}",
            lasts.as_secs_f64(),
            step.subject
        ));
        Ok(())
    }

    /// One step, due `at_ns` after `origin_ns`.
    pub async fn play_one(&mut self, step: &Due, origin_ns: i64) -> Result<()> {
        let at = origin_ns.saturating_add(i64::try_from(step.at_ns).unwrap_or(i64::MAX));
        self.listen_until(at.saturating_sub(PREPARE_BEFORE_NS))
            .await?;
        self.prepare(step).await?;
        self.listen_until(at).await?;
        self.carry_out(step).await
    }

    /// Tells people something.
    pub fn say(&mut self, text: &str) {
        (self.say)(text);
    }

    /// The name of the backend that probes know by this identity.
    pub fn backend_of(&self, identity: &str) -> Option<String> {
        self.subjects
            .iter()
            .find(|subject| subject.identity.as_deref() == Some(identity))
            .map(|subject| subject.name.clone())
    }

    /// The identity by which probes know a backend.
    pub fn identity_of(&self, name: &str) -> Option<String> {
        self.subjects
            .iter()
            .find(|subject| subject.name == name)
            .and_then(|subject| subject.identity.clone())
    }

    /// What some proxy holds against some backend; none if every proxy that can be
    /// asked believes in every one.
    pub async fn doubts(&mut self) -> Option<String> {
        for proxy in self.proxies.iter() {
            let Some(mut viewer) = proxy.viewer() else {
                continue;
            };
            match viewer.look().await {
                Err(why) => return Some(format!("proxy `{}` does not tell: {why}", proxy.name())),
                Ok(beliefs) => {
                    let doubt = beliefs.iter().find(|belief| !belief.is_up());
                    if let Some(doubt) = doubt {
                        return Some(format!(
                            "proxy `{}` holds `{}` for {}",
                            proxy.name(),
                            doubt.backend,
                            doubt.state
                        ));
                    }
                }
            }
        }
        None
    }

    /// Cuts every client's connection at every backend.
    pub async fn cut_clients(&mut self) -> Result<String> {
        let mut said = Vec::new();
        for backend in self.backends.iter_mut() {
            let what = backend.cut_clients().await?;
            said.push(format!("{} {what}", backend.name()));
        }
        Ok(said.join(", "))
    }

    /// Notes that a proxy changed its mind about a backend.
    async fn note_view(&mut self, change: &Change) -> Result<()> {
        let text = change.in_words();
        (self.say)(&text);
        self.note("proxy_view", &change.proxy, change.when, &text)
            .await
    }

    /// Notes something that happened to all, and ends the horizon of what was
    /// before: see the analysis of repetitions.
    pub async fn note_reset(&mut self, asked: Span, detail: &str) -> Result<()> {
        self.note("reset", "", asked, detail).await
    }

    async fn note(&mut self, step: &str, subject: &str, asked: Span, detail: &str) -> Result<()> {
        let fault = Fault {
            id: 0,
            step: step.to_owned(),
            subject: subject.to_owned(),
            identity: None,
            scope: FaultScope::Mark,
            clock: self.clock.key(),
            asked,
            listener_refused: None,
            held_cut: None,
            gone: None,
            cleared: None,
            detail: detail.to_owned(),
        };
        self.record.record(&fault).await.map(|_| ())
    }

    fn is_proxy(&self, name: &str) -> bool {
        name == EVERY_PROXY || self.proxies.iter().any(|proxy| proxy.name() == name)
    }

    async fn apply_to_proxies(&mut self, step: &Due) -> Result<Applied> {
        let (telling, seen) = tokio::sync::mpsc::unbounded_channel();
        let mut all = Parts::default();
        let mut cleared: Option<Span> = None;
        for proxy in self
            .proxies
            .iter_mut()
            .filter(|proxy| step.subject == EVERY_PROXY || proxy.name() == step.subject)
        {
            let name = proxy.name().to_owned();
            if let Err(why) = proxy.can(step.action) {
                all.not_applicable(&name, &why);
                continue;
            }
            let mut applied = proxy.apply(step).await?;
            all.done(&name, applied.asked, &applied.detail);
            cleared = cleared
                .map(|span| hull(span, applied.cleared.unwrap_or(span)))
                .or(applied.cleared);
            let telling = telling.clone();
            tokio::spawn(async move {
                while let Some(seen) = applied.seen.recv().await {
                    // With several proxies the moments are of the last one told.
                    if telling.send(seen).is_err() {
                        return;
                    }
                }
            });
        }
        let Some(asked) = all.asked else {
            return Err(Problem::new(format!(
                "`{}` of `{}` could not be done: {}",
                step.action,
                step.subject,
                all.detail()
            )));
        };
        Ok(Applied {
            asked,
            cleared,
            detail: all.detail(),
            seen,
        })
    }

    /// Asks every proxy; a drain that none of them knows is only noted.
    async fn drain(&mut self, step: &Due) -> Result<(Applied, FaultScope)> {
        let on = step.action == Action::Drain;
        let mut all = Parts::default();
        let begin = self.clock.raw_ns();
        for proxy in self.proxies.iter_mut() {
            let name = proxy.name().to_owned();
            if let Err(why) = proxy.can(step.action) {
                all.not_applicable(&name, &why);
                continue;
            }
            let earliest_ns = self.clock.raw_ns();
            let detail = proxy.drain(&step.subject, on).await?;
            let latest_ns = self.clock.raw_ns();
            all.done(
                &name,
                Span {
                    earliest_ns,
                    latest_ns,
                },
                &detail,
            );
        }
        let scope = if all.asked.is_some() {
            FaultScope::Backend
        } else {
            FaultScope::Mark
        };
        let asked = all.asked.unwrap_or(Span {
            earliest_ns: begin,
            latest_ns: self.clock.raw_ns(),
        });
        let (_, seen) = tokio::sync::mpsc::unbounded_channel();
        let applied = Applied {
            asked,
            cleared: (!on).then_some(asked),
            detail: all.detail(),
            seen,
        };
        Ok((applied, scope))
    }

    fn backend(&mut self, name: &str) -> Result<&mut Box<dyn Backend>> {
        self.backends
            .iter_mut()
            .find(|backend| backend.name() == name)
            .ok_or_else(|| Problem::new(format!("there is no backend `{name}`")))
    }

    /// Records what witnesses see until then.
    pub async fn listen_until(&mut self, at_ns: i64) -> Result<()> {
        loop {
            let clock = Arc::clone(&self.clock);
            let event = tokio::select! {
                () = until(clock.as_ref(), at_ns) => Event::Due,
                event = next_seen(&mut self.open) => event,
                change = next_change(&mut self.views) => Event::View(change),
                ended = next_ended(&mut self.long) => Event::Long(ended),
            };
            match event {
                Event::Due => return Ok(()),
                Event::View(Some(change)) => self.note_view(&change).await?,
                Event::View(None) => self.views = None,
                Event::Long(ended) => {
                    (self.say)(&ended.detail);
                    self.note("long_query", "", ended.when, &ended.detail)
                        .await?;
                }
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

    /// `served_by`: the backend whose answers are those of the fault's subject.
    async fn applied(
        &mut self,
        step: &Due,
        applied: Applied,
        scope: FaultScope,
        served_by: &str,
    ) -> Result<()> {
        (self.say)(&format!(
            "{} `{}`: {}",
            step.action, step.subject, applied.detail
        ));
        // What a restart began ends when its start is asked for, if not known better.
        let ends_restart = step.is_restart && step.action == Action::Start;
        let cleared = applied
            .cleared
            .or_else(|| ends_restart.then_some(applied.asked));
        if let Some(cleared) = cleared {
            let of_drain = step.action == Action::Undrain;
            let undone = self.open.iter_mut().rev().find(|open| {
                let fault = &open.fault;
                fault.subject == step.subject
                    && matches!(
                        fault.scope,
                        FaultScope::Backend | FaultScope::Proxy | FaultScope::Dns
                    )
                    && (fault.step == Action::Drain.as_str()) == of_drain
            });
            if let Some(open) = undone {
                open.fault.cleared = Some(cleared);
                self.record.record(&open.fault).await?;
            }
        }
        let only_undoes = match step.action {
            Action::Resume | Action::Undrain => true,
            Action::Start => scope == FaultScope::Proxy || ends_restart,
            _ => false,
        };
        if only_undoes {
            return Ok(());
        }
        let identity = self
            .subjects
            .iter()
            .find(|subject| subject.name == served_by && scope != FaultScope::Mark)
            .and_then(|subject| subject.identity.clone());
        // What nobody could do is a note without a subject, so that nobody is judged
        // by it.
        let (subject, detail) = match scope {
            FaultScope::Mark => (
                String::new(),
                format!("not done to {}: {}", step.subject, applied.detail),
            ),
            _ => (step.subject.clone(), applied.detail),
        };
        let mut fault = Fault {
            id: 0,
            step: match step.is_restart {
                true => Action::Restart,
                false => step.action,
            }
            .as_str()
            .to_owned(),
            subject,
            identity,
            scope,
            clock: self.clock.key(),
            asked: applied.asked,
            listener_refused: None,
            held_cut: None,
            gone: None,
            cleared: None,
            detail,
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

/// What was done to several proxies.
#[derive(Default)]
struct Parts {
    asked: Option<Span>,
    said: Vec<String>,
}

impl Parts {
    fn done(&mut self, name: &str, asked: Span, detail: &str) {
        self.asked = Some(self.asked.map_or(asked, |span| hull(span, asked)));
        self.said.push(format!("{name}: {detail}"));
    }

    fn not_applicable(&mut self, name: &str, why: &str) {
        self.said.push(format!("{name}: {why}"));
    }

    fn detail(&self) -> String {
        self.said.join("; ")
    }
}

fn hull(a: Span, b: Span) -> Span {
    Span {
        earliest_ns: a.earliest_ns.min(b.earliest_ns),
        latest_ns: a.latest_ns.max(b.latest_ns),
    }
}

/// The next change of a proxy's mind; waits for ever if nobody looks.
async fn next_change(views: &mut Option<Watching>) -> Option<Change> {
    match views {
        Some(views) => views.changes.recv().await,
        None => std::future::pending().await,
    }
}

/// The next long query that ends; waits for ever if there is none.
async fn next_ended(long: &mut JoinSet<Ended>) -> Ended {
    loop {
        match long.join_next().await {
            Some(Ok(ended)) => return ended,
            // It was dropped, or it panicked and said so.
            Some(Err(_)) => {}
            None => std::future::pending::<()>().await,
        }
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
