//! Who may do what.
//!
//! ```text
//! listen (TLS, certificate) -> layer (token) -> gate: who is it? -> access: may he?
//! ```
//!
//! `access`, `tokens`, `deny` and `limits` are pure. Everything passes the layer,
//! and what has no row in `access` is refused.

pub mod access;
pub mod caller;
pub mod deny;
pub mod gate;
pub mod layer;
pub mod limits;
pub mod tokens;
