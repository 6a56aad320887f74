//! Puts times that were read from different clocks in relation, as intervals.
//!
//! Method: every exchange bounds the offset between two clocks whatever the
//! asymmetry of the path ([`exchange`]); an assumed largest relative drift
//! carries these bounds to every other moment ([`bound`]); [`map`] turns a time
//! of one clock into an interval of another.
//!
//! What it cannot know: a step of a clock that is smaller than a round trip,
//! and anything better than half the smallest round trip.

pub mod bound;
pub mod exchange;
pub mod map;
