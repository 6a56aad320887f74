use gapscope_proto::ids::RunId;
use gapscope_proto::plan::ClientKind;
use gapscope_proto::sample::{Canary, Style};
use proptest::prelude::*;

use super::*;

const HEAD: &str = "name = \"t\"\nduration = \"30s\"\n[[backend]]\nname = \"b1\"\n[[backend]]\nname = \"b2\"\n[[proxy]]\nname = \"haproxy\"\n";

/// The one error of `text` must stand on `line`, be about `key` and say all of
/// `expect`.
#[track_caller]
fn check(text: &str, line: usize, key: &str, expect: &[&str]) {
    let errors = Scenario::parse("t.toml", text)
        .expect_err("an error is expected")
        .errors;
    let error = errors
        .iter()
        .find(|error| error.key == key && error.line == line)
        .unwrap_or_else(|| panic!("no error about `{key}` on line {line} in {errors:#?}"));
    assert_eq!(errors.len(), 1, "one error, not more: {errors:#?}");
    let said = format!("{} {}", error.what, error.hint);
    for part in expect {
        assert!(said.contains(part), "{part:?} is not said in {said:?}");
    }
}

fn with(tail: &str) -> String {
    format!("{HEAD}{tail}")
}

/// What is wrong, each with its line and key.
#[track_caller]
fn wrong(text: &str) -> Vec<(usize, String, String)> {
    let errors = Scenario::parse("t.toml", text)
        .expect_err("an error is expected")
        .errors;
    errors
        .into_iter()
        .map(|error| {
            (
                error.line,
                error.key,
                format!("{} {}", error.what, error.hint),
            )
        })
        .collect()
}

#[test]
fn an_unknown_subject_is_told_whatever_else_is_wrong_with_its_step() {
    let step = |head: &str, at: &str| {
        format!("{head}[[timeline]]\nat = \"{at}\"\ndo = \"stop\"\nsubject = \"b9\"\n")
    };
    let misspelt = HEAD.replace("haproxy", "haproxi");
    // Too late for the run, too late for any run, no time at all.
    for (head, at) in [
        (HEAD, "40s"),
        (HEAD, "4000h"),
        (HEAD, "40 parsecs"),
        (&misspelt, "40s"),
    ] {
        let found = wrong(&step(head, at));
        let has = |key: &str, said: &str| found.iter().any(|e| e.1 == key && e.2.contains(said));
        assert!(
            has("subject", "unknown subject `b9` did you mean `b1`?"),
            "{at}: {found:?}"
        );
        assert!(has("at", ""), "{at}: {found:?}");
        assert_eq!(
            found.iter().filter(|e| e.1 == "subject").count(),
            1,
            "{found:?}"
        );
    }
    let found = wrong(&step(&misspelt, "10s").replace("b9", "haproxi"));
    assert_eq!(
        found.len(),
        1,
        "a subject whose kind is not known: {found:?}"
    );
}

#[test]
fn a_proxy_whose_name_is_meant_to_be_its_kind() {
    let text = HEAD.replace("haproxy", "haproxi");
    check(
        &text,
        7,
        "kind",
        &["`kind` is missing", "did you mean `haproxy`?"],
    );
}

#[test]
fn a_scenarios_name_is_plain() {
    let named = |name: &str| HEAD.replacen("\"t\"", &format!("\"{name}\""), 1);
    for name in ["switch/../over", "..", ".hidden", "", "a b", "caf\u{e9}"] {
        check(
            &named(name),
            1,
            "scenario",
            &["no name for a scenario", "letters, digits"],
        );
    }
    assert!(Scenario::parse("t.toml", &named("over_2.a-b")).is_ok());
}

#[test]
fn unknown_keys_are_named_with_line_and_allowed_ones() {
    check(
        "nmae = \"x\"\nname = \"t\"\n[[backend]]\nname = \"b\"\n[[proxy]]\nname = \"haproxy\"\n",
        1,
        "nmae",
        &["unknown key `nmae`", "did you mean `name`", "duration"],
    );
    check(
        &with("[clients]\nreused = 1\nintervall = \"5ms\"\n"),
        11,
        "intervall",
        &["[clients]", "did you mean `interval`", "canaries"],
    );
    check(
        &with("[[timeline]]\nat = \"10s\"\ndo = \"stop\"\nsubject = \"b1\"\nwhen = \"now\"\n"),
        13,
        "when",
        &["[[timeline]]", "subject", "jitter"],
    );
    check(
        &with("[clients]\ntimeout = { conect = \"1s\" }\n"),
        10,
        "conect",
        &["did you mean `connect`", "resolve, connect, query"],
    );
}

#[test]
fn unknown_words_are_named_with_the_allowed_ones() {
    check(
        &with("[[timeline]]\nat = \"10s\"\ndo = \"stopp\"\nsubject = \"b1\"\n"),
        11,
        "do",
        &["`stopp`", "did you mean `stop`", "black_hole", "resume"],
    );
    check(
        &with("[[proxy]]\nname = \"p\"\nkind = \"proxysq\"\n"),
        11,
        "kind",
        &["`proxysq`", "l4-passthrough", "haproxy-mysql-check"],
    );
    check(
        &with("[clients]\ncanaries = [\"user_variabel\"]\n"),
        10,
        "canaries",
        &["did you mean `user_variable`"],
    );
    check(
        &with("[[timeline]]\nat = \"10s\"\ndo = \"stop\"\nsubject = \"b3\"\n"),
        9,
        "subject",
        &["unknown subject `b3`", "b1, b2"],
    );
    check(
        &with("[[timeline]]\nat = \"10s\"\ndo = \"black_hole\"\nsubject = \"haproxy\"\n"),
        9,
        "do",
        &["is a proxy", "b1, b2", "allowed for a proxy: stop, kill"],
    );
}

#[test]
fn values_out_of_range_are_named_with_what_is_allowed() {
    check(
        &with("[clients]\ninterval = \"0s\"\n"),
        10,
        "interval",
        &["0s", "1 ms to 24 h"],
    );
    check(
        &with("[clients]\ninterval = \"soon\"\n"),
        10,
        "interval",
        &["soon", "250ms"],
    );
    check(
        &with("[clients]\ninterval = 10\n"),
        10,
        "interval",
        &["integer", "a text in quotes"],
    );
    check(
        &with("[clients]\nreused = -1\n"),
        10,
        "reused",
        &["-1", "from 0 to 1000"],
    );
    check(
        &with("[clients]\nreused = 1000\ninterval = \"1ms\"\n"),
        11,
        "interval",
        &["probes a second", "allowed: up to"],
    );
    check(
        &with("[clients]\nnew = 10\nnew_interval = \"5ms\"\n"),
        11,
        "new_interval",
        &["connections a second", "max_connects_per_second"],
    );
    check(
        &with("[clients]\nreused = 0\npatient = 0\nnew = 0\n"),
        9,
        "clients",
        &["nobody would probe"],
    );
    check(
        &with(
            "[[timeline]]\nat = \"10s\"\ndo = \"stop\"\nsubject = \"b1\"\nphase = \"full moon\"\n",
        ),
        13,
        "phase",
        &["full moon", "random up to 2s"],
    );
}

#[test]
fn duplicate_names_are_refused() {
    check(
        &with("[[backend]]\nname = \"b1\"\n"),
        10,
        "name",
        &["two backends called `b1`"],
    );
    check(
        &with("[[proxy]]\nname = \"haproxy\"\n"),
        10,
        "name",
        &["two proxies called `haproxy`"],
    );
    check(
        &with("[[proxy]]\nname = \"b1\"\nkind = \"haproxy\"\n"),
        1,
        "name",
        &["both called `b1`"],
    );
    check(
        &with("[[backend]]\nname = \"b/1\"\n"),
        10,
        "name",
        &["`b/1`", "letters, digits"],
    );
}

#[test]
fn steps_must_be_possible() {
    let step = |at: &str, action: &str, more: &str| {
        format!("[[timeline]]\nat = \"{at}\"\ndo = \"{action}\"\nsubject = \"b1\"\n{more}")
    };
    check(
        &with(&step("29s", "stop", "")),
        9,
        "at",
        &["comes after the end", "30 s", "up to 2 s later"],
    );
    check(
        &with(&step("31s", "stop", "jitter = \"0s\"\n")),
        9,
        "at",
        &["at 31 s comes after the end"],
    );
    check(
        &with(&step("10s", "resume", "")),
        9,
        "do",
        &["`resume` makes no sense", "is up", "stop, kill"],
    );
    check(
        &with(&format!(
            "{}{}",
            step("10s", "stop", ""),
            step("11s", "start", "")
        )),
        13,
        "at",
        &["before the step of line 9 is over", "\"12s\""],
    );
    check(
        &with(&format!(
            "{}{}",
            step("10s", "stop", ""),
            step("15s", "kill", "")
        )),
        13,
        "do",
        &["is down", "allowed here: start"],
    );
    check(
        &with(&step("10s", "kill", "grace = \"2s\"\n")),
        9,
        "grace",
        &["of no use for `kill`"],
    );
    Scenario::parse(
        "t.toml",
        &with(&format!(
            "{}{}{}",
            step("2s", "hang", "duration = \"4s\"\n"),
            step("9s", "stop", ""),
            step("15s", "start", "")
        )),
    )
    .expect("a good timeline");
}

#[test]
fn proxies_and_drains_are_steps_too() {
    let step = |at: &str, action: &str, subject: &str, more: &str| {
        format!("[[timeline]]\nat = \"{at}\"\ndo = \"{action}\"\nsubject = \"{subject}\"\n{more}")
    };
    check(
        &with(&step("10s", "drain", "proxies", "")),
        9,
        "do",
        &["is a proxy", "allowed for a proxy: stop, kill, hang"],
    );
    check(
        &with(&step("10s", "undrain", "b1", "")),
        9,
        "do",
        &["`undrain` makes no sense", "is up then", "drain"],
    );
    check(
        &with(&step("10s", "drain", "b1", "grace = \"2s\"\n")),
        9,
        "grace",
        &["of no use for `drain`"],
    );
    check(
        "name = \"t\"\n[[backend]]\nname = \"proxies\"\n[[proxy]]\nname = \"haproxy\"\n",
        1,
        "name",
        &["`proxies` is no name"],
    );
    Scenario::parse(
        "t.toml",
        &with(&format!(
            "{}{}{}{}",
            step("2s", "drain", "b1", "duration = \"4s\"\n"),
            step("9s", "restart", "b1", "duration = \"2s\"\n"),
            step("10s", "restart", "proxies", ""),
            step("20s", "stop", "b1", "")
        )),
    )
    .expect("a good timeline");
}

#[test]
fn any_proxy_can_be_described() {
    let text = with(
        "[[proxy]]\nname = \"mine\"\nkind = \"command\"\ncommand = [\"envoy\", \"-c\", \
         \"{config}\"]\nconfig = \"port {port}\"\n",
    );
    let scenario = Scenario::parse("t.toml", &text).expect("valid");
    let custom = scenario.proxies[1].custom.as_ref().expect("described");
    assert_eq!(custom.command, ["envoy", "-c", "{config}"]);
    check(
        &with("[[proxy]]\nname = \"mine\"\nkind = \"command\"\n"),
        9,
        "command",
        &["missing", "how to start it"],
    );
    check(
        &with("[[proxy]]\nname = \"nginx\"\nconfig = \"x\"\n"),
        9,
        "config",
        &["of no use for a proxy of kind `nginx`"],
    );
}

#[test]
fn another_fault_is_undone_by_what_undoes_it() {
    let overrides = Overrides {
        fault: Some(Action::Hang),
        ..Overrides::default()
    };
    let text = shipped("failback").expect("shipped");
    let scenario = Scenario::parse_with("failback", text, &overrides).expect("valid");
    let actions: Vec<Action> = scenario.timeline.iter().map(|step| step.action).collect();
    assert_eq!(actions, [Action::Hang, Action::Resume]);
}

#[test]
fn what_is_missing_is_said() {
    check(
        &with("[[timeline]]\ndo = \"stop\"\nsubject = \"b1\"\n"),
        9,
        "at",
        &["missing"],
    );
    check(
        &with("[[timeline]]\nat = \"1s\"\nsubject = \"b1\"\n"),
        9,
        "do",
        &["missing", "stop"],
    );
    check(
        &with("[[proxy]]\nname = \"p\"\n"),
        9,
        "kind",
        &["missing", "haproxy"],
    );
    check(
        "name = \"t\"\n[[backend]]\nname = \"b\"\n",
        1,
        "proxy",
        &["nothing to probe", "direct"],
    );
    check(
        "name = \"t\"\n[[proxy]]\nname = \"haproxy\"\n",
        1,
        "backend",
        &["missing"],
    );
    check("name = \"t\"\nduration = \n", 2, "", &["not TOML"]);
}

#[test]
fn all_errors_are_said_at_once_with_the_file_name() {
    let errors = Scenario::parse(
        "mine.toml",
        &with("[clients]\nreusd = 1\nintervall = \"1s\"\n"),
    )
    .expect_err("two errors");
    assert_eq!(errors.errors.len(), 2);
    let text = errors.to_string();
    assert!(
        text.contains("mine.toml: line 10: unknown key `reusd`"),
        "{text}"
    );
    assert!(text.contains("mine.toml: line 11"), "{text}");
}

#[test]
fn shipped_scenarios_are_valid_and_have_the_stated_defaults() {
    for (name, text) in SHIPPED {
        let scenario = Scenario::parse(name, text).expect("a shipped scenario is valid");
        assert_eq!(scenario.name, *name);
        assert!(scenario.duration_ns <= 60 * SECOND, "{name}");
        assert_eq!(scenario.deadline_ns, 250 * MS);
        // A storm is made of more clients.
        if *name != "storm" {
            assert_eq!(
                scenario.clients,
                Clients {
                    canaries: vec![Canary::UserVariable],
                    new: scenario.clients.new,
                    ..Clients::default()
                }
            );
        }
        for faster in [2, 5, 10] {
            let overrides = Overrides {
                faster: Some(faster),
                ..Overrides::default()
            };
            let short = Scenario::parse_with(name, text, &overrides).expect("still valid");
            assert_eq!(short.duration_ns, scenario.duration_ns / u64::from(faster));
        }
    }
    let switchover = shipped("switchover").expect("it is shipped");
    let scenario = Scenario::parse("switchover", switchover).expect("valid");
    let step = &scenario.timeline[0];
    assert_eq!(
        (step.at_ns, step.jitter_ns, step.action),
        (10 * SECOND, 2 * SECOND, Action::Stop)
    );
    let baseline = shipped("baseline").expect("it is shipped");
    assert!(
        Scenario::parse("baseline", baseline)
            .expect("valid")
            .timeline
            .is_empty()
    );
}

#[test]
fn a_plan_has_every_client_of_every_target() {
    let scenario = Scenario::parse("s", shipped("switchover").expect("shipped")).expect("valid");
    let plan = scenario
        .plan(RunId::generate(), Some("1".to_owned()))
        .expect("valid names");
    plan.validate().expect("a plan that agents accept");
    let of: Vec<_> = plan
        .groups
        .iter()
        .filter(|group| group.target.as_str() == "l4-passthrough")
        .map(|group| (group.style, group.kind, group.first_client, group.clients))
        .collect();
    assert_eq!(
        of,
        [
            (Style::Reused, ClientKind::Bare, 0, 4),
            (Style::Reused, ClientKind::Patient, 4, 1),
            (
                Style::Reused,
                ClientKind::Canary(Canary::UserVariable),
                5,
                1
            ),
            (Style::New, ClientKind::Bare, 0, 2),
        ]
    );
    let patient = &plan.groups[1];
    assert_eq!(patient.timeouts.query_ns, None);
    assert_eq!(patient.timeouts.connect_ns, None);
    let load = scenario.load();
    assert_eq!(load.held, 6);
    assert_eq!(load.probes_per_second_milli, 520_000);
    assert_eq!(load.connects_per_second_milli, 10_000);
}

#[test]
fn the_command_line_changes_what_it_says() {
    let text = shipped("switchover").expect("shipped");
    let scenario = Scenario::parse_with(
        "s",
        text,
        &Overrides {
            like_lab08: true,
            ..Overrides::default()
        },
    )
    .expect("valid");
    let load = scenario.load();
    assert_eq!((load.clients, load.probes_per_second_milli), (1, 2_000));
    assert_eq!(scenario.duration_ns, 30 * SECOND);
    assert_eq!(scenario.timeline[0].jitter_ns, 0);
    assert_eq!(scenario.timeline[0].grace_ns, Some(2 * SECOND));

    let errors = Scenario::parse_with(
        "s",
        text,
        &Overrides {
            duration_ns: Some(11 * SECOND),
            ..Overrides::default()
        },
    )
    .expect_err("the fault comes after the end");
    assert_eq!(errors.errors[0].key, "--duration");
    assert!(errors.is_command_line());
    let said = errors.to_string();
    assert!(said.starts_with("--duration 11s is too short"), "{said}");
    assert!(said.contains("at least --duration 13s"), "{said}");

    let scenario = Scenario::parse_with(
        "s",
        text,
        &Overrides {
            fault: Some(Action::Hang),
            no_jitter: true,
            proxies: vec![ProxyKind::Haproxy],
            ..Overrides::default()
        },
    )
    .expect("valid");
    assert_eq!(scenario.timeline[0].action, Action::Hang);
    assert_eq!(target_names(&scenario), ["haproxy"]);
}

/// Lines and keys of all errors.
fn all_errors(text: &str, overrides: &Overrides) -> Vec<(usize, String)> {
    Scenario::parse_with("t.toml", text, overrides)
        .expect_err("errors are expected")
        .errors
        .into_iter()
        .map(|error| (error.line, error.key))
        .collect()
}

#[test]
fn all_that_is_wrong_is_told_at_once() {
    let none = Overrides::default();
    let text = with(
        "[clients]\nintervall = \"5ms\"\nreused = -1\n\
         [[timeline]]\nat = \"10s\"\ndo = \"kill\"\nsubject = \"b1\"\ngrace = \"1s\"\n\
         [[timeline]]\nat = \"99s\"\ndo = \"stop\"\nsubject = \"b9\"\nto = \"b1\"\n",
    );
    let key = |line: usize, key: &str| (line, key.to_owned());
    assert_eq!(
        all_errors(&text, &none),
        [
            key(10, "intervall"),
            key(11, "reused"),
            key(12, "grace"),
            key(17, "at"),
            key(17, "subject"),
        ]
    );
    // What only follows is not: `start` makes no sense because `stop` is misspelt, and
    // a subject is unknown because its name cannot be read.
    let text = with(
        "[[timeline]]\nat = \"5s\"\ndo = \"stopp\"\nsubject = \"b1\"\n\
         [[timeline]]\nat = \"15s\"\ndo = \"start\"\nsubject = \"b1\"\n",
    );
    assert_eq!(all_errors(&text, &none), [key(11, "do")]);
    let text = "name = \"t\"\n[[backend]]\nnmae = \"b1\"\n[[proxy]]\nname = \"haproxy\"\n\
                [[timeline]]\nat = \"5s\"\ndo = \"stop\"\nsubject = \"b1\"\n";
    assert_eq!(all_errors(text, &none), [key(2, "name"), key(3, "nmae")]);
}

#[test]
fn flags_that_do_not_fit_are_blamed_by_name() {
    let baseline = shipped("baseline").expect("shipped");
    let fault = |fault| Overrides {
        fault: Some(fault),
        ..Overrides::default()
    };
    for scenario in ["baseline", "proxy-restart"] {
        let text = shipped(scenario).expect("shipped");
        assert_eq!(
            all_errors(text, &fault(Action::Stop)),
            [(0, "--fault".to_owned())],
            "{scenario}"
        );
    }
    let twice = Overrides {
        proxies: vec![ProxyKind::Nginx, ProxyKind::Haproxy, ProxyKind::Nginx],
        ..Overrides::default()
    };
    assert_eq!(all_errors(baseline, &twice), [(0, "--proxy".to_owned())]);
}

#[test]
fn addresses_have_a_host_and_a_port() {
    let external = |address: &str| {
        format!(
            "name = \"t\"\n[external]\nuser = \"u\"\n[[external.backend]]\nname = \"b\"\n\
             address = \"{address}\"\n[[external.proxy]]\nname = \"p\"\naddress = \"p:3306\"\n"
        )
    };
    for (address, why) in [
        ("db-1", "it has no port"),
        ("db-1:70000", "not between 1 and 65535"),
        ("db-1:0", "not between 1 and 65535"),
        ("db-1:mysql", "`mysql` is no port"),
        (":3306", "it has no host"),
        ("fd00::1:3306", "stands in brackets"),
        ("[fd00::x]:3306", "no IPv6 address"),
        ("u@db-1:3306", "`u@db-1` is no host"),
    ] {
        check(&external(address), 6, "address", &[why, "HOST:PORT"]);
    }
    for address in ["db-1:3306", "10.0.0.7:3306", "[fd00::1]:3306"] {
        assert!(
            Scenario::parse("t.toml", &external(address)).is_ok(),
            "{address}"
        );
    }
}

#[test]
fn names_are_pointed_at_backends() {
    let named = |step: &str| {
        format!(
            "name = \"t\"\nduration = \"30s\"\n[[backend]]\nname = \"b1\"\n[[backend]]\n\
             name = \"b2\"\n[[proxy]]\nname = \"dns\"\nttl = \"1s\"\n[[proxy]]\n\
             name = \"haproxy\"\n[[timeline]]\nat = \"5s\"\n{step}"
        )
    };
    let good = "do = \"repoint\"\nsubject = \"dns\"\nto = \"b2\"\nduration = \"9s\"\n";
    let scenario = Scenario::parse("t.toml", &named(good)).expect("valid");
    assert_eq!(scenario.proxies[0].ttl_ns, Some(SECOND));
    assert_eq!(scenario.timeline[0].to.as_deref(), Some("b2"));
    assert_eq!(scenario.timeline[0].jitter_ns, 2 * SECOND);
    check(
        &named("do = \"repoint\"\nsubject = \"dns\"\n"),
        12,
        "to",
        &["does not say where to", "b1, b2"],
    );
    check(
        &named("do = \"repoint\"\nsubject = \"dns\"\nto = \"b3\"\n"),
        12,
        "to",
        &["`b3` is no backend", "b1, b2"],
    );
    check(
        &named("do = \"repoint\"\nsubject = \"haproxy\"\nto = \"b2\"\n"),
        12,
        "do",
        &["`haproxy` is a proxy", "names: dns"],
    );
    check(
        &named("do = \"stop\"\nsubject = \"dns\"\n"),
        12,
        "do",
        &["`dns` is a name", "repoint, restore"],
    );
    check(
        &named("do = \"restore\"\nsubject = \"dns\"\n"),
        12,
        "do",
        &["`restore` makes no sense for `dns`", "repoint"],
    );
    check(
        &with("[[proxy]]\nname = \"nginx\"\nttl = \"1s\"\n"),
        9,
        "ttl",
        &["of no use for a proxy of kind `nginx`"],
    );
}

#[test]
fn direct_targets_are_added_on_request() {
    let scenario = Scenario::parse("s", &format!("direct = true\n{HEAD}")).expect("valid");
    assert_eq!(
        target_names(&scenario),
        ["haproxy", "direct-b1", "direct-b2"]
    );
}

#[test]
fn control_characters_are_refused() {
    let text = "name = \"a\\u001b[2Jb\"\n[[backend]]\nname = \"b\"\n";
    let errors = Scenario::parse("x", text).expect_err("refused").to_string();
    assert!(
        errors.contains("line 1: `name` in the scenario has a control character"),
        "{errors}"
    );
    assert!(!errors.contains('\u{1b}'), "{errors}");
}

proptest! {
    /// Shipped scenarios with lines that are gone, twice, elsewhere or garbled: a
    /// scenario, or errors that name a line of the file; never a panic.
    #[test]
    fn any_file_is_a_scenario_or_errors_with_their_lines(
        which in 0..SHIPPED.len(),
        changes in proptest::collection::vec(
            (any::<usize>(), 0u8..5, "\\PC{0,20}|-?[0-9]{1,22}|\"[0-9.]{0,22}[a-z]{0,2}\""),
            0..6,
        ),
    ) {
        let mut lines: Vec<String> = SHIPPED[which].1.lines().map(str::to_owned).collect();
        for (at, how, text) in changes {
            let at = at % lines.len();
            match how {
                0 if lines.len() > 1 => drop(lines.remove(at)),
                1 => lines.insert(at, lines[at].clone()),
                2 => lines.swap(at, 0),
                3 => lines[at] = text,
                _ => {
                    let key = lines[at].split('=').next().unwrap_or_default().to_owned();
                    lines[at] = format!("{key}= {text}");
                }
            }
        }
        if let Err(found) = Scenario::parse("t.toml", &lines.join("\n")) {
            prop_assert!(!found.errors.is_empty());
            for error in &found.errors {
                prop_assert!(error.line <= lines.len() + 1, "{error:?}");
                prop_assert!(!error.what.is_empty());
            }
        }
    }
}
