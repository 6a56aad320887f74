//! Measures what a proxy costs when nothing fails: the same fixed number of
//! statements, by 1 to 40 clients, straight at the server and through each
//! proxy, in turn.
//!
//! Method: closed loop. Each client sends its next statement once the last is
//! answered; a block's total is the time from the first statement sent to the
//! last answered. Rounds go over all numbers of clients and all targets in
//! random order, the targets of one number of clients one after the other, so
//! that what the machine does meanwhile hits all alike. A target is only ever
//! compared with the direct one of its own round.
//!
//! What it cannot know: what clients on other hosts would see, and what a mix of
//! statements would cost.

pub mod bench;
pub mod client;
pub mod cpu;
pub mod digest;
pub mod load;
pub mod options;
pub mod order;
pub mod setup;
pub mod statement;
pub mod target;
pub mod up;
