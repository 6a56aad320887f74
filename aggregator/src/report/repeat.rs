//! Repetitions of a fault, in tables and for programs.

use serde_json::{Value as Json, json};

use super::figures::{NONE, bare_seconds, short};
use super::kinds::client_words;
use super::table::Table;
use crate::analyse::repeat::{self, Censored, Group, Modes, Once, Repeated, Share};
use crate::analyse::row::Row;
use crate::analyse::run::Analysis;
use crate::analyse::verdict::Verdict;

/// Two tables for each group of repetitions: verdicts, and lengths.
pub fn tables(analysis: &Analysis) -> Vec<Table> {
    let mut tables = Vec::new();
    for (group, rows) in repeat::all(analysis) {
        let rows: Vec<(&Row, &Repeated)> = rows
            .iter()
            .map(|(at, repeated)| (&analysis.rows[*at].1, repeated))
            .collect();
        tables.extend(own_tables(analysis, &group, &rows));
    }
    tables
}

/// Both tables of some of a group's rows.
pub fn own_tables(analysis: &Analysis, group: &Group, rows: &[(&Row, &Repeated)]) -> [Table; 2] {
    let deadline = short(i64::try_from(analysis.manifest.plan.deadline_ns).unwrap_or(i64::MAX));
    [verdicts(group, rows, &deadline), lengths(group, rows)]
}

/// What is said of a trend, in lines: "trend +0.61" and what that means.
pub fn trend_words(repeated: &Repeated) -> Vec<String> {
    match repeated.trend {
        None if repeated.rest.len() < 6 => vec!["no trend below 6".to_owned()],
        None => vec!["all alike".to_owned()],
        Some(rho) if is_unlikely(rho, repeated.rest.len()) => vec![
            format!("trend {rho:+.2}"),
            "hardly by chance:".to_owned(),
            "not alike".to_owned(),
        ],
        Some(rho) => vec![format!("trend {rho:+.2}"), "chance may do that".to_owned()],
    }
}

/// What the tables' words mean; nothing where there are none.
pub fn method(analysis: &Analysis) -> Option<String> {
    (!repeat::groups(&analysis.faults, |id| analysis.judged.contains(&id)).is_empty()).then(|| {
        "repetitions: the same step on the same subject. The unit is the fault, not the client. \
         The first stands apart and is in none of the other figures; a fault that did not reach \
         a row's clients is in none either (tested). Shares with Wilson's interval of 95 %. \
         Medians with the interval between order statistics that holds the median with 95 %, none \
         below 6; what was not over (≥) is censored (Kaplan-Meier). together: gaps no further \
         apart than 15 % and three intervals of probing; such groups are never averaged. trend: \
         rank correlation of the gap with the repetition, ! where chance is an unlikely reason \
         (5 %)."
            .to_owned()
    })
}

fn title(group: &Group) -> String {
    format!(
        "{} {}: {} times, the first apart",
        group.step,
        group.subject,
        group.faults.len()
    )
}

fn key(row: &Row) -> [String; 2] {
    [row.target.to_string(), client_words(row)]
}

fn verdicts(group: &Group, rows: &[(&Row, &Repeated)], deadline: &str) -> Table {
    let mut table = Table::new(
        title(group),
        2,
        &[
            "target",
            "style",
            ">tested",
            "first",
            "verdicts of the others (95 %)",
        ],
    );
    for (row, repeated) in rows {
        let tested = repeated.rest.len() + usize::from(repeated.first.is_some());
        let [target, style] = key(row);
        let shares: Vec<String> = repeated
            .verdicts
            .iter()
            .map(|(verdict, share)| format!("{} {}", words(*verdict, deadline), share_text(*share)))
            .collect();
        table.rows.push(vec![
            target,
            style,
            format!("{tested}/{}", repeated.times),
            repeated
                .first
                .map_or(NONE.to_owned(), |once| words(once.verdict, deadline)),
            if shares.is_empty() {
                NONE.to_owned()
            } else {
                shares.join(", ")
            },
        ]);
    }
    table
}

fn words(verdict: Verdict, deadline: &str) -> String {
    match verdict {
        Verdict::Seamless => format!("seamless at {deadline}"),
        other => other.as_str().to_owned(),
    }
}

/// "17 of 20 (64-95 %)"
fn share_text(share: Share) -> String {
    let (low, high) = share.interval;
    format!(
        "{} of {} ({:.0}-{:.0} %)",
        share.k,
        share.n,
        low * 100.0,
        high * 100.0
    )
}

fn lengths(group: &Group, rows: &[(&Row, &Repeated)]) -> Table {
    let mut table = Table::new(
        format!("{} {}: felt gaps and outages, s", group.step, group.subject),
        2,
        &[
            "target",
            "style",
            ">gap\nfirst",
            ">median",
            ">95 %",
            ">outage\nmedian",
            ">95 %",
            "gaps together",
            ">trend",
        ],
    );
    for (row, repeated) in rows {
        if repeated.first.is_none() && repeated.rest.is_empty() {
            continue;
        }
        let [target, style] = key(row);
        table.rows.push(vec![
            target,
            style,
            repeated.first.map_or(NONE.to_owned(), gap_text),
            median_text(repeated),
            repeated
                .gap_interval
                .map_or(NONE.to_owned(), |(low, high)| bounds(Some(low), high)),
            repeated
                .outage_median
                .map_or(NONE.to_owned(), |(low, high)| bounds(Some(low), high)),
            repeated
                .outage_interval
                .map_or(NONE.to_owned(), |(low, high)| bounds(Some(low), high)),
            modes_text(&repeated.modes),
            trend_text(repeated),
        ]);
    }
    table
}

fn gap_text(once: Once) -> String {
    censored(once.gap)
}

fn censored(gap: Censored) -> String {
    format!(
        "{}{}",
        if gap.is_at_least { "≥" } else { "" },
        bare_seconds(gap.ns)
    )
}

fn median_text(repeated: &Repeated) -> String {
    match repeated.gap_median {
        Some(ns) => bare_seconds(ns),
        None if repeated.rest.is_empty() => NONE.to_owned(),
        // Most are not over: longer than the longest that was watched, perhaps.
        None => repeated
            .rest
            .iter()
            .filter(|once| once.gap.is_at_least)
            .map(|once| once.gap.ns)
            .min()
            .map_or(NONE.to_owned(), |ns| format!("≥{}", bare_seconds(ns))),
    }
}

fn bounds(low: Option<i64>, high: Option<i64>) -> String {
    match (low, high) {
        (Some(low), Some(high)) => format!("{}..{}", bare_seconds(low), bare_seconds(high)),
        (Some(low), None) => format!("≥{}", bare_seconds(low)),
        (None, _) => NONE.to_owned(),
    }
}

/// "1x 2.030, 3x 3.030..3.050; 1x not over"
fn modes_text(modes: &Modes) -> String {
    let mut parts: Vec<String> = modes
        .0
        .iter()
        .map(|mode| {
            let range = if bare_seconds(mode.from_ns) == bare_seconds(mode.to_ns) {
                bare_seconds(mode.from_ns)
            } else {
                format!(
                    "{}..{}",
                    bare_seconds(mode.from_ns),
                    bare_seconds(mode.to_ns)
                )
            };
            format!("{}x {range}", mode.count)
        })
        .collect();
    if modes.1 > 0 {
        parts.push(format!("{}x not over", modes.1));
    }
    if parts.is_empty() {
        NONE.to_owned()
    } else {
        parts.join(", ")
    }
}

/// Whether a rank correlation is larger than chance makes it in 1 of 20: by the
/// normal approximation, which is rough for few.
fn is_unlikely(rho: f64, n: usize) -> bool {
    rho.abs() * ((n - 1) as f64).sqrt() > 1.96
}

fn trend_text(repeated: &Repeated) -> String {
    match repeated.trend {
        None => NONE.to_owned(),
        Some(rho) => format!(
            "{rho:+.2}{}",
            if is_unlikely(rho, repeated.rest.len()) {
                "!"
            } else {
                ""
            }
        ),
    }
}

/// For programs: `repetitions[]` of `summary.json`.
pub fn json(analysis: &Analysis) -> Json {
    let s = |ns: i64| json!(ns as f64 / 1e9);
    let bounds = |(low, high): (i64, Option<i64>)| json!([s(low), high.map(s)]);
    let once = |once: &Once| {
        json!({
            "repetition": once.number,
            "verdict": once.verdict.as_str(),
            "gap_s": s(once.gap.ns),
            "gap_is_at_least": once.gap.is_at_least,
            "outage_lower_s": s(once.outage_ns.0),
            "outage_upper_s": once.outage_ns.1.map(s),
        })
    };
    let rows = |rows: &[(usize, Repeated)]| -> Vec<Json> {
        rows.iter()
            .map(|(at, repeated)| {
                let row = &analysis.rows[*at].1;
                json!({
                    "name": row.target.as_str(),
                    "style": row.style.as_str(),
                    "kind": row.kind.to_string(),
                    "agent": row.agent.as_str(),
                    "first": repeated.first.as_ref().map(once),
                    "rest": repeated.rest.iter().map(once).collect::<Vec<_>>(),
                    "verdicts": repeated
                        .verdicts
                        .iter()
                        .map(|(verdict, share)| json!({
                            "verdict": verdict.as_str(),
                            "count": share.k,
                            "of": share.n,
                            "share_interval_95": [share.interval.0, share.interval.1],
                        }))
                        .collect::<Vec<_>>(),
                    "gap_median_s": repeated.gap_median.map(s),
                    "gap_median_interval_95_s": repeated.gap_interval.map(bounds),
                    "outage_median_s": repeated.outage_median.map(bounds),
                    "outage_median_interval_95_s": repeated.outage_interval.map(bounds),
                    "gap_modes": repeated
                        .modes
                        .0
                        .iter()
                        .map(|mode| json!({
                            "count": mode.count,
                            "from_s": s(mode.from_ns),
                            "to_s": s(mode.to_ns),
                        }))
                        .collect::<Vec<_>>(),
                    "gap_not_over": repeated.modes.1,
                    "trend_spearman": repeated.trend,
                })
            })
            .collect()
    };
    let groups: Vec<Json> = repeat::all(analysis)
        .iter()
        .map(|(group, of)| {
            json!({
                "step": group.step,
                "subject": group.subject,
                "faults": group.faults,
                "rows": rows(of),
            })
        })
        .collect();
    json!(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::repeat::{modes, together, wilson};

    const MS: i64 = 1_000_000;

    fn gap(ms: i64, is_at_least: bool) -> Censored {
        Censored {
            ns: ms * MS,
            is_at_least,
        }
    }

    #[test]
    fn shares_and_modes_are_said_in_words() {
        assert_eq!(share_text(wilson(17, 20)), "17 of 20 (64-95 %)");
        let values = [
            gap(3_030, false),
            gap(3_040, false),
            gap(4_030, false),
            gap(9_000, true),
        ];
        assert_eq!(
            modes_text(&modes(&values, 10 * MS)),
            "2x 3.030..3.040, 1x 4.030, 1x not over"
        );
        assert_eq!(modes_text(&Modes::default()), NONE);
    }

    #[test]
    fn what_is_mostly_not_over_has_no_median() {
        let all = (2..=8)
            .map(|number| Once {
                number,
                verdict: Verdict::Down,
                gap: gap(5_000 + i64::try_from(number).expect("small"), true),
                outage_ns: (4_000 * MS, None),
            })
            .collect();
        let repeated = together(8, all, 10 * MS);
        assert_eq!(median_text(&repeated), "≥5.002");
        assert_eq!(bounds(Some(0), None), "≥0.000");
        assert_eq!(trend_text(&repeated), "+1.00!");
    }
}
