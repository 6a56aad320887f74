//! stub
pub mod align;
pub mod analyse;
