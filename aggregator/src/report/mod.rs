//! What is said of a run: one model ([`model`]), rendered as text for a
//! terminal, Markdown, JSON and tables; [`clock`] speaks of the clocks, [`across`]
//! of what several agents saw of one target; [`files`] writes them into the run's
//! folder.

pub mod across;
pub mod beside;
pub mod clock;
mod clock_map;
pub mod clock_plot;
mod conclusion;
mod explain;
pub mod figures;
pub mod files;
pub mod headline;
pub mod html;
pub mod json;
pub mod kinds;
pub mod ledger;
mod made_of;
pub mod markdown;
pub mod model;
pub mod page;
pub mod plot;
pub mod repeat;
pub mod sections;
pub mod table;
mod tables;
pub mod text;
