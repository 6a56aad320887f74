//! The report for a terminal. No line is longer than the width asked for.

use super::model::{Headline, Report, Section, Tone};
use super::table::{Align, GAP, Table, cut, pad, width, wrap};

/// How to lay out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Cells in a line; taken as at least [`MIN_WIDTH`].
    pub width: usize,
    /// Whether to colour.
    pub colour: bool,
}

/// Narrower than that nothing can be laid out.
pub const MIN_WIDTH: usize = 60;

/// Lays out a report.
pub fn render(report: &Report, layout: Layout) -> String {
    let mut page = Page {
        out: String::new(),
        width: layout.width.max(MIN_WIDTH),
        colour: layout.colour,
    };
    page.para("", &report.title);
    for fact in &report.facts {
        page.para("  ", fact);
    }
    page.blank();
    page.headlines(&report.headlines);
    for table in &report.tables {
        page.blank();
        page.table(table);
    }
    page.blank();
    page.heading("How to read this");
    for text in &report.method {
        page.item(text);
    }
    for section in &report.sections {
        page.section(section);
    }
    page.blank();
    page.heading("Books, in slots");
    page.para("  ", &report.books);
    if !report.caveats.is_empty() {
        page.blank();
        page.heading("Caveats");
        for caveat in &report.caveats {
            page.item(caveat);
        }
    }
    page.out
}

struct Page {
    out: String,
    width: usize,
    colour: bool,
}

impl Page {
    fn line(&mut self, text: &str) {
        self.out.push_str(text.trim_end());
        self.out.push('\n');
    }

    fn blank(&mut self) {
        self.out.push('\n');
    }

    fn painted(&self, text: &str, code: &str) -> String {
        if self.colour && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    fn heading(&mut self, text: &str) {
        let text = self.painted(text, "1");
        self.line(&text);
    }

    fn para(&mut self, indent: &str, text: &str) {
        for line in wrap(text, self.width - width(indent)) {
            self.line(&format!("{indent}{line}"));
        }
    }

    fn item(&mut self, text: &str) {
        for (at, line) in wrap(text, self.width - 4).iter().enumerate() {
            let mark = if at == 0 { "  - " } else { "    " };
            self.line(&format!("{mark}{line}"));
        }
    }

    fn headlines(&mut self, headlines: &[Headline]) {
        let names = ["target", "verdict", "felt gap", "own timeout", "resolution", "clients"];
        let cells = |h: &Headline| {
            [
                h.target.clone(),
                h.verdict.clone(),
                h.gap.clone(),
                h.own_timeout.clone(),
                h.resolution.clone(),
            ]
        };
        // Long headings on two lines leave room for the counts.
        let heads: Vec<[&str; 2]> = vec![
            ["", names[0]],
            ["", names[1]],
            ["felt", "gap"],
            ["own", "timeout"],
            ["reso-", "lution"],
        ];
        let rooms: Vec<usize> = (0..5)
            .map(|at| {
                headlines
                    .iter()
                    .map(|h| width(&cells(h)[at]))
                    .chain(heads[at].iter().map(|head| width(head)))
                    .max()
                    .unwrap_or(0)
            })
            .map(|room| room.min(self.width / 3))
            .collect();
        let align = |at: usize| if at < 2 { Align::Left } else { Align::Right };
        let used: usize = rooms.iter().sum::<usize>() + GAP * rooms.len();
        for line in 0..2 {
            let mut text = String::new();
            for (at, room) in rooms.iter().enumerate() {
                text.push_str(&pad(heads[at][line], *room, align(at)));
                text.push_str("  ");
            }
            if line == 1 {
                text.push_str(names[5]);
            }
            let text = self.painted(text.trim_end(), "2");
            self.line(&text);
        }
        for headline in headlines {
            let mut text = String::new();
            for (at, cell) in cells(headline).iter().enumerate() {
                let padded = pad(&cut(cell, rooms[at]), rooms[at], align(at));
                if at == 1 {
                    text.push_str(&self.painted(&padded, tone_code(headline.tone)));
                } else {
                    text.push_str(&padded);
                }
                text.push_str("  ");
            }
            let room = self.width.saturating_sub(used);
            if room >= width(&headline.clients) || room >= 24 {
                // Counts that do not fit go on below, under themselves.
                for (at, line) in wrap(&headline.clients, room).iter().enumerate() {
                    if at == 0 {
                        text.push_str(line);
                        self.line(&text);
                    } else {
                        self.line(&format!("{}{line}", " ".repeat(used)));
                    }
                }
            } else {
                self.line(&text);
                self.para("    ", &headline.clients);
            }
        }
    }

    fn table(&mut self, table: &Table) {
        self.heading(&table.title);
        if table.rows.is_empty() {
            self.line("  none");
            return;
        }
        let widths = table.widths();
        for (number, block) in table.blocks(self.width).iter().enumerate() {
            if number > 0 {
                self.blank();
            }
            // The last column of a block may still be too wide: it is wrapped.
            let before: usize = block[..block.len() - 1]
                .iter()
                .map(|at| widths[*at] + GAP)
                .sum();
            let last_room = self.width.saturating_sub(before).max(1);
            let head: Vec<&str> = block.iter().map(|at| &*table.columns[*at].name).collect();
            self.cells(table, block, &widths, &head, last_room, "2");
            for row in &table.rows {
                let cells: Vec<&str> = block.iter().map(|at| &*row[*at]).collect();
                self.cells(table, block, &widths, &cells, last_room, "");
            }
        }
    }

    fn cells(
        &mut self,
        table: &Table,
        block: &[usize],
        widths: &[usize],
        cells: &[&str],
        last_room: usize,
        code: &str,
    ) {
        let last = block.len() - 1;
        let mut text = String::new();
        for (at, cell) in cells[..last].iter().enumerate() {
            let column = block[at];
            text.push_str(&pad(cell, widths[column], table.columns[column].align));
            text.push_str("  ");
        }
        let indent = width(&text);
        let column = block[last];
        let room = widths[column].min(last_room);
        for (at, line) in wrap(cells[last], room).iter().enumerate() {
            let line = pad(line, room, table.columns[column].align);
            let whole = if at == 0 {
                format!("{text}{line}")
            } else {
                format!("{}{line}", " ".repeat(indent))
            };
            let whole = if code.is_empty() {
                whole
            } else {
                self.painted(whole.trim_end(), code)
            };
            self.line(&whole);
        }
    }

    fn section(&mut self, section: &Section) {
        self.blank();
        let title = if section.address.is_empty() {
            section.target.clone()
        } else {
            format!("{} at {}", section.target, section.address)
        };
        self.heading(&title);
        if section.events.is_empty() {
            self.line("  nothing happened");
        } else {
            let at_room = section.events.iter().map(|e| width(&e.at)).max().unwrap_or(0);
            let after_room = section
                .events
                .iter()
                .map(|e| width(&e.after_fault))
                .max()
                .unwrap_or(0);
            for event in &section.events {
                let mut lead = format!("  {}", pad(&event.at, at_room, Align::Right));
                if after_room > 0 {
                    lead.push_str("  ");
                    lead.push_str(&pad(&event.after_fault, after_room, Align::Right));
                }
                lead.push_str("  ");
                let indent = width(&lead);
                for (at, line) in wrap(&event.text, self.width - indent).iter().enumerate() {
                    if at == 0 {
                        self.line(&format!("{lead}{line}"));
                    } else {
                        self.line(&format!("{}{line}", " ".repeat(indent)));
                    }
                }
            }
        }
        if !section.errors.rows.is_empty() {
            self.blank();
            self.table(&section.errors);
        }
        for caveat in &section.caveats {
            self.item(caveat);
        }
    }
}

fn tone_code(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "32",
        Tone::Warning => "33",
        Tone::Bad => "31",
        Tone::Plain => "0",
    }
}
