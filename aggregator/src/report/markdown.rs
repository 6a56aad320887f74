//! The report as Markdown, written into the run's folder.

use super::model::Report;
use super::sections::Section;
use super::table::{Align, Table};

/// Renders a report.
pub fn render(report: &Report) -> String {
    let mut out = format!("# {}\n\n", escape(&report.title));
    for fact in &report.facts {
        out.push_str(&format!("- {}\n", escape(fact)));
    }
    out.push('\n');
    let mut summary = Table::new(
        "",
        1,
        &[
            "target",
            "verdict",
            ">felt gap",
            ">own timeout",
            ">resolution",
            "clients",
        ],
    );
    for h in &report.headlines {
        summary.rows.push(vec![
            h.target.clone(),
            format!("**{}**", h.verdict),
            h.gap.clone(),
            h.own_timeout.clone(),
            h.resolution.clone(),
            h.clients.clone(),
        ]);
    }
    table(&summary, &mut out);
    out.push('\n');
    for text in report.conclusions.iter().chain(&report.closing) {
        out.push_str(&format!("{}\n\n", escape(text)));
    }
    out.pop();
    for one in &report.tables {
        out.push_str(&format!("\n## {}\n\n", escape(&one.title)));
        table(one, &mut out);
    }
    out.push_str("\n## How to read this\n\n");
    list(&report.method, &mut out);
    for one in &report.sections {
        section(one, &mut out);
    }
    out.push_str(&format!(
        "\n## Books, in slots\n\n{}\n",
        escape(&report.books)
    ));
    if !report.caveats.is_empty() {
        out.push_str("\n## Caveats\n\n");
        list(&report.caveats, &mut out);
    }
    out
}

fn section(section: &Section, out: &mut String) {
    out.push_str(&format!("\n## Target {}\n\n", escape(&section.target)));
    if !section.address.is_empty() {
        out.push_str(&format!("Address: {}\n\n", escape(&section.address)));
    }
    let mut events = Table::new("", 0, &[">at", ">after the fault", "what happened"]);
    for event in &section.events {
        events.rows.push(vec![
            event.at.clone(),
            event.after_fault.clone(),
            event.text(),
        ]);
    }
    if events.rows.is_empty() {
        out.push_str("Nothing happened.\n");
    } else {
        table(&events, out);
    }
    if !section.errors.rows.is_empty() {
        out.push_str("\nErrors:\n\n");
        table(&section.errors, out);
    }
    if !section.caveats.is_empty() {
        out.push('\n');
        list(&section.caveats, out);
    }
}

pub(super) fn list(items: &[String], out: &mut String) {
    for item in items {
        out.push_str(&format!("- {}\n", escape(item)));
    }
}

pub(super) fn table(table: &Table, out: &mut String) {
    let mut line = |cells: &mut dyn Iterator<Item = String>| {
        out.push('|');
        for cell in cells {
            out.push_str(&format!(" {cell} |"));
        }
        out.push('\n');
    };
    line(
        &mut table
            .columns
            .iter()
            .map(|c| escape(&c.name.replace("-\n", ""))),
    );
    line(&mut table.columns.iter().map(|c| {
        match c.align {
            Align::Left => "---",
            Align::Right => "---:",
        }
        .to_owned()
    }));
    for row in &table.rows {
        line(&mut row.iter().map(|cell| escape(cell)));
    }
}

/// Names and error texts come from outside: they must not become markup. The
/// report's own `**` stays.
pub(super) fn escape(text: &str) -> String {
    let (open, inner, close) = match text
        .strip_prefix("**")
        .and_then(|rest| rest.strip_suffix("**"))
    {
        Some(inner) => ("**", inner, "**"),
        None => ("", text, ""),
    };
    let mut safe = String::with_capacity(text.len() + 8);
    for c in inner.chars() {
        match c {
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' => {
                safe.push('\\');
                safe.push(c);
            }
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '\n' | '\r' => safe.push(' '),
            other => safe.push(other),
        }
    }
    format!("{open}{safe}{close}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_from_outside_is_text() {
        assert_eq!(escape("a|b<c>_d_"), "a\\|b&lt;c&gt;\\_d\\_");
        assert_eq!(escape("**down**"), "**down**");
    }

    #[test]
    fn a_table_has_its_alignment() {
        let mut t = Table::new("", 1, &["a", ">b"]);
        t.rows.push(vec!["x".into(), "1".into()]);
        let mut out = String::new();
        table(&t, &mut out);
        assert_eq!(out, "| a | b |\n| --- | ---: |\n| x | 1 |\n");
    }
}
