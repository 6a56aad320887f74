//! Which faults of two sides are held against each other: the k-th of one side and
//! the k-th of the other, if the same was done to the same subject. Pure.

use serde_json::Value;

/// Target, style and kind of a row.
pub(super) type Key = (String, String, String);

pub(super) fn key(row: &Value) -> Key {
    let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
    (text("name"), text("style"), text("kind"))
}

pub(super) fn name(key: &Key) -> String {
    let (target, style, kind) = key;
    if kind == "bare" || kind.is_empty() {
        format!("{target} {style}")
    } else {
        format!("{target} {style} {kind}")
    }
}

pub(super) fn rows<'a>(run: &'a Value, key: &'a Key) -> impl Iterator<Item = &'a Value> {
    run["targets"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(move |row| self::key(row) == *key)
}

/// A fault as one row felt it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Felt {
    pub(super) step: String,
    pub(super) gap_s: f64,
    pub(super) is_at_least: bool,
    pub(super) outage_s: Option<(f64, f64)>,
    pub(super) verdict: String,
}

/// Every fault of every run of a side, as the row felt it (several agents: the
/// longest); none where the fault tested nothing there.
pub(super) fn felt(side: &[Value], key: &Key) -> Vec<Option<Felt>> {
    let mut all = Vec::new();
    for run in side {
        let judged: Vec<&Value> = run["faults"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|fault| fault["judged"].as_bool() == Some(true))
            .collect();
        for fault in judged {
            let step = format!(
                "{} {}",
                fault["step"].as_str().unwrap_or_default(),
                fault["subject"].as_str().unwrap_or_default()
            );
            let of_rows = rows(run, key)
                .flat_map(|row| row["faults"].as_array().into_iter().flatten())
                .filter(|seen| seen["fault"] == fault["id"])
                .filter_map(|seen| {
                    Some(Felt {
                        step: step.clone(),
                        gap_s: seen["gap_s"].as_f64()?,
                        is_at_least: seen["gap_is_at_least"].as_bool().unwrap_or(false),
                        outage_s: seen["outage_lower_s"].as_f64().map(|lower| {
                            (
                                lower,
                                seen["outage_upper_s"].as_f64().unwrap_or(f64::INFINITY),
                            )
                        }),
                        verdict: seen["verdict"].as_str().unwrap_or_default().to_owned(),
                    })
                });
            all.push(of_rows.max_by(|a, b| a.gap_s.total_cmp(&b.gap_s)));
        }
    }
    all
}

/// How much longer the other gap is, as far as it is known; none where even the
/// direction is not.
pub(super) fn difference(first: &Felt, other: &Felt) -> Option<f64> {
    let by = other.gap_s - first.gap_s;
    match (first.is_at_least, other.is_at_least) {
        (false, false) => Some(by),
        (false, true) => (by > 0.0).then_some(by),
        (true, false) => (by < 0.0).then_some(by),
        (true, true) => None,
    }
}

/// The k-th fault of one side with the k-th of the other, where both tested the
/// row and the same was done to the same subject.
pub(super) fn pairs<'a>(a: &'a [Option<Felt>], b: &'a [Option<Felt>]) -> Vec<(&'a Felt, &'a Felt)> {
    a.iter()
        .zip(b)
        .filter_map(|(x, y)| Some((x.as_ref()?, y.as_ref()?)))
        .filter(|(x, y)| x.step == y.step)
        .collect()
}

/// Says so where one side has more judged faults than the other.
pub(super) fn unequal(first: &[Value], other: &[Value]) -> Option<String> {
    let count = |side: &[Value]| {
        side.iter()
            .flat_map(|run| run["faults"].as_array())
            .flatten()
            .filter(|fault| fault["judged"].as_bool() == Some(true))
            .count()
    };
    let (a, b) = (count(first), count(other));
    (a != b).then(|| {
        format!(
            "the first side has {a} faults, the other {b}: felt gaps, their difference and its \
             verdict are of pairs alone (the k-th fault of one side with the k-th of the other), \
             so the last {} of the larger side are in none of them. Give both sides as many",
            a.abs_diff(b)
        )
    })
}
