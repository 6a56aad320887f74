//! Values, and how a row of them is written.

use std::time::Duration;

use mysql_common::constants::ColumnType;

use super::super::wire::put_text;
use super::MAX_SLEEP;

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Value {
    Null,
    Int(i64),
    Float(f64),
    Text(Vec<u8>),
}

impl Value {
    pub(super) fn column_type(&self) -> ColumnType {
        match self {
            Self::Int(_) => ColumnType::MYSQL_TYPE_LONGLONG,
            Self::Float(_) => ColumnType::MYSQL_TYPE_DOUBLE,
            Self::Null | Self::Text(_) => ColumnType::MYSQL_TYPE_VAR_STRING,
        }
    }

    /// Appends the value as text; false if it is null.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> bool {
        use std::io::Write as _;
        match self {
            Self::Null => return false,
            Self::Int(number) => write!(out, "{number}").expect("a vector takes all"),
            Self::Float(number) => write!(out, "{number}").expect("a vector takes all"),
            Self::Text(text) => out.extend_from_slice(text),
        }
        true
    }

    pub(super) fn seconds(&self) -> Duration {
        let seconds = match self {
            Self::Null => 0.0,
            Self::Int(number) => *number as f64,
            Self::Float(number) => *number,
            Self::Text(text) => String::from_utf8_lossy(text).trim().parse().unwrap_or(0.0),
        };
        Duration::try_from_secs_f64(seconds.max(0.0))
            .unwrap_or(MAX_SLEEP)
            .min(MAX_SLEEP)
    }
}

pub(super) fn put_text_row(out: &mut Vec<u8>, columns: &[(&[u8], Value)]) {
    for (_, value) in columns {
        match value {
            Value::Null => out.push(0xFB),
            Value::Text(text) => put_text(out, text),
            number => {
                // At most 25 digits or so for integers; a float can be longer
                // than 250, so its length is written afterwards.
                let mut digits = Vec::with_capacity(24);
                number.write(&mut digits);
                put_text(out, &digits);
            }
        }
    }
}

pub(super) fn put_binary_row(out: &mut Vec<u8>, columns: &[(&[u8], Value)]) {
    out.push(0);
    let bitmap = out.len();
    out.resize(bitmap + (columns.len() + 9) / 8, 0);
    for (index, (_, value)) in columns.iter().enumerate() {
        match value {
            Value::Null => out[bitmap + (index + 2) / 8] |= 1 << ((index + 2) % 8),
            Value::Int(number) => out.extend_from_slice(&number.to_le_bytes()),
            Value::Float(number) => out.extend_from_slice(&number.to_le_bytes()),
            Value::Text(text) => put_text(out, text),
        }
    }
}
