//! `clock_map.parquet`: each agent clock's offset (aggregator's minus agent's) as
//! an interval, at knots.
//!
//! Between two knots of one piece (same clock and `piece`) interpolate straight
//! and round outward; the interval so found contains the exact bounds and is at
//! most a microsecond wider on each side. Before a clock's first knot and after
//! its last, widen by `rho_ppm` of the distance. `method` says how a piece came
//! about: `same` (one clock, exactly 0), `tube` (an epoch's exchanges), `union`
//! (between two epochs), `none` (nothing is known there). `hidden_step_ns` more on
//! each side also covers a step too small to be proven.

use polars::prelude::*;

use super::files::{column, maybe, texts};
use crate::align::bound::{Knot, RHO_PPM};
use crate::align::map::{ClockMap, Relation};
use crate::align::track::{Origin, SOLVER_VERSION, Track};

/// Knots that belong together.
struct Piece<'a> {
    method: &'static str,
    epoch: usize,
    knots: Vec<Knot>,
    hidden_step_ns: i64,
    track: Option<&'a Track>,
}

fn pieces(track: &Track) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    for (number, epoch) in track.epochs().iter().enumerate() {
        pieces.push(Piece {
            method: if epoch.corridor.is_some() {
                "tube"
            } else {
                "none"
            },
            epoch: number,
            knots: epoch
                .corridor
                .as_ref()
                .map_or(Vec::new(), |c| c.knots().to_vec()),
            hidden_step_ns: epoch.round_trip_min_ns.max(0),
            track: Some(track),
        });
        let Some(next) = track.epochs().get(number + 1) else {
            continue;
        };
        // The union of two straight lines lies inside the chord of its ends.
        let ends = [
            epoch.to_ns.saturating_add(1),
            next.from_ns.saturating_sub(1),
        ];
        let found: Vec<_> = ends
            .into_iter()
            .map(|at| track.at(at))
            .filter(|o| matches!(o.origin, Origin::Between(_)))
            .collect();
        if ends[0] <= ends[1] && found.len() == 2 {
            pieces.push(Piece {
                method: "union",
                epoch: number,
                hidden_step_ns: found[0].hidden_step_ns,
                knots: found.into_iter().map(|o| o.knot).collect(),
                track: Some(track),
            });
        }
    }
    pieces
}

/// The table. A piece without a knot has one row with null bounds.
pub(super) fn frame(clocks: &ClockMap) -> PolarsResult<DataFrame> {
    let (mut boot, mut namespace, mut same) = (Vec::new(), Vec::new(), Vec::new());
    let (mut number, mut epochs, mut methods) = (Vec::new(), Vec::new(), Vec::new());
    let (mut at, mut lo, mut mid, mut hi) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut hidden, mut kappa, mut exchanges) = (Vec::new(), Vec::new(), Vec::new());
    let (mut round_trip, mut ended, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    for (clock, relation) in clocks.relations() {
        let pieces = match relation {
            Relation::Same => vec![Piece {
                method: "same",
                epoch: 0,
                knots: Vec::new(),
                hidden_step_ns: 0,
                track: None,
            }],
            Relation::Bounded(track) => pieces(track),
        };
        for (piece_number, piece) in pieces.iter().enumerate() {
            let epoch = piece.track.and_then(|t| t.epochs().get(piece.epoch));
            let is_same = piece.track.is_none();
            let rows: Vec<Option<&Knot>> = if piece.knots.is_empty() {
                vec![None]
            } else {
                piece.knots.iter().map(Some).collect()
            };
            for knot in rows {
                boot.push(clock.boot_id.clone());
                namespace.push(clock.time_namespace);
                same.push(is_same);
                number.push(u32::try_from(piece_number).unwrap_or(u32::MAX));
                epochs.push(u32::try_from(piece.epoch).unwrap_or(u32::MAX));
                methods.push(piece.method.to_owned());
                at.push(knot.map(|k| k.at_ns));
                let zero = is_same.then_some(0);
                lo.push(knot.map(|k| k.lo_ns).or(zero));
                mid.push(knot.map(Knot::middle_ns).or(zero));
                hi.push(knot.map(|k| k.hi_ns).or(zero));
                hidden.push(piece.hidden_step_ns);
                kappa.push(epoch.map_or(1, |e| e.kappa_factor));
                exchanges.push(epoch.map_or(0, |e| e.exchanges as u64));
                round_trip.push(epoch.map(|e| e.round_trip_min_ns));
                ended.push(epoch.map_or("data_end", |e| e.ended.as_str()).to_owned());
                skipped.push(epoch.map_or(0, |e| e.skipped_windows as u64));
            }
        }
    }
    let rows = boot.len();
    DataFrame::new(
        rows,
        vec![
            texts("clock_boot_id", boot),
            column("clock_time_namespace", namespace),
            column("is_aggregators_clock", same),
            column("piece", number),
            column("epoch", epochs),
            texts("method", methods),
            maybe("at_ns", at),
            maybe("offset_lo_ns", lo),
            maybe("offset_mid_ns", mid),
            maybe("offset_hi_ns", hi),
            column("hidden_step_ns", hidden),
            column("rho_ppm", vec![RHO_PPM; rows]),
            column("kappa_factor", kappa),
            column("exchanges", exchanges),
            maybe("round_trip_min_ns", round_trip),
            texts("ended", ended),
            column("skipped_windows", skipped),
            column("solver_version", vec![SOLVER_VERSION; rows]),
        ],
    )
}
