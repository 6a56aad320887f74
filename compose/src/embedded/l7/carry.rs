//! What a session holds that can be made again on another backend, and whether
//! that is all it holds. Pure.
//!
//! Method: what a client sets is remembered as it was said, in order, and said
//! again. Only settings to a literal value are, since any other could come out
//! differently. Whatever else may leave something in the session (a statement
//! that is not known to leave nothing) makes it impossible to carry, for good.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::sql::{Assignment, Expr, Statement, parse};

/// Bounds on what one session may leave to be carried.
const MAX_SETTINGS: usize = 256;
const MAX_STATEMENTS: usize = 1024;
const MAX_BYTES: usize = 256 << 10;

/// A statement that set something.
#[derive(Debug)]
struct Setting {
    /// What it set.
    names: BTreeSet<String>,
    text: Vec<u8>,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(super) struct Carried {
    settings: Vec<Setting>,
    /// The client's numbers and texts of its prepared statements.
    prepared: HashMap<u32, Vec<u8>>,
    bytes: usize,
    /// Why it cannot be carried.
    fixed: Option<&'static str>,
    /// Parts of a parameter that were sent ahead and not used yet.
    long_data: bool,
}

impl Carried {
    /// Why the session cannot be carried, if so.
    pub(super) fn obstacle(&self) -> Option<&'static str> {
        self.fixed
            .or(self.long_data.then_some("a parameter was sent in part"))
    }

    /// A text that a backend answered without an error.
    pub(super) fn said(&mut self, text: &[u8]) {
        let Ok(parsed) = parse(text) else {
            self.fix("it holds something that is not known here");
            return;
        };
        match parsed.statement {
            // The default database is carried by the login.
            Statement::Use(_)
            | Statement::Begin
            | Statement::Commit
            | Statement::Rollback
            | Statement::ShowGrants
            | Statement::Kill { .. }
            // A temporary table was made before, which is not known here.
            | Statement::Insert { .. }
            | Statement::CreateTable { temporary: false, .. }
            | Statement::DropTable { temporary: false, .. } => {}
            Statement::Select(_) if super::command::only_reads(text) => {}
            Statement::Set(assignments) => self.set(&assignments, text),
            _ => self.fix("it holds something that is not known here"),
        }
    }

    fn set(&mut self, assignments: &[Assignment], text: &[u8]) {
        let mut names = BTreeSet::new();
        for assignment in assignments {
            let (name, value) = match assignment {
                Assignment::User(name, value) => (format!("@{name}"), Some(value)),
                Assignment::Session(name, value) => (name.clone(), Some(value)),
                Assignment::Names(_) => ("=names".to_owned(), None),
                Assignment::Ignored => (format!("={}", String::from_utf8_lossy(text)), None),
                Assignment::Global(_) => continue,
            };
            let literal = match value {
                None => true,
                Some(Expr::Null | Expr::Int(_) | Expr::Float(_) | Expr::Text(_)) => true,
                Some(_) => false,
            };
            if !literal {
                self.fix("a variable was set to more than a literal value");
                return;
            }
            names.insert(name);
        }
        self.settings.retain(|known| {
            let outdated = known.names.is_subset(&names);
            if outdated {
                self.bytes -= known.text.len();
            }
            !outdated
        });
        self.bytes += text.len();
        self.settings.push(Setting {
            names,
            text: text.to_vec(),
        });
        self.check_bounds();
    }

    /// A statement was prepared under the client's number.
    pub(super) fn prepared(&mut self, number: u32, text: &[u8]) {
        let harmless = matches!(
            parse(text).map(|parsed| parsed.statement),
            Ok(Statement::Select(_))
        ) && super::command::only_reads(text);
        if !harmless {
            self.fix("a prepared statement does more than read");
            return;
        }
        self.bytes += text.len();
        self.prepared.insert(number, text.to_vec());
        self.check_bounds();
    }

    /// A prepared statement was closed.
    pub(super) fn closed(&mut self, number: u32) {
        if let Some(text) = self.prepared.remove(&number) {
            self.bytes -= text.len();
        }
    }

    /// Part of a parameter went to the backend, or all parts were used.
    pub(super) fn long_data(&mut self, pending: bool) {
        self.long_data = pending;
    }

    /// The session was made as new.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// What has to be said again, in order.
    pub(super) fn settings(&self) -> impl Iterator<Item = &[u8]> {
        self.settings.iter().map(|setting| setting.text.as_slice())
    }

    /// Prepared statements by the client's numbers.
    pub(super) fn statements(&self) -> BTreeMap<u32, Vec<u8>> {
        self.prepared
            .iter()
            .map(|(number, text)| (*number, text.clone()))
            .collect()
    }

    fn fix(&mut self, why: &'static str) {
        self.fixed = self.fixed.or(Some(why));
    }

    fn check_bounds(&mut self) {
        if self.settings.len() > MAX_SETTINGS
            || self.prepared.len() > MAX_STATEMENTS
            || self.bytes > MAX_BYTES
        {
            self.fix("it holds more than is remembered here");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(said: &[&str], again: &[&str], can: bool) {
        let mut carried = Carried::default();
        for text in said {
            carried.said(text.as_bytes());
        }
        assert_eq!(carried.obstacle().is_none(), can, "{said:?}");
        if can {
            let settings: Vec<String> = carried
                .settings()
                .map(|text| String::from_utf8_lossy(text).into_owned())
                .collect();
            assert_eq!(settings, again, "{said:?}");
        }
    }

    #[test]
    fn settings_are_said_again_and_the_newest_counts() {
        check(&["SET @a = 1", "SELECT @a"], &["SET @a = 1"], true);
        check(&["SET @a = 1", "SET @a = 2"], &["SET @a = 2"], true);
        check(
            &["SET @a = 1, @b = 2", "SET @a = 3"],
            &["SET @a = 1, @b = 2", "SET @a = 3"],
            true,
        );
        check(&["BEGIN", "SELECT 1", "COMMIT"], &[], true);
    }

    #[test]
    fn what_could_come_out_differently_cannot_be_carried() {
        check(&["SET @a = CONNECTION_ID()"], &[], false);
        check(&["SET @a = @b"], &[], false);
        check(&["CREATE TEMPORARY TABLE t (a INT)"], &[], false);
        check(&["SELECT @a := 1"], &[], false);
    }

    #[test]
    fn a_reset_forgets_all() {
        let mut carried = Carried::default();
        carried.said(b"SET @a = @b");
        carried.prepared(1, b"SELECT ?");
        carried.reset();
        assert_eq!(carried.obstacle(), None);
        assert!(carried.statements().is_empty());
    }

    #[test]
    fn what_a_session_may_hold_is_bounded() {
        let mut carried = Carried::default();
        for number in 0..=MAX_SETTINGS {
            carried.said(format!("SET @a{number} = 1").as_bytes());
        }
        assert!(carried.obstacle().is_some());
    }
}
