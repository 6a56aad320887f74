//! stub
pub mod changes;
pub mod fate;
pub mod fault;
pub mod latency;
pub mod merge;
pub mod series;
pub mod stretch;
pub mod verdict;
