//! Whether two answers are the same rows, in whatever order. Pure.
//!
//! A sum over rows of a hash of each row: rows may come in another order, as
//! they may from any server that was not told one. A wrong answer that collides
//! by chance has a probability of 2^-64.

use mysql_async::{Row, Value};

/// What an answer amounts to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digest {
    /// Rows.
    pub rows: u64,
    /// Sum of the rows' hashes.
    pub sum: u64,
}

/// Fowler, Noll and Vo's FNV-1a, 64 bits.
struct Fnv(u64);

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
}

impl Digest {
    /// Adds a row.
    pub fn add(&mut self, row: &Row) {
        let mut hash = Fnv(0xCBF2_9CE4_8422_2325);
        for at in 0..row.len() {
            match row.as_ref(at) {
                Some(value) => add_value(&mut hash, value),
                None => hash.add(&[0xFE]),
            }
        }
        self.rows += 1;
        // Mixed once more: sums of plain FNV hashes of short texts are not
        // spread well.
        let mixed = (hash.0 ^ (hash.0 >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.sum = self.sum.wrapping_add(mixed ^ (mixed >> 29));
    }
}

fn add_value(hash: &mut Fnv, value: &Value) {
    match as_text(value) {
        Text::Null => hash.add(&[0xFF]),
        Text::Borrowed(bytes) => {
            hash.add(&(bytes.len() as u64).to_le_bytes());
            hash.add(bytes);
        }
        Text::Owned(text) => {
            hash.add(&(text.len() as u64).to_le_bytes());
            hash.add(text.as_bytes());
        }
    }
}

enum Text<'a> {
    Null,
    Borrowed(&'a [u8]),
    Owned(String),
}

/// A value as the text protocol would send it, so that a number is the same in
/// both protocols. (Floats and dates are not rendered as every server does:
/// answers are compared within one protocol.)
fn as_text(value: &Value) -> Text<'_> {
    match value {
        Value::NULL => Text::Null,
        Value::Bytes(bytes) => Text::Borrowed(bytes),
        Value::Int(number) => Text::Owned(number.to_string()),
        Value::UInt(number) => Text::Owned(number.to_string()),
        Value::Float(number) => Text::Owned(number.to_string()),
        Value::Double(number) => Text::Owned(number.to_string()),
        other => Text::Owned(format!("{other:?}")),
    }
}

/// A value as bytes, for the null server; none: NULL.
pub fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    match as_text(value) {
        Text::Null => None,
        Text::Borrowed(bytes) => Some(bytes.to_vec()),
        Text::Owned(text) => Some(text.into_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mysql_common::constants::ColumnType;
    use mysql_common::packets::Column;
    use mysql_common::row::new_row;

    use super::*;

    fn digest(rows: &[&[Value]]) -> Digest {
        let mut digest = Digest::default();
        for row in rows {
            let columns: Arc<[Column]> = row
                .iter()
                .map(|_| Column::new(ColumnType::MYSQL_TYPE_VAR_STRING))
                .collect();
            digest.add(&new_row(row.to_vec(), columns));
        }
        digest
    }

    fn text(text: &str) -> Value {
        Value::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn same_rows_in_any_order_and_protocol_are_the_same() {
        let one = digest(&[&[text("2"), text("music")], &[text("1"), text("books")]]);
        let two = digest(&[
            &[Value::Int(1), text("books")],
            &[Value::UInt(2), text("music")],
        ]);
        assert_eq!(one, two);
    }

    #[test]
    fn other_rows_are_not() {
        let one = digest(&[&[text("ab"), text("c")]]);
        for other in [
            digest(&[]),
            digest(&[&[text("a"), text("bc")]]),
            digest(&[&[text("ab"), Value::NULL]]),
            digest(&[&[text("ab"), text("")]]),
            digest(&[&[text("c"), text("ab")]]),
            digest(&[&[text("ab"), text("c")], &[text("ab"), text("c")]]),
        ] {
            assert_ne!(one, other);
        }
        assert_ne!(digest(&[&[text("")]]), digest(&[&[Value::NULL]]));
    }
}
