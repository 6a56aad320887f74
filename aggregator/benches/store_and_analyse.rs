//! What a sample costs on its way into a Parquet part, and in the analysis.
//! `cargo bench --workspace --bench store_and_analyse`

#[path = "../tests/lab/mod.rs"]
mod lab;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use gapscope_aggregator::analyse::latency::Values;
use gapscope_aggregator::analyse::run::analyse;
use gapscope_aggregator::analyse::series::{ClientKey, ClientSeries, Life, Probe, SlotCounts};
use gapscope_aggregator::analyse::still::StoodStill;
use gapscope_aggregator::analyse::stretch::{Blind, stretches};
use gapscope_aggregator::store::RunFolder;
use gapscope_proto::plan::{ClientKind, Timeouts};
use gapscope_proto::sample::{Outcome, Phase, Style};
use lab::{Lab, MS, S, group, key};

const DEADLINE: i64 = 250 * MS;

fn main() {
    divan::main();
}

/// So many probes of one client, of which one in a hundred is bad.
fn series(count: i64) -> ClientSeries {
    let probes = (0..count).map(|slot| Probe {
        life: 0,
        slot: slot as u64,
        scheduled: slot * 10 * MS,
        started: slot * 10 * MS + 60_000,
        blind_ns: 0,
        finished: slot * 10 * MS + 300_000 + slot * 7_919 % 90_000,
        phase: Phase::Query,
        outcome: match slot % 1_000 {
            500..510 => Outcome::ConnectionLost,
            _ => Outcome::Ok,
        },
        cause: None,
        error_code: None,
        error: None,
        connection: Some(1),
        connection_id: Some(7),
        backend: Some(0),
    });
    ClientSeries {
        key: ClientKey {
            agent: "a".parse().expect("a name"),
            target: "t".parse().expect("a name"),
            style: Style::Reused,
            client: 0,
        },
        kind: ClientKind::Bare,
        interval_ns: 10 * MS,
        phase_ns: 0,
        timeouts: Timeouts {
            resolve_ns: None,
            connect_ns: None,
            query_ns: None,
        },
        reconstructed: false,
        lives: vec![Life {
            clock: key("host"),
            origin_ns: 0,
            due_from_ns: 0,
            due_until_ns: count * 10 * MS,
            alive_until_ns: count * 10 * MS,
        }],
        probes: probes.collect(),
        still: StoodStill::default(),
    }
}

fn run_of(seconds: i64) -> Lab {
    let groups = ["first", "second"]
        .map(|target| group(target, Style::Reused, ClientKind::Bare, 0, 10, 10 * MS));
    Lab::new(groups.to_vec(), seconds * S)
}

#[divan::bench(sample_count = 10)]
fn samples_into_a_durable_part(bencher: Bencher<'_, '_>) {
    bencher
        .counter(ItemsCount::new(2_000_usize * 20))
        .with_inputs(|| run_of(20))
        .bench_values(|mut lab| {
            lab.probe(|blank, _| blank.clone());
            lab.store.commit().expect("commits");
            lab
        });
}

#[divan::bench(sample_count = 10)]
fn a_whole_run_analysed(bencher: Bencher<'_, '_>) {
    let mut lab = run_of(60);
    lab.begin();
    lab.probe(|blank, _| blank.clone());
    lab.end();
    lab.close();
    let folder = RunFolder::open(lab.store.folder()).expect("opens");
    bencher
        .counter(ItemsCount::new(lab.sampled as usize))
        .bench(|| analyse(black_box(&folder)).expect("analyses"));
}

#[divan::bench]
fn slots_of_a_client(bencher: Bencher<'_, '_>) {
    let series = series(100_000);
    bencher
        .counter(ItemsCount::new(series.probes.len()))
        .bench(|| {
            let mut counts = SlotCounts::default();
            black_box(&series).for_each_slot(|slot| counts.add(&slot, DEADLINE));
            counts
        });
}

#[divan::bench]
fn gaps_of_a_client(bencher: Bencher<'_, '_>) {
    let series = series(100_000);
    let blind = Blind::new(&[], &series);
    bencher
        .counter(ItemsCount::new(series.probes.len()))
        .bench(|| stretches(black_box(&series), DEADLINE, &blind));
}

#[divan::bench]
fn percentiles(bencher: Bencher<'_, '_>) {
    let series = series(100_000);
    let mut values = Values::default();
    for probe in &series.probes {
        values.answered(probe.took_ns());
    }
    bencher
        .counter(ItemsCount::new(series.probes.len()))
        .with_inputs(|| values.clone())
        .bench_values(Values::quantiles);
}
