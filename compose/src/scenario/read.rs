//! Reads TOML tables key by key and collects everything that is wrong, each with
//! its line, its key and what is allowed there.
//!
//! A derived deserializer stops at the first error and cannot say which key was
//! meant; a scenario is written by hand, so all its errors are worth saying at
//! once.

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::duration;

/// One thing that is wrong with a scenario file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenarioError {
    /// From 1; 0 if it is not the file that is wrong but the command line.
    pub line: usize,
    /// The key it is about; empty if the text is not TOML at all.
    pub key: String,
    /// What is wrong.
    pub what: String,
    /// What is allowed, or what to do.
    pub hint: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        f.write_str(&self.what)
    }
}

/// Collects errors about one text.
pub(super) struct Reader<'t> {
    text: &'t str,
    errors: RefCell<Vec<ScenarioError>>,
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            text,
            errors: RefCell::new(Vec::new()),
        }
    }

    pub(super) fn line_of(&self, span: &Range<usize>) -> usize {
        let start = span.start.min(self.text.len());
        1 + self.text.as_bytes()[..start]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
    }

    pub(super) fn report(
        &self,
        line: usize,
        key: &str,
        what: impl Into<String>,
        hint: impl Into<String>,
    ) {
        self.errors.borrow_mut().push(ScenarioError {
            line,
            key: key.to_owned(),
            what: what.into(),
            hint: hint.into(),
        });
    }

    /// Everything collected, in the order of the text.
    pub(super) fn into_errors(self) -> Vec<ScenarioError> {
        let mut errors = self.errors.into_inner();
        errors.sort_by_key(|error| error.line);
        errors
    }
}

/// A value with the line it stands on.
#[derive(Debug, Clone)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) line: usize,
}

/// No text of a scenario has a use for these, and a terminal would obey them.
fn unspeakable(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
}

/// One table being read.
pub(super) struct Table<'r, 't, 'i> {
    reader: &'r Reader<'t>,
    label: String,
    entries: &'r DeTable<'i>,
    pub(super) line: usize,
}

impl<'r, 't, 'i> Table<'r, 't, 'i> {
    /// Begins to read a table in which only `allowed` keys may stand. `label` is
    /// how messages call it.
    pub(super) fn new(
        reader: &'r Reader<'t>,
        label: impl Into<String>,
        entries: &'r DeTable<'i>,
        line: usize,
        allowed: &[&str],
    ) -> Self {
        let table = Self {
            reader,
            label: label.into(),
            entries,
            line,
        };
        for (key, _) in entries.iter() {
            let word = key.get_ref().as_ref();
            if !allowed.contains(&word) {
                reader.report(
                    reader.line_of(&key.span()),
                    word,
                    format!("unknown key `{word}` in {}", table.label),
                    with_guess(word, allowed, "keys"),
                );
            }
        }
        table
    }

    fn find(&self, key: &str) -> Option<(&'r Spanned<DeValue<'i>>, usize)> {
        self.entries
            .iter()
            .find(|(name, _)| name.get_ref().as_ref() == key)
            .map(|(name, value)| (value, self.reader.line_of(&name.span())))
    }

    fn wrong(&self, line: usize, key: &str, found: &DeValue<'_>, expected: &str) {
        self.reader.report(
            line,
            key,
            format!("`{key}` in {} is of type {}", self.label, found.type_str()),
            format!("allowed for `{key}`: {expected}"),
        );
    }

    /// Reports that a key is missing.
    pub(super) fn missing(&self, key: &str, hint: &str) {
        self.reader.report(
            self.line,
            key,
            format!("`{key}` is missing in {}", self.label),
            hint,
        );
    }

    pub(super) fn string(&self, key: &str) -> Option<At<String>> {
        let (value, line) = self.find(key)?;
        match value.get_ref().as_str() {
            Some(text) => {
                if text.contains(unspeakable) {
                    self.reader.report(
                        line,
                        key,
                        format!("`{key}` in {} has a control character", self.label),
                        "allowed: printable characters, line breaks and tabs",
                    );
                }
                Some(At {
                    value: text.to_owned(),
                    line,
                })
            }
            None => {
                self.wrong(line, key, value.get_ref(), "a text in quotes");
                None
            }
        }
    }

    pub(super) fn boolean(&self, key: &str) -> Option<bool> {
        let (value, line) = self.find(key)?;
        let found = value.get_ref().as_bool();
        if found.is_none() {
            self.wrong(line, key, value.get_ref(), "true or false");
        }
        found
    }

    /// An integer within `allowed`.
    pub(super) fn integer(&self, key: &str, allowed: Range<u64>) -> Option<u64> {
        let (value, line) = self.find(key)?;
        let expected = format!(
            "a whole number from {} to {}",
            allowed.start,
            allowed.end - 1
        );
        let Some(number) = value.get_ref().as_integer() else {
            self.wrong(line, key, value.get_ref(), &expected);
            return None;
        };
        let parsed = u64::from_str_radix(number.as_str(), number.radix())
            .ok()
            .filter(|parsed| allowed.contains(parsed));
        if parsed.is_none() {
            self.reader.report(
                line,
                key,
                format!("`{key}` in {} is {}", self.label, number.as_str()),
                format!("allowed for `{key}`: {expected}"),
            );
        }
        parsed
    }

    /// A duration of `least` to `most` ns.
    pub(super) fn duration(&self, key: &str, least: u64, most: u64) -> Option<u64> {
        let text = self.string(key)?;
        let expected = format!(
            "a duration from {} to {}, such as \"250ms\" or \"1m30s\"",
            duration::text(least),
            duration::text(most)
        );
        match duration::parse(&text.value) {
            Ok(ns) if (least..=most).contains(&ns) => Some(ns),
            Ok(_) => {
                self.reader.report(
                    text.line,
                    key,
                    format!("`{key}` in {} is {}", self.label, text.value),
                    format!("allowed for `{key}`: {expected}"),
                );
                None
            }
            Err(why) => {
                self.reader.report(
                    text.line,
                    key,
                    format!("`{key}` in {}: {why}", self.label),
                    format!("allowed for `{key}`: {expected}"),
                );
                None
            }
        }
    }

    /// A word that `parse` knows; `known` is what it knows, for the message.
    pub(super) fn word<T>(
        &self,
        key: &str,
        known: &[&str],
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<At<T>> {
        let text = self.string(key)?;
        match parse(&text.value) {
            Some(value) => Some(At {
                value,
                line: text.line,
            }),
            None => {
                self.unknown_word(key, &text.value, text.line, known);
                None
            }
        }
    }

    fn unknown_word(&self, key: &str, word: &str, line: usize, known: &[&str]) {
        self.reader.report(
            line,
            key,
            format!("`{word}` is not known for `{key}` in {}", self.label),
            with_guess(word, known, &format!("values of `{key}`")),
        );
    }

    /// A list of words that `parse` knows.
    pub(super) fn words<T>(
        &self,
        key: &str,
        known: &[&str],
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<Vec<T>> {
        let (value, line) = self.find(key)?;
        let Some(list) = value.get_ref().as_array() else {
            self.wrong(line, key, value.get_ref(), "a list of texts");
            return None;
        };
        let mut words = Vec::new();
        for item in list {
            let line = self.reader.line_of(&item.span());
            match item.get_ref().as_str() {
                None => self.wrong(line, key, item.get_ref(), "a list of texts"),
                Some(word) => match parse(word) {
                    Some(value) => words.push(value),
                    None => self.unknown_word(key, word, line, known),
                },
            }
        }
        Some(words)
    }

    /// A table under `key`; `None` too if the value is no table, which
    /// `or_other` may then take.
    pub(super) fn table(&self, key: &str, allowed: &[&str]) -> Option<Table<'r, 't, 'i>> {
        let (value, line) = self.find(key)?;
        match value.get_ref().as_table() {
            Some(entries) => Some(Self::new(
                self.reader,
                format!("[{key}]"),
                entries,
                line,
                allowed,
            )),
            None => {
                self.wrong(line, key, value.get_ref(), &format!("a table [{key}]"));
                None
            }
        }
    }

    /// Whether the value under `key` is a table.
    pub(super) fn is_table(&self, key: &str) -> bool {
        self.find(key)
            .is_some_and(|(value, _)| value.get_ref().is_table())
    }

    /// The tables `[[key]]`.
    pub(super) fn tables(&self, key: &str, allowed: &[&str]) -> Vec<Table<'r, 't, 'i>> {
        let Some((value, line)) = self.find(key) else {
            return Vec::new();
        };
        let Some(list) = value.get_ref().as_array() else {
            self.wrong(line, key, value.get_ref(), &format!("tables [[{key}]]"));
            return Vec::new();
        };
        list.iter()
            .filter_map(|item| {
                let line = self.reader.line_of(&item.span());
                match item.get_ref().as_table() {
                    Some(entries) => Some(Self::new(
                        self.reader,
                        format!("[[{key}]]"),
                        entries,
                        line,
                        allowed,
                    )),
                    None => {
                        self.wrong(line, key, item.get_ref(), &format!("tables [[{key}]]"));
                        None
                    }
                }
            })
            .collect()
    }

    /// The tables `[[key]]`, without a word on what is wrong in them.
    pub(super) fn tables_as_they_are(&self, key: &str) -> Vec<Table<'r, 't, 'i>> {
        let list = self
            .find(key)
            .and_then(|(value, _)| value.get_ref().as_array());
        list.into_iter()
            .flat_map(|list| list.iter())
            .filter_map(|item| {
                Some(Self {
                    reader: self.reader,
                    label: format!("[[{key}]]"),
                    entries: item.get_ref().as_table()?,
                    line: self.reader.line_of(&item.span()),
                })
            })
            .collect()
    }

    /// A text, without a word on what is wrong with it.
    pub(super) fn text(&self, key: &str) -> Option<&'r str> {
        self.find(key)
            .and_then(|(value, _)| value.get_ref().as_str())
    }

    /// Reports something of this table's.
    pub(super) fn report(&self, line: usize, key: &str, what: String, hint: impl Into<String>) {
        self.reader.report(line, key, what, hint);
    }
}

/// How it begins to be said that there is no such subject.
pub(super) const UNKNOWN_SUBJECT: &str = "unknown subject";

/// "allowed KIND: a, b, c", with the likeliest one first asked for.
pub(super) fn with_guess(word: &str, allowed: &[&str], kind: &str) -> String {
    let list = if allowed.is_empty() {
        "none".to_owned()
    } else {
        allowed.join(", ")
    };
    let nearest = allowed
        .iter()
        .map(|candidate| (distance(word, candidate), *candidate))
        .min();
    match nearest {
        Some((apart, candidate)) if apart <= 1 + candidate.len() / 4 => {
            format!("did you mean `{candidate}`? allowed {kind}: {list}")
        }
        _ => format!("allowed {kind}: {list}"),
    }
}

/// Levenshtein's edit distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesses_are_near_words_only() {
        assert!(with_guess("intervall", &["interval", "new"], "keys").starts_with("did you mean"));
        assert!(with_guess("xyz", &["interval", "new"], "keys").starts_with("allowed keys"));
    }

    #[test]
    fn distances_are_edits() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
