//! The little SQL the embedded backends understand: text to statement. Pure.
//!
//! Method: tokens, then recursive descent with a bounded depth. Keywords are
//! matched without case, white space and comments do not matter. What is not
//! understood is an error (1064), never a silent OK.
//!
//! What it cannot know: joins, conditions beyond one column's value, updates.
//! Tables are made, filled row by row, read and dropped; that of `items` is
//! constant.

mod items;
mod tables;
mod tokens;

pub(crate) use self::tables::{ColumnDef, TableRef};

use self::tokens::{Kind, Token, lower, tokens};

/// Nesting of expressions beyond which a text is refused.
const MAX_DEPTH: u32 = 32;

/// A statement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Statement {
    Select(Select),
    Set(Vec<Assignment>),
    Use(Vec<u8>),
    Begin,
    Commit,
    Rollback,
    Kill {
        id: u64,
        query_only: bool,
    },
    ShowGrants,
    /// Evaluates, answers OK.
    Do(Vec<Expr>),
    CreateTable {
        table: TableRef,
        temporary: bool,
        if_not_exists: bool,
        columns: Vec<ColumnDef>,
    },
    DropTable {
        table: TableRef,
        temporary: bool,
        if_exists: bool,
    },
    Insert {
        table: TableRef,
        /// Empty: all.
        columns: Vec<String>,
        values: Vec<Expr>,
    },
    /// Some columns of a table's rows.
    Read {
        table: TableRef,
        columns: Vec<String>,
        /// Only rows whose column is worth this.
        only: Option<(String, Expr)>,
    },
    /// `PREPARE name FROM 'text'`
    Prepare {
        name: String,
        text: Vec<u8>,
    },
    /// `EXECUTE name`
    Execute(String),
    /// `DEALLOCATE PREPARE name`
    Deallocate(String),
    /// `UPDATE`, `ALTER` ...; not understood.
    Write {
        ddl: bool,
    },
}

/// A select of one row, or of none (`LIMIT 0`).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Select {
    pub(crate) items: Vec<Item>,
    pub(crate) rows: bool,
}

/// One column of a select.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Item {
    pub(crate) name: Vec<u8>,
    pub(crate) expr: Expr,
}

/// An expression.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Expr {
    Null,
    Int(i64),
    Float(f64),
    Text(Vec<u8>),
    /// A `?`, numbered from 0.
    Param(usize),
    UserVariable(String),
    SystemVariable(String),
    Call(Function, Vec<Expr>),
    /// `(SELECT column FROM table)`
    Scalar(TableRef, String),
    /// `(SELECT GROUP_CONCAT(VARIABLE_VALUE ...) FROM schema.GLOBAL_VARIABLES WHERE VARIABLE_NAME IN (...))`
    GlobalVariables {
        /// `information_schema` or `performance_schema`.
        schema: String,
        /// In lower case.
        names: Vec<String>,
        separator: Vec<u8>,
    },
}

/// A function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    ConnectionId,
    Version,
    Database,
    CurrentUser,
    Concat,
    Sleep,
    Charset,
    GetLock,
    IsUsedLock,
    ReleaseLock,
}

/// One part of a `SET`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Assignment {
    User(String, Expr),
    Session(String, Expr),
    Global(String),
    /// `SET NAMES`
    Names(String),
    /// Isolation level: accepted, without effect here.
    Ignored,
}

/// A parsed text and how many `?` it has.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Parsed {
    pub(crate) statement: Statement,
    pub(crate) params: usize,
}

/// Where a text stops being understood (a byte offset).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Misunderstood(pub(crate) usize);

/// Reads one statement; a trailing `;` is allowed.
pub(crate) fn parse(text: &[u8]) -> Result<Parsed, Misunderstood> {
    let tokens = tokens(text)?;
    let mut parser = Parser {
        text,
        tokens: &tokens,
        at: 0,
        params: 0,
    };
    let statement = parser.statement()?;
    while parser.punct(b';') {}
    if parser.at < tokens.len() {
        return Err(parser.here());
    }
    Ok(Parsed {
        statement,
        params: parser.params,
    })
}

struct Parser<'a> {
    text: &'a [u8],
    tokens: &'a [Token],
    at: usize,
    params: usize,
}

type Parse<T> = Result<T, Misunderstood>;

impl Parser<'_> {
    fn here(&self) -> Misunderstood {
        Misunderstood(
            self.tokens
                .get(self.at)
                .map_or(self.text.len(), |token| token.start),
        )
    }

    fn kind(&self) -> Option<&Kind> {
        self.tokens.get(self.at).map(|token| &token.kind)
    }

    fn next(&mut self) -> Parse<Kind> {
        let kind = self.kind().cloned().ok_or(self.here())?;
        self.at += 1;
        Ok(kind)
    }

    fn punct(&mut self, wanted: u8) -> bool {
        let found = self.kind() == Some(&Kind::Punct(wanted));
        self.at += usize::from(found);
        found
    }

    fn need(&mut self, wanted: u8) -> Parse<()> {
        let here = self.here();
        self.punct(wanted).then_some(()).ok_or(here)
    }

    fn word(&mut self, wanted: &str) -> bool {
        let found = matches!(self.kind(), Some(Kind::Word(word)) if word == wanted);
        self.at += usize::from(found);
        found
    }

    fn need_word(&mut self, wanted: &str) -> Parse<()> {
        let here = self.here();
        self.word(wanted).then_some(()).ok_or(here)
    }

    /// One of the words, or none.
    fn one_of(&mut self, wanted: &[&str]) -> bool {
        wanted.iter().any(|word| self.word(word))
    }

    /// Skips to the end: for what is accepted whatever it says.
    fn skip_rest(&mut self) {
        self.at = self.tokens.len();
    }

    fn name(&mut self) -> Parse<Vec<u8>> {
        let here = self.here();
        match self.next()? {
            Kind::Word(_) => {
                let token = &self.tokens[self.at - 1];
                Ok(self.text[token.start..token.end].to_vec())
            }
            Kind::Name(name) | Kind::Text(name) => Ok(name),
            _ => Err(here),
        }
    }

    fn statement(&mut self) -> Parse<Statement> {
        let here = self.here();
        let Kind::Word(word) = self.next()? else {
            return Err(here);
        };
        match word.as_str() {
            "select" => {
                if let Some(select) = self.items() {
                    return Ok(Statement::Select(select));
                }
                match self.read()? {
                    Some(read) => Ok(read),
                    None => self.select().map(Statement::Select),
                }
            }
            "do" => self.arguments(0).map(Statement::Do),
            "prepare" => {
                let name = lower(&self.name()?);
                self.need_word("from")?;
                let text = self.need_text()?;
                Ok(Statement::Prepare { name, text })
            }
            "execute" => Ok(Statement::Execute(lower(&self.name()?))),
            "deallocate" => {
                self.need_word("prepare")?;
                Ok(Statement::Deallocate(lower(&self.name()?)))
            }
            "set" => self.set(),
            "use" => self.name().map(Statement::Use),
            "begin" => {
                self.word("work");
                Ok(Statement::Begin)
            }
            "start" => {
                self.need_word("transaction")?;
                if self.word("read") {
                    let here = self.here();
                    if !self.one_of(&["only", "write"]) {
                        return Err(here);
                    }
                }
                Ok(Statement::Begin)
            }
            "commit" => {
                self.word("work");
                Ok(Statement::Commit)
            }
            "rollback" => {
                self.word("work");
                Ok(Statement::Rollback)
            }
            "kill" => {
                self.one_of(&["hard", "soft"]);
                let query_only = self.word("query");
                self.word("connection");
                let here = self.here();
                let Kind::Number(number) = self.next()? else {
                    return Err(here);
                };
                let id = number.parse().map_err(|_| here)?;
                Ok(Statement::Kill { id, query_only })
            }
            "show" => {
                self.need_word("grants")?;
                if self.word("for") {
                    self.need_word("current_user")?;
                    if self.punct(b'(') {
                        self.need(b')')?;
                    }
                }
                Ok(Statement::ShowGrants)
            }
            "insert" | "update" | "delete" | "replace" => {
                self.kind().ok_or(here)?;
                if word == "insert"
                    && let Some(insert) = self.attempt(Self::insert)
                {
                    return Ok(insert);
                }
                self.skip_rest();
                Ok(Statement::Write { ddl: false })
            }
            "create" | "drop" | "alter" | "truncate" | "rename" => {
                self.kind().ok_or(here)?;
                let understood = match word.as_str() {
                    "create" => self.attempt(Self::create_table),
                    "drop" => self.attempt(Self::drop_table),
                    _ => None,
                };
                if let Some(statement) = understood {
                    return Ok(statement);
                }
                self.skip_rest();
                Ok(Statement::Write { ddl: true })
            }
            _ => Err(here),
        }
    }

    fn select(&mut self) -> Parse<Select> {
        let mut items = Vec::new();
        loop {
            items.push(self.item()?);
            if !self.punct(b',') {
                break;
            }
        }
        if self.word("from") {
            self.need_word("dual")?;
        }
        let mut rows = true;
        if self.word("limit") {
            let here = self.here();
            let Kind::Number(number) = self.next()? else {
                return Err(here);
            };
            rows = number.parse::<u64>().map_err(|_| here)? > 0;
        }
        Ok(Select { items, rows })
    }

    fn item(&mut self) -> Parse<Item> {
        let first = self.at;
        let expr = if matches!(self.kind(), Some(Kind::Word(word)) if word == "group_concat") {
            self.global_variables()?
        } else {
            self.expr(0)?
        };
        let spelled =
            &self.text[self.tokens[first].start..self.tokens[self.at.saturating_sub(1)].end];
        let aliased = self.word("as");
        let bare = match self.kind() {
            Some(Kind::Word(word)) => !matches!(word.as_str(), "from" | "limit"),
            Some(Kind::Name(_) | Kind::Text(_)) => true,
            _ => false,
        };
        let name = if aliased || bare {
            self.name()?
        } else {
            spelled.iter().copied().take(256).collect()
        };
        Ok(Item { name, expr })
    }

    fn expr(&mut self, depth: u32) -> Parse<Expr> {
        let here = self.here();
        if depth > MAX_DEPTH {
            return Err(here);
        }
        match self.next()? {
            Kind::Punct(b'(') => {
                let inner = if self.word("select") {
                    match self.attempt(Self::scalar) {
                        Some(scalar) => scalar,
                        None => self.global_variables()?,
                    }
                } else {
                    self.expr(depth + 1)?
                };
                self.need(b')')?;
                Ok(inner)
            }
            Kind::Punct(b'?') => {
                self.params += 1;
                Ok(Expr::Param(self.params - 1))
            }
            Kind::Punct(b'-') => match self.expr(depth + 1)? {
                Expr::Int(number) => number.checked_neg().map(Expr::Int).ok_or(here),
                Expr::Float(number) => Ok(Expr::Float(-number)),
                _ => Err(here),
            },
            Kind::Number(number) => {
                if number.contains('.') {
                    number.parse().map(Expr::Float).map_err(|_| here)
                } else {
                    number.parse().map(Expr::Int).map_err(|_| here)
                }
            }
            Kind::Text(text) => Ok(Expr::Text(text)),
            Kind::UserVariable(name) if !name.is_empty() => Ok(Expr::UserVariable(name)),
            Kind::SystemVariable(name) => {
                let name = ["global.", "session.", "local."]
                    .iter()
                    .find_map(|scope| name.strip_prefix(scope))
                    .unwrap_or(&name);
                Ok(Expr::SystemVariable(name.to_owned()))
            }
            Kind::Word(word) => self.word_expr(&word, here, depth),
            _ => Err(here),
        }
    }

    fn word_expr(&mut self, word: &str, here: Misunderstood, depth: u32) -> Parse<Expr> {
        let function = match word {
            "null" => return Ok(Expr::Null),
            "true" => return Ok(Expr::Int(1)),
            "false" => return Ok(Expr::Int(0)),
            "current_user" if self.kind() != Some(&Kind::Punct(b'(')) => {
                return Ok(Expr::Call(Function::CurrentUser, Vec::new()));
            }
            "connection_id" => Function::ConnectionId,
            "version" => Function::Version,
            "database" | "schema" => Function::Database,
            "current_user" | "user" | "session_user" | "system_user" => Function::CurrentUser,
            "concat" => Function::Concat,
            "sleep" => Function::Sleep,
            "charset" => Function::Charset,
            "get_lock" => Function::GetLock,
            "is_used_lock" => Function::IsUsedLock,
            "release_lock" => Function::ReleaseLock,
            _ => return Err(here),
        };
        self.need(b'(')?;
        let mut arguments = Vec::new();
        if !self.punct(b')') {
            arguments = self.arguments(depth + 1)?;
            self.need(b')')?;
        }
        let fits = match function {
            Function::Concat => !arguments.is_empty(),
            Function::GetLock => arguments.len() == 2,
            Function::Sleep | Function::Charset | Function::IsUsedLock | Function::ReleaseLock => {
                arguments.len() == 1
            }
            _ => arguments.is_empty(),
        };
        fits.then_some(Expr::Call(function, arguments)).ok_or(here)
    }

    /// One or more, separated by commas.
    fn arguments(&mut self, depth: u32) -> Parse<Vec<Expr>> {
        let mut arguments = Vec::new();
        loop {
            arguments.push(self.expr(depth)?);
            if !self.punct(b',') {
                return Ok(arguments);
            }
        }
    }

    /// After `SELECT`: `GROUP_CONCAT(...) FROM schema.GLOBAL_VARIABLES WHERE ...`
    fn global_variables(&mut self) -> Parse<Expr> {
        self.need_word("group_concat")?;
        self.need(b'(')?;
        self.need_word("variable_value")?;
        let mut separator = b",".to_vec();
        if self.word("order") {
            self.need_word("by")?;
            self.need_word("variable_name")?;
            self.word("asc");
        }
        if self.word("separator") {
            separator = self.need_text()?;
        }
        self.need(b')')?;
        self.need_word("from")?;
        let here = self.here();
        let schema = lower(&self.name()?);
        if schema != "information_schema" && schema != "performance_schema" {
            return Err(here);
        }
        self.need(b'.')?;
        let here = self.here();
        if lower(&self.name()?) != "global_variables" {
            return Err(here);
        }
        self.need_word("where")?;
        self.need_word("variable_name")?;
        let mut names = Vec::new();
        if self.word("in") {
            self.need(b'(')?;
            loop {
                names.push(lower(&self.need_text()?));
                if !self.punct(b',') {
                    break;
                }
            }
            self.need(b')')?;
        } else {
            self.need(b'=')?;
            names.push(lower(&self.need_text()?));
        }
        // The order is by name: the only one there is.
        names.sort();
        names.dedup();
        Ok(Expr::GlobalVariables {
            schema,
            names,
            separator,
        })
    }

    fn need_text(&mut self) -> Parse<Vec<u8>> {
        let here = self.here();
        match self.next()? {
            Kind::Text(text) => Ok(text),
            _ => Err(here),
        }
    }

    fn set(&mut self) -> Parse<Statement> {
        let mut assignments = Vec::new();
        loop {
            assignments.push(self.assignment()?);
            if !self.punct(b',') {
                break;
            }
        }
        Ok(Statement::Set(assignments))
    }

    fn assignment(&mut self) -> Parse<Assignment> {
        if self.word("names") || self.word("charset") {
            let name = lower(&self.name()?);
            if self.word("collate") {
                self.name()?;
            }
            return Ok(Assignment::Names(name));
        }
        if self.word("character") {
            self.need_word("set")?;
            return Ok(Assignment::Names(lower(&self.name()?)));
        }
        let here = self.here();
        let global = self.word("global");
        if !global {
            self.one_of(&["session", "local"]);
        }
        if self.word("transaction") {
            self.need_word("isolation")?;
            self.skip_rest();
            return Ok(Assignment::Ignored);
        }
        let target = self.next()?;
        self.punct(b':');
        self.need(b'=')?;
        match target {
            Kind::UserVariable(name) if !name.is_empty() => {
                Ok(Assignment::User(name, self.expr(0)?))
            }
            Kind::SystemVariable(name) => {
                let value = self.set_value()?;
                Ok(match name.split_once('.') {
                    Some(("global", name)) => Assignment::Global(name.to_owned()),
                    Some((_, name)) => Assignment::Session(name.to_owned(), value),
                    None => Assignment::Session(name, value),
                })
            }
            Kind::Word(name) => {
                let value = self.set_value()?;
                Ok(if global {
                    Assignment::Global(name)
                } else {
                    Assignment::Session(name, value)
                })
            }
            _ => Err(here),
        }
    }

    /// Also takes a bare word (`ON`, `DEFAULT`, `utf8mb4`).
    fn set_value(&mut self) -> Parse<Expr> {
        let here = self.at;
        match self.expr(0) {
            Ok(value) => Ok(value),
            Err(error) => {
                self.at = here;
                match self.next()? {
                    Kind::Word(word) => Ok(Expr::Text(word.into_bytes())),
                    _ => Err(error),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<Statement, usize>) {
        let found = parse(text.as_bytes())
            .map(|parsed| parsed.statement)
            .map_err(|Misunderstood(at)| at);
        assert_eq!(found, expect, "{text:?}");
    }

    fn select(items: &[(&str, Expr)]) -> Result<Statement, usize> {
        Ok(Statement::Select(Select {
            items: items
                .iter()
                .map(|(name, expr)| Item {
                    name: name.as_bytes().to_vec(),
                    expr: expr.clone(),
                })
                .collect(),
            rows: true,
        }))
    }

    #[test]
    fn selects_are_read() {
        check("SELECT 1", select(&[("1", Expr::Int(1))]));
        check(
            "select /* x */ -7 as `a b`, 'it''s\\n' b -- end",
            select(&[
                ("a b", Expr::Int(-7)),
                ("b", Expr::Text(b"it's\n".to_vec())),
            ]),
        );
        check(
            "SELECT @@session.Port, (@A);",
            select(&[
                ("@@session.Port", Expr::SystemVariable("port".into())),
                ("(@A)", Expr::UserVariable("a".into())),
            ]),
        );
        check("SELECT 1 FROM t", Err(14));
        check("SELECT 1 1", Err(9));
        check("SELECT", Err(6));
        check("SELECT 'open", Err(7));
        check("SELECT 1; SELECT 2", Err(10));
        check("", Err(0));
    }

    #[test]
    fn the_identity_is_matched_by_structure() {
        let expr = Expr::GlobalVariables {
            schema: "information_schema".into(),
            names: vec!["hostname".into(), "port".into()],
            separator: b":".to_vec(),
        };
        for text in [
            "SELECT (SELECT GROUP_CONCAT(VARIABLE_VALUE ORDER BY VARIABLE_NAME SEPARATOR ':') FROM information_schema.GLOBAL_VARIABLES WHERE VARIABLE_NAME IN ('HOSTNAME','PORT')) AS backend",
            "select\n( select group_concat ( variable_value\torder by variable_name separator \":\" )from INFORMATION_SCHEMA . global_variables where variable_name in ( 'port' , 'hostname' ) ) backend",
            "SELECT ((SELECT GROUP_CONCAT(VARIABLE_VALUE ORDER BY VARIABLE_NAME SEPARATOR ':') FROM information_schema.GLOBAL_VARIABLES WHERE VARIABLE_NAME IN ('HOSTNAME','PORT'))) AS backend",
        ] {
            check(text, select(&[("backend", expr.clone())]));
        }
    }

    #[test]
    fn sets_are_read() {
        check(
            "SET @gapscope_canary = 'x', @b := 2",
            Ok(Statement::Set(vec![
                Assignment::User("gapscope_canary".into(), Expr::Text(b"x".to_vec())),
                Assignment::User("b".into(), Expr::Int(2)),
            ])),
        );
        check(
            "SET NAMES utf8mb4 COLLATE utf8mb4_general_ci",
            Ok(Statement::Set(vec![Assignment::Names("utf8mb4".into())])),
        );
        check(
            "set session autocommit = ON, @@wait_timeout=5",
            Ok(Statement::Set(vec![
                Assignment::Session("autocommit".into(), Expr::Text(b"on".to_vec())),
                Assignment::Session("wait_timeout".into(), Expr::Int(5)),
            ])),
        );
        check("SET @x", Err(6));
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = format!("SELECT {}1{}", "(".repeat(100_000), ")".repeat(100_000));
        assert!(parse(deep.as_bytes()).is_err());
        let minus = format!("SELECT {}1", "-".repeat(100_000));
        assert!(parse(minus.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&text);
        }

        #[test]
        fn nearly_right_text_never_panics(
            parts in proptest::collection::vec(prop_oneof![
                Just("select"), Just("("), Just(")"), Just("group_concat"), Just("set"),
                Just("@a"), Just("@@x"), Just("="), Just(","), Just("'t'"), Just("1"),
                Just("as"), Just("concat"), Just("limit"), Just("from"), Just("`q`"),
                Just("-"), Just("?"), Just(";"), Just("kill"), Just("@"), Just("."), Just("'"),
            ], 0..30)
        ) {
            let _ = parse(parts.join(" ").as_bytes());
        }
    }
}
