//! What is seen of a run while it goes on.
//!
//! ```text
//! ingest -> feed (one a run) -> view -> watchers: terminals (gRPC), browsers (SSE)
//!                 |-> totals -> /metrics
//! ```
//!
//! A feed is given what a run has acknowledged, brings it into columns of a quarter
//! of a second ([`lane`]) and tells watchers what changed through a bounded ring
//! that never waits: who does not keep up is told how much he missed and begins
//! anew. Nothing of this is used for results: clocks are placed by what is known so
//! far, and what has not arrived is shown as no data, not as health.

pub mod clock;
pub mod event;
pub mod feed;
pub mod histogram;
pub mod lane;
pub mod model;
pub mod presence;
pub mod totals;
pub mod view;
