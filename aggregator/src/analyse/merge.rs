//! One outage as several clients saw it.
//!
//! `any`: somebody was hurt. Clients' outer intervals that touch make one piece;
//! the service was out for somebody at least as long as the union of the inner
//! intervals in it, at most as long as the piece. `all`: nobody was served, at
//! least the intersection of the inner and at most that of the outer intervals.
//! Where nothing is known of a client it may have been out, so its holes count as
//! outer; an outage is only where somebody was seen to be out.
//!
//! Both depend on how many clients looked: more of them make `any` longer and
//! `all` shorter. Client-seconds do not, so they stand beside.

use super::stretch::Stretch;

/// An outage over several clients. Times are the agent's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merged {
    /// Where the outer part begins; the number's limit where open.
    pub from_ns: i64,
    /// Where it ends; the number's limit where ongoing.
    pub to_ns: i64,
    /// At least so long.
    pub lower_ns: i64,
    /// At most so long; none: unbounded.
    pub upper_ns: Option<i64>,
    /// Not over at the end of the data.
    pub ongoing: bool,
    /// Part of it was not watched.
    pub no_data: bool,
}

type Interval = (i64, i64);

/// Disjoint and in order; intervals that touch are one.
fn union(mut intervals: Vec<Interval>) -> Vec<Interval> {
    intervals.retain(|i| i.0 <= i.1);
    intervals.sort_unstable();
    let mut joined: Vec<Interval> = Vec::new();
    for interval in intervals {
        match joined.last_mut() {
            Some(last) if interval.0 <= last.1 => last.1 = last.1.max(interval.1),
            _ => joined.push(interval),
        }
    }
    joined
}

/// What lies in both; each is disjoint and in order.
fn intersection(a: &[Interval], b: &[Interval]) -> Vec<Interval> {
    let (mut i, mut j) = (0, 0);
    let mut both = Vec::new();
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        let piece = (x.0.max(y.0), x.1.min(y.1));
        if piece.0 <= piece.1 {
            both.push(piece);
        }
        if x.1 < y.1 {
            i += 1;
        } else {
            j += 1;
        }
    }
    both
}

/// One outage for each outer interval. All are disjoint and in order, so one
/// pass over each does.
fn pieces(outer: &[Interval], inner: &[Interval], blind: &[Interval]) -> Vec<Merged> {
    let mut inner = Overlaps::of(inner);
    let mut blind = Overlaps::of(blind);
    outer
        .iter()
        .map(|piece| Merged {
            from_ns: piece.0,
            to_ns: piece.1,
            lower_ns: inner
                .with(*piece)
                .map(|i| i.1.min(piece.1).saturating_sub(i.0.max(piece.0)))
                .fold(0, i64::saturating_add),
            upper_ns: (piece.0 != i64::MIN && piece.1 != i64::MAX)
                .then(|| piece.1.saturating_sub(piece.0)),
            ongoing: piece.1 == i64::MAX,
            no_data: blind.with(*piece).next().is_some(),
        })
        .collect()
}

/// Finds which of some intervals overlap one that moves on.
struct Overlaps<'a> {
    rest: &'a [Interval],
}

impl<'a> Overlaps<'a> {
    fn of(intervals: &'a [Interval]) -> Self {
        Self { rest: intervals }
    }

    fn with(&mut self, piece: Interval) -> impl Iterator<Item = &'a Interval> + use<'a> {
        let passed = self.rest.iter().take_while(|i| i.1 < piece.0).count();
        self.rest = &self.rest[passed..];
        self.rest.iter().take_while(move |i| i.0 <= piece.1)
    }
}

/// What one client saw of an outage.
pub trait Seen {
    /// Out at both ends, if they are in this order.
    fn inner(&self) -> (i64, i64);
    /// Served at both ends; the numbers' limits where open.
    fn outer(&self) -> (i64, i64);
    /// Part of it was not watched.
    fn has_no_data(&self) -> bool;
}

impl Seen for Stretch {
    fn inner(&self) -> Interval {
        self.inner
    }

    fn outer(&self) -> Interval {
        self.outer
    }

    fn has_no_data(&self) -> bool {
        self.no_data
    }
}

fn flagged<T: Seen>(clients: &[Vec<T>], holes: &[Vec<Interval>]) -> Vec<Interval> {
    let flagged = clients.iter().flatten().filter(|s| s.has_no_data());
    let holes = holes.iter().flatten().copied();
    union(flagged.map(Seen::outer).chain(holes).collect())
}

/// Outages that hurt at least one of these clients. `holes` are, of each client,
/// when nothing is known of it; none, if that is settled already.
pub fn any<T: Seen>(clients: &[Vec<T>], holes: &[Vec<Interval>]) -> Vec<Merged> {
    let outer = union(clients.iter().flatten().map(Seen::outer).collect());
    let inner = union(clients.iter().flatten().map(Seen::inner).collect());
    pieces(&outer, &inner, &flagged(clients, holes))
}

/// Outages that hurt all of these clients at once; `holes` as in [`any`].
pub fn all<T: Seen>(clients: &[Vec<T>], holes: &[Vec<Interval>]) -> Vec<Merged> {
    let everything = || vec![(i64::MIN, i64::MAX)];
    if clients.is_empty() {
        return Vec::new();
    }
    let meet = |outs: &dyn Fn(usize) -> Vec<Interval>| {
        (0..clients.len()).fold(everything(), |so_far, client| {
            intersection(&so_far, &union(outs(client)))
        })
    };
    let hurt = |client: usize| clients[client].iter().map(Seen::outer);
    let mut outer = meet(&|client| {
        let unknown = holes.get(client).into_iter().flatten().copied();
        hurt(client).chain(unknown).collect()
    });
    let inner = meet(&|client| clients[client].iter().map(Seen::inner).collect());
    let seen = union((0..clients.len()).flat_map(hurt).collect());
    let mut seen = Overlaps::of(&seen);
    outer.retain(|piece| seen.with(*piece).next().is_some());
    pieces(&outer, &inner, &flagged(clients, holes))
}

/// Client-time lost: the clients' own outages added up, as an interval. Where nothing
/// is known of a client it may have been out; `holes` as in [`any`].
pub fn client_time(clients: &[Vec<Stretch>], holes: &[Vec<Interval>]) -> (i64, Option<i64>) {
    let lower = clients
        .iter()
        .flatten()
        .map(|s| s.lower_ns)
        .fold(0i64, i64::saturating_add);
    let is_open = clients.iter().flatten().any(|s| s.upper_ns.is_none());
    let upper = clients.iter().enumerate().flat_map(|(client, stretches)| {
        let unknown = holes.get(client).into_iter().flatten().copied();
        union(stretches.iter().map(Seen::outer).chain(unknown).collect())
    });
    let upper = upper
        .map(|(from, to)| to.saturating_sub(from))
        .fold(0i64, i64::saturating_add);
    (lower, (!is_open).then_some(upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(outer: Interval, inner: Interval) -> Stretch {
        Stretch {
            g0: None,
            b0: 0,
            bn: 0,
            g1: None,
            bad: 1,
            late: 0,
            gap_ns: 0,
            gap_is_at_least: false,
            lower_ns: (inner.1 - inner.0).max(0),
            upper_ns: (outer.0 != i64::MIN && outer.1 != i64::MAX).then_some(outer.1 - outer.0),
            own_timeout_ns: 0,
            inner,
            outer,
            no_data: false,
        }
    }

    #[track_caller]
    fn check(found: &[Merged], expect: &[(i64, Option<i64>)]) {
        let got: Vec<_> = found.iter().map(|m| (m.lower_ns, m.upper_ns)).collect();
        assert_eq!(got, expect);
    }

    #[test]
    fn one_client_is_its_own_merge() {
        let clients = vec![vec![
            stretch((0, 100), (20, 80)),
            stretch((200, 300), (260, 250)),
        ]];
        check(&any(&clients, &[]), &[(60, Some(100)), (0, Some(100))]);
        check(&all(&clients, &[]), &[(60, Some(100)), (0, Some(100))]);
        assert_eq!(client_time(&clients, &[]), (60, Some(200)));
    }

    #[test]
    fn two_clients_overlap() {
        let clients = vec![
            vec![stretch((0, 100), (20, 80))],
            vec![stretch((50, 150), (70, 140))],
        ];
        check(&any(&clients, &[]), &[(120, Some(150))]);
        check(&all(&clients, &[]), &[(10, Some(50))]);
        assert_eq!(client_time(&clients, &[]), (130, Some(200)));
    }

    #[test]
    fn a_client_without_a_stretch_means_somebody_was_served() {
        let clients = vec![vec![stretch((0, 100), (20, 80))], vec![]];
        check(&any(&clients, &[]), &[(60, Some(100))]);
        check(&all(&clients, &[]), &[]);
        check(&any::<Stretch>(&[], &[]), &[]);
        check(&all::<Stretch>(&[], &[]), &[]);
    }

    #[test]
    fn pieces_that_do_not_touch_stay_apart() {
        let clients = vec![
            vec![stretch((0, 100), (20, 80))],
            vec![stretch((101, 150), (110, 140))],
        ];
        check(&any(&clients, &[]), &[(60, Some(100)), (30, Some(49))]);
        check(&all(&clients, &[]), &[]);
    }

    #[test]
    fn an_ongoing_one_has_no_upper_bound() {
        let clients = vec![
            vec![stretch((0, i64::MAX), (20, 80))],
            vec![stretch((10, 90), (30, 60))],
        ];
        let found = any(&clients, &[]);
        check(&found, &[(60, None)]);
        assert!(found[0].ongoing);
        check(&all(&clients, &[]), &[(30, Some(80))]);
        assert_eq!(client_time(&clients, &[]), (90, None));
    }

    #[test]
    fn what_is_not_known_of_a_client_may_have_been_out() {
        let clients = vec![vec![stretch((0, 100), (20, 80))], vec![]];
        let holes = [vec![], vec![(50, 300)]];
        let found = all(&clients, &holes);
        check(&found, &[(0, Some(50))]);
        assert!(found[0].no_data);
        let any = any(&clients, &holes);
        check(&any, &[(60, Some(100))]);
        assert!(
            any[0].no_data,
            "the other one may have been hurt for longer"
        );
        // Both were not watched after it.
        let holes = [vec![(90, 300)], vec![(50, 300)]];
        check(&all(&clients, &holes), &[(0, Some(250))]);
        // Of nobody anything is known, and nobody was seen to be out.
        let unhurt: Vec<Vec<Stretch>> = vec![vec![], vec![]];
        check(&all(&unhurt, &holes), &[]);
        // 100 of the first, and what is not known of either.
        assert_eq!(client_time(&clients, &holes), (60, Some(300 + 250)));
        // Elsewhere it changes nothing.
        let elsewhere = [vec![], vec![(101, 300)]];
        check(&all(&clients, &elsewhere), &[]);
    }
}
