//! Columns of samples as few bytes: the body of a spool's frame, and what goes over
//! the wire to an aggregator that takes it.
//!
//! Version 2, an array in MessagePack: the texts that series are made of, the series
//! (15 numbers each, texts by number), then each column as `bin` of LEB128 varints
//! (signed ones zigzag). What a steady client does not change is not there at all:
//!
//! - *sparse* columns hold pairs (how many zeros before it, value); zeros behind the
//!   last one are left out. So are the differences of connections and of due times,
//!   and the second differences of slots.
//! - the series of a sample is 0 where it is the one that followed the sample
//!   before's series the last time (at first: the next number), else its number + 1.
//! - the query's duration is what the other phases leave of the whole, which is
//!   mostly some microseconds: 0 for none, else the rest + 1.
//!
//! Exact for every value of every column. Version 1 had the series as they are and
//! each column dense.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::batch::{Columns, InvalidColumns, MAX_SAMPLES, Series};
use crate::frame::FrameError;
use crate::sample::{Canary, Cause};

/// Numbers that a series is made of.
const SERIES_FIELDS: usize = 15;

/// As the newest version.
///
/// # Errors
/// When MessagePack cannot be written.
pub fn pack(columns: &Columns) -> Result<Vec<u8>, FrameError> {
    rmp_serde::to_vec(&Packed::from(columns)).map_err(|error| FrameError::Body(error.to_string()))
}

/// Reads so many samples of a version.
///
/// # Errors
/// When they are not what the version says.
pub fn unpack(version: u8, bytes: &[u8], count: usize) -> Result<Columns, FrameError> {
    let decode = |error: rmp_serde::decode::Error| FrameError::Body(error.to_string());
    if count > MAX_SAMPLES {
        return Err(InvalidColumns::TooMany(count).into());
    }
    match version {
        1 => {
            let packed: Packed1 = rmp_serde::from_slice(bytes).map_err(decode)?;
            packed.unpack(count)
        }
        2 => {
            let packed: Packed = rmp_serde::from_slice(bytes).map_err(decode)?;
            packed.unpack(count)
        }
        other => Err(FrameError::Version(other)),
    }
}

/// As version 1, for tests of what older builds wrote.
#[cfg(test)]
pub(crate) fn pack_1(columns: &Columns) -> Result<Vec<u8>, FrameError> {
    rmp_serde::to_vec(&Packed1::from(columns)).map_err(|error| FrameError::Body(error.to_string()))
}

#[derive(Serialize, Deserialize)]
struct Packed {
    texts: Vec<Arc<str>>,
    series: ByteBuf,
    series_index: ByteBuf,
    slot: ByteBuf,
    scheduled: ByteBuf,
    started_after: ByteBuf,
    took: ByteBuf,
    resolve: ByteBuf,
    connect: ByteBuf,
    /// Only where `rest` could not say it.
    query: ByteBuf,
    rest: ByteBuf,
    connection: ByteBuf,
    connection_id: ByteBuf,
}

impl From<&Columns> for Packed {
    fn from(columns: &Columns) -> Self {
        let signed = |values: &[i64]| dense(values.iter().copied().map(zigzag));
        let sparse_signed = |values: &[i64]| sparse(values.iter().copied().map(zigzag));
        let (texts, series) = pack_series(&columns.series);
        let rest = rest_of(columns);
        Self {
            texts,
            series: dense(series.into_iter()),
            series_index: sparse(followers(&columns.series_index, columns.series.len())),
            slot: sparse(second_differences(columns)),
            scheduled: sparse_signed(&columns.scheduled),
            started_after: signed(&columns.started_after),
            took: dense(columns.took.iter().copied()),
            resolve: dense(columns.resolve.iter().copied()),
            connect: dense(columns.connect.iter().copied()),
            query: match &rest {
                Some(_) => ByteBuf::new(),
                None => dense(columns.query.iter().copied()),
            },
            rest: dense(rest.unwrap_or_default().into_iter()),
            connection: sparse_signed(&columns.connection),
            connection_id: sparse_signed(&columns.connection_id),
        }
    }
}

impl Packed {
    fn unpack(self, count: usize) -> Result<Columns, FrameError> {
        let series = unpack_series(&self.texts, &self.series)?;
        let series_index = leaders(
            &read_sparse("series_index", &self.series_index, count)?,
            series.len(),
        )?;
        let signed = |values: Vec<u64>| values.into_iter().map(unzigzag).collect::<Vec<i64>>();
        let optional = |column, bytes: &[u8]| {
            if bytes.is_empty() {
                Ok(Vec::new())
            } else {
                read_dense(column, bytes, count)
            }
        };
        let mut slot = signed(read_sparse("slot", &self.slot, count)?);
        first_differences(&mut slot, &series_index, series.len());
        let took = read_dense("took", &self.took, count)?;
        let resolve = optional("resolve", &self.resolve)?;
        let connect = optional("connect", &self.connect)?;
        let query = if self.rest.is_empty() {
            optional("query", &self.query)?
        } else {
            let rest = read_dense("rest", &self.rest, count)?;
            query_of(&rest, &took, &resolve, &connect)
        };
        Ok(Columns {
            series,
            slot,
            scheduled: signed(read_sparse("scheduled", &self.scheduled, count)?),
            started_after: signed(read_dense("started_after", &self.started_after, count)?),
            took,
            resolve,
            connect,
            query,
            connection: signed(read_sparse("connection", &self.connection, count)?),
            connection_id: signed(read_sparse("connection_id", &self.connection_id, count)?),
            series_index,
        })
    }
}

// ------------------------------------------------------------------ series

fn pack_series(all: &[Series]) -> (Vec<Arc<str>>, Vec<u64>) {
    let mut texts: Vec<Arc<str>> = Vec::new();
    let mut known: HashMap<Arc<str>, u64> = HashMap::new();
    let mut text = |word: &str| match known.get(word) {
        Some(number) => *number,
        None => {
            let number = texts.len() as u64;
            let word: Arc<str> = Arc::from(word);
            texts.push(word.clone());
            known.insert(word, number);
            number
        }
    };
    let mut numbers = Vec::with_capacity(all.len() * SERIES_FIELDS);
    for series in all {
        let mut maybe = |word: Option<&str>| word.map_or(0, |word| text(word) + 1);
        let words = [
            maybe(Some(series.target.as_str())),
            maybe(Some(series.style.as_str())),
            maybe(Some(series.phase.as_str())),
            maybe(Some(series.outcome.as_str())),
            maybe(series.cause.map(Cause::as_str)),
            maybe(series.sqlstate.as_deref()),
            maybe(series.error.as_deref()),
            maybe(series.backend.as_deref()),
            maybe(series.peer.as_deref()),
            maybe(series.server_version.as_deref()),
            maybe(series.canary.map(Canary::as_str)),
        ];
        numbers.extend(words);
        numbers.extend([
            u64::from(series.client),
            series.error_code.map_or(0, |code| u64::from(code) + 1),
            series.handshake_id.map_or(0, |id| u64::from(id) + 1),
            u64::from(series.may_have_executed),
        ]);
    }
    (texts, numbers)
}

fn unpack_series(texts: &[Arc<str>], bytes: &[u8]) -> Result<Vec<Series>, FrameError> {
    let bad = |what: &str| FrameError::Body(format!("series: {what}"));
    let numbers = read_all("series", bytes)?;
    if numbers.len() % SERIES_FIELDS != 0 {
        return Err(bad("cut off"));
    }
    let text = |number: u64| -> Result<Option<Arc<str>>, FrameError> {
        let Some(at) = number.checked_sub(1) else {
            return Ok(None);
        };
        let found = usize::try_from(at).ok().and_then(|at| texts.get(at));
        found
            .cloned()
            .map(Some)
            .ok_or_else(|| bad("a text that is not there"))
    };
    let needed = |number: u64| text(number)?.ok_or_else(|| bad("a word is missing"));
    fn word<T: std::str::FromStr>(text: &str) -> Result<T, FrameError> {
        text.parse()
            .map_err(|_| FrameError::Body(format!("series: unknown word `{text}`")))
    }
    // Clients of a target share its name.
    let mut targets: HashMap<u64, Arc<crate::ids::TargetName>> = HashMap::new();
    numbers
        .chunks_exact(SERIES_FIELDS)
        .map(|n| {
            let target = match targets.get(&n[0]) {
                Some(target) => target.clone(),
                None => {
                    let target = Arc::new(word(&needed(n[0])?)?);
                    targets.insert(n[0], Arc::clone(&target));
                    target
                }
            };
            Ok(Series {
                target,
                style: word(&needed(n[1])?)?,
                phase: word(&needed(n[2])?)?,
                outcome: word(&needed(n[3])?)?,
                cause: text(n[4])?.map(|text| word(&text)).transpose()?,
                sqlstate: text(n[5])?,
                error: text(n[6])?,
                backend: text(n[7])?,
                peer: text(n[8])?,
                server_version: text(n[9])?,
                canary: text(n[10])?.map(|text| word(&text)).transpose()?,
                client: u16::try_from(n[11]).map_err(|_| bad("client is out of range"))?,
                error_code: narrow(n[12]).map_err(|()| bad("error_code is out of range"))?,
                handshake_id: narrow(n[13]).map_err(|()| bad("handshake_id is out of range"))?,
                may_have_executed: match n[14] {
                    0 => false,
                    1 => true,
                    _ => return Err(bad("may_have_executed is out of range")),
                },
            })
        })
        .collect()
}

/// A number plus 1, or 0 for none.
fn narrow<T: TryFrom<u64>>(number: u64) -> Result<Option<T>, ()> {
    match number.checked_sub(1) {
        None => Ok(None),
        Some(value) => T::try_from(value).map(Some).map_err(|_| ()),
    }
}

// ----------------------------------------------------------------- columns

/// Who follows whom, as both sides learn it.
struct Follow {
    next: Vec<u32>,
    before: Option<u32>,
}

impl Follow {
    fn new(series: usize) -> Self {
        Self {
            next: (1..=u32::try_from(series).unwrap_or(u32::MAX)).collect(),
            before: None,
        }
    }

    fn expected(&self) -> u32 {
        let known = |before: u32| self.next.get(before as usize).copied();
        self.before.and_then(known).unwrap_or(0)
    }

    fn came(&mut self, at: u32) {
        if let Some(next) = self
            .before
            .and_then(|before| self.next.get_mut(before as usize))
        {
            *next = at;
        }
        self.before = Some(at);
    }
}

fn followers(series_index: &[u32], series: usize) -> impl Iterator<Item = u64> {
    let mut follow = Follow::new(series);
    series_index.iter().map(move |at| {
        let as_expected = *at == follow.expected();
        follow.came(*at);
        if as_expected { 0 } else { u64::from(*at) + 1 }
    })
}

fn leaders(codes: &[u64], series: usize) -> Result<Vec<u32>, FrameError> {
    let mut follow = Follow::new(series);
    codes
        .iter()
        .enumerate()
        .map(|(sample, code)| {
            let at = match code.checked_sub(1) {
                None => follow.expected(),
                Some(at) => u32::try_from(at).unwrap_or(u32::MAX),
            };
            if at as usize >= series {
                return Err(InvalidColumns::NoSuchSeries {
                    sample,
                    series: at,
                    count: series,
                }
                .into());
            }
            follow.came(at);
            Ok(at)
        })
        .collect()
}

fn second_differences(columns: &Columns) -> impl Iterator<Item = u64> {
    let mut last = vec![0_i64; columns.series.len()];
    columns
        .slot
        .iter()
        .zip(&columns.series_index)
        .map(move |(step, at)| {
            let before = last
                .get_mut(*at as usize)
                .map_or(0, |last| std::mem::replace(last, *step));
            zigzag(step.wrapping_sub(before))
        })
}

fn first_differences(slot: &mut [i64], series_index: &[u32], series: usize) {
    let mut last = vec![0_i64; series];
    for (step, at) in slot.iter_mut().zip(series_index) {
        if let Some(last) = last.get_mut(*at as usize) {
            *step = step.wrapping_add(*last);
            *last = *step;
        }
    }
}

/// A phase's duration in the sum: what did not happen took nothing.
fn part(column: &[u64], at: usize) -> u64 {
    column.get(at).map_or(0, |plus_1| plus_1.saturating_sub(1))
}

/// What the phases leave of the whole, plus 1; none where that cannot say it.
fn rest_of(columns: &Columns) -> Option<Vec<u64>> {
    if columns.query.len() != columns.took.len() {
        return None;
    }
    columns
        .query
        .iter()
        .zip(&columns.took)
        .enumerate()
        .map(|(at, (query, took))| {
            let Some(query) = query.checked_sub(1) else {
                return Some(0);
            };
            let code = took
                .wrapping_sub(query)
                .wrapping_sub(part(&columns.resolve, at))
                .wrapping_sub(part(&columns.connect, at))
                .wrapping_add(1);
            (code != 0).then_some(code)
        })
        .collect()
}

fn query_of(rest: &[u64], took: &[u64], resolve: &[u64], connect: &[u64]) -> Vec<u64> {
    rest.iter()
        .zip(took)
        .enumerate()
        .map(|(at, (rest, took))| match rest.checked_sub(1) {
            None => 0,
            Some(rest) => took
                .wrapping_sub(rest)
                .wrapping_sub(part(resolve, at))
                .wrapping_sub(part(connect, at))
                .wrapping_add(1),
        })
        .collect()
}

// ----------------------------------------------------------------- numbers

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value as u8) | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn dense(values: impl Iterator<Item = u64>) -> ByteBuf {
    let mut bytes = Vec::with_capacity(values.size_hint().0 * 2);
    for value in values {
        put(&mut bytes, value);
    }
    ByteBuf::from(bytes)
}

fn sparse(values: impl Iterator<Item = u64>) -> ByteBuf {
    let mut bytes = Vec::new();
    let mut zeros = 0;
    for value in values {
        if value == 0 {
            zeros += 1;
        } else {
            put(&mut bytes, zeros);
            put(&mut bytes, value);
            zeros = 0;
        }
    }
    ByteBuf::from(bytes)
}

/// The next number and the bytes behind it; none at the end.
fn next<'a>(column: &'static str, bytes: &'a [u8]) -> Result<Option<(u64, &'a [u8])>, FrameError> {
    let mut value = 0_u64;
    for (at, byte) in bytes.iter().enumerate() {
        let bits = u64::from(byte & 0x7f);
        if at > 9 || (at == 9 && *byte > 1) {
            return Err(FrameError::Body(format!("`{column}` has a number too big")));
        }
        value |= bits << (7 * at);
        if byte & 0x80 == 0 {
            return Ok(Some((value, &bytes[at + 1..])));
        }
    }
    if bytes.is_empty() {
        Ok(None)
    } else {
        Err(FrameError::Body(format!("`{column}` ends inside a number")))
    }
}

fn read_all(column: &'static str, mut bytes: &[u8]) -> Result<Vec<u64>, FrameError> {
    let mut values = Vec::new();
    while let Some((value, rest)) = next(column, bytes)? {
        values.push(value);
        bytes = rest;
    }
    Ok(values)
}

fn wrong_length(column: &'static str, found: usize, expected: usize) -> FrameError {
    InvalidColumns::Length {
        column,
        found,
        expected,
    }
    .into()
}

fn read_dense(
    column: &'static str,
    mut bytes: &[u8],
    count: usize,
) -> Result<Vec<u64>, FrameError> {
    // Every value takes at least one byte, so `count` is bounded by what is there.
    if bytes.len() < count {
        return Err(wrong_length(column, bytes.len(), count));
    }
    let mut values = Vec::with_capacity(count);
    while let Some((value, rest)) = next(column, bytes)? {
        if values.len() == count {
            return Err(wrong_length(column, count + 1, count));
        }
        values.push(value);
        bytes = rest;
    }
    if values.len() != count {
        return Err(wrong_length(column, values.len(), count));
    }
    Ok(values)
}

/// `count` is bounded by [`MAX_SAMPLES`], not by the bytes.
fn read_sparse(
    column: &'static str,
    mut bytes: &[u8],
    count: usize,
) -> Result<Vec<u64>, FrameError> {
    let mut values = vec![0; count];
    let mut at = 0_usize;
    while let Some((zeros, rest)) = next(column, bytes)? {
        let Some((value, rest)) = next(column, rest)? else {
            return Err(FrameError::Body(format!("`{column}` ends inside a pair")));
        };
        at = usize::try_from(zeros)
            .ok()
            .and_then(|zeros| at.checked_add(zeros))
            .unwrap_or(usize::MAX);
        match values.get_mut(at) {
            Some(place) if value != 0 => *place = value,
            Some(_) => return Err(FrameError::Body(format!("`{column}` names a zero"))),
            None => return Err(wrong_length(column, at.saturating_add(1), count)),
        }
        at += 1;
        bytes = rest;
    }
    Ok(values)
}

// --------------------------------------------------------------- version 1

#[derive(Serialize, Deserialize)]
struct Packed1 {
    series: Vec<Series>,
    series_index: ByteBuf,
    slot: ByteBuf,
    scheduled: ByteBuf,
    started_after: ByteBuf,
    took: ByteBuf,
    resolve: ByteBuf,
    connect: ByteBuf,
    query: ByteBuf,
    connection: ByteBuf,
    connection_id: ByteBuf,
}

#[cfg(test)]
impl From<&Columns> for Packed1 {
    fn from(columns: &Columns) -> Self {
        let signed = |values: &[i64]| dense(values.iter().copied().map(zigzag));
        Self {
            series: columns.series.clone(),
            series_index: dense(columns.series_index.iter().map(|v| u64::from(*v))),
            slot: signed(&columns.slot),
            scheduled: signed(&columns.scheduled),
            started_after: signed(&columns.started_after),
            took: dense(columns.took.iter().copied()),
            resolve: dense(columns.resolve.iter().copied()),
            connect: dense(columns.connect.iter().copied()),
            query: dense(columns.query.iter().copied()),
            connection: signed(&columns.connection),
            connection_id: signed(&columns.connection_id),
        }
    }
}

impl Packed1 {
    fn unpack(self, count: usize) -> Result<Columns, FrameError> {
        let signed = |column, bytes: &[u8]| -> Result<Vec<i64>, FrameError> {
            Ok(read_dense(column, bytes, count)?
                .into_iter()
                .map(unzigzag)
                .collect())
        };
        let optional = |column, bytes: &[u8]| {
            if bytes.is_empty() {
                Ok(Vec::new())
            } else {
                read_dense(column, bytes, count)
            }
        };
        let series_index = read_dense("series_index", &self.series_index, count)?
            .into_iter()
            .map(|v| {
                u32::try_from(v)
                    .map_err(|_| FrameError::Body("series_index is out of range".to_owned()))
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Columns {
            series: self.series,
            series_index,
            slot: signed("slot", &self.slot)?,
            scheduled: signed("scheduled", &self.scheduled)?,
            started_after: signed("started_after", &self.started_after)?,
            took: read_dense("took", &self.took, count)?,
            resolve: optional("resolve", &self.resolve)?,
            connect: optional("connect", &self.connect)?,
            query: optional("query", &self.query)?,
            connection: signed("connection", &self.connection)?,
            connection_id: signed("connection_id", &self.connection_id)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::tests::any_sample;
    use crate::sample::Sample;
    use crate::time::Timestamp;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn columns_come_back(samples in proptest::collection::vec(any_sample(), 1..60)) {
            let columns = Columns::encode(&samples);
            let bytes = pack(&columns).expect("packs");
            prop_assert_eq!(unpack(2, &bytes, columns.len()), Ok(columns));
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300), count in 0usize..400) {
            for version in 0..4 {
                let _ = unpack(version, &bytes, count);
            }
            let _ = read_dense("x", &bytes, count);
            let _ = read_sparse("x", &bytes, count);
            let _ = unpack_series(&["a".into()], &bytes);
        }

        /// What was changed in a packed body is refused or read as other columns:
        /// it never panics, and never has another length.
        #[test]
        fn a_changed_byte_never_panics(samples in proptest::collection::vec(any_sample(), 1..20), at in any::<prop::sample::Index>(), to in any::<u8>()) {
            let columns = Columns::encode(&samples);
            let mut bytes = pack(&columns).expect("packs");
            let at = at.index(bytes.len());
            bytes[at] = to;
            if let Ok(read) = unpack(2, &bytes, columns.len()) {
                prop_assert_eq!(read.len(), columns.len());
                let _ = read.decode();
            }
        }

        #[test]
        fn numbers_come_back(values in proptest::collection::vec(prop_oneof![Just(0u64), any::<u64>()], 0..50)) {
            let bytes = sparse(values.iter().copied());
            prop_assert_eq!(read_sparse("x", &bytes, values.len()), Ok(values.clone()));
            let bytes = dense(values.iter().copied());
            prop_assert_eq!(read_dense("x", &bytes, values.len()), Ok(values));
        }
    }

    /// Clients in turn, a hundred times a second, for a second, as an agent sees it.
    fn a_second_of(clients: u16) -> Vec<Sample> {
        use proptest::strategy::ValueTree as _;
        let one = any_sample();
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let blank = one.new_tree(&mut runner).expect("a sample").current();
        let interval = 10_000_000_i64;
        (0..100_i64)
            .flat_map(|k| (0..clients).map(move |client| (k, client)))
            .map(|(k, client)| {
                let noise = (k * 7_919 + i64::from(client) * 104_729) % 60_000;
                let scheduled = 1_000_000_000_000
                    + k * interval
                    + interval / i64::from(clients) * i64::from(client);
                let (started, took) = (scheduled + 60_000 + noise, 250_000 + 2 * noise);
                Sample {
                    target: Arc::new("haproxy".parse().expect("a name")),
                    client,
                    slot: 4_711 + k as u64,
                    scheduled: Timestamp::from_ns(scheduled),
                    started: Timestamp::from_ns(started),
                    finished: Timestamp::from_ns(started + took),
                    resolve_ns: None,
                    connect_ns: None,
                    query_ns: Some(took as u64 - 5_000 - noise as u64 / 10),
                    cause: None,
                    error_code: None,
                    error: None,
                    sqlstate: None,
                    connection: Some(1),
                    connection_id: Some(1_000 + u64::from(client)),
                    handshake_id: Some(1_000 + u32::from(client)),
                    backend: Some("db-1.internal:3306".into()),
                    peer: Some("10.11.12.13:6033".into()),
                    server_version: Some("10.11.14-MariaDB-0+deb12u2".into()),
                    ..blank.clone()
                }
            })
            .collect()
    }

    #[test]
    fn a_steady_second_takes_ten_bytes_a_sample() {
        for clients in [1, 4, 20] {
            let samples = a_second_of(clients);
            let columns = Columns::encode(&samples);
            let bytes = pack(&columns).expect("packs").len() as f64 / samples.len() as f64;
            assert!(bytes < 10.0, "{clients} clients: {bytes} bytes a sample");
            let before = pack_1(&columns).expect("packs").len() as f64 / samples.len() as f64;
            assert!(bytes < before - 4.0, "{bytes} of {before}");
        }
    }

    #[test]
    fn lengths_are_looked_at() {
        let columns = Columns::encode(&a_second_of(2));
        let bytes = pack(&columns).expect("packs");
        for count in [0, 1, 199, 201, MAX_SAMPLES, MAX_SAMPLES + 1] {
            assert!(unpack(2, &bytes, count).is_err(), "{count}");
        }
        assert_eq!(unpack(3, &bytes, 200), Err(FrameError::Version(3)));
    }
}
