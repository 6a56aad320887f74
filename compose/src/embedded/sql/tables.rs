//! The statements about tables.

use super::tokens::{Kind, lower};
use super::{Expr, Parse, Parser, Statement};

/// A table as a statement names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableRef {
    /// None: in the default database.
    pub(crate) schema: Option<String>,
    pub(crate) name: String,
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ColumnDef {
    pub(crate) name: String,
    pub(crate) is_number: bool,
    pub(crate) is_not_null: bool,
    /// Numbered by the table.
    pub(crate) is_auto: bool,
}

impl Parser<'_> {
    /// What is read, or none and nothing is consumed.
    pub(super) fn attempt<T>(&mut self, read: impl FnOnce(&mut Self) -> Parse<T>) -> Option<T> {
        let (at, params) = (self.at, self.params);
        match read(self) {
            Ok(found) => Some(found),
            Err(_) => {
                (self.at, self.params) = (at, params);
                None
            }
        }
    }

    fn table(&mut self) -> Parse<TableRef> {
        let first = self.text_name()?;
        Ok(if self.punct(b'.') {
            TableRef {
                schema: Some(first),
                name: self.text_name()?,
            }
        } else {
            TableRef {
                schema: None,
                name: first,
            }
        })
    }

    fn text_name(&mut self) -> Parse<String> {
        let here = self.here();
        if !matches!(self.kind(), Some(Kind::Word(_) | Kind::Name(_))) {
            return Err(here);
        }
        Ok(String::from_utf8_lossy(&self.name()?).into_owned())
    }

    /// After `SELECT`: columns of a table; none if it is another select.
    pub(super) fn read(&mut self) -> Parse<Option<Statement>> {
        let Some((columns, table)) = self.attempt(|parser| {
            let mut columns = vec![parser.text_name()?];
            while parser.punct(b',') {
                columns.push(parser.text_name()?);
            }
            parser.need_word("from")?;
            let here = parser.here();
            let table = parser.table()?;
            if table.schema.is_none() && table.name.eq_ignore_ascii_case("dual") {
                return Err(here);
            }
            Ok((columns, table))
        }) else {
            return Ok(None);
        };
        let only = if self.word("where") {
            let column = self.text_name()?;
            self.need(b'=')?;
            Some((column, self.expr(0)?))
        } else {
            None
        };
        Ok(Some(Statement::Read {
            table,
            columns,
            only,
        }))
    }

    /// After `(SELECT`: one column of a table.
    pub(super) fn scalar(&mut self) -> Parse<Expr> {
        let column = self.text_name()?;
        self.need_word("from")?;
        Ok(Expr::Scalar(self.table()?, column))
    }

    /// After `INSERT`.
    pub(super) fn insert(&mut self) -> Parse<Statement> {
        self.need_word("into")?;
        let table = self.table()?;
        let mut columns = Vec::new();
        if self.punct(b'(') {
            loop {
                columns.push(self.text_name()?);
                if !self.punct(b',') {
                    break;
                }
            }
            self.need(b')')?;
        }
        let here = self.here();
        if !self.one_of(&["values", "value"]) {
            return Err(here);
        }
        self.need(b'(')?;
        let values = self.arguments(0)?;
        self.need(b')')?;
        Ok(Statement::Insert {
            table,
            columns,
            values,
        })
    }

    /// After `DROP`.
    pub(super) fn drop_table(&mut self) -> Parse<Statement> {
        let temporary = self.word("temporary");
        self.need_word("table")?;
        let if_exists = self.word("if");
        if if_exists {
            self.need_word("exists")?;
        }
        Ok(Statement::DropTable {
            table: self.table()?,
            temporary,
            if_exists,
        })
    }

    /// After `CREATE`.
    pub(super) fn create_table(&mut self) -> Parse<Statement> {
        let temporary = self.word("temporary");
        self.need_word("table")?;
        let if_not_exists = self.word("if");
        if if_not_exists {
            self.need_word("not")?;
            self.need_word("exists")?;
        }
        let table = self.table()?;
        self.need(b'(')?;
        let mut columns = Vec::new();
        loop {
            columns.extend(self.column()?);
            if !self.punct(b',') {
                break;
            }
        }
        self.need(b')')?;
        // ENGINE=InnoDB and its like.
        self.skip_rest();
        Ok(Statement::CreateTable {
            table,
            temporary,
            if_not_exists,
            columns,
        })
    }

    /// A column's definition; none if it is a key.
    fn column(&mut self) -> Parse<Option<ColumnDef>> {
        const KEYS: [&str; 5] = ["key", "primary", "unique", "index", "constraint"];
        const NUMBERS: [&str; 6] = [
            "bigint",
            "int",
            "integer",
            "smallint",
            "tinyint",
            "mediumint",
        ];
        let is_key = matches!(self.kind(), Some(Kind::Word(word)) if KEYS.contains(&word.as_str()));
        let name = self.text_name()?;
        let here = self.here();
        let is_number =
            matches!(self.kind(), Some(Kind::Word(word)) if NUMBERS.contains(&word.as_str()));
        let (mut is_not_null, mut is_auto) = (false, false);
        let mut depth = 0_u32;
        let mut after_not = false;
        loop {
            match self.kind() {
                None => return Err(here),
                Some(Kind::Punct(b',' | b')')) if depth == 0 => break,
                Some(Kind::Punct(b'(')) => depth += 1,
                Some(Kind::Punct(b')')) => depth -= 1,
                Some(Kind::Word(word)) => {
                    let word = lower(word.as_bytes());
                    is_auto |= word == "auto_increment";
                    is_not_null |= after_not && word == "null";
                    after_not = word == "not";
                }
                _ => {}
            }
            self.at += 1;
        }
        Ok((!is_key).then_some(ColumnDef {
            name,
            is_number,
            is_not_null,
            is_auto,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn statement(text: &str) -> Statement {
        parse(text.as_bytes())
            .unwrap_or_else(|at| panic!("{text:?} at {}", at.0))
            .statement
    }

    #[test]
    fn a_ledger_s_statements_are_read() {
        let Statement::CreateTable {
            columns,
            if_not_exists,
            temporary,
            table,
        } = statement(
            "CREATE TABLE IF NOT EXISTS `a b`.`t` (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT \
             PRIMARY KEY, run CHAR(36) NOT NULL, slot BIGINT, KEY k (run, slot)) ENGINE=InnoDB",
        )
        else {
            panic!("a table");
        };
        assert!(if_not_exists && !temporary);
        assert_eq!(table.schema.as_deref(), Some("a b"));
        let found: Vec<_> = columns
            .iter()
            .map(|c| (c.name.as_str(), c.is_number, c.is_not_null, c.is_auto))
            .collect();
        assert_eq!(
            found,
            [
                ("id", true, true, true),
                ("run", false, true, false),
                ("slot", true, false, false)
            ]
        );
        assert!(matches!(
            statement("INSERT INTO `a`.`t` (run, slot) VALUES ('x', 7)"),
            Statement::Insert { columns, values, .. } if columns.len() == 2 && values.len() == 2
        ));
        assert!(matches!(
            statement("SELECT run, slot FROM `a`.`t` WHERE run = 'x'"),
            Statement::Read { only: Some((column, _)), .. } if column == "run"
        ));
        assert!(matches!(
            statement("DROP TEMPORARY TABLE IF EXISTS t"),
            Statement::DropTable {
                temporary: true,
                if_exists: true,
                ..
            }
        ));
        for refused in [
            "ALTER TABLE t ADD x INT",
            "CREATE VIEW v",
            "UPDATE t SET a = 1",
        ] {
            assert!(
                matches!(statement(refused), Statement::Write { .. }),
                "{refused}"
            );
        }
    }
}
