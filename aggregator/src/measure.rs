//! What a benchmark wants to know of a run: how late its probes began, how large
//! its files are.

use gapscope_proto::ids::AgentId;
use polars::prelude::{col, lit};

use crate::analyse::load::LoadError;
use crate::store::reader::RunFolder;
use crate::store::schema::samples;

/// By how many ns each probe of an agent began after it was due, sorted.
///
/// # Errors
/// When the samples cannot be read.
pub fn started_late_ns(folder: &RunFolder, agent: &AgentId) -> Result<Vec<i64>, LoadError> {
    let table = folder
        .samples()?
        .filter(col(samples::AGENT_ID).eq(lit(agent.as_str())))
        .select([(col(samples::STARTED_NS) - col(samples::SCHEDULED_NS)).alias("late")])
        .collect()?;
    let mut late: Vec<i64> = table.column("late")?.i64()?.iter().flatten().collect();
    late.sort_unstable();
    Ok(late)
}

/// The nearest-rank quantile of sorted values; none without values.
pub fn quantile_ns(sorted: &[i64], share: f64) -> Option<i64> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

/// Bytes of a run's sample files, and the rows in them.
///
/// # Errors
/// When the folder cannot be listed.
pub fn sample_files(folder: &RunFolder) -> std::io::Result<(u64, u64)> {
    let mut bytes = 0;
    for place in ["samples", "samples/live"] {
        let Ok(entries) = std::fs::read_dir(folder.path().join(place)) else {
            continue;
        };
        for entry in entries {
            let entry = entry?;
            if entry.path().extension().is_some_and(|e| e == "parquet") {
                bytes += entry.metadata()?.len();
            }
        }
    }
    Ok((bytes, folder.samples_stored()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_by_nearest_rank() {
        let hundred: Vec<i64> = (1..=100).collect();
        for (share, expect) in [(0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100), (0.0, 1)] {
            assert_eq!(quantile_ns(&hundred, share), Some(expect), "{share}");
        }
        assert_eq!(quantile_ns(&[], 0.5), None);
    }
}
