//! What a proxy costs when nothing fails: the totals of a benchmark's blocks,
//! what they say, and how it is shown.
//!
//! A block is a fixed number of statements shared by N clients through one
//! target; a round has one block for each target and N. The unit of evidence is
//! the round: within a round a target is compared with the direct one, so that
//! what the machine does to both drops out.
//!
//! [`record`] is the data, [`store`] the run's folder, [`analyse`] the
//! statistics; [`view`], [`json`] and [`svg`] show them.

pub mod analyse;
pub mod frame;
pub mod json;
pub mod published;
pub mod record;
pub mod store;
pub mod svg;
pub mod view;
