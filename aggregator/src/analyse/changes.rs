//! Three changes that are easily mixed up, counted apart: of the client's own
//! connection, of the session behind it, and of the backend that answers.
//!
//! Ids of two servers are never compared: they can be equal by chance.

use std::collections::BTreeSet;

use gapscope_proto::sample::Outcome;

use super::series::Probe;

/// How often what changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Changes {
    /// An answer came over another connection of the client than the one
    /// before. Connections that gave no answer are not counted.
    pub connections: u64,
    /// On one connection of the client: the backend changed, or the server's
    /// connection id changed on the same backend.
    pub sessions: u64,
    /// Two consecutive answers came from different backends.
    pub backends: u64,
    /// Backends that answered before the first fault.
    pub healthy_backends: BTreeSet<u32>,
    /// Backends that answered at all.
    pub all_backends: BTreeSet<u32>,
    /// When an answer came from another backend than the one before:
    /// (time, from, to).
    pub switches: Vec<(i64, u32, u32)>,
}

/// Most switches kept with their times; all are counted.
pub const MAX_SWITCHES: usize = 1_000;

/// Counts the changes of one client.
pub fn changes(probes: &[Probe], first_fault_ns: i64) -> Changes {
    let mut found = Changes::default();
    let mut answer: Option<&Probe> = None;
    let mut connection: Option<(u16, u32)> = None;
    for probe in probes {
        if probe.outcome != Outcome::Ok {
            continue;
        }
        if let Some(number) = probe.connection {
            if connection.is_some_and(|(life, before)| life == probe.life && before != number) {
                found.connections += 1;
            }
            connection = Some((probe.life, number));
        }
        if let Some(backend) = probe.backend {
            found.all_backends.insert(backend);
            if probe.finished < first_fault_ns {
                found.healthy_backends.insert(backend);
            }
        }
        if let Some(before) = answer {
            if let (Some(from), Some(to)) = (before.backend, probe.backend)
                && from != to
            {
                found.backends += 1;
                if found.switches.len() < MAX_SWITCHES {
                    found.switches.push((probe.finished, from, to));
                }
            }
            if is_same_connection(before, probe) && is_other_session(before, probe) {
                found.sessions += 1;
            }
        }
        answer = Some(probe);
    }
    found
}

/// Whether two answers came over one connection of the client.
pub fn is_same_connection(a: &Probe, b: &Probe) -> bool {
    a.life == b.life && a.connection.is_some() && a.connection == b.connection
}

fn is_other_session(a: &Probe, b: &Probe) -> bool {
    match (a.backend, b.backend) {
        (Some(from), Some(to)) if from != to => true,
        (Some(_), Some(_)) | (None, None) => {
            a.connection_id.is_some()
                && b.connection_id.is_some()
                && a.connection_id != b.connection_id
        }
        // Who answered is known of one only: nothing can be compared.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::testing::*;
    use super::*;
    use gapscope_proto::sample::Cause;

    fn answer(slot: u64, connection: u32, id: u64, backend: u32) -> Probe {
        Probe {
            connection: Some(connection),
            connection_id: Some(id),
            backend: Some(backend),
            ..ok(slot, slot as i64 * S, MS)
        }
    }

    #[track_caller]
    fn check(probes: &[Probe], connections: u64, sessions: u64, backends: u64) {
        let c = changes(probes, i64::MAX);
        assert_eq!(
            (c.connections, c.sessions, c.backends),
            (connections, sessions, backends)
        );
    }

    #[test]
    fn nothing_changes() {
        check(&[answer(0, 1, 7, 0), answer(1, 1, 7, 0)], 0, 0, 0);
        check(&[], 0, 0, 0);
    }

    #[test]
    fn a_reconnection_is_not_a_session_change() {
        check(&[answer(0, 1, 7, 0), answer(1, 2, 8, 0)], 1, 0, 0);
    }

    #[test]
    fn equal_ids_on_two_servers_do_not_hide_the_switch() {
        check(&[answer(0, 1, 7, 0), answer(1, 1, 7, 1)], 0, 1, 1);
        check(&[answer(0, 1, 7, 0), answer(1, 2, 7, 1)], 1, 0, 1);
    }

    #[test]
    fn a_new_session_on_the_same_backend() {
        check(&[answer(0, 1, 7, 0), answer(1, 1, 8, 0)], 0, 1, 0);
    }

    #[test]
    fn bad_probes_between_are_passed_over() {
        let refused = bad(1, S, MS, Outcome::ConnectFailed, Cause::Refused);
        check(&[answer(0, 1, 7, 0), refused, answer(2, 2, 9, 1)], 1, 0, 1);
        // A connection that was made and gave no answer.
        let hung = Probe {
            connection: Some(2),
            ..refused
        };
        check(&[answer(0, 1, 7, 0), hung, answer(2, 3, 9, 1)], 1, 0, 1);
    }

    #[test]
    fn another_life_has_its_own_connection_numbers() {
        let later = Probe {
            life: 1,
            ..answer(1, 2, 7, 0)
        };
        check(&[answer(0, 1, 7, 0), later], 0, 0, 0);
    }

    #[test]
    fn unknown_backends_are_not_compared() {
        let unknown = Probe {
            backend: None,
            ..answer(1, 1, 9, 0)
        };
        check(&[answer(0, 1, 7, 0), unknown], 0, 0, 0);
        check(
            &[
                unknown,
                Probe {
                    connection_id: Some(10),
                    ..unknown
                },
            ],
            0,
            1,
            0,
        );
    }

    #[test]
    fn backends_of_the_healthy_time_are_known() {
        let c = changes(
            &[answer(0, 1, 7, 0), answer(1, 1, 8, 1), answer(5, 1, 9, 2)],
            3 * S,
        );
        assert_eq!(c.healthy_backends, BTreeSet::from([0, 1]));
        assert_eq!(c.all_backends, BTreeSet::from([0, 1, 2]));
    }
}
