//! The computed table as Parquet: one row a cell.

use polars::prelude::*;

use super::analyse::{Analysis, Cell, Cost};
use super::record::Bench;

/// `cells.parquet`
pub fn cells(bench: &Bench, analysis: &Analysis) -> PolarsResult<DataFrame> {
    let cells = &analysis.cells;
    let text = |name: &str, of: &dyn Fn(&Cell) -> String| {
        Series::new(name.into(), cells.iter().map(of).collect::<Vec<_>>()).into_column()
    };
    let number = |name: &str, of: &dyn Fn(&Cell) -> Option<f64>| {
        Series::new(name.into(), cells.iter().map(of).collect::<Vec<_>>()).into_column()
    };
    let count = |name: &str, of: &dyn Fn(&Cell) -> u64| {
        Series::new(name.into(), cells.iter().map(of).collect::<Vec<_>>()).into_column()
    };
    let cost = |name: &str, of: &dyn Fn(&Cost) -> Option<f64>| {
        number(name, &|c: &Cell| c.cost.as_ref().and_then(of))
    };
    DataFrame::new(
        cells.len(),
        vec![
            text("label", &|c| c.label.clone()),
            count("clients", &|c| u64::from(c.clients)),
            text("target", &|c| bench.manifest.targets[c.target].name.clone()),
            text("role", &|c| {
                bench.manifest.targets[c.target].role.as_str().to_owned()
            }),
            count("rounds", &|c| c.rounds as u64),
            count("unsound_rounds", &|c| c.unsound as u64),
            number("total_ns_median", &|c| c.total_ns.map(|s| s.median)),
            number("total_ns_lower", &|c| Some(c.total_ns?.interval?.lower)),
            number("total_ns_upper", &|c| Some(c.total_ns?.interval?.upper)),
            number("statements_per_s", &|c| c.rate),
            number("latency_ns_p50", &|c| c.p50_ns),
            number("latency_ns_p99", &|c| c.p99_ns),
            number("client_cpu_ns", &|c| c.client_cpu_ns),
            number("target_cpu_ns", &|c| c.target_cpu_ns),
            count("errors", &|c| c.errors),
            count("wrong_answers", &|c| c.wrong),
            cost("ratio", &|c| Some(c.ratio)),
            cost("ratio_lower", &|c| c.ratio_interval.map(|i| i.0)),
            cost("ratio_upper", &|c| c.ratio_interval.map(|i| i.1)),
            cost("added_ns", &|c| Some(c.added_ns)),
            cost("added_ns_lower", &|c| c.added_interval.map(|i| i.0)),
            cost("added_ns_upper", &|c| c.added_interval.map(|i| i.1)),
            cost("median_added_ns", &|c| c.median_added_ns),
            cost("median_added_ns_lower", &|c| {
                c.median_added_interval.map(|i| i.0)
            }),
            cost("median_added_ns_upper", &|c| {
                c.median_added_interval.map(|i| i.1)
            }),
            cost("p_holm", &|c| c.p_holm),
            text("verdict", &|c| {
                c.cost
                    .map_or(String::new(), |c| c.verdict.as_str().to_owned())
            }),
        ],
    )
}
