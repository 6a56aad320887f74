//! The lab: see the modules.

pub mod embedded;
