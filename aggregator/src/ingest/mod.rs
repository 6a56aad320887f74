//! Takes in what agents send.
//!
//! ```text
//! service (one session an agent) -> run (one task a run, the only writer of its
//! folder) -> store; acknowledgements go back when the store says "durable"
//! ```
//!
//! Every queue between them is bounded, in messages and in bytes
//! ([`run::ROOM_BYTES`]): when the disk is slow or full, a run's queue fills, its
//! sessions stop reading, and the agents' spools take the rest.

pub mod accounts;
pub mod admit;
pub mod clock;
pub mod command;
pub mod ending;
pub mod hub;
pub mod intake;
pub mod run;
pub mod service;
pub mod session;
pub mod starts;
