//! What `report` does for a benchmark's folder.

use std::path::Path;

use super::report::Format;
use super::shown::layout;
use crate::exit::Exit;
use crate::output;
use crate::overhead::analyse::{Analysis, analyse};
use crate::overhead::record::Bench;
use crate::overhead::store::{read, write_frame};
use crate::overhead::{json, svg, view};
use crate::store::StoreError;
use crate::store::disk::Disk;

/// Computes the benchmark in `folder`, keeps the computed files there, and
/// prints it.
///
/// # Errors
/// When it cannot be read. A folder that cannot be written is only warned about.
pub fn report(
    folder: &Path,
    format: Format,
    width: Option<u16>,
    gates: Option<&super::gates::Args>,
) -> anyhow::Result<Exit> {
    let bench = read(folder)?;
    let analysis = analyse(&bench);
    let page = view::page(&bench, &analysis);
    let value = json::summary(&bench, &analysis);
    let mut summary = serde_json::to_string_pretty(&value)?;
    summary.push('\n');
    let markdown = page.markdown();
    if let Err(error) = keep(folder, &bench, &analysis, &summary, &markdown) {
        output::note(format!("warning: the report is not kept: {error}"));
    }
    let text = match format {
        Format::Text => page.text(layout(width)),
        Format::Markdown => markdown,
        Format::Json => summary,
    };
    output::data(text.trim_end());
    if exit(&bench) == Exit::DataLost {
        output::note("exit code 4: no block was free of errors, so nothing was measured");
    }
    match gates {
        Some(gates) => gates.apply(&value, exit(&bench)),
        None => Ok(exit(&bench)),
    }
}

/// 4 where nothing at all was measured soundly.
fn exit(bench: &Bench) -> Exit {
    if bench.blocks.iter().any(|b| b.is_sound()) {
        Exit::Ok
    } else {
        Exit::DataLost
    }
}

fn keep(
    folder: &Path,
    bench: &Bench,
    analysis: &Analysis,
    summary: &str,
    markdown: &str,
) -> Result<(), StoreError> {
    let disk = Disk::default();
    write_frame(
        &disk,
        &folder.join("cells.parquet"),
        crate::overhead::frame::cells(bench, analysis),
    )?;
    disk.write_bytes(&folder.join("summary.json"), summary.as_bytes())?;
    disk.write_bytes(&folder.join("report.md"), markdown.as_bytes())?;
    if let Some(svg) = svg::plot(bench, analysis) {
        disk.write_bytes(&folder.join("cost.svg"), svg.as_bytes())?;
    }
    Ok(())
}
