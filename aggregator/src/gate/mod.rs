//! Gates: conditions that make a report fail, such as `windows.upper > 2s`. Pure.
//!
//! A condition names one documented field ([`fields`]), compares it with a value,
//! and may say where (`where target = haproxy`). It fails if any value that it
//! covers meets it. What is not known counts as the worse: an outage that is not
//! over is longer than anything. A condition that covers no value at all fails
//! too: a gate that tested nothing has not passed.

pub mod fields;
pub mod judge;
pub mod junit;
pub mod parse;
