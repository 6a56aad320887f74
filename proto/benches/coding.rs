//! What a second of 40 clients costs as columns, packed, as a frame, and back.
//! `cargo bench --workspace --bench coding`

use std::sync::Arc;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use gapscope_proto::batch::Columns;
use gapscope_proto::frame::{Body, Frame, StreamId, StreamKind};
use gapscope_proto::ids::{Incarnation, RunId};
use gapscope_proto::pack;
use gapscope_proto::sample::{Outcome, Phase, Sample, Style};
use gapscope_proto::time::Timestamp;

const CLIENTS: u16 = 40;

fn samples() -> Vec<Sample> {
    let target = Arc::new("proxy".parse().expect("a name"));
    let (backend, peer): (Arc<str>, Arc<str>) = ("db-1:3306".into(), "10.0.0.7:6033".into());
    let mut all = Vec::new();
    for k in 0..100_i64 {
        for client in 0..CLIENTS {
            let noise = (k * 7_919 + i64::from(client) * 104_729) % 90_000;
            let due = 1_000_000_000_000 + k * 10_000_000 + i64::from(client) * 250_000;
            all.push(Sample {
                target: Arc::clone(&target),
                style: Style::Reused,
                client,
                slot: k as u64,
                scheduled: Timestamp::from_ns(due),
                started: Timestamp::from_ns(due + 50_000 + noise),
                finished: Timestamp::from_ns(due + 300_000 + 3 * noise),
                resolve_ns: None,
                connect_ns: None,
                query_ns: Some(245_000 + 2 * noise as u64),
                phase: Phase::Query,
                outcome: Outcome::Ok,
                cause: None,
                error_code: None,
                sqlstate: None,
                error: None,
                may_have_executed: false,
                connection: Some(1),
                connection_id: Some(u64::from(client)),
                handshake_id: Some(u32::from(client)),
                backend: Some(Arc::clone(&backend)),
                peer: Some(Arc::clone(&peer)),
                server_version: None,
                canary: None,
            });
        }
    }
    all
}

fn frame() -> Frame {
    Frame {
        stream: StreamId {
            run: RunId::generate(),
            incarnation: Incarnation::generate(),
            kind: StreamKind::Samples,
        },
        first_seq: 1,
        body: Body::Samples(Columns::encode(&samples())),
    }
}

fn main() {
    divan::main();
}

#[divan::bench]
fn samples_to_columns(bencher: Bencher<'_, '_>) {
    let samples = samples();
    bencher
        .counter(ItemsCount::new(samples.len()))
        .bench(|| Columns::encode(black_box(&samples)));
}

#[divan::bench]
fn columns_to_rows(bencher: Bencher<'_, '_>) {
    let columns = Columns::encode(&samples());
    bencher
        .counter(ItemsCount::new(columns.len()))
        .bench(|| black_box(&columns).rows());
}

#[divan::bench]
fn columns_to_samples(bencher: Bencher<'_, '_>) {
    let columns = Columns::encode(&samples());
    bencher
        .counter(ItemsCount::new(columns.len()))
        .bench(|| black_box(&columns).decode());
}

#[divan::bench]
fn pack_columns(bencher: Bencher<'_, '_>) {
    let columns = Columns::encode(&samples());
    bencher
        .counter(ItemsCount::new(columns.len()))
        .bench(|| pack::pack(black_box(&columns)));
}

#[divan::bench]
fn unpack_columns(bencher: Bencher<'_, '_>) {
    let columns = Columns::encode(&samples());
    let bytes = pack::pack(&columns).expect("packs");
    bencher
        .counter(ItemsCount::new(columns.len()))
        .bench(|| pack::unpack(2, black_box(&bytes), columns.len()));
}

#[divan::bench]
fn frame_to_bytes(bencher: Bencher<'_, '_>) {
    let frame = frame();
    bencher
        .counter(ItemsCount::new(frame.count()))
        .bench(|| black_box(&frame).to_bytes());
}

#[divan::bench]
fn frame_from_bytes(bencher: Bencher<'_, '_>) {
    let frame = frame();
    let bytes = frame.to_bytes().expect("encodes");
    bencher
        .counter(ItemsCount::new(frame.count()))
        .bench(|| Frame::from_bytes(black_box(&bytes)));
}
