//! The statistics behind claims, pure and small, each against known answers.
//!
//! Whatever is compared here is a handful of independent units (rounds of a
//! benchmark, faults of an experiment), never the thousands of statements or
//! probes within them: those agree with each other and would make everything
//! look certain.
//!
//! What it cannot know: whether the units are independent. A machine that slows
//! down during the first run only is seen by pairing within rounds, not by any
//! formula.

pub mod holm;
pub mod plan;
pub mod rank;
pub mod signflip;
pub mod student;
pub mod t_test;
pub mod wilson;
