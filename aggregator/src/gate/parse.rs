//! Reads `FIELD OP VALUE [where KEY = WORD [and KEY = WORD]...]`. Pure.

use std::fmt;
use std::str::FromStr;

use super::fields::{FIELDS, Field, KEYS, Unit, WORDS};

/// How a value is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// `>`
    More,
    /// `>=`
    AtLeast,
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `=`
    Is,
    /// `!=`
    IsNot,
}

impl Op {
    /// Longer ones first, so that `>=` is not read as `>`.
    const ALL: [(&'static str, Self); 7] = [
        (">=", Self::AtLeast),
        ("<=", Self::AtMost),
        ("!=", Self::IsNot),
        ("==", Self::Is),
        (">", Self::More),
        ("<", Self::Less),
        ("=", Self::Is),
    ];

    /// Whether `value` is so compared with `limit`.
    pub fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Self::More => value > limit,
            Self::AtLeast => value >= limit,
            Self::Less => value < limit,
            Self::AtMost => value <= limit,
            Self::Is => value == limit,
            Self::IsNot => value != limit,
        }
    }
}

/// What a field is compared with.
#[derive(Debug, Clone, PartialEq)]
pub enum Limit {
    /// In the field's unit.
    Number(f64),
    /// A verdict.
    Word(String),
}

/// A condition that makes a report fail.
#[derive(Debug, Clone, PartialEq)]
pub struct Gate {
    /// As it was written.
    pub text: String,
    /// What it looks at.
    pub field: &'static Field,
    /// How it is compared.
    pub op: Op,
    /// With what.
    pub limit: Limit,
    /// Which values it covers: all of these must be so.
    pub filter: Vec<(String, String)>,
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The known name that is least far from a mistyped one.
fn nearest<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|name| (distance(wanted, name), name))
        .filter(|(distance, name)| *distance <= name.len() / 2)
        .min()
        .map(|(_, name)| name)
}

/// Levenshtein's distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let cost = before + usize::from(x != *y);
            before = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(before + 1);
        }
    }
    row[b.len()]
}

impl FromStr for Gate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (condition, filter) = match text.split_once(" where ") {
            Some((condition, filter)) => (condition.trim(), Some(filter)),
            None => (text, None),
        };
        let (at, sign, op) = Op::ALL
            .iter()
            .filter_map(|(sign, op)| Some((condition.find(sign)?, *sign, *op)))
            // Of those at the first place the longest.
            .min_by_key(|(at, sign, _)| (*at, std::cmp::Reverse(sign.len())))
            .ok_or_else(|| {
                format!(
                    "`{text}` compares nothing; write FIELD > VALUE, such as windows.upper > 2s"
                )
            })?;
        let name = condition[..at].trim();
        let field = FIELDS.iter().find(|f| f.name == name).ok_or_else(|| {
            let guess = nearest(name, FIELDS.iter().map(|f| f.name))
                .map_or(".".to_owned(), |known| format!("; did you mean `{known}`?"));
            format!(
                "there is no field `{name}`{guess} Known: {}.",
                FIELDS.iter().map(|f| f.name).collect::<Vec<_>>().join(", ")
            )
        })?;
        let limit = limit(field, op, condition[at + sign.len()..].trim())?;
        Ok(Self {
            text: text.to_owned(),
            field,
            op,
            limit,
            filter: filter.map(parse_filter).transpose()?.unwrap_or_default(),
        })
    }
}

fn limit(field: &Field, op: Op, text: &str) -> Result<Limit, String> {
    if text.is_empty() {
        return Err(format!(
            "nothing stands after `{}`'s comparison",
            field.name
        ));
    }
    let unquoted = unquoted(text);
    let number = |text: &str| {
        text.trim()
            .parse()
            .ok()
            .filter(|n: &f64| n.is_finite())
            .ok_or_else(|| format!("`{text}` is no number"))
    };
    match field.unit {
        Unit::Verdict => {
            let word = unquoted.to_lowercase();
            if !WORDS.contains(&word.as_str()) {
                return Err(format!(
                    "`{unquoted}` is no verdict; they are, worst first: {}",
                    WORDS.join(", ")
                ));
            }
            let is_unordered = matches!(word.as_str(), "not exposed" | "unmeasured");
            if is_unordered && !matches!(op, Op::Is | Op::IsNot) {
                return Err(format!(
                    "`{word}` is neither better nor worse than other verdicts; compare with = or !="
                ));
            }
            Ok(Limit::Word(word))
        }
        Unit::Seconds => crate::duration::parse(unquoted)
            .map(|ns| Limit::Number(ns as f64 / 1e9))
            .map_err(|why| format!("{why} (`{}` is a time)", field.name)),
        Unit::Percent => match unquoted.strip_suffix('%') {
            Some(share) => number(share).map(Limit::Number),
            None => Err(format!(
                "`{unquoted}` has no unit: `{}` is a percentage, write 99.9%",
                field.name
            )),
        },
        Unit::Count | Unit::Factor => number(unquoted)
            .map(Limit::Number)
            .map_err(|why| format!("{why} (`{}` has no unit)", field.name)),
    }
}

fn unquoted(text: &str) -> &str {
    for quote in ['\'', '"'] {
        if let Some(inner) = text
            .strip_prefix(quote)
            .and_then(|rest| rest.strip_suffix(quote))
        {
            return inner;
        }
    }
    text
}

fn parse_filter(text: &str) -> Result<Vec<(String, String)>, String> {
    text.split(" and ")
        .map(|part| {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("`{}` is not KEY = WORD", part.trim()))?;
            let (key, value) = (key.trim(), unquoted(value.trim_start_matches('=').trim()));
            if !KEYS.contains(&key) {
                return Err(format!(
                    "`{key}` cannot be asked for; known: {}",
                    KEYS.join(", ")
                ));
            }
            if value.is_empty() {
                return Err(format!("nothing stands after `{key} =`"));
            }
            Ok((key.to_owned(), value.to_owned()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, field: &str, op: Op, limit: Limit, filter: &[(&str, &str)]) {
        let gate: Gate = text.parse().expect(text);
        assert_eq!((gate.field.name, gate.op), (field, op), "{text}");
        assert_eq!(gate.limit, limit, "{text}");
        let found: Vec<(&str, &str)> = gate
            .filter
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        assert_eq!(found, filter);
    }

    #[test]
    fn conditions_are_read() {
        check(
            "windows.upper > 2s",
            "windows.upper",
            Op::More,
            Limit::Number(2.0),
            &[],
        );
        check("gap>=500ms", "gap", Op::AtLeast, Limit::Number(0.5), &[]);
        check(
            "available < 99.9%",
            "available",
            Op::Less,
            Limit::Number(99.9),
            &[],
        );
        check("errors != 0", "errors", Op::IsNot, Limit::Number(0.0), &[]);
        check(
            "verdict >= 'State Lost'",
            "verdict",
            Op::AtLeast,
            Limit::Word("state lost".into()),
            &[],
        );
        check(
            "ratio.lower > 1.5 where target = haproxy and clients=40",
            "ratio.lower",
            Op::More,
            Limit::Number(1.5),
            &[("target", "haproxy"), ("clients", "40")],
        );
        check(
            "verdict = not exposed where style == reused",
            "verdict",
            Op::Is,
            Limit::Word("not exposed".into()),
            &[("style", "reused")],
        );
    }

    #[track_caller]
    fn refused(text: &str, expect: &str) {
        let error = text.parse::<Gate>().expect_err(text);
        assert!(error.contains(expect), "{text}: {error}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        refused("", "compares nothing");
        refused("windows.upper", "compares nothing");
        refused("window.upper > 2s", "did you mean `windows.upper`?");
        refused("xyzzy > 2", "no field `xyzzy`. Known: ");
        refused("windows.upper > 2", "has no unit");
        refused("windows.upper > ", "nothing stands after");
        refused("errors > 2s", "no number");
        refused("verdict > great", "no verdict");
        refused("verdict > unmeasured", "neither better nor worse");
        refused(
            "gap > 1s where colour = red",
            "`colour` cannot be asked for",
        );
        refused("gap > 1s where target", "not KEY = WORD");
        refused("available > nan%", "no number");
        refused("available < 0.999", "write 99.9%");
    }

    proptest! {
        /// Never a panic; what is read says again what was written.
        #[test]
        fn any_text_is_a_gate_or_an_error(
            text in prop_oneof![
                "\\PC{0,40}",
                "[a-z._]{1,16} ?(>|>=|<|<=|=|!=|==) ?'?-?[0-9.e]{0,12}(ms|s|%|x)?'?( where [a-z]{1,8} ?= ?\\PC{0,9})?",
                "(gap|available|verdict|errors) ?(>|<=|=|!=) ?('?[a-z ]{0,12}'?|[0-9.]{1,9}(s|ms|%)?)",
            ],
        ) {
            if let Ok(gate) = text.parse::<Gate>() {
                prop_assert_eq!(gate.text, text.trim());
            }
        }
    }
}
