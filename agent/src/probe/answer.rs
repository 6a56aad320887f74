//! The one statement of a probe, and whether its answer has the right shape.

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Row, Value};

/// What one statement told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// `CONNECTION_ID()`
    pub id: u64,
    /// `VERSION()`
    pub version: String,
    /// The identity expression.
    pub backend: String,
    /// The canary column, if asked for: its value unless NULL.
    pub canary: Option<Option<String>>,
}

/// An answer, or why it is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// Of the right shape.
    Answer(Answer),
    /// Of another shape.
    WrongShape(String),
}

/// Sends a bare client's statement and reads its whole result.
pub async fn ask(conn: &mut Conn, statement: &str) -> Result<Ask, Error> {
    ask_with(conn, statement, false).await
}

/// As [`ask`], perhaps with a canary's column.
pub async fn ask_with(conn: &mut Conn, statement: &str, with_canary: bool) -> Result<Ask, Error> {
    let mut result = conn.query_iter(statement).await?;
    let rows: Vec<Row> = result.collect().await?;
    result.drop_result().await?;
    Ok(shape(rows, with_canary))
}

/// Whether the rows are what was asked for.
pub fn shape(mut rows: Vec<Row>, with_canary: bool) -> Ask {
    let expected: &[&str] = if with_canary {
        &["id", "version", "backend", "canary"]
    } else {
        &["id", "version", "backend"]
    };
    if rows.len() != 1 {
        return Ask::WrongShape(format!("{} rows where 1 is expected", rows.len()));
    }
    let row = rows.remove(0);
    let names: Vec<_> = row
        .columns_ref()
        .iter()
        .map(|column| column.name_str().into_owned())
        .collect();
    if names != expected {
        let names: String = names.join(", ").chars().take(100).collect();
        return Ask::WrongShape(format!("columns {names}"));
    }
    let mut values = row.unwrap_raw().into_iter();
    let mut next = || values.next().flatten().unwrap_or(Value::NULL);
    let (id, version, backend) = (number(&next()), text(&next()), text(&next()));
    let Some(id) = id else {
        return Ask::WrongShape("CONNECTION_ID() is not a number".to_owned());
    };
    let Some(version) = version else {
        return Ask::WrongShape("VERSION() is NULL".to_owned());
    };
    let Some(backend) = backend else {
        return Ask::WrongShape("the identity expression is NULL".to_owned());
    };
    Ask::Answer(Answer {
        id,
        version,
        backend,
        canary: with_canary.then(|| text(&next())),
    })
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).chars().take(200).collect()),
        Value::Int(number) => Some(number.to_string()),
        Value::UInt(number) => Some(number.to_string()),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Bytes(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        Value::Int(number) => u64::try_from(*number).ok(),
        Value::UInt(number) => Some(*number),
        _ => None,
    }
}
