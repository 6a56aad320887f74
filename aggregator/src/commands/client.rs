//! Connections to an aggregator.
