//! The page of a run: nothing bad is thinned away, nothing from a server becomes
//! markup, nothing is fetched, and it works in a browser.
//!
//! The browser's tests need Chromium and say so where there is none. They open
//! `report.html#check` from disk, in which the page presses its own keys, turns
//! its wheel, points at samples, compares every pixel with the data, and writes
//! down what came of it.

#![expect(
    clippy::print_stdout,
    reason = "what is measured is printed, and what is missing is said"
)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use gapscope_aggregator::analyse::run::analyse_watched;
use gapscope_aggregator::analyse::series::Worth;
use gapscope_aggregator::report::html::cell::bit;
use gapscope_aggregator::report::html::lanes::Gathered;
use gapscope_aggregator::store::RunFolder;
use gapscope_proto::fault::FaultScope;
use gapscope_proto::plan::ClientKind;
use gapscope_proto::sample::{Cause, Outcome, Sample, Style};
use proptest::prelude::*;
use serde_json::Value;

mod lab;
use lab::*;

const EVIL: &str = "</script><script>document.title='taken'</script><img src=x onerror=alert(1)>";

fn page_of(lab: &Lab) -> PathBuf {
    lab.report();
    lab.store.folder().join("report.html")
}

/// A run with a stop, errors whose texts are markup, and three targets.
fn evil_lab() -> Lab {
    let mut groups = standard("pass-through");
    groups.extend(standard("reconnecting"));
    groups.push(group(
        "spare",
        Style::Reused,
        ClientKind::Bare,
        0,
        2,
        10 * MS,
    ));
    let mut lab = Lab::new(groups, 6 * S);
    lab.begin();
    lab.probe(|blank, due| {
        let connection = if blank.style == Style::New {
            blank.slot as u32 + 1
        } else {
            2
        };
        match (blank.target.as_str(), due) {
            ("spare", _) => from_b(blank, 1),
            (_, d) if d < 2_000 * MS => blank.clone(),
            ("reconnecting", _) => from_b(blank, 1),
            (_, d) if d < 3_500 * MS => Sample {
                error: Some(EVIL.into()),
                ..refused(blank)
            },
            (_, d) if d < 3_520 * MS => Sample {
                finished: blank.started + 700 * MS,
                backend: Some(format!("b<{EVIL}").into()),
                ..from_b(blank, connection)
            },
            _ => from_b(blank, connection),
        }
    });
    lab.end();
    lab.fault("stop", FaultScope::Backend, 1_995 * MS, Some("a:3306"));
    lab.close();
    lab
}

#[test]
fn what_comes_from_a_server_stays_text_and_nothing_is_fetched() {
    let lab = evil_lab();
    let html = std::fs::read_to_string(page_of(&lab)).expect("written");
    assert!(
        !html.contains("<img") && !html.contains("<script>"),
        "markup got in"
    );
    assert!(html.contains("\\u003c/script"), "the text itself is there");
    // No reference leaves the file.
    for way in [
        " src=\"",
        "href=\"http",
        "@import",
        "url(",
        "fetch(",
        "XMLHttpRequest",
        "import(",
    ] {
        assert!(!html.contains(way), "{way}");
    }
    let opened = html.matches("<script").count();
    assert_eq!(opened, html.matches("</script>").count());
    assert!(html.contains("default-src 'none'"));
    assert!(html.contains("pass-through: all 8 clients were on db-a when its stop was asked"));
}

/// What a probe meets, by a small number.
fn outcome(blank: &Sample, kind: u8) -> Sample {
    let bad = |outcome, cause, took: i64| Sample {
        outcome,
        cause: Some(cause),
        finished: blank.started + took,
        ..refused(blank)
    };
    match kind {
        0 => refused(blank),
        1 => bad(Outcome::TimedOut, Cause::QueryTimeout, 90 * MS),
        2 => bad(Outcome::ConnectionLost, Cause::Reset, 3 * MS),
        3 => Sample {
            finished: blank.started + 300 * MS,
            ..blank.clone()
        },
        4 => bad(Outcome::AgentError, Cause::Guard, MS),
        5 => bad(Outcome::ServerError, Cause::ShuttingDown, MS),
        6 => from_b(blank, 1),
        _ => blank.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn every_column_that_holds_a_bad_sample_shows_it(
        script in proptest::collection::vec(0u8..40, 1..80),
        clients in 1u16..70,
        interval_ms in 7i64..60,
        seconds in 1i64..5,
    ) {
        let groups = vec![
            group("proxy", Style::Reused, ClientKind::Bare, 0, clients, interval_ms * MS),
            group("proxy", Style::New, ClientKind::Bare, 0, 2, 3 * interval_ms * MS),
        ];
        let mut lab = Lab::new(groups, seconds * S);
        lab.begin();
        lab.probe(|blank, due| {
            let at = (due / MS) as usize + usize::from(blank.client) * 7;
            outcome(blank, script[at % script.len()])
        });
        lab.end();
        lab.close();
        let folder = RunFolder::open(lab.store.folder()).expect("readable");
        let mut seen = Seen { gathered: Gathered::default(), expected: Vec::new() };
        analyse_watched(&folder, &mut seen).expect("analysed");
        for (lane, expected) in seen.gathered.lanes.iter().zip(&seen.expected) {
            let mut shown = BTreeSet::new();
            let mut late = BTreeSet::new();
            for (at, cell) in lane.cells.iter().enumerate() {
                if cell.bits & bit::BAD != 0 {
                    shown.insert(at);
                }
                if cell.bits & bit::LATE != 0 {
                    late.insert(at);
                }
            }
            prop_assert_eq!(&shown, &expected.bad, "bad ones, and no others");
            prop_assert_eq!(&late, &expected.late);
            let probes: usize = lane.cells.iter().map(|c| usize::from(c.probed)).sum();
            prop_assert_eq!(probes, lane.probes);
            let bad: usize = lane.cells.iter().map(|c| usize::from(c.bad)).sum();
            prop_assert_eq!(bad, expected.count);
            let kept = lane.singles.iter().filter(|s| s.worth & (bit::BAD | bit::LATE) != 0);
            if lane.singles.len() < lane.probes {
                prop_assert!(kept.count() == lane.singles.len().min(expected.count));
            } else {
                prop_assert_eq!(kept.count(), expected.count);
            }
        }
    }
}

/// The same reduction, done the slow and plain way: which cells a bad sample
/// touches, from the series themselves.
struct Expected {
    bad: BTreeSet<usize>,
    late: BTreeSet<usize>,
    count: usize,
}

struct Seen {
    gathered: Gathered,
    expected: Vec<Expected>,
}

impl gapscope_aggregator::analyse::run::Watch for Seen {
    fn begin(&mut self, run: &gapscope_aggregator::analyse::run::Begun<'_>) {
        self.gathered.begin(run);
    }

    fn row(
        &mut self,
        run: &gapscope_aggregator::analyse::run::Begun<'_>,
        clock: &gapscope_proto::clock::ClockKey,
        clients: &[gapscope_aggregator::analyse::series::ClientSeries],
        row: &gapscope_aggregator::analyse::row::Row,
    ) {
        self.gathered.row(run, clock, clients, row);
        let lane = self.gathered.lanes.last().expect("a lane");
        let (columns, span) = (self.gathered.columns, self.gathered.span_ns);
        let deadline = run.manifest.plan.deadline_ns as i64;
        let mut expected = Expected {
            bad: BTreeSet::new(),
            late: BTreeSet::new(),
            count: 0,
        };
        for client in clients {
            let strip = lane
                .strips
                .iter()
                .position(|numbers| numbers.contains(&client.key.client))
                .expect("each client has a strip");
            for probe in &client.probes {
                let worth = probe.worth(deadline);
                if !matches!(worth, Worth::Bad | Worth::Late) {
                    continue;
                }
                expected.count += 1;
                let from = probe.scheduled - self.gathered.zero_ns;
                let to = from + client.interval_ns;
                for column in 0..columns {
                    // In thousandths of a column's width, without rounding.
                    let begin = column as i128 * i128::from(span);
                    let end = (column as i128 + 1) * i128::from(span);
                    let (a, b) = (
                        i128::from(from) * columns as i128,
                        i128::from(to - 1) * columns as i128,
                    );
                    let is_last = column + 1 == columns;
                    let touches = (a < end || is_last) && (b >= begin);
                    if touches {
                        let set = if worth == Worth::Bad {
                            &mut expected.bad
                        } else {
                            &mut expected.late
                        };
                        set.insert(strip * columns + column);
                    }
                }
            }
        }
        self.expected.push(expected);
    }
}

/// The browser, if there is one.
fn chromium() -> Option<&'static str> {
    let found = ["chromium", "chromium-browser", "google-chrome"]
        .into_iter()
        .find(|name| {
            Command::new(name)
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .is_ok_and(|status| status.success())
        });
    if found.is_none() {
        println!("skipped: no chromium here (apt-get install chromium)");
    }
    found
}

/// Opens the page's self-check with nothing to connect to; gives back what the
/// page wrote down, after looking for complaints in the console.
fn checked(browser: &str, page: &Path) -> Value {
    let profile = tempfile::tempdir().expect("a folder");
    let url = format!(
        "file://{}#check",
        page.canonicalize().expect("there").display()
    );
    let out = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--proxy-server=127.0.0.1:9",
            "--enable-logging=stderr",
            "--window-size=1280,900",
            "--virtual-time-budget=60000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(url)
        .stdin(Stdio::null())
        .output()
        .expect("the browser runs");
    let said = String::from_utf8_lossy(&out.stderr);
    let complaints: Vec<&str> = said.lines().filter(|l| l.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    let dom = String::from_utf8_lossy(&out.stdout);
    let begin = dom.find("<pre id=\"check\">").unwrap_or_else(|| {
        panic!("the page did not check itself:\n{said}");
    });
    let text = &dom[begin + 16..];
    let text = &text[..text.find("</pre>").expect("closed")];
    let text = text
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    assert!(!dom.contains("<title>taken"), "a script from a server ran");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn the_page_works_in_a_browser_without_a_network() {
    let Some(browser) = chromium() else { return };
    let lab = evil_lab();
    let page = page_of(&lab);
    keep(&page, "three.html");
    let found = checked(browser, &page);
    println!("{found:#}");
    assert_eq!(
        found["problems"].as_array().map(Vec::len),
        Some(0),
        "{found:#}"
    );
    assert_eq!(found["lanes"], 9);
    assert!(found["bad_pixels"].as_u64().expect("a number") > 100);
    let tip = found["tip"].as_str().expect("told");
    assert!(
        tip.contains("refused") && tip.contains("</script>"),
        "{tip}"
    );
}

/// Where `GAPSCOPE_KEEP` says to, so that a person can look at it.
fn keep(page: &Path, name: &str) {
    if let Some(folder) = std::env::var_os("GAPSCOPE_KEEP") {
        let to = PathBuf::from(folder).join(name);
        std::fs::copy(page, &to).expect("copied");
        println!("kept: {}", to.display());
    }
}

/// A backend that is stopped 20 times, every 8 s, and started again each time. The
/// first outage takes 3 s, the others by turns 1 s or 2 s; once one is not over.
fn repeated_lab() -> Lab {
    const EVERY: i64 = 8 * S;
    const LAST: i64 = 20;
    let groups = vec![
        group("proxy", Style::Reused, ClientKind::Bare, 0, 2, 20 * MS),
        group("proxy", Style::New, ClientKind::Bare, 0, 1, 100 * MS),
    ];
    let mut lab = Lab::new(groups, LAST * EVERY);
    lab.begin();
    lab.probe(|blank, due| {
        let (number, within) = (due / EVERY, due % EVERY);
        let out = match number {
            0 => 3_000 * MS,
            7 => 5_000 * MS,
            odd if odd % 2 == 1 => 1_000 * MS,
            _ => 2_000 * MS,
        };
        let connection = if blank.style == Style::New {
            blank.slot as u32 + 1
        } else {
            number as u32 * 2 + 2
        };
        match within {
            w if w < 2_000 * MS => Sample {
                connection: Some(connection - u32::from(blank.style != Style::New)),
                ..blank.clone()
            },
            w if w < 2_000 * MS + out => refused(blank),
            w if w < 7_000 * MS => from_b(blank, connection),
            _ => Sample {
                connection: Some(connection + u32::from(blank.style != Style::New)),
                ..blank.clone()
            },
        }
    });
    lab.end();
    for number in 0..LAST {
        let at = number * EVERY;
        lab.fault("stop", FaultScope::Backend, at + 1_995 * MS, Some("a:3306"));
        lab.note(
            "proxy_view",
            "proxy",
            at + 2_900 * MS,
            "proxy holds db-a for DOWN (refused), before for UP",
        );
        let undone = if number == 7 { 4_000 * MS } else { 6_500 * MS };
        lab.fault("start", FaultScope::Failback, at + undone, None);
        lab.note(
            "proxy_view",
            "proxy",
            at + 6_900 * MS,
            "proxy holds db-a for UP, before for DOWN",
        );
    }
    lab.close();
    lab
}

#[test]
fn twenty_repetitions_are_drawn_with_their_groups() {
    let lab = repeated_lab();
    let (_, json) = lab.report();
    let page = lab.store.folder().join("report.html");
    let html = std::fs::read_to_string(&page).expect("written");
    let reused = &json["repetitions"][0]["rows"][0];
    let groups = reused["gap_modes"].as_array().expect("groups");
    assert_eq!(groups.len(), 2, "{reused:#}");
    assert_eq!(
        (&groups[0]["count"], &groups[1]["count"]),
        (&9.into(), &9.into())
    );
    assert_eq!(reused["gap_not_over"], 1);
    // One mark for each repetition of each row, the first apart, and the boxes.
    let figure = |title: &str| -> &str {
        let at = html.find(&format!("aria-label=\"{title}")).expect(title);
        let end = html[at..].find("</svg>").expect("ends");
        &html[at..at + end]
    };
    let lengths = figure("stop db-a: felt gap in each of 20 repetitions");
    assert_eq!(lengths.matches("<circle").count(), 2 * 19);
    assert_eq!(
        lengths
            .matches("the first: repetition 1: disrupted, 3.")
            .count(),
        2
    );
    assert_eq!(lengths.matches("class=\"mode\"").count(), 4);
    assert!(lengths.contains(">9</text>"), "{lengths}");
    let order = figure("In order: felt gap");
    assert_eq!(order.matches("<circle").count(), 2 * 19);
    assert!(order.contains("trend "), "{order}");
    let shares = figure("Verdicts of the repetitions after the first");
    assert!(
        shares.contains("18 of 19") || shares.contains("19 of 19"),
        "{shares}"
    );
    keep(&page, "repeated.html");
    let Some(browser) = chromium() else { return };
    let found = checked(browser, &page);
    assert_eq!(
        found["problems"].as_array().map(Vec::len),
        Some(0),
        "{found:#}"
    );
    assert_eq!(found["faults"], 40);
    let view = found["belief"].as_str().expect("told");
    assert!(view.contains("proxy holds db-a for UP"), "{view}");
}

#[test]
#[ignore = "takes a minute or two: cargo test --workspace --test html -- --ignored --nocapture"]
fn a_million_samples_are_under_six_megabytes_and_ready_within_two_seconds() {
    let mut groups = Vec::new();
    for target in ["first", "second", "third"] {
        groups.push(group(
            target,
            Style::Reused,
            ClientKind::Bare,
            0,
            10,
            10 * MS,
        ));
        groups.push(group(target, Style::New, ClientKind::Bare, 0, 4, 100 * MS));
    }
    let lasts = 330 * S;
    let mut lab = Lab::new(groups, lasts);
    lab.begin();
    lab.probe(|blank, due| {
        let hash = (due / MS).wrapping_mul(2_654_435_761) ^ i64::from(blank.client) << 7;
        let jitter = (hash % 997).abs() * 1_000;
        let mut sample = match due {
            d if (100 * S..102 * S).contains(&d) && blank.target.as_str() != "third" => {
                refused(blank)
            }
            d if (200 * S..209 * S).contains(&d) && blank.target.as_str() == "first" => {
                refused(blank)
            }
            d if d >= 100 * S => from_b(blank, 2),
            _ if hash % 99_991 == 0 => refused(blank),
            _ => blank.clone(),
        };
        sample.finished = sample.finished + jitter;
        sample
    });
    assert!(lab.sampled > 1_000_000, "{}", lab.sampled);
    println!("{} samples", lab.sampled);
    lab.end();
    lab.fault(
        "stop",
        FaultScope::Backend,
        100 * S - 5 * MS,
        Some("a:3306"),
    );
    lab.fault(
        "stop",
        FaultScope::Backend,
        200 * S - 5 * MS,
        Some("b:3306"),
    );
    lab.close();
    let page = page_of(&lab);
    let size = std::fs::metadata(&page).expect("written").len();
    println!("{size} bytes");
    assert!(size < 6_000_000, "{size}");
    keep(&page, "million.html");
    let Some(browser) = chromium() else { return };
    let found = checked(browser, &page);
    println!("{found:#}");
    assert_eq!(
        found["problems"].as_array().map(Vec::len),
        Some(0),
        "{found:#}"
    );
    let ready = found["drawn_ms"].as_f64().expect("a number");
    assert!(ready < 2_000.0, "{ready} ms");
}
