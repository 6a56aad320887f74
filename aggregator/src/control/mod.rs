//! What operators (and the lab) use: start and stop runs, record faults, look.

pub mod follow;
pub mod service;
pub mod start;
pub mod watch;
