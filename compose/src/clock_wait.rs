//! Waiting for a moment of the RAW clock, which itself cannot be slept on.

use std::time::Duration;

use gapscope_proto::clock::Clock;

/// Waits until RAW reaches `due_ns`. Sleeps on the monotonic clock and looks at
/// RAW again, since the two drift apart.
pub async fn until(clock: &dyn Clock, due_ns: i64) {
    loop {
        let left = due_ns.saturating_sub(clock.raw_ns());
        let Ok(left) = u64::try_from(left) else {
            return;
        };
        if left == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_nanos(left)).await;
    }
}
