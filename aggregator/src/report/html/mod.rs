//! `report.html`: one file that opens from disk, with nothing to fetch.
//!
//! Texts, tables and still figures ([`figures`]) are written here and need no
//! script. The timeline and the latencies over time are drawn by a small script
//! of our own from columns ([`cell`]) and single samples ([`lanes`]) that the page
//! carries ([`embed`]). Every text is escaped, since names and error texts come from
//! servers; a content policy forbids the page to load anything.

pub mod cell;
mod describe;
pub mod embed;
pub mod figures;
pub mod flow;
pub mod lanes;
pub mod repeats;

use self::figures::{lane_name, percentiles, window_table, windows};
use self::lanes::{Gathered, Lane};
use super::headline::Tone;
use super::model::{self, Report, agent_clocks};
use super::plot::svg::escape;
use super::sections::Section;
use super::table::{Align, Table};
use super::{clock, clock_plot};
use crate::analyse::row::Row;
use crate::analyse::run::Analysis;

const STYLE: &str = include_str!("report.css");
const SCRIPTS: [&str; 4] = [
    include_str!("data.js"),
    include_str!("timeline.js"),
    include_str!("latency.js"),
    include_str!("page.js"),
];

/// Most figures of who went where for one target; further faults are in the
/// tables.
const MOST_FLOWS: usize = 6;

struct Page<'a> {
    out: String,
    analysis: &'a Analysis,
    gathered: &'a Gathered,
    /// The analysis' rows, each with its lane.
    lanes: Vec<(&'a Row, &'a Lane)>,
}

/// The whole page.
pub fn render(analysis: &Analysis, gathered: &Gathered) -> String {
    let report = model::report(analysis);
    let lanes: Vec<(&Row, &Lane)> = analysis
        .rows
        .iter()
        .filter_map(|(_, row)| {
            let lane = gathered.lanes.iter().find(|lane| {
                lane.agent == row.agent
                    && lane.target == row.target
                    && lane.style == row.style
                    && lane.kind == row.kind
                    && lane.interval_ns == row.interval_ns
                    && lane.clients == row.clients
            })?;
            Some((row, lane))
        })
        .collect();
    let mut page = Page {
        out: String::new(),
        analysis,
        gathered,
        lanes,
    };
    page.head(&report);
    page.summary(&report);
    page.timeline();
    for section in &report.sections {
        page.target(&report, section);
    }
    page.clocks();
    page.numbers(&report);
    page.data();
    page.out
}

impl<'a> Page<'a> {
    fn push(&mut self, text: &str) {
        self.out.push_str(text);
    }

    fn element(&mut self, name: &str, class: &str, text: &str) {
        let class = if class.is_empty() {
            String::new()
        } else {
            format!(" class=\"{class}\"")
        };
        self.push(&format!("<{name}{class}>{}</{name}>\n", escape(text)));
    }

    fn list(&mut self, class: &str, items: &[String]) {
        self.push(&format!("<ul class=\"{class}\">\n"));
        for item in items {
            self.element("li", "", item);
        }
        self.push("</ul>\n");
    }

    fn head(&mut self, report: &Report) {
        // A value that an error text cannot know beforehand.
        let nonce = self.analysis.manifest.run_id.to_string();
        self.push(&format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta \
             http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
             'unsafe-inline'; script-src 'nonce-{nonce}'; base-uri 'none'; form-action \
             'none'\">\n<meta name=\"viewport\" content=\"width=device-width, \
             initial-scale=1\">\n<title>{}</title>\n<style>\n{}{STYLE}</style>\n</head>\n<body>\n",
            escape(&report.title),
            super::plot::STYLE
        ));
        self.push("<header>\n");
        self.element(
            "h1",
            "",
            &format!(
                "{}: what the clients saw",
                self.analysis.manifest.plan.scenario
            ),
        );
        self.element("p", "soft", &report.title);
        self.list("facts", &report.facts);
        self.push("</header>\n<main>\n");
    }

    fn summary(&mut self, report: &Report) {
        self.push(
            "<div class=\"scroll\"><table class=\"headlines\">\n<thead><tr><th \
             scope=\"col\">target</th><th scope=\"col\">verdict</th><th scope=\"col\" \
             class=\"number\">felt gap</th><th scope=\"col\" class=\"number\">own timeout</th><th \
             scope=\"col\" class=\"number\">resolution</th><th \
             scope=\"col\">clients</th></tr></thead>\n<tbody>\n",
        );
        for (number, headline) in report.headlines.iter().enumerate() {
            // A sign beside the colour, for those who do not see that.
            let (tone, sign) = match headline.tone {
                Tone::Good => ("good", "✓"),
                Tone::Warning => ("warning", "!"),
                Tone::Bad => ("bad", "✗"),
                Tone::Plain => ("plain", "·"),
            };
            self.push(&format!(
                "<tr><td><a href=\"#target-{number}\">{}</a></td><td class=\"tone \
                 tone-{tone}\">{sign} {}</td><td class=\"number\">{}</td><td \
                 class=\"number\">{}</td><td class=\"number\">{}</td><td>{}</td></tr>\n",
                escape(&headline.target),
                escape(&headline.verdict),
                escape(&headline.gap),
                escape(&headline.own_timeout),
                escape(&headline.resolution),
                escape(&headline.clients)
            ));
        }
        self.push("</tbody></table></div>\n");
        self.list("conclusions", &report.conclusions);
        if let Some(closing) = &report.closing {
            self.element("p", "closing", closing);
        }
        self.caveats("Caveats of the run", &report.caveats);
        if !report.books_balance {
            self.books(report);
        }
    }

    fn caveats(&mut self, title: &str, caveats: &[String]) {
        if caveats.is_empty() {
            return;
        }
        self.push("<aside class=\"caveats\">\n");
        self.element("h3", "", title);
        self.list("", caveats);
        self.push("</aside>\n");
    }

    fn books(&mut self, report: &Report) {
        let class = if report.books_balance {
            "books"
        } else {
            "books uneven"
        };
        self.element("p", class, &format!("Books, in slots: {}", report.books));
    }

    fn timeline(&mut self) {
        self.push("<section id=\"timeline\">\n<h2>Timeline</h2>\n");
        self.push(
            "<div class=\"controls\"><button type=\"button\" id=\"zoom-in\">+ zoom \
             in</button><button type=\"button\" id=\"zoom-out\">− zoom out</button><button \
             type=\"button\" id=\"go-left\" aria-label=\"earlier\">←</button><button \
             type=\"button\" id=\"go-right\" aria-label=\"later\">→</button><button \
             type=\"button\" id=\"show-all\">all</button><span id=\"fault-buttons\" \
             class=\"controls\"></span><span id=\"extent\" class=\"soft\"></span></div>\n\
             <figure>\n<div class=\"plot\" id=\"timeline-plot\" tabindex=\"0\" \
             role=\"application\" aria-label=\"Timeline of every client: keys plus and minus \
             zoom, arrows left and right move, up and down choose a strip, comma and full stop go \
             to the bad sample before or after, f shows the next fault, Home shows all. The \
             events of each target stand in a table below.\" \
             aria-describedby=\"status\"><canvas></canvas><svg \
             aria-hidden=\"true\"></svg></div>\n<ul class=\"legend\" id=\"legend\"></ul>\n",
        );
        let probes: usize = self.lanes.iter().map(|(_, lane)| lane.probes).sum();
        let singles: usize = self.lanes.iter().map(|(_, lane)| lane.singles.len()).sum();
        let column = self.gathered.span_ns / self.gathered.columns.max(1) as i64;
        let kept = if singles == probes {
            format!("All {probes} samples can be pointed at")
        } else {
            format!(
                "{singles} of {probes} samples can be pointed at, bad ones first, then those \
                 nearest to faults and outages; the rest stands in columns of {}",
                super::figures::short(column)
            )
        };
        self.push(&format!(
            "<figcaption>One strip for each client (for several where there are many). A pixel \
             shows the worst of what it covers, and a column that holds a bad sample always shows \
             it. Bars across are faults: the line is when one was asked for, dotted lines what \
             witnesses saw (refused, cut, gone, cleared). {kept}. <span class=\"screen-only\">Point \
             at a strip for its samples; click the figure, then wheel or <kbd>+</kbd> \
             <kbd>−</kbd> zooms, drag or <kbd>←</kbd> <kbd>→</kbd> moves, <kbd>↑</kbd> \
             <kbd>↓</kbd> chooses a strip, <kbd>,</kbd> <kbd>.</kbd> goes from bad sample to bad \
             sample, <kbd>f</kbd> to the next fault, <kbd>Home</kbd> shows \
             all.</span></figcaption>\n</figure>\n"
        ));
        self.push(
            "<p class=\"status\" id=\"status\" role=\"status\" aria-live=\"polite\"></p>\n\
             <noscript><p class=\"caveats\">The timeline and the latencies over time are drawn by \
             a script of this page. Everything else is here without it.</p></noscript>\n\
             </section>\n",
        );
    }

    /// The lanes of one target, each with its name.
    fn of_target(&self, target: &str) -> Vec<(&'a Row, &'a Lane, String)> {
        self.lanes
            .iter()
            .filter(|(row, _)| row.target.as_str() == target)
            .map(|(row, lane)| (*row, *lane, lane_name(self.gathered, row)))
            .collect()
    }

    fn target(&mut self, report: &Report, section: &Section) {
        let number = report
            .headlines
            .iter()
            .position(|h| h.target == section.target)
            .unwrap_or(0);
        self.push(&format!(
            "<section class=\"target\" id=\"target-{number}\">\n<h2>{} <span \
             class=\"soft\">{}</span></h2>\n",
            escape(&section.target),
            escape(&section.address)
        ));
        self.caveats("Caveats of this target", &section.caveats);
        let rows = self.of_target(&section.target);
        self.push(&format!(
            "<h3>Latency over time</h3>\n<figure>\n<div class=\"plot\" tabindex=\"0\" \
             data-latency-of=\"{}\" role=\"application\" aria-label=\"Latencies of {} over time, \
             log axis; the same keys as the timeline. The table below has their \
             quantiles.\"><canvas></canvas><svg \
             aria-hidden=\"true\"></svg></div>\n<figcaption>Shortest to longest answered probe of \
             each pixel, by its due time; ticks at the top: probes that were not \
             answered.</figcaption>\n</figure>\n",
            escape(&section.target),
            escape(&section.target)
        ));
        self.percentiles(report, section, &rows);
        self.repetitions(&section.target);
        self.outages(&rows);
        self.flows(&section.target);
        self.push("<h3>What happened</h3>\n");
        self.events(section);
        if !section.errors.rows.is_empty() {
            self.push("<h3>Errors</h3>\n");
            self.table(&section.errors);
        }
        self.push("</section>\n");
    }

    fn percentiles(
        &mut self,
        report: &Report,
        section: &Section,
        rows: &[(&'a Row, &'a Lane, String)],
    ) {
        let named: Vec<(&Lane, String)> = rows
            .iter()
            .map(|(_, lane, name)| (*lane, name.clone()))
            .collect();
        let figures = [
            percentiles("Latency of answered probes", &named, |lane| &lane.latency),
            percentiles("Response of all due slots", &named, |lane| &lane.response),
        ];
        let drawn: Vec<String> = figures.into_iter().flatten().map(|f| f.inline()).collect();
        if drawn.is_empty() {
            return;
        }
        self.push("<figure><div class=\"pair\">\n");
        for figure in &drawn {
            self.push(&format!("<div>{figure}</div>\n"));
        }
        self.push(
            "</div><figcaption>Share of values that are at most so long; the axis counts nines. \
             Responses count from the due time, waited slots included; a line that rises to the \
             top ends in slots that were never answered.</figcaption></figure>\n",
        );
        if let Some(table) = report
            .tables
            .iter()
            .find(|t| t.title.starts_with("Latency"))
        {
            let own = Table {
                rows: table
                    .rows
                    .iter()
                    .filter(|row| {
                        let name = row[0].split('@').next().unwrap_or_default();
                        name == section.target
                    })
                    .cloned()
                    .collect(),
                ..table.clone()
            };
            self.folded("Quantiles as a table", &own);
        }
    }

    fn outages(&mut self, rows: &[(&'a Row, &'a Lane, String)]) {
        let only: Vec<&Row> = rows.iter().map(|(row, ..)| *row).collect();
        let Some((figure, left_out)) = windows(&only) else {
            return;
        };
        self.push("<h3>Outages</h3>\n<figure>\n");
        self.push(&figure.inline());
        if left_out > 0 {
            self.element(
                "figcaption",
                "",
                &format!("The longest; {left_out} shorter ones are in windows.parquet."),
            );
        }
        self.push("</figure>\n");
        self.folded("Outages as a table", &window_table(&only));
    }

    fn flows(&mut self, target: &str) {
        let own = flow::of_target(self.analysis, &self.gathered.flows, target);
        if own.is_empty() {
            return;
        }
        self.push("<h3>Who went where</h3>\n");
        for (what, found) in own.iter().take(MOST_FLOWS) {
            let figure = flow::figure(self.analysis, target, what, found).inline();
            self.push(&format!("<figure>{figure}</figure>\n"));
            self.folded("As a table", &flow::table(self.analysis, found));
        }
        if own.len() > MOST_FLOWS {
            self.element(
                "p",
                "soft",
                &format!(
                    "{} further faults: see fates.parquet",
                    own.len() - MOST_FLOWS
                ),
            );
        }
    }

    fn events(&mut self, section: &Section) {
        if section.events.is_empty() {
            self.element("p", "", "Nothing happened.");
            return;
        }
        let mut table = Table::new("", 0, &[">at", ">after the fault", "what happened"]);
        for event in &section.events {
            table.rows.push(vec![
                event.at.clone(),
                event.after_fault.clone(),
                event.text(),
            ]);
        }
        self.table(&table);
    }

    fn clocks(&mut self) {
        if !self.analysis.has_several_clocks() {
            return;
        }
        let agents = agent_clocks(self.analysis);
        self.push("<section id=\"clocks\">\n<h2>Clocks</h2>\n");
        for plot in clock_plot::plots(&self.analysis.clocks, &agents) {
            let figure = clock_plot::figure(&plot).inline();
            self.push(&format!("<figure>{figure}"));
            self.element("figcaption", "", &clock_plot::caption(&plot));
            self.push("</figure>\n");
        }
        let table = clock::epoch_table(&self.analysis.clocks, &agents);
        self.folded("Epochs as a table", &table);
        self.push("</section>\n");
    }

    fn numbers(&mut self, report: &Report) {
        self.push("<section id=\"numbers\">\n<h2>Numbers</h2>\n");
        for table in &report.tables {
            self.element("h3", "", &table.title);
            self.table(table);
        }
        self.push("<h3>How to read this</h3>\n");
        self.list("", &report.method);
        self.books(report);
        self.push("</section>\n</main>\n");
    }

    fn folded(&mut self, title: &str, table: &Table) {
        self.push("<details>");
        self.element("summary", "", title);
        self.table(table);
        self.push("</details>\n");
    }

    fn table(&mut self, table: &Table) {
        let class = |at: usize| match table.columns[at].align {
            Align::Left => "",
            Align::Right => " class=\"number\"",
        };
        let mut out = String::from("<div class=\"scroll\"><table>\n<thead><tr>");
        for (at, column) in table.columns.iter().enumerate() {
            let name = column.name.replace("-\n", "").replace('\n', " ");
            out.push_str(&format!(
                "<th scope=\"col\"{}>{}</th>",
                class(at),
                escape(&name)
            ));
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        for row in &table.rows {
            out.push_str("<tr>");
            for (at, cell) in row.iter().enumerate() {
                out.push_str(&format!("<td{}>{}</td>", class(at), escape(cell)));
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody></table></div>\n");
        self.push(&out);
    }

    fn data(&mut self) {
        let lanes: Vec<&Lane> = self.lanes.iter().map(|(_, lane)| *lane).collect();
        let run = self.run_json();
        self.push("<div class=\"tip\" id=\"tip\" role=\"tooltip\" hidden></div>\n");
        self.push("<pre id=\"check\" hidden></pre>\n");
        self.push("<script type=\"application/json\" id=\"data-run\">");
        self.push(&embed::json(&run));
        self.push("</script>\n");
        self.push(&embed::blocks(&lanes));
        let nonce = self.analysis.manifest.run_id.to_string();
        for script in SCRIPTS {
            self.push(&format!("<script nonce=\"{nonce}\">\n{script}</script>\n"));
        }
        self.push("</body>\n</html>\n");
    }
}
