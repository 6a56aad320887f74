//! What outlives the sessions of a backend: tables, named locks, and what it did
//! to writes on purpose.
//!
//! A table's rows are those that were committed; a session keeps its own until
//! then. Everything stays over a restart, as on a server with durable settings,
//! unless the backend is told to misbehave: then every so many-th commit is
//! acknowledged and forgotten, or applied twice, and which ones is known.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mysql_common::constants::ColumnType;

use super::super::sql::ColumnDef;
use super::super::wire::SqlError;
use super::value::Value;

/// Bounds on what one backend may hold.
const MAX_ROWS: usize = 1 << 21;
const MAX_TABLES: usize = 1024;
const MAX_LOCKS: usize = 4096;

/// What a backend does to the writes it acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Writes {
    /// Keeps them.
    #[default]
    Kept,
    /// Forgets every so many-th commit.
    ForgetsEvery(u64),
    /// Applies every so many-th commit twice.
    DoublesEvery(u64),
}

/// Schema and table.
pub(super) type TableName = (String, String);
/// One row, in the order of the table's columns.
pub(super) type Row = Vec<Value>;

/// A table.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    pub(super) columns: Vec<ColumnDef>,
    pub(super) rows: Vec<Row>,
    next: i64,
}

impl Table {
    pub(super) fn new(columns: Vec<ColumnDef>) -> Self {
        Self {
            columns,
            rows: Vec::new(),
            next: 1,
        }
    }

    pub(super) fn position(&self, column: &str) -> Result<usize, SqlError> {
        self.columns
            .iter()
            .position(|c| c.name.eq_ignore_ascii_case(column))
            .ok_or_else(|| {
                SqlError::new(
                    1054,
                    "42S22",
                    format!("Unknown column '{column}' in 'SELECT'"),
                )
            })
    }

    pub(super) fn kind(&self, column: usize) -> ColumnType {
        if self.columns[column].is_number {
            ColumnType::MYSQL_TYPE_LONGLONG
        } else {
            ColumnType::MYSQL_TYPE_VAR_STRING
        }
    }

    /// A row of the table's types from the values of some columns.
    pub(super) fn row(&self, columns: &[String], values: Vec<Value>) -> Result<Row, SqlError> {
        let places: Vec<usize> = if columns.is_empty() {
            (0..self.columns.len()).collect()
        } else {
            columns
                .iter()
                .map(|column| self.position(column))
                .collect::<Result<_, _>>()?
        };
        if places.len() != values.len() {
            let message = "Column count doesn't match value count at row 1";
            return Err(SqlError::new(1136, "21S01", message));
        }
        let mut row = vec![Value::Null; self.columns.len()];
        for (place, value) in places.into_iter().zip(values) {
            let column = &self.columns[place];
            row[place] = match value {
                Value::Null if column.is_auto => Value::Null,
                Value::Null if column.is_not_null => {
                    let message = format!("Column '{}' cannot be null", column.name);
                    return Err(SqlError::new(1048, "23000", message));
                }
                Value::Null => Value::Null,
                value => {
                    let mut text = Vec::new();
                    value.write(&mut text);
                    if column.is_number {
                        let number = std::str::from_utf8(&text).ok().and_then(|t| t.parse().ok());
                        Value::Int(number.ok_or_else(|| {
                            let message =
                                format!("Incorrect integer value for column '{}'", column.name);
                            SqlError::new(1366, "22007", message)
                        })?)
                    } else {
                        Value::Text(text)
                    }
                }
            };
        }
        Ok(row)
    }

    /// Numbers and keeps a row.
    pub(super) fn push(&mut self, mut row: Row) -> Result<(), SqlError> {
        if self.rows.len() >= MAX_ROWS {
            return Err(SqlError::new(1114, "HY000", "The table is full"));
        }
        for (column, value) in self.columns.iter().zip(&mut row) {
            if column.is_auto && *value == Value::Null {
                *value = Value::Int(self.next);
                self.next += 1;
            }
        }
        self.rows.push(row);
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Inner {
    tables: HashMap<TableName, Table>,
    locks: HashMap<Vec<u8>, u32>,
    commits: u64,
    misdone: Vec<Vec<String>>,
}

/// See the module's description.
#[derive(Debug, Default)]
pub(crate) struct Store {
    writes: Writes,
    inner: Mutex<Inner>,
}

pub(super) fn no_such_table(name: &TableName) -> SqlError {
    let message = format!("Table '{}.{}' doesn't exist", name.0, name.1);
    SqlError::new(1146, "42S02", message)
}

impl Store {
    /// An empty one.
    pub(crate) fn new(writes: Writes) -> Self {
        Self {
            writes,
            inner: Mutex::default(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rows that were acknowledged and forgotten, or applied twice, as texts.
    pub(crate) fn misdone(&self) -> Vec<Vec<String>> {
        self.inner().misdone.clone()
    }

    pub(super) fn create(
        &self,
        name: TableName,
        columns: Vec<ColumnDef>,
        if_not_exists: bool,
    ) -> Result<(), SqlError> {
        let mut inner = self.inner();
        if inner.tables.contains_key(&name) {
            if if_not_exists {
                return Ok(());
            }
            let message = format!("Table '{}' already exists", name.1);
            return Err(SqlError::new(1050, "42S01", message));
        }
        if inner.tables.len() >= MAX_TABLES {
            return Err(SqlError::new(1114, "HY000", "There are too many tables"));
        }
        inner.tables.insert(name, Table::new(columns));
        Ok(())
    }

    pub(super) fn drop_table(&self, name: &TableName) -> bool {
        self.inner().tables.remove(name).is_some()
    }

    /// Looks at a table.
    pub(super) fn with<T>(&self, name: &TableName, look: impl FnOnce(&Table) -> T) -> Option<T> {
        self.inner().tables.get(name).map(look)
    }

    /// Commits rows, all or none; or does on purpose what it should not.
    pub(super) fn commit(&self, rows: Vec<(TableName, Row)>) -> Result<(), SqlError> {
        if rows.is_empty() {
            return Ok(());
        }
        let mut inner = self.inner();
        if let Some((name, _)) = rows
            .iter()
            .find(|(name, _)| !inner.tables.contains_key(name))
        {
            return Err(no_such_table(name));
        }
        inner.commits += 1;
        let is_turn = |every: u64| every > 0 && inner.commits.is_multiple_of(every);
        let times = match self.writes {
            Writes::ForgetsEvery(every) if is_turn(every) => 0,
            Writes::DoublesEvery(every) if is_turn(every) => 2,
            _ => 1,
        };
        for (name, row) in rows {
            if times != 1 {
                let texts = row.iter().map(|value| {
                    let mut text = Vec::new();
                    value.write(&mut text);
                    String::from_utf8_lossy(&text).into_owned()
                });
                let texts = texts.collect();
                inner.misdone.push(texts);
            }
            if let Some(table) = inner.tables.get_mut(&name) {
                for _ in 0..times {
                    table.push(row.clone())?;
                }
            }
        }
        Ok(())
    }

    /// `GET_LOCK` that does not wait.
    pub(super) fn lock(&self, name: Vec<u8>, id: u32) -> bool {
        let mut inner = self.inner();
        if inner.locks.len() >= MAX_LOCKS {
            return false;
        }
        *inner.locks.entry(name).or_insert(id) == id
    }

    pub(super) fn locked_by(&self, name: &[u8]) -> Option<u32> {
        self.inner().locks.get(name).copied()
    }

    /// Whether `id` held it.
    pub(super) fn unlock(&self, name: &[u8], id: u32) -> bool {
        let mut inner = self.inner();
        let held = inner.locks.get(name) == Some(&id);
        if held {
            inner.locks.remove(name);
        }
        held
    }

    /// A session has ended.
    pub(super) fn unlock_all(&self, id: u32) {
        self.inner().locks.retain(|_, holder| *holder != id);
    }
}
