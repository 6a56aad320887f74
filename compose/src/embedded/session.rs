//! One session of an embedded backend: command in, answer out. Pure: no
//! sockets, no clock; what has to be waited for is returned.
//!
//! The state is what a server keeps for a connection: default database, user
//! variables, session variables, prepared statements, an open transaction.

mod eval;
mod prepared;
mod store;
mod tables;
mod value;

pub(crate) use self::store::Store;
pub use self::store::Writes;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mysql_common::constants::{ColumnType, StatusFlags};

use self::eval::{SESSION_VARIABLES, unknown_variable};
use self::prepared::{Prepared, bind};
use self::store::{Row, Table, TableName};
use self::value::{Value, put_binary_row, put_text_row};
use super::sql::{Assignment, Parsed, Select, Statement, parse};
use super::wire::{Outbox, Reader, SqlError, put_lenenc};

/// Longest single sleep; a longer one is cut.
const MAX_SLEEP: Duration = Duration::from_secs(24 * 3600);
/// Bounds on what one session may hold.
const MAX_USER_VARIABLES: usize = 256;
const MAX_USER_VARIABLE_BYTES: usize = 64 << 10;
const MAX_PREPARED: usize = 1024;
const MAX_PREPARED_BYTES: usize = 64 << 10;
/// Longest value an expression may have.
const MAX_VALUE_BYTES: usize = 1 << 24;

/// Which table answers the question for a server's global variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VariablesSchema {
    /// `information_schema.GLOBAL_VARIABLES`; the other one answers 1146.
    #[default]
    InformationSchema,
    /// `performance_schema.global_variables`; the other one answers 1109.
    PerformanceSchema,
}

/// What all sessions of a backend share.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) hostname: String,
    pub(crate) port: u16,
    pub(crate) server_id: u32,
    pub(crate) version: String,
    pub(crate) user: String,
    pub(crate) variables: VariablesSchema,
    pub(crate) read_only: AtomicBool,
    pub(crate) store: Store,
}

/// What has to be done once a command was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Send the answer, after waiting this long (`SLEEP`).
    Answer(Duration),
    /// The command has no answer.
    Silence,
    /// End connection `id` (not this one), then send the answer.
    Kill { id: u64 },
    /// Send the answer, if any, and close this connection.
    Close,
}

/// The last text query and its parse, so that a repeated probe is parsed once.
#[derive(Debug)]
struct Known {
    text: Vec<u8>,
    parsed: Parsed,
}

/// One session.
#[derive(Debug)]
pub(crate) struct Session<'a> {
    facts: &'a Facts,
    id: u32,
    deprecate_eof: bool,
    database: Option<Vec<u8>>,
    status: StatusFlags,
    user_variables: HashMap<String, Value>,
    session_variables: HashMap<String, Value>,
    prepared: HashMap<u32, Prepared>,
    last_statement: u32,
    /// Prepared by SQL text.
    named: HashMap<String, Parsed>,
    temporary: HashMap<TableName, Table>,
    /// Rows that are not committed.
    pending: Vec<(TableName, Row)>,
    known: Option<Known>,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // What is pending is rolled back by being dropped.
        self.facts.store.unlock_all(self.id);
    }
}

fn malformed() -> SqlError {
    SqlError::new(1835, "HY000", "Malformed communication packet")
}

fn unknown_statement(id: u32, command: &str) -> SqlError {
    unknown_name(&id.to_string(), command)
}

fn unknown_name(name: &str, command: &str) -> SqlError {
    SqlError::new(
        1243,
        "HY000",
        format!("Unknown prepared statement handler ({name}) given to {command}"),
    )
}

/// Error 1047, for a command that is not understood.
pub(crate) fn unknown_command() -> SqlError {
    SqlError::new(1047, "08S01", "Unknown command")
}

impl<'a> Session<'a> {
    /// A session right after login.
    pub(crate) fn new(
        facts: &'a Facts,
        id: u32,
        deprecate_eof: bool,
        database: Option<Vec<u8>>,
    ) -> Self {
        Self {
            facts,
            id,
            deprecate_eof,
            database,
            status: StatusFlags::SERVER_STATUS_AUTOCOMMIT,
            user_variables: HashMap::new(),
            session_variables: HashMap::new(),
            prepared: HashMap::new(),
            last_statement: 0,
            named: HashMap::new(),
            temporary: HashMap::new(),
            pending: Vec::new(),
            known: None,
        }
    }

    /// Flags for an OK packet.
    pub(crate) fn status(&self) -> StatusFlags {
        self.status
    }

    /// Handles one command; appends the answer to `out`.
    pub(crate) fn handle(&mut self, command: &[u8], out: &mut Vec<u8>) -> After {
        let start = out.len();
        match self.command(command, out) {
            Ok(after) => after,
            Err(error) => {
                out.truncate(start);
                Outbox::new(out, 1).error(&error);
                After::Answer(Duration::ZERO)
            }
        }
    }

    fn command(&mut self, command: &[u8], out: &mut Vec<u8>) -> Result<After, SqlError> {
        // By number (mysql_common's `Command` has no fallible conversion that
        // covers them all): see `Command` there for the names.
        let (&code, body) = command.split_first().ok_or_else(malformed)?;
        match code {
            0x01 => return Ok(After::Close),             // COM_QUIT
            0x02 => self.database = Some(body.to_vec()), // COM_INIT_DB
            0x03 => return self.query(body, out),        // COM_QUERY
            0x0E => {}                                   // COM_PING
            0x16 => return self.prepare(body, out),      // COM_STMT_PREPARE
            0x17 => return self.execute(body, out),      // COM_STMT_EXECUTE
            0x18 => return self.long_data(body),         // COM_STMT_SEND_LONG_DATA
            0x19 => {
                // COM_STMT_CLOSE
                if let Some(id) = Reader(body).array() {
                    self.prepared.remove(&u32::from_le_bytes(id));
                }
                return Ok(After::Silence);
            }
            0x1A => {
                // COM_STMT_RESET
                let id = u32::from_le_bytes(Reader(body).array().ok_or_else(malformed)?);
                let prepared = self
                    .prepared
                    .get_mut(&id)
                    .ok_or_else(|| unknown_statement(id, "mysqld_stmt_reset"))?;
                prepared.long.clear();
                prepared.long_lost = false;
            }
            0x1F => {
                // COM_RESET_CONNECTION: all but the default database.
                self.status = StatusFlags::SERVER_STATUS_AUTOCOMMIT;
                self.user_variables.clear();
                self.session_variables.clear();
                self.prepared.clear();
                self.named.clear();
                self.temporary.clear();
                self.pending.clear();
                self.facts.store.unlock_all(self.id);
            }
            _ => return Err(unknown_command()),
        }
        Outbox::new(out, 1).ok(self.status);
        Ok(After::Answer(Duration::ZERO))
    }

    fn understand(text: &[u8]) -> Result<Parsed, SqlError> {
        parse(text).map_err(|at| {
            let near: String = String::from_utf8_lossy(&text[at.0.min(text.len())..])
                .chars()
                .take(80)
                .collect();
            SqlError::new(
                1064,
                "42000",
                format!(
                    "You have an error in your SQL syntax; this embedded server understands little: near '{near}'"
                ),
            )
        })
    }

    fn query(&mut self, text: &[u8], out: &mut Vec<u8>) -> Result<After, SqlError> {
        // Taken out while it runs, so that it can borrow the session.
        let known = match self.known.take() {
            Some(known) if known.text == text => known,
            _ => Known {
                text: text.to_vec(),
                parsed: Self::understand(text)?,
            },
        };
        if known.parsed.params > 0 {
            return Err(SqlError::new(
                1064,
                "42000",
                "`?` stands only in prepared statements",
            ));
        }
        let after = self.run(&known.parsed.statement, &[], false, out);
        if known.text.len() <= 4096 {
            self.known = Some(known);
        }
        after
    }

    fn run(
        &mut self,
        statement: &Statement,
        params: &[Value],
        binary: bool,
        out: &mut Vec<u8>,
    ) -> Result<After, SqlError> {
        match statement {
            Statement::Select(select) => return self.select(select, params, binary, out),
            Statement::ShowGrants => {
                let name = format!("Grants for {}@%", self.facts.user);
                let grant = format!("GRANT USAGE ON *.* TO `{}`@`%`", self.facts.user);
                let columns = [(name.as_bytes(), Value::Text(grant.into_bytes()))];
                self.rows(&columns, true, binary, out);
                return Ok(After::Answer(Duration::ZERO));
            }
            Statement::Set(assignments) => {
                let mut sleep = Duration::ZERO;
                for assignment in assignments {
                    sleep = sleep.saturating_add(self.assign(assignment, params)?);
                }
                Outbox::new(out, 1).ok(self.status);
                return Ok(After::Answer(sleep.min(MAX_SLEEP)));
            }
            Statement::Use(name) => self.database = Some(name.clone()),
            Statement::Begin => {
                self.commit()?;
                self.status.insert(StatusFlags::SERVER_STATUS_IN_TRANS);
            }
            Statement::Commit => self.commit()?,
            Statement::Rollback => {
                self.pending.clear();
                self.status.remove(StatusFlags::SERVER_STATUS_IN_TRANS);
            }
            Statement::Do(exprs) => {
                let mut sleep = Duration::ZERO;
                for expr in exprs {
                    self.eval_into(expr, params, &mut sleep)?;
                }
                Outbox::new(out, 1).ok(self.status);
                return Ok(After::Answer(sleep));
            }
            Statement::Prepare { name, text } => self.prepare_named(name, text)?,
            Statement::Execute(name) => {
                // Taken out while it runs, so that it can borrow the session.
                let parsed = self
                    .named
                    .remove(name)
                    .ok_or_else(|| unknown_name(name, "EXECUTE"))?;
                let result = self.run(&parsed.statement, &[], binary, out);
                self.named.insert(name.clone(), parsed);
                return result;
            }
            Statement::Deallocate(name) => {
                if self.named.remove(name).is_none() {
                    return Err(unknown_name(name, "DEALLOCATE PREPARE"));
                }
            }
            Statement::CreateTable {
                table,
                temporary,
                if_not_exists,
                columns,
            } => self.create_table(table, *temporary, *if_not_exists, columns)?,
            Statement::DropTable {
                table,
                temporary,
                if_exists,
            } => self.drop_table(table, *temporary, *if_exists)?,
            Statement::Insert {
                table,
                columns,
                values,
            } => self.insert(table, columns, values, params)?,
            Statement::Read {
                table,
                columns,
                only,
            } => {
                let only = only.as_ref().map(|(column, expr)| (column.as_str(), expr));
                let (heads, rows) = self.read(table, columns, only, params)?;
                self.table(&heads, rows, binary, out);
                return Ok(After::Answer(Duration::ZERO));
            }
            Statement::Kill { id, query_only } => {
                if *id == u64::from(self.id) {
                    let error = SqlError::new(1317, "70100", "Query execution was interrupted");
                    Outbox::new(out, 1).error(&error);
                    return Ok(if *query_only {
                        After::Answer(Duration::ZERO)
                    } else {
                        After::Close
                    });
                }
                if *query_only {
                    let message = "This server can kill connections, not the statements of others";
                    return Err(SqlError::new(1235, "42000", message));
                }
                return Ok(After::Kill { id: *id });
            }
            Statement::Write { ddl } => return Err(self.refuse_write(*ddl)),
        }
        Outbox::new(out, 1).ok(self.status);
        Ok(After::Answer(Duration::ZERO))
    }

    fn refuse_write(&self, ddl: bool) -> SqlError {
        if self.facts.read_only.load(Ordering::SeqCst) {
            SqlError::new(
                1290,
                "HY000",
                "The MySQL server is running with the --read-only option so it cannot execute this statement",
            )
        } else if ddl {
            SqlError::new(
                1142,
                "42000",
                "DDL command denied: this embedded server makes and drops tables, nothing else",
            )
        } else {
            SqlError::new(
                1146,
                "42S02",
                "Table doesn't exist: this embedded server inserts rows, nothing else",
            )
        }
    }

    /// Assigns; returns how long the value's evaluation sleeps.
    fn assign(&mut self, assignment: &Assignment, params: &[Value]) -> Result<Duration, SqlError> {
        match assignment {
            Assignment::Ignored => Ok(Duration::ZERO),
            Assignment::Names(name) => {
                const KNOWN: [&str; 6] =
                    ["utf8mb4", "utf8mb3", "utf8", "latin1", "ascii", "binary"];
                let name = match name.as_str() {
                    "default" => "utf8mb4",
                    name if KNOWN.contains(&name) => name,
                    name => {
                        let message = format!("Unknown character set: '{name}'");
                        return Err(SqlError::new(1115, "42000", message));
                    }
                };
                for variable in ["client", "connection", "results"] {
                    self.session_variables.insert(
                        format!("character_set_{variable}"),
                        Value::Text(name.as_bytes().to_vec()),
                    );
                }
                Ok(Duration::ZERO)
            }
            Assignment::Global(_) => Err(SqlError::new(
                1227,
                "42000",
                "Access denied; you need (at least one of) the SUPER privilege(s) for this operation",
            )),
            Assignment::User(name, expr) => {
                let (value, sleep) = self.eval(expr, params)?;
                let long =
                    matches!(&value, Value::Text(text) if text.len() > MAX_USER_VARIABLE_BYTES);
                if name.len() > 64 || long {
                    let message = "The user variable's name or value is too long for this server";
                    return Err(SqlError::new(1105, "HY000", message));
                }
                if self.user_variables.len() >= MAX_USER_VARIABLES
                    && !self.user_variables.contains_key(name)
                {
                    return Err(SqlError::new(
                        1038,
                        "HY001",
                        "Too many user variables in this session",
                    ));
                }
                self.user_variables.insert(name.clone(), value);
                Ok(sleep)
            }
            Assignment::Session(name, expr) => {
                let (value, sleep) = self.eval(expr, params)?;
                if name == "max_allowed_packet" {
                    let message = "SESSION variable 'max_allowed_packet' is read-only. Use SET GLOBAL to assign the value";
                    return Err(SqlError::new(1621, "HY000", message));
                }
                if !SESSION_VARIABLES.iter().any(|(known, _)| known == name) {
                    return Err(unknown_variable(name));
                }
                if name == "autocommit" {
                    let mut word = Vec::new();
                    value.write(&mut word);
                    let on = match word.to_ascii_lowercase().as_slice() {
                        b"1" | b"on" | b"default" => true,
                        b"0" | b"off" => false,
                        _ => {
                            let message = "Variable 'autocommit' can't be set to that value";
                            return Err(SqlError::new(1231, "42000", message));
                        }
                    };
                    self.status.set(StatusFlags::SERVER_STATUS_AUTOCOMMIT, on);
                    if on {
                        self.commit()?;
                    }
                    self.session_variables
                        .insert(name.clone(), Value::Int(i64::from(on)));
                } else {
                    self.session_variables.insert(name.clone(), value);
                }
                Ok(sleep)
            }
        }
    }

    fn select(
        &self,
        select: &Select,
        params: &[Value],
        binary: bool,
        out: &mut Vec<u8>,
    ) -> Result<After, SqlError> {
        let mut sleep = Duration::ZERO;
        let mut columns = Vec::with_capacity(select.items.len());
        for item in &select.items {
            let value = self.eval_into(&item.expr, params, &mut sleep)?;
            columns.push((item.name.as_slice(), value));
        }
        self.rows(&columns, select.rows, binary, out);
        Ok(After::Answer(if select.rows {
            sleep
        } else {
            Duration::ZERO
        }))
    }

    /// A result of one row or none.
    fn rows(&self, columns: &[(&[u8], Value)], row: bool, binary: bool, out: &mut Vec<u8>) {
        let mut answer = Outbox::new(out, 1);
        answer.packet(|out| put_lenenc(out, columns.len() as u64));
        for (name, value) in columns {
            answer.column(name, value.column_type());
        }
        if !self.deprecate_eof {
            answer.eof(self.status);
        }
        if row {
            answer.packet(|out| {
                if binary {
                    put_binary_row(out, columns);
                } else {
                    put_text_row(out, columns);
                }
            });
        }
        answer.end_of_rows(self.status, self.deprecate_eof);
    }

    fn prepare(&mut self, text: &[u8], out: &mut Vec<u8>) -> Result<After, SqlError> {
        if text.len() > MAX_PREPARED_BYTES {
            let message = "The prepared statement is too long for this server";
            return Err(SqlError::new(1105, "HY000", message));
        }
        let parsed = Self::understand(text)?;
        let mut columns: Vec<(Vec<u8>, ColumnType)> = Vec::new();
        match &parsed.statement {
            Statement::Select(select) => {
                // Evaluated as if all parameters were null: errors such as
                // 1146 come at once, as from a real server.
                for item in &select.items {
                    let (value, _) = self.eval(&item.expr, &[])?;
                    columns.push((item.name.clone(), value.column_type()));
                }
            }
            Statement::ShowGrants => {
                let name = format!("Grants for {}@%", self.facts.user);
                columns.push((name.into_bytes(), ColumnType::MYSQL_TYPE_VAR_STRING));
            }
            Statement::Read {
                table,
                columns: names,
                ..
            } => columns = self.heads(table, names)?,
            Statement::Kill { .. }
            | Statement::Use(_)
            | Statement::Prepare { .. }
            | Statement::Execute(_)
            | Statement::Deallocate(_) => {
                let message =
                    "This command is not supported in the prepared statement protocol yet";
                return Err(SqlError::new(1295, "HY000", message));
            }
            _ => {}
        }
        let (Ok(column_count), Ok(param_count)) =
            (u16::try_from(columns.len()), u16::try_from(parsed.params))
        else {
            return Err(SqlError::new(
                1390,
                "HY000",
                "Prepared statement contains too many placeholders",
            ));
        };
        if self.prepared.len() >= MAX_PREPARED {
            let message = "Can't create more than max_prepared_stmt_count statements";
            return Err(SqlError::new(1461, "42000", message));
        }
        self.last_statement = self.last_statement.wrapping_add(1).max(1);
        let id = self.last_statement;
        let mut answer = Outbox::new(out, 1);
        answer.packet(|out| {
            out.push(0);
            out.extend_from_slice(&id.to_le_bytes());
            out.extend_from_slice(&column_count.to_le_bytes());
            out.extend_from_slice(&param_count.to_le_bytes());
            out.extend_from_slice(&[0, 0, 0]);
        });
        if param_count > 0 {
            for _ in 0..param_count {
                answer.column(b"?", ColumnType::MYSQL_TYPE_VAR_STRING);
            }
            if !self.deprecate_eof {
                answer.eof(self.status);
            }
        }
        if column_count > 0 {
            for (name, kind) in &columns {
                answer.column(name, *kind);
            }
            if !self.deprecate_eof {
                answer.eof(self.status);
            }
        }
        self.prepared.insert(
            id,
            Prepared {
                parsed,
                types: Vec::new(),
                long: HashMap::new(),
                long_lost: false,
            },
        );
        Ok(After::Answer(Duration::ZERO))
    }

    fn execute(&mut self, body: &[u8], out: &mut Vec<u8>) -> Result<After, SqlError> {
        let mut reader = Reader(body);
        let id = u32::from_le_bytes(reader.array().ok_or_else(malformed)?);
        // Taken out while it runs, so that it can borrow the session.
        let mut prepared = self
            .prepared
            .remove(&id)
            .ok_or_else(|| unknown_statement(id, "mysqld_stmt_execute"))?;
        let result = bind(&mut prepared, reader)
            .and_then(|params| self.run(&prepared.parsed.statement, &params, true, out));
        prepared.long.clear();
        self.prepared.insert(id, prepared);
        result
    }

    fn long_data(&mut self, body: &[u8]) -> Result<After, SqlError> {
        // It has no answer: what is wrong with it shows at execute.
        let mut reader = Reader(body);
        if let (Some(id), Some(index)) = (reader.array(), reader.array())
            && let Some(prepared) = self.prepared.get_mut(&u32::from_le_bytes(id))
        {
            let index = usize::from(u16::from_le_bytes(index));
            let sent: usize = prepared.long.values().map(Vec::len).sum();
            if index < prepared.parsed.params && sent + reader.0.len() <= MAX_VALUE_BYTES {
                let value = prepared.long.entry(index).or_default();
                value.extend_from_slice(reader.0);
            } else {
                prepared.long_lost = true;
            }
        }
        Ok(After::Silence)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn facts() -> Facts {
        Facts {
            hostname: "h".into(),
            port: 4000,
            server_id: 1,
            version: "11.4.99-test".into(),
            user: "probe".into(),
            variables: VariablesSchema::InformationSchema,
            read_only: AtomicBool::new(false),
            store: Store::default(),
        }
    }

    fn answer(session: &mut Session<'_>, command: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        session.handle(command, &mut out);
        out
    }

    fn code(answer: &[u8]) -> Option<u16> {
        (answer.get(4) == Some(&0xFF)).then(|| u16::from_le_bytes([answer[5], answer[6]]))
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        let facts = facts();
        let mut session = Session::new(&facts, 1, true, None);
        let cases: [(&[u8], u16); 9] = [
            (b"", 1835),
            (b"\x42", 1047),
            (b"\x03SELEC 1", 1064),
            (b"\x03SELECT @@nonsense", 1193),
            (b"\x17\x07\0\0\0\0\x01\0\0\0", 1243),
            (b"\x1A\x07\0\0\0", 1243),
            (b"\x03SET GLOBAL x = 1", 1227),
            (b"\x03INSERT INTO t VALUES (1)", 1146),
            (b"\x03SELECT (SELECT GROUP_CONCAT(VARIABLE_VALUE) FROM performance_schema.global_variables WHERE VARIABLE_NAME IN ('PORT'))", 1146),
        ];
        for (command, expect) in cases {
            assert_eq!(
                code(&answer(&mut session, command)),
                Some(expect),
                "{command:?}"
            );
        }
        facts.read_only.store(true, Ordering::SeqCst);
        let refused = answer(&mut session, b"\x03INSERT INTO t VALUES (1)");
        assert_eq!(code(&refused), Some(1290));
    }

    #[test]
    fn long_parameters_are_kept_or_missed() {
        let facts = facts();
        let mut session = Session::new(&facts, 1, true, None);
        answer(&mut session, b"\x16SELECT ?");
        // One parameter, not null, bound as a string that was sent ahead.
        let execute = b"\x17\x01\0\0\0\0\x01\0\0\0\0\x01\xFD\0";
        assert!(answer(&mut session, b"\x18\x01\0\0\0\0\0long ").is_empty());
        assert!(answer(&mut session, b"\x18\x01\0\0\0\0\0value").is_empty());
        let row = answer(&mut session, execute);
        assert!(
            row.windows(11).any(|part| part == b"\x0Along value"),
            "{row:?}"
        );
        // There is no second parameter: the next execute says so, once.
        assert!(answer(&mut session, b"\x18\x01\0\0\0\x01\0lost").is_empty());
        assert_eq!(code(&answer(&mut session, execute)), Some(1210));
        assert_eq!(code(&answer(&mut session, b"\x1A\x01\0\0\0")), None);
        assert_eq!(
            code(&answer(&mut session, execute)),
            Some(1835),
            "nothing was sent"
        );
    }

    proptest! {
        #[test]
        fn no_command_panics(
            commands in proptest::collection::vec(
                (0_u8..0x20, proptest::collection::vec(any::<u8>(), 0..40)), 0..20),
            deprecate_eof: bool,
        ) {
            let facts = facts();
            let mut session = Session::new(&facts, 1, deprecate_eof, None);
            answer(&mut session, b"\x16SELECT ?, ?, CONCAT(?, 'x')");
            for (command, mut body) in commands {
                if command == 0x17 && body.len() > 4 {
                    body[..4].copy_from_slice(&1_u32.to_le_bytes());
                }
                body.insert(0, command);
                answer(&mut session, &body);
            }
        }
    }
}
