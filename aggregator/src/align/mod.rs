//! Puts times that were read from different clocks in relation, as intervals.
//!
//! Method: every exchange bounds the offset between two clocks whatever the
//! asymmetry of the path ([`exchange`]). Layer A carries these bounds to every
//! other moment by an assumed largest relative drift ([`bound`]); layer B narrows
//! them by an assumed largest change of that drift ([`window`]); [`corridor`]
//! intersects both. [`epoch`] finds where a clock was stepped or slept, [`track`]
//! puts a clock's epochs together, and [`map`] turns a time of one clock into an
//! interval of another. [`wall`] compares the hosts' wall clocks.
//!
//! What it cannot know: anything better than half the smallest round trip; and
//! it cannot prove a step smaller than a round trip, which a second, wider bound
//! covers.

pub mod bound;
pub mod corridor;
pub mod epoch;
pub mod exchange;
mod hull;
mod level;
pub mod map;
pub mod track;
pub mod wall;
pub mod window;
