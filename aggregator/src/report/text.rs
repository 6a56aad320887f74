//! The report for a terminal. No line is longer than the width asked for.

use super::figures::NONE;
use super::headline::{Headline, Tone};
use super::model::Report;
use super::sections::Section;
use super::table::{Align, GAP, Table, cut, pad, width, wrap};

/// How to lay out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Cells in a line; taken as at least [`MIN_WIDTH`].
    pub width: usize,
    /// Whether to colour.
    pub colour: bool,
    /// Everything, or what fits a screen or two.
    pub is_full: bool,
}

/// Narrower than that nothing can be laid out.
pub const MIN_WIDTH: usize = 60;

/// Room for counts in a headline before a target's name is cut.
const MIN_COUNTS: usize = 18;

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
    for text in report.conclusions.iter().chain(&report.closing) {
        page.para("", text);
    }
    page.blank();
    page.headlines(&report.headlines, &report.deadline);
    for table in &report.tables {
        if layout.is_full {
            page.blank();
            page.table(table);
        } else if !table.is_detail {
            page.blank();
            page.table(&table.clone().shortened(NONE));
        }
    }
    if layout.is_full {
        page.blank();
        page.heading("How to read this");
        for text in &report.method {
            page.item(text);
        }
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

/// Lays out tables alone, with what is to be said against them.
pub fn tables(tables: &[Table], caveats: &[String], layout: Layout) -> String {
    let mut page = Page {
        out: String::new(),
        width: layout.width.max(MIN_WIDTH),
        colour: layout.colour,
    };
    for (number, table) in tables.iter().enumerate() {
        if number > 0 {
            page.blank();
        }
        page.table(table);
    }
    if !caveats.is_empty() {
        page.blank();
        page.heading("Caveats");
        for caveat in caveats {
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
        for line in wrap(text, self.width) {
            let line = self.painted(&line, "1");
            self.line(&line);
        }
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

    /// One line a target. Where that does not fit, units and the deadline move
    /// into the headings; counts that still do not fit go on below themselves.
    fn headlines(&mut self, headlines: &[Headline], deadline: &str) {
        let unitless = |text: &str| text.strip_suffix(" s").unwrap_or(text).to_owned();
        let at_deadline = format!("at {deadline}");
        let wide: Vec<[String; 5]> = headlines
            .iter()
            .map(|h| {
                [
                    h.target.clone(),
                    h.verdict.clone(),
                    h.gap.clone(),
                    h.own_timeout.clone(),
                    h.resolution.clone(),
                ]
            })
            .collect();
        let wide_heads = [
            ["", "target"],
            ["", "verdict"],
            ["felt", "gap"],
            ["own", "timeout"],
            ["resolu-", "tion"],
        ];
        let narrow: Vec<[String; 5]> = headlines
            .iter()
            .map(|h| {
                [
                    h.target.clone(),
                    h.word.clone(),
                    unitless(&h.gap),
                    unitless(&h.own_timeout),
                    h.resolution_s.clone(),
                ]
            })
            .collect();
        let narrow_heads = [
            ["", "target"],
            ["verdict", &*at_deadline],
            ["felt", "gap s"],
            ["own", "t/o s"],
            ["res.", "s"],
        ];
        let rooms = |cells: &[[String; 5]], heads: &[[&str; 2]; 5]| -> Vec<usize> {
            (0..5)
                .map(|at| {
                    let of_cells = cells.iter().map(|row| width(&row[at]));
                    let of_heads = heads[at].iter().map(|head| width(head));
                    of_cells.chain(of_heads).max().unwrap_or(0)
                })
                .collect()
        };
        let longest = headlines
            .iter()
            .map(|h| width(&h.clients))
            .max()
            .unwrap_or(0);
        let needed = |rooms: &[usize]| rooms.iter().sum::<usize>() + GAP * rooms.len();
        let wide_rooms = rooms(&wide, &wide_heads);
        let (cells, heads, mut rooms) = if needed(&wide_rooms) + longest <= self.width {
            (wide, wide_heads, wide_rooms)
        } else {
            let rooms = rooms(&narrow, &narrow_heads);
            (narrow, narrow_heads, rooms)
        };
        // A name may take up to 64 cells; the counts need some as well.
        let excess = (needed(&rooms) + MIN_COUNTS).saturating_sub(self.width);
        rooms[0] = rooms[0].saturating_sub(excess).max(8);
        let used = needed(&rooms);
        let align = |at: usize| if at < 2 { Align::Left } else { Align::Right };
        for (line, last) in [(0, ""), (1, "clients")] {
            let mut text = String::new();
            for ((at, room), head) in rooms.iter().enumerate().zip(&heads) {
                text.push_str(&pad(head[line], *room, align(at)));
                text.push_str("  ");
            }
            text.push_str(last);
            let text = self.painted(text.trim_end(), "2");
            self.line(&text);
        }
        for (headline, cells) in headlines.iter().zip(&cells) {
            let mut text = String::new();
            for (at, cell) in cells.iter().enumerate() {
                let padded = pad(&cut(cell, rooms[at]), rooms[at], align(at));
                if at == 1 {
                    text.push_str(&self.painted(&padded, tone_code(headline.tone)));
                } else {
                    text.push_str(&padded);
                }
                text.push_str("  ");
            }
            let room = self.width.saturating_sub(used).max(1);
            for (at, line) in wrap(&headline.clients, room).iter().enumerate() {
                if at == 0 {
                    text.push_str(line);
                    self.line(&text);
                } else {
                    self.line(&format!("{}{line}", " ".repeat(used)));
                }
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
            let lines = |at: usize| table.columns[at].name.lines().count();
            let height = block.iter().map(|at| lines(*at)).max().unwrap_or(1);
            for line in 0..height {
                // Short headings stand on the last line.
                let head: Vec<&str> = block
                    .iter()
                    .map(|at| {
                        let skip = height - lines(*at);
                        line.checked_sub(skip)
                            .and_then(|own| table.columns[*at].name.lines().nth(own))
                            .unwrap_or("")
                    })
                    .collect();
                self.cells(table, block, &widths, &head, last_room, "2");
            }
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
            let at_room = section
                .events
                .iter()
                .map(|e| width(&e.at))
                .max()
                .unwrap_or(0);
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
                for (at, line) in wrap(&event.text(), self.width - indent).iter().enumerate() {
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
