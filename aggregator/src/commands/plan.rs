//! `plan`: how many rounds or faults a wanted difference needs, before anything
//! is measured.

use std::path::PathBuf;

use super::shown::layout;
use crate::duration;
use crate::exit::Exit;
use crate::output;
use crate::overhead::analyse::{LEVEL, analyse, by_round, least_rounds, pairs};
use crate::overhead::record::Bench;
use crate::overhead::store::{is_overhead, read};
use crate::report::page::Page;
use crate::report::table::Table;
use crate::stats::plan::{self, Wanted};
use crate::stats::t_test::deviation;
use crate::store::reader::find_path;

/// Its arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What is to be told apart.
    #[command(subcommand)]
    what: What,
    /// Probability of claiming a difference where there is none.
    #[arg(long, global = true, default_value_t = 0.05, value_parser = share)]
    level: f64,
    /// Probability of finding one that is there.
    #[arg(long, global = true, default_value_t = 0.8, value_parser = share)]
    power: f64,
}

/// What is to be told apart.
#[derive(Debug, clap::Subcommand)]
enum What {
    /// Faults an arm, for two lengths of gaps or outages.
    Faults {
        /// One length.
        #[arg(long, value_parser = duration::parse)]
        from: u64,
        /// The other.
        #[arg(long, value_parser = duration::parse)]
        to: u64,
        /// How much it spreads from fault to fault (standard deviation).
        #[arg(long, value_parser = duration::parse)]
        spread: u64,
    },
    /// Independent units an arm, for two shares such as 1% and 2%.
    Shares {
        /// One share.
        #[arg(long, value_parser = percent)]
        from: f64,
        /// The other.
        #[arg(long, value_parser = percent)]
        to: f64,
    },
    /// Rounds of a benchmark, for differences of 1 to 20 %.
    Rounds {
        /// How much the ratio to direct spreads from round to round.
        #[arg(long, value_parser = percent, required_unless_present = "like")]
        spread: Option<f64>,
        /// A benchmark whose spread is taken.
        #[arg(long, value_name = "RUN|FOLDER", conflicts_with = "spread")]
        like: Option<String>,
        /// How many comparisons its table has.
        #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u16).range(1..))]
        comparisons: u16,
        /// Where runs are kept.
        #[arg(long, default_value = "./runs", value_name = "DIR")]
        data: PathBuf,
    },
}

fn share(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|p: &f64| *p > 0.0 && *p < 1.0)
        .ok_or_else(|| format!("`{text}` is not between 0 and 1"))
}

fn percent(text: &str) -> Result<f64, String> {
    text.strip_suffix('%')
        .and_then(|number| number.trim().parse().ok())
        .map(|percent: f64| percent / 100.0)
        .filter(|p| *p > 0.0 && *p < 1.0)
        .ok_or_else(|| format!("`{text}` is not a percentage such as 5%"))
}

/// Carries it out.
///
/// # Errors
/// When a benchmark cannot be read.
pub fn run(args: Args) -> anyhow::Result<Exit> {
    let wanted = Wanted {
        level: args.level,
        power: args.power,
    };
    let page = match args.what {
        What::Faults { from, to, spread } => {
            let seconds = |ns: u64| ns as f64 / 1e9;
            let by = (seconds(from) - seconds(to)).abs();
            if from == to || spread == 0 {
                anyhow::bail!("two equal lengths, or no spread at all: there is nothing to plan");
            }
            let n = plan::per_arm(by, seconds(spread), wanted);
            lines(format!(
                "{n} faults an arm, to tell {} s from {} s at a spread of {} s",
                seconds(from),
                seconds(to),
                seconds(spread)
            ))
        }
        What::Shares { from, to } => {
            if from == to {
                anyhow::bail!("two equal shares: there is nothing to plan");
            }
            let n = plan::shares(from, to, wanted);
            lines(format!(
                "{n} independent units an arm, to tell {} % from {} %",
                from * 100.0,
                to * 100.0
            ))
        }
        What::Rounds {
            spread,
            like,
            comparisons,
            data,
        } => rounds(
            spread,
            like.as_deref(),
            usize::from(comparisons),
            &data,
            wanted,
        )?,
    };
    let mut page = page;
    page.method.push(format!(
        "two-sided, level {}, power {} %.",
        args.level,
        args.power * 100.0
    ));
    output::data(page.text(layout(None)).trim_end());
    Ok(Exit::Ok)
}

fn lines(text: String) -> Page {
    Page {
        title: text,
        method: vec![
            "units have to be independent: faults, not clients or probes within one".to_owned(),
        ],
        ..Page::default()
    }
}

/// The standard deviation of a benchmark's log ratios, by target and clients.
fn spreads(bench: &Bench) -> Vec<(String, f64)> {
    let analysis = analyse(bench);
    let Some(direct) = analysis.direct else {
        return Vec::new();
    };
    let targets = &bench.manifest.targets;
    analysis
        .cells
        .iter()
        .filter(|cell| cell.target != direct)
        .filter_map(|cell| {
            let of = |at: usize| by_round(bench, &cell.label, &targets[at].name, cell.clients);
            let logs: Vec<f64> = pairs(&of(direct), &of(cell.target))
                .iter()
                .map(|(d, t)| (t / d).ln())
                .collect();
            Some((
                format!(
                    "{} / {}, {}",
                    cell.label, cell.clients, targets[cell.target].name
                ),
                deviation(&logs)?,
            ))
        })
        .collect()
}

fn rounds(
    spread: Option<f64>,
    like: Option<&str>,
    comparisons: usize,
    data: &std::path::Path,
    wanted: Wanted,
) -> anyhow::Result<Page> {
    let (spreads, comparisons) = match (spread, like) {
        (Some(spread), _) => (vec![("given".to_owned(), spread)], comparisons),
        (None, Some(like)) => {
            let path = find_path(data, like)?;
            if !is_overhead(&path) {
                anyhow::bail!("`{like}` is not a benchmark");
            }
            let bench = read(&path)?;
            let comparisons = analyse(&bench).comparisons;
            (spreads(&bench), comparisons)
        }
        (None, None) => (Vec::new(), comparisons),
    };
    if spreads.is_empty() {
        anyhow::bail!("it has fewer than two rounds: their spread is not known");
    }
    let least = least_rounds(comparisons);
    // In a table each comparison has to pass alone against its part of 1 %.
    let wanted = Wanted {
        level: LEVEL.min(wanted.level) / comparisons.max(1) as f64,
        ..wanted
    };
    let mut table = Table::new(
        "Rounds needed to find a difference of",
        1,
        &[
            "version / clients, target",
            ">spread %",
            ">1 %",
            ">2 %",
            ">5 %",
            ">10 %",
            ">20 %",
        ],
    );
    for (name, spread) in spreads {
        let mut row = vec![name, format!("{:.1}", spread * 100.0)];
        for difference in [0.01, 0.02, 0.05, 0.1, 0.2_f64] {
            let n = plan::pairs(difference.ln_1p(), spread, wanted).max(u64::from(least));
            row.push(if n > 9_999 {
                "> 9999".to_owned()
            } else {
                n.to_string()
            });
        }
        table.rows.push(row);
    }
    Ok(Page {
        title: "rounds of a benchmark".to_owned(),
        tables: vec![table],
        method: vec![format!(
            "spread: standard deviation over rounds of the ratio to direct. {comparisons} \
             comparisons share {} % by Holm; at least {least} rounds, since fewer cannot show \
             anything.",
            LEVEL * 100.0
        )],
        ..Page::default()
    })
}
