//! Generated messages and services. Nothing outside `convert`, the agent's
//! uplink and the aggregator's ingest names these types.
#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic)]

include!("gapscope.v1.rs");
