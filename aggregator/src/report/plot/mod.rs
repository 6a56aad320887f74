//! Figures as SVG: scales with their ticks ([`scale`]), and a writer that
//! escapes every text ([`svg`]). Colours are classes; [`STYLE`] gives them for
//! light and dark, so that a figure can stand in a page or in a file of its own.

pub mod scale;
pub mod svg;

/// Colours and strokes of all figures.
pub const STYLE: &str = include_str!("figure.css");
