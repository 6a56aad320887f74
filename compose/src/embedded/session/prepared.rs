//! Prepared statements and their parameters.

use std::collections::HashMap;

use mysql_common::constants::ColumnType;

use super::super::sql::Parsed;
use super::super::wire::{Reader, SqlError};
use super::malformed;
use super::value::Value;

/// A prepared statement.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) parsed: Parsed,
    /// Types of the parameters, as last bound.
    pub(super) types: Vec<(u8, bool)>,
    /// Sent ahead by COM_STMT_SEND_LONG_DATA.
    pub(super) long: HashMap<usize, Vec<u8>>,
    /// Something sent ahead could not be kept: the next execute says so.
    pub(super) long_lost: bool,
}

/// Reads the parameters of an execute, after the statement's id.
pub(super) fn bind(
    prepared: &mut Prepared,
    mut reader: Reader<'_>,
) -> Result<Vec<Value>, SqlError> {
    let count = prepared.parsed.params;
    if std::mem::take(&mut prepared.long_lost) {
        let message = "A parameter sent ahead was too long or had no place";
        return Err(SqlError::new(1210, "HY000", message));
    }
    let _flags = reader.u8().ok_or_else(malformed)?;
    let _iterations: [u8; 4] = reader.array().ok_or_else(malformed)?;
    if count == 0 {
        return Ok(Vec::new());
    }
    let nulls = reader.take(count.div_ceil(8)).ok_or_else(malformed)?;
    if reader.u8().ok_or_else(malformed)? == 1 {
        let mut types = Vec::with_capacity(count.min(1024));
        for _ in 0..count {
            let [kind, flags] = reader.array().ok_or_else(malformed)?;
            types.push((kind, flags & 0x80 != 0));
        }
        prepared.types = types;
    }
    if prepared.types.len() != count {
        return Err(SqlError::new(
            1210,
            "HY000",
            "Incorrect arguments to mysqld_stmt_execute",
        ));
    }
    let mut values = Vec::with_capacity(count.min(1024));
    for (index, (kind, unsigned)) in prepared.types.iter().enumerate() {
        values.push(if let Some(long) = prepared.long.get(&index) {
            Value::Text(long.clone())
        } else if nulls[index / 8] & (1 << (index % 8)) != 0 {
            Value::Null
        } else {
            bind_one(*kind, *unsigned, &mut reader)?
        });
    }
    Ok(values)
}

fn bind_one(kind: u8, unsigned: bool, reader: &mut Reader<'_>) -> Result<Value, SqlError> {
    let kind = ColumnType::try_from(kind).map_err(|_| malformed())?;
    let value = match kind {
        ColumnType::MYSQL_TYPE_NULL => Some(Value::Null),
        ColumnType::MYSQL_TYPE_TINY => reader.array().map(|bytes| {
            Value::Int(if unsigned {
                i64::from(u8::from_le_bytes(bytes))
            } else {
                i64::from(i8::from_le_bytes(bytes))
            })
        }),
        ColumnType::MYSQL_TYPE_SHORT | ColumnType::MYSQL_TYPE_YEAR => reader.array().map(|bytes| {
            Value::Int(if unsigned {
                i64::from(u16::from_le_bytes(bytes))
            } else {
                i64::from(i16::from_le_bytes(bytes))
            })
        }),
        ColumnType::MYSQL_TYPE_LONG | ColumnType::MYSQL_TYPE_INT24 => reader.array().map(|bytes| {
            Value::Int(if unsigned {
                i64::from(u32::from_le_bytes(bytes))
            } else {
                i64::from(i32::from_le_bytes(bytes))
            })
        }),
        ColumnType::MYSQL_TYPE_LONGLONG => reader.array().map(|bytes| {
            let signed = i64::from_le_bytes(bytes);
            if unsigned && signed < 0 {
                Value::Text(u64::from_le_bytes(bytes).to_string().into_bytes())
            } else {
                Value::Int(signed)
            }
        }),
        ColumnType::MYSQL_TYPE_FLOAT => reader
            .array()
            .map(|bytes| Value::Float(f64::from(f32::from_le_bytes(bytes)))),
        ColumnType::MYSQL_TYPE_DOUBLE => reader
            .array()
            .map(|bytes| Value::Float(f64::from_le_bytes(bytes))),
        ColumnType::MYSQL_TYPE_DATE
        | ColumnType::MYSQL_TYPE_TIME
        | ColumnType::MYSQL_TYPE_DATETIME
        | ColumnType::MYSQL_TYPE_TIMESTAMP => {
            let message = "Dates and times are not supported as parameters";
            return Err(SqlError::new(1210, "HY000", message));
        }
        _ => reader.text().map(|text| Value::Text(text.to_vec())),
    };
    value.ok_or_else(malformed)
}
