//! The run folder: how a run is written, how it is read again.
//!
//! ```text
//! <run id>/manifest.json            what the run is, who took part
//!          samples/live/part-n      samples as they arrive, one file per commit
//!          samples/part-n           samples after the close
//!          host/live/part-n         lag, clock exchanges, anchors, start and end
//!          lag, clock_exchanges, clock_anchors, control .parquet   the same after the close
//!          faults, losses .parquet  rewritten whole, atomically
//!          proxy_view.parquet       a lab's: what proxies believed of their backends
//! ```
//!
//! Each parquet file's footer says which seqs of which streams it covers
//! ([`footer`]), so there is no second ledger that could disagree. A file
//! appears under its name only when it is whole and synced ([`disk`]), and
//! carries its own checksum ([`checksum`]). The manifest of a closed run lists them
//! all ([`inventory`]).

pub mod blocks;
pub(crate) mod buffer;
pub mod checksum;
pub mod disk;
pub mod error;
pub mod footer;
pub mod frame;
pub mod inventory;
pub mod lock;
pub mod loss;
pub mod manifest;
pub mod merge;
pub(crate) mod pages;
pub mod positions;
pub mod proxy_view;
pub mod reader;
pub(crate) mod reorder;
pub mod schema;
pub mod slab;
pub(crate) mod stamp;
pub mod verify;
pub mod writer;

pub use error::StoreError;
pub use loss::LossRecord;
pub use reader::RunFolder;
pub use writer::RunStore;
