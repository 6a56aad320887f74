//! Invariants of the code's shape: pure modules name no runtime, files or logs;
//! the agent stays small.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the workspace")
        .to_owned()
}

/// Code before the file's tests, without comments.
fn code_of(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.split("#[cfg(test)]")
        .next()
        .unwrap_or_default()
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n")
}

fn files_below(folder: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files_below(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

#[test]
fn pure_modules_are_pure() {
    let pure = [
        "proto/src/ids.rs",
        "proto/src/time.rs",
        "proto/src/sample.rs",
        "proto/src/batch.rs",
        "proto/src/frame.rs",
        "proto/src/frame",
        "proto/src/spool.rs",
        "proto/src/plain.rs",
        "proto/src/inspection.rs",
        "proto/src/pack.rs",
        "proto/src/plan.rs",
        "proto/src/fault.rs",
        "proto/src/convert.rs",
        "proto/src/utc.rs",
        "proto/src/tls/certificate.rs",
        "proto/src/tls/principal.rs",
        "proto/src/tls/words.rs",
        "agent/src/schedule.rs",
        "agent/src/outcome.rs",
        "agent/src/outcome",
        "agent/src/probe/canary.rs",
        "agent/src/names/message.rs",
        "agent/src/inspection/parse.rs",
        "agent/src/inspection/when.rs",
        "agent/src/backoff.rs",
        "agent/src/uplink/session.rs",
        "agent/src/uplink/session",
        "agent/src/uplink/fit.rs",
        "aggregator/src/ingest/admit.rs",
        "aggregator/src/live/clock.rs",
        "aggregator/src/live/event.rs",
        "aggregator/src/live/histogram.rs",
        "aggregator/src/live/lane.rs",
        "aggregator/src/live/model.rs",
        "aggregator/src/live/view.rs",
        "aggregator/src/web/host.rs",
        "aggregator/src/auth/access.rs",
        "aggregator/src/auth/deny.rs",
        "aggregator/src/auth/limits.rs",
        "aggregator/src/auth/tokens.rs",
        "aggregator/src/ingest/intake.rs",
        "aggregator/src/ingest/ending.rs",
        "aggregator/src/ingest/starts.rs",
        "aggregator/src/ingest/accounts.rs",
        "aggregator/src/store/positions.rs",
        "aggregator/src/align",
        "aggregator/src/analyse",
        "aggregator/src/compare",
        "aggregator/src/gate",
        "aggregator/src/overhead/analyse.rs",
        "aggregator/src/overhead/published.rs",
        "aggregator/src/overhead/record.rs",
        "aggregator/src/overhead/svg.rs",
        "aggregator/src/overhead/view.rs",
        "aggregator/src/stats",
        "compose/src/scenario.rs",
        "compose/src/scenario",
        "compose/src/overhead/statement.rs",
        "compose/src/overhead/target.rs",
        "compose/src/timeline.rs",
    ];
    let banned = [
        "tokio::",
        "tonic::",
        "std::fs",
        "std::net",
        "tracing::",
        "SystemTime",
        "Instant",
        "println!",
        "eprintln!",
        "rand::",
    ];
    let mut files = Vec::new();
    for entry in pure {
        let path = root().join(entry);
        assert!(
            path.exists(),
            "{entry} is listed as pure and does not exist"
        );
        if path.is_dir() {
            files_below(&path, &mut files);
        } else {
            files.push(path);
        }
    }
    for path in files {
        let code = code_of(&path);
        for word in banned {
            assert!(
                !code.contains(word),
                "{} is a pure module and names `{word}`",
                path.display()
            );
        }
    }
}

#[test]
fn wire_types_stop_at_the_border() {
    let allowed = [
        "proto/src/convert.rs",
        "proto/src/wire",
        "proto/src/lib.rs",
        "agent/src/uplink",
        "aggregator/src/ingest",
        "aggregator/src/control",
        "aggregator/src/server.rs",
        "aggregator/src/commands",
        "compose/src/control.rs",
        // Agents, as far as the wire goes.
        "compose/src/bench/crowd.rs",
    ];
    let mut files = Vec::new();
    for member in ["proto", "agent", "aggregator", "compose"] {
        files_below(&root().join(member).join("src"), &mut files);
    }
    for path in files {
        let short = path
            .strip_prefix(root())
            .expect("below the workspace")
            .to_string_lossy()
            .into_owned();
        if allowed.iter().any(|a| short.starts_with(a)) {
            continue;
        }
        let code = code_of(&path);
        let named = if short.starts_with("proto/") {
            code.contains("wire::")
        } else {
            code.split("gapscope_proto::").skip(1).any(|rest| {
                // `gapscope_proto::wire…` or `gapscope_proto::{…, wire, …}`
                let list = rest.split(';').next().unwrap_or_default();
                rest.starts_with("wire") || (rest.starts_with('{') && list.contains("wire"))
            })
        };
        assert!(
            !named,
            "{short} names wire types; they stop at uplink, ingest and control"
        );
    }
}

#[test]
fn agent_and_proto_do_without_polars() {
    for member in ["agent", "proto"] {
        let manifest =
            std::fs::read_to_string(root().join(member).join("Cargo.toml")).expect("a manifest");
        for word in ["polars", "arrow", "parquet", "gapscope-aggregator"] {
            assert!(!manifest.contains(word), "{member}/Cargo.toml names {word}");
        }
    }
}
