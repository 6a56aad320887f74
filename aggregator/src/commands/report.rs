//! The subcommand `report`: analyses a run, prints the result, and keeps it in
//! the run's folder.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use crate::analyse::run::{Analysis, analyse};
use crate::exit::Exit;
use crate::output;
use crate::report::text::Layout;
use crate::report::{files, json, markdown, model, text};
use crate::store::RunFolder;

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
    /// A run's id, the beginning of it, `latest`, or its folder.
    #[arg(value_name = "RUN|FOLDER")]
    run: String,
    /// How to print.
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Columns of the text; the terminal's by default, or 80.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(60..=1000))]
    width: Option<u16>,
    /// Where runs are kept.
    #[arg(long, default_value = "./runs", value_name = "DIR")]
    data: PathBuf,
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
}

/// Analyses a run and writes the computed files into its folder.
///
/// # Errors
/// When its tables cannot be read. A folder that cannot be written is only
/// warned about: the report can still be read.
pub fn make(folder: &RunFolder) -> anyhow::Result<Reported> {
    // A flipped bit must not become a number.
    let sound = folder.sound()?;
    let analysis = analyse(&sound)?;
    let exit = if analysis.is_lossy_or_untested() {
        Exit::DataLost
    } else {
        Exit::Ok
    };
    let summary = json::summary(&analysis, exit.code());
    let mut json = serde_json::to_string_pretty(&summary)?;
    json.push('\n');
    let markdown = markdown::render(&model::report(&analysis));
    if let Err(error) = files::write(folder.path(), &analysis, &json, &markdown) {
        output::note(format!("warning: the report is not kept: {error}"));
    }
    Ok(Reported {
        analysis,
        exit,
        json,
        markdown,
    })
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
    Ok(reported.exit)
}

/// The text in `width` columns, or the terminal's.
pub fn as_text(analysis: &Analysis, width: Option<u16>) -> String {
    text::render(&model::report(analysis), layout(width))
}

/// In `width` columns, or the terminal's; in colour on a terminal.
pub(super) fn layout(width: Option<u16>) -> Layout {
    Layout {
        width: usize::from(width.unwrap_or_else(terminal_width)),
        colour: std::io::stdout().is_terminal()
            && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
    }
}

fn terminal_width() -> u16 {
    rustix::termios::tcgetwinsize(std::io::stdout())
        .ok()
        .map(|size| size.ws_col)
        .filter(|columns| *columns > 0)
        .unwrap_or(80)
}

/// Carries it out.
///
/// # Errors
/// When there is no such run, or it cannot be read.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    let folder = RunFolder::find(&args.data, &args.run)?;
    let reported = make(&folder)?;
    let text = match args.format {
        Format::Text => as_text(&reported.analysis, args.width),
        Format::Markdown => reported.markdown,
        Format::Json => reported.json,
    };
    output::data(text.trim_end());
    Ok(reported.exit)
}
