//! Tables in a session: committed rows are everybody's, pending and temporary
//! ones its own.

use std::sync::atomic::Ordering;

use mysql_common::constants::{ColumnType, StatusFlags};

use super::super::sql::{ColumnDef, Expr, TableRef};
use super::super::wire::{Outbox, SqlError, put_lenenc};
use super::store::{Row, Table, TableName, no_such_table};
use super::value::{Value, put_binary_row, put_text_row};
use super::{MAX_PREPARED, MAX_PREPARED_BYTES, Session};

/// Bounds on what one session may hold.
const MAX_PENDING: usize = 1 << 16;
const MAX_TEMPORARY: usize = 64;

/// Columns of an answer.
pub(super) type Heads = Vec<(Vec<u8>, ColumnType)>;

impl Session<'_> {
    fn full_name(&self, table: &TableRef) -> TableName {
        let schema = match (&table.schema, &self.database) {
            (Some(schema), _) => schema.clone(),
            (None, Some(database)) => String::from_utf8_lossy(database).into_owned(),
            (None, None) => String::new(),
        };
        (schema, table.name.clone())
    }

    /// Looks at a temporary table, or at one of all.
    fn with_table<T>(
        &self,
        name: &TableName,
        look: impl FnOnce(&Table) -> Result<T, SqlError>,
    ) -> Result<T, SqlError> {
        match self.temporary.get(name) {
            Some(table) => look(table),
            None => self
                .facts
                .store
                .with(name, look)
                .unwrap_or_else(|| Err(no_such_table(name))),
        }
    }

    fn may_write(&self) -> Result<(), SqlError> {
        if self.facts.read_only.load(Ordering::SeqCst) {
            return Err(self.refuse_write(false));
        }
        Ok(())
    }

    /// Ends a transaction, if one is open.
    pub(super) fn commit(&mut self) -> Result<(), SqlError> {
        self.status.remove(StatusFlags::SERVER_STATUS_IN_TRANS);
        let rows = std::mem::take(&mut self.pending);
        if !rows.is_empty() {
            self.may_write()?;
        }
        self.facts.store.commit(rows)
    }

    pub(super) fn create_table(
        &mut self,
        table: &TableRef,
        temporary: bool,
        if_not_exists: bool,
        columns: &[ColumnDef],
    ) -> Result<(), SqlError> {
        let name = self.full_name(table);
        if !temporary {
            self.may_write()?;
            self.commit()?;
            return self
                .facts
                .store
                .create(name, columns.to_vec(), if_not_exists);
        }
        if self.temporary.contains_key(&name) {
            if if_not_exists {
                return Ok(());
            }
            let message = format!("Table '{}' already exists", name.1);
            return Err(SqlError::new(1050, "42S01", message));
        }
        if self.temporary.len() >= MAX_TEMPORARY {
            return Err(SqlError::new(1114, "HY000", "There are too many tables"));
        }
        self.temporary.insert(name, Table::new(columns.to_vec()));
        Ok(())
    }

    pub(super) fn drop_table(
        &mut self,
        table: &TableRef,
        temporary: bool,
        if_exists: bool,
    ) -> Result<(), SqlError> {
        let name = self.full_name(table);
        let dropped = if self.temporary.remove(&name).is_some() {
            true
        } else if temporary {
            false
        } else {
            self.may_write()?;
            self.commit()?;
            self.facts.store.drop_table(&name)
        };
        if dropped || if_exists {
            return Ok(());
        }
        let message = format!("Unknown table '{}.{}'", name.0, name.1);
        Err(SqlError::new(1051, "42S02", message))
    }

    pub(super) fn insert(
        &mut self,
        table: &TableRef,
        columns: &[String],
        values: &[Expr],
        params: &[Value],
    ) -> Result<(), SqlError> {
        let name = self.full_name(table);
        let is_temporary = self.temporary.contains_key(&name);
        if !is_temporary {
            self.may_write()?;
        }
        let values = values
            .iter()
            .map(|expr| Ok(self.eval(expr, params)?.0))
            .collect::<Result<Vec<_>, SqlError>>()?;
        let row = self.with_table(&name, |table| table.row(columns, values))?;
        if let Some(table) = self.temporary.get_mut(&name) {
            return table.push(row);
        }
        let autocommit = self.status.contains(StatusFlags::SERVER_STATUS_AUTOCOMMIT);
        if autocommit && !self.status.contains(StatusFlags::SERVER_STATUS_IN_TRANS) {
            return self.facts.store.commit(vec![(name, row)]);
        }
        if self.pending.len() >= MAX_PENDING {
            let message = "The transaction is too long for this server";
            return Err(SqlError::new(1206, "HY000", message));
        }
        self.status.insert(StatusFlags::SERVER_STATUS_IN_TRANS);
        self.pending.push((name, row));
        Ok(())
    }

    /// Names and types of some columns.
    pub(super) fn heads(&self, table: &TableRef, columns: &[String]) -> Result<Heads, SqlError> {
        self.with_table(&self.full_name(table), |table| {
            columns
                .iter()
                .map(|column| {
                    let place = table.position(column)?;
                    Ok((column.clone().into_bytes(), table.kind(place)))
                })
                .collect()
        })
    }

    pub(super) fn read(
        &self,
        table: &TableRef,
        columns: &[String],
        only: Option<(&str, &Expr)>,
        params: &[Value],
    ) -> Result<(Heads, Vec<Row>), SqlError> {
        let heads = self.heads(table, columns)?;
        let wanted = match only {
            Some((column, expr)) => Some((column, as_text(&self.eval(expr, params)?.0))),
            None => None,
        };
        let name = self.full_name(table);
        let own: Vec<Row> = self
            .pending
            .iter()
            .filter(|(table, _)| *table == name)
            .map(|(_, row)| row.clone())
            .collect();
        let rows = self.with_table(&name, |table| {
            let places = columns
                .iter()
                .map(|column| table.position(column))
                .collect::<Result<Vec<_>, _>>()?;
            let wanted = match wanted {
                Some((column, value)) => Some((table.position(column)?, value)),
                None => None,
            };
            Ok(table
                .rows
                .iter()
                .chain(&own)
                .filter(|row| {
                    wanted.as_ref().is_none_or(|(place, value)| {
                        value.is_some() && as_text(&row[*place]) == *value
                    })
                })
                .map(|row| places.iter().map(|place| row[*place].clone()).collect())
                .collect())
        })?;
        Ok((heads, rows))
    }

    /// `(SELECT column FROM table)`
    pub(super) fn scalar(&self, table: &TableRef, column: &str) -> Result<Value, SqlError> {
        let (_, mut rows) = self.read(table, &[column.to_owned()], None, &[])?;
        if rows.len() > 1 {
            return Err(SqlError::new(
                1242,
                "21000",
                "Subquery returns more than 1 row",
            ));
        }
        Ok(rows
            .pop()
            .and_then(|mut row| row.pop())
            .unwrap_or(Value::Null))
    }

    /// A result of any number of rows.
    pub(super) fn table(&self, heads: &Heads, rows: Vec<Row>, binary: bool, out: &mut Vec<u8>) {
        let mut answer = Outbox::new(out, 1);
        answer.packet(|out| put_lenenc(out, heads.len() as u64));
        for (name, kind) in heads {
            answer.column(name, *kind);
        }
        if !self.deprecate_eof {
            answer.eof(self.status);
        }
        for row in rows {
            let cells: Vec<(&[u8], Value)> = heads
                .iter()
                .map(|(name, _)| name.as_slice())
                .zip(row)
                .collect();
            answer.packet(|out| {
                if binary {
                    put_binary_row(out, &cells);
                } else {
                    put_text_row(out, &cells);
                }
            });
        }
        answer.end_of_rows(self.status, self.deprecate_eof);
    }

    /// `PREPARE name FROM 'text'`
    pub(super) fn prepare_named(&mut self, name: &str, text: &[u8]) -> Result<(), SqlError> {
        if text.len() > MAX_PREPARED_BYTES || self.named.len() >= MAX_PREPARED {
            let message = "Can't create more than max_prepared_stmt_count statements";
            return Err(SqlError::new(1461, "42000", message));
        }
        let parsed = Self::understand(text)?;
        let nested = matches!(
            parsed.statement,
            super::Statement::Prepare { .. }
                | super::Statement::Execute(_)
                | super::Statement::Deallocate(_)
        );
        if nested || parsed.params > 0 {
            let message = "This command is not supported in the prepared statement protocol yet";
            return Err(SqlError::new(1295, "HY000", message));
        }
        self.named.insert(name.to_owned(), parsed);
        Ok(())
    }
}

fn as_text(value: &Value) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    value.write(&mut text).then_some(text)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::store::{Store, Writes};
    use super::super::{Facts, VariablesSchema};
    use super::*;

    fn facts(writes: Writes) -> Facts {
        Facts {
            hostname: "h".into(),
            port: 4000,
            server_id: 1,
            version: "v".into(),
            user: "probe".into(),
            variables: VariablesSchema::InformationSchema,
            read_only: AtomicBool::new(false),
            store: Store::new(writes),
        }
    }

    /// The error's code, or the answer's bytes.
    fn ask(session: &mut Session<'_>, text: &str) -> Result<Vec<u8>, u16> {
        let mut out = Vec::new();
        session.handle(&[b"\x03", text.as_bytes()].concat(), &mut out);
        match out.get(4) {
            Some(0xFF) => Err(u16::from_le_bytes([out[5], out[6]])),
            _ => Ok(out),
        }
    }

    fn slots(session: &mut Session<'_>) -> Vec<String> {
        let table = TableRef {
            schema: Some("s".into()),
            name: "t".into(),
        };
        let (_, rows) = session
            .read(&table, &["slot".into()], None, &[])
            .expect("it is there");
        rows.iter()
            .map(|row| String::from_utf8(as_text(&row[0]).expect("a value")).expect("digits"))
            .collect()
    }

    const CREATE: &str = "CREATE TABLE IF NOT EXISTS s.t (id BIGINT NOT NULL AUTO_INCREMENT, \
                          run CHAR(3) NOT NULL, slot BIGINT NOT NULL) ENGINE=InnoDB";

    fn insert(slot: u64) -> String {
        format!("INSERT INTO s.t (run, slot) VALUES ('a', {slot})")
    }

    #[test]
    fn what_is_not_committed_is_nobody_else_s() {
        let facts = facts(Writes::Kept);
        let mut one = Session::new(&facts, 1, true, None);
        let mut other = Session::new(&facts, 2, true, None);
        assert_eq!(ask(&mut one, &insert(0)), Err(1146));
        ask(&mut one, CREATE).expect("made");
        ask(&mut one, CREATE).expect("there already");
        for statement in ["BEGIN", &insert(1)] {
            ask(&mut one, statement).expect("done");
        }
        assert_eq!((slots(&mut one).len(), slots(&mut other).len()), (1, 0));
        ask(&mut one, "COMMIT").expect("done");
        assert_eq!(slots(&mut other), ["1"]);
        for statement in ["BEGIN", &insert(2), "ROLLBACK", &insert(3)] {
            ask(&mut one, statement).expect("done");
        }
        assert_eq!(slots(&mut other), ["1", "3"]);
        for statement in ["BEGIN", &insert(4)] {
            ask(&mut one, statement).expect("done");
        }
        drop(one);
        assert_eq!(slots(&mut other), ["1", "3"], "a lost session rolls back");
        // A BEGIN commits what is open.
        for statement in ["BEGIN", &insert(5), "BEGIN", "ROLLBACK"] {
            ask(&mut other, statement).expect("done");
        }
        assert_eq!(slots(&mut other), ["1", "3", "5"]);
        facts.read_only.store(true, Ordering::SeqCst);
        assert_eq!(ask(&mut other, &insert(6)), Err(1290));
    }

    #[test]
    fn it_forgets_and_doubles_as_told() {
        for (writes, expect, misdone) in [
            (
                Writes::ForgetsEvery(3),
                vec!["1", "2", "4", "5"],
                vec!["3", "6"],
            ),
            (
                Writes::DoublesEvery(4),
                vec!["1", "2", "3", "4", "4", "5", "6"],
                vec!["4"],
            ),
        ] {
            let facts = facts(writes);
            let mut session = Session::new(&facts, 1, true, None);
            ask(&mut session, CREATE).expect("made");
            for slot in 1..=6 {
                for statement in ["BEGIN", &insert(slot), "COMMIT"] {
                    ask(&mut session, statement).expect("acknowledged");
                }
            }
            assert_eq!(slots(&mut session), expect);
            let told: Vec<_> = facts.store.misdone();
            let told: Vec<_> = told.iter().map(|row| row[2].as_str()).collect();
            assert_eq!(told, misdone);
        }
    }

    #[test]
    fn session_state_is_the_session_s_own() {
        let facts = facts(Writes::Kept);
        let mut one = Session::new(&facts, 1, true, None);
        let mut other = Session::new(&facts, 2, true, None);
        for statement in [
            "PREPARE p FROM 'SELECT ''x'' AS a'",
            "CREATE TEMPORARY TABLE s.c (v VARCHAR(9) NOT NULL)",
            "INSERT INTO s.c (v) VALUES ('x')",
            "DO GET_LOCK('l', 0)",
            "SET NAMES latin1",
        ] {
            ask(&mut one, statement).expect(statement);
        }
        for (statement, shows, elsewhere) in [
            ("EXECUTE p", "x", Err(1243)),
            ("SELECT (SELECT v FROM s.c)", "x", Err(1146)),
            ("SELECT CHARSET('a')", "latin1", Ok("utf8mb4")),
            ("SELECT IS_USED_LOCK('l')", "1", Ok("1")),
        ] {
            let found = ask(&mut one, statement).expect(statement);
            let has = |answer: &[u8], text: &str| {
                answer
                    .windows(text.len())
                    .any(|part| part == text.as_bytes())
            };
            assert!(has(&found, shows), "{statement}");
            match (ask(&mut other, statement), elsewhere) {
                (Ok(found), Ok(text)) => assert!(has(&found, text), "{statement}"),
                (found, expect) => assert_eq!(found.err(), expect.err(), "{statement}"),
            }
        }
        drop(one);
        assert_eq!(facts.store.locked_by(b"l"), None);
    }
}
