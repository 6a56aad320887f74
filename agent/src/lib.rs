//! gapscope-agent: probes SQL targets on an open-loop schedule, spools the
//! samples and streams them to the aggregator.
//!
//! It owns its targets and their secrets; a run only names targets. The way of
//! the data: [`schedule`], [`probe`], [`spool`], [`uplink`].

pub mod agent;
pub mod backoff;
pub mod board;
pub mod breaker;
mod check;
mod cli;
pub mod config;
pub mod control;
pub mod guard;
pub mod host;
mod inspect;
pub mod inspection;
pub mod names;
pub mod null_server;
pub mod outcome;
mod output;
pub mod probe;
pub mod reach;
pub mod run;
pub mod schedule;
pub mod spool;
mod trial;
pub mod uplink;
pub mod wake;

pub use cli::main_from;
