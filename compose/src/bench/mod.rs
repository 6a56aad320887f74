//! Speed, measured against the best: whole programs side by side in one run.
//!
//! [`closed`] compares one reused connection of the agent with other programs'
//! loops, [`paced`] looks at a whole agent at fixed rates, [`ingest`] at a whole
//! aggregator under a crowd that speaks the real protocol, [`analysis`] at reports
//! on large runs. What is compared is measured in turn, in a new random order each
//! round, and ratios are made within a round, so that drift of the machine hits all
//! alike. `compose/docs/bench.md` has the method, `compose/docs/performance.md` the
//! figures.
//!
//! What it cannot know: how fast anything is elsewhere. Figures of one machine are
//! comparable with each other, not with another machine's.

pub mod analysis;
pub mod closed;
pub mod crowd;
pub mod findings;
pub mod ingest;
pub mod loops;
pub mod machine;
pub mod options;
pub mod paced;
pub mod rivals;
