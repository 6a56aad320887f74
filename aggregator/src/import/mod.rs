//! Runs from what other programs measured.

pub mod lab08;
