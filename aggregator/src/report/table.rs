//! A table of texts, and its layout in a given width.
//!
//! The first columns name the row. What does not fit beside them goes into
//! further blocks under the first, with these columns repeated, so that no line
//! is ever longer than the width. (A table crate would break cells instead.)

/// Where a cell's text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// At the left: words.
    Left,
    /// At the right: numbers.
    Right,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its heading, of one line or two.
    pub name: String,
    /// Where its cells stand.
    pub align: Align,
    /// Left out where there is little room.
    pub is_detail: bool,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Table {
    /// What it is.
    pub title: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// How many of the first columns name the row.
    pub keys: usize,
    /// Its rows, each as long as `columns`.
    pub rows: Vec<Vec<String>>,
    /// The whole table is left out where there is little room.
    pub is_detail: bool,
}

impl Table {
    /// Without rows; a name that begins with `~` is a detail, one that (then)
    /// begins with `>` is aligned to the right.
    pub fn new(title: impl Into<String>, keys: usize, columns: &[&str]) -> Self {
        Self {
            title: title.into(),
            columns: columns
                .iter()
                .map(|name| {
                    let (is_detail, name) = match name.strip_prefix('~') {
                        Some(name) => (true, name),
                        None => (false, *name),
                    };
                    let (align, name) = match name.strip_prefix('>') {
                        Some(name) => (Align::Right, name),
                        None => (Align::Left, name),
                    };
                    Column {
                        name: name.to_owned(),
                        align,
                        is_detail,
                    }
                })
                .collect(),
            keys,
            rows: Vec::new(),
            is_detail: false,
        }
    }

    /// Drops columns other than keys in which every cell says nothing.
    pub fn without_empty_columns(mut self) -> Self {
        self.keep(|table, at| !table.rows.iter().all(|row| row[at].is_empty()));
        self
    }

    /// Without details and without columns in which every cell says "nothing".
    pub fn shortened(mut self, nothing: &str) -> Self {
        self.keep(|table, at| {
            let says_something = table.rows.iter().any(|row| row[at] != nothing);
            !table.columns[at].is_detail && says_something
        });
        self
    }

    fn keep(&mut self, wanted: impl Fn(&Self, usize) -> bool) {
        for at in (self.keys..self.columns.len()).rev() {
            if !wanted(self, at) {
                self.columns.remove(at);
                for row in &mut self.rows {
                    row.remove(at);
                }
            }
        }
    }

    /// How wide each column has to be.
    pub fn widths(&self) -> Vec<usize> {
        self.columns
            .iter()
            .enumerate()
            .map(|(at, column)| {
                self.rows
                    .iter()
                    .map(|row| width(&row[at]))
                    .chain(column.name.lines().map(width))
                    .max()
                    .unwrap_or(0)
            })
            .collect()
    }

    /// Which columns stand beside each other in `limit`; the keys in each.
    pub fn blocks(&self, limit: usize) -> Vec<Vec<usize>> {
        let widths = self.widths();
        let keys: Vec<usize> = (0..self.keys).collect();
        let room_for = |block: &[usize]| {
            block.iter().map(|at| widths[*at]).sum::<usize>() + GAP * block.len().saturating_sub(1)
        };
        let mut blocks = Vec::new();
        let mut block = keys.clone();
        for at in self.keys..self.columns.len() {
            let mut wider = block.clone();
            wider.push(at);
            if room_for(&wider) > limit && block.len() > keys.len() {
                blocks.push(std::mem::replace(&mut block, keys.clone()));
            }
            block.push(at);
        }
        blocks.push(block);
        blocks
    }
}

/// Spaces between two columns.
pub const GAP: usize = 2;

/// How many cells of a terminal a text takes. Ours hold no wide characters
/// beyond what names and error texts bring in; each counts as one.
pub fn width(text: &str) -> usize {
    text.chars().count()
}

/// `text` in `room` cells.
pub fn pad(text: &str, room: usize, align: Align) -> String {
    let missing = room.saturating_sub(width(text));
    match align {
        Align::Left => format!("{text}{}", " ".repeat(missing)),
        Align::Right => format!("{}{text}", " ".repeat(missing)),
    }
}

/// Cuts `text` to `room` cells, with a mark.
pub fn cut(text: &str, room: usize) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(room.saturating_sub(1)).collect();
    short.push('…');
    short
}

/// Breaks `text` at spaces into lines of at most `room` cells; a word that is
/// longer is broken.
pub fn wrap(text: &str, room: usize) -> Vec<String> {
    let room = room.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        loop {
            let used = width(&line);
            let space = usize::from(used > 0);
            if used + space + word.len() <= room {
                if space == 1 {
                    line.push(' ');
                }
                line.extend(word);
                break;
            }
            if used > 0 {
                lines.push(std::mem::take(&mut line));
                continue;
            }
            lines.push(word.drain(..room.min(word.len())).collect());
        }
    }
    if !line.is_empty() || lines.is_empty() {
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn columns_that_do_not_fit_go_below() {
        let mut table = Table::new("t", 1, &["name", ">one", ">two", ">three"]);
        table.rows.push(vec![
            "x".repeat(10),
            "1".repeat(10),
            "2".repeat(10),
            "3".into(),
        ]);
        assert_eq!(table.blocks(80), [[0, 1, 2, 3]]);
        assert_eq!(table.blocks(24), [vec![0, 1], vec![0, 2], vec![0, 3]]);
        assert_eq!(table.blocks(1), [vec![0, 1], vec![0, 2], vec![0, 3]]);
    }

    #[test]
    fn empty_columns_are_dropped() {
        let mut table = Table::new("t", 1, &["name", "a", "b"]);
        table
            .rows
            .push(vec![String::new(), String::new(), "1".into()]);
        let table = table.without_empty_columns();
        assert_eq!(table.columns.len(), 2);
        assert_eq!(table.rows[0], ["", "1"]);
    }

    proptest! {
        #[test]
        fn wrapped_lines_fit_and_lose_nothing(text in "[a-zé ]{0,200}", room in 1usize..40) {
            let lines = wrap(&text, room);
            prop_assert!(lines.iter().all(|line| width(line) <= room));
            let kept: String = lines.concat().split_whitespace().collect();
            let all: String = text.split_whitespace().collect();
            prop_assert_eq!(kept, all);
        }
    }
}
