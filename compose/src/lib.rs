//! gapscope's lab.
pub mod duration;
pub mod scenario;
pub mod timeline;
