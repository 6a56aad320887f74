//! `compare`: two or more runs, or sets of runs, number beside number.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::report::Format;
use super::shown::layout;
use crate::analyse::run::analyse;
use crate::compare::alike::{Conditions, Differs, differences, of_bench, of_run};
use crate::compare::{Compared, Line, Verdict, overhead, switchover};
use crate::exit::Exit;
use crate::gate::junit::{Case, junit};
use crate::output;
use crate::overhead::analyse::LEVEL;
use crate::overhead::record::Bench;
use crate::overhead::store::{is_overhead, read};
use crate::report::json;
use crate::report::page::Page;
use crate::report::table::Table;
use crate::store::RunFolder;
use crate::store::disk::Disk;
use crate::store::reader::find_path;

/// Version of what `--format json` prints.
const SCHEMA_VERSION: u32 = 1;

/// When a comparison fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum FailIf {
    /// Something is worse than on the first side.
    Worse,
    /// Something is worse, or nothing could be told.
    WorseOrUnknown,
}

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Runs, or sets of runs separated by commas: A B, or A1,A2,A3 B1,B2,B3. A run
    /// is an id, the beginning of one, `latest`, or a folder. The first side is
    /// what the others are compared with.
    #[arg(required = true, num_args = 2.., value_name = "RUN[,RUN...]")]
    sides: Vec<String>,
    /// Compare although they were not measured alike; what differs is printed.
    #[arg(long)]
    anyway: bool,
    /// Exit with 3 then.
    #[arg(long, value_enum, value_name = "WHEN")]
    fail_if: Option<FailIf>,
    /// Write what --fail-if found as JUnit XML.
    #[arg(long, value_name = "FILE", requires = "fail_if")]
    junit: Option<PathBuf>,
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

/// A run, loaded.
enum Loaded {
    Bench(Box<Bench>),
    Switchover(Value),
}

struct Side {
    name: String,
    conditions: Vec<Conditions>,
    runs: Vec<Loaded>,
    /// Of each run.
    folders: Vec<PathBuf>,
}

fn load(args: &Args, wanted: &str) -> anyhow::Result<Side> {
    let mut side = Side {
        name: wanted.to_owned(),
        conditions: Vec::new(),
        runs: Vec::new(),
        folders: Vec::new(),
    };
    for one in wanted
        .split(',')
        .map(str::trim)
        .filter(|one| !one.is_empty())
    {
        let path = find_path(&args.data, one)?;
        let folder = path.canonicalize().unwrap_or_else(|_| path.clone());
        if side.folders.contains(&folder) {
            anyhow::bail!("`{wanted}` names a run twice: it would count as two");
        }
        side.folders.push(folder);
        if is_overhead(&path) {
            let bench = read(&path)?;
            side.conditions.push(of_bench(&bench));
            side.runs.push(Loaded::Bench(Box::new(bench)));
        } else {
            let analysis = analyse(&RunFolder::open(&path)?.sound()?)?;
            // How often each was repeated may differ.
            let mut steps: Vec<String> = Vec::new();
            for fault in &analysis.faults {
                let step = format!("{} {}", fault.step, fault.subject);
                if analysis.judged.contains(&fault.id) && !steps.contains(&step) {
                    steps.push(step);
                }
            }
            side.conditions.push(of_run(&analysis.manifest, &steps));
            side.runs
                .push(Loaded::Switchover(json::summary(&analysis, 0)));
        }
    }
    if side.runs.is_empty() {
        anyhow::bail!("`{wanted}` names no run");
    }
    Ok(side)
}

fn differs(sides: &[Side]) -> Vec<Differs> {
    let first = &sides[0].conditions[0];
    let mut all: Vec<Differs> = Vec::new();
    for conditions in sides.iter().flat_map(|side| &side.conditions).skip(1) {
        for one in differences(first, conditions) {
            if !all.contains(&one) {
                all.push(one);
            }
        }
    }
    all
}

fn compared(first: &Side, other: &Side) -> anyhow::Result<Compared> {
    let benches = |side: &Side| -> Option<Vec<Bench>> {
        side.runs
            .iter()
            .map(|run| match run {
                Loaded::Bench(bench) => Some((**bench).clone()),
                Loaded::Switchover(_) => None,
            })
            .collect()
    };
    let summaries = |side: &Side| -> Option<Vec<Value>> {
        side.runs
            .iter()
            .map(|run| match run {
                Loaded::Switchover(summary) => Some(summary.clone()),
                Loaded::Bench(_) => None,
            })
            .collect()
    };
    if let (Some(a), Some(b)) = (benches(first), benches(other)) {
        return Ok(overhead::compare(&a, &b));
    }
    if let (Some(a), Some(b)) = (summaries(first), summaries(other)) {
        let mut compared = switchover::compare(&a, &b);
        if let Some((by, spread, faults)) = switchover::faults_needed(&a, &b) {
            compared.caveats.push(format!(
                "the largest difference of mean gaps is {by:.3} s at a spread of {spread:.3} s: to \
                 find such a one takes about {faults} faults a side (power 80 %)"
            ));
        }
        return Ok(compared);
    }
    anyhow::bail!("a benchmark and a switchover run have no number in common")
}

/// Carries it out.
///
/// # Errors
/// When a run cannot be read.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    let sides: Vec<Side> = args
        .sides
        .iter()
        .map(|wanted| load(&args, wanted))
        .collect::<anyhow::Result<_>>()?;
    let twice = sides.iter().enumerate().find_map(|(at, side)| {
        let others = sides[..at].iter().flat_map(|other| &other.folders);
        others
            .into_iter()
            .find(|folder| side.folders.contains(folder))
    });
    if let Some(folder) = twice
        && !args.anyway
    {
        output::error(&output::hinted(
            format!("{} is on several sides", folder.display()),
            "a run does not differ from itself: name another, or look with --anyway",
        ));
        return Ok(Exit::Usage);
    }
    let differs = differs(&sides);
    if !differs.is_empty() && !args.anyway {
        let texts: Vec<String> = differs
            .iter()
            .map(|d| format!("{}: {} against {}", d.what, d.first, d.other))
            .collect();
        output::error(&output::hinted(
            format!(
                "these runs were not measured alike\n  {}",
                texts.join("\n  ")
            ),
            "--anyway compares them all the same, and prints that above the numbers",
        ));
        return Ok(Exit::Usage);
    }
    let (first, others) = sides.split_first().expect("clap wants two at least");
    let results: Vec<(&Side, Compared)> = others
        .iter()
        .map(|other| Ok((other, compared(first, other)?)))
        .collect::<anyhow::Result<_>>()?;
    let text = match args.format {
        Format::Json => {
            let mut text = serde_json::to_string_pretty(&as_json(first, &results, &differs))?;
            text.push('\n');
            text
        }
        Format::Text => page(first, &results, &differs).text(layout(args.width)),
        Format::Markdown => page(first, &results, &differs).markdown(),
    };
    output::data(text.trim_end());
    let Some(when) = args.fail_if else {
        return Ok(Exit::Ok);
    };
    let cases: Vec<Case> = results
        .iter()
        .flat_map(|(side, c)| cases(side, c, when))
        .collect();
    if let Some(path) = &args.junit {
        Disk::default().write_bytes(path, junit("gapscope compare", &cases).as_bytes())?;
    }
    let mut exit = Exit::Ok;
    for case in cases {
        if let Some(why) = case.failure {
            output::note(format_args!("gate failed: {}: {why}", case.name));
            exit = Exit::GateFailed;
        }
    }
    Ok(exit)
}

fn cases(side: &Side, compared: &Compared, when: FailIf) -> Vec<Case> {
    let mut cases: Vec<Case> = compared
        .lines
        .iter()
        .filter(|l| l.verdict != Verdict::Shown)
        .map(|l| Case {
            name: format!("{}: {}, {}", side.name, l.of, l.what),
            failure: (l.verdict == Verdict::Worse)
                .then(|| format!("worse: {} against {}, {}", l.other, l.first, l.difference)),
        })
        .collect();
    if let Some(why) = untested(compared, when) {
        cases.push(Case {
            name: format!("{}: the comparison can tell", side.name),
            failure: Some(why.to_owned()),
        });
    }
    cases
}

/// Why nothing was tested, if so: a gate that tested nothing has not passed.
fn untested(compared: &Compared, when: FailIf) -> Option<&'static str> {
    if compared.lines.is_empty() {
        return Some("the runs have nothing in common, so nothing was compared");
    }
    (when == FailIf::WorseOrUnknown && !compared.can_tell())
        .then_some("the data could not show a difference if there were one")
}

fn table(first: &Side, other: &Side, title: String, lines: &[&Line]) -> Table {
    let short = |side: &Side, letter: &str| {
        if side.name.chars().count() <= 12 {
            format!(">{}", side.name)
        } else {
            format!(">{letter}")
        }
    };
    let (a, b) = (short(first, "first"), short(other, "other"));
    let columns = ["of", "number", &a, &b, ">difference", "verdict"];
    let mut table = Table::new(title, 2, &columns);
    for line in lines {
        table.rows.push(vec![
            line.of.clone(),
            line.what.clone(),
            line.first.clone(),
            line.other.clone(),
            if line.is_factor && line.difference != "-" {
                format!("x {}", line.difference)
            } else {
                line.difference.clone()
            },
            line.verdict.as_str().to_owned(),
        ]);
    }
    table.without_empty_columns()
}

fn page(first: &Side, results: &[(&Side, Compared)], differs: &[Differs]) -> Page {
    let mut page = Page {
        title: format!("compared with {}", first.name),
        ..Page::default()
    };
    for d in differs {
        page.facts.push(format!(
            "not alike: {}: {} against {}",
            d.what, d.first, d.other
        ));
    }
    for (side, compared) in results {
        let (claimed, shown): (Vec<&Line>, Vec<&Line>) = compared
            .lines
            .iter()
            .partition(|l| l.verdict != Verdict::Shown);
        let title = format!("{} against {}", side.name, first.name);
        if !claimed.is_empty() {
            page.tables
                .push(table(first, side, title.clone(), &claimed));
        }
        if !shown.is_empty() {
            page.tables.push(table(
                first,
                side,
                format!("{title}: all numbers, nothing claimed"),
                &shown,
            ));
        }
        for caveat in &compared.caveats {
            let text = if results.len() > 1 {
                format!("{}: {caveat}", side.name)
            } else {
                caveat.clone()
            };
            if !page.caveats.contains(&text) {
                page.caveats.push(text);
            }
        }
    }
    page.method = vec![
        "difference: of the other side from the first, with its 95 % interval where there are \
         several units; x: a factor."
            .to_owned(),
        format!(
            "verdict: by Holm over the lines of a table that have one, at {} % together. \
             Benchmarks: Welch's t on logarithms of ratios to the direct target, over rounds, or \
             over runs where a side has several. Switchover: paired t and sign-flip over pairs of \
             faults.",
            LEVEL * 100.0
        ),
    ];
    page
}

fn as_json(first: &Side, results: &[(&Side, Compared)], differs: &[Differs]) -> Value {
    json!({
        "schema_version": SCHEMA_VERSION,
        "first": first.name,
        "level": LEVEL,
        "not_alike": differs.iter().map(|d| json!({
            "what": d.what, "first": d.first, "other": d.other,
        })).collect::<Vec<_>>(),
        "others": results.iter().map(|(side, compared)| json!({
            "name": side.name,
            "worse": compared.is_worse(),
            "lines": compared.lines.iter().map(|l| json!({
                "of": l.of, "number": l.what, "first": l.first, "other": l.other,
                "difference": l.interval.map(|i| i.1),
                "difference_lower": l.interval.map(|i| i.0),
                "difference_upper": l.interval.map(|i| i.2),
                "difference_text": l.difference,
                "is_factor": l.is_factor,
                "p_holm": l.p_holm,
                "verdict": l.verdict.as_str(),
            })).collect::<Vec<_>>(),
            "caveats": compared.caveats,
        })).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_of_nothing_has_not_passed() {
        let nothing = Compared {
            lines: Vec::new(),
            caveats: Vec::new(),
        };
        for when in [FailIf::Worse, FailIf::WorseOrUnknown] {
            let why = untested(&nothing, when).expect("it fails");
            assert!(why.contains("nothing in common"), "{why}");
        }
    }
}
