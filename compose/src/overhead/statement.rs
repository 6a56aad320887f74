//! What is sent: the study's own kind of statement, or one from a file. Pure.

/// The table that the default statement reads.
pub const TABLE: &str = "gapscope_overhead";
/// Its rows.
pub const ROWS: [(u32, &str); 3] = [(1, "books"), (2, "music"), (3, "games")];

/// Comments that have to be tokenized, as in the study.
const COMMENTS: &str = "/* what a proxy that reads statements has to read: */ /* one */ /* two \
                        (2) */ /* three, with 'quotes' and `names` */ /* four; five? six! */";

/// Two columns of one row out of three, chosen by category, with comments.
pub fn of_table(table: &str) -> String {
    format!("SELECT id, category {COMMENTS} FROM {table} WHERE category = 'music'")
}

/// The same answer without a table, for servers on which none may be made.
pub fn without_table() -> String {
    let rows: Vec<String> = ROWS
        .iter()
        .map(|(id, category)| format!("SELECT {id} AS id, '{category}' AS category"))
        .collect();
    format!(
        "SELECT id, category {COMMENTS} FROM ({}) AS items WHERE category = 'music'",
        rows.join(" UNION ALL ")
    )
}

/// What makes the table. In memory, as in the study, unless the server has no
/// such engine.
pub fn create(table: &str, in_memory: bool) -> [String; 2] {
    let rows: Vec<String> = ROWS
        .iter()
        .map(|(id, category)| format!("({id}, '{category}')"))
        .collect();
    let engine = if in_memory { " ENGINE=MEMORY" } else { "" };
    [
        format!(
            "CREATE TABLE {table} (id INT NOT NULL PRIMARY KEY, category \
             ENUM('books', 'music', 'games') NOT NULL){engine}"
        ),
        format!(
            "INSERT INTO {table} (id, category) VALUES {}",
            rows.join(", ")
        ),
    ]
}

/// A statement without comments around it and without its `;`. Errs where it
/// could change something: only reading is measured, since every statement is
/// sent some hundred thousand times.
pub fn read_only(text: &str) -> Result<String, String> {
    let text = text.trim().trim_end_matches(';').trim_end();
    if text.is_empty() {
        return Err("it is empty".to_owned());
    }
    let words = words(text);
    let first = words.first().map(String::as_str).unwrap_or_default();
    if !matches!(first, "select" | "show" | "values") {
        return Err(format!(
            "it begins with `{first}`; only SELECT, SHOW and VALUES are measured, because each \
             is sent some hundred thousand times"
        ));
    }
    if let Some(word) = words
        .iter()
        .find(|word| matches!(word.as_str(), "into" | "update" | "share" | ";"))
    {
        return Err(format!(
            "it holds `{word}`: neither INTO, nor locks, nor several statements"
        ));
    }
    Ok(text.to_owned())
}

/// The words and semicolons outside of quotes and comments, in lower case.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut chars = text.chars().peekable();
    let mut push = |word: &mut String| {
        if !word.is_empty() {
            words.push(std::mem::take(word));
        }
    };
    while let Some(c) = chars.next() {
        match c {
            '\'' | '"' | '`' => {
                push(&mut word);
                while let Some(inner) = chars.next() {
                    if inner == '\\' && c != '`' {
                        chars.next();
                    } else if inner == c {
                        break;
                    }
                }
            }
            // Not `/*!`: a server carries out what stands in it.
            '/' if chars.peek() == Some(&'*') => {
                push(&mut word);
                chars.next();
                if chars.peek() == Some(&'!') {
                    chars.next();
                    continue;
                }
                let mut last = ' ';
                for inner in chars.by_ref() {
                    if last == '*' && inner == '/' {
                        break;
                    }
                    last = inner;
                }
            }
            '#' => {
                push(&mut word);
                chars.by_ref().find(|c| *c == '\n');
            }
            '-' if chars.peek() == Some(&'-') => {
                push(&mut word);
                chars.by_ref().find(|c| *c == '\n');
            }
            ';' => {
                push(&mut word);
                word.push(';');
                push(&mut word);
            }
            c if c.is_alphanumeric() || c == '_' => word.extend(c.to_lowercase()),
            _ => push(&mut word),
        }
    }
    push(&mut word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<&str, &str>) {
        match (read_only(text), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect),
            (Err(why), Err(expect)) => assert!(why.contains(expect), "{why}"),
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn only_reading_is_let_through() {
        check(" SELECT 1 ;\n", Ok("SELECT 1"));
        check(
            "-- why\nselect 'a;b into' from t",
            Ok("-- why\nselect 'a;b into' from t"),
        );
        check("/* x */ SHOW STATUS", Ok("/* x */ SHOW STATUS"));
        check(
            "SELECT `update` FROM t # ;\n",
            Ok("SELECT `update` FROM t #"),
        );
        check("", Err("empty"));
        check("DELETE FROM t", Err("begins with `delete`"));
        check("/*! DELETE FROM t */", Err("begins with `delete`"));
        check(
            "WITH a AS (SELECT 1) DELETE FROM t",
            Err("begins with `with`"),
        );
        check("SELECT 1; DROP TABLE t", Err("holds `;`"));
        check("SELECT a FROM t FOR UPDATE", Err("holds `update`"));
        check("SELECT a FROM t LOCK IN SHARE MODE", Err("holds `share`"));
        check(
            "SELECT a /*! INTO OUTFILE 'x' */ FROM t",
            Err("holds `into`"),
        );
        check(
            "SELECT 'it''s', \"\\\"; drop\" FROM t",
            Ok("SELECT 'it''s', \"\\\"; drop\" FROM t"),
        );
    }

    #[test]
    fn our_own_statements_read_only() {
        assert!(read_only(&of_table(TABLE)).is_ok());
        assert!(read_only(&without_table()).is_ok());
        assert!(!without_table().contains(TABLE));
    }
}
