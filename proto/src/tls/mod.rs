//! The secured connection between the two ends, for both of them: certificates
//! and who they are for, files that are read again when they change, the way of
//! a client to its server, and what to tell a person when it fails.
//!
//! TLS 1.3 only, by rustls with ring. Configurations are whole values: a changed
//! file makes a new one, connections made from then on use it, and a file that
//! cannot be used changes nothing. Sessions are never resumed, so each connection
//! shows its certificate, and the certificate is checked.

pub mod certificate;
pub mod dial;
pub mod heard;
pub mod material;
pub mod principal;
pub mod reload;
pub mod words;

pub use certificate::Facts;
pub use dial::{Bearer, Dialer, Line, Secured};
pub use material::{ClientFiles, ServerFiles};
pub use principal::{Principal, Role};
pub use reload::Kept;
pub use words::Trouble;
