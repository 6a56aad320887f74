//! The way to the aggregator: [`session`] decides, [`client`] performs,
//! [`clock`] exchanges time on a connection of its own, [`trial`] tries the way out.

pub mod client;
pub mod clock;
pub mod fit;
mod link;
pub mod session;
pub mod trial;
