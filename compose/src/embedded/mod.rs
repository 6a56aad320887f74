//! Our own servers and proxies, on real loopback sockets, speaking the
//! client/server protocol, named by what they do.
//!
//! Purpose: a lab that needs nothing installed, and calibration: what was done
//! to a [`Backend`], and when, is known exactly, so that what the instrument
//! reports can be held against it.
//!
//! - [`Backend`]: answers probes; can be stopped, crashed, hung, black-holed,
//!   made read-only, and brought back, each with its truth as spans of RAW time.
//! - [`L4Proxy`] (`l4-passthrough`): carries bytes, checks health.
//! - [`L7Proxy`]: terminates the protocol. `l7-reconnecting` replaces a lost
//!   backend connection behind the client's back, `l7-migrating` carries the session
//!   over, `l7-multiplexing` shares backend connections among clients.
//! - [`NullServer`]: answers everything at once with the same rows; the floor of
//!   what can be measured.
//!
//! What they cannot show: what a real server's storage, replication or threads
//! do. Tables are lists of rows in memory.

mod answer;
mod auth;
mod backend;
mod l4;
mod l7;
mod link;
mod null;
mod pool;
mod session;
mod sql;
mod wire;

pub use auth::Credentials;
pub use backend::{Backend, BackendConfig, ClearTruth, FaultError, FaultTruth, Held, Mode};
pub use l4::{L4Config, L4Proxy};
pub use l7::{L7Behaviour, L7Config, L7Proxy};
pub use null::{NullAnswer, NullServer};
pub use pool::{CheckKind, HealthCheck, MemberView, PoolMember};
pub use session::{VariablesSchema, Writes};
