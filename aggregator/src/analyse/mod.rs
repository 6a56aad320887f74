//! What the clients saw: from stored samples to outages, fates and verdicts.
//!
//! [`load`] reads what is said of the agents, [`clients`] their clients' histories,
//! [`ledger_tables`] the ledger; all else is pure. [`series`] says
//! what a probe and a slot are worth, [`stretch`] what a run of bad ones proves,
//! [`merge`] what several clients prove together, [`unseen`] what nobody can have seen,
//! [`before`] what was before a fault, [`fault`] what one client went
//! through in a fault, [`fate`] and [`verdict`] what that is called, [`latency`]
//! and [`changes`] the rest; [`row`] (counting by [`tally`]) puts it together for one
//! target, style and kind, [`across`] for several agents on one timeline ([`timeline`]), [`run`] for
//! a run, with its faults by each clock ([`local`]), its [`books`] and what speaks
//! against it ([`caveat`]), and what became of the rows that were written
//! ([`ledger`]); [`beside`] what is known that is no probe's.

pub mod across;
pub mod before;
pub mod beside;
pub mod books;
pub mod caveat;
pub mod changes;
pub mod clients;
pub mod control;
pub mod fate;
pub mod fault;
pub mod hole;
pub mod latency;
pub mod ledger;
pub mod ledger_tables;
pub mod load;
pub mod local;
pub mod merge;
pub mod parallel;
pub mod repeat;
pub mod row;
pub mod run;
pub mod series;
pub mod still;
pub mod stretch;
pub mod tally;
pub mod timeline;
pub mod unseen;
pub mod verdict;

#[cfg(test)]
mod simulation;
