//! What is said of a run: one model ([`model`]), rendered as text for a
//! terminal, Markdown, JSON and tables; [`files`] writes them into the run's
//! folder.

pub mod figures;
pub mod files;
pub mod json;
pub mod markdown;
pub mod model;
pub mod table;
pub mod text;
