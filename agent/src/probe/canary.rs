//! What a client with a canary sends: the statements that set a piece of session
//! state, the one statement that answers everything and shows that piece, and
//! what it must show. Pure.
//!
//! Each probe stays one round trip. The statement is the bare client's with one
//! column more, so what differs between a canary's clients and bare ones is the
//! state and nothing else.
//!
//! What it cannot know: whether state that is intact was never lost. A proxy that
//! sets it again on another connection shows exactly what was asked for, which is
//! what its clients need.

use std::sync::Arc;

use gapscope_proto::sample::Canary;

use super::identity::Identity;

/// How a canary's statement is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// As text.
    Text(Arc<str>),
    /// Prepared once by the binary protocol, executed each time.
    Prepared(Arc<str>),
}

/// What the answer must show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expect {
    /// The canary column is this.
    Text(String),
    /// As before, whatever the case.
    Word(String),
    /// The canary column is the connection's own id.
    OwnId,
    /// The server says that a transaction is open.
    InTransaction,
}

/// All that a canary's client sends over one connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// Sent in order to set the state.
    pub set: Vec<String>,
    /// Sent each time.
    pub ask: Ask,
    /// What must come.
    pub expect: Expect,
    /// How messages call the piece of state.
    pub name: &'static str,
}

impl Script {
    /// Whether the answer has the canary's column.
    pub fn has_column(&self) -> bool {
        self.expect != Expect::InTransaction
    }
}

/// Whether a canary writes to the server.
pub const fn writes(canary: Canary) -> bool {
    matches!(canary, Canary::TemporaryTable)
}

/// Why this build cannot check a canary, if it cannot.
pub const fn impossible(canary: Canary) -> Option<&'static str> {
    match canary {
        Canary::Cursor => Some("its driver does not open server-side cursors"),
        _ => None,
    }
}

/// What a client sends. `value` is unique among all clients, connections and
/// runs, and made of letters, digits and `-._`; `number` differs between the
/// clients of a target and their connections; `schema` is where the target's
/// owner allows writes. None: it cannot be checked ([`impossible`]), or it needs
/// a schema.
pub fn script(
    canary: Canary,
    identity: &Identity,
    value: &str,
    number: u32,
    schema: Option<&str>,
) -> Option<Script> {
    let bare = &identity.bare;
    let text = |column: &str| Ask::Text(format!("{bare}, {column} AS canary").into());
    let value = value.to_owned();
    Some(match canary {
        Canary::UserVariable => Script {
            set: vec![format!("SET @gapscope_canary = '{value}'")],
            ask: Ask::Text(identity.with_user_variable.clone()),
            expect: Expect::Text(value),
            name: "@gapscope_canary",
        },
        Canary::SessionVariable => {
            let zone = time_zone(number);
            Script {
                set: vec![format!("SET SESSION time_zone = '{zone}'")],
                ask: text("@@session.time_zone"),
                expect: Expect::Text(zone),
                name: "the session's time_zone",
            }
        }
        Canary::PreparedText => {
            let inner = format!("{bare}, '{value}' AS canary").replace('\'', "''");
            Script {
                set: vec![format!("PREPARE gapscope_canary FROM '{inner}'")],
                ask: Ask::Text("EXECUTE gapscope_canary".into()),
                expect: Expect::Text(value),
                name: "the prepared statement (text)",
            }
        }
        Canary::PreparedBinary => Script {
            set: Vec::new(),
            ask: Ask::Prepared(format!("{bare}, '{value}' AS canary").into()),
            expect: Expect::Text(value),
            name: "the prepared statement (binary)",
        },
        Canary::CurrentDatabase => Script {
            set: vec!["USE information_schema".to_owned()],
            ask: text("DATABASE()"),
            expect: Expect::Word("information_schema".to_owned()),
            name: "the current database",
        },
        Canary::CharacterSet => Script {
            set: vec!["SET NAMES latin1".to_owned()],
            ask: text("CHARSET('a')"),
            expect: Expect::Word("latin1".to_owned()),
            name: "the connection's character set",
        },
        Canary::TemporaryTable => {
            let schema = quoted(schema?);
            let table = format!("{schema}.gapscope_canary");
            Script {
                set: vec![
                    format!("DROP TEMPORARY TABLE IF EXISTS {table}"),
                    format!("CREATE TEMPORARY TABLE {table} (v VARCHAR(190) NOT NULL)"),
                    format!("INSERT INTO {table} (v) VALUES ('{value}')"),
                ],
                ask: text(&format!("(SELECT v FROM {table})")),
                expect: Expect::Text(value),
                name: "the temporary table",
            }
        }
        Canary::NamedLock => {
            let lock = format!("gapscope-{:016x}", hash(&value));
            Script {
                set: vec![format!("DO GET_LOCK('{lock}', 0)")],
                ask: text(&format!("IS_USED_LOCK('{lock}')")),
                expect: Expect::OwnId,
                name: "the named lock",
            }
        }
        Canary::OpenTransaction => Script {
            set: vec!["START TRANSACTION".to_owned()],
            ask: Ask::Text(bare.clone()),
            expect: Expect::InTransaction,
            name: "the open transaction",
        },
        Canary::Cursor => return None,
    })
}

/// A name between backticks.
pub fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

/// An offset that hardly any server has as its own, and that differs between
/// clients: a mixed-up session shows somebody else's.
fn time_zone(number: u32) -> String {
    let minutes = 1 + number.wrapping_mul(37) % 779;
    format!("+{:02}:{:02}", minutes / 60, minutes % 60)
}

/// FNV-1a: names that fit into 64 characters.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// What is wrong with an answer; none if it shows what was set. `found` is the
/// canary's column, `id` the connection id of the same answer, `in_transaction`
/// what the server's status says.
pub fn broken(
    script: &Script,
    found: Option<&str>,
    id: u64,
    in_transaction: bool,
) -> Option<String> {
    let (expected, right) = match &script.expect {
        Expect::Text(text) => (text.clone(), found == Some(text)),
        Expect::Word(word) => (
            word.clone(),
            found.is_some_and(|found| found.eq_ignore_ascii_case(word)),
        ),
        Expect::OwnId => (id.to_string(), found == Some(&*id.to_string())),
        Expect::InTransaction => {
            return (!in_transaction).then(|| format!("{} is not open any more", script.name));
        }
    };
    (!right).then(|| match found {
        None => format!("{} is NULL where `{expected}` was set", script.name),
        Some(found) => format!("{} is `{found}` where `{expected}` was set", script.name),
    })
}

/// Whether an error packet to the canary's own statement says that the state it
/// needs is not there: an unknown statement, no such table.
pub fn says_it_is_gone(canary: Canary, code: u16) -> bool {
    match canary {
        Canary::PreparedText | Canary::PreparedBinary => code == 1243,
        Canary::TemporaryTable => matches!(code, 1051 | 1146),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::Form;
    use super::*;

    fn of(canary: Canary) -> Option<Script> {
        let identity = Identity::default_of(Form::InformationSchema);
        script(canary, &identity, "run-1", 3, Some("we`ird"))
    }

    #[test]
    fn every_canary_has_one_statement_a_probe() {
        for canary in Canary::ALL {
            let Some(script) = of(*canary) else {
                assert!(impossible(*canary).is_some(), "{canary}");
                continue;
            };
            assert!(impossible(*canary).is_none());
            let (Ask::Text(text) | Ask::Prepared(text)) = &script.ask;
            if script.has_column() && *canary != Canary::PreparedText {
                assert!(text.ends_with(" AS canary"), "{text}");
            }
            assert!(!text.contains(';'), "{text}");
            // What pins a session behind ProxySQL is sent only where it is the
            // canary itself.
            let at = matches!(canary, Canary::UserVariable | Canary::SessionVariable);
            assert_eq!(text.contains('@'), at, "{canary}: {text}");
        }
    }

    #[test]
    fn quotes_of_the_identity_are_doubled_in_a_prepared_text() {
        let script = of(Canary::PreparedText).expect("it can be checked");
        assert!(
            script.set[0].contains("SEPARATOR '':''") && script.set[0].ends_with("canary'"),
            "{:?}",
            script.set
        );
    }

    #[test]
    fn a_temporary_table_stands_where_writes_are_allowed() {
        let script_ = of(Canary::TemporaryTable).expect("it can be checked");
        assert!(script_.set[1].starts_with("CREATE TEMPORARY TABLE `we``ird`.gapscope_canary"));
        let identity = Identity::default_of(Form::InformationSchema);
        assert_eq!(
            script(Canary::TemporaryTable, &identity, "v", 0, None),
            None
        );
    }

    #[track_caller]
    fn check(canary: Canary, found: Option<&str>, in_transaction: bool, breaks: bool) {
        let script = of(canary).expect("it can be checked");
        let broken = broken(&script, found, 9, in_transaction);
        assert_eq!(broken.is_some(), breaks, "{canary}: {broken:?}");
    }

    #[test]
    fn what_is_intact_and_what_is_broken() {
        check(Canary::UserVariable, Some("run-1"), false, false);
        check(Canary::UserVariable, Some("run-2"), false, true);
        check(Canary::UserVariable, None, false, true);
        check(Canary::SessionVariable, Some("+01:52"), false, false);
        check(Canary::SessionVariable, Some("SYSTEM"), false, true);
        check(
            Canary::CurrentDatabase,
            Some("INFORMATION_SCHEMA"),
            false,
            false,
        );
        check(Canary::CurrentDatabase, None, false, true);
        check(Canary::CharacterSet, Some("utf8mb4"), false, true);
        check(Canary::NamedLock, Some("9"), false, false);
        check(Canary::NamedLock, Some("10"), false, true);
        check(Canary::NamedLock, None, false, true);
        check(Canary::OpenTransaction, None, true, false);
        check(Canary::OpenTransaction, None, false, true);
        assert!(says_it_is_gone(Canary::PreparedBinary, 1243));
        assert!(says_it_is_gone(Canary::TemporaryTable, 1146));
        assert!(!says_it_is_gone(Canary::UserVariable, 1243));
    }

    #[test]
    fn time_zones_differ_between_clients_and_are_valid() {
        let zones: Vec<_> = (0..700).map(time_zone).collect();
        let distinct: std::collections::BTreeSet<_> = zones.iter().collect();
        assert_eq!(distinct.len(), zones.len());
        assert!(zones.iter().all(|zone| *zone != "+00:00"));
        assert!(zones.iter().all(|zone| zone.as_str() <= "+12:59"));
    }
}
