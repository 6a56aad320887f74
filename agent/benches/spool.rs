//! What a sample costs in the spool, from the queue to the sealed and synced segment.
//! `cargo bench --workspace --bench spool`

use std::sync::Arc;

use divan::Bencher;
use divan::counter::ItemsCount;
use gapscope_agent::spool::settings::Settings;
use gapscope_agent::spool::writer;
use gapscope_proto::clock::{Clock, SystemClock};
use gapscope_proto::host::ProbingStarted;
use gapscope_proto::ids::RunId;
use gapscope_proto::sample::{Outcome, Phase, Sample, Style};
use gapscope_proto::time::Timestamp;

const SAMPLES: i64 = 4_000;

fn sample(number: i64) -> Sample {
    let due = 1_000_000_000_000 + number * 250_000;
    let noise = number * 7_919 % 90_000;
    Sample {
        target: Arc::new("proxy".parse().expect("a name")),
        style: Style::Reused,
        client: (number % 40) as u16,
        slot: (number / 40) as u64,
        scheduled: Timestamp::from_ns(due),
        started: Timestamp::from_ns(due + 50_000 + noise),
        finished: Timestamp::from_ns(due + 300_000 + noise),
        resolve_ns: None,
        connect_ns: None,
        query_ns: Some(240_000),
        phase: Phase::Query,
        outcome: Outcome::Ok,
        cause: None,
        error_code: None,
        sqlstate: None,
        error: None,
        may_have_executed: false,
        connection: Some(1),
        connection_id: Some(7),
        handshake_id: Some(7),
        backend: None,
        peer: None,
        server_version: None,
        canary: None,
    }
}

fn main() {
    divan::main();
}

#[divan::bench(sample_count = 20)]
fn samples_through_the_spool(bencher: Bencher<'_, '_>) {
    let folder = tempfile::tempdir().expect("a folder");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let opened = writer::open(folder.path(), &Settings::default(), clock.clone()).expect("opens");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let run = RunId::generate();
    let started = ProbingStarted {
        origin_ns: 0,
        planned_end_ns: i64::MAX,
        clock: clock.key(),
    };
    runtime.block_on(opened.spool.begin(run, started));
    bencher
        .counter(ItemsCount::new(SAMPLES as usize))
        .with_inputs(|| (0..SAMPLES).map(sample).collect::<Vec<_>>())
        .bench_local_values(|samples| {
            runtime.block_on(async {
                for sample in samples {
                    opened.spool.sample(run, sample).await;
                }
                opened.spool.flush().await;
            });
        });
    drop(opened.spool);
    opened.thread.join().expect("no panic");
}
