//! gapscope's shared vocabulary: validated domain types, the frames of the
//! spool, and the wire messages.
//!
//! Everything here is pure except [`clock::SystemClock`], which reads the
//! kernel's clocks, [`small_file`], which reads files, and `tls`, which secures
//! the connection between the two ends.

pub mod batch;
pub mod clock;
pub mod convert;
pub mod fault;
pub mod frame;
pub mod host;
pub mod ids;
pub mod inspection;
pub mod pack;
pub mod plain;
pub mod plan;
pub mod sample;
pub mod secret;
pub mod small_file;
pub mod spool;
pub mod time;
#[cfg(feature = "tls")]
pub mod tls;
pub mod utc;
pub mod wire;

/// Version of the wire protocol spoken by this build (see `gapscope.proto`).
pub const PROTOCOL_VERSION: u32 = 1;
