//! Runs from what agents left in their spools, and from what other programs
//! measured.

pub mod lab08;
pub mod new_run;
pub mod spool;
pub mod take_in;
