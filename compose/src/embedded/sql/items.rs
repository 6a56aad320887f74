//! The one table there is: `gapscope_overhead`, for measuring what a statement
//! costs. Three rows that never change, as in the study that the benchmark
//! follows; only `SELECT columns FROM gapscope_overhead WHERE category = 'word'`
//! is understood.

use super::tokens::{Kind, lower};
use super::{Expr, Item, Parser, Select};

/// The table's name.
const TABLE: &str = "gapscope_overhead";
/// Its rows.
const ROWS: [(i64, &str); 3] = [(1, "books"), (2, "music"), (3, "games")];

#[derive(Clone, Copy)]
enum Field {
    Id,
    Category,
}

fn field(name: &[u8]) -> Option<Field> {
    match lower(name).as_str() {
        "id" => Some(Field::Id),
        "category" => Some(Field::Category),
        _ => None,
    }
}

impl Parser<'_> {
    /// After `SELECT`: such a statement, evaluated, or `None` with nothing taken.
    pub(super) fn items(&mut self) -> Option<Select> {
        let begin = self.at;
        let found = self.items_or_not();
        if found.is_none() {
            self.at = begin;
        }
        found
    }

    fn items_or_not(&mut self) -> Option<Select> {
        let mut columns = Vec::new();
        loop {
            let name = self.name().ok()?;
            columns.push((field(&name)?, name));
            if !self.punct(b',') {
                break;
            }
        }
        if !self.word("from") || lower(&self.name().ok()?) != TABLE || !self.word("where") {
            return None;
        }
        let compared = self.name().ok()?;
        if !matches!(field(&compared)?, Field::Category) || !self.punct(b'=') {
            return None;
        }
        let Kind::Text(wanted) = self.next().ok()? else {
            return None;
        };
        let row = ROWS
            .iter()
            .find(|(_, category)| category.as_bytes() == wanted);
        // Without a row the values still say what types the columns have.
        let (id, category) = row.unwrap_or(&ROWS[0]);
        Some(Select {
            items: columns
                .into_iter()
                .map(|(field, name)| Item {
                    name,
                    expr: match field {
                        Field::Id => Expr::Int(*id),
                        Field::Category => Expr::Text(category.as_bytes().to_vec()),
                    },
                })
                .collect(),
            rows: row.is_some(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Expr, Statement, parse};

    fn row(text: &str) -> Option<(Vec<Expr>, bool)> {
        match parse(text.as_bytes()).ok()?.statement {
            Statement::Select(select) => Some((
                select.items.into_iter().map(|item| item.expr).collect(),
                select.rows,
            )),
            _ => None,
        }
    }

    #[test]
    fn the_table_is_read_and_nothing_else_changes() {
        let music = Some((vec![Expr::Int(2), Expr::Text(b"music".to_vec())], true));
        assert_eq!(
            row("SELECT /* x */ id, category FROM gapscope_overhead WHERE category = 'music'"),
            music
        );
        assert_eq!(
            row("select ID, `category` from `gapscope_overhead` where category='music';"),
            music
        );
        assert_eq!(
            row("SELECT category FROM gapscope_overhead WHERE category = 'none'"),
            Some((vec![Expr::Text(b"books".to_vec())], false))
        );
        assert_eq!(row("SELECT id FROM other WHERE category = 'music'"), None);
        assert_eq!(row("SELECT id FROM gapscope_overhead"), None);
        assert_eq!(
            row("SELECT id, price FROM gapscope_overhead WHERE category = 'a'"),
            None
        );
        assert_eq!(row("SELECT 1"), Some((vec![Expr::Int(1)], true)));
    }
}
