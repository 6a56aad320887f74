//! The same done to several things by as many threads as there are processors.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::thread::{ScopedJoinHandle, available_parallelism, scope};

use super::series::ClientSeries;

/// Fewer probes are not worth a thread.
const LEAST: usize = 1 << 16;

/// Into how many parts work on these clients is divided.
fn parts(clients: &[ClientSeries]) -> usize {
    let probes: usize = clients.iter().map(|client| client.probes.len()).sum();
    if probes < LEAST {
        return 1;
    }
    let processors = available_parallelism().map_or(1, NonZero::get);
    processors.min(clients.len()).max(1)
}

fn joined<T>(handle: ScopedJoinHandle<'_, T>) -> T {
    handle.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// What `of` makes of each client, in order.
pub fn map<R: Send>(clients: &[ClientSeries], of: impl Fn(&ClientSeries) -> R + Sync) -> Vec<R> {
    let parts = parts(clients);
    if parts == 1 {
        return clients.iter().map(of).collect();
    }
    let of = &of;
    scope(|scope| {
        let handles: Vec<_> = clients
            .chunks(clients.len().div_ceil(parts))
            .map(|some| scope.spawn(move || some.iter().map(of).collect::<Vec<R>>()))
            .collect();
        handles.into_iter().flat_map(joined).collect()
    })
}

/// Does `to` to each client.
pub fn each_mut(clients: &mut [ClientSeries], to: impl Fn(&mut ClientSeries) + Sync) {
    let parts = parts(clients);
    if parts == 1 {
        return clients.iter_mut().for_each(to);
    }
    let to = &to;
    scope(|scope| {
        for some in clients.chunks_mut(clients.len().div_ceil(parts)) {
            scope.spawn(move || some.iter_mut().for_each(to));
        }
    });
}

/// Both, at the same time where there is much to do.
pub fn both<A, B: Send>(
    is_much: bool,
    a: impl FnOnce() -> A,
    b: impl FnOnce() -> B + Send,
) -> (A, B) {
    if !is_much {
        return (a(), b());
    }
    scope(|scope| {
        let b = scope.spawn(b);
        (a(), joined(b))
    })
}

/// Whether there is so much to do that [`both`] is worth it.
pub fn is_much(clients: &[ClientSeries]) -> bool {
    let probes: usize = clients.iter().map(|client| client.probes.len()).sum();
    probes >= LEAST
}

#[cfg(test)]
mod tests {
    use super::super::series::testing::*;
    use super::*;

    #[test]
    fn the_order_is_kept_however_many_threads_there_are() {
        let probes = |count: usize| (0..count as u64).map(|slot| ok(slot, 0, 1)).collect();
        for (clients, each) in [
            (1, 10),
            (7, 10),
            (1, LEAST),
            (7, LEAST / 6),
            (40, LEAST / 39),
        ] {
            let mut all: Vec<ClientSeries> = (0..clients)
                .map(|number| {
                    let mut one = series(MS, S, probes(each));
                    one.key.client = number;
                    one
                })
                .collect();
            let expect: Vec<u16> = (0..clients).collect();
            assert_eq!(map(&all, |client| client.key.client), expect);
            each_mut(&mut all, |client| client.key.client += 1);
            let expect: Vec<u16> = (1..=clients).collect();
            assert_eq!(map(&all, |client| client.key.client), expect);
        }
        assert!(map(&[], |client| client.key.client).is_empty());
    }

    #[test]
    fn both_are_done() {
        for is_much in [false, true] {
            assert_eq!(both(is_much, || 1, || "b"), (1, "b"));
        }
    }
}
