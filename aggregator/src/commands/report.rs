//! The subcommand `report`: analyses a run, prints the result, and keeps it in
//! the run's folder.

use std::path::Path;

use super::shown::{Shown, layout};
use crate::analyse::load::LoadError;
use crate::analyse::run::{Analysis, analyse_watched};
use crate::exit::Exit;
use crate::output;
use crate::overhead::store::is_overhead;
use crate::report::html::lanes::Gathered;
use crate::report::text::Layout;
use crate::report::{files, html, json, markdown, model, text};
use crate::store::RunFolder;
use crate::store::manifest::RunState;
use crate::store::reader::read_manifest;
use crate::store::stamp::steadily;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables for a terminal.
    Text,
    /// Markdown, as in report.md.
    Markdown,
    /// As in summary.json.
    Json,
}

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    shown: Shown,
    /// How to print.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Everything: all columns, latencies by part of the run, and what the words
    /// mean (as in report.md and report.html).
    #[arg(long)]
    full: bool,
    /// What makes it fail.
    #[command(flatten)]
    gates: super::gates::Args,
}

/// A run's report, ready to be printed.
#[derive(Debug)]
pub struct Reported {
    /// The analysis.
    pub analysis: Analysis,
    /// How the program should end: 4 if data was lost or nothing was tested.
    pub exit: Exit,
    /// The summary as JSON.
    pub json: String,
    /// The report as Markdown.
    pub markdown: String,
    /// It is in the run's folder, too.
    pub is_kept: bool,
}

/// Analyses a run and writes the computed files into its folder.
///
/// # Errors
/// When its tables cannot be read. Damaged files are left out, and said. A folder
/// that cannot be written is only warned about: the report can still be read.
pub fn make(folder: &RunFolder) -> anyhow::Result<Reported> {
    let (analysis, gathered) = analysed(folder.path())?;
    let exit = if analysis.is_lossy_or_untested() {
        Exit::DataLost
    } else {
        Exit::Ok
    };
    let summary = json::summary(&analysis, exit.code());
    let mut json = serde_json::to_string_pretty(&summary)?;
    json.push('\n');
    let markdown = markdown::render(&model::report(&analysis));
    let html = html::render(&analysis, &gathered);
    let kept = files::write(folder.path(), &analysis, &json, &markdown, &html);
    if let Err(error) = &kept {
        let hint = error
            .hint()
            .map_or(String::new(), |hint| format!("\nhint: {hint}"));
        output::note(format!("warning: the report is not kept: {error}{hint}"));
    }
    Ok(Reported {
        analysis,
        exit,
        json,
        markdown,
        is_kept: kept.is_ok(),
    })
}

/// The analysis of the run as it was at one moment: anew if it is closed or merged
/// meanwhile.
fn analysed(folder: &Path) -> Result<(Analysis, Gathered), LoadError> {
    let once = || -> Result<_, LoadError> {
        // A flipped bit must not become a number.
        let sound = RunFolder::open(folder)?.sound()?;
        let mut gathered = Gathered::default();
        let analysis = analyse_watched(&sound, &mut gathered)?;
        Ok((analysis, gathered))
    };
    // New parts of a run that goes on do no harm: the samples are those of one moment.
    let was_open = |(analysis, _): &(Analysis, Gathered)| {
        let state = read_manifest(folder).map(|manifest| manifest.state);
        analysis.manifest.state == RunState::Running
            && state.is_ok_and(|state| state == RunState::Running)
    };
    steadily(folder, once, was_open)
}

/// Why the program ends with 4, for people: the numbers alone do not say which of
/// them it was.
fn say_why(reported: &Reported) {
    if reported.exit == Exit::DataLost {
        output::note(format!("exit code 4: {}", why_not_ok(&reported.analysis)));
    }
}

fn why_not_ok(analysis: &Analysis) -> String {
    let books = &analysis.conservation;
    let mut why = Vec::new();
    match books.lost {
        (_, 0) => {}
        (least, most) if least == most => why.push(format!("{most} samples are lost")),
        (least, most) => why.push(format!("{least} to {most} samples are lost")),
    }
    if !books.is_balanced {
        why.push("the books do not balance".to_owned());
    }
    why.extend(
        analysis
            .caveats
            .iter()
            .filter(|caveat| matches!(caveat.code, "agent_never_began" | "unreadable"))
            .map(|caveat| caveat.text.clone()),
    );
    if analysis.is_incomplete() {
        why.push("the run is over, and an agent may hold more of it".to_owned());
    }
    let mut tested = analysis
        .rows
        .iter()
        .flat_map(|(_, row)| &row.faults)
        .map(|fault| fault.judgement.verdict.is_tested())
        .peekable();
    if tested.peek().is_some() && !tested.any(|tested| tested) {
        why.push(
            "no fault tested anything: no client was on its subject, none was measured, or it had \
             no effect that was seen"
                .to_owned(),
        );
    }
    if why.is_empty() {
        why.push("data is missing; the caveats say what".to_owned());
    }
    why.join("; ")
}

/// Analyses the run in `folder`, prints the summary for a person in the
/// terminal's width, keeps it, and says how the program should end.
///
/// # Errors
/// As [`make`], or when there is no such run.
pub fn print_folder(folder: &Path, width: Option<u16>) -> anyhow::Result<Exit> {
    let folder = RunFolder::open(folder)?;
    let reported = make(&folder)?;
    output::data(as_text(&reported.analysis, width).trim_end());
    say_why(&reported);
    Ok(reported.exit)
}

/// The text with everything in it, in `width` columns, or the terminal's.
pub fn as_full_text(analysis: &Analysis, width: Option<u16>) -> String {
    let layout = Layout {
        is_full: true,
        ..layout(width)
    };
    text::render(&model::report(analysis), layout)
}

/// The text in `width` columns, or the terminal's.
pub fn as_text(analysis: &Analysis, width: Option<u16>) -> String {
    text::render(&model::report(analysis), layout(width))
}

/// Carries it out.
///
/// # Errors
/// When there is no such run, or it cannot be read.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    let path = args.shown.path()?;
    if is_overhead(&path) {
        let width = args.shown.width();
        return super::overhead::report(&path, args.format, width, Some(&args.gates));
    }
    let folder = RunFolder::open(&path)?;
    let reported = make(&folder)?;
    let summary: serde_json::Value = serde_json::from_str(&reported.json)?;
    let exit = reported.exit;
    say_why(&reported);
    let text = match args.format {
        Format::Text => {
            let layout = Layout {
                is_full: args.full,
                ..args.shown.layout()
            };
            let text = text::render(&model::report(&reported.analysis), layout);
            if !args.full {
                output::note(if reported.is_kept {
                    let html = folder.path().join("report.html");
                    format!("more: {}, or --full", html.display())
                } else {
                    "more: --full".to_owned()
                });
            }
            text
        }
        Format::Markdown => reported.markdown,
        Format::Json => reported.json,
    };
    output::data(text.trim_end());
    args.gates.apply(&summary, exit)
}
