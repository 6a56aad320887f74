//! gapscope-agent: probes SQL targets on an open-loop schedule, spools the
//! samples and streams them to the aggregator.

pub mod backoff;
pub mod config;
pub mod guard;
pub mod outcome;
pub mod probe;
pub mod schedule;
pub mod wake;
