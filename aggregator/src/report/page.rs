//! A page of tables: what benchmarks and comparisons are shown as, for a
//! terminal and as Markdown.

use super::markdown;
use super::table::{Table, wrap};
use super::text::{self, Layout, MIN_WIDTH};

/// What stands on it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Page {
    /// What it is.
    pub title: String,
    /// Facts, one a line.
    pub facts: Vec<String>,
    /// Its tables.
    pub tables: Vec<Table>,
    /// What the tables' words mean.
    pub method: Vec<String>,
    /// What is to be said against it.
    pub caveats: Vec<String>,
}

impl Page {
    /// For a terminal; no line is longer than the layout's width.
    pub fn text(&self, layout: Layout) -> String {
        let width = layout.width.max(MIN_WIDTH);
        let mut out = String::new();
        let item = |out: &mut String, first: &str, rest: &str, text: &str| {
            for (at, line) in wrap(text, width - first.len()).iter().enumerate() {
                let lead = if at == 0 { first } else { rest };
                out.push_str(format!("{lead}{line}").trim_end());
                out.push('\n');
            }
        };
        item(&mut out, "", "", &self.title);
        for fact in &self.facts {
            item(&mut out, "  ", "  ", fact);
        }
        if !self.tables.is_empty() {
            out.push('\n');
            out.push_str(&text::tables(&self.tables, &[], layout));
        }
        for (heading, texts) in [
            ("How to read this", &self.method),
            ("Caveats", &self.caveats),
        ] {
            if !texts.is_empty() {
                let heading = if layout.colour {
                    format!("\x1b[1m{heading}\x1b[0m")
                } else {
                    heading.to_owned()
                };
                out.push_str(&format!("\n{heading}\n"));
                for text in texts {
                    item(&mut out, "  - ", "    ", text);
                }
            }
        }
        out
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        let mut out = format!("# {}\n\n", markdown::escape(&self.title));
        markdown::list(&self.facts, &mut out);
        for one in &self.tables {
            out.push_str(&format!("\n## {}\n\n", markdown::escape(&one.title)));
            if one.rows.is_empty() {
                out.push_str("None.\n");
            } else {
                markdown::table(one, &mut out);
            }
        }
        for (heading, texts) in [
            ("How to read this", &self.method),
            ("Caveats", &self.caveats),
        ] {
            if !texts.is_empty() {
                out.push_str(&format!("\n## {heading}\n\n"));
                markdown::list(texts, &mut out);
            }
        }
        out
    }
}
