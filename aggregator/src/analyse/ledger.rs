//! What became of the rows that clients of style `transaction` wrote: what each
//! client was told, held against what was there after the run. Pure.
//!
//! Where the backends share their data, every row has to be in every place that
//! was read. Where they do not, a row is looked for in the place whose backend
//! answered inside its transaction; whether another backend has it is not
//! applicable, and finding it there says that they do share data.
//!
//! What it cannot know: when a row was lost, and whether one that is there twice
//! was sent twice by a proxy or applied twice by a server.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use gapscope_proto::ids::{AgentId, TargetName};

/// What a client knew of its write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Told {
    /// The `COMMIT` was answered with OK.
    Acknowledged,
    /// The `COMMIT` was sent and not answered, or answered by an error that leaves
    /// it open.
    Unknown,
    /// Refused, or given up before a `COMMIT` was sent.
    Refused,
}

/// What became of a row, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The client was told that it is there, and it is not.
    AcknowledgedLost,
    /// More than once.
    ThereTwice,
    /// The client was told that it is not there, and it is.
    RefusedThere,
    /// Nobody knew, and it is there.
    UnknownThere,
    /// Nobody knew, and it is not there.
    UnknownAbsent,
    /// As it should be.
    AcknowledgedThere,
    /// As it should be.
    RefusedAbsent,
    /// The place where it should be was not read.
    NotRead,
}

impl Class {
    /// Every class, worst first.
    pub const ALL: [Self; 8] = [
        Self::AcknowledgedLost,
        Self::ThereTwice,
        Self::RefusedThere,
        Self::UnknownThere,
        Self::UnknownAbsent,
        Self::AcknowledgedThere,
        Self::RefusedAbsent,
        Self::NotRead,
    ];

    /// The word used in files.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AcknowledgedLost => "acknowledged_lost",
            Self::ThereTwice => "there_twice",
            Self::RefusedThere => "refused_there",
            Self::UnknownThere => "unknown_there",
            Self::UnknownAbsent => "unknown_absent",
            Self::AcknowledgedThere => "acknowledged_there",
            Self::RefusedAbsent => "refused_absent",
            Self::NotRead => "not_read",
        }
    }

    /// Whether no database should do that.
    pub const fn is_wrong(self) -> bool {
        matches!(
            self,
            Self::AcknowledgedLost | Self::ThereTwice | Self::RefusedThere
        )
    }
}

/// The class of a row that is there so often; none: it was not looked for.
pub const fn class(told: Told, times: Option<u32>) -> Class {
    match (told, times) {
        (_, None) => Class::NotRead,
        (_, Some(2..)) => Class::ThereTwice,
        (Told::Acknowledged, Some(1)) => Class::AcknowledgedThere,
        (Told::Acknowledged, Some(_)) => Class::AcknowledgedLost,
        (Told::Unknown, Some(1)) => Class::UnknownThere,
        (Told::Unknown, Some(_)) => Class::UnknownAbsent,
        (Told::Refused, Some(1)) => Class::RefusedThere,
        (Told::Refused, Some(_)) => Class::RefusedAbsent,
    }
}

/// Whose rows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Writer {
    /// Which agent.
    pub agent: AgentId,
    /// Which start of it, 16 hexadecimal digits.
    pub incarnation: String,
    /// Through which target.
    pub target: TargetName,
    /// Which client.
    pub client: u16,
}

/// One row that a client tried to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Whose.
    pub writer: Writer,
    /// Its number.
    pub slot: u64,
    /// When it was due, by the agent's clock.
    pub scheduled_ns: i64,
    /// What the client was told.
    pub told: Told,
    /// Who answered inside the transaction.
    pub backend: Option<String>,
}

/// Rows that are there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    /// Whose.
    pub writer: Writer,
    /// Slots from here.
    pub first_slot: u64,
    /// To here.
    pub last_slot: u64,
    /// Each so often.
    pub times: u32,
}

/// What an agent read from one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reading {
    /// Which agent.
    pub agent: AgentId,
    /// Through which target.
    pub source: String,
    /// Who answered there; empty: not known.
    pub backend: String,
    /// Why it was not read; empty: it was.
    pub error: String,
    /// The backends are said to share their data.
    pub shared: bool,
    /// What else is to be said.
    pub note: String,
    /// What was there.
    pub present: Vec<Present>,
}

/// A row with what became of it in one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Index of the row.
    pub row: usize,
    /// How often it is there; none: not read.
    pub times: Option<u32>,
    /// What that means.
    pub class: Class,
}

/// One agent's rows of one target, in one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Which agent.
    pub agent: AgentId,
    /// Whose rows.
    pub target: TargetName,
    /// Through which target they were looked for; empty: nowhere.
    pub source: String,
    /// Who answered there.
    pub backend: String,
    /// Every row that should be there, or is.
    pub found: Vec<Found>,
    /// Rows that are there without a sample that says so.
    pub strays: u64,
    /// Rows that another backend answered for, and are here as well.
    pub elsewhere: u64,
}

impl Place {
    /// Rows of a class.
    pub fn count(&self, class: Class) -> u64 {
        self.found.iter().filter(|f| f.class == class).count() as u64
    }
}

/// The ledger of a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ledger {
    /// Every row that a client tried to write.
    pub written: Vec<Written>,
    /// What was read, or why not.
    pub readings: Vec<Reading>,
    /// What became of the rows, by place; rows that no place was read for stand
    /// in places without a source.
    pub places: Vec<Place>,
}

impl Ledger {
    /// Rows of a class, over all places.
    pub fn count(&self, class: Class) -> u64 {
        self.places.iter().map(|place| place.count(class)).sum()
    }
}

/// Ranges of one writer, in order.
struct Rows<'a>(HashMap<&'a Writer, Vec<&'a Present>>);

impl<'a> Rows<'a> {
    fn new(present: &'a [Present]) -> Self {
        let mut rows: HashMap<&Writer, Vec<&Present>> = HashMap::new();
        for range in present {
            rows.entry(&range.writer).or_default().push(range);
        }
        for ranges in rows.values_mut() {
            ranges.sort_by_key(|range| range.first_slot);
        }
        Self(rows)
    }

    fn times(&self, writer: &Writer, slot: u64) -> u32 {
        let Some(ranges) = self.0.get(writer) else {
            return 0;
        };
        let after = ranges.partition_point(|range| range.first_slot <= slot);
        ranges[..after]
            .last()
            .filter(|range| slot <= range.last_slot)
            .map_or(0, |range| range.times)
    }
}

/// Holds what was told against what was there.
pub fn judge(written: Vec<Written>, readings: Vec<Reading>) -> Ledger {
    let mut by_target: BTreeMap<(AgentId, TargetName), Vec<usize>> = BTreeMap::new();
    for (index, row) in written.iter().enumerate() {
        by_target
            .entry((row.writer.agent.clone(), row.writer.target.clone()))
            .or_default()
            .push(index);
    }
    let mut places = Vec::new();
    for ((agent, target), rows) in &by_target {
        let mut looked_for = vec![false; rows.len()];
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        for reading in readings
            .iter()
            .filter(|r| &r.agent == agent && r.error.is_empty())
        {
            // Two ways to one backend are one place.
            if !reading.backend.is_empty() && !seen.insert(&reading.backend) {
                continue;
            }
            let present = Rows::new(&reading.present);
            let mut place = Place {
                agent: agent.clone(),
                target: target.clone(),
                source: reading.source.clone(),
                backend: reading.backend.clone(),
                found: Vec::new(),
                strays: strays(reading, target, rows, &written),
                elsewhere: 0,
            };
            for (at, index) in rows.iter().enumerate() {
                let row = &written[*index];
                let times = present.times(&row.writer, row.slot);
                let belongs = reading.shared
                    || row.backend.as_deref() == Some(&*reading.backend)
                    || (row.backend.is_none() && (times > 0 || row.told == Told::Refused));
                if belongs {
                    looked_for[at] = true;
                    place.found.push(Found {
                        row: *index,
                        times: Some(times),
                        class: class(row.told, Some(times)),
                    });
                } else if times > 0 {
                    place.elsewhere += 1;
                }
            }
            places.push(place);
        }
        let found: Vec<Found> = rows
            .iter()
            .zip(&looked_for)
            .filter(|(index, looked)| !**looked && written[**index].told != Told::Refused)
            .map(|(index, _)| Found {
                row: *index,
                times: None,
                class: Class::NotRead,
            })
            .collect();
        if !found.is_empty() {
            places.push(Place {
                agent: agent.clone(),
                target: target.clone(),
                source: String::new(),
                backend: String::new(),
                found,
                strays: 0,
                elsewhere: 0,
            });
        }
    }
    Ledger {
        written,
        readings,
        places,
    }
}

/// Rows of a target that are there and that no sample tells of.
fn strays(reading: &Reading, target: &TargetName, rows: &[usize], written: &[Written]) -> u64 {
    let known: BTreeSet<(&Writer, u64)> = rows
        .iter()
        .map(|index| (&written[*index].writer, written[*index].slot))
        .collect();
    let mut there = 0u64;
    let mut explained = 0u64;
    for range in reading
        .present
        .iter()
        .filter(|range| &range.writer.target == target)
    {
        there += range.last_slot - range.first_slot + 1;
        explained += known
            .range((&range.writer, range.first_slot)..=(&range.writer, range.last_slot))
            .count() as u64;
    }
    there.saturating_sub(explained)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class() {
        use Told::{Acknowledged, Refused, Unknown};
        for (told, times, expect) in [
            (Acknowledged, Some(1), Class::AcknowledgedThere),
            (Acknowledged, Some(0), Class::AcknowledgedLost),
            (Acknowledged, Some(2), Class::ThereTwice),
            (Unknown, Some(1), Class::UnknownThere),
            (Unknown, Some(0), Class::UnknownAbsent),
            (Unknown, Some(3), Class::ThereTwice),
            (Refused, Some(0), Class::RefusedAbsent),
            (Refused, Some(1), Class::RefusedThere),
            (Refused, Some(2), Class::ThereTwice),
            (Acknowledged, None, Class::NotRead),
            (Unknown, None, Class::NotRead),
        ] {
            assert_eq!(class(told, times), expect, "{told:?} {times:?}");
        }
        let wrong: Vec<_> = Class::ALL.into_iter().filter(|c| c.is_wrong()).collect();
        assert_eq!(
            wrong,
            [
                Class::AcknowledgedLost,
                Class::ThereTwice,
                Class::RefusedThere
            ]
        );
    }

    fn writer() -> Writer {
        Writer {
            agent: "a".parse().expect("a name"),
            incarnation: "0000000000000007".into(),
            target: "t".parse().expect("a name"),
            client: 0,
        }
    }

    fn row(slot: u64, told: Told, backend: Option<&str>) -> Written {
        Written {
            writer: writer(),
            slot,
            scheduled_ns: 0,
            told,
            backend: backend.map(str::to_owned),
        }
    }

    fn reading(backend: &str, shared: bool, present: &[(u64, u64, u32)]) -> Reading {
        Reading {
            agent: "a".parse().expect("a name"),
            source: format!("direct-{backend}"),
            backend: backend.into(),
            error: String::new(),
            shared,
            note: String::new(),
            present: present
                .iter()
                .map(|(first_slot, last_slot, times)| Present {
                    writer: writer(),
                    first_slot: *first_slot,
                    last_slot: *last_slot,
                    times: *times,
                })
                .collect(),
        }
    }

    fn classes(ledger: &Ledger, backend: &str) -> Vec<(u64, Class)> {
        ledger
            .places
            .iter()
            .filter(|place| place.backend == backend)
            .flat_map(|place| &place.found)
            .map(|found| (ledger.written[found.row].slot, found.class))
            .collect()
    }

    #[test]
    fn servers_that_share_nothing_have_their_own_rows() {
        let rows = vec![
            row(0, Told::Acknowledged, Some("x")),
            row(1, Told::Acknowledged, Some("x")),
            row(2, Told::Unknown, Some("x")),
            row(3, Told::Refused, None),
            row(4, Told::Acknowledged, Some("y")),
            row(5, Told::Acknowledged, Some("z")),
        ];
        let ledger = judge(
            rows,
            vec![
                reading("x", false, &[(0, 0, 1), (2, 2, 1), (9, 9, 1)]),
                reading("y", false, &[(4, 4, 2)]),
            ],
        );
        assert_eq!(
            classes(&ledger, "x"),
            [
                (0, Class::AcknowledgedThere),
                (1, Class::AcknowledgedLost),
                (2, Class::UnknownThere),
                (3, Class::RefusedAbsent)
            ]
        );
        assert_eq!(
            classes(&ledger, "y"),
            [(3, Class::RefusedAbsent), (4, Class::ThereTwice)]
        );
        assert_eq!(classes(&ledger, ""), [(5, Class::NotRead)]);
        assert_eq!(ledger.places[0].strays, 1);
        assert_eq!(ledger.count(Class::AcknowledgedLost), 1);
    }

    #[test]
    fn servers_that_share_have_every_row() {
        let rows = vec![
            row(0, Told::Acknowledged, Some("x")),
            row(1, Told::Unknown, Some("x")),
        ];
        let ledger = judge(
            rows.clone(),
            vec![
                reading("x", true, &[(0, 1, 1)]),
                reading("y", true, &[(1, 1, 1)]),
            ],
        );
        assert_eq!(
            classes(&ledger, "y"),
            [(0, Class::AcknowledgedLost), (1, Class::UnknownThere)]
        );
        // Rows that are where they should not be say that data is shared.
        let ledger = judge(
            rows,
            vec![
                reading("x", false, &[(0, 1, 1)]),
                reading("y", false, &[(0, 1, 1)]),
            ],
        );
        assert_eq!(ledger.places[1].elsewhere, 2);
    }

    #[test]
    fn two_ways_to_one_backend_are_one_place() {
        let ledger = judge(
            vec![row(0, Told::Acknowledged, Some("x"))],
            vec![
                reading("x", false, &[(0, 0, 1)]),
                reading("x", false, &[(0, 0, 1)]),
            ],
        );
        assert_eq!(ledger.places.len(), 1);
    }

    #[test]
    fn what_could_not_be_read_is_not_lost() {
        let mut unread = reading("", false, &[]);
        unread.error = "Connection refused".into();
        let ledger = judge(vec![row(0, Told::Acknowledged, Some("x"))], vec![unread]);
        assert_eq!(classes(&ledger, ""), [(0, Class::NotRead)]);
    }
}
